"""The ONNX tower of a model on disk, without a conversion: for users who want that file and nothing else."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from export.attempt import Attempt, attempt_export
from export.onnx.runtime import OnnxSession
from export.reasons import CannotExport
from graph_opt import pipeline
from graph_opt.counts import disk_needed
from graph_opt.item import GraphItem
from graph_opt.lookup_spec import Placement
from graph_opt.options import ConvertOptions
from graph_opt.saved_model import SavedModelSource, inline, load
from graph_opt.split.features import check_patterns
from graph_opt.view import canonical, node_of, port_of
from tfctr.bundle import naming
from tfctr.core import library
from tfctr.errors import StrictRefusal, UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandaloneTower:
    """form: the signature, or its split form. columns: input -> its columns as (feature, first, last + 1), where an
    input holds several features side by side.
    """

    form: str
    attempt: Attempt
    columns: dict[str, list[tuple[str, int, int]]]
    note: str = ""

    @property
    def model(self) -> onnx.ModelProto:
        assert self.attempt.onnx is not None, "a tower that was required is there"
        return self.attempt.onnx.model

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: as ``Attempt.as_dict``, with ``columns`` for each input that has them."""
        found = self.attempt.as_dict()
        for entry in found["inputs"]:
            entry["columns"] = [
                {"feature": f, "start": a, "stop": b} for f, a, b in self.columns.get(entry["name"], [])
            ]
        return found


def export_model(
    path: str | Path,
    signature: str | None = None,
    *,
    scratch: str | Path | None = None,
    tags: Sequence[str] | None = None,
    user_features: Sequence[str] = (),
) -> StandaloneTower:
    """The tower of one signature (default: serving_default, or the only one) of a SavedModel.

    scratch: folder for a copy of the variables, which is removed again (None: the system's). user_features: shell
    patterns; the tower is that of the split form then. Raises UsageError (path, tags, signature, patterns, a bundle, no
    room in ``scratch``), StrictRefusal with the reason where the tower can't leave TensorFlow or there is no split.
    """
    library.load()
    source = load(path, tags)
    if source.is_bundle:
        raise UsageError(f"{source.path}: is a tfctr bundle; give the SavedModel that it was made from")
    name = _signature(source, signature)
    item = inline(source, [name])
    item.store_name = "tfctr/export"
    options = ConvertOptions(user_features=tuple(user_features))
    check_patterns(item, options)
    with tempfile.TemporaryDirectory(prefix=".tfctr-export-", dir=scratch) as folder:
        _check_space(item, source, folder)
        item.work_dir = Path(folder)
        form = _run_passes(item, name, options)
        attempt = attempt_export(item, form, required=True)
    return StandaloneTower(form=form, attempt=attempt, columns=_columns(item, attempt), note=source.note)


def _run_passes(item: GraphItem, name: str, options: ConvertOptions) -> str:
    """Runs what a conversion runs before the cut. Returns the form to cut."""
    passes = [one for one in pipeline.DEFAULT_PASSES if one.name != "pack_inputs"]
    reports = pipeline.run_passes(item, passes, options)
    if not options.user_features:
        return name
    if name in item.split:
        return item.split[name].signature
    split = next(report for report in reports if report.name == "split_user_item")
    reasons = [r.reason for r in split.refused] or [split.error]
    raise StrictRefusal(f"{item.source_path}: signature {name!r} has no split form: {'; '.join(reasons)}")


def _check_space(item: GraphItem, source: SavedModelSource, folder: str) -> None:
    needed, free = disk_needed(item, source), shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(
            f"{Path(folder).parent}: {needed:,} bytes are needed for a copy of the variables, {free:,} are free"
        )


def tower_of_bundle(folder: Path, manifest: dict[str, Any], signature: str) -> onnx.ModelProto:
    """The ONNX tower that a bundle was given at its conversion. UsageError where it has none."""
    entry = manifest["signatures"][signature].get("dense") or {}
    found = next(
        (folder / naming.STORE_FOLDER / file["file"] for file in entry.get("files", ()) if file["role"] == "onnx"), None
    )
    if found is None:
        made_from = manifest.get("source", {}).get("path", "")
        raise UsageError(
            f"{folder}: signature {signature!r} of the bundle has no ONNX tower; give the SavedModel that it was made "
            f"from{f' ({made_from})' if made_from else ''}"
        )
    model = onnx.load(str(found))
    try:
        OnnxSession(model)
    except Exception as error:  # ONNX Runtime's own kind
        raise CannotExport(f"{found}: ONNX Runtime refuses it: {error}") from error
    return model


def write_model(model: onnx.ModelProto, path: str | Path, *, force: bool = False) -> int:
    """Writes ``model`` under a temporary name, syncs and renames. Returns its bytes.

    Raises UsageError where the folder is missing, or ``path`` is a folder or (without ``force``) exists.
    """
    file = Path(path)
    check_file(file, force=force)
    temporary = file.with_name(f".{file.name}.tmp-{os.getpid()}")
    data = model.SerializeToString(deterministic=True)
    try:
        with temporary.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    except OSError as error:
        raise UsageError(f"{file}: can't be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return len(data)


def check_file(file: Path, *, force: bool = False) -> None:
    """UsageError where ``file`` can't be written; said before the work, not after it."""
    if file.is_dir():
        raise UsageError(f"{file}: is a folder; a file is expected")
    if not file.parent.is_dir():
        raise UsageError(f"{file}: folder {file.parent} does not exist")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{file}: folder {file.parent} can't be written to")
    if file.exists() and not force:
        raise UsageError(f"{file}: exists already; --force replaces it")


def _signature(source: SavedModelSource, wanted: str | None) -> str:
    names = list(source.signatures)
    if wanted is None:
        wanted = "serving_default" if "serving_default" in names or len(names) != 1 else names[0]
    if wanted not in names:
        raise UsageError(f"{source.path}: no signature {wanted!r}; it has {', '.join(names) or 'none'}")
    return wanted


def _columns(item: GraphItem, attempt: Attempt) -> dict[str, list[tuple[str, int, int]]]:
    """What lies where in the outputs of fused lookups."""
    groups = {group.node: group for group in item.groups}
    inputs = item.signatures[attempt.signature].inputs
    fed = {canonical(info.name): name for name, info in inputs.items()}
    found = {}
    for one in attempt.tower.inputs if attempt.tower else ():
        group = groups.get(node_of(one.source))
        if group is None:
            continue
        port = port_of(canonical(one.source))
        parts: list[tuple[str, Placement, int]] = [(s.name, p, s.width) for s, p in group.lookups]
        parts += [(fed.get(canonical(c.source), c.name), p, c.width) for c, p in group.copies]
        found[one.name] = sorted(
            ((name, place.column, place.column + width) for name, place, width in parts if place.output == port),
            key=lambda entry: entry[1],
        )
    return found
