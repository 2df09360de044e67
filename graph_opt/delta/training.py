"""Checkpoints of training in place of a SavedModel: which of their tensors are the model's weights and tables.

A SavedModel calls its variables by their paths from the model (``dense/kernel/...``), a ``tf.train.Checkpoint`` by
their paths from itself (``model/dense/kernel/...``); TF1 calls both the same. So one prefix must make every name that
the bundle needs one of the checkpoint's, with the same dtype and shape. Where no prefix, or more than one, does, what
is left is found by its own name: that of an embedding variable in its configuration, that of a variable in the
checkpoint's object graph. What is ambiguous is refused with all its candidates.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorflow.core.protobuf import meta_graph_pb2

from graph_opt.delta.base import Base
from graph_opt.hash_files import HASH, tensor_key
from graph_opt.item import CheckpointRef, GraphItem
from graph_opt.renewal.full_names import full_names
from graph_opt.renewal.record import Record
from graph_opt.saved_model import SavedModelSource
from graph_opt.store_files import Checkpoint, Entry
from tfctr.bundle import naming
from tfctr.core import library
from tfctr.errors import ConvertAnewError, UsageError

_STATE = "checkpoint"  # TensorFlow's file beside checkpoints that names the latest
_CONSTANT = "tfctr/constant/"
_SHOWN = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSource(SavedModelSource):
    """A checkpoint of the model that a bundle was made from. prefix: its path without ``.index``. record: the bundle's,
    every place in it as this checkpoint calls it."""

    prefix: Path
    record: Record

    @property
    def checkpoint(self) -> Path:
        return self.prefix


def is_checkpoint(path: str | Path) -> bool:
    """Whether ``path`` is the prefix of a checkpoint, or a folder of checkpoints."""
    folder = Path(path)
    if folder.is_dir():
        return (folder / _STATE).is_file() and not naming.is_saved_model(folder)
    return folder.with_name(folder.name + ".index").is_file()


def open_checkpoint(base: Base, path: str | Path, root: str | None = None) -> TrainingSource:
    """The checkpoint at ``path`` (a prefix, or a folder: its latest) as a newer state of the model of ``base``.

    root: what the checkpoint calls the model (``model`` of ``tf.train.Checkpoint(model=...)``); None: found.
    ConvertAnewError names a weight or table that it lacks or has in another shape, UsageError what is ambiguous.
    """
    prefix = _prefix(Path(path))
    found = _Names(Checkpoint(prefix), base.record, root)
    record = dataclasses.replace(base.record, reference=found.renamed(base.record.reference))
    return TrainingSource(
        path=prefix,
        tags=tuple(base.bundle.manifest["source"]["tags"]),
        meta_graph=meta_graph_pb2.MetaGraphDef(),
        prefix=prefix,
        record=record,
    )


def _prefix(path: Path) -> Path:
    if not path.is_dir():
        return path
    import tensorflow as tf

    latest = tf.train.latest_checkpoint(str(path))
    if latest is None:
        raise UsageError(f"{path}: its file {_STATE!r} names no checkpoint that is there")
    return Path(latest)


class _Names:
    """Finds the places of one model in one checkpoint."""

    def __init__(self, checkpoint: Checkpoint, record: Record, root: str | None) -> None:
        self._checkpoint = checkpoint
        self._own = record.names
        self._entries: Mapping[str, Entry] = checkpoint.entries
        self._root = root
        self._full_names: dict[str, list[str]] | None = None
        self._tables: dict[str, list[str]] | None = None
        self._needed = dict(_needed(record.reference))
        self._prefix = self._common_prefix()

    def renamed(self, reference: GraphItem) -> GraphItem:
        """A copy of ``reference`` whose places are the checkpoint's."""
        item = reference.copy()
        for refs in (item.constants, item.variables):
            for node, ref in refs.items():
                if ref.key in self._needed:
                    name = node.removeprefix(_CONSTANT)
                    refs[node] = dataclasses.replace(ref, key=self._variable(ref, name))
        for number, file in enumerate(item.files):
            if file.kind == HASH:
                item.files[number] = dataclasses.replace(file, source=self._table(file.source, file.name))
            elif file.ref is not None:
                ref = dataclasses.replace(file.ref, key=self._variable(file.ref, file.name))
                item.files[number] = dataclasses.replace(file, ref=ref)
        item.mutable_state = [
            dataclasses.replace(s, keys=tuple(self._variable(CheckpointRef(key=k), s.node) for k in s.keys))
            for s in item.mutable_state
        ]
        return item

    def _common_prefix(self) -> str | None:
        """What to put before every name; None where nothing fits all of them."""
        if not self._needed:
            return ""
        if self._root is not None:
            prefix = f"{self._root}/" if self._root else ""
            if not any(key.startswith(prefix) for key in self._entries):
                there = sorted({key.partition("/")[0] for key in self._entries if "/" in key})
                raise UsageError(
                    f"{self._checkpoint.prefix}: has nothing under the name {self._root!r} (--root); it has "
                    f"{', '.join(map(repr, there[:_SHOWN]))}{', ...' if len(there) > _SHOWN else ''}"
                )
            return prefix
        first = next(iter(self._needed))
        found = {key.removesuffix(first) for key in self._entries if key == first or key.endswith(f"/{first}")}
        fitting = sorted(p for p in found if all(p + name in self._entries for name in self._needed))
        if len(fitting) > 1:
            raise UsageError(
                f"{self._checkpoint.prefix}: the model may be any of {', '.join(repr(p.rstrip('/')) for p in fitting)}"
                "; give the name of the one (--root)"
            )
        return fitting[0] if fitting else None

    def _variable(self, ref: CheckpointRef, name: str) -> str:
        """The checkpoint's key of a variable. ref: its place in the SavedModel; name: its own."""
        if self._prefix is not None and self._prefix + ref.key in self._entries:
            return self._prefix + ref.key
        name = self._own.get(ref.key, name)
        found = self._by_full_name().get(name, [])
        if len(found) == 1:
            return found[0]
        what = f"variable {name!r}"
        if found:
            raise self._ambiguous(what, found)
        raise self._missing(what, ref.key)

    def _table(self, place: str, name: str) -> str:
        """What the checkpoint calls an embedding variable. place: what the SavedModel does; name: its own."""
        if self._prefix is not None:
            there = (self._prefix + place).rstrip("/") if place else self._prefix.rstrip("/")
            if tensor_key(there, "keys") in self._entries:
                return there
        found = self._by_table_name().get(name, [])
        if len(found) == 1:
            return found[0]
        what = f"embedding variable {name!r}"
        if found:
            raise self._ambiguous(what, found)
        raise self._missing(what, tensor_key(place, "keys"))

    def _ambiguous(self, what: str, found: list[str]) -> UsageError:
        return UsageError(
            f"{self._checkpoint.prefix}: {what} may be any of {', '.join(map(repr, found[:_SHOWN]))}"
            f"{', ...' if len(found) > _SHOWN else ''}: the names are ambiguous; give the name of the model (--root), "
            "or export a SavedModel"
        )

    def _missing(self, what: str, key: str) -> ConvertAnewError:
        return ConvertAnewError(
            f"{self._checkpoint.prefix}: has no {what} (the bundle's model calls it {key!r}); is it a checkpoint of "
            "this model? Else convert the new model"
        )

    def _by_full_name(self) -> dict[str, list[str]]:
        """Variables of the object graph by their own names."""
        if self._full_names is None:
            names: dict[str, list[str]] = defaultdict(list)
            for key, name in full_names(self._checkpoint.prefix).items():
                if key in self._entries:
                    names[name].append(key)
            self._full_names = names
        return self._full_names

    def _by_table_name(self) -> dict[str, list[str]]:
        """Embedding variables by the names in their configurations."""
        if self._tables is None:
            tables: dict[str, list[str]] = defaultdict(list)
            for key, entry in self._entries.items():
                place = key.removesuffix("config").removesuffix("/")
                if entry.dtype == "string" and tensor_key(place, "config") == key and f"{place}/keys" in self._entries:
                    with library.native_errors():
                        text = library.native().read_tensor(self._checkpoint.prefix, key).item()
                    tables[str(json.loads(text)["table"]["name"])].append(place)
            self._tables = tables
        return self._tables


def _needed(reference: GraphItem) -> Iterator[tuple[str, str]]:
    """(key, name) of every tensor that is read for the model; of an embedding variable its keys."""
    for node, ref in reference.constants.items():
        yield ref.key, node.removeprefix(_CONSTANT)
    for file in reference.files:
        if file.kind == HASH:
            yield tensor_key(file.source, "keys"), file.name
        elif file.ref is not None:
            yield file.ref.key, file.name
    for state in reference.mutable_state:
        for key in state.keys:
            yield key, state.node
