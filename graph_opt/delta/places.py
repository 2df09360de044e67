"""Where the newer rows of a bundle's tables lie: tensors of a checkpoint, their parts, embedding variables, files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graph_opt.delta.base import BaseTable
from graph_opt.delta.rows import Source
from graph_opt.hash_files import HASH
from graph_opt.item import GraphItem, StoreFile
from graph_opt.renewal.weights import Array, Part
from graph_opt.store_files import slice_shape, slice_start
from tfctr.core import library
from tfctr.errors import InternalError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """template: the converted graph as the record has it; its first files are those of the reference graph. files: the
    same files in the newer state, by number; without a path where the rows lie in the checkpoint ``prefix``. weights:
    of the newer state. folder: for the parts of weights that are tables.
    """

    template: GraphItem
    files: Sequence[StoreFile]
    prefix: Path
    weights: dict[str, Array]
    folder: Path

    def of(self, table: BaseTable) -> list[Source] | None:
        """The sources of the newer rows of ``table``, in any order; None where they are those of the base for sure (a
        constant of the graph, in a graph that is the same)."""
        files = self.template.files
        kinds = {"hash": HASH}
        for number, file in enumerate(files):
            if (file.kind, file.source) == (kinds.get(table.kind, table.kind), table.source):
                return self._sources(number)
        raise InternalError(f"{table.name}: no file of the record was made from {table.source!r}")

    def _sources(self, number: int) -> list[Source] | None:
        if number < len(self.files):
            one = self._source(self.files[number], 0, 1)
            return None if one is None else [one]
        derived = self.template.files[number]
        if derived.merged is None:
            return [self._part(derived)]
        strategy, parts = derived.merged
        found, first = [], 0
        for place, part in enumerate(parts):
            file = self.files[part]
            numbers = (place, len(parts)) if strategy == "mod" else (first, 1)
            found.append(self._source(file, *numbers))
            first += file.shape[0]
        if any(one is None for one in found):
            return None  # parts of a constant graph: all of them
        return [one for one in found if one is not None]

    def _source(self, file: StoreFile, first: int, stride: int) -> Source | None:
        if file.kind == HASH:
            return {"kind": "embedding", "path": self.prefix, "key": file.source}
        numbers = {"first": first, "stride": stride}
        if file.ref is not None:
            part: dict[str, Any] = {}
            if file.ref.slice:
                part = {"start": list(slice_start(file.ref.slice)), "length": list(slice_shape(file.ref.slice))}
            return {"kind": "tensor", "path": self.prefix, "key": file.ref.key, **part, **numbers}
        if file.path is not None and file.path.parent == self.folder:
            return {"kind": "table", "path": file.path, **numbers}
        return None

    def _part(self, derived: StoreFile) -> Source:
        """Entries of a dense weight (or of a table) that a pass made a table of."""
        part = Part.parse(derived.part)
        value = self.weights[part.weight] if part.weight else self._whole(part.file)
        path = self.folder / f"part_{derived.name.replace('/', '_')}.table"
        if not path.exists():
            library.native().write_table(path, derived.name, np.ascontiguousarray(part.of(value)))
        return {"kind": "table", "path": path, "first": 0, "stride": 1}

    def _whole(self, number: int) -> Array:
        """All rows of a table: read into memory, since entries are picked from anywhere."""
        file = self.files[number]
        if file.ref is None or file.ref.slice:
            raise InternalError(f"{file.name}: a table of which a part is another table")
        return np.asarray(library.native().read_tensor(self.prefix, file.ref.key))
