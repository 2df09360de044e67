"""Rows of deltas merged into overlay files, by the native library."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tfctr.bundle.deltas.plan import PlannedFile
from tfctr.errors import CorruptFileError, UsageError


def merge(planned: PlannedFile, path: Path) -> dict[str, Any]:
    """Writes the overlay of a table at ``path``: the one of before, then the deltas in order. Returns its
    ``overlay_info``. Checksums of what is read are checked: damage is found, never copied under a new checksum.
    """
    with native_errors():
        if planned.overlay_path is not None:
            native().verify_file(planned.overlay_path)
        native().build_overlay(path, planned.source, planned.overlay_path, planned.deltas)
        return dict(native().overlay_info(path))


def native() -> Any:
    return importlib.import_module("tfctr.core._native")


@contextlib.contextmanager
def native_errors() -> Iterator[None]:
    """Damaged files as CorruptFileError, those that do not belong together as UsageError; disk errors stay OSError."""
    try:
        yield
    except native().CorruptFile as error:
        raise CorruptFileError(str(error)) from error
    except (FileNotFoundError, ValueError) as error:
        raise UsageError(str(error)) from error


def compact(planned: PlannedFile, path: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    """Writes a table with the rows of its overlay in it at ``path``; checksums of both are checked first. Returns its
    ``file_info``. ``progress`` gets the bytes of rows done since the last call.
    """
    with native_errors():
        return dict(native().compact_table(path, planned.source, planned.overlay_path, progress))
