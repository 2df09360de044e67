"""Which engine providers run on this machine, why not, and making them ready.

A reason is one line without the provider's name: "the package openvino is not installed: ...". It is what a session
logs when it takes a bundle's fallback, and what ``tfctr doctor`` shows.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfctr.engines import tensorrt_cuda
from tfctr.errors import InternalError, UsageError, VersionError

PROVIDERS = ("tensorflow", "openvino", "tensorrt")
TENSORRT = ("tensorrt", "tensorrt_rtx")  # in the order of preference, where a plan does not say which
OPENVINO_LIBRARY = Path(__file__).resolve().parent.parent / "core" / "libtfctr_openvino.so"
_PLAN = "plan:"
_INSTALL = {
    "openvino": "pip install openvino",
    "tensorrt": "pip install tensorrt",
    "tensorrt_rtx": "pip install tensorrt-rtx-cu13",
}
# Distributions that may hold a module; the CUDA release is part of the name.
_DISTRIBUTIONS = {
    "openvino": ("openvino",),
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "tensorrt_rtx": ("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx"),
}
_lock = threading.RLock()


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
      VersionError: it is installed in another version than tfctr was built for; names both.
      InternalError: its library does not load, though all that it needs is here.
    """
    reason = why_not(provider, entry)
    if reason:
        mismatch = provider == "openvino" and openvino_version_mismatch()
        raise (VersionError if mismatch else UsageError)(f"{provider} does not run here: {reason}")
    with _lock:
        if provider == "openvino":
            _load_openvino()
        elif provider == "tensorrt":
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
    return tuple(role.removeprefix(_PLAN) for role in roles if role.startswith(_PLAN))


def tensorrt_module(entry: Mapping[str, Any]) -> str:
    """Python module that runs the plans of ``entry``: the one that built them, else the one installed."""
    built = (entry.get("engine") or {}).get("name")
    if built in TENSORRT:
        return str(built)
    return next((name for name in TENSORRT if _installed(name)), TENSORRT[0])


def _why_not_openvino(entry: Mapping[str, Any]) -> str:
    if not _installed("openvino"):
        return f"the package openvino is not installed: {_INSTALL['openvino']}{_same(built_openvino())}"
    if not OPENVINO_LIBRARY.is_file():
        return f"tfctr's library for it is missing: {OPENVINO_LIBRARY} (built only where openvino is installed)"
    mismatch = openvino_version_mismatch()
    if mismatch:
        return mismatch
    if entry.get("precision") == "bf16":
        from tfctr.engines import isa

        if not isa.supports_bf16():
            return f"bf16 needs a CPU with avx512_bf16 or amx_bf16; this one has {isa.cpu_isa()}"
    return ""


def openvino_version_mismatch() -> str:
    """What is said where OpenVINO is installed in another version than tfctr's library is built for; "" else."""
    built, here = built_openvino(), version("openvino")
    if built is None or here is None or here == built:
        return ""
    return f"tfctr's library is built for OpenVINO {built}, installed is {here}{': ' + _INSTALL['openvino']}=={built}"


@functools.cache
def built_openvino() -> str | None:
    """The OpenVINO release that tfctr's library is linked with; None where the library is not there.

    Read from the name of the OpenVINO library that it asks the loader for: ``libopenvino.so.2641`` is 2026.4.1.
    """
    if not OPENVINO_LIBRARY.is_file():
        return None
    found = re.search(rb"libopenvino\.so\.(\d{2})(\d)(\d)\0", OPENVINO_LIBRARY.read_bytes())
    return "20{}.{}.{}".format(*(part.decode() for part in found.groups())) if found else None


def _load_openvino() -> None:
    """Loads OpenVINO's core and TBB by path first: tfctr's library asks for them by name, and stores no path."""
    from tfctr.core import library

    library.load()
    spec = importlib.util.find_spec("openvino")
    assert spec is not None and spec.origin is not None  # why_not has seen it
    libs = Path(spec.origin).parent / "libs"
    try:
        for pattern in ("libtbb.so.*", "libopenvino.so.*"):
            for path in sorted(libs.glob(pattern)):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(OPENVINO_LIBRARY))
    except OSError as error:
        raise InternalError(f"the OpenVINO provider does not load: {error}") from error


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
