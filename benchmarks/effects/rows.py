"""Figures of the effect table, as plain data that goes to JSON and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

LOSS, EQUAL, GAIN = "loss", "equal", "gain"
# A median ratio below this is a loss, one above its inverse a gain, where three quarters of the rounds agree.
LOSS_BELOW = 0.97
MEASURED, NOTHING, NOT_RUN, FAILED = "measured", "nothing to do", "not run", "failed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """One side. ops: executed in one call. transfers: tensors that cross between devices in one call, with their bytes.
    table_bytes: of the store's files and of variables that stayed. rss_mb: growth of resident memory by loading
    the session and its first calls, mapped pages of tables included.
    """

    p50_ms: float
    p99_ms: float
    ops: int
    transfers: int
    transfer_bytes: int
    table_bytes: int
    rss_mb: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One setting on one model in one context. low, ratio, high: quartiles of "off / on" over the paired rounds, above
    1 where the setting is faster. reason: why it was not measured, or what ``Pair.needs`` says.
    """

    model: str
    setting: str
    context: str
    status: str
    reason: str = ""
    request: str = ""
    on: Figures | None = None
    off: Figures | None = None
    low: float = 0.0
    ratio: float = 0.0
    high: float = 0.0
    rounds: int = 0

    @property
    def verdict(self) -> str:
        """ "loss" or "gain" beyond the spread, else "equal"; "" where nothing was measured."""
        if self.status != MEASURED:
            return ""
        if self.ratio < LOSS_BELOW and self.high < 1:
            return LOSS
        return GAIN if self.ratio > 1 / LOSS_BELOW and self.low > 1 else EQUAL

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "verdict": self.verdict}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A whole run. conditions: machine, versions, load before and after, seconds, shapes, in words and numbers.
    models: of the run, in order.
    """

    conditions: Mapping[str, Any]
    models: tuple[str, ...]
    rows: tuple[Row, ...]

    def of(self, setting: str, context: str) -> list[Row]:
        return [row for row in self.rows if row.setting == setting and row.context == context]

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.status == FAILED]

    def to_json(self) -> dict[str, Any]:
        return {
            "conditions": dict(self.conditions),
            "models": list(self.models),
            "rows": [row.to_json() for row in self.rows],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        rows = []
        for entry in data["rows"]:
            fields = {key: value for key, value in entry.items() if key != "verdict"}
            for side in ("on", "off"):
                fields[side] = None if fields[side] is None else Figures(**fields[side])
            rows.append(Row(**fields))
        return cls(conditions=data["conditions"], models=tuple(data["models"]), rows=tuple(rows))
