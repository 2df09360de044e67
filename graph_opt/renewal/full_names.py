"""What variables are called by themselves, beside the places that a checkpoint gives them.

Exports may number their variables (``_all_variables/3``), checkpoints of training call them by paths; both note their
own names (``dense/kernel``).
"""

from __future__ import annotations

from pathlib import Path

from tensorflow.core.protobuf import trackable_object_graph_pb2

from tfctr.core import library

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def full_names(prefix: Path) -> dict[str, str]:
    """Checkpoint key -> the variable's own name; empty where the checkpoint has no object graph (TF1), or there is no
    checkpoint."""
    if not prefix.with_name(prefix.name + ".index").is_file():
        return {}
    native = library.native()
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    with library.native_errors():
        if OBJECT_GRAPH not in {entry["key"] for entry in native.read_checkpoint_index(prefix)}:
            return {}
        graph.ParseFromString(native.read_tensor(prefix, OBJECT_GRAPH).item())
    return {a.checkpoint_key: a.full_name for node in graph.nodes for a in node.attributes if a.full_name}
