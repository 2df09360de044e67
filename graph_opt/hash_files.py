"""Hash files of a bundle: frozen embedding variables, made from a checkpoint by the native library.

Rows go from checkpoint to file in blocks; Python sees names, shapes and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graph_opt.item import GraphItem, StoreFile
from graph_opt.store_files import Checkpoint, new_path
from graph_opt.view import GraphView
from tfctr.core import library

if TYPE_CHECKING:
    import numpy.typing as npt

HASH = "hash"
HASH_LOOKUP = "TfctrHashLookup"
_LINE_BYTES = 14  # of the index, per key
_PAGE = 4096


def add_hash(item: GraphItem, checkpoint: Checkpoint, place: str, name: str) -> int:
    """Makes the hash file of the table that ``checkpoint`` calls ``place`` (once per table); its index in
    ``item.files``. name: the embedding variable's.
    """
    for index, known in enumerate(item.files):
        if known.kind == HASH and known.source == place:
            return index
    path = new_path(item, name, ".hash") if item.copies_tables else None
    if path is None:
        shape = table_shape(checkpoint, place)
        file = StoreFile(kind=HASH, path=None, name=name, dtype="float32", shape=shape, source=place)
    else:
        write_hash(checkpoint, place, path, name, item.on_copied)
        file = described_hash(path, place, name)
    item.files.append(file)
    return len(item.files) - 1


def write_hash(
    checkpoint: Checkpoint, place: str, path: Path, name: str, on_copied: Callable[[int], None] | None = None
) -> None:
    """Makes the hash file of the table that ``checkpoint`` calls ``place``; ``on_copied`` gets bytes as they are
    written.
    """
    with library.native_errors():
        library.native().build_hash_table_from_checkpoint(
            checkpoint.prefix, place, path, name=name, progress=_steps(on_copied)
        )


def described_hash(path: Path, place: str, name: str) -> StoreFile:
    """The hash file at ``path``, made from the table that its checkpoint calls ``place``."""
    info = library.native().hash_info(path)
    return StoreFile(
        kind=HASH, path=path, name=name, dtype="float32", shape=(info["rows"], info["dim"]), source=place,
        bytes=path.stat().st_size, fingerprint=info["fingerprint"],
    )  # fmt: skip


def add_built_hash(
    item: GraphItem, name: str, keys: npt.NDArray[np.int64], rows: npt.NDArray[np.float32], default: Any
) -> int:
    """Makes a hash file of given rows [n, dim] and the default row [dim]; its index in ``item.files``."""
    path = new_path(item, name, ".hash")
    assert path is not None
    info = build_hash_file(path, name, keys, rows, np.asarray(default, np.float32))
    file = StoreFile(
        kind=HASH, path=path, name=name, dtype="float32", shape=rows.shape, source=name, bytes=path.stat().st_size,
        fingerprint=info["fingerprint"],
    )  # fmt: skip
    item.files.append(file)
    return len(item.files) - 1


def lookup_files(item: GraphItem, view: GraphView) -> dict[str, StoreFile]:
    """The file of every node that rows of tables are read by: TfctrTable, TfctrHashLookup."""
    found = {node: item.files[index] for node, index in item.tables.items() if node in view}
    found |= {node.name: item.files[node.attr["index"].i] for node in view if node.op == HASH_LOOKUP}
    return found


def table_shape(checkpoint: Checkpoint, place: str) -> tuple[int, int]:
    """(rows, dim) of a table, from the index of ``checkpoint``."""
    rows, dim = checkpoint.entries[tensor_key(place, "values")].shape
    return rows, dim


def tensor_key(place: str, part: str) -> str:
    """Checkpoint key of a part of the table called ``place`` ("" for a variable that is the root)."""
    return f"{place}/{part}" if place else part


def _steps(on_copied: Callable[[int], None] | None) -> Callable[[int, int], None] | None:
    """A callback of (bytes done, bytes in all) that tells ``on_copied`` the bytes since the last call."""
    done = 0

    def tell(now: int, _: int) -> None:
        nonlocal done
        if on_copied is not None:
            on_copied(now - done)
        done = now

    return tell if on_copied is not None else None


def file_bytes(shape: Sequence[int], storage: str = "float32") -> int:
    """About how large the hash file of a table [rows, dim] is, from above."""
    rows, dim = shape
    row = {"float32": 4 * dim, "int8": 4 + dim}.get(storage, 2 * dim)
    return -(-((rows + 1) * (-(-row // 16) * 16) + rows * _LINE_BYTES) // _PAGE) * _PAGE + _PAGE


def build_hash_file(
    path: Path, name: str, keys: npt.NDArray[np.int64], rows: npt.NDArray[np.float32], default: npt.NDArray[np.float32]
) -> dict[str, Any]:
    """Writes a hash file of given rows [n, dim] and the default row [dim]; its info."""
    return dict(library.native().build_hash_table(path, name, keys, rows, default))


def sample_keys(file: StoreFile, count: int) -> list[int]:
    """Some keys of a hash file, spread over it."""
    if file.path is None or not file.shape[0]:
        return []
    table = library.native().HashTable(file.path)
    picked = np.unique(np.linspace(0, file.shape[0] - 1, count).astype(np.int64))
    return [int(table.keys(int(k), 1)[0]) for k in picked]
