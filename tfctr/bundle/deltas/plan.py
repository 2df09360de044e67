"""What deltas make of a bundle, worked out before anything is written: which files stay, which are new, which tables
get an overlay.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfctr.bundle import naming
from tfctr.bundle.deltas.delta_folder import Delta, open_delta
from tfctr.bundle.deltas.identity import Version, check_follows, version_of
from tfctr.errors import CorruptFileError

# What a version has of its own, whatever the manifest of a dense part says.
_OWN_FIELDS = ("format", "tfctr", "bundle_id", "created", "model", "store", "version")
_VERSION = re.compile(r"\.v\d+$")
Entry = Mapping[str, Any]


@dataclasses.dataclass
class PlannedFile:
    """One file of the new store, with the overlay of a table. entry: of the manifest; source: where its bytes are; new:
    they are a delta's. overlay, overlay_path: those of before (entry of the manifest). deltas: containers to merge into
    it, in order; rows, removed: what they hold.
    """

    entry: Entry
    source: Path
    new: bool = False
    overlay: Entry | None = None
    overlay_path: Path | None = None
    deltas: list[Path] = dataclasses.field(default_factory=list)
    rows: int = 0
    removed: int = 0

    @property
    def table_rows(self) -> int:
        """Rows of the table without its overlay."""
        return int(self.entry["shape"][0]) if self.entry["shape"] else 1


@dataclasses.dataclass
class Plan:
    """version: the new one. files: its store without overlays, by index. model: the saved_model.pb to start from.
    manifest: what replaces fields of the old manifest. others: path in the bundle -> file of a delta that goes there.
    dense: whether the graph is another one.
    """

    version: Version
    files: list[PlannedFile]
    model: Path
    manifest: dict[str, Any] = dataclasses.field(default_factory=dict)
    others: dict[str, Path] = dataclasses.field(default_factory=dict)
    dense: bool = False

    @property
    def changes_files(self) -> bool:
        """Whether anything but rows changes: a session must load the model again."""
        return self.dense or any(file.new for file in self.files)


def make_plan(
    manifest: Entry,
    path_of: Callable[[Entry], Path],
    model: Path,
    deltas: Sequence[str | Path],
    where: str,
    on_delta: Callable[[Delta], None] = lambda _: None,
) -> Plan:
    """Opens and checks the deltas (all their bytes are read) and adds them up.

    manifest: of the bundle; path_of: where a file of its store lies; model: its saved_model.pb; where: what messages
    call it.

    Raises:
      UsageError: a delta of another model or base, a gap, the wrong order, the same delta twice; it is no delta.
      CorruptFileError: a damaged or half-copied delta; one that names a table which is not there.
      VersionError: a newer tfctr wrote the delta.
    """
    plan = Plan(version=version_of(manifest, where), files=store_files(manifest, path_of), model=model)
    opened = [open_delta(path) for path in deltas]  # all of them before the bytes of any is read
    at = plan.version
    for delta in opened:
        check_follows(at, delta.content, str(delta.path), where)
        at = at.followed_by(delta.entry())
        where = f"the version that {delta.path.name} gives"
    for delta in opened:
        on_delta(delta)
        delta.verify()
        _add(plan, delta)
    plan.version = at
    return plan


def overlay_entry(planned: PlannedFile, index: int, base: int, file: str, info: Entry) -> dict[str, Any]:
    """The manifest's entry of an overlay. info: of ``native.overlay_info``, with ``file_bytes`` and ``fingerprint``."""
    table = planned.entry
    return {
        "index": index,
        "kind": "overlay",
        "file": file,
        "name": table["name"],
        "dtype": table["dtype"],
        "shape": [info["rows"], *table["shape"][1:]],
        "bytes": info["file_bytes"],
        "fingerprint": info["fingerprint"],
        "source": "deltas",
        "base": base,
        **{key: info[key] for key in ("rows", "added", "removed")},
    }


def version_name(file: str, sequence: int, suffix: str) -> str:
    """Name of a file of version ``sequence`` that comes from ``file``: 0003_emb.v2.hash, 3 -> 0003_emb.v3.overlay."""
    return f"{_VERSION.sub('', Path(file).stem)}.v{sequence}{suffix}"


def store_files(manifest: Entry, path_of: Callable[[Entry], Path]) -> list[PlannedFile]:
    """The files of a bundle's store, each with its overlay."""
    entries = manifest["store"]["files"]
    files = [PlannedFile(entry, path_of(entry)) for entry in entries if entry["kind"] != "overlay"]
    for entry in entries:
        if entry["kind"] == "overlay":
            if entry["base"] >= len(files):
                raise CorruptFileError(f"{path_of(entry)}: overlays are not the last files of the store")
            files[entry["base"]].overlay, files[entry["base"]].overlay_path = entry, path_of(entry)
    return files


def _add(plan: Plan, delta: Delta) -> None:
    if delta.dense is not None:
        _add_dense(plan, delta, delta.dense)
    for entry in delta.files:
        index = _index(plan, delta, entry)
        told = {key: value for key, value in entry.items() if key != "sha256"}
        plan.files[index] = PlannedFile(told, delta.path_of(entry), new=True)
    for entry in delta.tables:
        planned = plan.files[_index(plan, delta, entry)]
        if (planned.entry["kind"], planned.entry["name"]) != (entry["kind"], entry["name"]):
            raise CorruptFileError(
                f"{delta.path}: has rows of the {entry['kind']} {entry['name']!r}; file {entry['index']} of the store "
                f"is the {planned.entry['kind']} {planned.entry['name']!r}"
            )
        if entry["rows"] or entry["removed"]:
            planned.deltas.append(delta.path_of(entry))
            planned.rows += entry["rows"]
            planned.removed += entry["removed"]


def _add_dense(plan: Plan, delta: Delta, dense: Entry) -> None:
    plan.dense = True
    plan.manifest |= {key: value for key, value in dense["manifest"].items() if key not in _OWN_FIELDS}
    for entry in dense["files"]:
        target = Path(entry["target"])
        if target.as_posix() == naming.MANIFEST or target.is_relative_to(naming.STORE_FOLDER):
            raise CorruptFileError(
                f"{delta.path}: its dense part has the file {entry['target']!r}, which is not its own"
            )
        if target.as_posix() == naming.MODEL:
            plan.model = delta.path_of(entry)
        else:
            plan.others[target.as_posix()] = delta.path_of(entry)
    keep = dense.get("keep")
    if keep is None:
        return
    given = {entry["index"] for entry in delta.files}
    old = plan.files
    for index, was in enumerate(keep):
        if not (was == -1 and index in given) and not 0 <= was < len(old):
            raise CorruptFileError(f"{delta.path}: its dense part keeps file {was} of a store of {len(old)}")
    missing = PlannedFile({}, Path())  # the delta's own files come next
    plan.files = [missing if was == -1 else dataclasses.replace(old[was]) for was in keep]


def _index(plan: Plan, delta: Delta, entry: Entry) -> int:
    index = int(entry["index"])
    if index >= len(plan.files):
        raise CorruptFileError(
            f"{delta.path}: changes file {index} ({entry['name']!r}) of a store that has {len(plan.files)}"
        )
    return index
