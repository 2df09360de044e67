"""What the serving benchmarks share: models, servers as processes of their own on one core, this process on another.

The generator (this process) is pinned to GENERATOR_CORE before it makes any thread, every server to SERVER_CORE.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.models import baseline_inputs
from tfctr.loadtest.collector import spared

SERVER_CORE, GENERATOR_CORE = 0, 1
PROTOCOLS = ("tfs gRPC", "KServe gRPC", "KServe HTTP, binary", "tfs REST, JSON")
MODEL = "ranker"
FEATURES = 40
BUDGET_MS = 30.0
TOWERS = {"256-128": (256, 128), "1024-512-256": (1024, 512, 256)}
ROOT = pathlib.Path(__file__).resolve().parent.parent
_START_S = 300.0


def arguments(description: str | None, **more: Any) -> argparse.ArgumentParser:
    """The options of every serving benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--quick", action="store_true", help="shorter runs: a few minutes, rougher figures")
    parser.add_argument("--models", metavar="FOLDER", help="keep models here between runs (default: a temporary one)")
    return parser


def pin_generator() -> None:
    """Before the first thread: what is started later inherits it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.sched_setaffinity(0, {GENERATOR_CORE % (os.cpu_count() or 1)})


@contextlib.contextmanager
def models_folder(given: str | None) -> Iterator[pathlib.Path]:
    if given is not None:
        pathlib.Path(given).mkdir(parents=True, exist_ok=True)
        yield pathlib.Path(given)
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield pathlib.Path(scratch)


def model_of(folder: pathlib.Path, tower: str, dense: str = "auto") -> tuple[pathlib.Path, pathlib.Path]:
    """(SavedModel, folder of versions with the bundle as 1) of the 40-feature model; made where they are not yet.

    Made in a process of its own, with all cores: the generator's has one, and no TensorFlow threads.
    """
    saved, served = folder / f"saved-{tower}", folder / f"served-{tower}" / MODEL
    if not (served / "1").is_dir():
        code = (
            "import sys; from benchmarks import serving_servers as s; s._make(sys.argv[1], sys.argv[2], sys.argv[3], "
            "sys.argv[4])"
        )
        subprocess.run(
            [sys.executable, "-c", code, str(saved), str(served), tower, dense], cwd=ROOT, check=True, env=_all_cores()
        )
    return saved, served


def _all_cores() -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


def _make(saved: str, served: str, tower: str, dense: str) -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    import tfctr
    from examples.models import SparseRanker

    if not pathlib.Path(saved).is_dir():
        SparseRanker(FEATURES, hidden=TOWERS[tower]).save(saved)
    pathlib.Path(served).mkdir(parents=True, exist_ok=True)
    tfctr.convert(saved, str(pathlib.Path(served) / "1"), dense=dense)


def bodies(port: int, rows: Sequence[int], seed: int = 0) -> list[Any]:
    """Serialised requests of the 40-feature model for the server at ``port``; one for each entry of ``rows``."""
    from tfctr.loadtest.bodies import prepare
    from tfctr.loadtest.fresh_ids import Markers

    made = [(baseline_inputs(FEATURES, n, seed + k), n, Markers()) for k, n in enumerate(rows)]
    return prepare(target(port), "serving_default", made)


def target(port: int) -> Any:
    from tfctr.loadtest.target import Target

    return Target("grpc", "tfs", "127.0.0.1", port, MODEL)


def way(server: Server, name: str, rows: Sequence[int]) -> tuple[Any, list[Any]]:
    """(channel, serialised requests) of one of PROTOCOLS."""
    from tfctr.loadtest.bodies import prepare
    from tfctr.loadtest.connecting import open_channel
    from tfctr.loadtest.fresh_ids import Markers
    from tfctr.loadtest.target import Target

    transport = "grpc" if name.endswith("gRPC") else "http"
    where = Target(transport, name.split()[0].lower(), "127.0.0.1", server.ports[transport], MODEL)
    made = [(baseline_inputs(FEATURES, n, k), n, Markers()) for k, n in enumerate(rows)]
    return open_channel(where), prepare(where, "serving_default", made)


def batches(server: Server) -> dict[str, float]:
    """Means of all batches since the server started: ``rows`` and ``requests``."""
    from tfctr.loadtest import server_metrics

    return server_metrics.achieved({}, server_metrics.read(f"http://127.0.0.1:{server.ports['http']}/metrics", MODEL))


@spared()
def until(opened: Any, requests: Sequence[Any], rate: float, done: threading.Event) -> tuple[Any, Any, dict[str, int]]:
    """Poisson load until ``done``: (moments due in ns of time.monotonic, latency in ms) of answers, and errors."""
    from tfctr.loadtest.channel import OK
    from tfctr.loadtest.clock import SystemClock
    from tfctr.loadtest.connections import Connections

    clock, due, found = SystemClock(), [time.monotonic_ns()], []
    errors: dict[str, int] = {}
    random = np.random.default_rng(1)

    def send(call: Any, number: int) -> None:
        answer = call(requests[number % len(requests)], False)
        found.append((due[number], time.monotonic_ns() - due[number]))
        if answer.code != OK:
            found.pop()
            errors[answer.code] = errors.get(answer.code, 0) + 1
            print(f"    {answer.code}: {answer.message}", file=sys.stderr)

    connections = Connections(opened, send, 256)
    number = 0
    while not done.is_set():
        clock.sleep_until(due[number])
        connections.give(number)
        due.append(due[number] + int(random.exponential(1e9 / rate)))
        number += 1
    connections.drain()
    moments, latency = np.array(found, np.int64).T
    return moments, latency / 1e6, errors


@spared()
def count_requests(opened: Any, requests: Sequence[Any], count: int, clients: int = 4) -> dict[str, Any]:
    """``count`` requests of ``clients`` in closed loop: latencies in the order of answers, errors, seconds."""
    from tfctr.loadtest.channel import OK

    latency: list[float] = []
    errors: dict[str, int] = {}
    numbers = itertools.count()

    def client() -> None:
        call = opened.connect()
        while (number := next(numbers)) < count:
            begin = time.perf_counter()
            answer = call(requests[number % len(requests)], False)
            if answer.code == OK:
                latency.append((time.perf_counter() - begin) * 1e3)
            else:
                errors[answer.code] = errors.get(answer.code, 0) + 1

    begin = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"latency_ms": latency, "errors": errors, "seconds": time.perf_counter() - begin}


def mixed_rows(least: int, most: int, count: int = 64) -> list[int]:
    return np.random.default_rng(7).integers(least, most + 1, count).tolist()


class Server:
    """A server process. ports: by name ("grpc", and of ours "http" and "admin")."""

    def __init__(self, process: subprocess.Popen[str], ports: dict[str, int]) -> None:
        self.process, self.ports = process, ports

    @property
    def pid(self) -> int:
        return self.process.pid

    def rss_mb(self) -> dict[str, float]:
        """Resident megabytes: anonymous and of files."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        values = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Rss"))
        return {name: int(value.split()[0]) / 1024 for name, value in values.items()}

    def cpu_s(self) -> float:
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def admin(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 120) -> Any:
        """A call on the admin port: GET without a body, else POST."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports['admin']}{path}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            return json.load(reply)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@contextlib.contextmanager
def stock(saved: pathlib.Path, decode: str = "numpy", inter_op: int = 1, threads: int = 2) -> Iterator[Server]:
    command = [sys.executable, "-m", "benchmarks.stock_server", str(saved), "--decode", decode]
    command += ["--inter-op", str(inter_op), "--threads", str(threads), "--core", str(SERVER_CORE)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    server = Server(process, {})
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if words[:1] != ["ready"]:
            raise SystemExit(f"the stock server did not start: {' '.join(command)}")
        server.ports["grpc"] = int(words[1])
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def bare(busy_ms: float) -> Iterator[int]:
    """Port of a gRPC server that keeps its core busy for so long and answers; on SERVER_CORE."""
    command = [sys.executable, "-m", "benchmarks.bare_server", f"{busy_ms:.3f}", "--core", str(SERVER_CORE)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield int(process.stdout.readline().split()[1])
        finally:
            process.stdin.close()


@contextlib.contextmanager
def ours(served: pathlib.Path, config: dict[str, Any] | None = None, log: str | None = None) -> Iterator[Server]:
    """`tfctr serve` with the configuration ``config`` (keys of docs/server.md), on SERVER_CORE."""
    ports = dict(zip(("grpc", "http", "admin"), _free_ports(3), strict=True))
    told = {"models": [{"name": MODEL, "path": str(served)}], **(config or {})}
    told["server"] = {f"{name}_port": port for name, port in ports.items()} | told.get("server", {})
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch) / "server.json"
        file.write_text(json.dumps(told))
        command = [sys.executable, "-m", "tfctr.cli.main", "serve", "--config", str(file)]
        with open(log or os.devnull, "w") as stderr:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=stderr, text=True, preexec_fn=_on_server_core
            )
        server = Server(process, ports)
        try:
            _wait_ready(server)
            yield server
        finally:
            server.stop()


def _on_server_core() -> None:
    os.sched_setaffinity(0, {SERVER_CORE})


def _free_ports(count: int) -> list[int]:
    import socket

    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_ready(server: Server) -> None:
    url = f"http://127.0.0.1:{server.ports['http']}/v2/health/ready"
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise SystemExit(f"`tfctr serve` ended with {server.process.returncode} before it was ready")
        try:
            with urllib.request.urlopen(url, timeout=1) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("`tfctr serve` was not ready in time")


@contextlib.contextmanager
def channel(port: int) -> Iterator[Any]:
    from tfctr.loadtest.grpc_channel import GrpcChannel

    opened = GrpcChannel(target(port))
    try:
        yield opened
    finally:
        opened.close()


def search(
    port: int, requests: Sequence[Any], start: float, quick: bool, p99_ms: float = BUDGET_MS, lowest: float = 10.0
) -> Any:
    """The highest Poisson rate from ``lowest`` on at which ``p99_ms`` holds; a line for each run."""
    from tfctr.loadtest.plan import Plan, carry_out
    from tfctr.loadtest.runs import RunOptions
    from tfctr.loadtest.search import Budget, SearchOptions

    plan = Plan(
        duration_s=5.0 if quick else 12.0,
        run=RunOptions(warmup_s=1.0, timing_every=0),
        budget=Budget(p99_ms),
        search=SearchOptions(start=start, lowest=lowest, precision=0.06 if quick else 0.03, confirm=1 if quick else 3),
        least_requests=300 if quick else 1000,
    )
    with channel(port) as opened:
        warm(opened, requests)
        return carry_out(opened, requests, plan, _tell).found


def warm(opened: Any, requests: Sequence[Any], seconds: float = 2.0) -> None:
    from tfctr.loadtest.runs import RunOptions, closed_loop

    run = closed_loop(opened, requests, 2, seconds, RunOptions(0.0, timing_every=0))
    if run.summary.failed:
        raise SystemExit(f"the server fails: {run.summary.errors} {run.summary.messages}")


def idle(opened: Any, requests: Sequence[Any], seconds: float) -> Any:
    """One client, one request at a time."""
    from tfctr.loadtest.runs import RunOptions, closed_loop

    return closed_loop(opened, requests, 1, seconds, RunOptions(0.5, timing_every=0))


def steady(opened: Any, requests: Sequence[Any], rate: float, seconds: float, seed: int = 0) -> Any:
    """One open-loop run."""
    from tfctr.loadtest.plan import Plan, open_run
    from tfctr.loadtest.runs import RunOptions

    return open_run(opened, requests, Plan(duration_s=seconds, run=RunOptions(1.0, timing_every=0)), rate, seed)


def _tell(run: Any, missed: str | None) -> None:
    s = run.summary
    print(
        f"    {run.rate:7.1f}/s: p50 {s.percentile(50.0):6.1f} ms, p99 {s.percentile(99.0):7.1f} ms, "
        f"generator {run.cpu['cores']:.2f} cores  {missed or 'kept'}",
        file=sys.stderr,
        flush=True,
    )


def write(path: str | None, figures: dict[str, Any]) -> None:
    if path:
        pathlib.Path(path).write_text(json.dumps(figures, indent=2, default=str) + "\n")


def verdict(value: float, floor: float, at_most: bool = False) -> str:
    held = value <= floor if at_most else value >= floor
    return f"floor {floor:g}: {'held' if held else 'MISSED'}"
