"""Which engine providers run on this machine, why not, and making them ready.

A reason is one line without the provider's name: "the package openvino is not installed: ...". It is what a session
logs when it takes a bundle's fallback, and what ``tfctr doctor`` shows.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from typing import Any

from tfctr.engines import isa, openvino_library, tensorrt_cuda
from tfctr.errors import UsageError

PROVIDERS = ("tensorflow", "openvino", "tensorrt")
TENSORRT = ("tensorrt", "tensorrt_rtx")  # in the order of preference, where a plan does not say which
PLAN = "plan:"
_INSTALL = {"tensorrt": "pip install tensorrt", "tensorrt_rtx": "pip install tensorrt-rtx-cu13"}
# Distributions that may hold a module; the CUDA release may be part of the name.
_DISTRIBUTIONS = {
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "tensorrt_rtx": ("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx"),
}


def why_not(provider: str, entry: Mapping[str, Any] | None = None) -> str:
    """Why ``provider`` does not run on this machine, or not what ``entry`` needs of it; "" where it does.

    entry: a signature's ``dense`` of a bundle's manifest: its precision, the engine that built its files, its plans.
    Imports no engine; asks the CUDA driver where there is one.

    Raises UsageError for a provider that does not exist.
    """
    wanted = entry or {}
    if provider == "tensorflow":
        return ""
    if provider == "openvino":
        return _why_not_openvino(wanted)
    if provider == "tensorrt":
        return _why_not_tensorrt(wanted)
    raise UsageError(f"no provider {provider!r}; there is: {', '.join(PROVIDERS)}")


def load(provider: str, entry: Mapping[str, Any] | None = None) -> None:
    """Makes ``provider`` ready to open engines in this process; once, whoever calls.

    Raises:
      UsageError: it does not run here (:func:`why_not`), or there is no such provider.
      VersionError: OpenVINO is installed in another version than tfctr was built for; names both.
      InternalError: tfctr's library for it is missing or does not load.
    """
    if provider == "openvino":
        openvino_library.load()
    reason = why_not(provider, entry)
    if reason:
        raise UsageError(f"provider {provider}: {reason}")
    if provider == "tensorrt":
        from tfctr.engines import tensorrt_provider

        tensorrt_provider.register()


def version(module: str) -> str | None:
    """Version of an engine's Python package without importing it; None where it is not installed."""
    if not _installed(module):
        return None
    for name in _DISTRIBUTIONS.get(module, (module,)):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def plan_targets(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Targets ("sm89") that a manifest's ``dense`` has plans for."""
    roles = [str(file.get("role", "")) for file in entry.get("files", ())]
    return tuple(role.removeprefix(PLAN) for role in roles if role.startswith(PLAN))


def tensorrt_module(entry: Mapping[str, Any]) -> str:
    """Python module that runs the plans of ``entry``: the one that built them, else the one installed."""
    built = (entry.get("engine") or {}).get("name")
    if built in TENSORRT:
        return str(built)
    return next((name for name in TENSORRT if _installed(name)), TENSORRT[0])


def _why_not_openvino(entry: Mapping[str, Any]) -> str:
    reason = openvino_library.why_not().removeprefix("provider openvino: ")
    if reason:
        return reason
    if entry.get("precision") == "bf16" and not isa.supports_bf16():
        return f"bf16 needs a CPU with avx512_bf16 or amx_bf16; this one has {isa.cpu_isa()}"
    return ""


def _why_not_tensorrt(entry: Mapping[str, Any]) -> str:
    module = tensorrt_module(entry)
    here = version(module)
    built = (entry.get("engine") or {}).get("version") if plan_targets(entry) else None
    if here is None:
        return f"the package {module} is not installed: {_INSTALL[module]}{_same(built)}"
    if built and here != built:
        return f"its plans are built by {module} {built}, installed is {here}; convert again, or install that version"
    try:
        gpu = tensorrt_cuda.gpu()
    except tensorrt_cuda.CudaError as error:
        return str(error)
    targets = plan_targets(entry)
    if targets and gpu.target not in targets:
        return f"no plan for this GPU ({gpu.name}, {gpu.target}); the bundle has plans for {', '.join(targets)}"
    return ""


def _same(built: str | None) -> str:
    return f"=={built}" if built else ""


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # ValueError: in sys.modules without a spec, as a module made by hand is
        return False
