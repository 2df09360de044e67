"""From one traced run to files: a timeline of it, its Chrome trace, and the page of the latest. Runs in the writer's
process; the server imports none of it.
"""

from __future__ import annotations

import datetime
import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import config_pb2

from tfctr.profiling.timeline import chrome_trace, page
from tfctr.profiling.timeline.building import About, build, op_of_label
from tfctr.profiling.timeline.events import Timeline
from tfctr.profiling.timeline.provenance import Provenance
from tfctr.profiling.timeline.run_metadata import RunGraph, run_graph
from tfctr.profiling.timeline.xplane import OpSpan, SeenStep, Span
from tfctr.serving.profiles import folder

_NO_GRAPH = "which op needs which is not known, nor what crosses between devices: this model was not run to learn it"
_HOST_ONLY = "times are those of the host: what a GPU does meanwhile is in a profile of the process (--seconds)"


def timeline_of(
    head: Mapping[str, Any], metadata: bytes, graphs: bytes, about: Mapping[str, Any] | None = None
) -> Timeline:
    """A run as a Timeline of one step, which is the whole run; all its ops are on the executor's thread.

    Args:
      head: as ``Group.trace_take`` tells it, with ``model``, ``version``, ``path``, ``threads`` and ``bundle``.
      metadata: of this run alone.
      graphs: RunMetadata with the graph that ran; b"": not known.
      about: ``info`` (of the signature, as manifests have it) and ``files`` (of the store), for where nodes come from.
    """
    run = config_pb2.RunMetadata.FromString(metadata)
    if graphs:
        run.MergeFromString(graphs)
        graph = run_graph(run)
    else:
        graph = _graph_without_edges(run)
    info = (about or {}).get("info") or {"inputs": [], "features": [], "lookups": []}
    ids = ", ".join(one["id"] or "without an id" for one in head["requests"])
    several = len(head["requests"]) > 1
    notes = [f"one run on executor {head['executor']} for {'requests' if several else 'request'} {ids}"]
    notes += [] if graphs else [_NO_GRAPH]
    notes += [_HOST_ONLY] if any(device.startswith("GPU") for device in graph.device.values()) else []
    described = About(
        title=f"{head['model']} version {head['version']}, request{'s' if several else ''} {ids}",
        path=head["path"],
        signature=head["signature"],
        form="bundle" if head["bundle"] else "stock",
        threads=head["threads"],
        provenance=Provenance(info, (about or {}).get("files") or ()),
        notes=tuple(notes),
    )
    ops = _ops(run, graph, (head["thread"], f"executor {head['executor']}"))
    start = head["start_ns"]
    end = max([start + head["run_ns"], *(op.end for op in ops)])
    start = min([start, *(op.start for op in ops)])
    span = Span("run", start, end)
    seen = [SeenStep(0, span, (span,), tuple(ops))]
    return build(described, head["rows"], graph, seen, threads={head["thread"]: head["thread"]})


def write(head: Mapping[str, Any], timeline: Timeline) -> Path:
    """The trace, into ``head["folder"]``; named by its time, version and executor. OSError: as ``folder.write``."""
    text = io.StringIO()
    chrome_trace.write_trace(text, [timeline])
    # What Perfetto does not show is for people and scripts.
    body = text.getvalue().replace('"otherData": {', f'"otherData": {{"served": {json.dumps(_served(head))}, ', 1)
    return folder.write(Path(head["folder"]), file_name(head), gzip.compress(body.encode(), 6), head["max_bytes"])


def write_page(head: Mapping[str, Any], timeline: Timeline) -> str:
    """The page of this one, in place of the last; why not, or ""."""
    where = Path(head["folder"])
    try:
        page.write_page(where / folder.PAGE, timeline)
        folder.prune(where, head["max_bytes"])
    except Exception as error:  # a page is a convenience: the traces go on
        return f"{type(error).__name__}: {error}"
    return ""


def file_name(head: Mapping[str, Any]) -> str:
    """Sorts by time; executors run one thing at a time, so that no two are equal."""
    seconds, nanos = divmod(head["start_ns"], 10**9)
    stamp = datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y%m%dT%H%M%S")
    return f"{stamp}.{nanos:09d}-v{head['version']}-e{head['executor']}{folder.TRACE}"


def _served(head: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("model", "version", "signature", "split", "executor", "start_ns", "rows", "requests")
    stages = ("batch_ns", "run_ns", "lookup_ns", "dense_ns")
    return {key: head[key] for key in (*keys, *stages)}


def _ops(run: config_pb2.RunMetadata, graph: RunGraph, track: tuple[int, str]) -> list[OpSpan]:
    found = []
    for stats in run.step_stats.dev_stats:
        for node in stats.node_stats:
            if node.node_name not in graph.ran:
                continue
            known = graph.nodes.get(node.node_name)
            op = known.op if known is not None else op_of_label(node.timeline_label)
            start = node.all_start_nanos + node.op_start_rel_nanos
            end = max(start, node.all_start_nanos + node.op_end_rel_nanos)
            found.append(OpSpan(node.node_name, op, start, end, track))
    return sorted(found, key=lambda op: op.start)


def _graph_without_edges(run: config_pb2.RunMetadata) -> RunGraph:
    run = config_pb2.RunMetadata(step_stats=run.step_stats)
    run.partition_graphs.add()  # an empty one: no nodes, no transfers
    return run_graph(run)
