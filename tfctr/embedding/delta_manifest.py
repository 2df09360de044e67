"""The list of saves in a directory of delta checkpoints: what belongs together, in which order, and which files it has.

`delta_checkpoints.json` names every save that is whole; what it does not name is no save, whatever lies there. It is
replaced by one rename after the files of a save are on the disk. No TensorFlow here.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tfctr.errors import CorruptFileError, UsageError

FORMAT = 1
FILE_NAME = "delta_checkpoints.json"
LOCK_NAME = ".delta_checkpoints.lock"


@dataclasses.dataclass(frozen=True)
class TableSave:
    """How one table was saved.

    Attributes:
      name: of the table in the checkpoint.
      delta: what changed since the save before; False: all of it.
      rows: rows in this save.
      removed: keys that lost their row or their count; 0 in a whole one.
      table_rows: rows of the table when it was saved.
      why: why it is whole.
    """

    name: str
    delta: bool
    rows: int
    removed: int
    table_rows: int
    why: str


@dataclasses.dataclass(frozen=True)
class Save:
    """One save of the list.

    Attributes:
      name: file name of its prefix, "ckpt-12".
      number: 12.
      save: its random name: what a delta on it must find.
      previous: `save` of the one before, whose tables it builds upon; "" for a full one.
      why: why it is a full one.
      time: seconds since 1970.
      files: file name -> bytes.
      index_sha256: of the .index file, which has the checksums of all the others.
      tables: how each was saved.
    """

    name: str
    number: int
    save: str
    previous: str
    why: str
    time: float
    files: dict[str, int]
    index_sha256: str
    tables: tuple[TableSave, ...]

    @property
    def is_delta(self) -> bool:
        """Whether some table of it builds upon the save before."""
        return bool(self.previous)

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(self.files.values())


def read(directory: Path) -> tuple[Save, ...]:
    """The saves of a directory, oldest first; none where there is no list.

    Raises:
      CorruptFileError: the list is damaged, or by a newer tfctr; names the file.
    """
    path = directory / FILE_NAME
    try:
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path}: not a list of delta checkpoints: {error}") from None
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        found = told.get("format") if isinstance(told, dict) else None
        raise CorruptFileError(f"{path}: it has format {found!r}, this version of tfctr reads {FORMAT}")
    saves = told.get("saves") or []
    if told.get("sha256") != _digest(saves):
        raise CorruptFileError(f"{path}: its checksum does not fit its contents: it is damaged, or was edited")
    return tuple(Save(**{**save, "tables": tuple(TableSave(**table) for table in save["tables"])}) for save in saves)


def write(directory: Path, saves: Sequence[Save]) -> None:
    """Replaces the list: the moment from which a save counts."""
    listed = [dataclasses.asdict(save) for save in saves]
    told = {"format": FORMAT, "sha256": _digest(listed), "saves": listed}
    replace(directory / FILE_NAME, json.dumps(told, indent=1))


def replace(path: Path, text: str) -> None:
    """Gives a file other contents, on the disk, by one rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def _digest(saves: Any) -> str:
    text = json.dumps(json.loads(json.dumps(saves)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sync(path: Path) -> None:
    """fsync of a file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def files_of(directory: Path, name: str) -> list[Path]:
    """Files of the checkpoint `name`, the index last."""
    pattern = re.compile(re.escape(name) + r"\.(index|data-\d{5}-of-\d{5})")
    found = [path for path in directory.iterdir() if pattern.fullmatch(path.name)]
    return sorted(found, key=lambda path: (path.suffix == ".index", path.name))


def numbers(directory: Path, prefix: str) -> dict[int, list[Path]]:
    """number -> everything in the directory that a save PREFIX-number has, or left when it was interrupted."""
    pattern = re.compile(re.escape(prefix) + r"-(\d+)([._-].*)?")
    found: dict[int, list[Path]] = {}
    for path in sorted(directory.iterdir()):
        match = pattern.fullmatch(path.name)
        if match:
            found.setdefault(int(match[1]), []).append(path)
    return found


def index_sha256(directory: Path, name: str) -> str:
    """Of the .index file of a checkpoint."""
    return hashlib.sha256((directory / f"{name}.index").read_bytes()).hexdigest()


def chain(directory: Path, saves: Sequence[Save], name: str) -> tuple[Save, ...]:
    """The saves that `name` needs, the full one first, itself last.

    Raises:
      UsageError: the list has no save `name`; says which it has.
      CorruptFileError: a save before it is not in the list.
    """
    by_name = {save.name: save for save in saves}
    by_save = {save.save: save for save in saves}
    if name not in by_name:
        raise UsageError(f"{directory}: there is no save {name!r}, expected one of {', '.join(by_name) or 'none'}")
    links = [by_name[name]]
    while links[-1].previous:
        if links[-1].previous not in by_save:
            raise CorruptFileError(
                f"{directory / FILE_NAME}: save {links[-1].name!r} is a delta on save {links[-1].previous}, which is "
                f"not in the list"
            )
        links.append(by_save[links[-1].previous])
    return tuple(reversed(links))


def check_files(directory: Path, save: Save) -> None:
    """Checks that the files of a save are there, as long as they were, with the index that they had.

    Raises:
      CorruptFileError: names the file, and what is wrong with it.
    """
    for file, size in save.files.items():
        path = directory / file
        if not path.is_file():
            raise CorruptFileError(f"{path}: missing, but save {save.name!r} needs it")
        found = path.stat().st_size
        if found != size:
            raise CorruptFileError(f"{path}: it has {found} bytes, save {save.name!r} wrote {size}")
    if index_sha256(directory, save.name) != save.index_sha256:
        raise CorruptFileError(
            f"{directory / save.name}.index: not the index that save {save.name!r} ({save.save}) wrote: it is damaged, "
            f"or of another run"
        )


class Lock:
    """Held by the one manager that saves into a directory; goes with its process, and not to those that it forks."""

    _held: ClassVar[set[Path]] = set()  # by this process, which a lock of the system does not refuse
    _one: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_NAME
        self._handle: int | None = None
        self._place: Path | None = None

    def take(self) -> None:
        """Takes the lock, or keeps it. UsageError, naming the process, where another manager has it."""
        if self._handle is not None:
            return
        place = self._path.parent.resolve()
        with self._one:
            if place in self._held:  # opening and closing the file would give the lock away
                raise self._refusal(str(os.getpid()))
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.read(handle, 32).decode(errors="replace").strip()
                os.close(handle)
                raise self._refusal(holder or "unknown") from None
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
            self._handle, self._place = handle, place
            self._held.add(place)

    def _refusal(self, holder: str) -> UsageError:
        return UsageError(
            f"{self._path.parent}: another DeltaCheckpointManager saves into it (process {holder}); give each a "
            f"directory of its own, or close the other one"
        )

    def release(self) -> None:
        """Lets another manager save."""
        if self._handle is None or self._place is None:
            return
        with self._one:
            self._held.discard(self._place)
            os.close(self._handle)
            self._handle = None


@contextlib.contextmanager
def removing_on_error(directory: Path, prefix: str, number: int) -> Iterator[None]:
    """Removes what a save that failed has left, unless it was listed before it failed."""
    try:
        yield
    except BaseException:
        if all(save.number != number for save in read(directory)):
            remove(numbers(directory, prefix).get(number, []))
        raise


def remove(paths: Sequence[Path]) -> None:
    """Removes files, and folders with what is in them; what is gone already is no error."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            remove(list(path.iterdir()))
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()
        else:
            path.unlink(missing_ok=True)
