"""The configuration of a table as the handle op takes it: JSON with sorted keys, the same text for the same options.

Format 1. The seed and keys travel as decimal strings, because int64 does not fit a JSON number. `frequency`,
`last_step`, `last_time` and `changes` say what a row keeps besides value and slots, and are on only where an option
needs them; `changes` is left out where it is off, as versions that do not know it wrote it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfctr.embedding import option_values as check
from tfctr.embedding import out_of_scope
from tfctr.embedding.optimizers import Optimizer
from tfctr.embedding.options import (
    Admission,
    CapacityEviction,
    Eviction,
    Initializer,
    Key,
    StepEviction,
    TtlEviction,
    evictions,
)
from tfctr.errors import UsageError

FORMAT = 1
MAX_DIM = 1 << 20
DEFAULT_SHARDS = 16
MAX_SHARDS = 4096


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """The checked options of one variable; `EmbeddingVariable` says what each means."""

    name: str
    dim: int
    initializer: Initializer
    seed: int
    default_value: tuple[float, ...]
    optimizer: Optimizer | None
    admission: Admission | None
    eviction: tuple[Eviction, ...]
    evict_every_steps: int
    evict_on_save: bool
    record_frequency: bool
    record_last_step: bool
    record_changes: bool
    max_bytes: int
    expected_rows: int
    shards: int

    @property
    def keeps_frequency(self) -> bool:
        """Whether rows hold how often training lookups named their key."""
        return self.record_frequency or self.admission is not None or "lfu" in self._orders()

    @property
    def keeps_last_step(self) -> bool:
        """Whether rows hold the step of their last update."""
        by_step = any(isinstance(policy, StepEviction) for policy in self.eviction)
        return self.record_last_step or "lru" in self._orders() or by_step

    @property
    def keeps_last_time(self) -> bool:
        """Whether rows hold the time of their last update."""
        return any(isinstance(policy, TtlEviction) for policy in self.eviction)

    def _orders(self) -> set[str]:
        return {policy.order for policy in self.eviction if isinstance(policy, CapacityEviction)}

    def to_json(self, to_int64: Callable[[Sequence[Key]], list[int]]) -> str:
        """`to_int64` turns the protected keys into the table's int64 keys (strings by fingerprint)."""
        told = {
            "format": FORMAT,
            "name": self.name,
            "dim": self.dim,
            "shards": self.shards,
            "seed": str(self.seed),
            "initializer": self.initializer.config(),
            "default_value": list(self.default_value),
            "optimizer": self.optimizer.config() if self.optimizer else None,
            "clip": self.optimizer.clip_config() if self.optimizer else None,
            "admission": self.admission.config() if self.admission else None,
            "eviction": [policy.config(to_int64) for policy in self.eviction],
            "evict_every_steps": self.evict_every_steps,
            "evict_on_save": self.evict_on_save,
            "frequency": self.keeps_frequency,
            "last_step": self.keeps_last_step,
            "last_time": self.keeps_last_time,
            "max_bytes": self.max_bytes,
            "expected_rows": self.expected_rows,
        }
        if self.record_changes:
            told["changes"] = True
        return json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)


def table_options(
    name: str,
    dim: Any,
    *,
    initializer: Any,
    seed: Any,
    default_value: Any,
    optimizer: Any,
    admission: Any,
    eviction: Any,
    evict_every_steps: Any,
    evict_on_save: Any,
    record_frequency: Any,
    record_last_step: Any,
    record_changes: Any,
    max_bytes: Any,
    expected_rows: Any,
    shards: Any,
) -> TableOptions:
    """Checks the options of variable `name` one by one.

    Raises:
      UsageError: names the variable, the option, what came and what was expected.
    """
    owner = f"embedding variable {name!r}"
    out_of_scope.check_one_dimension(owner, dim)
    dim = check.whole(owner, "dim", dim, 1, MAX_DIM)
    policies = evictions(name, eviction)
    every = check.whole(owner, "evict_every_steps", evict_every_steps, 0)
    on_save = check.flag(owner, "evict_on_save", evict_on_save)
    if not policies and (every or on_save):
        argument, value = ("evict_every_steps", every) if every else ("evict_on_save", on_save)
        raise check.refuse(owner, argument, value, f"{type(value)()} without an eviction policy (eviction=...)")
    return TableOptions(
        name=name,
        dim=dim,
        initializer=_one_of(
            owner, "initializer", initializer, Initializer, "Uniform, Normal, TruncatedNormal or Constant"
        ),
        seed=seed_of_name(name) if seed is None else check.whole(owner, "seed", seed, 0, 2**64 - 1),
        default_value=_default_value(owner, default_value, dim),
        optimizer=None
        if optimizer is None
        else _one_of(owner, "optimizer", optimizer, Optimizer, "tfctr.optimizers.*"),
        admission=None
        if admission is None
        else _one_of(owner, "admission", admission, Admission, "CounterAdmission, BloomAdmission or None"),
        eviction=policies,
        evict_every_steps=every,
        evict_on_save=on_save,
        record_frequency=check.flag(owner, "record_frequency", record_frequency),
        record_last_step=check.flag(owner, "record_last_step", record_last_step),
        record_changes=check.flag(owner, "record_changes", record_changes),
        max_bytes=0 if max_bytes is None else check.whole(owner, "max_bytes", max_bytes, 0),
        expected_rows=check.whole(owner, "expected_rows", expected_rows, 0, 2**40),
        shards=DEFAULT_SHARDS if shards is None else check.whole(owner, "shards", shards, 1, MAX_SHARDS),
    )


def seed_of_name(name: str) -> int:
    """The seed where none is given: other tables get other values, two runs and two workers the same."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def _one_of(owner: str, argument: str, value: Any, base: type, expected: str) -> Any:
    # An instance of a subclass: the base classes themselves say nothing.
    if not isinstance(value, base) or type(value) is base:
        raise check.refuse(owner, argument, value, expected)
    return value


def _default_value(owner: str, value: Any, dim: int) -> tuple[float, ...]:
    expected = f"a finite number, or {dim} of them"
    try:
        given = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise check.refuse(owner, "default_value", value, expected) from None
    with np.errstate(over="ignore"):
        floats = given.astype(np.float32)
    if floats.shape not in ((), (dim,)) or not np.isfinite(floats).all():
        raise check.refuse(owner, "default_value", value, expected)
    # As float32 says it: the table holds floats, and two texts for one float would be two configurations.
    return tuple(float(number) for number in np.broadcast_to(floats, (dim,)))


def check_name(name: Any) -> str:
    """A variable's name: it goes into op names and checkpoints.

    Raises:
      UsageError: it is empty, not a string, or has characters that neither takes.
    """
    allowed = "a name of letters, digits and _ . / - that begins with a letter, a digit or ."
    if not isinstance(name, str) or not name or not (name[0].isalnum() or name[0] == "."):
        raise UsageError(f"embedding variable: name is {name!r}, expected {allowed}")
    if not all(letter.isascii() and (letter.isalnum() or letter in "_./-") for letter in name) or name.endswith("/"):
        raise UsageError(f"embedding variable: name is {name!r}, expected {allowed}")
    return name
