"""What a request costs beside the model: client-observed p50 of an idle server minus the p50 of predict in process.

Run: python -m benchmarks.bench_serving_overhead [--quick] [--json FILE] [--models FOLDER]

Requests of 100 rows of the 40-feature model, serialised beforehand, one at a time. In process: `ServingSession.predict`
on the same arrays, alone on the core where the server runs. The two take turns, so that a machine that slows down slows
both; medians over the rounds.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from benchmarks import serving_servers as servers
from benchmarks.models import baseline_inputs

FLOOR_MS = 1.0
ROWS = 100


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
    print(f"{'in process, predict':28} p50 {figures['in_process_p50_ms']:.3f} ms")
    for name in servers.PROTOCOLS:
        one = figures[name]
        told = servers.verdict(one["overhead_ms"], FLOOR_MS, at_most=True)
        print(
            f"{name:28} p50 {one['p50_ms']:.3f} ms, p99 {one['p99_ms']:.3f} ms: {one['overhead_ms']:+.3f} ms ({told}), "
            f"{one['calmest_overhead_ms']:+.3f} ms between the calmest rounds"
        )
    servers.write(args.json, figures)


def _measure(served: pathlib.Path, rounds: int, seconds: float) -> dict[str, Any]:
    found: dict[str, list[Any]] = {name: [] for name in servers.PROTOCOLS}
    alone: list[float] = []
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
                alone.append(float(child.stdout.readline()))
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
    told: dict[str, Any] = {"in_process_p50_ms": base, "in_process_p50s_ms": alone}
    for name, summaries in found.items():
        p50 = statistics.median(s.percentile(50.0) for s in summaries)
        p99 = statistics.median(s.percentile(99.0) for s in summaries)
        calmest = min(s.percentile(50.0) for s in summaries) - min(alone)
        told[name] = {"p50_ms": p50, "p99_ms": p99, "overhead_ms": p50 - base, "calmest_overhead_ms": calmest}
    return told


def _in_process(bundle: str) -> None:
    """Measures for as many seconds as each line of standard input says, and prints the p50 in milliseconds."""
    os.sched_setaffinity(0, {servers.SERVER_CORE})
    import tfctr
    from tfctr.loadtest.channel import Prepared
    from tfctr.loadtest.process_channel import ProcessChannel

    session = tfctr.ServingSession(bundle)
    channel = ProcessChannel(session.predict, session.close)
    requests = [Prepared(baseline_inputs(servers.FEATURES, ROWS, k), ROWS) for k in range(32)]
    servers.warm(channel, requests)
    for line in sys.stdin:
        print(servers.idle(channel, requests, float(line)).summary.percentile(50.0), flush=True)


if __name__ == "__main__":
    main()
