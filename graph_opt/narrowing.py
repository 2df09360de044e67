"""Float32 tables in fewer bytes: writing the narrow file, pointing lookups at it, and back again for comparisons."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graph_opt.fused_node import FUSED_OP
from graph_opt.hash_files import HASH, file_bytes
from graph_opt.item import FusedGroup, GraphItem, StoreFile
from graph_opt.lookup_spec import spec_text
from graph_opt.view import GraphView

# Options say it short; specs and files use NumPy's names.
STORAGE = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
_PAGE = 4096  # payloads are padded to it
_SCALE_BYTES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class NarrowTable:
    """A table and its narrow file. index: in ``GraphItem.files``. max_abs_error: of any element."""

    index: int
    file: StoreFile
    max_abs_error: float

    @property
    def original(self) -> StoreFile:
        assert self.file.narrowed_from is not None
        return self.file.narrowed_from


def narrow_bytes(shape: tuple[int, ...], storage: str) -> int:
    """Bytes of the rows of a table of this shape."""
    elements = math.prod(shape)
    return elements + shape[0] * _SCALE_BYTES if storage == "int8" else 2 * elements


def saves_bytes(file: StoreFile, storage: str) -> bool:
    """Whether the narrow file is smaller, padding (of a hash file's rows to 16 bytes, of files to pages) included."""
    if file.kind == HASH:
        return file_bytes(file.shape, storage) < file_bytes(file.shape)
    return _pages(narrow_bytes(file.shape, storage)) < _pages(4 * math.prod(file.shape))


def write_narrow(
    file: StoreFile, index: int, storage: str, folder: Path, on_copied: Callable[[int], None] | None
) -> NarrowTable:
    """Writes ``file`` again as ``storage`` into ``folder``. ValueError names a row that can't be stored so."""
    assert file.path is not None
    path = folder / f"{file.path.stem}.{storage}{file.path.suffix}"
    native = importlib.import_module("tfctr.core._native")
    if file.kind == HASH:
        info = native.narrow_hash_table(file.path, storage, path, on_copied) | {"dtype": storage, "shape": file.shape}
    else:
        info = native.narrow_table(file.path, storage, path, on_copied)
    made = dataclasses.replace(
        file,
        path=path,
        dtype=info["dtype"],
        shape=tuple(info["shape"]),
        source=f"{file.source} as {storage}",
        bytes=path.stat().st_size,
        fingerprint=info["fingerprint"],
        narrowed_from=file,
    )
    return NarrowTable(index=index, file=made, max_abs_error=float(info["max_abs_error"]))


def use_narrow(item: GraphItem, tables: Mapping[int, NarrowTable], storage: str) -> None:
    """Fused lookups of ``item`` read the narrow files of ``tables`` (by index) from now on."""
    for index, table in tables.items():
        item.files[index] = table.file
    view = GraphView(item.graph_def)
    groups = []
    for group in item.groups:
        changed = _with_storage(group, dict.fromkeys(tables, storage))
        if changed is not group:
            text = spec_text(changed.lookups, changed.outputs, changed.bind, changed.copies)
            view.node(group.node).attr["spec"].s = text.encode()
        groups.append(changed)
    item.groups = groups


def widened(item: GraphItem) -> GraphItem | None:
    """A copy of ``item`` whose lookups read the float32 tables that narrow ones were made from; None where there are
    none. ``item`` is not finished yet.
    """
    if not any(f.narrowed_from for f in item.files):
        return None
    wide = item.copy()
    wide.files = [f.narrowed_from or f for f in item.files]
    for node in wide.graph_def.node:
        if node.op == FUSED_OP:
            # The text is taken as it is: a packed form's specs are in its node only.
            text = node.attr["spec"].s.decode()
            node.attr["spec"].s = re.sub(r"(?m)^(lookup .*?) storage=\S+", r"\1", text).encode()
    wide.groups = [_with_storage(g, {spec.table: None for spec, _ in g.lookups}) for g in item.groups]
    return wide


def storage_of(file: StoreFile) -> str | None:
    """What a float32 table is stored as; None: as it is."""
    if file.narrowed_from is None:
        return None
    return "int8" if file.dtype == "uint8" else file.dtype


def precision(files: list[StoreFile]) -> str:
    """For the manifest: "fp32", or with what its tables are stored as: "fp32, tables fp16"."""
    short = {long: name for name, long in STORAGE.items()}
    found = sorted({short[s] for f in files if (s := storage_of(f)) is not None})
    left = any(f.kind in ("table", HASH) and f.narrowed_from is None and f.dtype == "float32" for f in files)
    return "fp32" + (f", tables {', '.join(found)}{' and fp32' if left else ''}" if found else "")


def _with_storage(group: FusedGroup, storage: Mapping[int, str | None]) -> FusedGroup:
    lookups: list[Any] = [
        (dataclasses.replace(spec, storage=storage[spec.table]) if spec.table in storage else spec, place)
        for spec, place in group.lookups
    ]
    same = all(a is b for (a, _), (b, _) in zip(lookups, group.lookups, strict=True))
    return group if same else dataclasses.replace(group, lookups=tuple(lookups))


def _pages(size: int) -> int:
    return -(-size // _PAGE)
