"""The op ``TfctrDenseEngine`` in a graph: writing its node from a spec, and reading a spec back from a node."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import dtypes

from tfctr.engines.spec import EngineFile, EngineSpec, EngineTensor

OP = "TfctrDenseEngine"


def engine_node(
    name: str, store: str, inputs: Sequence[str], spec: EngineSpec, files: Sequence[int]
) -> node_def_pb2.NodeDef:
    """The node. store: the TfctrStore node. inputs: graph tensors, as ``spec.inputs``. files: the index in the store of
    each of ``spec.files``. Its output k is ``spec.outputs[k]``.
    """
    assert len(inputs) == len(spec.inputs) and len(files) == len(spec.files)
    node = node_def_pb2.NodeDef(name=name, op=OP, input=[store, *inputs])
    attr = node.attr
    attr["Tin"].list.type.extend(_enum(one) for one in spec.inputs)
    attr["Tout"].list.type.extend(_enum(one) for one in spec.outputs)
    for kind, tensors in (("input", spec.inputs), ("output", spec.outputs)):
        attr[f"{kind}_names"].list.s.extend(one.name.encode() for one in tensors)
        attr[f"{kind}_dims"].list.s.extend(one.dims.encode() for one in tensors)
    attr["provider"].s = spec.provider.encode()
    attr["precision"].s = spec.precision.encode()
    attr["files"].list.i.extend(files)
    attr["roles"].list.s.extend(one.role.encode() for one in spec.files)
    attr["options"].s = options_text(spec.options).encode()
    attr["threads"].i = spec.threads
    attr["label"].s = spec.label.encode()
    return node


def engine_spec(node: node_def_pb2.NodeDef, paths: Mapping[int, Path]) -> EngineSpec:
    """The spec of a node. paths: of the store's files, by index."""
    attr = node.attr
    indices, roles = list(attr["files"].list.i), _texts(node, "roles")
    return EngineSpec(
        provider=attr["provider"].s.decode(),
        precision=attr["precision"].s.decode(),
        inputs=_tensors(node, "input", "Tin"),
        outputs=_tensors(node, "output", "Tout"),
        files=tuple(EngineFile(role, paths[k]) for k, role in zip(indices, roles, strict=True)),
        options=json.loads(attr["options"].s.decode() or "{}"),
        threads=attr["threads"].i,
        label=attr["label"].s.decode(),
    )


def options_text(options: Mapping[str, object]) -> str:
    """Options as the op and the native library take them: the same text for equal options."""
    return json.dumps(options, sort_keys=True, separators=(",", ":"))


def _enum(one: EngineTensor) -> int:
    return int(dtypes.as_dtype(one.dtype).as_datatype_enum)


def _texts(node: node_def_pb2.NodeDef, name: str) -> list[str]:
    return [text.decode() for text in node.attr[name].list.s]


def _tensors(node: node_def_pb2.NodeDef, kind: str, types: str) -> tuple[EngineTensor, ...]:
    names, dims = _texts(node, f"{kind}_names"), _texts(node, f"{kind}_dims")
    enums = node.attr[types].list.type
    return tuple(
        EngineTensor.parse(name, dtypes.as_dtype(enum).name, text)
        for name, enum, text in zip(names, enums, dims, strict=True)
    )
