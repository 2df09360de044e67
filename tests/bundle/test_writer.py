"""The bundle appears in one step or not at all; what may be replaced, and what a killed run leaves."""

import errno
import os
from pathlib import Path

import pytest

from tfctr.bundle import naming
from tfctr.bundle.writer import BundleWriter, check_target, disk_error, size_text
from tfctr.errors import UsageError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "ranker" / "1"
    folder.mkdir(parents=True)
    (folder / naming.MODEL).write_bytes(b"model")
    return folder


def listing(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def test_nothing_is_visible_before_commit(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "new" / "bundle"
    with BundleWriter(out, model) as writer:
        writer.write(naming.MODEL, b"bundle")
        assert not out.exists()
        hidden = [p.name for p in out.parent.iterdir()]
        assert all(name.startswith(".") and not name.isdecimal() for name in hidden)
        assert writer.commit() == out
    assert (out / naming.MODEL).read_bytes() == b"bundle"
    assert [p.name for p in out.parent.iterdir()] == ["bundle"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("x"), MemoryError()])
def test_a_failure_leaves_nothing(tmp_path: Path, model: Path, error: BaseException) -> None:
    before = listing(tmp_path)
    with pytest.raises(type(error)), BundleWriter(tmp_path / "a" / "b" / "bundle", model) as writer:
        writer.write(naming.MODEL, b"half")
        raise error
    assert listing(tmp_path) == before


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, model: Path) -> None:
    before = listing(tmp_path)
    with (
        pytest.raises(UsageError, match="the disk is full; nothing was written"),
        BundleWriter(tmp_path / "out", model),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert listing(tmp_path) == before


def test_existing_output_needs_force(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UsageError, match="exists already; --force"):
        check_target(out, model, force=False)
    with pytest.raises(UsageError, match="holds no saved_model.pb"):
        check_target(out, model, force=True)
    (out / naming.MODEL).write_bytes(b"old")
    assert check_target(out, model, force=True)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        (".", "can't replace the model"),
        ("..", "holds the model"),
        ("../..", "holds the model"),
        ("sub/bundle", "lies inside the model"),
    ],
)
def test_the_model_is_never_written_to(model: Path, place: str, message: str, force: bool) -> None:
    for parent in model.parents[:2]:
        (parent / naming.MODEL).write_bytes(b"also a model")
    with pytest.raises(UsageError, match=message):
        check_target(Path(os.path.normpath(model / place)), model, force=force)


def test_the_model_is_found_through_links(tmp_path: Path, model: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(model, target_is_directory=True)
    with pytest.raises(UsageError, match="can't replace the model"):
        check_target(link, model, force=True)


def test_another_version_beside_the_model_is_fine(model: Path) -> None:
    assert check_target(model.parent / "2", model, force=False) is False


def test_force_replaces_only_at_commit(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / naming.MODEL).write_bytes(b"old")
    (out / "more").write_bytes(b"old")
    with pytest.raises(RuntimeError), BundleWriter(out, model, force=True) as writer:
        writer.write(naming.MODEL, b"new")
        raise RuntimeError
    assert (out / naming.MODEL).read_bytes() == b"old"
    with BundleWriter(out, model, force=True) as writer:
        writer.write(naming.MODEL, b"new")
        writer.commit()
    assert listing(out) == {naming.MODEL, "assets", "assets/tfctr"}
    assert (out / naming.MODEL).read_bytes() == b"new"
    assert {p.name for p in tmp_path.iterdir()} == {"models", "out"}


def _dead_pid() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def test_leftovers_of_a_killed_run_are_named_and_removed(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out"
    dead = tmp_path / f".out.tfctr-tmp-{_dead_pid()}"
    live = tmp_path / f".out.tfctr-tmp-{os.getppid()}"
    other = tmp_path / f".other.tfctr-tmp-{_dead_pid()}"
    for folder in (dead, live, other):
        folder.mkdir()
    said: list[str] = []
    with BundleWriter(out, model, progress=said.append) as writer:
        writer.commit()
    assert not dead.exists() and live.exists() and other.exists()
    assert any(str(dead) in line for line in said)


def test_a_bundle_moved_aside_by_a_killed_run_comes_back(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out"
    aside = tmp_path / f".out.tfctr-old-{_dead_pid()}"
    aside.mkdir()
    (aside / naming.MODEL).write_bytes(b"old")
    with pytest.raises(UsageError, match="back in place"), BundleWriter(out, model, force=True):
        pass
    assert (out / naming.MODEL).read_bytes() == b"old"


def test_needed_disk_is_stated_and_checked(tmp_path: Path, model: Path) -> None:
    said: list[str] = []
    with (
        pytest.raises(UsageError, match=r"needs about 1024.0 TB of disk"),
        BundleWriter(tmp_path / "out", model, progress=said.append) as writer,
    ):
        writer.require_space(1 << 50)
    assert "needs about" in said[0] and "free" in said[0]


def test_parent_that_is_a_file(tmp_path: Path, model: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="is a file"):
        check_target(tmp_path / "file" / "out", model, force=False)


def test_texts() -> None:
    assert [size_text(n) for n in (7, 1536, 5 << 30)] == ["7 bytes", "1.5 KB", "5.0 GB"]
    assert "Read-only" in str(disk_error(OSError(errno.EROFS, "Read-only file system"), Path("/x")))
