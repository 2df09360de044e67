"""docs/embedding_variable.md in plain Python: what a table must do, in the slowest and plainest way.

`ReferenceTable` reads the same configuration as the real table (the JSON of `EmbeddingVariable.config`, as a dict) and
does everything with dicts. Arithmetic on rows is NumPy float32, one key after the other. Nothing here is shared with
the implementation; admission and eviction are in reference_policies.py.
"""

import dataclasses
from typing import Any, Protocol

import numpy as np

from tests.embedding import reference_policies as policies

UINT32_MAX = 2**32 - 1
WORD = 0xFFFFFFFF


class Optimizer(Protocol):
    """What a reference optimizer must offer; see reference_optimizers.py for all of them."""

    def slots(self, dim: int) -> dict[str, tuple[int, float]]:
        """Width and initial value of every slot of a row."""
        ...

    def update(
        self, value: np.ndarray, slots: dict[str, np.ndarray], gradient: np.ndarray, learning_rate: float, step: int
    ) -> None:
        """Updates one row in place."""
        ...


@dataclasses.dataclass(frozen=True)
class Adagrad:
    """a += g^2; w -= (lr * g) / (sqrt(a) + epsilon), all in float32."""

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    def slots(self, dim: int) -> dict[str, tuple[int, float]]:
        return {"accumulator": (dim, self.initial_accumulator_value)}

    def update(
        self, value: np.ndarray, slots: dict[str, np.ndarray], gradient: np.ndarray, learning_rate: float, step: int
    ) -> None:
        accumulator = slots["accumulator"]
        accumulator += gradient * gradient
        value -= (np.float32(learning_rate) * gradient) / (np.sqrt(accumulator) + np.float32(self.epsilon))


@dataclasses.dataclass
class Row:
    """Everything a table keeps of an admitted key."""

    value: np.ndarray
    slots: dict[str, np.ndarray]
    frequency: int
    last_step: int
    last_time_ms: int

    def norm(self) -> float:
        """In float64, added in the order of the columns."""
        total = 0.0
        for number in self.value.tolist():
            total += number * number
        return float(np.sqrt(total))


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al. 2011)."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = (p1 >> 32) ^ x1 ^ k0, p1 & WORD, (p0 >> 32) ^ x3 ^ k1, p0 & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return x0, x1, x2, x3


def initial_value(config: dict[str, Any], key: int) -> np.ndarray:
    """The first value of a key's row: constant or uniform (the normal ones have tests of their own)."""
    dim, spec = config["dim"], config["initializer"]
    if spec["kind"] == "constant":
        return np.full(dim, spec["value"], np.float32)
    low, high = np.float32(spec["low"]), np.float32(spec["high"])
    seed, bits = int(config["seed"]), key % 2**64
    words = np.array(
        [philox4x32((bits & WORD, bits >> 32, block, 0), (seed & WORD, seed >> 32)) for block in range((dim + 3) // 4)],
        np.uint32,
    ).reshape(-1)[:dim]
    values = (words >> 8).astype(np.float32) * ((high - low) * np.float32(2.0**-24)) + low
    return np.minimum(values, np.nextafter(high, np.float32(-np.inf)))


class ReferenceTable:
    """One table. Times are milliseconds; `step` is the number of finished updates before this one."""

    def __init__(self, config: dict[str, Any], optimizer: Optimizer | None = None) -> None:
        self.config = config
        self.optimizer = optimizer
        self.dim = int(config["dim"])
        default = config.get("default_value") or [0.0]
        self.default = np.broadcast_to(np.array(default, np.float32), (self.dim,)).copy()
        self.rows: dict[int, Row] = {}
        self.admission = policies.admission_of(config.get("admission"))
        self._last_period: int | None = None  # of the newest update, in units of evict_every_steps
        self._initial: dict[int, np.ndarray] = {}

    # Lookup

    def lookup(self, keys: list[int], step: int = 0, time_ms: int = 0, training: bool = False) -> np.ndarray:
        """Values [len(keys), dim]. All `keys` of one call count together."""
        if training:
            self._count(keys, step, time_ms)
        return np.array([self.rows[k].value if k in self.rows else self.default for k in keys], np.float32).reshape(
            len(keys), self.dim
        )

    def _count(self, keys: list[int], step: int, time_ms: int) -> None:
        counts: dict[int, int] = {}
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        missing = {}
        for key, count in counts.items():
            if key in self.rows:
                self.rows[key].frequency = min(self.rows[key].frequency + count, UINT32_MAX)
            else:
                missing[key] = count
        for key, total in self.admission.add(missing, step, time_ms).items():
            self.rows[key] = self.new_row(key, total, step, time_ms)

    def new_row(self, key: int, frequency: int, step: int, time_ms: int) -> Row:
        """A row as an admitted key gets it: initial value, initial slots."""
        if key not in self._initial:  # a pure function: computed once
            self._initial[key] = initial_value(self.config, key)
        slots = self.optimizer.slots(self.dim) if self.optimizer else {}
        return Row(
            value=self._initial[key].copy(),
            slots={name: np.full(width, initial, np.float32) for name, (width, initial) in slots.items()},
            frequency=frequency,
            last_step=step,
            last_time_ms=time_ms,
        )

    # Update

    def apply(
        self, keys: list[int], gradients: np.ndarray, learning_rate: float, step: int = 0, time_ms: int = 0
    ) -> policies.Report | None:
        """One update; keys without a row are dropped. Returns what the eviction took that this step was due for."""
        assert self.optimizer is not None
        sums: dict[int, np.ndarray] = {}
        for key, gradient in zip(keys, np.asarray(gradients, np.float32), strict=True):
            sums[key] = sums[key] + gradient if key in sums else gradient
        for key, total in sums.items():
            if not np.isfinite(total).all():
                raise ValueError(f"the gradient of key {key} is not finite")
        for key, total in sums.items():
            row = self.rows.get(key)
            if row is None:
                continue
            self.optimizer.update(row.value, row.slots, total, learning_rate, step)
            row.last_step, row.last_time_ms = step, time_ms
        return self.evict(step, time_ms) if self._due(step) else None

    def _due(self, step: int) -> bool:
        every = self.config.get("evict_every_steps", 0)
        if not every:
            return False
        period = step // every
        before = (step - 1) // every if self._last_period is None else self._last_period
        self._last_period = max(period, before)
        return step > 0 and period > before

    def forget_periods(self) -> None:
        """What a restore does: the next update is the first one that is seen."""
        self._last_period = None

    # Eviction and the rest

    def evict(self, step: int, time_ms: int, dry_run: bool = False) -> policies.Report:
        """Runs the policies in order, each on what the former left."""
        rows = {
            key: policies.Judged(row.last_step, row.last_time_ms, row.frequency, row.norm())
            for key, row in self.rows.items()
        }
        counters = self.admission.counters()
        report = policies.run(self.config.get("eviction") or [], rows, counters, step, time_ms)
        if not dry_run:
            for key in set(self.rows) - set(rows):
                del self.rows[key]
            for key in set(self.admission.counters()) - set(counters):
                self.admission.forget(key)
        return report

    def erase(self, keys: list[int]) -> int:
        """Takes rows and counters; returns how many rows there were."""
        erased = 0
        for key in set(keys):
            erased += self.rows.pop(key, None) is not None
            self.admission.forget(key)
        return erased

    def frequency(self, keys: list[int]) -> list[int]:
        """Occurrences: of the row, else the counter's."""
        return [self.rows[key].frequency if key in self.rows else self.admission.count(key) for key in keys]
