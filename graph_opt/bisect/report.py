"""What a bisection finds, as plain data."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """How the outputs of one form leave the tolerance.

    form: a label of ``forms.forms``: "plain", "split dense packed"... output: the worst one; row: its first index where
    the value is worst, None for scalars and shapes. max_abs: |difference| there. want, got: the two values. reason: one
    line.
    """

    form: str
    output: str
    reason: str
    row: int | None = None
    max_abs: float = 0.0
    want: str = ""
    got: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One pass of the walk. status: "equal", "differs", "slower", "faster", "skipped" (nothing to run yet), or the
    pass's own "disabled" or "failed". ratio: time after / time before, with its 95 % interval (speed only). drift:
    largest |difference| of any output so far.
    """

    name: str
    status: str
    fired: int = 0
    note: str = ""
    drift: float = 0.0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    median_ms: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """Result of a bisection.

    what: "outputs" or "speed". found: whether there is a difference. culprit: name of the pass, "" where none.
    rewrites: the smallest set of the pass's rewrites that shows it (gather nodes of lookups, tables, features), empty
    where the pass has one only. lookups: the lookups these are, or that the first wrong tensor holds. tensor: the first
    tensor, in the order of computation, that has other values after the pass. rows: of the inputs, the smallest set
    that shows it. reproduction: folder, None where none was written.
    """

    what: str
    path: str
    signature: str
    found: bool
    steps: tuple[Step, ...]
    culprit: str = ""
    difference: Difference | None = None
    rewrites: tuple[str, ...] = ()
    lookups: tuple[str, ...] = ()
    tensor: str = ""
    rows: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    reproduction: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        found = dataclasses.asdict(self)
        found["reproduction"] = None if self.reproduction is None else str(self.reproduction)
        return found
