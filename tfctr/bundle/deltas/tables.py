"""Rows of deltas merged into overlay files, by the native library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfctr.bundle.deltas.plan import PlannedFile
from tfctr.core import library


def merge(planned: PlannedFile, path: Path) -> dict[str, Any]:
    """Writes the overlay of a table at ``path``: the one of before, then the deltas in order. Returns its
    ``overlay_info``. Checksums of what is read are checked: damage is found, never copied under a new checksum.
    """
    with library.native_errors():
        told = _metadata(planned)
        return dict(library.native().build_overlay(path, planned.source, planned.overlay_path, planned.deltas, told))


def merge_in_memory(planned: PlannedFile) -> Any:
    """The same as a ``native.MemoryOverlay``."""
    with library.native_errors():
        return library.native().MemoryOverlay(planned.source, planned.overlay_path, planned.deltas, _metadata(planned))


def _metadata(planned: PlannedFile) -> dict[str, Any]:
    """Step and time of the overlay: those of the last delta that has them. Verifies the overlay of before."""
    told: dict[str, Any] = {}
    if planned.overlay_path is not None:
        library.native().verify_file(planned.overlay_path)
        told = _times(library.native().overlay_info(planned.overlay_path))
    for path in planned.deltas:
        library.native().verify_file(path)
        told |= _times(library.native().delta_info(path))
    return told


def _times(info: Mapping[str, Any]) -> dict[str, Any]:
    return {key: info[key] for key in ("step", "time_ms") if info[key] is not None}


def compact(planned: PlannedFile, path: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    """Writes a table with the rows of its overlay in it at ``path``; checksums of both are checked first. Returns its
    ``file_info``. ``progress`` gets the bytes of rows done since the last call.
    """
    with library.native_errors():
        return dict(library.native().compact_table(path, planned.source, planned.overlay_path, progress))
