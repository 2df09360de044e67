"""What ``convert`` stores in a bundle so that ``refresh`` need not recognise, fuse and prove again.

Two graphs without their weights: the reference graph, and the converted one as it is before the passes of the dense
tower and of packing (which a refresh runs again); where each weight of the second lies in the first; and the lookups
that were proven, so that those whose proof took a value can be proven once more. One zip file,
``assets.extra/tfctr_refresh.zip``, the same bytes for the same conversion.
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import error as zlib_error

import numpy as np
from google.protobuf.message import DecodeError
from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.framework import dtypes

from graph_opt.item import GraphItem
from graph_opt.narrowing import widened
from graph_opt.options import ConvertOptions
from graph_opt.renewal.encode import decode, encode, meta_graph
from graph_opt.renewal.full_names import full_names
from graph_opt.renewal.model_key import asset_hashes, model_key
from graph_opt.renewal.weights import Part, content_hash, is_weight, mark, part_of, strip, unmark, value_of
from graph_opt.report import PassReport
from graph_opt.saved_model import SavedModelSource
from tfctr.bundle import naming
from tfctr.errors import CorruptFileError
from tfctr.version import __version__

FORMAT = 1
_OPTIONS = (
    "disable", "table_dtype", "max_dp", "max_bias", "max_auc_delta", "dense_limit_bytes", "device_map",
    "force_placement",
)  # fmt: skip
_DATE = (1980, 1, 1, 0, 0, 0)  # the same conversion gives the same bytes
_KEPT_BYTES = 4096  # constants that no variable is behind keep their contents up to this size


@dataclasses.dataclass(kw_only=True)
class Record:
    """A record as read.

    key, assets: of the model as it was saved (``model_key``). reference, template: items without paths and with empty
    weights. hashes: weight of the reference graph -> hash of its contents. empty: those without contents here.
    nonfinite: those that held NaN or infinity. consumed: those of which the template has nothing. unexplained: why it
    can't be refreshed. narrow: numbers of the tables that were stored smaller. options: of the conversion, by name.
    ops_before: operations before it. names: checkpoint key -> own name of the variables that are read ({} of an earlier
    tfctr): how a checkpoint of training is understood.
    """

    key: str
    assets: dict[str, str]
    reference: GraphItem
    template: GraphItem
    hashes: dict[str, str]
    empty: list[str]
    nonfinite: list[str]
    consumed: list[str]
    unexplained: list[str]
    narrow: list[int]
    options: dict[str, Any]
    ops_before: int
    names: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The record as stored; the graphs' weights are emptied."""
        for node in (n for item in (self.reference, self.template) for n in item.graph_def.node):
            part = part_of(node) if node.op == "Const" else None
            if node.name in self.empty or (part is not None and (part.takes or part.weight in self.empty)):
                strip(node)
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data = {
            **plain,
            "format": FORMAT,
            "tfctr": __version__,
            "reference": encode(self.reference),
            "template": encode(self.template),
        }
        return _packed(data, meta_graph(self.reference), meta_graph(self.template))


class Recorder:
    """Follows the weights of ``reference`` through the passes of one conversion."""

    def __init__(self, source: SavedModelSource, reference: GraphItem, options: ConvertOptions) -> None:
        self._source = source
        self._reference = reference
        self._options = options

    def mark(self, item: GraphItem) -> None:
        """Marks the weights of ``item``, a copy of the reference graph."""
        mark(item.graph_def, made_of_values(item))

    def record(self, item: GraphItem, reports: Sequence[PassReport], ops_before: int) -> bytes:
        """The record of ``item`` as the passes left it; takes the marks off it."""
        template = widened(item) or item.copy()
        unmark(item.graph_def)
        reference = self._reference.copy()
        made = made_of_values(reference)
        values = {n.name: value_of(n) for n in reference.graph_def.node if is_weight(n, made)}
        hashes = {name: content_hash(value) for name, value in values.items()}
        used, unexplained = _explain(template, hashes)
        own = {p.name for p in self._options.extra_passes}
        unexplained += [
            f"the pass {r.name!r} of your own changed the graph" for r in reports if r.name in own and r.fired
        ]
        record = Record(
            key=model_key(self._source.meta_graph),
            assets=asset_hashes(self._source.path / "assets"),
            reference=reference,
            template=template,
            hashes=hashes,
            empty=sorted(name for name, v in values.items() if name in made or v.nbytes > _KEPT_BYTES),
            nonfinite=sorted(name for name, v in values.items() if not all_finite(v)),
            consumed=sorted(set(hashes) - used),
            unexplained=unexplained,
            narrow=[k for k, f in enumerate(item.files) if f.narrowed_from is not None],
            options={name: _plain(getattr(self._options, name)) for name in _OPTIONS},
            ops_before=ops_before,
            names=names_of(reference, self._source.checkpoint),
        )
        return record.to_bytes()


def names_of(reference: GraphItem, checkpoint: Path) -> dict[str, str]:
    """Own names of the variables that ``reference`` reads, by their keys in the checkpoint."""
    read = {ref.key for ref in reference.constants.values()} | {f.ref.key for f in reference.files if f.ref is not None}
    return {key: name for key, name in full_names(checkpoint).items() if key in read}


def made_of_values(item: GraphItem) -> set[str]:
    """Const nodes of a reference graph that were made of variables, or say how large a vocabulary is."""
    return {*item.constants, *item.vocabulary_sizes}


def all_finite(value: Any) -> bool:
    if not dtypes.as_dtype(value.dtype).is_floating:
        return True
    return bool(np.isfinite(value.astype(np.float64) if value.dtype.kind != "f" else value).all())


def _explain(template: GraphItem, hashes: Mapping[str, str]) -> tuple[set[str], list[str]]:
    """Weights that ``template`` has, and constants of which it is not known what weight they are."""
    used: set[str] = set()
    unexplained = []
    for node in template.graph_def.node:
        if node.op != "Const":
            continue
        part = part_of(node)
        if part is not None:
            used.add(part.weight)
            if not part.takes and content_hash(value_of(node)) != hashes.get(part.weight):
                unexplained.append(f"the constant {node.name!r} was changed by a pass")
        elif is_weight(node, ()) and not _is_filler(node):
            dtype = dtypes.as_dtype(node.attr["dtype"].type).name
            unexplained.append(f"the {dtype} constant {node.name!r} was made by a pass")
    for file in template.files:
        if file.part:
            used.add(Part.parse(file.part).weight)
    return used, unexplained


def _is_filler(node: node_def_pb2.NodeDef) -> bool:
    """Whether a Const holds one number only, so that no weight can be in it."""
    value = value_of(node).reshape(-1)
    return bool(value.size == 0 or (value == value[0]).all())


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "items") else value


def _packed(data: Mapping[str, Any], *graphs: meta_graph_pb2.MetaGraphDef) -> bytes:
    buffer = io.BytesIO()
    contents = [("record.json", json.dumps(data, separators=(",", ":"), sort_keys=True).encode())]
    for name, graph in zip(("reference.pb", "template.pb"), graphs, strict=True):
        contents.append((name, graph.SerializeToString(deterministic=True)))
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, content in contents:
            archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def read_record(bundle: Path) -> Record | None:
    """The record of the bundle at ``bundle``; None where it has none, or one of another format. CorruptFileError where
    it is damaged.
    """
    path = bundle / naming.REFRESH
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:  # every member has a checksum
            data = json.loads(archive.read("record.json"))
            graphs = [
                meta_graph_pb2.MetaGraphDef.FromString(archive.read(f"{n}.pb")) for n in ("reference", "template")
            ]
        if data["format"] != FORMAT:
            return None
        data["reference"] = decode(data["reference"], graphs[0])
        data["template"] = decode(data["template"], graphs[1])
        data.setdefault("names", {})
        return Record(**{f.name: data[f.name] for f in dataclasses.fields(Record)})
    except (zipfile.BadZipFile, zlib_error, KeyError, ValueError, TypeError, EOFError, DecodeError, OSError) as error:
        raise CorruptFileError(f"{path}: damaged: {error}") from error


__all__ = ["Record", "Recorder", "read_record"]
