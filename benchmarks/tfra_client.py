"""TensorFlow Recommenders Addons as a contestant: a worker in .venv-tfra (tools/setup_tfra.sh), one JSON line per call.

The worker waits while others are measured and times its own calls, so measurements interleave as in one process.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

from benchmarks.embedding_duel import HUGE

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-tfra" / "bin" / "python"


class TfraWorker:
    """A running worker; ``call("lookup", batch=3)`` returns its answer. A context manager."""

    def __init__(self, threads: int = 1, huge_pages: bool = False, clock: str = "wall"):
        environment = {
            "PATH": "/usr/bin:/bin",
            "TF_USE_LEGACY_KERAS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
        } | ({"GLIBC_TUNABLES": HUGE} if huge_pages else {})
        self._process = subprocess.Popen(
            [str(PYTHON), "-m", "benchmarks.tfra_worker", "--threads", str(threads), "--clock", clock],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.versions = self.call("versions")

    def call(self, what: str, **arguments: Any) -> Any:
        """Runs one command in the worker; RuntimeError with the worker's words if it failed."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            _, said = self._process.communicate()
            raise RuntimeError(f"TFRA's worker ended: {said[-2000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"TFRA's worker: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> TfraWorker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def available() -> bool:
    """Whether the environment is there; says on standard output what is left out where it is not."""
    if PYTHON.exists():
        return True
    print("TFRA: left out, there is no .venv-tfra (tools/setup_tfra.sh makes it)", flush=True)
    return False
