"""Counts what crosses between devices in one run: from the partition graphs and step stats of its RunMetadata.

TensorFlow splits a graph into one part per device and joins the parts by pairs of send and receive nodes; the step
stats show none of them, so they are read off the parts. Ask for both when running:

    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
    session.run(fetches, feeds, options=options, run_metadata=metadata)
    count_transfers(metadata)

Works on logical CPU devices, too: there a transfer passes a pointer, but it is the same pair of nodes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2

_SENDS = ("_Send", "_HostSend")


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One tensor that crosses in a run.

    tensor: "node:0". source, target: devices ("CPU:0"). dtype, shape: of the value that crossed; None where the run
    does not tell. control: a control edge, which carries nothing.
    """

    tensor: str
    source: str
    target: str
    dtype: tf.DType
    shape: tuple[int, ...] | None
    control: bool = False

    @property
    def bytes(self) -> int | None:
        """Bytes of the value; None where its shape is not known, or for strings."""
        if self.control:
            return 0
        if self.shape is None or self.dtype.size <= 0:
            return None
        return math.prod(self.shape) * self.dtype.size


@dataclasses.dataclass(frozen=True)
class Count:
    """Transfers of one direction. transfers: of tensors; strings are counted apart. waits: control edges. bytes: of
    those whose size is known; unknown: how many have none.
    """

    transfers: int = 0
    strings: int = 0
    waits: int = 0
    bytes: int = 0
    unknown: int = 0


def transfers(metadata: config_pb2.RunMetadata) -> list[Transfer]:
    """Every transfer of a run, in the order of the parts. ValueError where the run kept no partition graphs."""
    if not metadata.partition_graphs:
        raise ValueError("the run kept no partition graphs: run with output_partition_graphs=True")
    shapes = _shapes(metadata)
    return [
        _transfer(node, part, shapes)
        for part in metadata.partition_graphs
        for node in part.node
        if node.op in _SENDS and node.attr["send_device"].s != node.attr["recv_device"].s
    ]


def count_transfers(metadata: config_pb2.RunMetadata) -> dict[tuple[str, str], Count]:
    """(source, target) -> what crosses from one to the other."""
    return count(transfers(metadata))


def count(found: Iterable[Transfer]) -> dict[tuple[str, str], Count]:
    """The same of transfers that are at hand."""
    sums: dict[tuple[str, str], Count] = {}
    for one in found:
        before = sums.get((one.source, one.target), Count())
        strings, size = one.dtype == tf.string, one.bytes
        sums[one.source, one.target] = Count(
            transfers=before.transfers + (not one.control and not strings),
            strings=before.strings + strings,
            waits=before.waits + one.control,
            bytes=before.bytes + (size or 0),
            unknown=before.unknown + (size is None),
        )
    return sums


def _transfer(
    node: node_def_pb2.NodeDef, part: graph_pb2.GraphDef, shapes: dict[tuple[str, str], tuple[int, ...]]
) -> Transfer:
    data = [i for i in node.input if not i.startswith("^")]
    control = not data or _is_dummy(data[0], part)
    tensor = data[0] if data else node.input[0].lstrip("^")
    if control and data:
        dummy = next(n for n in part.node if n.name == data[0].partition(":")[0])
        tensor = next((i.lstrip("^") for i in dummy.input), dummy.name)
    tensor = tensor if ":" in tensor else f"{tensor}:0"
    source = short_device(node.attr["send_device"].s.decode())
    return Transfer(
        tensor=tensor,
        source=source,
        target=short_device(node.attr["recv_device"].s.decode()),
        dtype=tf.as_dtype(node.attr["T"].type),
        shape=shapes.get((source, tensor)),
        control=control,
    )


def _is_dummy(tensor: str, part: graph_pb2.GraphDef) -> bool:
    """Whether a sent tensor is the empty constant that stands for a control edge."""
    name = tensor.partition(":")[0]
    node = next((n for n in part.node if n.name == name), None)
    if node is None or node.op != "Const" or not any(i.startswith("^") for i in node.input):
        return False
    return [d.size for d in node.attr["value"].tensor.tensor_shape.dim] == [0]


def _shapes(metadata: config_pb2.RunMetadata) -> dict[tuple[str, str], tuple[int, ...]]:
    """(device, tensor) -> shape of what was computed, from the step stats."""
    found = {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            for output in node.output:
                dims = tuple(d.size for d in output.tensor_description.shape.dim)
                found[short_device(device.device), f"{node.node_name}:{output.slot}"] = dims
    return found


def short_device(name: str) -> str:
    """ "/job:localhost/replica:0/task:0/device:CPU:1" -> "CPU:1"."""
    spec = tf.DeviceSpec.from_string(name)
    return f"{spec.device_type}:{spec.device_index}"
