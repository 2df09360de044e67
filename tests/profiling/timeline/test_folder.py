"""The folder of a profile: whole or as it was, whatever fails."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest

from tests.profiling.timeline.test_chrome_trace import TIMELINE
from tfctr.errors import CorruptFileError, UsageError
from tfctr.profiling.timeline import chrome_trace, folder
from tfctr.profiling.timeline.events import Timeline
from tfctr.profiling.timeline.folder import read_timeline, write_profile
from tfctr.profiling.timeline.recording import Recording

RECORDING = Recording(TIMELINE, b"xspace")


def page(path: Path, ours: Timeline, baseline: Timeline | None) -> None:
    path.write_text(f"{ours.title} {baseline and baseline.title}")


def contents(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def test_what_a_profile_leaves(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    written = write_profile(out, RECORDING, RECORDING, page)
    assert {str(path.relative_to(out)) for path in written} == set(contents(out)) == {
        "trace.json",
        "timeline.json",
        "baseline.json",
        "index.html",
        "plugins/profile/profile/tfctr.xplane.pb",
        "plugins/profile/baseline/tfctr.xplane.pb",
    }  # fmt: skip
    assert read_timeline(out / "timeline.json") == TIMELINE
    write_profile(out, RECORDING, None, page)
    assert "baseline.json" not in contents(out) and not (out / "plugins/profile/baseline").exists()


class Full(io.StringIO):
    """A disk that is full after so many characters."""

    def __init__(self, file: Any, left: int) -> None:
        super().__init__()
        self.file, self.left = file, left

    def write(self, text: str) -> int:
        self.left -= len(text)
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device", self.file.name)
        return self.file.write(text)


@pytest.mark.parametrize("after", [0, 100, 1000])
def test_a_disk_that_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    before = tmp_path / "before"
    write_profile(before, RECORDING, None, page)
    kept = contents(before)
    real = chrome_trace.write_trace
    monkeypatch.setattr(folder, "write_trace", lambda file, timelines: real(Full(file, after), timelines))
    for out in (tmp_path / "new" / "deep", before):
        with pytest.raises(UsageError, match=f"{out}: the disk is full; nothing was written"):
            write_profile(out, RECORDING, RECORDING, page)
    assert [path.name for path in tmp_path.iterdir()] == ["before"] and contents(before) == kept


def test_a_page_that_fails(tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise ValueError("page")

    with pytest.raises(ValueError, match="page"):
        write_profile(tmp_path / "out", RECORDING, None, broken)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_timelines(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json: No such file"):
        read_timeline(tmp_path / "none.json")
    for number, text in enumerate(["{", "[]", "{}", '{"format": 99}', '{"format": 1, "texts": []}', "\udcff"]):
        path = tmp_path / f"{number}.json"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(CorruptFileError, match=path.name):
            read_timeline(path)


def test_an_attempt_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    """Its files are swept; those of one that still runs are not."""
    dead, alive = (tmp_path / f"{folder.WORK}{number}" for number in (2**30, 1))
    for work in (dead, alive):
        work.mkdir()
        (work / "trace.json").write_text("{")
    folder.check_folder(tmp_path)
    write_profile(tmp_path, RECORDING, None, page)
    assert not dead.exists() and alive.exists()


def test_a_place_that_takes_no_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out, why in (("file", "is a file"), ("file/a/b", "is a file"), ("link", "is a file"), ("n" * 300, "too long")):
        with pytest.raises(UsageError, match=why):
            folder.check_folder(tmp_path / out)
    folder.check_folder(tmp_path / "a/b/c")
    assert not (tmp_path / "a").exists()
