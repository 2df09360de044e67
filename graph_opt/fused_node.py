"""Building ``TfctrFusedLookup`` nodes: the same code for proofs and for rewritten graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from graph_opt.lookup_spec import CopySpec, LookupSpec, OutputSpec, Placement, spec_text

FUSED_OP = "TfctrFusedLookup"


def output_form(spec: LookupSpec) -> str:
    """``like`` (ids.shape + [D]) for a plain gather, ``rows`` ([R, columns]) for everything else."""
    return "like" if spec.combiner == "none" and spec.ids_per_row is None else "rows"


def bind_arguments(lookups: Sequence[LookupSpec], copies: Sequence[CopySpec] = ()) -> tuple[list[str], dict[str, str]]:
    """The tensors a group reads, without repeats, and ``bind``: tensor -> ``arg:J``."""
    tensors = [t for spec in lookups for t in spec.sources()] + [c.source for c in copies]
    arguments = list(dict.fromkeys(tensors))
    return arguments, {tensor: f"arg:{j}" for j, tensor in enumerate(arguments)}


def fused_node(
    name: str,
    store: str,
    empty_inputs: Sequence[str],
    arguments: Sequence[str],
    argument_dtypes: Sequence[int],
    lookups: Sequence[tuple[LookupSpec, Placement]],
    outputs: Sequence[OutputSpec],
    bind: Mapping[str, str],
    copies: Sequence[tuple[CopySpec, Placement]] = (),
) -> node_def_pb2.NodeDef:
    """An unpacked node: all its inputs are graph tensors (``arguments``, DataType numbers in ``argument_dtypes``).

    empty_inputs: names of the three empty constants that stand for arena, shapes and strings (:func:`empty_constants`).
    """
    node = node_def_pb2.NodeDef(name=name, op=FUSED_OP)
    node.input.extend([store, *empty_inputs, *arguments])
    node.attr["spec"].s = spec_text(lookups, outputs, dict(bind), copies).encode()
    node.attr["layout"].list.SetInParent()
    node.attr["Targs"].list.SetInParent()
    node.attr["Targs"].list.type.extend(argument_dtypes)
    node.attr["Tout"].list.type.extend(tf.as_dtype(o.dtype).as_datatype_enum for o in outputs)
    return node


def empty_constants(prefix: str) -> list[node_def_pb2.NodeDef]:
    """Const nodes ``<prefix>no_arena``, ``no_shapes``, ``no_strings``: empty uint8, int64 and string vectors."""
    made = []
    for name, dtype in (("no_arena", tf.uint8), ("no_shapes", tf.int64), ("no_strings", tf.string)):
        node = node_def_pb2.NodeDef(name=prefix + name, op="Const")
        node.attr["dtype"].type = dtype.as_datatype_enum
        tensor = node.attr["value"].tensor
        tensor.dtype = dtype.as_datatype_enum
        tensor.tensor_shape.dim.add().size = 0
        made.append(node)
    return made


def infer_sources(
    graph_def: graph_pb2.GraphDef, tensors: Sequence[str]
) -> dict[str, tuple[tf.DType, tuple[int | None, ...] | None]]:
    """Dtype and static shape of graph tensors, as TensorFlow's shape functions see them."""
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    found = {}
    for name in tensors:
        tensor = graph.get_tensor_by_name(name)
        shape = tensor.shape
        found[name] = (tensor.dtype, None if shape.rank is None else tuple(shape.as_list()))
    return found
