"""Builds TensorRT plans from an ONNX tower: strongly typed, one plan per target.

TensorRT reports through its logger: a null from the parser or builder says nothing, so the last errors and warnings
of the log are part of every error raised here. The library keeps one logger per process, hence one lock: builds take
turns.

A build that fails with REFIT leaves the process unable to build (seen with tensorrt_rtx 1.7.1: "Target SM 75 is not
found"), so such builds run in a process of their own. Plans are not reproducible: the same model gives plans that
differ in a few bytes; never compare or hash them for identity.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from export.tensorrt.library import Library, load, parse_targets
from export.tensorrt.options import BuildOptions, input_shapes, recipe
from tfctr.engines import tensorrt_log
from tfctr.errors import TfctrError, UsageError

_LOCK = threading.Lock()


class BuildError(TfctrError):
    """TensorRT can't build the plan: names the target and quotes the last messages of its log."""


@dataclasses.dataclass(frozen=True)
class Plans(Mapping[str, bytes]):
    """Plan by target ("sm89"). seconds: of each build. warnings: what the library said, each once. recipes: by target,
    for cache keys. isolated: whether a process of its own built them.
    """

    plans: dict[str, bytes]
    seconds: dict[str, float]
    warnings: tuple[str, ...]
    recipes: dict[str, dict[str, Any]]
    isolated: bool = False

    def __getitem__(self, target: str) -> bytes:
        return self.plans[target]

    def __iter__(self) -> Iterator[str]:
        return iter(self.plans)

    def __len__(self) -> int:
        return len(self.plans)


def build(
    model: onnx.ModelProto,
    targets: str | Sequence[str],
    options: BuildOptions | None = None,
    *,
    library: Library | None = None,
    isolate: bool | None = None,
) -> Plans:
    """A plan per target (see ``parse_targets``). isolate: build in a process of its own; None: where a flag is risky.

    Raises UsageError: no library, an unknown target, an open dimension without sizes. BuildError: anything that
    TensorRT refuses, with its words.
    """
    options = options or BuildOptions()
    library = library or load()
    names = parse_targets(targets, library)
    for profile in options.profiles:
        input_shapes(model, profile)
    apart = bool(options.flags) if isolate is None else isolate
    if apart:
        return _build_apart(model, names, options, library)
    with _LOCK:
        return _build_here(model, names, options, library)


def _build_here(model: onnx.ModelProto, names: Sequence[str], options: BuildOptions, library: Library) -> Plans:
    log = tensorrt_log.logger(library.module)
    serialized = model.SerializeToString(deterministic=True)
    plans, seconds, warnings = {}, {}, []
    for name in names:
        mark = log.record.mark()
        start = time.perf_counter()
        plans[name] = _build_one(model, serialized, name, options, library, log, mark)
        seconds[name] = time.perf_counter() - start
        warnings += [m.text for m in log.record.since(mark) if m.severity == "WARNING"]
    recipes = {name: recipe(library, name, options) for name in names}
    return Plans(plans, seconds, tuple(dict.fromkeys(warnings)), recipes)


def _build_one(
    model: onnx.ModelProto, serialized: bytes, target: str, options: BuildOptions, library: Library, log: Any, mark: int
) -> bytes:
    trt = library.module
    builder = trt.Builder(log)
    # From TensorRT 11 on every network is strongly typed and the flag says nothing; it may go.
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if typed is None else 1 << int(typed))
    parser = trt.OnnxParser(network, log)
    if not parser.parse(serialized):
        said = [parser.get_error(k).desc() for k in range(parser.num_errors)]
        raise _error("does not take the tower", target, library, log.record.quote(mark, tuple(said)))
    config = builder.create_builder_config()
    if library.chooses_target:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, target.upper()), 0)
    for flag in options.flags:
        config.set_flag(getattr(trt.BuilderFlag, flag))
    if options.optimisation_level is not None:
        config.builder_optimization_level = options.optimisation_level
    if options.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    for profile in options.profiles:
        made = builder.create_optimization_profile()
        for name, (least, best, most) in input_shapes(model, profile).items():
            made.set_shape(name, least, best, most)
        if config.add_optimization_profile(made) < 0:
            raise _error("refuses a batch profile", target, library, log.record.quote(mark))
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise _error("builds no plan", target, library, log.record.quote(mark))
    return bytes(plan)


def _error(what: str, target: str, library: Library, words: str) -> BuildError:
    return BuildError(f"{library.label} {what} for {target}: {words}")


def _build_apart(model: onnx.ModelProto, names: Sequence[str], options: BuildOptions, library: Library) -> Plans:
    """In a new Python process, which gets and gives pickles through files of a private folder."""
    with tempfile.TemporaryDirectory(prefix="tfctr_plan_") as folder:
        given, made = Path(folder, "given"), Path(folder, "made")
        request = {
            "model": model.SerializeToString(),
            "targets": list(names),
            "options": options,
            "library": library.name,
        }
        given.write_bytes(pickle.dumps(request))
        command = [sys.executable, "-m", "export.tensorrt.worker", str(given), str(made)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=options.timeout_s, env=_environment(), check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{library.label} was still building after {options.timeout_s:g} s") from error
        if not made.is_file():
            tail = " ".join(done.stderr.split())[-500:]
            raise BuildError(f"{library.label} ended its process with {done.returncode} and no plan: {tail}")
        answer = pickle.loads(made.read_bytes())
    if isinstance(answer, Plans):
        return dataclasses.replace(answer, isolated=True)
    kind, text = answer
    raise (UsageError if kind == "UsageError" else BuildError)(text)


def _environment() -> dict[str, str]:
    """With this package on the path, wherever the caller runs."""
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, known] if known else [root])}
