"""The command itself, in a process of its own: ready line, a stderr that nobody reads, signals under load."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import grpc

from tests.serving.server.gate import until
from tests.serving.server.grpc_serving import MODEL, SLOW
from tests.serving.server.test_server import LOOPS, PREDICT, body, fetch, slow

START_S = 240


@contextlib.contextmanager
def served(grpc_models, models: tuple[str, ...], *options: str):
    """The process and its line of endpoints. Its stderr is a pipe without a reader."""
    (status,) = grpc_models.manager.status(MODEL)
    folder = Path(status.versions[0].describe["folder"]).parent.parent
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tfctr.cli.main", "serve", *(str(folder / one) for one in models), "--json"]
    ports = ["--grpc-port", "0", "--http-port", "0", "--admin-port", "0"]
    process = subprocess.Popen([*command, *ports, *options], stdout=subprocess.PIPE, stderr=writer, text=True)
    os.close(writer)
    end = threading.Timer(START_S, process.kill)
    end.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"it ended with {process.wait()}"
        yield process, json.loads(line)
    finally:
        end.cancel()
        process.kill()
        process.wait()


def test_sigterm_under_load_loses_no_answer(grpc_models):
    """Requests without a pause from four clients, a slow one inside, stderr closed: everything begun is answered."""
    ended: Counter[str] = Counter()
    with served(grpc_models, (MODEL, SLOW), "--log-requests", "all") as (process, where):
        assert where["ready"] is True and where["models"] == {MODEL: [2], SLOW: [1]}

        def client() -> None:
            with grpc.insecure_channel(where["grpc"]) as channel:
                call, message = channel.unary_unary(PREDICT), body()
                while True:
                    try:
                        call(message, timeout=START_S)
                        ended["OK"] += 1
                    except grpc.RpcError as error:
                        ended[error.code().name] += 1
                        return

        clients = [threading.Thread(target=client) for _ in range(4)]
        for one in clients:
            one.start()
        until(lambda: ended["OK"] or not any(one.is_alive() for one in clients))
        with grpc.insecure_channel(where["grpc"]) as channel:
            # The executor runs them one after the other: the last one is still inside when the signal comes.
            inside = [channel.unary_unary(PREDICT).future(slow(), timeout=START_S) for _ in range(4)]
            inside[0].result()
            assert fetch(f"{where['http']}/v2/health/ready")[0] == 200
            process.send_signal(signal.SIGTERM)
            assert [len(one.result()) > 0 for one in inside] == [True] * 4
        for one in clients:
            one.join()
        assert process.wait(START_S) == 0
    assert ended.pop("OK") > 0
    assert set(ended) <= {"UNAVAILABLE"}, "a client is refused or answered, never cut off"


def test_a_second_signal_ends_at_once(grpc_models):
    with served(grpc_models, (SLOW,)) as (process, where), grpc.insecure_channel(where["grpc"]) as channel:
        inside = channel.unary_unary(PREDICT).future(slow(1000 * LOOPS), timeout=600)
        grpc.channel_ready_future(channel).result(START_S)
        pause = threading.Event()
        while not _runs(where["admin"]):
            pause.wait(0.02)
        process.send_signal(signal.SIGTERM)
        while _answers(where["http"]):
            pause.wait(0.02)
        assert process.poll() is None, "it waits for the request inside"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM
        assert inside.exception() is not None


def _runs(url: str) -> bool:
    """Whether an executor of the slow model is at work."""
    told = json.loads(fetch(f"{url}/v1/models/{SLOW}")[1])
    return any(one["running"] for one in told["versions"][0]["describe"]["executors"])


def _answers(url: str) -> bool:
    try:
        fetch(f"{url}/v2/health/live")
    except OSError:
        return False
    return True
