"""GraphItems as JSON and MetaGraphDef, for the record in a bundle: paths and files on disk are left out."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import meta_graph_pb2

from graph_opt.item import (
    CheckpointRef,
    FusedGroup,
    GraphItem,
    MutableState,
    PartitionGroup,
    ProvenLookup,
    SplitForm,
    StoreFile,
)
from graph_opt.lookup_spec import CopySpec, LookupSpec, OutputSpec, Placement, Step


def meta_graph(item: GraphItem) -> meta_graph_pb2.MetaGraphDef:
    """Graph, signatures and assets of ``item``."""
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(item.graph_def)
    for name, signature in item.signatures.items():
        meta.signature_def[name].CopyFrom(signature)
    meta.asset_file_def.extend(item.assets)
    return meta


def encode(item: GraphItem) -> dict[str, Any]:
    """What :func:`decode` needs beside the MetaGraphDef."""
    return {
        "signatures": list(item.signatures),
        "optimise": list(item.optimise),
        "init_op": item.init_op,
        "tags": list(item.tags),
        "variables": {name: dataclasses.asdict(ref) for name, ref in item.variables.items()},
        "constants": {name: dataclasses.asdict(ref) for name, ref in item.constants.items()},
        "vocabulary_sizes": item.vocabulary_sizes,
        "store_node": item.store_node,
        "tables": item.tables,
        "files": [_file(f) for f in item.files],
        "partitions": [dataclasses.asdict(p) for p in item.partitions],
        "groups": [dataclasses.asdict(g) for g in item.groups],
        "split": {name: dataclasses.asdict(form) for name, form in item.split.items()},
        "mutable_state": [dataclasses.asdict(m) for m in item.mutable_state],
        "proven": [dataclasses.asdict(p) for p in item.proven],
    }


def decode(data: Mapping[str, Any], meta: meta_graph_pb2.MetaGraphDef) -> GraphItem:
    """An item without paths: its files are to be given, its weights to be filled in."""
    return GraphItem(
        graph_def=meta.graph_def,
        signatures={name: meta.signature_def[name] for name in data["signatures"]},
        optimise=tuple(data["optimise"]),
        init_op=data["init_op"],
        assets=list(meta.asset_file_def),
        tags=tuple(data["tags"]),
        variables={name: CheckpointRef(**ref) for name, ref in data["variables"].items()},
        constants={name: CheckpointRef(**ref) for name, ref in data["constants"].items()},
        vocabulary_sizes=dict(data["vocabulary_sizes"]),
        store_node=data["store_node"],
        tables=dict(data["tables"]),
        files=[_decode_file(f) for f in data["files"]],
        partitions=[
            PartitionGroup(name=p["name"], nodes=tuple(p["nodes"]), rows=tuple(p["rows"])) for p in data["partitions"]
        ],
        groups=[_decode_group(g) for g in data["groups"]],
        split={name: _decode_split(form) for name, form in data["split"].items()},
        mutable_state=[MutableState(**{**m, "keys": tuple(m["keys"])}) for m in data["mutable_state"]],
        proven=[_decode_proven(p) for p in data["proven"]],
    )


def contents_hash(path: Path) -> str:
    """SHA-256 of what a store file holds, its name left out."""
    with path.open("rb") as file:
        file.seek(-64, os.SEEK_END)
        size = int.from_bytes(file.read(24)[16:], "little")
        file.seek(0)
        digest = hashlib.sha256()
        while size and (block := file.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def _file(file: StoreFile) -> dict[str, Any]:
    return {
        "kind": file.kind,
        "name": file.name,
        "dtype": file.dtype,
        "shape": list(file.shape),
        "source": file.source,
        "ref": dataclasses.asdict(file.ref) if file.ref else None,
        "merged": file.merged,
        "part": file.part,
        "contents": contents_hash(file.path) if file.kind == "vocab" and file.path is not None else "",
    }


def _decode_file(data: Mapping[str, Any]) -> StoreFile:
    ref, merged = data["ref"], data["merged"]
    return StoreFile(
        kind=data["kind"],
        path=None,
        name=data["name"],
        dtype=data["dtype"],
        shape=tuple(data["shape"]),
        source=data["source"],
        ref=CheckpointRef(**ref) if ref else None,
        merged=(merged[0], tuple(merged[1])) if merged else None,
        part=data["part"],
        fingerprint=data["contents"],  # as read; a fingerprint has the name in it
    )


def _decode_spec(data: Mapping[str, Any]) -> LookupSpec:
    steps = tuple(Step(s["kind"], tuple(s["args"])) for s in data["steps"])
    return LookupSpec(**{**data, "steps": steps})


def _decode_group(data: Mapping[str, Any]) -> FusedGroup:
    return FusedGroup(
        node=data["node"],
        lookups=tuple((_decode_spec(spec), Placement(**place)) for spec, place in _pairs(data["lookups"])),
        outputs=tuple(OutputSpec(**o) for o in data["outputs"]),
        bind=dict(data["bind"]),
        copies=tuple((CopySpec(**copy), Placement(**place)) for copy, place in _pairs(data["copies"])),
        repeats=tuple((name, Placement(**place)) for name, place in _pairs(data["repeats"])),
    )


def _pairs(data: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(first, second) for first, second in data]


def _decode_split(data: Mapping[str, Any]) -> SplitForm:
    tuples = {key: tuple(data[key]) for key in ("user_inputs", "user_features")}
    return SplitForm(**{**data, **tuples})


def _decode_proven(data: Mapping[str, Any]) -> ProvenLookup:
    tuples = {key: tuple(data[key]) for key in ("parts", "constants", "files")}
    return ProvenLookup(**{**data, **tuples, "spec": _decode_spec(data["spec"])})
