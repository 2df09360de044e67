"""What all metrics cost: throughput of a server with them against one without, saturated by clients in closed loop.

Run: python -m benchmarks.bench_serving_metrics [--quick] [--json FILE] [--models FOLDER]

Both servers run at the same time on the same core and are loaded in turn, so that a machine that slows down slows both;
small requests (1 to 8 rows), where the share of anything fixed is largest.
"""

from __future__ import annotations

import statistics
import urllib.request
from typing import Any

from benchmarks import serving_servers as servers

FLOOR = 0.98
CLIENTS = 4


def main() -> None:
    args = servers.arguments(__doc__).parse_args()
    servers.pin_generator()
    rounds, seconds = (8, 2.0) if args.quick else (24, 3.0)
    with servers.models_folder(args.models) as folder:
        _, served = servers.model_of(folder, "256-128")
        on, off, cpu = _measure(served, rounds, seconds)
    ratios = [a / b for a, b in zip(on, off, strict=True)]
    ratio = statistics.median(ratios)
    figures: dict[str, Any] = {"on_per_s": on, "off_per_s": off, "ratio": ratio, "ratios": ratios, "cpu_ms": cpu}
    spread = statistics.quantiles(ratios, n=4)
    print(f"metrics on {statistics.median(on):.0f}/s, off {statistics.median(off):.0f}/s (medians of {rounds} rounds)")
    print(f"server CPU a request: on {cpu['on']:.3f} ms, off {cpu['off']:.3f} ms: {cpu['on'] / cpu['off']:.3f}x")
    print(
        f"on / off, paired: {ratio:.3f}, quartiles {spread[0]:.3f}, {spread[2]:.3f} ({servers.verdict(ratio, FLOOR)})"
    )
    servers.write(args.json, figures)


def _measure(served: Any, rounds: int, seconds: float) -> tuple[list[float], list[float], dict[str, float]]:
    from tfctr.loadtest.runs import RunOptions, closed_loop

    with servers.ours(served) as with_them, servers.ours(served, {"metrics": {"enabled": False}}) as without:
        ways = {}
        for name, server in (("on", with_them), ("off", without)):
            ways[name] = (server, *servers.way(server, "tfs gRPC", servers.mixed_rows(1, 8)))
            servers.warm(ways[name][1], ways[name][2])
        rates: dict[str, list[float]] = {"on": [], "off": []}
        cpu, count = {"on": 0.0, "off": 0.0}, {"on": 0, "off": 0}
        for number in range(rounds):
            for name in ("on", "off") if number % 2 else ("off", "on"):
                server, opened, requests = ways[name]
                before = server.cpu_s()
                run = closed_loop(opened, requests, CLIENTS, seconds, RunOptions(0.0, timing_every=0))
                cpu[name] += server.cpu_s() - before
                count[name] += run.summary.ok
                rates[name].append(run.summary.answers_per_s)
            _scrape(with_them)  # as a Prometheus server would
        for _, opened, _ in ways.values():
            opened.close()
    return rates["on"], rates["off"], {name: cpu[name] / count[name] * 1e3 for name in cpu}


def _scrape(server: servers.Server) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['http']}/metrics") as reply:
        reply.read()


if __name__ == "__main__":
    main()
