"""What ``make_delta`` tells."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from graph_opt.delta.rows import TableDelta


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaReport:
    """A delta that was written. path: its folder. content: of its ``delta.json`` (base, previous, sequence, hash, ...).
    tables: what changed in each table of the store, unchanged ones too. dense: why the graph with its dense weights is
    in the delta, "" where it is not. structure: how the new state was found to be of the same model. dense_weights:
    how many changed. files: names of whole files (vocabularies, engines, tables that are stored otherwise). notes: what
    was chosen or is worth knowing. bytes: of the folder's files. steps: milliseconds. elapsed_ms: in all.
    """

    path: Path
    content: dict[str, Any]
    tables: tuple[TableDelta, ...]
    structure: str
    dense: str = ""
    dense_weights: int = 0
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bytes: int = 0
    steps: dict[str, float] = dataclasses.field(default_factory=dict)
    elapsed_ms: float = 0.0

    @property
    def rows(self) -> int:
        """Rows in the delta: added and changed ones."""
        return sum(t.added + t.changed for t in self.tables)

    @property
    def removed(self) -> int:
        return sum(t.removed for t in self.tables)

    @property
    def empty(self) -> bool:
        """Whether nothing changed: applying the delta gives the same rows and graph, one sequence number on."""
        return not (self.rows or self.removed or self.dense or self.files)

    def as_dict(self) -> dict[str, Any]:
        """What ``tfctr delta --json`` prints."""
        told = {key: self.content[key] for key in ("base", "previous", "sequence", "hash", "created", "new")}
        return {
            "path": str(self.path),
            **told,
            "rows": self.rows,
            "removed": self.removed,
            "empty": self.empty,
            "structure": self.structure,
            "dense": self.dense,
            "dense_weights": self.dense_weights,
            "files": list(self.files),
            "tables": [dataclasses.asdict(t) for t in self.tables],
            "notes": list(self.notes),
            "bytes": self.bytes,
            "steps": self.steps,
            "elapsed_ms": self.elapsed_ms,
        }
