"""A long run with ids that no request had before: latency and memory must stay as they were.

Run: python -m benchmarks.bench_serving_soak [--quick] [--json FILE] [--models FOLDER]

100,000 requests (--quick: 20,000) of 20 rows to `tfctr serve`, four clients in closed loop. The model has 40 features
whose ids are hashed into tables, so that any id is legal; a tenth of the ids of every request are new.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np

from benchmarks import serving_servers as servers

FLOOR = 1.10
ROWS, UNSEEN = 20, 0.1
_WARMUP = 2000  # requests
_PART = 1000


def main() -> None:
    parser = servers.arguments(__doc__)
    parser.add_argument("--requests", type=int, help="default: 100000, with --quick 20000")
    args = parser.parse_args()
    servers.pin_generator()
    count = args.requests or (20_000 if args.quick else 100_000)
    with servers.models_folder(args.models) as folder:
        served = _model(folder)
        figures = _soak(served, count)
    print(f"{count} requests, {figures['per_s']:.0f}/s, failed: {figures['errors'] or 'none'}")
    told = servers.verdict(figures["ratio"], FLOOR, at_most=True)
    print(
        f"p50 of the first thousand {figures['first_p50_ms']:.3f} ms, of the last {figures['last_p50_ms']:.3f} ms: "
        f"{figures['ratio']:.3f}x ({told})"
    )
    print(
        "RSS MB (anonymous + files): " + ", ".join(f"{m['RssAnon']:.0f}+{m['RssFile']:.0f}" for m in figures["rss_mb"])
    )
    servers.write(args.json, figures)


def _soak(served: pathlib.Path, count: int) -> dict[str, Any]:
    from tfctr.bundle.reader import read_manifest
    from tfctr.loadtest.bodies import prepare
    from tfctr.loadtest.traffic import TrafficOptions, generated

    info = read_manifest(served / "1")["signatures"]["serving_default"]
    options = TrafficOptions(count=64, rows=(ROWS, ROWS), unseen=UNSEEN)
    with servers.ours(served) as server:
        requests = prepare(servers.target(server.ports["grpc"]), "serving_default", generated(info, options))
        with servers.channel(server.ports["grpc"]) as opened:
            servers.count_requests(opened, requests, _WARMUP)
            memory, parts, errors, seconds = [server.rss_mb()], [], {}, 0.0
            for _ in range(10):
                part = servers.count_requests(opened, requests, count // 10)
                parts.append(part["latency_ms"])
                seconds += part["seconds"]
                for code, number in part["errors"].items():
                    errors[code] = errors.get(code, 0) + number
                memory.append(server.rss_mb())
                print(f"  {len(parts) * 10:3}%  p50 {np.median(parts[-1]):.3f} ms  {memory[-1]}", flush=True)
    first, last = (float(np.median(p)) for p in (parts[0][:_PART], parts[-1][-_PART:]))
    return {
        "requests": count, "errors": errors, "per_s": count / seconds, "first_p50_ms": first, "last_p50_ms": last,
        "ratio": last / first, "rss_mb": memory, "p50_by_tenth_ms": [float(np.median(p)) for p in parts],
    }  # fmt: skip


def _model(folder: pathlib.Path) -> pathlib.Path:
    served = folder / "served-hashed" / servers.MODEL
    if not (served / "1").is_dir():
        code = "import sys; from benchmarks import bench_serving_soak as s; s._make(sys.argv[1], sys.argv[2])"
        subprocess.run(
            [sys.executable, "-c", code, str(folder / "saved-hashed"), str(served)], cwd=servers.ROOT, check=True
        )
    return served


def _make(saved: str, served: str) -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    import tensorflow as tf

    import tfctr
    from examples.models import SparseRanker

    class HashedRanker(SparseRanker):
        """Ids of any size: modulo the rows of their table."""

        def serve(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
            rows = self.tables[0].shape[0]
            return super().serve(**{n: t % rows if n.endswith("_values") else t for n, t in x.items()})

    HashedRanker(servers.FEATURES).save(saved)
    pathlib.Path(served).mkdir(parents=True, exist_ok=True)
    tfctr.convert(saved, str(pathlib.Path(served) / "1"), dense="tensorflow")


if __name__ == "__main__":
    main()
