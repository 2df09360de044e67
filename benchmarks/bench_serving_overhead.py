"""What a request costs beside the model: client-observed p50 of an idle server minus the p50 of predict in process.

Run: python -m benchmarks.bench_serving_overhead [--quick] [--json FILE] [--models FOLDER]

Requests of 100 rows of the 40-feature model, serialised beforehand, one at a time. In process: `ServingSession.predict`
on the same arrays, alone on the core where the server runs. All take turns, so that a machine that slows down slows
all; medians over the rounds.

Two more figures say where the difference comes from. `paced`: predict in process with a millisecond of sleep between
calls, as a server's core has between the requests of one client: caches and clock have cooled down. `bare gRPC`: a
synchronous gRPC server that keeps its core busy for as long as predict takes, given the same bodies; less that time.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import bare_server
from benchmarks import serving_servers as servers
from benchmarks.models import baseline_inputs

FLOOR_MS = 1.0
ROWS = 100
PAUSE_S = 0.001


def main() -> None:
    if sys.argv[1:2] == ["--in-process"]:
        _in_process(sys.argv[2])
        return
    args = servers.arguments(__doc__).parse_args()
    servers.pin_generator()
    figures: dict[str, Any] = {"rows": ROWS}
    with servers.models_folder(args.models) as folder:
        _, served = servers.model_of(folder, "256-128")
        figures |= _measure(served, rounds=3 if args.quick else 7, seconds=2.0 if args.quick else 4.0)
    print(
        f"{'in process, predict':28} p50 {figures['in_process_p50_ms']:.3f} ms, paced {figures['paced_p50_ms']:.3f} ms"
    )
    print(f"{'bare gRPC':28} {figures['bare_grpc_ms']:+.3f} ms")
    for name in servers.PROTOCOLS:
        one = figures[name]
        told = servers.verdict(one["overhead_ms"], FLOOR_MS, at_most=True)
        print(
            f"{name:28} p50 {one['p50_ms']:.3f} ms, p99 {one['p99_ms']:.3f} ms: {one['overhead_ms']:+.3f} ms ({told}), "
            f"{one['calmest_overhead_ms']:+.3f} ms between the calmest rounds, "
            f"{one['paced_overhead_ms']:+.3f} ms to paced"
        )
    servers.write(args.json, figures)


def _measure(served: pathlib.Path, rounds: int, seconds: float) -> dict[str, Any]:
    found: dict[str, list[Any]] = {name: [] for name in servers.PROTOCOLS}
    alone: list[float] = []
    paced: list[float] = []
    bare: list[float] = []
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench_serving_overhead", "--in-process", str(served / "1")],
        cwd=servers.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    try:
        with servers.ours(served) as server:
            ways = {name: servers.way(server, name, [ROWS] * 32) for name in servers.PROTOCOLS}
            for opened, requests in ways.values():
                servers.warm(opened, requests)
            for number in range(rounds):
                child.stdin.write(f"{seconds}\n")
                child.stdin.flush()
                for out, value in zip((alone, paced), child.stdout.readline().split(), strict=True):
                    out.append(float(value))
                bare.append(_bare(ways[servers.PROTOCOLS[0]][1], paced[-1], seconds))
                first = number % len(ways)  # who comes after a stranger finds cold caches
                names = list(ways)
                for name in names[first:] + names[:first]:
                    opened, requests = ways[name]
                    found[name].append(servers.idle(opened, requests, seconds).summary)
            for opened, _ in ways.values():
                opened.close()
    finally:
        child.stdin.close()
        child.wait()
    base = statistics.median(alone)
    slow = statistics.median(paced)
    told: dict[str, Any] = {
        "in_process_p50_ms": base,
        "in_process_p50s_ms": alone,
        "paced_p50_ms": slow,
        "bare_grpc_ms": statistics.median(bare),
    }
    for name, summaries in found.items():
        p50 = statistics.median(s.percentile(50.0) for s in summaries)
        p99 = statistics.median(s.percentile(99.0) for s in summaries)
        calmest = min(s.percentile(50.0) for s in summaries) - min(alone)
        told[name] = {
            "p50_ms": p50,
            "p50s_ms": [s.percentile(50.0) for s in summaries],
            "p99_ms": p99,
            "overhead_ms": p50 - base,
            "calmest_overhead_ms": calmest,
            "paced_overhead_ms": p50 - slow,
        }
    return told


def _bare(requests: Sequence[Any], busy_ms: float, seconds: float) -> float:
    """Median milliseconds that a request takes beside the time for which the server is busy."""
    import grpc

    with servers.bare(busy_ms) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(bare_server.METHOD)
        took: list[float] = []
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            call(requests[len(took) % len(requests)].body)
            took.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(took) - busy_ms


def _in_process(bundle: str) -> None:
    """Measures for as many seconds as each line of standard input says, and prints two p50 in milliseconds: of calls
    one after the other, and with pauses."""
    os.sched_setaffinity(0, {servers.SERVER_CORE})
    import tfctr
    from tfctr.loadtest.channel import Prepared
    from tfctr.loadtest.process_channel import ProcessChannel

    session = tfctr.ServingSession(bundle)
    channel = ProcessChannel(session.predict, session.close)
    requests = [Prepared(baseline_inputs(servers.FEATURES, ROWS, k), ROWS) for k in range(32)]
    servers.warm(channel, requests)
    for line in sys.stdin:
        alone = servers.idle(channel, requests, float(line)).summary.percentile(50.0)
        print(alone, _paced(session, requests, float(line)), flush=True)


def _paced(session: Any, requests: Sequence[Any], seconds: float) -> float:
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        session.predict(requests[len(took) % len(requests)].body)
        took.append((time.perf_counter() - begin) * 1e3)
        time.sleep(PAUSE_S)
    return statistics.median(took)


if __name__ == "__main__":
    main()
