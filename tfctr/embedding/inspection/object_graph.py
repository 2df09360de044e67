"""The object graph of a checkpoint that holds tables only: so that `tf.train.Checkpoint(users=table)` restores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfctr.embedding.inspection.sources import ROOT

SAVER = "tfctr.EmbeddingVariable"  # what tfctr.embedding.checkpoint registers


def of_tables(steps: Mapping[str, int | None]) -> bytes:
    """The serialised graph.

    Args:
      steps: name of each table, its parts the names of objects from the root on ("model/users": root.model.users) ->
        its own step variable; None where it has none.
    """
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    nodes: dict[tuple[str, ...], int] = {}
    _node(graph, nodes, ())
    for name, step in steps.items():
        path = () if name == ROOT else tuple(name.split("/"))
        node = graph.nodes[_node(graph, nodes, path)]
        node.registered_saver.name = SAVER
        node.registered_saver.object_name = "" if name == ROOT else name
        if step is not None:
            variable = graph.nodes[_node(graph, nodes, (*path, "step"))].attributes.add()
            variable.name, variable.full_name = "VARIABLE_VALUE", "step"
            variable.checkpoint_key = "/".join((*path, "step")) + "/.ATTRIBUTES/VARIABLE_VALUE"
    for node in graph.nodes:
        node.has_checkpoint_values.value = True
    return bytes(graph.SerializeToString())


def _node(graph: Any, nodes: dict[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """The number of the node at `path`; it and those above it are made where they are missing."""
    if path not in nodes:
        above = _node(graph, nodes, path[:-1]) if path else None
        nodes[path] = len(graph.nodes)
        graph.nodes.add()
        if above is not None:
            graph.nodes[above].children.add(node_id=nodes[path], local_name=path[-1])
    return nodes[path]
