"""The files of a bundle's store, and the graph nodes that read them.

Table bytes go from checkpoint to file inside the native library (pread, checksummed); Python sees names, shapes and
sizes.
An item without ``work_dir`` is only analysed: its files are described, not written.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.python.framework import dtypes, tensor_util

from graph_opt.item import CheckpointRef, GraphItem, StoreFile
from graph_opt.view import GraphView
from tfctr.core import library
from tfctr.errors import InternalError, UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

STORE_NODE = "tfctr/store"
TABLE_PREFIX = "tfctr/table/"
# dtypes a table file holds (tfctr/core/storage/dtype.h).
TABLE_DTYPES = frozenset(
    ("float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
     "uint64", "bool")
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor of a checkpoint: dtype name, shape, payload bytes."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int


class Checkpoint:
    """Names, shapes and sizes of a checkpoint, and the copying of its tensors; opens the index on first use."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self._entries: dict[str, Entry] | None = None

    @property
    def entries(self) -> dict[str, Entry]:
        """key -> Entry. UsageError where the model has no variables; CorruptFileError for a bad or big-endian index."""
        if self._entries is None:
            if not self.prefix.with_name(self.prefix.name + ".index").is_file():
                raise UsageError(f"{self.prefix}.index is missing: the model's variables are not there")
            with library.native_errors():
                listed = library.native().read_checkpoint_index(self.prefix)
            self._entries = {e["key"]: Entry(e["dtype"], tuple(e["shape"]), e["bytes"]) for e in listed}
        return self._entries

    def entry(self, ref: CheckpointRef) -> Entry:
        """What ``ref`` names (a slice: its part of the tensor); KeyError where the checkpoint has no such key."""
        whole = self.entries[ref.key]
        if not ref.slice:
            return whole
        shape = slice_shape(ref.slice)
        return Entry(whole.dtype, shape, math.prod(shape) * item_size(whole.dtype))

    def read(self, ref: CheckpointRef) -> npt.NDArray[Any]:
        """The value of a small tensor, checksum verified."""
        if ref.slice:
            with tf.init_scope():
                dtype = tf.as_dtype(self.entries[ref.key].dtype)
                (value,) = tf.raw_ops.RestoreV2(
                    prefix=str(self.prefix), tensor_names=[ref.key], shape_and_slices=[ref.slice], dtypes=[dtype]
                )
                return value.numpy()
        with library.native_errors():
            return library.native().read_tensor(self.prefix, ref.key)

    def copy(self, ref: CheckpointRef, path: Path, name: str, on_copied: Callable[[int], None] | None = None) -> None:
        """Copies a tensor (or the slice of it) into a new table file; ``on_copied`` gets the bytes of each block."""
        with library.native_errors():
            if ref.slice:
                library.native().copy_part_to_table(
                    self.prefix, ref.key, slice_start(ref.slice), slice_shape(ref.slice), path, name
                )
            else:
                library.native().copy_tensor_to_table(self.prefix, ref.key, path, name, on_copied)


def item_size(dtype: str) -> int:
    """Bytes of one element; 0 for strings, whose size varies."""
    return dtypes.as_dtype(dtype).size if dtype != "string" else 0


def slice_shape(text: str) -> tuple[int, ...]:
    """The shape that a RestoreV2 slice text selects: "1003 8 0,251:-" -> (251, 8)."""
    *full, spec = text.split(" ")
    return tuple(
        int(size) if part == "-" else int(part.split(",")[1]) for size, part in zip(full, spec.split(":"), strict=True)
    )


def slice_start(text: str) -> tuple[int, ...]:
    """First index per axis: "1003 8 251,251:-" -> (251, 0)."""
    return tuple(0 if part == "-" else int(part.split(",")[0]) for part in text.split(" ")[-1].split(":"))


def add_table(item: GraphItem, checkpoint: Checkpoint, ref: CheckpointRef, name: str) -> int:
    """Copies a checkpoint tensor into a table file (once per tensor) and returns its index in ``item.files``."""
    source = ref.key + (f" [{ref.slice}]" if ref.slice else "")
    known = _find(item, "table", source)
    if known is not None:
        return known
    entry = checkpoint.entry(ref)
    path = new_path(item, name, ".table") if item.copies_tables else None
    if path is not None:
        checkpoint.copy(ref, path, name, item.on_copied)
    return append_file(item, path, "table", name, entry.dtype, entry.shape, source, ref=ref)


def add_array(item: GraphItem, array: npt.NDArray[Any], name: str, part: str = "") -> int:
    """Writes the value of a constant into a table file and returns its index. part: of which weight it has entries."""
    path = new_path(item, name, ".table")
    if path is not None:
        library.native().write_table(path, name, array)
    dtype = dtypes.as_dtype(array.dtype).name
    return append_file(item, path, "table", name, dtype, tuple(array.shape), f"constant {name}", part=part)


def add_vocabulary(
    item: GraphItem, name: str, source: str, keys: Sequence[Any], values: npt.NDArray[Any], dtype: str
) -> int:
    """Writes a static map (keys of ``dtype`` "string" or "int64", int64 values) into a vocabulary file and returns its
    index.
    """
    known = _find(item, "vocab", source)
    if known is not None:
        return known
    path = new_path(item, name, ".vocab")
    if path is not None:
        stored = np.asarray(keys, np.int64) if dtype == "int64" else keys
        library.native().write_vocab(path, name, stored, np.asarray(values, np.int64))
    else:
        item.sample_keys[len(item.files)] = tuple(keys[:: max(1, len(keys) // 64)])
    return append_file(item, path, "vocab", name, dtype, (len(keys),), source)


def add_blob(item: GraphItem, data: bytes, name: str) -> int:
    """Writes bytes that an engine reads into a file called ``name`` and returns its index."""
    if item.work_dir is None:
        raise ValueError(f"{name}: the model was only analysed")
    path = item.work_dir / name
    path.write_bytes(data)
    item.files.append(
        StoreFile(
            kind="blob",
            path=path,
            name=name,
            dtype="uint8",
            shape=(len(data),),
            source="dense tower",
            bytes=len(data),
            fingerprint=library.native().blob_info(path)["fingerprint"],
        )
    )
    return len(item.files) - 1


def merge_tables(item: GraphItem, nodes: Sequence[str], strategy: str) -> int:
    """One table file with the rows of several table nodes' files, in the order of the unpartitioned variable.

    strategy: "div" (one part after the other) or "mod" (row k of the whole is row k // P of part k % P). The parts' own
    files stay until nothing reads them. Returns the index of the merged file; merging the same parts twice gives the
    same one.
    """
    parts = [item.files[item.tables[node]] for node in nodes]
    source = f"{strategy} of " + ", ".join(p.source for p in parts)
    known = _find(item, "table", source)
    if known is not None:
        return known
    widths = {(p.dtype, p.shape[1:]) for p in parts}
    if len(widths) != 1:
        raise ValueError(f"the parts differ in dtype or width: {sorted(map(str, widths))}")
    rows = sum(p.shape[0] for p in parts)
    name = re.sub(r"/part_\d+$", "", parts[0].name)
    path = new_path(item, name, ".table")
    if path is not None:
        with library.native_errors():
            library.native().merge_tables([p.path for p in parts], path, name, strategy == "mod")
    merged = (strategy, tuple(item.tables[node] for node in nodes))
    return append_file(item, path, "table", name, parts[0].dtype, (rows, *parts[0].shape[1:]), source, merged=merged)


def table_node(item: GraphItem, view: GraphView, index: int) -> str:
    """Name of the TfctrTable node over file ``index``, made (with the store node) where there is none."""
    for name, known in item.tables.items():
        if known == index and name in view:
            return name
    file = item.files[index]
    node = node_def_pb2.NodeDef(name=view.unique_name(f"{TABLE_PREFIX}{index}"), op="TfctrTable")
    node.input.append(store_node(item, view))
    node.attr["index"].i = index
    node.attr["dtype"].type = dtypes.as_dtype(file.dtype).as_datatype_enum
    node.attr["shape"].shape.SetInParent()
    for size in file.shape:
        node.attr["shape"].shape.dim.add().size = size
    item.tables[view.add(node).name] = index
    return node.name


def store_node(item: GraphItem, view: GraphView) -> str:
    """Name of the TfctrStore node, made where there is none."""
    if item.store_node and item.store_node in view:
        return item.store_node
    node = node_def_pb2.NodeDef(name=view.unique_name(STORE_NODE), op="TfctrStore")
    node.attr["container"].s = b""
    node.attr["shared_name"].s = item.store_name.encode()
    item.store_node = view.add(node).name
    return item.store_node


def constant_node(name: str, value: npt.NDArray[Any], dtype: int | None = None) -> node_def_pb2.NodeDef:
    """A Const node. dtype: DataType number where NumPy's dtype does not say it."""
    node = node_def_pb2.NodeDef(name=name, op="Const")
    proto = tensor_util.make_tensor_proto(value, dtype=dtype)
    node.attr["dtype"].type = proto.dtype
    node.attr["value"].tensor.CopyFrom(proto)
    return node


def string_vector(name: str, values: Sequence[str]) -> node_def_pb2.NodeDef:
    return constant_node(name, np.array([v.encode() for v in values], dtype=object), types_pb2.DT_STRING)


def _find(item: GraphItem, kind: str, source: str) -> int | None:
    return next((k for k, f in enumerate(item.files) if f.kind == kind and f.source == source), None)


def new_path(item: GraphItem, name: str, suffix: str, index: int | None = None) -> Path | None:
    """Where file ``index`` (None: the next one) goes; None where files are not wanted."""
    if item.work_dir is None:
        return None
    index = len(item.files) if index is None else index
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._") or "table"
    return item.work_dir / f"{index:04d}_{safe[:80]}{suffix}"


def append_file(
    item: GraphItem,
    path: Path | None,
    kind: str,
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    source: str,
    **origin: Any,
) -> int:
    """Adds a written file (None: described only) to ``item.files``; returns its index. origin: further fields."""
    size, fingerprint = 0, ""
    if path is not None:
        info = library.native().file_info(path)
        if kind == "table" and tuple(info["shape"]) != shape or info["dtype"] != dtype:
            raise InternalError(f"{path} holds {info['dtype']} {info['shape']}, expected {dtype} {shape}")
        size, fingerprint = path.stat().st_size, info["fingerprint"]
    item.files.append(
        StoreFile(
            kind=kind,
            path=path,
            name=name,
            dtype=dtype,
            shape=shape,
            source=source,
            bytes=size,
            fingerprint=fingerprint,
            **origin,
        )
    )
    return len(item.files) - 1
