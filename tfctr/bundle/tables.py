"""``tfctr.load_table``: the rows of a table at rest, looked up from Python as serving looks them up.

The files are memory-mapped as they lie: loading takes milliseconds, and rows that nobody asks for are never read.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfctr.bundle import naming, reader
from tfctr.core import library
from tfctr.errors import InputError, UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

Keys = Any  # an int64 array or (nested) list of any shape; of strings where the table's keys are strings
_TABLES = ("table", "hash")


class Table:
    """A table as it is served: a static one, or the frozen rows of an embedding variable; overlays included.

    Made by :func:`load_table`. Safe to be used by several threads; nothing in it changes.

    Attributes:
      name: of the variable.
      dim: numbers of a row.
      info: what its file says: `path`, `hashed`, `rows`, `storage`, `memory`, `fingerprint`, `overlay` (None, or its
        `path`, `rows`, `removed`); of an embedding variable also `step`, `time_ms`, `key_dtype`, `source` (its name in
        the checkpoint) and `config` (JSON).
    """

    def __init__(self, path: Path, overlay: Path | None, storage: str, memory: str) -> None:
        native = library.native()
        with library.native_errors():
            about = native.file_info(path)
            if about["kind"] not in _TABLES:
                raise UsageError(f"{path}: a {about['kind']} file, expected a table or a hash file")
            self._served = native.ServedTable(path, overlay, memory, storage)
            self.info: dict[str, Any] = dict(self._served.info())
            if self._served.hashed:
                told = native.hash_info(path)
                self.info |= {k: told[k] for k in ("storage", "step", "time_ms", "key_dtype", "source", "config")}
            else:
                self.info["storage"] = storage or about["dtype"]
        self.name: str = self._served.name
        self.dim: int = self._served.dim

    def __len__(self) -> int:
        """How many keys have a row."""
        return len(self._served)

    def __repr__(self) -> str:
        return f"<tfctr table '{self.name}': {len(self)} rows of {self.dim} numbers, {self.info['storage']}>"

    def lookup(self, keys: Keys) -> npt.NDArray[np.float32]:
        """Rows of keys, float32 ``keys.shape + (dim,)``.

        Unknown keys of an embedding variable get its default value, as in inference. Keys of a static table are its row
        numbers.

        Raises:
          InputError: keys of another dtype than the table's; a row number that a static table does not have.
        """
        with self._input_errors():
            return np.asarray(self._served.rows(self._int64(keys)))

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which keys have a row of their own, bool of the shape of ``keys``. InputError as in :meth:`lookup`."""
        with self._input_errors():
            return np.asarray(self._served.contains(self._int64(keys)))

    def keys(self) -> npt.NDArray[np.int64]:
        """All keys that have a row, int64 [len(self)], in the order of the file; of string keys their fingerprints."""
        with library.native_errors():
            return np.asarray(self._served.keys())

    def rows(self) -> npt.NDArray[np.float32]:
        """All rows, float32 [len(self), dim], in the order of :meth:`keys`."""
        with self._input_errors():
            return np.asarray(self._served.rows(self._served.keys()))

    def _int64(self, keys: Keys) -> npt.NDArray[np.int64]:
        array = np.asarray(keys)
        texts = array.dtype.kind in "SUO" and array.size > 0
        if texts != (self.info.get("key_dtype") == "string") and array.size > 0:
            if texts:
                raise InputError(f"table '{self.name}': keys are strings, expected whole numbers")
            if array.dtype != np.int64:  # int64: fingerprints, as keys() gives them
                raise InputError(
                    f"table '{self.name}': keys are {array.dtype}, expected strings, or int64 fingerprints of strings"
                )
        if not texts:
            return array
        flat = array.reshape(-1).tolist()
        return np.asarray(library.native().fingerprint64(flat)).reshape(array.shape)

    @contextlib.contextmanager
    def _input_errors(self) -> Iterator[None]:
        try:
            yield
        except (IndexError, ValueError) as error:
            raise InputError(str(error)) from error


def load_table(path: str | Path, name: str | None = None, *, huge_pages: bool = False) -> Table:
    """Opens a table: ``load_table("out/bundle", "user_id").lookup([[1, 2], [3, 4]])``.

    Args:
      path: a bundle (``name`` says which table; not needed where there is only one), or a table file or hash file of
        one. Overlays of applied deltas belong to the bundle: a file alone is looked up without.
      name: as the bundle names it; see ``tfctr inspect``.
      huge_pages: copies the table into this process's memory, in huge pages: lookups are faster, for the price of its
        size. Else the pages of the file are used, shared by all processes.

    Raises:
      UsageError: there is no such file, bundle or table (the error lists those that there are).
      CorruptFileError: a file is damaged.
      VersionError: it was written by a newer release.
    """
    place = Path(path)
    memory = "huge_pages" if huge_pages else "mapped"
    if not place.is_dir():
        if name is not None:
            raise UsageError(f"{place}: no bundle, so it has no tables by name")
        return Table(place, None, "", memory)
    if not naming.is_bundle(place):
        raise UsageError(f"{place}: no tfctr bundle (it has no {naming.MANIFEST}), and no table file")
    found = _find(reader.open_bundle(place), name)
    return Table(found.path, found.overlay, found.storage, memory)


@dataclasses.dataclass(frozen=True)
class _Place:
    path: Path
    overlay: Path | None
    storage: str


def _find(bundle: reader.Bundle, name: str | None) -> _Place:
    files: Sequence[dict[str, Any]] = bundle.manifest["store"]["files"]
    tables = [(index, entry) for index, entry in enumerate(files) if entry["kind"] in _TABLES]
    picked = [(index, entry) for index, entry in tables if name is None or entry["name"] == name]
    if len(picked) != 1:
        names = ", ".join(sorted({repr(str(entry["name"])) for _, entry in tables})) or "none"
        if name is None:
            raise UsageError(f"{bundle.path}: say which table (name=); it has {names}")
        count = "no table" if not picked else f"{len(picked)} tables"
        raise UsageError(f"{bundle.path}: {count} of the name {name!r}; it has {names}")
    index, entry = picked[0]
    overlays = [bundle.path / other["file"] for other in files if other["kind"] == "overlay" and other["base"] == index]
    storage = str(entry.get("storage") or "") if entry["kind"] == "table" else ""
    return _Place(bundle.path / entry["file"], overlays[0] if overlays else None, storage)
