"""Finding and loading the SavedModel that a path means, with errors that say what is there instead."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import config_pb2

from tfctr.bundle import naming
from tfctr.core import library
from tfctr.errors import CorruptFileError, TfctrError, UsageError, VersionError

_log = logging.getLogger("tfctr")
_LOW_PRIORITY = 10  # niceness; more would leave it hardly any time on a machine that is busy with serving


def find_model(path: str | Path) -> Path:
    """The folder with the model: ``path`` itself, or the highest version in it (``model/`` holding ``1/``, ``2/``;
    logged).

    Raises UsageError, saying what is there, for anything else.
    """
    folder = Path(path)
    if not folder.exists():
        raise UsageError(f"{folder}: no such folder")
    if folder.is_file():
        raise UsageError(f"{folder}: is a file; a SavedModel is a folder that holds {naming.MODEL}")
    if naming.is_saved_model(folder):
        return folder
    versions = [child for child in folder.iterdir() if child.name.isdecimal() and naming.is_saved_model(child)]
    if not versions:
        raise UsageError(f"{folder}: not a SavedModel: it holds no {naming.MODEL}")
    highest = max(versions, key=lambda child: int(child.name))
    _log.info("%s holds versions; taking the highest: %s", folder, highest)
    return highest


def load_model(
    folder: Path,
    tags: Sequence[str],
    intra_op_threads: int,
    config: config_pb2.ConfigProto | None = None,
    device_map: Mapping[str, str] | None = None,
    engine: Mapping[str, Any] | None = None,
    low_priority: bool = False,
) -> Any:
    """A ``_native.Model``. config: merged over the session's own. device_map: device -> where its nodes go instead.
    engine: provider, precision, options (JSON) and threads of its dense engines instead of the graph's.
    low_priority: what is served meanwhile goes first.

    Raises:
      UsageError: the tags are not there (lists what is), the model needs an op that is not registered, or
        ``device_map`` names something that is no device.
      CorruptFileError: its variables or files are missing or damaged.
      VersionError: files of it are of another format version.
      TfctrError: anything else that TensorFlow says.
    """
    native = library.native()
    try:
        serialised = b"" if config is None else config.SerializeToString()
        more: dict[str, Any] = {"engine": dict(engine)} if engine else {}
        if low_priority:
            more["load_nice"] = _LOW_PRIORITY
        return native.Model(str(folder), list(tags), intra_op_threads, serialised, dict(device_map or {}), **more)
    except native.LoadFailed as failure:
        code, message = failure.args
    if unknown := unknown_op(folder, message):
        raise unknown
    if device_map and "is no device; expected" in message:
        raise UsageError(f"device_map: {message}")
    known = _tag_sets(folder)
    if set(tags) not in [set(one) for one in known]:
        there = "; ".join(",".join(sorted(one)) for one in known)
        raise UsageError(f"{folder}: no MetaGraph with the tags {','.join(tags)}; there is: {there}")
    text = " ".join(message.split("\n\t")[0].split())
    if "convert the model again" in text:
        raise VersionError(f"{folder}: the model does not load: {text}")
    if code in ("NOT_FOUND", "DATA_LOSS", "OUT_OF_RANGE"):
        raise CorruptFileError(f"{folder}: the model does not load: {text}")
    raise TfctrError(f"{folder}: the model does not load: {text} ({code})")


def unknown_op(where: str | Path, message: str) -> UsageError | None:
    """What TensorFlow's ``message`` means where it is about an op that is not registered, else None. Of ops in
    functions, as TF2 saves them, it tells only when a signature is prepared.
    """
    op = re.search(r"Op type not registered '([^']+)'", message)
    if op is None:
        return None
    return UsageError(
        f"{where}: the model uses the op {op[1]!r}, which is not registered; name its library (op_libraries; "
        "of commands --op-library)"
    )


def _tag_sets(folder: Path) -> list[list[str]]:
    """The tags of every MetaGraph; read only to explain a failure, as the file may be large."""
    from google.protobuf import message, text_format
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    binary = folder / naming.MODEL
    try:
        if binary.is_file():
            model.ParseFromString(binary.read_bytes())
        else:
            text_format.Parse((folder / f"{naming.MODEL}txt").read_text(), model)
    except (message.DecodeError, text_format.ParseError, OSError, UnicodeDecodeError) as error:
        raise CorruptFileError(f"{folder}: its model file does not parse: {error}") from error
    return [list(graph.meta_info_def.tags) for graph in model.meta_graphs]
