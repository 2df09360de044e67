"""The manifest: what a bundle is, in one JSON file (``assets.extra/tfctr_manifest.json``).

Top level: format, tfctr, tensorflow, created (UTC), bundle_id, isa, precision, source {path, tags, sha256}, model
{file, bytes, sha256}, store {shared_name, files: [{index, kind, file, name, dtype, shape, bytes, fingerprint,
source}]}, signatures {name: signature info}, passes [pass reports], parity {signature: comparison}, mutable_state
[{node, kind, reason}], version {base, hash, sequence, origin, start, deltas} where deltas were applied.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfctr.bundle import naming
from tfctr.bundle.deltas.identity import wrong_version
from tfctr.errors import CorruptFileError, UsageError, VersionError

FORMAT = 1
_PARTS = {"sparse": {"values", "indices", "dense_shape"}, "ragged": {"values", "row_splits"}}
_FILE_FIELDS: dict[str, type] = {"file": str, "bytes": int}
_STORE_FIELDS: dict[str, type] = {"kind": str, "name": str, "dtype": str, "shape": list, "fingerprint": str}
_USER_FIELDS: dict[str, dict[str, type]] = {
    "user": {"features": list, "inputs": list},
    "split": {
        "signature": str,
        "row_to_user": str,
        "user_inputs": list,
        "user_features": list,
        "item_side": list,
        "broadcasts": list,
        "flops": dict,
        "boundary": list,
    },
}
# Entries of the lists of ``split``, and of its ``flops``.
_SPLIT_ENTRIES: dict[str, dict[str, type]] = {
    "item_side": {"feature": str, "op": str, "node": str, "reason": str},
    "broadcasts": {"tensor": str, "moved_past": list, "at": str},
    "flops": {"before_per_row": int, "user_per_row": int, "item_per_row": int},
    "boundary": {"tensor": str, "dtype": str, "side": str},
}
_DENSE_FIELDS: dict[str, type] = {
    "provider": str,
    "precision": str,
    "fallback": str,
    "fallback_precision": str,
    "engine": dict,
    "files": list,
    "inputs": list,
    "outputs": list,
    "reason": str,
    "isa": str,
    **dict.fromkeys(("left_outside", "buckets", "targets", "islands", "notes", "steps"), list),
    **dict.fromkeys(("parity", "versus_tensorflow", "key", "cache"), dict),
}
# Entries of the lists of ``dense``.
_DENSE_ENTRIES: dict[str, dict[str, type]] = {
    "files": {"role": str, "file": str, "index": int, "bytes": int},
    "buckets": {"rows": int},
    "islands": {"node": str},
    "steps": {"what": str},
}
_DENSE_TEXTS = ("left_outside", "targets", "notes")
_DENSE_MAYBE: dict[str, dict[str, type]] = {"accuracy": {"text": str}, "check": {}}  # missing or null as well
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
        manifest = json.loads(path.read_bytes(), object_hook=_as_it_is)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path}: not valid JSON: {error}") from error
    for name, kind in _FIELDS.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
            raise CorruptFileError(f"{path}: the field {name!r} is missing or not a {kind.__name__}")
    if manifest["format"] > FORMAT:
        raise VersionError(
            f"{folder}: bundle format {manifest['format']}, written by tfctr {manifest['tfctr']}; "
            f"this tfctr reads up to {FORMAT}"
        )
    wrong = _wrong_part(manifest)
    if wrong:
        raise CorruptFileError(f"{path}: {wrong}")
    return manifest


def _as_it_is(entry: dict[str, Any]) -> dict[str, Any]:
    """Python code within a long parse in C: where other threads of a server get their turn."""
    return entry


def _wrong_part(manifest: dict[str, Any]) -> str:
    """What is missing below the top level, or of another type; "" where the manifest is whole."""
    files = manifest["store"].get("files")
    if not isinstance(files, list):
        return "the store has no list of files"
    for entry in (manifest["model"], *files):
        fields = _FILE_FIELDS if entry is manifest["model"] else _FILE_FIELDS | _STORE_FIELDS
        wrong = _wrong_fields(entry, fields)
        if not wrong and entry.get("stands_for"):
            wrong = _wrong_fields(entry, {"storage": str, "stands_for": dict})
            wrong = wrong or _wrong_fields(entry["stands_for"], {"dtype": str, "shape": list})
        if wrong:
            return f"an entry of the store's files or the model: {wrong}"
        parts = Path(entry["file"]).parts
        if ".." in parts or Path(entry["file"]).is_absolute():
            return f"the file {entry['file']!r} lies outside the bundle"
    for name, info in manifest["signatures"].items():
        wrong = _wrong_signature(info)
        if wrong:
            return f"signature {name!r}: {wrong}"
    return _wrong_overlays(files) or wrong_version(manifest.get("version"))


def _wrong_overlays(files: list[dict[str, Any]]) -> str:
    """An overlay names the table or hash file it belongs to; no two the same."""
    bases = [entry.get("base") for entry in files if entry["kind"] == "overlay"]
    for base in bases:
        if type(base) is not int or not 0 <= base < len(files) or files[base]["kind"] not in ("table", "hash"):
            return f"an overlay of the store's files: its base {base!r} is no table of the store"
    return "" if len(set(bases)) == len(bases) else "two overlays of the store's files have the same base"


def _wrong_signature(info: Any) -> str:
    wrong = _wrong_fields(info, dict.fromkeys(("inputs", "outputs", "features", "lookups", "boundary"), list))
    if wrong:
        return wrong
    for entry in (*info["inputs"], *info["outputs"]):
        wrong = _wrong_fields(entry, {"name": str, "dtype": str})
        if wrong:
            return wrong
    for feature in info["features"]:
        wrong = _wrong_fields(feature, {"name": str, "kind": str, "parts": dict})
        if wrong:
            return wrong
        missing = _PARTS.get(feature["kind"], {"values"}) - set(feature["parts"])
        if missing:
            return f"feature {feature['name']!r} lacks the part {min(missing)!r}"
    return _wrong_users(info) or _wrong_dense(info) or _wrong_dense(info.get("split") or {})


def _wrong_dense(info: Mapping[str, Any]) -> str:
    """``dense``: missing or null where nobody asked for an engine."""
    entry = info.get("dense")
    if entry is None:
        return ""
    wrong = _wrong_fields(entry, _DENSE_FIELDS)
    if wrong:
        return f"dense: {wrong}"
    for field in ("form", "packed"):
        if not isinstance(entry.get(field), str | None):
            return f"dense: the field {field!r} is not the name of a signature"
    for key, fields in _DENSE_ENTRIES.items():
        for one in entry[key]:
            wrong = _wrong_fields(one, fields)
            if wrong:
                return f"dense: {key}: {wrong}"
    for key in _DENSE_TEXTS:
        if not all(isinstance(one, str) for one in entry[key]):
            return f"dense: {key}: an entry that is not a str"
    for key, fields in _DENSE_MAYBE.items():
        wrong = "" if entry.get(key) is None else _wrong_fields(entry, {key: dict}) or _wrong_fields(entry[key], fields)
        if wrong:
            return f"dense: {key}: {wrong}"
    return ""


def _wrong_users(info: dict[str, Any]) -> str:
    """``user`` and ``split``: missing or null where no user features were declared."""
    for key, fields in _USER_FIELDS.items():
        if info.get(key) is not None:
            wrong = _wrong_fields(info[key], fields)
            if wrong:
                return f"{key}: {wrong}"
    split = info.get("split")
    if split is None:
        return ""
    if not isinstance(split.get("packed"), str | None):
        return "split: the field 'packed' is not the name of a signature"
    for key, fields in _SPLIT_ENTRIES.items():
        for entry in [split[key]] if isinstance(split[key], dict) else split[key]:
            wrong = _wrong_fields(entry, fields)
            if wrong:
                return f"split: {key}: {wrong}"
    return ""


def _wrong_fields(entry: Any, fields: Mapping[str, type]) -> str:
    for name, kind in fields.items():
        if not isinstance(entry, dict) or not isinstance(entry.get(name), kind):
            return f"the field {name!r} is missing or not a {kind.__name__}"
    return ""


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
