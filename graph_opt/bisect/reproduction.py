"""Writes down the smallest model that still shows a difference: for stock TensorFlow, as a bundle, with a script that
runs both.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from graph_opt.bisect.cut import cut_model
from graph_opt.bisect.differences import Tolerance
from graph_opt.bisect.forms import Inputs, Original, compare_form, forms, request
from graph_opt.bisect.pages import readme, script
from graph_opt.bisect.report import Difference, Findings
from graph_opt.bisect.walk import Stage, Walk
from graph_opt.conversion import convert_different, recognised
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.saved_model import SavedModelSource
from graph_opt.signature_info import signature_info
from graph_opt.view import GraphView, canonical
from tfctr.bundle.writer import disk_error, remove, sync_tree
from tfctr.errors import TfctrError, UsageError

MODEL, BUNDLE, INPUTS, REQUEST, FINDINGS = "model", "bundle", "inputs.npz", "request.npz", "findings.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is to be reproduced. stage: the pass that makes it; options: narrowed; inputs: the rows that show it."""

    walk: Walk
    stage: Stage
    options: ConvertOptions
    inputs: Inputs
    tolerance: Tolerance


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """A part of the model that shows the difference: what it computes, for people, and how it differs."""

    what: str
    source: SavedModelSource
    item: GraphItem
    inputs: Inputs
    options: ConvertOptions
    found: Difference
    tolerance: Tolerance


def check_folder(out: Path) -> None:
    """UsageError where the reproduction can't be written to ``out``: said before the work."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: the reproduction is written to a new or empty folder, and this one is not")
    parent = next(p for p in out.absolute().parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"{out}: the folder {parent} can't be written to")


def write_reproduction(case: Case, findings: Findings, out: Path) -> Findings:
    """Writes ``out``: ``model/`` (the part, for stock TensorFlow), ``bundle/`` (the same, converted, with the
    difference), ``inputs.npz`` (``request.npz`` where user inputs come once), ``run.py``, ``README.md`` and
    ``findings.json``. Returns the findings with the folder, and notes on what could not be made small.
    """
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.tmp-", dir=out.parent))
    try:
        part = _smallest_part(case, findings, temporary)
        if part is None:
            note = "no part of the model, nor the whole of it, shows the difference on its own: nothing was written"
            return dataclasses.replace(findings, notes=(*findings.notes, note))
        findings = dataclasses.replace(findings, notes=(*findings.notes, f"the reproduction computes {part.what}"))
        findings = _write(case, part, dataclasses.replace(findings, reproduction=out), temporary)
        sync_tree(temporary)
        if out.exists():
            out.rmdir()
        temporary.rename(out)
        out.chmod(0o755)
        return findings
    except OSError as error:
        raise disk_error(error, out) from error
    finally:
        remove(temporary)


def _smallest_part(case: Case, findings: Findings, folder: Path) -> _Part | None:
    walk = case.walk
    for what, outputs in _targets(case, findings):
        for exact in (False, True):
            remove(folder / MODEL)
            try:
                source, inputs = cut_model(
                    walk.source,
                    walk.first,
                    walk.signature,
                    outputs,
                    case.inputs,
                    folder / MODEL,
                    exact=exact,
                )
                options = _options_for(case.options, inputs)
                part = _shows(case, source, inputs, options, what)
            except (TfctrError, tf.errors.OpError, ValueError, KeyError):
                part = None  # this part can't stand alone; a larger one is tried
            if part is not None:
                return part
    return None


def _targets(case: Case, findings: Findings) -> Iterator[tuple[str, dict[str, meta_graph_pb2.TensorInfo]]]:
    """What the small model may compute, the smallest first."""
    walk = case.walk
    view = GraphView(walk.first.graph_def)
    tensors: dict[str, str] = {}
    if walk.reference is not None and findings.lookups:
        for entry in recognised(walk.reference)[0]:
            if entry["name"] in findings.lookups and entry.get("output"):
                tensors[canonical(entry["output"])] = f"the lookup {entry['name']!r}"
    if findings.tensor:
        tensors.setdefault(findings.tensor, f"the tensor {findings.tensor}")
    for tensor, what in tensors.items():
        if tensor in walk.first.feeds(walk.signature) or view.get(tensor) is None:
            continue
        info = _tensor_info(walk.first, tensor)
        if info is not None:
            yield what, {"result": info}
    outputs = walk.first.signatures[walk.signature].outputs
    name = findings.difference.output.partition("/")[0] if findings.difference else ""
    if name in outputs and len(outputs) > 1:
        yield f"the output {name!r}", {name: outputs[name]}
    yield "all outputs", dict(outputs)


def _tensor_info(item: GraphItem, tensor: str) -> meta_graph_pb2.TensorInfo | None:
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(item.graph_def, name="")
    try:
        found = graph.get_tensor_by_name(tensor)
    except (KeyError, ValueError):
        return None
    info = meta_graph_pb2.TensorInfo(name=tensor, dtype=found.dtype.as_datatype_enum)
    info.tensor_shape.CopyFrom(found.shape.as_proto())
    return info


def _options_for(options: ConvertOptions, inputs: Inputs) -> ConvertOptions:
    """``options`` without what names features that the part does not have."""
    names = {f["name"] for f in inputs.info["features"]} | {entry["name"] for entry in inputs.info["inputs"]}
    users = tuple(p for p in options.user_features if any(fnmatch.fnmatchcase(n, p) for n in names))
    return dataclasses.replace(
        options,
        user_features=users,
        user_features_from_samples=False,
        request_column="",
        samples_path=None,
        read_samples=lambda _: inputs.arrays,
        read_sample_columns=None,
        require_fused=(),
    )


def _shows(case: Case, source: SavedModelSource, inputs: Inputs, options: ConvertOptions, what: str) -> _Part | None:
    """The part, where its outputs leave the tolerance after the same pass."""
    walk = Walk(source, case.walk.signature, options, case.walk.new_folder())
    for stage in walk.stages(lambda *_: None):
        if stage.one.name == case.stage.one.name:
            break
    else:
        return None
    if not stage.runnable:
        return None
    with Original(source, walk.first, walk.signature) as original, walk.runner(stage.after) as runner:
        want = original.run(inputs)
        for form in forms(stage.after, walk.signature):
            found, _, tolerance = compare_form(runner, form, inputs, want, case.tolerance)
            if found is not None:
                return _Part(
                    what=what,
                    source=source,
                    item=stage.after,
                    inputs=inputs,
                    options=options,
                    found=found,
                    tolerance=tolerance,
                )
    return None


def _write(case: Case, part: _Part, findings: Findings, folder: Path) -> Findings:
    signature = case.walk.signature
    part.inputs.write(folder / INPUTS, part.inputs.arrays)
    asked = request(part.item, signature, part.found.form, part.inputs)
    if set(asked) != set(part.inputs.arrays):
        part.inputs.write(folder / REQUEST, asked)
    notes = list(findings.notes)
    try:
        # The narrowing is for the one pass; others that name rewrites do them all.
        convert_different(part.source.path, folder / BUNDLE, dataclasses.replace(part.options, only_rewrites=None))
    except TfctrError as error:
        notes.append(f"no bundle of the small model could be written: {error}")
    findings = dataclasses.replace(findings, notes=tuple(notes))
    described = _described(part, signature, part.tolerance)
    text = json.dumps({**findings.as_dict(), "reproduces": described}, indent=2, default=str)
    (folder / FINDINGS).write_text(text + "\n", encoding="utf-8")
    (folder / "run.py").write_text(script(), encoding="utf-8")
    (folder / "README.md").write_text(readme(findings, part.what, part.found, part.tolerance), encoding="utf-8")
    return findings


def _described(part: _Part, signature: str, tolerance: Tolerance) -> Mapping[str, Any]:
    """What ``run.py`` needs to know."""
    info = signature_info(part.item.signatures[signature])
    return {
        "what": part.what,
        "signature": signature,
        "tags": list(part.source.tags),
        "atol": tolerance.gate.max_dp if tolerance.gate is not None else tolerance.atol,
        "inputs": {entry["name"]: entry["tensor"] for entry in info["inputs"]},
        "outputs": _flat_outputs(info),
        "difference": dataclasses.asdict(part.found),
    }


def _flat_outputs(info: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in info["outputs"]:
        parts = {f"{entry['name']}/{role}": tensor for role, tensor in entry.get("parts", {}).items()}
        found |= parts or {entry["name"]: entry["tensor"]}
    return found
