"""Version swaps under load: failed answers, p99 beside the quiet part, stalls of Python threads, memory.

Run: python -m benchmarks.bench_serving_swaps [--quick] [--json FILE] [--models FOLDER]

`tfctr serve` answers at half of its highest rate while its model is reloaded again and again through the admin port;
p99 of requests due during reloads is set beside that of the same run's quiet parts. A second part loads in a process
where another Python thread notes how long it did not get its turn. Memory: RSS after 30 reloads against after 5.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

from benchmarks import serving_servers as servers

ROWS = 100
FLOORS = {"p99_ratio": 1.5, "stall_ms": 5.0, "rss_growth": 0.05}
_QUIET_S = 1.0  # after each reload


def main() -> None:
    if sys.argv[1:2] == ["--stalls"]:
        _stalls(sys.argv[2], int(sys.argv[3]))
        return
    parser = servers.arguments(__doc__)
    parser.add_argument("--swaps", type=int, help="default: 100, with --quick 30")
    parser.add_argument("--rate", type=float, help="default: half of the highest rate, searched first")
    args = parser.parse_args()
    servers.pin_generator()
    swaps = args.swaps or (30 if args.quick else 100)
    with servers.models_folder(args.models) as folder:
        _, served = servers.model_of(folder, "256-128")
        figures = _under_load(served, swaps, args.rate, args.quick)
        figures["stall"] = _stall_process(served, 5 if args.quick else 20)
    _print(figures)
    servers.write(args.json, figures)


def _under_load(served: pathlib.Path, swaps: int, rate: float | None, quick: bool) -> dict[str, Any]:
    with servers.ours(served) as server:
        requests = servers.bodies(server.ports["grpc"], [ROWS] * 32)
        if rate is None:
            found = servers.search(server.ports["grpc"], requests, 200.0, True)
            if found.rate is None:
                raise SystemExit(f"no rate keeps {servers.BUDGET_MS} ms")
            rate = found.rate / 2
        with servers.channel(server.ports["grpc"]) as opened:
            servers.warm(opened, requests)
            return _swap(server, opened, requests, swaps, rate) | {"rate": rate, "swaps": swaps}


def _swap(server: servers.Server, opened: Any, requests: Any, swaps: int, rate: float) -> dict[str, Any]:
    windows: list[tuple[int, int]] = []
    memory: list[dict[str, float]] = []
    failures: list[str] = []
    done = threading.Event()

    def reload_all() -> None:
        for _ in range(swaps):
            begin = time.monotonic_ns()
            try:
                server.admin(f"/v1/models/{servers.MODEL}:reload", {})
            except OSError as error:
                failures.append(str(error))
            windows.append((begin, time.monotonic_ns()))
            time.sleep(_QUIET_S)
            memory.append(server.rss_mb())
        done.set()

    thread = threading.Thread(target=reload_all)
    thread.start()
    due, latency, errors = servers.until(opened, requests, rate, done)
    thread.join()
    during = np.zeros(len(due), bool)
    for begin, end in windows:
        during |= (due >= begin) & (due < end)
    quiet, swapping = np.percentile(latency[~during], 99), np.percentile(latency[during], 99)
    return {
        "requests": len(due) + sum(errors.values()),
        "errors": errors,
        "failed_reloads": failures,
        "reload_s": float(np.median([end - begin for begin, end in windows])) / 1e9,
        "quiet_p99_ms": float(quiet),
        "swapping_p99_ms": float(swapping),
        "all_p99_ms": float(np.percentile(latency, 99)),
        "p99_ratio": float(swapping / quiet),
        "rss_mb": memory,
        "rss_growth": _growth(memory),
    }


def _growth(memory: list[dict[str, float]]) -> float | None:
    """RSS after 30 reloads over that after 5, minus one."""
    if len(memory) < 30:
        return None
    after = [sum(v for name, v in one.items() if name in ("RssAnon", "RssFile")) for one in memory]
    return after[29] / after[4] - 1


def _stall_process(served: pathlib.Path, loads: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.bench_serving_swaps", "--stalls", str(served), str(loads)]
    done = subprocess.run(command, cwd=servers.ROOT, check=True, stdout=subprocess.PIPE, text=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _stalls(served: str, loads: int) -> None:
    """In a process of its own: a thread that wakes every millisecond while another reloads.

    What it oversleeps without any load is the machine's own part; both are told.
    """
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    from tfctr.serving.versions import ModelManager, ModelSpec

    spec = ModelSpec(name=servers.MODEL, base_path=pathlib.Path(served))
    manager = ModelManager([spec])
    stop, late, loading = threading.Event(), ([], []), [False]

    def tick() -> None:
        last = time.monotonic_ns()
        while not stop.is_set():
            time.sleep(0.001)
            now = time.monotonic_ns()
            late[loading[0]].append((now - last) / 1e6 - 1.0)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in range(loads):
        time.sleep(1.0)
        loading[0] = True
        manager.reload(servers.MODEL)
        loading[0] = False
    stop.set()
    thread.join()
    manager.close(1.0)
    quiet, during = (np.array(times) for times in late)
    print(
        json.dumps(
            {
                "loads": loads,
                "longest_ms": float(during.max()),
                "p99.9_ms": float(np.percentile(during, 99.9)),
                "quiet_longest_ms": float(quiet.max()),
            }
        )
    )


def _print(figures: dict[str, Any]) -> None:
    failed = sum(figures["errors"].values())
    growth = figures["rss_growth"]
    print(f"{figures['swaps']} swaps at {figures['rate']:.0f}/s, {figures['reload_s']:.2f} s each")
    print(f"failed answers: {failed} of {figures['requests']} ({servers.verdict(failed, 0, at_most=True)})")
    print(f"failed reloads: {len(figures['failed_reloads'])} {figures['failed_reloads'][:1]}")
    print(
        f"p99: quiet {figures['quiet_p99_ms']:.1f} ms, during swaps {figures['swapping_p99_ms']:.1f} ms: "
        f"{figures['p99_ratio']:.2f}x ({servers.verdict(figures['p99_ratio'], FLOORS['p99_ratio'], at_most=True)})"
    )
    stall = figures["stall"]
    print(
        f"longest stall of another Python thread: {stall['longest_ms']:.1f} ms during loads, "
        f"{stall['quiet_longest_ms']:.1f} ms without "
        f"({servers.verdict(stall['longest_ms'], FLOORS['stall_ms'], at_most=True)})"
    )
    if growth is not None:
        print(
            f"RSS, 30 reloads against 5: {growth:+.1%} ({servers.verdict(growth, FLOORS['rss_growth'], at_most=True)})"
        )


if __name__ == "__main__":
    main()
