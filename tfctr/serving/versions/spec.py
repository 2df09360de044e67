"""What is asked of a model's versions, and what is told of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from tfctr.errors import UsageError
from tfctr.serving.group_options import GroupOptions

State = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
START: State = "START"
LOADING: State = "LOADING"
AVAILABLE: State = "AVAILABLE"
UNLOADING: State = "UNLOADING"
END: State = "END"

_LONGEST_LABEL = 128


@dataclasses.dataclass(frozen=True)
class Latest:
    """The ``count`` highest versions that are there."""

    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"latest versions: {self.count}, expected 1 or more")

    def wanted(self, there: Collection[int]) -> frozenset[int]:
        return frozenset(sorted(there)[-self.count :])


@dataclasses.dataclass(frozen=True)
class All:
    """Every version that is there."""

    def wanted(self, there: Collection[int]) -> frozenset[int]:
        return frozenset(there)


@dataclasses.dataclass(frozen=True)
class Specific:
    """These versions."""

    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.numbers:
            raise UsageError("specific versions: none is named")

    def wanted(self, there: Collection[int]) -> frozenset[int]:
        return frozenset(self.numbers) & frozenset(there)


Policy = Latest | All | Specific


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Splits requests that name neither version nor label. field: the input whose first value decides, so that equal
    values always get the same version (A/B groups). weights: label or version number -> share, of any sum; the order
    of their names is kept, so that a share that grows keeps those it had.
    """

    field: str
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.field:
            raise UsageError("traffic: names no field")
        wrong = [name for name, weight in self.weights.items() if not 0 <= weight < float("inf")]
        if wrong:
            raise UsageError(f"traffic: the weight of {wrong[0]!r} is {self.weights[wrong[0]]}, expected 0 or more")
        if not sum(self.weights.values()) > 0:
            raise UsageError("traffic: the weights are all 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model to serve. base_path: ``base_path/<number>/`` are its versions, or it is one model itself (version 1).
    labels: name -> version. poll_seconds: how often the folder is looked at; 0: only when asked.
    """

    name: str
    base_path: Path
    policy: Policy = Latest()
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    options: GroupOptions = dataclasses.field(default_factory=GroupOptions)
    traffic: Traffic | None = None
    op_libraries: tuple[str, ...] = ()
    poll_seconds: float = 2.0
    drain_seconds: float = 30.0
    """How long an old version may take to finish the requests that it has."""
    accept_changed_inputs: bool = False
    """Whether a version may take over that does not take the requests of the one that serves."""

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError(f"{self.base_path}: a model needs a name")
        if self.poll_seconds < 0:
            raise UsageError(f"model {self.name!r}: poll_seconds is {self.poll_seconds}, expected 0 or more")
        for label in self.labels:
            check_label(self.name, label)


def check_label(model: str, label: str) -> None:
    """UsageError for a label that could be taken for a version, or that no message and no path should hold."""
    if not label or label.isdecimal():
        raise UsageError(f"model {model!r}: {label!r} is no label; expected a name that is no number")
    if len(label) > _LONGEST_LABEL or not label.isprintable():
        raise UsageError(f"model {model!r}: {label[:40]!r}: expected {_LONGEST_LABEL} printable characters at most")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionStatus:
    """One version. error: why it is not loaded, or, beside AVAILABLE, why what lies in its folder now was not taken.
    loaded_at: Unix time. pinned: loaded by hand, so that it stays until it is unloaded by hand. describe: what the
    loaded one says of itself."""

    number: int
    state: State
    error: str = ""
    loaded_at: float | None = None
    pinned: bool = False
    describe: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelStatus:
    """One model. default: the version that answers who names none. labels: those that are set. labels_unloaded:
    those whose version was unloaded by hand: requests for them are refused, and they come back with it. error: of the
    model's folder; "" where there is none."""

    name: str
    versions: tuple[VersionStatus, ...]
    labels: Mapping[str, int]
    labels_unloaded: Mapping[str, int] = dataclasses.field(default_factory=dict)
    default: int | None = None
    error: str = ""


def missing(policy: Policy, there: Collection[int], folder: Path) -> str:
    """Which versions the policy names that are not there; "" where none is missing."""
    absent = sorted(set(policy.numbers) - set(there)) if isinstance(policy, Specific) else []
    if not absent:
        return ""
    return f"{folder}: holds no version {listed(absent)}, which is to be served; there is: {listed(sorted(there))}"


def listed(values: Iterable[object]) -> str:
    """For messages."""
    return ", ".join(str(one) for one in values) or "none"
