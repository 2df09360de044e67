"""A folder that is full, read-only, missing or something else: the work is done without the cache, and said once."""

import errno
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from export.cache import CompileCache
from tests.export.cache.keys import KEY, Builder, in_child, key, no_build

NOBODY = 65534


def works_without(root: Path, why: str, builds: int = 2) -> None:
    """Two keys are built and given, nothing is stored, ``why`` is said once."""
    said: list[str] = []
    build = Builder()
    with CompileCache(root, note=said.append) as cache:
        for k in range(2):
            entry = cache.get_or_build("tower", key(k), build)
            assert entry.status == "off"
            assert entry.read("tower.onnx") == build.files["tower.onnx"]
            assert why in entry.note
        folder = entry.folder
    assert build.calls == builds
    (line,) = said
    assert line.startswith("compile cache ") and why in line and line.endswith("; going on without it")
    assert not folder.exists()


def test_the_root_is_a_file(tmp_path):
    (tmp_path / "cache").write_text("mine")
    works_without(tmp_path / "cache", f"{tmp_path / 'cache'} is not a folder")
    assert (tmp_path / "cache").read_text() == "mine"


def test_below_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    works_without(tmp_path / "file" / "cache", "is not a folder")


def test_where_no_folder_can_be_made():
    works_without(Path("/proc/tfctr"), "No such file or directory (/proc/tfctr)")


def test_a_level_is_a_file(tmp_path):
    with CompileCache(tmp_path) as cache:
        cache.get_or_build("tower", KEY, Builder())
    shutil.rmtree(tmp_path / "tower")
    (tmp_path / "tower").write_text("x")
    works_without(tmp_path, f"{tmp_path / 'tower'} is not a folder")


def test_a_dangling_link(tmp_path):
    """What it points at is made, as by `mkdir -p`."""
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with CompileCache(tmp_path / "link") as cache:
        assert cache.get_or_build("tower", KEY, Builder()).status == "miss"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    works_without(tmp_path / "loop", "")


def test_a_folder_of_something_else(tmp_path):
    """It is not filled with our files, and `clear` could not tell them apart."""
    (tmp_path / "thesis.txt").write_text("mine")
    works_without(tmp_path, "the folder is not empty and is no cache of tfctr (thesis.txt lies in it)")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_new_volume_is_empty(tmp_path):
    (tmp_path / "lost+found").mkdir()
    with CompileCache(tmp_path) as cache:
        assert cache.get_or_build("tower", KEY, Builder()).status == "miss"


@pytest.mark.parametrize("marker", [None, b"", b"Signature: 8a477f597d28d172789f06886806bc55\n# of another program"])
def test_a_lost_marker(tmp_path, marker):
    """Nothing but our folders lies there: it is written again."""
    with CompileCache(tmp_path) as cache:
        cache.get_or_build("tower", KEY, Builder())
    good = (tmp_path / "CACHEDIR.TAG").read_bytes()
    (tmp_path / "CACHEDIR.TAG").unlink()
    if marker is not None:
        (tmp_path / "CACHEDIR.TAG").write_bytes(marker)
    with CompileCache(tmp_path) as cache:
        assert cache.get_or_build("tower", KEY, no_build).status == "hit"
    assert (tmp_path / "CACHEDIR.TAG").read_bytes() == good


class Full:
    """A disk without room below ``root``: from the ``after``-th fsync on, each fails as a full one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, after: int, error: int) -> None:
        self._root, self._left, self._error, self._fsync = str(root), after, error, os.fsync
        monkeypatch.setattr(os, "fsync", self._full)

    def _full(self, handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").startswith(self._root):
            if self._left <= 0:
                raise OSError(self._error, os.strerror(self._error))
            self._left -= 1
        self._fsync(handle)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("after", range(4))
def test_full_while_sealing(tmp_path, monkeypatch, after, error):
    """What was built is used and not built again; the same is not tried for every key."""
    with CompileCache(tmp_path) as cache:
        cache.get_or_build("tower", key(9), Builder())
    Full(monkeypatch, tmp_path, after, error)
    why = os.strerror(error) if error == errno.EIO else "the disk is full"
    works_without(tmp_path, f"can't be written: {why}")
    monkeypatch.undo()
    assert list((tmp_path / "tmp").iterdir()) == list((tmp_path / "locks").iterdir()) == []
    with CompileCache(tmp_path) as cache:
        assert cache.get_or_build("tower", key(9), no_build).status == "hit"
        assert cache.get_or_build("tower", key(0), Builder()).status == "miss"


def test_full_while_building(tmp_path):
    """The build itself fails for want of room: it is run again elsewhere."""
    folders = []

    def build(folder: Path) -> None:
        folders.append(folder)
        (folder / "tower.onnx").write_bytes(b"some")
        if tmp_path in folder.parents:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "tower.onnx"))

    with CompileCache(tmp_path, note=lambda line: None) as cache:
        entry = cache.get_or_build("tower", KEY, build)
        assert entry.status == "off" and entry.read("tower.onnx") == b"some"
        assert cache.get_or_build("tower", key(1), build).status == "off"
        assert len(folders) == 3 and len(cache.notes) == 1
        assert "can't be written: the disk is full; going on without it" in cache.notes[0]
    assert list((tmp_path / "tmp").iterdir()) == list((tmp_path / "tower").iterdir()) == []


def test_full_everywhere(tmp_path):
    """Nothing can be done then: the build's own error, which names the file."""

    def build(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "tower.onnx"))

    with CompileCache(tmp_path, note=lambda line: None) as cache, pytest.raises(OSError, match="tower.onnx"):
        cache.get_or_build("tower", KEY, build)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A real file system of 16 pages; where none can be mounted (not root), the tests with simulated errors remain."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tfctr", disk], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk(small_disk):
    """The build finds no room: it is run again elsewhere."""
    build = Builder({"plan": b"x" * 200_000})
    said: list[str] = []
    with CompileCache(small_disk, note=said.append) as cache:
        entry = cache.get_or_build("engine", KEY, build)
        assert entry.status == "off" and entry.read("plan") == build.files["plan"] and build.calls == 2
        assert cache.get_or_build("engine", key(1), build).status == "off" and build.calls == 3
    assert said == [f"compile cache {small_disk}: can't be written: the disk is full; going on without it"]
    assert list((small_disk / "tmp").iterdir()) == list((small_disk / "engine").iterdir()) == []
    with CompileCache(small_disk) as cache:
        assert cache.get_or_build("engine", KEY, Builder({"plan": b"small"})).status == "miss"


def test_a_disk_that_is_full_when_all_is_built(small_disk):
    """Room for what is built, none for key.json: it is not built twice."""
    with CompileCache(small_disk, note=lambda line: None) as cache:
        cache.get_or_build("engine", key(1), Builder({"plan": b"first"}))
        (small_disk / "filler").write_bytes(b"x" * (os.statvfs(small_disk).f_bavail - 2) * 4096)
        build = Builder({"plan": b"x" * 8192})
        entry = cache.get_or_build("engine", KEY, build)
        assert entry.status == "off" and entry.read("plan") == build.files["plan"] and build.calls == 1
        assert "the disk is full" in entry.note and small_disk not in entry.folder.parents
        assert cache.get_or_build("engine", key(1), no_build).hit
    assert list((small_disk / "tmp").iterdir()) == []


def test_a_read_only_disk(small_disk):
    with CompileCache(small_disk) as cache:
        cache.get_or_build("tower", KEY, Builder())
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with CompileCache(small_disk, note=lambda line: None) as cache:
        assert cache.get_or_build("tower", KEY, no_build).hit
        assert cache.get_or_build("tower", key(1), Builder()).status == "off"
        assert "can't be written: Read-only file system" in cache.notes[0] and len(cache.notes) == 1
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    (file,) = small_disk.glob("tower/*/tower.onnx")
    file.write_bytes(b"")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with CompileCache(small_disk, note=lambda line: None) as cache:
        assert cache.get_or_build("tower", KEY, Builder()).status == "off"
        assert "Read-only file system" in cache.notes[0]
        assert "is damaged: tower.onnx has 0 bytes" in cache.notes[1] and "it stays where it is" in cache.notes[1]


def test_a_limit_on_the_size_of_files(tmp_path):
    """A real one, of the kernel; hits still work under it."""
    with CompileCache(tmp_path) as cache:
        cache.get_or_build("tower", key(9), Builder())

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    def act() -> list[object]:
        sizes = []

        def build(folder: Path) -> None:
            sizes.append(str(folder))
            # Elsewhere is as limited: the larger file would not fit there either.
            (folder / "tower.onnx").write_bytes(b"x" * (8192 if len(sizes) == 1 else 100))

        with CompileCache(tmp_path, note=lambda line: None) as cache:
            entry = cache.get_or_build("tower", KEY, build)
            hit = cache.get_or_build("tower", key(9), no_build)
            return [entry.status, len(entry.read("tower.onnx")), hit.status, cache.notes, len(sizes)]

    status, size, hit, notes, builds = in_child(act, limit)
    assert (status, size, hit, builds) == ("off", 100, "hit", 2)
    assert len(notes) == 1 and "a file would be larger than the limit of this process" in notes[0]


def as_nobody() -> None:
    """Permissions bind again, where the tests run as root."""
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@pytest.fixture
def open_path(tmp_path):
    """Everybody may go through the folders of the test."""
    for folder in (tmp_path, *tmp_path.parents):
        if Path(tempfile.gettempdir()) not in folder.parents:
            break
        folder.chmod(0o755)
    return tmp_path


def test_a_folder_that_may_only_be_read(open_path):
    """What is there is used; what is not is built, and not stored."""
    root = open_path / "cache"
    with CompileCache(root) as cache:
        cache.get_or_build("tower", KEY, Builder())
    for path in (root, *root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)

    def act() -> list[object]:
        with CompileCache(root, note=lambda line: None) as cache:
            found = [cache.get_or_build("tower", KEY, no_build)]
            found += [cache.get_or_build("tower", key(k), Builder()) for k in range(2)]
            return [[one.status for one in found], found[1].read("tower.onnx").decode(), cache.notes]

    statuses, data, notes = in_child(act, as_nobody)
    assert statuses == ["hit", "off", "off"] and data == "onnx" * 100
    (line,) = notes
    assert "can't be written: Permission denied" in line
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)


@pytest.mark.parametrize("movable", [True, False])
def test_an_entry_that_may_not_be_read(open_path, movable):
    """Set aside where that is allowed, else left; other entries can be stored all the same."""
    root = open_path / "cache"
    root.mkdir()
    with CompileCache(root) as cache:
        entry = cache.get_or_build("tower", KEY, Builder())
    for path in (root, *root.iterdir()):
        path.chmod(0o777)
    entry.folder.chmod(0o777 if movable else 0o755)
    (entry.folder / "tower.onnx").chmod(0)

    def act() -> list[object]:
        with CompileCache(root, note=lambda line: None) as cache:
            found = [cache.get_or_build("tower", one, Builder()).status for one in (KEY, KEY, key(1))]
            return [found, cache.notes]

    statuses, notes = in_child(act, as_nobody)
    assert len(notes) == 1
    if movable:
        assert statuses == ["miss", "hit", "miss"]
        assert "is damaged: tower.onnx: Permission denied; set aside as" in notes[0]
    else:
        assert statuses == ["off", "off", "miss"]
        assert "is damaged: tower.onnx: Permission denied; it can't be set aside: Permission denied" in notes[0]
        assert notes[0].endswith("going on without this entry")


def test_a_home_that_may_not_be_written(open_path):
    root = open_path / "home" / "cache"
    (open_path / "home").mkdir(mode=0o555)

    def act() -> list[object]:
        with CompileCache(root, note=lambda line: None) as cache:
            return [cache.get_or_build("tower", KEY, Builder()).status, cache.notes]

    status, notes = in_child(act, as_nobody)
    assert status == "off" and "Permission denied" in notes[0]


@pytest.mark.parametrize("early", [True, False])
def test_the_folder_is_removed_meanwhile(tmp_path, early):
    """`rm -rf` of a cache is allowed at any time."""
    root = tmp_path / "cache"

    calls = []

    def build(folder: Path) -> None:
        calls.append(folder)
        if len(calls) == 1 and early:
            shutil.rmtree(root)
        (folder / "tower.onnx").write_bytes(b"onnx")
        if len(calls) == 1:
            shutil.rmtree(root, ignore_errors=True)

    with CompileCache(root, note=lambda line: None) as cache:
        entry = cache.get_or_build("tower", KEY, build)
        assert entry.status == "off" and entry.read("tower.onnx") == b"onnx"
        assert len(calls) == 2 and "its folder was removed meanwhile; going on without it" in cache.notes[0]
    with CompileCache(root) as cache:
        assert cache.get_or_build("tower", KEY, Builder()).status == "miss"


def test_too_many_open_files(tmp_path):
    """No entry is taken for damaged because this process may open no further file."""
    with CompileCache(tmp_path) as cache:
        for k in range(60):
            cache.get_or_build("tower", key(k), Builder())

    def limit() -> None:
        free = [os.open("/dev/null", os.O_RDONLY) for _ in range(30)]  # the lowest ones, which may lie far apart
        for handle in free:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, free[-1] + 1))

    def act() -> list[object]:
        with CompileCache(tmp_path, note=lambda line: None) as cache:
            for _ in range(100):  # one entry is held once
                assert cache.get_or_build("tower", key(0), no_build).hit
            statuses = []
            try:
                for k in range(60):
                    statuses.append(cache.get_or_build("tower", key(k), no_build).status)
            except (AssertionError, OSError):
                return [statuses, cache.notes]
        return [statuses, []]

    statuses, notes = in_child(act, limit)
    assert 10 < len(statuses) < 60 and set(statuses) == {"hit"}
    assert len(notes) == 1 and "can't be read: Too many open files" in notes[0]
    assert not (tmp_path / "damaged").exists()
