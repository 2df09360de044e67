"""The time of day and waiting, so that tests need neither."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What a manager needs of time."""

    def time(self) -> float:
        """Unix time in seconds, for people; it may jump."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits for the event, at most so long; whether it is set."""


class SystemClock:
    """The machine's; waiting does not depend on the time of day."""

    def time(self) -> float:
        return time.time()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)
