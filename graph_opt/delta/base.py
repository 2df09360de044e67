"""The version of a bundle that a delta is to follow: its tables as they are served, the record of its conversion."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graph_opt.renewal.record import Record
from graph_opt.renewal.refresh import open_refreshable
from tfctr.bundle.deltas.identity import Version, version_of
from tfctr.bundle.reader import Bundle

ROW_KINDS = ("table", "hash")
OVERLAY = "overlay"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseTable:
    """A static table or hash file of the store. index: in the store. dtype, shape: of the file; storage: what its
    float32 rows are stored as, None: as they are. overlay: the file with its changed rows, if any. source: what it was
    made from (a key of the checkpoint, the name of an embedding variable, a constant), as a conversion calls it.
    """

    index: int
    kind: str
    name: str
    path: Path
    overlay: Path | None
    dtype: str
    shape: tuple[int, ...]
    source: str
    storage: str | None = None

    @property
    def row_dtype(self) -> str:
        """dtype of a row's values before they are stored."""
        return "float32" if self.storage or self.kind == "hash" else self.dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    """A version. tables: by index in the store."""

    bundle: Bundle
    record: Record
    version: Version
    tables: dict[int, BaseTable]

    @property
    def path(self) -> Path:
        return self.bundle.path

    @property
    def files(self) -> list[dict[str, Any]]:
        """The store's files without overlays, in order: manifest entries."""
        return [entry for entry in self.bundle.manifest["store"]["files"] if entry["kind"] != OVERLAY]


def open_base(path: str | Path) -> Base:
    """UsageError where there is no bundle, CorruptFileError for a damaged one, ConvertAnewError for one that can't be
    refreshed, so that a newer state of its model can't be told from another model."""
    bundle, record = open_refreshable(path)
    entries = bundle.manifest["store"]["files"]
    overlays = {entry["base"]: bundle.path / entry["file"] for entry in entries if entry["kind"] == OVERLAY}
    tables = {
        entry["index"]: _table(entry, bundle.path, overlays.get(entry["index"]))
        for entry in entries
        if entry["kind"] in ROW_KINDS
    }
    return Base(bundle=bundle, record=record, version=version_of(bundle.manifest, str(path)), tables=tables)


def _table(entry: Mapping[str, Any], folder: Path, overlay: Path | None) -> BaseTable:
    storage = entry.get("storage")
    source = str(entry["source"])
    return BaseTable(
        index=entry["index"],
        kind=entry["kind"],
        name=entry["name"],
        path=folder / entry["file"],
        overlay=overlay,
        dtype=entry["dtype"],
        shape=tuple(entry["shape"]),
        source=source.removesuffix(f" as {storage}") if storage else source,
        storage=storage,
    )
