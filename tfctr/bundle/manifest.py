"""The manifest: what a bundle is, in one JSON file (``assets.extra/tfctr_manifest.json``).

Top level: format, tfctr, tensorflow, created (UTC), bundle_id, isa, precision, source {path, tags, sha256}, model
{file, bytes, sha256}, store {shared_name, files: [{index, kind, file, name, dtype, shape, bytes, fingerprint,
source}]}, signatures {name: signature info}, passes [pass reports], parity {signature: comparison}, mutable_state
[{node, kind, reason}].
"""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

from tfctr.bundle import naming
from tfctr.errors import CorruptFileError, UsageError, VersionError

FORMAT = 1
_FIELDS = {"format": int, "tfctr": str, "bundle_id": str, "model": dict, "store": dict, "signatures": dict}


def dump(manifest: dict[str, Any]) -> bytes:
    """The manifest as stored: readable, keys in the order given, NaN refused."""
    return (json.dumps(manifest, indent=1, allow_nan=False, default=_plain) + "\n").encode()


def read(folder: Path) -> dict[str, Any]:
    """The manifest of the bundle at ``folder``.

    UsageError where it is no bundle, CorruptFileError where the file does not parse or lacks a field, VersionError
    where a newer tfctr wrote it.
    """
    path = folder / naming.MANIFEST
    if not path.is_file():
        raise UsageError(f"{folder}: not a bundle: it has no {naming.MANIFEST}")
    try:
        manifest = json.loads(path.read_bytes())
    except ValueError as error:
        raise CorruptFileError(f"{path}: not valid JSON: {error}") from error
    for name, kind in _FIELDS.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
            raise CorruptFileError(f"{path}: the field {name!r} is missing or not a {kind.__name__}")
    if manifest["format"] > FORMAT:
        raise VersionError(
            f"{folder}: bundle format {manifest['format']}, written by tfctr {manifest['tfctr']}; "
            f"this tfctr reads up to {FORMAT}"
        )
    return manifest


def now() -> str:
    """UTC, ISO 8601, seconds."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def file_hash(path: Path) -> str:
    """SHA-256 of a file, hexadecimal, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "item"):  # NumPy scalars
        return value.item()
    raise TypeError(f"{type(value).__name__} does not go into a manifest")
