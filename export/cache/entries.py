"""One entry: a folder of artefacts and ``key.json``, which says what they are, for what key, and their checksums."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from export.cache.files import open_regular, sha256, sync, sync_folder, walk, write_synced
from export.cache.locks import is_at, share
from tfctr.errors import InternalError
from tfctr.version import __version__

KEY_FILE = "key.json"
# Raised with every change of what an entry is. Entries of other formats are left alone.
FORMAT = 1
# An entry can come or go while it is looked for; this often it does not.
_ATTEMPTS = 100
_HASH = re.compile(r"[0-9a-f]{64}")
_TOOLS = ("tensorflow", "onnx", "tf2onnx", "onnxruntime", "openvino", "tensorrt", "tensorrt-rtx-cu13", "numpy")


# Errors of this process or machine, not of what it reads.
NOT_DAMAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK, errno.EOPNOTSUPP)


class Damaged(Exception):
    """An entry that can't be used as it is; the message says what is wrong with it."""


class OtherFormat(Exception):
    """An entry of another version of the cache's format."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """What ``CompileCache.get_or_build`` gives.

    folder: where the files lie. They stay there until the cache is closed. files: by name relative to it, ``key.json``
    left out. hit: whether it was there already. stored: whether it will be found again. key: the hash. seconds: of the
    call. note: "" or what people should know of it. record: what key.json says, {} where nothing is stored.
    """

    folder: Path
    files: Mapping[str, Path]
    hit: bool
    stored: bool
    level: str
    key: str
    seconds: float
    note: str = ""
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keeper: object = dataclasses.field(default=None, repr=False, compare=False)  # what keeps the files there

    @property
    def status(self) -> str:
        """ "hit", "miss", or "off" (built, and not stored)."""
        return "hit" if self.hit else "miss" if self.stored else "off"

    def read(self, name: str) -> bytes:
        """The bytes of one file."""
        return self.files[name].read_bytes()


def canonical_json(value: object) -> str:
    """One text per value: sorted keys, no spaces. Raises InternalError for what JSON can't say."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InternalError(f"a cache key must be made of JSON values: {error}") from error


def key_hash(level: str, key: Mapping[str, Any]) -> str:
    """SHA-256 of level and key, and of the format: another format's entries have other names."""
    text = canonical_json({"format": FORMAT, "level": level, "key": key})
    # Once more as it will be read back: names that are numbers would be sorted as numbers here, and as texts there.
    return hashlib.sha256(canonical_json(json.loads(text)).encode()).hexdigest()


def is_hash(name: str) -> bool:
    return _HASH.fullmatch(name) is not None


def seal(folder: Path, level: str, key: Mapping[str, Any], label: str, seconds: float) -> dict[str, Any]:
    """Writes ``key.json`` over what was built in ``folder`` and syncs everything. Returns the record.

    Raises OSError where it can't be written, InternalError where nothing, or no ordinary file, was built.
    """
    files = []
    for path in walk(folder):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file() or name == KEY_FILE:
            raise InternalError(f"{level} entry: {name} was built, which is no ordinary file of its own")
        size, digest = sha256(path)
        sync(path)
        files.append({"name": name, "bytes": size, "sha256": digest})
    if not files:
        raise InternalError(f"{level} entry: no file was built")
    record: dict[str, Any] = {
        "tfctr_cache": FORMAT,
        "level": level,
        "key_hash": key_hash(level, key),
        "label": label,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "build_seconds": round(seconds, 3),
        "tools": tools(),
        "files": files,
        "key": dict(key),
    }
    record["checksum"] = _checksum(record)
    write_synced(folder / KEY_FILE, json.dumps(record, indent=1).encode() + b"\n")
    for inner in {path.parent for path in walk(folder)} | {folder}:
        sync_folder(inner)
    return json.loads(json.dumps(record))


@functools.cache
def tools() -> dict[str, str]:
    """Versions on this machine: for people; what matters is part of the key."""
    found = {"tfctr": __version__, "python": platform.python_version()}
    for name in _TOOLS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _checksum(record: Mapping[str, Any]) -> str:
    """Of everything else in key.json."""
    return hashlib.sha256(canonical_json({k: v for k, v in record.items() if k != "checksum"}).encode()).hexdigest()


def hold(folder: Path) -> int | None:
    """Marks the entry as in use and returns the handle that does; None where there is none. Raises Damaged, OSError."""
    for _ in range(_ATTEMPTS):
        try:
            handle = os.open(folder / KEY_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            if not os.path.lexists(folder):
                return None
            if os.path.lexists(folder / KEY_FILE):  # it came meanwhile
                continue
            raise Damaged(f"{KEY_FILE} is missing") from None
        except NotADirectoryError:
            raise Damaged("it is a file; a folder is expected") from None
        try:
            share(handle)
            if is_at(handle, folder / KEY_FILE):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # it was evicted while we opened it
    raise Damaged(f"{KEY_FILE} can't be opened")


def read_record(folder: Path) -> dict[str, Any]:
    """What key.json says. Raises Damaged, OtherFormat, or OSError where the machine is at its limits."""
    try:
        with open_regular(folder / KEY_FILE) as file:
            record = json.loads(file.read(), parse_constant=_no_number)
    except OSError as error:
        raise _damage(KEY_FILE, error) from error
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{KEY_FILE} is no JSON: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("tfctr_cache"), int):
        raise Damaged(f"{KEY_FILE} names no format")
    if record["tfctr_cache"] != FORMAT:
        raise OtherFormat(f"format {record['tfctr_cache']}; this tfctr writes and reads format {FORMAT}")
    if record.get("checksum") != _checksum(record):
        raise Damaged(f"the checksum of {KEY_FILE} is wrong")
    return record


def _damage(name: str, error: OSError) -> Exception:
    """What an error at a file of an entry means."""
    return error if error.errno in NOT_DAMAGE else Damaged(f"{name}: {error.strerror or error}")


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def verify(folder: Path, level: str, name: str) -> tuple[dict[str, Any], dict[str, Path]]:
    """Record and files of the entry ``name``, all bytes read and right. Raises Damaged, OSError."""
    try:
        record = read_record(folder)
    except OtherFormat as error:  # the format is part of the name, so this is none of its entries
        raise Damaged(f"{KEY_FILE} says {error}") from error
    if record["level"] != level or record["key_hash"] != name or key_hash(level, record["key"]) != name:
        raise Damaged(f"{KEY_FILE} is that of {record['level']}/{str(record['key_hash'])[:12]}")
    files = {}
    for file in record["files"]:
        path = folder / file["name"]
        try:
            size, digest = sha256(path)
        except OSError as error:
            raise _damage(file["name"], error) from error
        if size != file["bytes"]:
            raise Damaged(f"{file['name']} has {size:,} bytes; {file['bytes']:,} were written")
        if digest != file["sha256"]:
            raise Damaged(f"the checksum of {file['name']} is wrong")
        files[file["name"]] = path
    return record, files
