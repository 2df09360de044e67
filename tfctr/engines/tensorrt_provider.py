"""Registers the provider ``tensorrt`` with the native library, which calls it back for every engine and every run."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfctr.engines import native, providers, tensorrt_cuda
from tfctr.engines.tensorrt_engine import Settings, TensorRTEngine
from tfctr.engines.tensorrt_plan import Plan
from tfctr.errors import UsageError

_lock = threading.Lock()
_registered = False


def register() -> None:
    """Makes ``provider: "tensorrt"`` known to the op and to ``open_engine``; once per process."""
    global _registered
    with _lock:
        if not _registered:
            native.register_engine_provider("tensorrt", open_engine)
            _registered = True


def open_engine(spec: Mapping[str, Any]) -> TensorRTEngine:
    """A warm engine from the plan for this machine's GPU. spec: as ``register_engine_provider`` gives it.

    Raises UsageError: no library, or no plan for this GPU. Else what ``Plan`` and ``TensorRTEngine`` raise.
    """
    settings = Settings.of(spec["options"], "engine")
    gpu = tensorrt_cuda.gpu()
    plans = {file["role"]: file["path"] for file in spec["files"] if file["role"].startswith(providers.PLAN)}
    path = plans.get(f"{providers.PLAN}{gpu.target}")
    if path is None:
        there = ", ".join(sorted(role.removeprefix(providers.PLAN) for role in plans)) or "none"
        raise UsageError(f"no plan for this GPU ({gpu.name}, {gpu.target}); there are plans for: {there}")
    trt = _module(settings.library)
    # The native library puts the engine's label before every message.
    plan = Plan(trt, gpu, Path(path).read_bytes(), label=f"plan for {gpu.target}", built=settings.version)
    engine = TensorRTEngine(plan, spec["inputs"], spec["outputs"], settings)
    try:
        engine.warm_up()
    except BaseException:
        engine.close()  # what is on the GPU is nobody's otherwise
        raise
    return engine


def _module(name: str) -> Any:
    wanted = providers.tensorrt_module({"engine": {"name": name}})
    try:
        return importlib.import_module(wanted)
    except (ImportError, OSError, RuntimeError) as error:
        raise UsageError(f"{wanted} does not load: {error}") from error
