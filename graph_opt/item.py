"""GraphItem: one model on its way through the passes.

A pass takes a GraphItem and changes it; the pipeline keeps a copy (:meth:`GraphItem.copy`) to go back to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from graph_opt.gate import GateLimits
from graph_opt.lookup_spec import CopySpec, LookupSpec, OutputSpec, Placement
from graph_opt.signature_info import composite_parts
from graph_opt.view import canonical, node_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointRef:
    """Where a variable's value lies in the checkpoint: its key, and RestoreV2's slice text ("" = the whole tensor)."""

    key: str
    slice: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreFile:
    """One file of the bundle's store. Its index in ``GraphItem.files`` is the index ops use.

    kind: "table", "hash" (a frozen embedding variable: int64 key -> row), "vocab", "blob" (bytes that an engine reads)
    or "overlay" (changed rows of another file). path: where it lies now (a temporary folder until the bundle is
    written; None: analysed only).
    name: for people (variable or vocabulary name). dtype: value dtype of a table; of a hash file what its rows are
    stored as ("float32", "float16", "bfloat16", "int8"); key dtype ("string", "int64") of a vocabulary, "uint8" of a
    blob.
    shape: of the tensor; (rows, dim) of a hash file, the default row not counted; (entries,) of a vocabulary; (bytes,)
    of a blob. source: checkpoint key, constant or asset it was made from, the table's name in the checkpoint of a hash
    file; the role of a blob. base: of an overlay: index of the file whose rows it changes.
    fingerprint: identifies the contents (checked when the store opens the file).
    narrowed_from: the float32 file that a table was made from, where it is stored in fewer bytes (lookups over it say
    so by their ``storage``); dtype and shape are then those of the narrow file.
    ref: the checkpoint tensor that it is a copy of. merged: "div" or "mod" and the files whose rows it has, by index.
    part: the entries of a constant or table that it has (``graph_opt.renewal.weights.Part``, as text).
    """

    kind: str
    path: Path | None
    name: str
    dtype: str
    shape: tuple[int, ...]
    source: str
    bytes: int = 0
    fingerprint: str = ""
    narrowed_from: StoreFile | None = None
    ref: CheckpointRef | None = None
    merged: tuple[str, tuple[int, ...]] | None = None
    part: str = ""
    base: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionGroup:
    """The parts of one PartitionedVariable: their table nodes in order, and their rows."""

    name: str
    nodes: tuple[str, ...]
    rows: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FusedGroup:
    """One ``TfctrFusedLookup`` node, as objects: what its ``spec`` attr was made from.

    bind: graph tensor -> "arg:J" (or "in:K" in a packed signature). repeats: names of lookups that equal one of
    ``lookups`` and read its columns, and where these are.
    """

    node: str
    lookups: tuple[tuple[LookupSpec, Placement], ...]
    outputs: tuple[OutputSpec, ...]
    bind: dict[str, str]
    copies: tuple[tuple[CopySpec, Placement], ...] = ()
    repeats: tuple[tuple[str, Placement], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProvenLookup:
    """One lookup of the reference graph as it was proven: enough to prove it again.

    output: the tensor that it replaced. gather: the node that read the table. parts, strategy: as ``Candidate`` has
    them. constants: nodes that the proof took the values of. files: vocabularies that it read, by index.
    """

    spec: LookupSpec
    output: str
    gather: str
    parts: tuple[str, ...] = ()
    strategy: str = ""
    constants: tuple[str, ...] = ()
    files: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitForm:
    """The form of a signature that takes user inputs once per user.

    signature: its name in ``GraphItem.signatures``; it has the inputs of the original and one more. row_to_user: name
    of that input, int64 [B]: which user row each item row belongs to. user_inputs: names of the inputs with one row per
    user; the others have B rows. user_features: the same as features. details: JSON-able, for the manifest (how far
    each broadcast moved, FLOPs, the boundary with its two sides, features that stayed on the item side and why).
    """

    signature: str
    row_to_user: str
    user_inputs: tuple[str, ...]
    user_features: tuple[str, ...]
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseForm:
    """The form of a signature (or of its split form) whose dense tower is one ``TfctrDenseEngine`` node.

    signature: its name in ``GraphItem.signatures``; inputs and outputs are those of the form that it stands beside.
    node: the engine's. precision: what the engine computes in. limits: of the accuracy gate by which its outputs are
    judged against the plain form; None: they are equal within 1e-5 + 1e-5 |b|. check_provider, check_precision: what
    the final comparison runs the node by (not ``provider`` where that does not run on this machine; "": nothing here
    runs it, so it is not compared). details:
    JSON-able, the manifest's ``dense`` entry as far as the pass knows it.
    """

    signature: str
    node: str
    provider: str
    precision: str = "fp32"
    limits: GateLimits | None = None
    check_provider: str = ""
    check_precision: str = "fp32"
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MutableState:
    """State that stays in the graph because the serving path writes it or can't be frozen, and why.

    node: VarHandleOp, VariableV2 or table node. kind: "variable" or "table". keys: checkpoint keys (one for a
    variable, keys and values for a table); empty where the checkpoint has none.
    """

    node: str
    kind: str
    reason: str
    keys: tuple[str, ...] = ()


@dataclasses.dataclass
class GraphItem:
    """A flat graph with everything that must survive (see the fields).

    graph_def: signature calls inlined; control flow (If, While) stays functional, its bodies are in the library.
    signatures: every signature of the MetaGraph, by name. optimise: those that passes may change; the others are kept
    working.
    init_op: node that initialises tables and asset paths, None where there is none. assets: asset_file_def entries.
    variables: VarHandleOp / VariableV2 node -> place in the checkpoint. restored_tables: mutable table node -> (keys,
    values) keys. embedding_tables: TfctrEvHandle node -> the table's name in the checkpoint (its tensors are NAME/keys,
    NAME/values...).
    files: store files so far. store_node: name of the TfctrStore node, "" until a table or vocabulary needs it.
    store_name: the store's shared_name, unique per bundle. work_dir: folder for the files, None where they are not
    wanted.
    constants: Const node made of a variable -> its place in the checkpoint. vocabulary_sizes: Const node that says how
    large a vocabulary is -> its file. proven: lookups that were fused.
    tables: TfctrTable node -> index in files. partitions: what is known of PartitionedVariables. groups: fused ops.
    packed: signature -> its packed form. split: signature -> its form with user inputs once per user. dense: form (a
    signature, or the split form of one) -> the form beside it whose tower is an engine.
    asset_paths: asset filename -> where the file lies, for assets that are store files.
    sample_keys: some keys of vocabularies that were only analysed.
    restore_op, restore_filename: node that restores the mutable state and its filename tensor, "" where there is none.
    mutable_state: variables and tables that stay, and why.
    copies_tables: whether tables of variables are copied into files; else only their place is known (a delta reads the
    rows where they lie).
    on_copied: called with the number of table bytes just copied.
    described: signature infos as in a manifest, where they are known already.
    unfused: the graph before its lookups were fused, kept where a later pass generates inputs from what it says about
    them; never changed.
    """

    graph_def: graph_pb2.GraphDef
    signatures: dict[str, meta_graph_pb2.SignatureDef]
    optimise: tuple[str, ...] = ()
    init_op: str | None = None
    assets: list[meta_graph_pb2.AssetFileDef] = dataclasses.field(default_factory=list)
    source_path: Path | None = None
    tags: tuple[str, ...] = ()
    variables: dict[str, CheckpointRef] = dataclasses.field(default_factory=dict)
    restored_tables: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    embedding_tables: dict[str, str] = dataclasses.field(default_factory=dict)
    constants: dict[str, CheckpointRef] = dataclasses.field(default_factory=dict)
    vocabulary_sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    proven: list[ProvenLookup] = dataclasses.field(default_factory=list)
    files: list[StoreFile] = dataclasses.field(default_factory=list)
    store_node: str = ""
    store_name: str = ""
    work_dir: Path | None = None
    tables: dict[str, int] = dataclasses.field(default_factory=dict)
    partitions: list[PartitionGroup] = dataclasses.field(default_factory=list)
    groups: list[FusedGroup] = dataclasses.field(default_factory=list)
    packed: dict[str, str] = dataclasses.field(default_factory=dict)
    split: dict[str, SplitForm] = dataclasses.field(default_factory=dict)
    dense: dict[str, DenseForm] = dataclasses.field(default_factory=dict)
    sample_keys: dict[int, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    asset_paths: dict[str, Path] = dataclasses.field(default_factory=dict)
    restore_op: str = ""
    restore_filename: str = ""
    mutable_state: list[MutableState] = dataclasses.field(default_factory=list)
    copies_tables: bool = True
    on_copied: Callable[[int], None] | None = None
    described: dict[str, Any] | None = None
    unfused: GraphItem | None = None

    def copy(self) -> GraphItem:
        """An independent copy (files on disk are shared: they are never changed once written)."""
        graph_def = graph_pb2.GraphDef()
        graph_def.CopyFrom(self.graph_def)
        signatures = {}
        for name, signature in self.signatures.items():
            signatures[name] = meta_graph_pb2.SignatureDef()
            signatures[name].CopyFrom(signature)
        return dataclasses.replace(
            self,
            graph_def=graph_def,
            signatures=signatures,
            assets=list(self.assets),
            variables=dict(self.variables),
            restored_tables=dict(self.restored_tables),
            embedding_tables=dict(self.embedding_tables),
            constants=dict(self.constants),
            vocabulary_sizes=dict(self.vocabulary_sizes),
            proven=list(self.proven),
            files=list(self.files),
            tables=dict(self.tables),
            partitions=list(self.partitions),
            groups=list(self.groups),
            packed=dict(self.packed),
            split=dict(self.split),
            dense=dict(self.dense),
            sample_keys=dict(self.sample_keys),
            asset_paths=dict(self.asset_paths),
            mutable_state=list(self.mutable_state),
        )

    def feeds(self, signature: str | None = None) -> list[str]:
        """Input tensors of one signature (of all, where None), without repeats."""
        return self._tensors("inputs", signature)

    def fetches(self, signature: str | None = None) -> list[str]:
        """Output tensors of one signature (of all, where None), without repeats."""
        return self._tensors("outputs", signature)

    def keep(self) -> set[str]:
        """Names of nodes that must not be removed or change meaning: feeds, fetches, init op and asset tensors."""
        tensors = self.feeds() + self.fetches() + [asset.tensor_info.name for asset in self.assets]
        return {node_of(t) for t in tensors} | ({self.init_op} if self.init_op else set())

    def _tensors(self, side: str, signature: str | None) -> list[str]:
        chosen = self.signatures.values() if signature is None else [self.signatures[signature]]
        found: dict[str, None] = {}
        for one in chosen:
            infos = getattr(one, side)
            for name in sorted(infos):  # the order of a packed layout: a map has none of its own
                found |= dict.fromkeys(tensor_names(infos[name]))
        return list(found)


def tensor_names(info: meta_graph_pb2.TensorInfo) -> list[str]:
    """The graph tensors behind a TensorInfo: one for a dense tensor, the parts of a sparse or composite one."""
    _, parts = composite_parts(info)
    return [part["tensor"] for part in parts.values()] or [canonical(info.name)]


def output_names(item: GraphItem, signature: str) -> list[str]:
    """Outputs by name, the parts of a composite one as ``name/role``; in the order of :func:`output_tensors`."""
    names = []
    outputs = item.signatures[signature].outputs
    for name in sorted(outputs):
        _, parts = composite_parts(outputs[name])
        names += [f"{name}/{role}" for role in parts] or [name]
    return names


def output_tensors(item: GraphItem, signature: str) -> list[str]:
    """Graph tensors of the outputs; one that stands under two names comes twice."""
    outputs = item.signatures[signature].outputs
    return [tensor for name in sorted(outputs) for tensor in tensor_names(outputs[name])]
