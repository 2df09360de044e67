"""The serving section of README.md as it is written: the server, curl, both official clients, the other commands."""

import fcntl
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import tensorflow as tf

import tfctr
from tests.e2e.test_readme import Ranker

READY_SECONDS = 300


@pytest.fixture(scope="module")
def section(repo_root: pathlib.Path) -> str:
    text = (repo_root / "README.md").read_text(encoding="utf-8")
    return text[text.index("\n## Serve\n") : text.index("\n## What it fuses")]


def blocks(text: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for name, code in found if name == language]


def lines(text: str, command: str) -> list[list[str]]:
    """Command lines of the blocks without a language, as words."""
    found = [line for block in blocks(text, "") for line in block.splitlines() if line.startswith(f"{command} ")]
    return [shlex.split(line, comments=True) for line in found]


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """The ports are one run's at a time: another worker process would find them free before our server has them."""
    end = time.monotonic() + 2 * READY_SECONDS
    with (pathlib.Path(tempfile.gettempdir()) / f"tfctr-readme-ports-{os.getuid()}").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    pytest.skip("another run of the tests keeps the ports of the README")
                time.sleep(0.2)
        yield


@pytest.fixture(scope="module")
def ports(alone: None) -> dict[str, int]:
    """The ports that the README has, where they are free: other ports may be anything's."""
    import socket

    for port in (8500, 8501, 8502):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                pytest.skip(f"port {port} is taken on this machine: {error}")
    return {"grpc": 8500, "http": 8501, "admin": 8502}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, section: str, ports: dict[str, int]):
    """The README's server over its model; the folder in which it runs."""
    folder = tmp_path_factory.mktemp("readme_serving")
    model = Ranker()
    tf.saved_model.save(model, str(folder / "model"), signatures=model.score)
    tfctr.convert(folder / "model", folder / "bundle")
    (words,) = lines(section, "tfctr serve")
    process = subprocess.Popen(
        [sys.executable, "-m", "tfctr.cli.main", *words[1:]],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert "8500" in ready and "8501" in ready, (ready, process.poll())
        yield folder
    finally:
        process.terminate()
        _, told = process.communicate(timeout=READY_SECONDS)
    assert process.returncode == 0, told


def curl(words: list[str]) -> str:
    """Runs a curl command line; without curl, what it would send by urllib."""
    if shutil.which("curl"):
        done = subprocess.run([words[0], "-sSf", *words[1:]], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout
    data = words[words.index("-d") + 1].encode() if "-d" in words else None
    with urllib.request.urlopen(urllib.request.Request(words[-1], data=data), timeout=60) as answer:
        return answer.read().decode()


def test_curl(served: pathlib.Path, section: str) -> None:
    answers = [curl(words) for words in lines(section, "curl")]
    assert len(answers) == 3
    assert '"predictions"' in answers[0]
    assert "# TYPE" in answers[2] and 'model="bundle"' in answers[2] or 'model_name="bundle"' in answers[2]


def test_official_clients(served: pathlib.Path, section: str) -> None:
    clients = blocks(section, "python")
    assert len(clients) == 2
    assert all(code.count("timeout=0.05)") == 1 for code in clients)
    clients = [code.replace("timeout=0.05)", "timeout=60)") for code in clients]  # of this machine while others work
    answers = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=READY_SECONDS)
        for code in clients
    ]
    for answer in answers:
        assert answer.returncode == 0, answer.stderr
    assert answers[0].stdout == answers[1].stdout  # the same scores by both protocols


def test_admin_and_loadtest(served: pathlib.Path, section: str, monkeypatch, capfd) -> None:
    from tfctr.cli.main import main

    monkeypatch.chdir(served)
    status, rollback = lines(section, "tfctr admin")
    assert main(status[1:]) == 0
    assert "bundle" in capfd.readouterr().out
    assert main(rollback[1:]) != 0  # there was none before
    assert "bundle" in capfd.readouterr().err
    (load,) = lines(section, "tfctr loadtest")
    assert main(
        [
            *load[1:],
            "--duration",
            "0.5",
            "--warmup",
            "0.1",
            "--max-rate",
            "20",
            "--start-rate",
            "10",
            "--min-requests",
            "20",
        ]
    ) in (0, 6)
    assert (served / "load.html").exists()
