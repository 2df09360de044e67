"""Functions run in a process of their own: what they measure of their process is theirs alone."""

import importlib
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300  # far above what any of them takes on a busy machine


def in_fresh_process(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Result (or exception) of a module's function in a new interpreter.

    Memory of a test run's own process means little: garbage of earlier tests is freed, and threads that they left
    behind allocate, just while a test measures.
    """
    # pytest gives modules names of its own; the new interpreter knows them by their place in the repository.
    module = ".".join(Path(function.__code__.co_filename).relative_to(ROOT).with_suffix("").parts)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_call, module, function.__name__, arguments, options).result(LIMIT_S)


def _call(module: str, name: str, arguments: Any, options: Any) -> Any:
    return getattr(importlib.import_module(module), name)(*arguments, **options)


def private_bytes() -> int:
    """Memory of this process that is no file's: anonymous pages and those of files in memory."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def mappings_of(path: str | Path) -> int:
    """How many ranges of this process's addresses are of files below a path."""
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())
