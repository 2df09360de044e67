"""Time as the generator sees it; tests have one of their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Nanoseconds of a clock that never goes back."""

    def now_ns(self) -> int: ...

    def sleep_until(self, moment_ns: int) -> None:
        """Returns at ``moment_ns`` or later; at once where it has passed."""


class SystemClock:
    """CLOCK_MONOTONIC."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until(self, moment_ns: int) -> None:
        left = moment_ns - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
