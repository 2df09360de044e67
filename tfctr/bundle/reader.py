"""Opens bundles for whoever serves or inspects them."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfctr.bundle import manifest as manifests
from tfctr.bundle import naming
from tfctr.errors import CorruptFileError


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A bundle on disk. path: its folder. manifest: see ``tfctr.bundle.manifest``."""

    path: Path
    manifest: dict[str, Any]

    @property
    def signatures(self) -> dict[str, dict[str, Any]]:
        return dict(self.manifest["signatures"])

    def store_paths(self) -> list[Path]:
        """Paths of the store's files, in index order."""
        return [self.path / f["file"] for f in self.manifest["store"]["files"]]


def open_bundle(path: str | Path) -> Bundle:
    """Reads the manifest and checks that the files it names are there, with the sizes it says (milliseconds).

    UsageError, CorruptFileError or VersionError as ``manifest.read``; CorruptFileError for a missing file or another
    size.
    """
    folder = Path(path)
    bundle = Bundle(folder, manifests.read(folder))
    for entry in (bundle.manifest["model"], *bundle.manifest["store"]["files"]):
        file = folder / entry["file"]
        if not file.is_file():
            raise CorruptFileError(f"{file}: missing from the bundle")
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise CorruptFileError(f"{file}: {size} bytes, the manifest says {entry['bytes']}")
    return bundle


def read_manifest(path: str | Path) -> dict[str, Any]:
    """The manifest of the bundle at ``path``, after the checks of :func:`open_bundle`."""
    return open_bundle(path).manifest


def verify_files(path: str | Path, manifest: dict[str, Any], progress: Callable[[str], None] = lambda _: None) -> int:
    """Checks every checksum (reads all bytes, not through mappings); returns the number of bytes.

    ``progress`` is called with the name of each file. CorruptFileError names the damaged file.
    """
    bundle = Bundle(Path(path), manifest)
    model = manifest["model"]
    checked = 0
    if manifests.file_hash(bundle.path / model["file"]) != model["sha256"]:
        raise CorruptFileError(f"{bundle.path / model['file']}: its SHA-256 is not the manifest's")
    checked += model["bytes"]
    native = importlib.import_module("tfctr.core._native")
    for entry in bundle.manifest["store"]["files"]:
        file = bundle.path / entry["file"]
        progress(entry["name"])
        check_fingerprint(file, entry)
        try:
            if entry["kind"] != "blob":
                native.verify_file(file)
        except native.CorruptFile as error:
            raise CorruptFileError(str(error)) from error
        checked += entry["bytes"]
    return checked


def check_fingerprint(file: Path, entry: Mapping[str, Any]) -> None:
    """CorruptFileError unless a file of the store is whole as far as its footer says, of the kind and with the
    fingerprint of its entry in the manifest. A blob is read; of others the footer and the checksums are.
    """
    native = importlib.import_module("tfctr.core._native")
    try:
        info = native.blob_info(file) if entry["kind"] == "blob" else native.file_info(file)
    except native.CorruptFile as error:
        raise CorruptFileError(str(error)) from error
    if info["fingerprint"] != entry["fingerprint"]:
        raise CorruptFileError(
            f"{file}: its fingerprint is {info['fingerprint']}, the manifest says {entry['fingerprint']}"
        )
    kind = info.get("kind", "blob")
    if kind != entry["kind"]:
        raise CorruptFileError(f"{file}: is a {kind} file, the manifest says {entry['kind']}")


def is_bundle(path: str | Path) -> bool:
    """Whether ``path`` is a folder with a manifest of ours."""
    return naming.is_bundle(Path(path))
