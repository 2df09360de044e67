"""Writes the folder of a delta (``delta_folder.py`` reads it) so that no reader ever sees half of one.

with DeltaWriter(out, previous=version_of(manifest, "bundles/08")) as writer:
    make_container(writer.table_path(3, "item_emb"))              # native.write_delta_file, or a diff
    writer.add_table(index=3, kind="hash", name="item_emb", rows=120, removed=4)
    writer.add_file(writer.file_path(5, "country.vocab"), {"index": 5, "kind": "vocab", "name": "country", ...})
    writer.dense_path("saved_model.pb").write_bytes(graph)
    writer.set_dense(manifest={"signatures": ...})
    delta = writer.commit()
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tfctr.bundle import manifest as manifests
from tfctr.bundle import naming
from tfctr.bundle.deltas.delta_folder import FORMAT, KIND, Delta, content_hash, is_delta, wrong_content
from tfctr.bundle.deltas.identity import ORIGIN_FIELDS, Version
from tfctr.bundle.deltas.lock import only_writer
from tfctr.bundle.writer import disk_error, put_in_place, remove, sync_tree
from tfctr.errors import UsageError
from tfctr.version import __version__

TABLES, FILES, DENSE = "tables", "files", "dense"


class DeltaWriter:
    """Writes a delta so that no reader sees half of one; nothing is at ``out`` until :meth:`commit`. A context manager.

    out: the folder to be. previous: the version that the delta is to follow (``version_of``). force: replace ``out``
    where it is a delta. protected: folders that ``out`` may not be, hold or lie in (the base, the new model).
    UsageError where ``out`` may not be written, or another process is writing it.
    """

    def __init__(
        self, out: str | Path, previous: Version, *, force: bool = False, protected: Sequence[str | Path] = ()
    ) -> None:
        self.out = Path(os.path.abspath(out))
        self._previous = previous
        self._force, self._protected = force, tuple(protected)
        self._tables: list[dict[str, Any]] = []
        self._files: list[dict[str, Any]] = []
        self._dense: dict[str, Any] | None = None
        self._held = contextlib.ExitStack()
        self.folder = naming.temporary(self.out)

    def __enter__(self) -> DeltaWriter:
        _check_target(self.out, self._protected, force=self._force)
        self._held.enter_context(only_writer(self.out))
        try:
            self._replaces = _check_target(self.out, self._protected, force=self._force)
            for path, kind in naming.leftovers(self.out):
                if kind == "old" and not self.out.exists():
                    os.rename(path, self.out)
                    raise UsageError(f"{self.out}: an interrupted run had moved it aside; it is back. Run again")
                remove(path)
            self.folder.mkdir()
        except OSError as error:
            self._held.close()
            raise disk_error(error, self.out) from error
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            remove(self.folder)
        finally:
            self._held.close()
        if isinstance(error, OSError):
            raise disk_error(error, self.out) from error

    def table_path(self, index: int, name: str) -> Path:
        """Where the container with the rows of the table of this index goes (give the same to ``add_table``)."""
        return self._path(TABLES, f"{_safe(index, name)}.delta")

    def add_table(self, *, index: int, kind: str, name: str, rows: int, removed: int, **more: Any) -> None:
        """Enters the container at ``table_path(index, name)``. index: of the table in the bundle's store (in the new
        one, where the delta has a dense part). rows: added and changed ones; removed: keys. more: for reports."""
        path = self.table_path(index, name)
        self._tables.append(
            {"index": index, "kind": kind, "name": name, **self._stored(path), "rows": rows, "removed": removed, **more}
        )

    def file_path(self, index: int, file_name: str) -> Path:
        """Where a whole new file goes. file_name: what it is called in the new bundle's ``assets/tfctr``."""
        return self._path(FILES, f"{index:04d}/{file_name}")

    def add_file(self, path: Path, entry: Mapping[str, Any]) -> None:
        """Enters a whole file at ``path`` (of ``file_path``). entry: as in a manifest's store (index, kind, name,
        dtype, shape, fingerprint, source, ...)."""
        self._files.append({**entry, **self._stored(path)})

    def dense_path(self, target: str) -> Path:
        """Where a file that replaces (or joins) the bundle's ``target`` goes: saved_model.pb, assets.extra/..."""
        return self._path(DENSE, target)

    def set_dense(self, manifest: Mapping[str, Any], keep: Sequence[int] | None = None) -> None:
        """Enters every file below ``dense_path``; there must be a saved_model.pb.

        manifest: fields that replace those of the base's manifest (``signatures``, ``passes``, ``parity``, ...). keep:
        where the new store's files are others than the base's: for each new index the base's index of the same file,
        or -1 where ``add_file`` gives it; None: the same indices.
        """
        entries = []
        for path in sorted((self.folder / DENSE).rglob("*")):
            if path.is_file():
                entries.append({"target": path.relative_to(self.folder / DENSE).as_posix(), **self._stored(path)})
        # What JSON makes of it: the manifest's own values, NumPy scalars and paths included.
        plain = json.loads(manifests.dump(dict(manifest)))
        self._dense = {"files": entries, "manifest": plain, "keep": None if keep is None else [int(k) for k in keep]}

    def commit(self, new: Mapping[str, Any], report: Mapping[str, Any] | None = None) -> Delta:
        """Writes delta.json, syncs everything and puts the folder in place.

        new: what the delta brings the base to ({path, kind: "saved_model" or "checkpoint", ...}). report: anything
        worth keeping about how it was made.
        """
        content: dict[str, Any] = {
            "format": FORMAT,
            "kind": KIND,
            "tfctr": __version__,
            "created": manifests.now(),
            "base": {"hash": self._previous.base, **{key: self._previous.origin[key] for key in ORIGIN_FIELDS}},
            "previous": {"hash": self._previous.hash, "sequence": self._previous.sequence},
            "sequence": self._previous.sequence + 1,
            "new": dict(new),
            "tables": sorted(self._tables, key=lambda one: int(one["index"])),
            "files": sorted(self._files, key=lambda one: int(one["index"])),
            "dense": self._dense,
            "report": dict(report or {}),
        }
        content = json.loads(manifests.dump(content))
        content["hash"] = content_hash(content)
        wrong = wrong_content(content)
        if wrong:
            raise ValueError(f"{self.out}: {wrong}")
        try:
            (self.folder / naming.DELTA).write_bytes(manifests.dump(content))
            sync_tree(self.folder)
            put_in_place(self.folder, self.out, replaces=self._replaces)
        except OSError as error:
            raise disk_error(error, self.out) from error
        return Delta(self.out, content)

    def _path(self, folder: str, name: str) -> Path:
        path = self.folder / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _stored(self, path: Path) -> dict[str, Any]:
        return {
            "file": path.relative_to(self.folder).as_posix(),
            "bytes": path.stat().st_size,
            "sha256": manifests.file_hash(path),
        }


def _safe(index: int, name: str) -> str:
    return f"{index:04d}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', name).strip('._')[:80] or 'table'}"


def _check_target(out: Path, protected: Sequence[str | Path], *, force: bool) -> bool:
    """Whether writing ``out`` replaces a delta; UsageError where it may not be written."""
    real = Path(os.path.realpath(out))
    for one in protected:
        other = Path(os.path.realpath(one))
        if real == other or other in real.parents:
            raise UsageError(f"{out}: lies in {one}, which is only read; choose an OUT outside it")
        if real in other.parents:
            raise UsageError(f"{out}: holds {one}; choose another OUT")
    if not os.path.lexists(out):
        return False
    if not force:
        raise UsageError(f"{out}: exists already; --force replaces it")
    if not is_delta(real):
        raise UsageError(f"{out}: exists and holds no {naming.DELTA}; --force replaces deltas only")
    return True
