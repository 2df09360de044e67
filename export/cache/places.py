"""Where a cache lies: its default folder, what is where below the root, and the marker that says that it is one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from export.cache.files import sync_folder, write_synced

LEVELS = ("tower", "engine")
VARIABLE = "TFCTR_CACHE_DIR"
OFF = "off"
DEFAULT_LIMIT_BYTES = 2 << 30

# The tag of https://bford.info/cachedir: backup tools leave folders with it out. The second line makes it ours.
MARKER = "CACHEDIR.TAG"
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
_OURS = b"# Compile cache of tfctr; `tfctr cache --help`. It can be removed at any time."

# What may lie in a folder that becomes a cache.
_HARMLESS = {"lost+found"}


class Unusable(Exception):
    """The cache can't be used for this; the message is the reason, for people."""


class Stuck(Unusable):
    """One entry is damaged and stays where it is; the others can be used."""


def default_root() -> Path | None:
    """$TFCTR_CACHE_DIR, else $XDG_CACHE_HOME/tfctr, else ~/.cache/tfctr.

    None: no cache, as the variable says "off", or there is no home.
    """
    given = os.environ.get(VARIABLE, "")
    if given:
        return None if given == OFF else Path(given).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):  # the specification: relative paths are to be ignored
        return Path(xdg) / "tfctr"
    try:
        return Path.home() / ".cache" / "tfctr"
    except RuntimeError:
        return None


class Places:
    """Paths below one root. ``open`` makes what is missing; nothing else here writes."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(os.path.realpath(Path(root).expanduser()))
        self.locks = self.root / "locks"
        self.temporary = self.root / "tmp"
        self.damaged = self.root / "damaged"

    def level(self, level: str) -> Path:
        return self.root / level

    def entry(self, level: str, key: str) -> Path:
        return self.root / level / key

    def lock(self, level: str, key: str) -> Path:
        return self.locks / f"{level}-{key}.lock"

    def build_prefix(self, level: str, key: str) -> str:
        """Of the temporary folders in which an entry is built: who has its lock may remove them."""
        return f"{level}-{key}-"

    @property
    def is_cache(self) -> bool:
        """Whether the root holds our marker."""
        try:
            return _OURS in (self.root / MARKER).read_bytes()
        except OSError:
            return False

    def open(self) -> None:
        """Makes root, marker and folders where they are missing. Raises Unusable with the reason."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not self.is_cache:
                self._adopt()
            for folder in (*(self.level(name) for name in LEVELS), self.locks, self.temporary):
                self._make(folder)
        except OSError as error:
            raise Unusable(reason(error)) from error

    def _adopt(self) -> None:
        # A damaged marker among nothing but our folders is written again.
        known = {*LEVELS, *_HARMLESS, *(path.name for path in (self.locks, self.temporary, self.damaged))}
        others = [n for n in os.listdir(self.root) if n not in known and not n.startswith((MARKER, f".{MARKER}"))]
        if others:
            raise Unusable(f"the folder is not empty and is no cache of tfctr ({sorted(others)[0]} lies in it)")
        write_synced(self.root / MARKER, _SIGNATURE + b"\n" + _OURS + b"\n")
        sync_folder(self.root)

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            # A cache on a read-only file system can still be read.
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise


def reason(error: OSError) -> str:
    """One line for people."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if error.errno == errno.EFBIG:
        return "a file would be larger than the limit of this process"
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"{error.filename or 'it'} is not a folder"
    return f"{error.strerror or error}{where}"
