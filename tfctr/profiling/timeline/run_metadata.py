"""What one traced run says about the graph that ran: its nodes after grappler, devices, transfers, memory.

RunMetadata has no threads and no transfers in its step stats; both come from elsewhere (``xplane``, the partition
graphs). It is taken of one run alone, so that other requests of the process don't mix in.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import config_pb2

from tfctr.profiling import transfers as counting
from tfctr.profiling.timeline.events import TransferCount

_ARGUMENT = re.compile(r"_arg_(.+)_(\d+)_(\d+)")
_RESULT = re.compile(r"_retval_(.+)_(\d+)_(\d+)")
_IDLE = ("_SOURCE", "_SINK")


@dataclasses.dataclass(frozen=True)
class RunGraph:
    """The graph that ran, all partitions in one.

    nodes: name -> NodeDef. fed: name of the node that hands in a fed tensor -> the node of the graph that it stands
    for. ran: node -> microseconds of its kernel in the traced run (nodes of called functions among them). device: node
    -> "CPU:0".
    """

    nodes: Mapping[str, node_def_pb2.NodeDef]
    fed: Mapping[str, str]
    ran: Mapping[str, float]
    device: Mapping[str, str]
    transfers: tuple[counting.Transfer, ...]
    memory_peak_bytes: int | None

    def edges(self) -> dict[str, tuple[str, ...]]:
        """Node -> the nodes that it reads or waits for."""
        return {name: tuple(dict.fromkeys(map(node_of, node.input))) for name, node in self.nodes.items()}

    def counts(self) -> tuple[TransferCount, ...]:
        """Transfers by direction."""
        sums = counting.count(self.transfers)
        return tuple(
            TransferCount(source=source, target=target, **dataclasses.asdict(count))
            for (source, target), count in sums.items()
        )


def node_of(tensor: str) -> str:
    """The node inside a tensor name or control input."""
    return tensor.lstrip("^").partition(":")[0]


def run_graph(metadata: config_pb2.RunMetadata) -> RunGraph:
    """metadata: of a run with SOFTWARE_TRACE (or more) and output_partition_graphs."""
    nodes = {node.name: node for part in metadata.partition_graphs for node in part.node}
    fed = {name: match[1] for name in nodes if (match := _ARGUMENT.fullmatch(name))}
    device = {name: counting.short_device(node.device) for name, node in nodes.items() if node.device}
    ran: dict[str, float] = {}
    for stats in metadata.step_stats.dev_stats:
        for node in stats.node_stats:
            if node.node_name in _IDLE:
                continue
            elapsed = float(node.op_end_rel_nanos - node.op_start_rel_nanos) / 1e3
            ran[node.node_name] = ran.get(node.node_name, 0.0) + elapsed
            device.setdefault(node.node_name, counting.short_device(stats.device))
    return RunGraph(
        nodes=nodes,
        fed=fed,
        ran=ran,
        device=device,
        transfers=tuple(counting.transfers(metadata)),
        memory_peak_bytes=_peak(metadata),
    )


def _peak(metadata: config_pb2.RunMetadata) -> int | None:
    """Most bytes that the kernels' allocations held at once; None where the run kept no record of them."""
    changes = [
        (record.alloc_micros, record.alloc_bytes)
        for stats in metadata.step_stats.dev_stats
        for node in stats.node_stats
        for memory in node.memory
        for record in memory.allocation_records
    ]
    if not changes:
        return None
    held = peak = 0
    for _, size in sorted(changes):
        held += size
        peak = max(peak, held)
    return peak
