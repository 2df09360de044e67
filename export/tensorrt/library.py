"""The TensorRT library of this machine: which one, which version, and which GPUs it can build plans for.

`tensorrt_rtx` builds for a list of GPU generations on any machine; sm75 takes no FP32 matrix product, so neither an
FP32 tower nor one with such islands. `tensorrt` builds for the GPU of the machine that it
runs on; that part is not yet run on a GPU.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import importlib.util
import re
from collections.abc import Sequence
from types import ModuleType

from tfctr.errors import UsageError

# In the order of preference. Wheels: requirements-gpu.txt and requirements.txt.
NAMES = ("tensorrt", "tensorrt_rtx")
_INSTALL = "pip install tensorrt-rtx-cu13 (builds without a GPU) or tensorrt (on a machine with one)"
_CUDA_MAJOR, _CUDA_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


@dataclasses.dataclass(frozen=True)
class Library:
    """name: "tensorrt" or "tensorrt_rtx". targets: what plans can be built for here ("sm80"), oldest first."""

    module: ModuleType
    name: str
    version: str
    targets: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def chooses_target(self) -> bool:
        """Whether the builder is told its targets (RTX), or builds for the GPU it runs on."""
        return hasattr(self.module, "ComputeCapability")


def installed() -> str | None:
    """The name of the library that ``load`` will take, without importing it; None where there is none."""
    return next((name for name in NAMES if importlib.util.find_spec(name) is not None), None)


@functools.cache
def load(name: str | None = None) -> Library:
    """Imports the library (``name``: that one). Raises UsageError: not installed, or it does not load here."""
    wanted = name or installed()
    if wanted is None or importlib.util.find_spec(wanted) is None:
        raise UsageError(f"{wanted or 'TensorRT'} is not installed: {_INSTALL}")
    try:
        module = importlib.import_module(wanted)
    except (ImportError, OSError, RuntimeError) as error:
        raise UsageError(f"{wanted} is installed but does not load: {error}") from error
    return Library(module, wanted, str(module.__version__), _targets(module))


def parse_targets(text: str | Sequence[str], library: Library) -> tuple[str, ...]:
    """``"sm80,sm89"`` (or a list, or ``"all"``) as names that ``library`` can build for, each once, in order.

    Raises UsageError: nothing given, or a target the library can't build for; lists those it can.
    """
    given = [part.strip().lower() for part in (text.split(",") if isinstance(text, str) else text)]
    wanted = [part for part in given if part]
    if not wanted:
        raise UsageError(f"no target given; {_known(library)}")
    if wanted == ["all"]:
        if not library.targets:
            raise UsageError(f"no target to build for; {_known(library)}")
        return library.targets
    found = []
    for part in wanted:
        match = re.fullmatch(r"(?:sm_?)?(\d{2,3})", part)
        target = f"sm{match[1]}" if match else part
        if target not in library.targets:
            raise UsageError(f"unknown target {part!r}: {_known(library)}{_where_else(target, library)}")
        found.append(target)
    return tuple(dict.fromkeys(found))


def _targets(module: ModuleType) -> tuple[str, ...]:
    if hasattr(module, "ComputeCapability"):
        members = module.ComputeCapability.__members__
        return tuple(sorted((n.lower() for n in members if re.fullmatch(r"SM\d+", n)), key=lambda n: int(n[2:])))
    gpu = gpu_target()
    return (gpu,) if gpu else ()


def gpu_target() -> str | None:
    """The generation of the machine's first GPU ("sm90"), asked of the CUDA driver; None where there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    failed = cuda.cuDeviceGetAttribute(ctypes.byref(major), _CUDA_MAJOR, device)
    failed |= cuda.cuDeviceGetAttribute(ctypes.byref(minor), _CUDA_MINOR, device)
    return None if failed else f"sm{major.value}{minor.value}"


def _known(library: Library) -> str:
    if library.targets:
        return f"{library.label} builds for {', '.join(library.targets)}"
    return f"{library.label} builds for the GPU of its machine, and this one has none"


def _where_else(target: str, library: Library) -> str:
    if library.chooses_target and target in ("sm90", "sm100", "sm103"):
        return f"; {target} needs the package tensorrt, on a machine with such a GPU"
    return ""
