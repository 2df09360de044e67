"""Who uses a version: a version is closed only when nobody does."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any


class Slot:
    """A loaded version and how many requests hold it.

    Thread-safety: all methods from any thread; the lock is held for a few instructions.
    """

    def __init__(self, version: Any) -> None:
        self.version = version
        self._changed = threading.Condition(threading.Lock())
        self._leases = 0
        self._closed = False

    def enter(self) -> bool:
        """Takes one lease; False: the version is on its way out."""
        with self._changed:
            if self._closed:
                return False
            self._leases += 1
            return True

    def leave(self) -> None:
        with self._changed:
            self._leases -= 1
            if self._leases == 0:
                self._changed.notify_all()

    @property
    def leases(self) -> int:
        with self._changed:
            return self._leases

    def drain(self, seconds: float) -> bool:
        """No more leases; waits for those that are out. Whether all came back in time."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: self._leases == 0, seconds)


class Lease:
    """Holds a version for one request, from its choice to its reply. A context manager; ``release`` may be called
    twice."""

    __slots__ = ("_slot", "version")

    def __init__(self, slot: Slot) -> None:
        self._slot: Slot | None = slot
        self.version = slot.version

    def release(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.leave()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
