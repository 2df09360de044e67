"""What the advice needs to know beyond the recording: sizes of a bundle's tables, of the machine's caches."""

from __future__ import annotations

import pathlib

from tfctr.bundle.reader import is_bundle, read_manifest
from tfctr.errors import TfctrError

_CACHES = pathlib.Path("/sys/devices/system/cpu/cpu0/cache")
_TABLES = ("table", "hash", "overlay")  # of the store: vocabularies and engines are files too
_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}


def tables_bytes(path: str) -> int | None:
    """Bytes of the files that a bundle's tables are in; None where there is no readable bundle (a profile may be
    looked at on another machine)."""
    if not path or not is_bundle(path):
        return None
    try:
        files = read_manifest(path)["store"]["files"]
    except TfctrError:
        return None
    return sum(int(entry["bytes"]) for entry in files if entry["kind"] in _TABLES)


def slower_engine(path: str, signature: str) -> str:
    """What the conversion measured of an engine that it left out as it was not faster; "" where there is none."""
    if not path or not is_bundle(path):
        return ""
    try:
        entry = read_manifest(path)["signatures"].get(signature, {}).get("dense") or {}
    except TfctrError:
        return ""
    versus = entry.get("versus_tensorflow") or {}
    return str(versus["reason"]) if entry.get("form") is None and versus.get("faster") is False else ""


def cache_bytes(folder: pathlib.Path = _CACHES) -> int | None:
    """The largest cache of the first CPU; None where the system does not tell."""
    sizes = []
    for file in folder.glob("index*/size"):
        text = file.read_text(encoding="ascii").strip()
        if text[:-1].isdigit() and text[-1] in _UNITS:
            sizes.append(int(text[:-1]) * _UNITS[text[-1]])
    return max(sizes, default=None)
