"""When requests are due: the arrival processes of open-loop load.

A schedule is int64 nanoseconds from the start of a run, ascending. It is made before the run, so that a slow server
can't slow down the arrivals.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from tfctr.errors import UsageError

ARRIVALS = ("poisson", "bursts", "uniform")
MAX_ARRIVALS = 20_000_000

Schedule = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Arrivals:
    """How requests arrive.

    kind: "poisson" (independent clients), "bursts" (``burst_size`` at the same moment, the moments Poisson; the same
    mean rate) or "uniform" (one every 1 / rate seconds).
    """

    kind: str = "poisson"
    burst_size: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ARRIVALS:
            raise UsageError(f"arrivals {self.kind!r}: expected one of {', '.join(ARRIVALS)}")
        if self.burst_size < 1:
            raise UsageError(f"a burst of {self.burst_size} requests: expected at least 1")

    def schedule(self, rate: float, duration_s: float) -> Schedule:
        """The moments in [0, duration_s) at a mean of ``rate`` requests per second.

        Raises:
          UsageError: a rate or duration that is not positive, or more requests than a run can hold.
        """
        if not (0 < rate < float("inf") and 0 < duration_s < float("inf")):
            raise UsageError(f"{rate:g} requests/s for {duration_s:g} s: expected two positive numbers")
        if rate * duration_s > MAX_ARRIVALS:
            raise UsageError(f"{rate:g} requests/s for {duration_s:g} s are more than {MAX_ARRIVALS} requests")
        if self.kind == "uniform":
            moments = np.arange(max(1, int(rate * duration_s))) / rate
        elif self.kind == "bursts":
            moments = np.repeat(self._poisson(rate / self.burst_size, duration_s), self.burst_size)
        else:
            moments = self._poisson(rate, duration_s)
        return (moments * 1e9).astype(np.int64)

    def _poisson(self, rate: float, duration_s: float) -> npt.NDArray[np.float64]:
        random = np.random.default_rng(self.seed)
        expected = rate * duration_s
        moments = np.empty(0)
        while not len(moments) or moments[-1] < duration_s:
            gaps = random.exponential(1 / rate, int(expected + 4 * expected**0.5) + 16)
            moments = np.concatenate([moments, (moments[-1] if len(moments) else 0.0) + np.cumsum(gaps)])
        return moments[moments < duration_s]
