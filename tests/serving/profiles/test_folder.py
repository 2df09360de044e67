"""A folder with a bound: the oldest go, files are whole or not there, and what is not ours stays."""

import os
import resource
import signal

import pytest

from tfctr.serving.profiles import folder


def put(where, name, size, age=0):
    path = folder.write(where, name, b"x" * size, 10**9)
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - age * 10**9))
    return path


def test_the_oldest_go(tmp_path):
    for age in (3, 2, 1):
        put(tmp_path, f"t{age}{folder.TRACE}", 100, age)
    page = put(tmp_path, folder.PAGE, 100, 9)
    new = folder.write(tmp_path, f"new{folder.TRACE}", b"x" * 100, 350)
    assert {one.path for one in folder.entries(tmp_path)} == {tmp_path / f"t1{folder.TRACE}", page, new}
    folder.prune(tmp_path, 100, keep=new)
    assert [one.path for one in folder.entries(tmp_path)] == [new]


def test_recordings_go_with_their_folder(tmp_path):
    put(tmp_path, f"{folder.XPLANES}/run1/h{folder.XPLANE}", 100, 5)
    new = put(tmp_path, f"{folder.XPLANES}/run2/h{folder.XPLANE}", 100)
    folder.prune(tmp_path, 150)
    assert [one.path for one in folder.entries(tmp_path)] == [new]
    assert not (tmp_path / folder.XPLANES / "run1").exists()


def test_what_is_not_ours_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    put(tmp_path, f"a{folder.TRACE}", 100)
    folder.prune(tmp_path, 0)
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_too_large_alone(tmp_path):
    old = put(tmp_path, f"a{folder.TRACE}", 100)
    with pytest.raises(OSError, match="more than the folder may hold"):
        folder.write(tmp_path, f"b{folder.TRACE}", b"x" * 200, 150)
    assert [one.path for one in folder.entries(tmp_path)] == [old]


def test_a_write_that_fails_leaves_nothing(tmp_path):
    """The kernel refuses bytes, as it does on a full disk."""
    old = put(tmp_path, f"a{folder.TRACE}", 100)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            folder.write(tmp_path, f"b{folder.TRACE}", b"x" * 5000, 10**9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == [old]


def test_halves_of_those_that_died(tmp_path):
    (tmp_path / f".a{folder.TRACE}{folder.HALF}").write_bytes(b"x")
    (tmp_path / f".{folder.PAGE}.tmp-1").write_bytes(b"x")
    kept = put(tmp_path, f"a{folder.TRACE}", 1)
    folder.clear_halves(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]
