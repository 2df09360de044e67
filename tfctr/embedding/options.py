"""What an embedding variable can be told: first values of rows, who gets a row (admission), who loses it (eviction).

Every option is a frozen dataclass: it can be compared, printed, shared by many variables, and never changes under one.
A bad value is refused where the option is made (`UsageError`), not in the middle of training.
docs/embedding_variable.md states the exact rules; in short:

* A key *occurs* whenever a training lookup names it; duplicates count. Inference neither counts nor inserts.
* A key is *admitted* in the call in which its count reaches `min_count`; before that it reads as the default value and
  gets no gradient.
* The *age* of a row is now minus its last update (its insertion, if it was never updated); a row goes when age > limit.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal

from tfctr.embedding import option_values as check
from tfctr.errors import UsageError

INT64_LOW, INT64_HIGH = -(2**63), 2**63 - 1
Key = int | str | bytes


class Initializer:
    """First values of a row: a pure function of (seed, key, column), the same in any order, on any machine."""

    def config(self) -> dict[str, Any]:
        """The initializer as the table's configuration says it (JSON)."""
        raise TypeError("Initializer is a base class: take Uniform, Normal, TruncatedNormal or Constant")


@dataclasses.dataclass(frozen=True)
class Uniform(Initializer):
    """Evenly spread over [low, high). The default: as Keras' `Embedding`, (-0.05, 0.05)."""

    low: float = -0.05
    high: float = 0.05

    def __post_init__(self) -> None:
        low = check.real(self, "low", self.low)
        check.real(self, "high", self.high, above=low)

    def config(self) -> dict[str, Any]:
        return {"kind": "uniform", "low": float(self.low), "high": float(self.high)}


@dataclasses.dataclass(frozen=True)
class _Gaussian(Initializer):
    """What `Normal` and `TruncatedNormal` have in common."""

    kind: ClassVar[str]
    mean: float = 0.0
    stddev: float = 0.05

    def __post_init__(self) -> None:
        check.real(self, "mean", self.mean)
        check.real(self, "stddev", self.stddev, above=0)

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind, "mean": float(self.mean), "stddev": float(self.stddev)}


@dataclasses.dataclass(frozen=True)
class Normal(_Gaussian):
    """Normally distributed."""

    kind: ClassVar[str] = "normal"


@dataclasses.dataclass(frozen=True)
class TruncatedNormal(_Gaussian):
    """Normally distributed, nothing further than two `stddev` (of the uncut distribution) from `mean`."""

    kind: ClassVar[str] = "truncated_normal"


@dataclasses.dataclass(frozen=True)
class Constant(Initializer):
    """The same value everywhere."""

    value: float = 0.0

    def __post_init__(self) -> None:
        check.real(self, "value", self.value)

    def config(self) -> dict[str, Any]:
        return {"kind": "constant", "value": float(self.value)}


class Admission:
    """Who gets a row. Without an admission option every key has one from its first training lookup on."""

    def config(self) -> dict[str, Any]:
        """The policy as the table's configuration says it (JSON)."""
        raise TypeError("Admission is a base class: take CounterAdmission or BloomAdmission")


@dataclasses.dataclass(frozen=True)
class CounterAdmission(Admission):
    """Exact: a key gets a row when training lookups have named it `min_count` times.

    Keeps a small counter for every key that was seen and has no row yet; eviction removes counters that got old too.

    Attributes:
      min_count: occurrences, from 1 (a row at once) to 4,294,967,295.
    """

    min_count: int

    def __post_init__(self) -> None:
        check.whole(self, "min_count", self.min_count, 1, 2**32 - 1)

    def config(self) -> dict[str, Any]:
        return {"kind": "counter", "min_count": int(self.min_count)}


@dataclasses.dataclass(frozen=True)
class BloomAdmission(Admission):
    """As CounterAdmission, by a counting Bloom filter: fixed memory, and now and then a key that is admitted too early.

    Attributes:
      min_count: occurrences; at most what a counter holds (2**counter_bits - 1). Counters stop there, they never wrap.
      expected_keys: distinct keys (between two resets) that the filter is sized for. More keys: more early admissions.
      false_positive_rate: share of early admissions at `expected_keys` keys, between 0 and 1. Memory is
        1.44 * log2(1 / rate) * expected_keys counters.
      counter_bits: bits of a counter: 8, 16 or 32.
      reset_every_steps: the filter forgets everything every so many steps; 0: never.
    """

    min_count: int
    expected_keys: int
    false_positive_rate: float = 0.01
    counter_bits: Literal[8, 16, 32] = 8
    reset_every_steps: int = 0

    def __post_init__(self) -> None:
        if self.counter_bits not in (8, 16, 32):
            raise check.refuse(self, "counter_bits", self.counter_bits, "8, 16 or 32")
        check.whole(self, "counter_bits", self.counter_bits, 8)
        check.whole(self, "min_count", self.min_count, 1, 2**self.counter_bits - 1)
        check.whole(self, "expected_keys", self.expected_keys, 1, 2**40)
        check.real(self, "false_positive_rate", self.false_positive_rate, above=0, below=1)
        check.whole(self, "reset_every_steps", self.reset_every_steps, 0)

    def config(self) -> dict[str, Any]:
        return {"kind": "bloom"} | {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Protection:
    """What every eviction policy takes besides its own limit."""

    min_rows: int = 0
    protected_keys: tuple[Key, ...] = ()

    def _check_protection(self) -> None:
        check.whole(self, "min_rows", self.min_rows, 0)
        keys: Any = self.protected_keys
        if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
            raise check.refuse(self, "protected_keys", keys, "a sequence of keys")
        keys = tuple(key.item() if hasattr(key, "item") else key for key in keys)
        for key in keys:
            if isinstance(key, bool) or not isinstance(key, int | str | bytes):
                raise check.refuse(self, "protected_keys", key, "int64 keys, or strings where the keys are strings")
            if isinstance(key, int) and not INT64_LOW <= key <= INT64_HIGH:
                raise check.refuse(self, "protected_keys", key, "keys within int64")
        object.__setattr__(self, "protected_keys", keys)

    def config(self, to_int64: Callable[[Sequence[Key]], list[int]]) -> dict[str, Any]:
        """The policy as the table's configuration says it (JSON); `to_int64` turns keys into the table's int64 keys."""
        told: dict[str, Any] = {"kind": self._kind()}
        for field in dataclasses.fields(self):
            told[field.name] = getattr(self, field.name)
        # Decimal strings: int64 does not fit a JSON number. Sorted: the order must not make another configuration.
        told["protected_keys"] = [str(key) for key in sorted(set(to_int64(self.protected_keys)))]
        return told

    def _kind(self) -> str:
        raise TypeError("Eviction is a base class: take StepEviction, TtlEviction, L2Eviction or CapacityEviction")


class Eviction(_Protection):
    """Who loses its row, value and optimizer slots; a key that returns later starts afresh.

    Runs when `EmbeddingVariable.evict()` is called, every `evict_every_steps` steps, or before each save
    (`evict_on_save`); several policies run in the order given, each on what the former left.

    Every policy takes:
      min_rows: the policy never leaves fewer rows than this: the newest (largest, most used) ones stay.
      protected_keys: keys whose rows it never takes.
    """


@dataclasses.dataclass(frozen=True)
class StepEviction(Eviction):
    """Rows whose last update is more than `steps_to_live` steps ago; counters of keys not admitted likewise."""

    steps_to_live: int

    def __post_init__(self) -> None:
        check.whole(self, "steps_to_live", self.steps_to_live, 0)
        self._check_protection()

    def _kind(self) -> str:
        return "step"


@dataclasses.dataclass(frozen=True)
class TtlEviction(Eviction):
    """Rows whose last update is more than `seconds` ago by the variable's clock; counters likewise."""

    seconds: float

    def __post_init__(self) -> None:
        check.real(self, "seconds", self.seconds, low=0, high=1e12)
        self._check_protection()

    def _kind(self) -> str:
        return "ttl"


@dataclasses.dataclass(frozen=True)
class L2Eviction(Eviction):
    """Rows whose Euclidean norm, sqrt(sum of squares), is below `threshold`: they add almost nothing."""

    threshold: float

    def __post_init__(self) -> None:
        check.real(self, "threshold", self.threshold, above=0)
        self._check_protection()

    def _kind(self) -> str:
        return "l2"


@dataclasses.dataclass(frozen=True)
class CapacityEviction(Eviction):
    """What is above `max_rows` rows: by last update, oldest first ("lru"), or by occurrences, fewest first ("lfu")."""

    max_rows: int
    order: Literal["lru", "lfu"] = "lru"

    def __post_init__(self) -> None:
        check.whole(self, "max_rows", self.max_rows, 1)
        if self.order not in ("lru", "lfu"):
            raise check.refuse(self, "order", self.order, '"lru" or "lfu"')
        self._check_protection()
        if self.min_rows > self.max_rows:
            raise check.refuse(self, "min_rows", self.min_rows, f"at most max_rows ({self.max_rows})")

    def _kind(self) -> str:
        return "capacity"


def evictions(variable: str, given: Any) -> tuple[Eviction, ...]:
    """The `eviction` argument in its one form: None, a policy or a sequence of policies.

    Raises:
      UsageError: something else; names the variable and what came.
    """
    if given is None:
        return ()
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    for policy in several:
        if not isinstance(policy, Eviction) or type(policy) is Eviction:
            raise UsageError(
                f"embedding variable {variable!r}: eviction is {policy!r}, expected StepEviction, TtlEviction, "
                f"L2Eviction, CapacityEviction, a sequence of them, or None"
            )
    return tuple(several)
