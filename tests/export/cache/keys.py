"""Small caches for tests: keys, builds that count, and a second process."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
KEY = {"graph": "0" * 64, "recipe": {"precision": "fp16"}}


def key(number: int) -> dict[str, Any]:
    return {**KEY, "number": number}


class Builder:
    """A build that writes ``files`` and counts its calls."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = files if files is not None else {"tower.onnx": b"onnx" * 100, "report.json": b"{}"}
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def no_build(folder: Path) -> None:
    raise AssertionError("built though it is there")


def start(root: Path, body: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that runs ``body``, which knows ``cache`` (on ``root``), ``KEY``, ``key``, ``say``, ``wait``,
    ``arguments``: ``say`` prints a line, ``wait`` blocks until one is given (see ``tell``).
    """
    program = f"""
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from export.cache.store import CompileCache
from tests.export.cache.keys import KEY, Builder, key
arguments = sys.argv[1:]
def say(what):
    print(json.dumps(what), flush=True)
def wait():
    assert sys.stdin.readline()
with CompileCache({str(root)!r}, note=lambda line: None) as cache:
{textwrap.indent(textwrap.dedent(body), "    ")}
"""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def hear(process: subprocess.Popen[str]) -> Any:
    """The next line that it says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "it ended"
    return json.loads(line)


def tell(process: subprocess.Popen[str]) -> None:
    """Lets its ``wait`` go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str]) -> None:
    """Waits for its end, which has to be a good one."""
    assert process.wait(300) == 0
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def kill(process: subprocess.Popen[str]) -> None:
    """Ends it as `kill -9` does."""
    process.kill()
    process.wait(300)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def in_child(act: Callable[[], Any], prepare: Callable[[], None] | None = None) -> Any:
    """What ``act`` returns (JSON) in a forked child, after ``prepare``: limits and users of a process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if prepare is not None:
                prepare()
            os.write(write, json.dumps(act()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(text)
