"""Opens what holds embedding tables: a checkpoint, a SavedModel or a bundle, and says what lies in it.

Opening reads indexes and configurations only, never rows.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfctr.bundle import naming
from tfctr.core import library
from tfctr.embedding.inspection import chains
from tfctr.embedding.inspection.columns import Column, column_of, rows_of
from tfctr.errors import CorruptFileError, UsageError, VersionError

FORMAT, DELTA_FORMAT = 1, 2  # of NAME/config: a whole table, a delta on another save
ROOT = "(root)"  # how a table without a name (tf.train.Checkpoint(root=table)) is called
COUNTERS = ("counters/keys", "counters/counts", "counters/last_step", "counters/last_time")
BLOOM = "bloom"
ROW_COUNTS = ("frequency", "last_step", "last_time")
_INTERNAL = ("_CHECKPOINTABLE_OBJECT_GRAPH",)
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_NAMED = 8  # names in a message


@dataclasses.dataclass(frozen=True)
class Table:
    """An embedding table at rest.

    Attributes:
      name: of its tensors in a checkpoint ("(root)" where they have no folder), of its file in a bundle.
      kind: "embedding" in a checkpoint or SavedModel, "hash" in a bundle (a frozen one: keys and values alone).
      dim: floats of a value.
      rows: keys that have a row.
      columns: "keys" int64 [rows], "values" float32 [rows, dim], "slots/NAME" float32 [rows, width], and "frequency",
        "last_step", "last_time" int64 [rows] where they are kept; last_time in milliseconds since 1970.
      counters: the same of keys that have no row yet, by the names of COUNTERS; BLOOM, the cells of a Bloom filter.
      description: NAME/config of a checkpoint as it stands there, "" elsewhere.
      config: the table's configuration (tfctr/core/embedding/config.h); None where it is not known.
      step, time_ms: of the save; None where not known.
      key_dtype: "int64", "string" (the keys are fingerprints) or "": not known.
      left_out: parts that the save left out.
      storage: how values are stored: float32, float16, bfloat16 or int8.
      saves: of a delta, the checkpoints that make the table up, the whole save first; of a table with an overlay, the
        two files; else none.
      source: of a frozen table, its name in the checkpoint that it was made from.
    """

    name: str
    file: str
    kind: str
    dim: int
    columns: Mapping[str, Column]
    counters: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    description: str = ""
    config: Mapping[str, Any] | None = None
    step: int | None = None
    time_ms: int | None = None
    key_dtype: str = ""
    left_out: tuple[str, ...] = ()
    storage: str = "float32"
    saves: tuple[str, ...] = ()
    source: str = ""

    @property
    def rows(self) -> int:
        return rows_of(self.columns["keys"])

    @property
    def own_name(self) -> str:
        """What the program that made the table calls it, where its tensors are called otherwise: Keras' are
        "_misc_assets/0" or "model/_operations/5/table". Else "".
        """
        own = str((self.config or {}).get("name") or "")
        return "" if f"/{self.name}".endswith(f"/{own}") else own

    @property
    def slots(self) -> list[str]:
        """Names of the optimizer's slots."""
        return [name.removeprefix("slots/") for name in self.columns if name.startswith("slots/")]

    @property
    def bytes(self) -> int:
        """As stored."""
        return sum(column.bytes for column in (*self.columns.values(), *self.counters.values()))

    def describe(self) -> str:
        """The table in messages."""
        return f"{self.file}: table {self.name!r}"


@dataclasses.dataclass(frozen=True)
class Source:
    """What a path holds.

    Attributes:
      path: where it lies; of a checkpoint, its prefix.
      kind: "checkpoint", "SavedModel" or "bundle".
      tables: embedding tables by name.
      variables: other tensors by name: static tables, dense weights, counters of steps.
      note: what was chosen where `path` left a choice, else "".
    """

    path: str
    kind: str
    tables: Mapping[str, Table]
    variables: Mapping[str, Column]
    note: str = ""

    def table(self, name: str) -> Table:
        """The table of this name, else the only one whose ``own_name`` it is. UsageError, with the names that there
        are, where there is none.
        """
        if name not in self.tables:
            own = [table for table in self.tables.values() if table.own_name == name]
            if len(own) == 1 and name not in self.variables:
                return own[0]
            if name in self.variables:
                raise UsageError(f"{self.path}: {name!r} is no embedding table but a plain variable")
            raise UsageError(f"{self.path}: no table {name!r}; {self.names()}")
        return self.tables[name]

    def names(self) -> str:
        """The tables' names for a message."""
        called = [
            f"{name!r} ({table.own_name})" if table.own_name else repr(name) for name, table in self.tables.items()
        ]
        return f"it has {_some(called)}" if called else "it has no embedding tables"


def _listed(names: Iterable[str]) -> str:
    return _some([repr(name) for name in names])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def open_source(path: str | os.PathLike[str]) -> Source:
    """Opens a checkpoint (prefix, .index file, or folder of a CheckpointManager), a SavedModel or a bundle.

    Raises:
      UsageError: it is nothing of these.
      CorruptFileError: an index, a configuration or a shard is damaged or missing.
      VersionError: a table was written by a newer tfctr.
    """
    text = os.fspath(path)
    if os.path.isdir(text):
        return _open_folder(Path(text))
    prefix = re.sub(r"(\.index|\.data-\d{5}-of-\d{5})$", "", text)
    if os.path.isfile(prefix + ".index"):
        return _checkpoint(prefix, "checkpoint")
    if not os.path.lexists(text):
        beside = sorted(Path(text).parent.glob(Path(text).name + ".data-*")) if Path(text).name else []
        if beside:
            raise CorruptFileError(f"{text}.index: missing, but {beside[0].name} is there: half a checkpoint")
        raise UsageError(f"{text}: no such file or folder, and no checkpoint {text}.index")
    from tfctr.embedding.inspection.frozen import open_file

    return open_file(text)


def _open_folder(folder: Path) -> Source:
    if naming.is_bundle(folder):
        from tfctr.embedding.inspection.frozen import open_bundle

        return open_bundle(folder)
    if naming.is_saved_model(folder):
        prefix = folder / "variables" / "variables"
        if not prefix.with_name("variables.index").is_file():
            raise UsageError(f"{folder}: this SavedModel has no variables, so no tables")
        return _checkpoint(str(prefix), "SavedModel", path=str(folder))
    versions = sorted((int(one.name), one) for one in folder.iterdir() if one.name.isdecimal() and one.is_dir())
    inner = [one for _, one in versions if naming.is_saved_model(one)]
    if inner:
        opened = _open_folder(inner[-1])
        return dataclasses.replace(opened, note=f"{folder} holds versions; taking the highest: {inner[-1]}")
    latest = _latest(folder)
    if latest is None:
        found = sorted(one.name.removesuffix(".index") for one in folder.glob("*.index"))
        if len(found) == 1:
            return _checkpoint(str(folder / found[0]), "checkpoint")
        hint = f"; it holds {_listed(found)}: give one of them" if found else ""
        raise UsageError(f"{folder}: neither a SavedModel or bundle nor the folder of a checkpoint{hint}")
    opened = _checkpoint(latest, "checkpoint")
    return dataclasses.replace(opened, note=f"{folder} holds checkpoints; taking the latest: {latest}")


def _latest(folder: Path) -> str | None:
    """What the file `checkpoint` of a CheckpointManager names; None where there is none."""
    if not (folder / "checkpoint").is_file():
        return None
    import tensorflow as tf

    state = tf.train.get_checkpoint_state(str(folder))
    if state is None or not state.model_checkpoint_path:
        raise CorruptFileError(f"{folder / 'checkpoint'}: it names no checkpoint")
    if not os.path.isfile(state.model_checkpoint_path + ".index"):
        raise CorruptFileError(
            f"{folder / 'checkpoint'}: the checkpoint that it names is missing: {state.model_checkpoint_path}"
        )
    return str(state.model_checkpoint_path)


def _checkpoint(prefix: str, kind: str, path: str | None = None) -> Source:
    entries = {entry["key"]: entry for entry in _index(prefix)}
    tables: dict[str, Table] = {}
    taken: set[str] = set(_INTERNAL)
    for key in entries:
        folder = key.removesuffix("config")
        if not key.endswith("config") or (folder and not folder.endswith("/")):
            continue
        if entries[key]["dtype"] == "string" and {folder + "keys", folder + "values"} <= entries.keys():
            table, used = _table(prefix, folder, entries)
            tables[table.name] = table
            taken |= used
    variables = {}
    for key, entry in entries.items():
        column = None if key in taken else column_of(prefix, entry)
        if column is not None:
            variables[key.removesuffix(_VALUE)] = column
    return Source(path or prefix, kind, dict(sorted(tables.items())), variables)


def _index(prefix: str) -> list[dict[str, Any]]:
    native = library.native()
    try:
        return list(native.read_checkpoint_index(prefix))
    except native.CorruptFile as error:
        raise CorruptFileError(str(error)) from None
    except FileNotFoundError as error:
        raise CorruptFileError(str(error)) from None  # the index is there: a shard is not
    except ValueError as error:
        raise UsageError(str(error)) from None


def _table(prefix: str, folder: str, entries: Mapping[str, Mapping[str, Any]]) -> tuple[Table, set[str]]:
    """The table whose tensors begin with `folder` ("users/", or "" of a root), and their keys."""
    name = folder.removesuffix("/") or ROOT
    where = f"{prefix}: table {name!r}"
    text, told, parts = _save(prefix, folder, entries)
    used = {folder + "config", *(folder + part for part in parts)}
    saves: tuple[str, ...] = ()
    if told["format"] == DELTA_FORMAT:
        chain = _chain(where, folder, chains.Save(prefix, parts, told))
        saves = tuple(save.file for save in chain)
        parts, text, told = chains.merge(where, chain)
    config = told.get("table")
    table = Table(
        name=name,
        file=prefix,
        kind="embedding",
        dim=int(parts["values"].shape[1]),
        columns=_ordered(parts),
        counters={part: parts[part] for part in (*COUNTERS, BLOOM) if part in parts},
        description=text,
        config=config if isinstance(config, dict) else None,
        step=_step(told),
        time_ms=_whole(told.get("time_ms")),
        key_dtype=str(told.get("key_dtype") or ""),
        left_out=tuple(str(part) for part in told.get("left_out") or ()),
        saves=saves,
    )
    return table, used


def _save(
    prefix: str, folder: str, entries: Mapping[str, Mapping[str, Any]]
) -> tuple[str, dict[str, Any], dict[str, Column]]:
    """Text and contents of NAME/config, and the tensors of a table, checked against each other."""
    where = f"{prefix}: table {folder.removesuffix('/') or ROOT!r}"
    text, told = _description(prefix, folder + "config", where)
    parts: dict[str, Column] = {}
    for key in entries:
        part = key.removeprefix(folder)
        if not key.startswith(folder) or not _is_part(part):
            continue
        column = column_of(prefix, entries[key])
        if column is None:
            raise CorruptFileError(f"{where}: tensor {key!r} is {entries[key]['dtype']}, expected numbers")
        parts[part] = column
    _check_parts(where, parts, _whole(told.get("rows")))
    return text, told, parts


def _chain(where: str, folder: str, delta: chains.Save) -> list[chains.Save]:
    """The saves that a delta builds upon, the whole one first.

    Raises:
      CorruptFileError: one is missing, or another save than the delta was made on.
    """
    found = [delta]
    while found[0].told["format"] == DELTA_FORMAT:
        previous = found[0].told["previous"]
        prefix = os.path.join(os.path.dirname(found[0].file), str(previous["name"]))
        on = f"{where} is a delta on {prefix}, save {previous['save']}"
        if not os.path.isfile(prefix + ".index") or prefix in [save.file for save in found]:
            raise CorruptFileError(f"{on}, which is missing")
        entries = {entry["key"]: entry for entry in _index(prefix)}
        if not {folder + part for part in ("config", "keys", "values")} <= entries.keys():
            raise CorruptFileError(f"{on}, which has no such table")
        _, told, parts = _save(prefix, folder, entries)
        if told.get("save") != previous["save"]:
            raise CorruptFileError(f"{on}, but that is save {told.get('save') or 'without a name'}")
        found.insert(0, chains.Save(prefix, parts, told))
    return found


def _is_part(part: str) -> bool:
    slot = part.startswith("slots/") and "/" not in part.removeprefix("slots/")
    return slot or part in ("keys", "values", BLOOM, chains.REMOVED, *ROW_COUNTS, *COUNTERS)


def _ordered(parts: Mapping[str, Column]) -> dict[str, Column]:
    slots = sorted(part for part in parts if part.startswith("slots/"))
    return {part: parts[part] for part in ("keys", "values", *slots, *ROW_COUNTS) if part in parts}


def _description(prefix: str, key: str, where: str) -> tuple[str, dict[str, Any]]:
    native = library.native()
    try:
        text = bytes(native.read_tensor(prefix, key).item()).decode()
    except native.CorruptFile as error:
        raise CorruptFileError(str(error)) from None
    except UnicodeDecodeError:
        text = ""
    return text, read_description(text, f"{where}: tensor {key!r}")


def read_description(text: str, where: str) -> dict[str, Any]:
    """What NAME/config says.

    Raises:
      CorruptFileError: it is not what a save writes.
      VersionError: it was written by a newer tfctr.
    """
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    number = told.get("format") if isinstance(told, dict) else None
    if not isinstance(number, int | float) or number < 1:
        raise CorruptFileError(f"{where} does not say the format, expected JSON with a number 'format'")
    delta = number == DELTA_FORMAT and isinstance(told.get("previous"), dict)
    if delta and not {"name", "save"} <= told["previous"].keys():
        raise CorruptFileError(f"{where} is that of a delta, and does not name the save before it")
    if number > FORMAT and not delta:
        raise VersionError(
            f"{where} is of format {number:g}, written by a newer tfctr; this one reads formats up to {FORMAT}"
        )
    return told


def _check_parts(where: str, parts: Mapping[str, Column], told_rows: int | None) -> None:
    """CorruptFileError unless all parts fit each other and what the configuration says."""
    rows = rows_of(parts["keys"])
    if told_rows is not None and told_rows != rows:
        raise CorruptFileError(f"{where}: tensor 'keys' has {rows} rows, 'config' says {told_rows}")
    counted = parts["counters/keys"].shape if "counters/keys" in parts else None
    for part, column in parts.items():
        whole = np.float32 if part == "values" or part.startswith("slots/") else np.int64
        dtype = np.dtype(np.uint8 if part == BLOOM else whole)
        shape = counted if part in COUNTERS else None if part in (BLOOM, chains.REMOVED) else (rows,)
        wide = dtype == np.float32
        fits = len(column.shape) == (2 if wide else 1) and (shape is None or column.shape[:1] == shape)
        if column.dtype != dtype or not fits:
            wanted = f"{dtype} [{'n' if shape is None else shape[0]}{', width' if wide else ''}]"
            raise CorruptFileError(
                f"{where}: tensor {part!r} is {column.dtype} {list(column.shape)}, expected {wanted}"
            )


def _whole(value: Any) -> int | None:
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None


def _step(told: Mapping[str, Any]) -> int | None:
    step = _whole(told.get("step"))
    return None if step is None or step < 0 else step  # -1: the saver did not know it


def describe_variable(column: Column) -> str:
    """dtype and shape of a variable: "float32 [1000, 16]"."""
    return f"{column.dtype} {list(column.shape)}"
