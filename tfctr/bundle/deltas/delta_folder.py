"""The folder of a delta: what ``delta.json`` says, and reading it. Bytes and fields: docs/deltas.md.

Each file has its SHA-256 in ``delta.json``, and the hash of the delta is one over all of its content, so a flipped bit
anywhere is found before anything is applied.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfctr.bundle import manifest as manifests
from tfctr.bundle import naming
from tfctr.bundle.deltas.identity import ORIGIN_FIELDS, short
from tfctr.errors import CorruptFileError, UsageError, VersionError

FORMAT = 1
KIND = "tfctr delta"
_FIELDS: dict[str, type] = {
    "format": int, "kind": str, "tfctr": str, "created": str, "base": dict, "previous": dict, "sequence": int,
    "new": dict, "tables": list, "files": list, "report": dict, "hash": str,
}  # fmt: skip
_STORED: dict[str, type] = {"file": str, "bytes": int, "sha256": str}
_TABLE: dict[str, type] = {"index": int, "kind": str, "name": str, "rows": int, "removed": int, **_STORED}
_FILE: dict[str, type] = {
    "index": int, "kind": str, "name": str, "dtype": str, "shape": list, "fingerprint": str, **_STORED,
}  # fmt: skip
TABLE_KINDS = ("table", "hash")
FILE_KINDS = (*TABLE_KINDS, "vocab", "blob")


class Delta:
    """A delta on disk, its ``delta.json`` checked. path: its folder. content: see docs/deltas.md."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path, self.content = path, content

    @property
    def hash(self) -> str:
        return str(self.content["hash"])

    @property
    def sequence(self) -> int:
        return int(self.content["sequence"])

    @property
    def tables(self) -> list[dict[str, Any]]:
        """Rows of tables: {index, kind, name, file, bytes, sha256, rows, removed, ...}."""
        return list(self.content["tables"])

    @property
    def files(self) -> list[dict[str, Any]]:
        """Whole files in place of the base's: a manifest entry each, with ``file`` in the delta."""
        return list(self.content["files"])

    @property
    def dense(self) -> dict[str, Any] | None:
        """The new graph with its dense weights: {files: [{file, target, bytes, sha256}], manifest, keep}; or None."""
        dense: dict[str, Any] | None = self.content.get("dense")
        return dense

    @property
    def rows(self) -> int:
        return sum(int(one["rows"]) for one in self.tables)

    @property
    def removed(self) -> int:
        return sum(int(one["removed"]) for one in self.tables)

    def entry(self) -> dict[str, Any]:
        """What a version's manifest says about this delta."""
        keys = ("sequence", "hash", "created")
        return {**{key: self.content[key] for key in keys}, "rows": self.rows, "removed": self.removed}

    def stored(self) -> list[dict[str, Any]]:
        """Every file of the delta but delta.json: {file, bytes, sha256}."""
        return [*self.tables, *self.files, *((self.dense or {}).get("files") or ())]

    def size(self) -> int:
        """Bytes of all files but delta.json."""
        return sum(int(one["bytes"]) for one in self.stored())

    def path_of(self, entry: Mapping[str, Any]) -> Path:
        return self.path / str(entry["file"])

    def verify(self) -> None:
        """Reads every file; CorruptFileError names one whose SHA-256 is not that of delta.json."""
        for entry in self.stored():
            path = self.path_of(entry)
            try:
                found = manifests.file_hash(path)
            except FileNotFoundError as error:
                raise CorruptFileError(f"{path}: missing from the delta") from error
            if found != entry["sha256"]:
                raise CorruptFileError(f"{path}: its SHA-256 is not that of {naming.DELTA}: the delta is damaged")


def is_delta(path: Path) -> bool:
    return (path / naming.DELTA).is_file()


def open_delta(path: str | Path) -> Delta:
    """Reads ``delta.json``, checks its hash, and that every file is there with its size (no file is read).

    UsageError where it is no delta, CorruptFileError for damage or a missing file (a half-copied folder), VersionError
    where a newer tfctr wrote it.
    """
    folder = Path(path)
    file = folder / naming.DELTA
    if not file.is_file():
        there = "no such folder" if not folder.exists() else f"it has no {naming.DELTA}"
        if naming.is_bundle(folder):
            there = "it is a bundle"
        raise UsageError(f"{folder}: not a delta: {there}")
    try:
        content = json.loads(file.read_bytes())
        hashed = content_hash(content) if isinstance(content, dict) else ""  # NaN and infinity are no JSON either
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{file}: not valid JSON: {error}") from error
    wrong = _wrong_fields(content, {"format": int, "tfctr": str})
    if not wrong and content["format"] > FORMAT:
        raise VersionError(
            f"{folder}: delta format {content['format']}, written by tfctr {content['tfctr']}; this tfctr reads up to "
            f"{FORMAT}"
        )
    wrong = wrong or wrong_content(content)
    if wrong:
        raise CorruptFileError(f"{file}: {wrong}")
    if content["hash"] != hashed:
        raise CorruptFileError(f"{file}: its content does not have the hash that it names: the delta is damaged")
    delta = Delta(folder, content)
    for entry in delta.stored():
        _check_size(delta.path_of(entry), entry)
    return delta


def content_hash(content: Mapping[str, Any]) -> str:
    """The hash of a delta: SHA-256 of its delta.json without ``hash``, as JSON with sorted keys and no spaces."""
    plain = {key: value for key, value in content.items() if key != "hash"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_size(path: Path, entry: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise CorruptFileError(f"{path}: missing from the delta")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise CorruptFileError(
            f"{path}: {size} bytes, {naming.DELTA} says {entry['bytes']}: the delta is cut or damaged"
        )


def wrong_content(content: Any) -> str:
    """What is missing, or of another type; "" where the content is whole."""
    wrong = _wrong_fields(content, _FIELDS)
    if wrong:
        return wrong
    if content["kind"] != KIND:
        return f"it is of the kind {short(content['kind'])!r}, expected {KIND!r}"
    wrong = _wrong_fields(content["base"], {"hash": str, **dict.fromkeys(ORIGIN_FIELDS, str)})
    wrong = wrong or _wrong_fields(content["previous"], {"hash": str, "sequence": int})
    if not wrong and content["sequence"] != content["previous"]["sequence"] + 1:
        wrong = f"it is delta {content['sequence']} to version {content['previous']['sequence']}"
    if wrong:
        return wrong
    for key, fields, kinds in (("tables", _TABLE, TABLE_KINDS), ("files", _FILE, FILE_KINDS)):
        for entry in content[key]:
            wrong = _wrong_fields(entry, fields) or _wrong_path(entry["file"])
            if not wrong and entry["kind"] not in kinds:
                wrong = f"the kind {entry['kind']!r} is none of {', '.join(kinds)}"
            if wrong:
                return f"{key}: {wrong}"
        indices = [entry["index"] for entry in content[key]]
        if len(set(indices)) != len(indices) or any(index < 0 for index in indices):
            return f"{key}: the index of an entry is negative, or of two entries the same"
    return _wrong_dense(content.get("dense"))


def _wrong_dense(dense: Any) -> str:
    if dense is None:
        return ""
    wrong = _wrong_fields(dense, {"files": list, "manifest": dict})
    for entry in [] if wrong else dense["files"]:
        wrong = _wrong_fields(entry, {"target": str, **_STORED})
        wrong = wrong or _wrong_path(entry["file"]) or _wrong_path(entry["target"])
        if wrong:
            break
    keep = None if wrong else dense.get("keep")
    if not wrong and keep is not None and not (isinstance(keep, list) and all(type(k) is int for k in keep)):
        wrong = "keep is no list of indices"
    if not wrong and naming.MODEL not in [entry["target"] for entry in dense["files"]]:
        wrong = f"it has no {naming.MODEL}"
    return f"dense: {wrong}" if wrong else ""


def _wrong_path(text: str) -> str:
    parts = Path(text).parts
    outside = not parts or ".." in parts or Path(text).is_absolute()
    return f"the file {text!r} lies outside the delta" if outside else ""


def _wrong_fields(entry: Any, fields: Mapping[str, type]) -> str:
    for name, kind in fields.items():
        value = entry.get(name) if isinstance(entry, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            return f"the field {name!r} is missing or not a {kind.__name__}"
    return ""
