"""What the engine is told about batches: which static variants there are, and which of them runs how many rows.

A static variant is the tower compiled for one number of rows ("bucket"); the dynamic variant takes any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfctr.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Piece:
    """Rows [first, first + rows) of a batch, run by the variant of ``bucket`` rows (0: the dynamic one)."""

    first: int
    rows: int
    bucket: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How n rows are run (``pieces``):

    1. While more than ``chunk`` rows are left (0: never), and there is no variant of just so many rows as the batch
       has: the first ``chunk`` of them by the variant of ``chunk`` rows.
    2. The rest by the smallest bucket that holds them, if it has as many rows, or filled up with zeros if there are at
       least ``pad[bucket]`` of them (no entry: never filled up).
    3. Else by the dynamic variant.

    Towers of split forms have rows of users too: variants are for ``users`` of them, other batches are run by 3.

    buckets: rows, ascending. pad: bucket -> the fewest rows that it is filled up for. chunk: one of the buckets, or 0.
    users: 0: the tower has none.
    """

    buckets: tuple[int, ...] = ()
    pad: Mapping[int, int] = dataclasses.field(default_factory=dict)
    chunk: int = 0
    users: int = 0

    def __post_init__(self) -> None:
        if list(self.buckets) != sorted(set(self.buckets)) or any(rows < 1 for rows in self.buckets):
            raise UsageError(f"buckets {list(self.buckets)}: expected numbers of rows from 1, ascending")
        if self.chunk and self.chunk not in self.buckets:
            raise UsageError(f"chunk {self.chunk}: expected 0 or one of the buckets {list(self.buckets)}")
        for bucket, rows in self.pad.items():
            if bucket not in self.buckets or not 1 <= rows <= bucket:
                raise UsageError(f"pad {bucket}: {rows}: expected a bucket of {list(self.buckets)} and 1 to its rows")

    def pieces(self, rows: int) -> list[Piece]:
        """What the engine does with a batch of ``rows`` rows."""
        whole = self.whole_pieces(rows)
        rest = rows - whole * self.chunk
        found = [Piece(k * self.chunk, self.chunk, self.chunk) for k in range(whole)]
        return [*found, Piece(rows - rest, rest, self.bucket(rest))]

    def whole_pieces(self, rows: int) -> int:
        """How many pieces of ``chunk`` rows a batch starts with."""
        return (rows - 1) // self.chunk if self.chunk and rows > 0 and rows not in self.buckets else 0

    def bucket(self, rows: int) -> int:
        """The variant that runs ``rows`` rows at once; 0: the dynamic one."""
        holding = next((bucket for bucket in self.buckets if bucket >= rows), 0)
        return holding if rows >= self.pad.get(holding, holding) else 0

    def to_json(self) -> dict[str, Any]:
        """As ``EngineSpec.options`` has it."""
        return {
            "buckets": list(self.buckets),
            "dynamic": True,
            "pad": {str(bucket): rows for bucket, rows in sorted(self.pad.items())},
            **({"chunk": self.chunk} if self.chunk else {}),
            **({"users": self.users} if self.users else {}),
        }

    @staticmethod
    def from_json(options: Mapping[str, Any]) -> EngineOptions:
        """Back from JSON."""
        pad = {int(bucket): int(rows) for bucket, rows in options.get("pad", {}).items()}
        return EngineOptions(
            buckets=tuple(options.get("buckets", ())),
            pad=pad,
            chunk=int(options.get("chunk", 0)),
            users=int(options.get("users", 0)),
        )
