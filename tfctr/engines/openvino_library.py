"""Loading ``libtfctr_openvino.so``, the part of tfctr that links OpenVINO: on demand, once, versions checked before."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import threading
from pathlib import Path

from tfctr.core import library
from tfctr.errors import InternalError, UsageError, VersionError
from tfctr.version import __version__

LIBRARY = library.OPS_LIBRARY.with_name("libtfctr_openvino.so")
_lock = threading.Lock()
_loaded: list[ctypes.CDLL] = []  # never closed: engines hold code of them


def why_not() -> str:
    """Returns "" when the provider openvino can be loaded here, else one line that says why not."""
    try:
        _check()
    except (UsageError, VersionError, InternalError) as error:
        return str(error)
    return ""


def load() -> None:
    """Registers the provider ``openvino``; does nothing when that was done before.

    Raises:
      UsageError: the package openvino is not installed.
      VersionError: another version of it than the library was built against (names both).
      InternalError: this build of tfctr has no such library, or it does not load.
    """
    with _lock:
        if _loaded:
            return
        folder = _check()
        library.native()  # its symbols are needed
        # The wheel's libraries lie in no folder that the loader searches; once loaded they are found by soname.
        loaded = []
        for path in sorted(folder.glob("libtbb.so*")) + sorted(folder.glob("libopenvino.so*")):
            loaded.append(_open(path))
        loaded.append(_open(LIBRARY))
        _loaded.extend(loaded)


def installed() -> str | None:
    """The version of the package openvino that is installed, without importing it; None when there is none."""
    try:
        return importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        return None


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise InternalError(f"provider openvino: {path} does not load: {error}") from error


def _check() -> Path:
    """Folder of OpenVINO's libraries; raises as ``load``."""
    version = installed()
    spec = importlib.util.find_spec("openvino") if version is not None else None
    if version is None or spec is None or spec.origin is None:
        raise UsageError("provider openvino: the package openvino is not installed (pip install 'tfctr[openvino]')")
    if not LIBRARY.is_file():
        raise InternalError(
            f"provider openvino: this build of tfctr {__version__} has no {LIBRARY.name}: it was built where the "
            "package openvino was not installed (see docs/building.md)"
        )
    built = library.native().openvino_version()
    if _release(version) != _release(built):
        raise VersionError(
            f"provider openvino: tfctr {__version__} is built against OpenVINO {built}, but {version} is installed: "
            f"install openvino=={built}, or build tfctr anew"
        )
    return Path(spec.origin).parent / "libs"


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.split("-")[0].split(".")[:3])
