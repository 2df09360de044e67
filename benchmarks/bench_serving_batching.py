"""Batching on against off: highest Poisson rate at which p99 stays within 30 ms, requests of 1 to 8 rows.

Run: python -m benchmarks.bench_serving_batching [--quick] [--json FILE] [--models FOLDER]

The 40-feature model with two dense towers (fp32, run by what `--dense auto` takes), over gRPC. Server and generator
have a core each.
"""

from __future__ import annotations

import pathlib
from typing import Any

from benchmarks import serving_servers as servers

FLOORS = {"1024-512-256": 1.5, "256-128": 0.97}
MAX_BATCH_ROWS, MAX_DELAY_US = 256, 0


def main() -> None:
    parser = servers.arguments(__doc__)
    parser.add_argument("--towers", default=",".join(FLOORS))
    parser.add_argument("--max-batch-rows", type=int, default=MAX_BATCH_ROWS)
    parser.add_argument("--max-delay-us", type=int, default=MAX_DELAY_US)
    args = parser.parse_args()
    servers.pin_generator()
    batching = {"max_batch_rows": args.max_batch_rows, "max_delay_us": args.max_delay_us}
    figures: dict[str, Any] = {"rows": "1-8", "batching": batching, "towers": {}}
    with servers.models_folder(args.models) as folder:
        for tower in args.towers.split(","):
            _, served = servers.model_of(folder, tower)
            one = {
                "off": _measure(served, {}, args.quick, tower),
                "on": _measure(served, {"batching": batching}, args.quick, tower),
            }
            figures["towers"][tower] = one
            _print(tower, one)
    servers.write(args.json, figures)


def _measure(served: pathlib.Path, config: dict[str, Any], quick: bool, tower: str) -> dict[str, Any]:
    print(f"  tower {tower}, batching {'on' if config else 'off'}", flush=True)
    with servers.ours(served, config) as server:
        requests = servers.bodies(server.ports["grpc"], servers.mixed_rows(1, 8))
        cpu = server.cpu_s()
        found = servers.search(server.ports["grpc"], requests, 400.0, quick)
        count = sum(run.summary.requests for run in found.runs)
        batch = servers.batches(server)
        cpu = server.cpu_s() - cpu
    best = found.best
    return {
        "rate": found.rate,
        "p99_ms": best.summary.percentile(99.0) if best else None,
        "server_cpu_ms_per_request": cpu / max(1, count) * 1e3,
        "generator_cores": best.cpu["cores"] if best else None,
        "rows_per_batch": batch.get("rows"),
        "requests_per_batch": batch.get("requests"),
    }


def _print(tower: str, one: dict[str, Any]) -> None:
    for name in ("off", "on"):
        m = one[name]
        print(
            f"{tower:14} batching {name:3}: {m['rate'] or 0:7.0f}/s, p99 {m['p99_ms'] or 0:5.1f} ms, "
            f"{m['rows_per_batch'] or 0:5.1f} rows and {m['requests_per_batch'] or 0:4.1f} requests a batch, "
            f"generator {m['generator_cores'] or 0:.2f} cores"
        )
    if one["off"]["rate"] and one["on"]["rate"]:
        one["ratio"] = one["on"]["rate"] / one["off"]["rate"]
        told = servers.verdict(one["ratio"], FLOORS[tower]) if tower in FLOORS else ""
        print(f"{tower:14} on / off: {one['ratio']:.2f}x ({told})", flush=True)


if __name__ == "__main__":
    main()
