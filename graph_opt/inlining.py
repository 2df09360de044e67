"""Makes a MetaGraph flat with grappler's ``function`` pass (no freezing: variables and tables stay what they are)."""

from __future__ import annotations

from collections.abc import Iterable

from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.grappler import tf_optimizer

from graph_opt.view import node_of

# Attributes that only make sense where the node was: colocation names nodes that go, shapes are inferred again.
_DROPPED_ATTRS = ("_class", "_output_shapes")


def missing_ops(graph_def: graph_pb2.GraphDef) -> list[str]:
    """Op names, sorted, that neither TensorFlow nor a loaded library nor the graph's own functions define."""
    functions = {f.signature.name for f in graph_def.library.function}
    ops = {n.op for n in graph_def.node} | {n.op for f in graph_def.library.function for n in f.node_def}
    return sorted(op for op in ops - functions if op_def_registry.get(op) is None)


def inline_functions(meta_graph: meta_graph_pb2.MetaGraphDef, keep: Iterable[str]) -> graph_pb2.GraphDef:
    """The graph of ``meta_graph`` with every call inlined; nodes or tensors named in ``keep`` stay, by name.

    If/While stay functional (their bodies remain in the library). Unused library functions are dropped.
    """
    work = meta_graph_pb2.MetaGraphDef()
    work.graph_def.CopyFrom(meta_graph.graph_def)
    fetches = dict.fromkeys(node_of(name) for name in keep)
    work.collection_def["train_op"].node_list.value.extend(fetches)
    config = config_pb2.ConfigProto()
    # Keeps If/While functional: lowered control flow would mix their bodies with the serving path.
    config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"
    rewrite = config.graph_options.rewrite_options
    rewrite.optimizers.append("function")
    rewrite.min_graph_nodes = -1
    rewrite.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    rewrite.fail_on_optimizer_errors = True
    flat = tf_optimizer.OptimizeGraph(config, work, verbose=False, graph_id=b"tfctr_inline")
    clean(flat)
    return flat


def clean(graph_def: graph_pb2.GraphDef) -> None:
    """Drops colocation, stale shapes, grappler's function marks and functions that nothing reaches (in place)."""
    nodes = list(graph_def.node) + [n for f in graph_def.library.function for n in f.node_def]
    for node in nodes:
        for attr in _DROPPED_ATTRS:
            node.attr.pop(attr, None)
    for function in graph_def.library.function:
        function.attr.pop("_GrapplerSpecializedFunc", None)
    prune_library(graph_def)


def prune_library(graph_def: graph_pb2.GraphDef) -> None:
    """Removes library functions (and gradients) that no node reaches."""
    functions = {f.signature.name: f for f in graph_def.library.function}
    reached: set[str] = set()
    pending = [name for node in graph_def.node for name in _called(node)]
    while pending:
        name = pending.pop()
        if name in reached or name not in functions:
            continue
        reached.add(name)
        pending += [called for node in functions[name].node_def for called in _called(node)]
    kept = [f for f in graph_def.library.function if f.signature.name in reached]
    gradients = [g for g in graph_def.library.gradient if {g.function_name, g.gradient_func} <= reached]
    library = graph_pb2.GraphDef().library
    library.function.extend(kept)
    library.gradient.extend(gradients)
    graph_def.library.CopyFrom(library)


def _called(node) -> list[str]:  # type: ignore[no-untyped-def]
    names = [node.op]
    for value in node.attr.values():
        if value.HasField("func"):
            names.append(value.func.name)
        names += [f.name for f in value.list.func]
    return names
