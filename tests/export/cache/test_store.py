"""The cache on a good day: hits, misses, what a build may do, and where the folder lies."""

import gc
import json
import logging
import threading
import time
from pathlib import Path

import pytest

from export.cache import DEFAULT_LIMIT_BYTES, CompileCache, default_root
from export.cache.entries import key_hash, tools
from export.cache.places import MARKER
from tests.export.cache.keys import KEY, Builder, key, no_build
from tfctr.errors import InternalError, UsageError


def test_a_second_call_builds_nothing(tmp_path):
    build = Builder()
    with CompileCache(tmp_path / "cache") as cache:
        first = cache.get_or_build("tower", KEY, build, label="model/ serving_default")
        again = cache.get_or_build("tower", KEY, no_build)
    with CompileCache(tmp_path / "cache") as cache:
        start = time.perf_counter()
        later = cache.get_or_build("tower", KEY, no_build)
        assert 0 < later.seconds <= time.perf_counter() - start  # its own, not the build's
        assert later.read("tower.onnx") == build.files["tower.onnx"]
    assert build.calls == 1
    assert [one.status for one in (first, again, later)] == ["miss", "hit", "hit"]
    assert first.key == later.key == key_hash("tower", KEY)
    assert first.folder == later.folder == tmp_path / "cache" / "tower" / first.key
    assert set(first.files) == {"tower.onnx", "report.json"}
    assert first.note == later.note == ""
    assert cache.notes == []


def test_levels_and_keys_are_apart(tmp_path):
    with CompileCache(tmp_path / "cache") as cache:
        for level, one in (("tower", key(1)), ("engine", key(1)), ("tower", key(2))):
            assert not cache.get_or_build(level, one, Builder({"x": f"{level} {one}".encode()})).hit
        assert cache.get_or_build("engine", key(1), no_build).read("x") == f"engine {key(1)}".encode()
        with pytest.raises(InternalError, match="no level 'plans'; there are tower, engine"):
            cache.get_or_build("plans", KEY, no_build)


def test_key_json_can_be_read(tmp_path):
    with CompileCache(tmp_path / "cache") as cache:
        entry = cache.get_or_build("engine", KEY, Builder(), label="model/ serving_default")
    told = json.loads((entry.folder / "key.json").read_text())
    assert told == entry.record
    assert told["key"] == KEY
    assert told["label"] == "model/ serving_default"
    assert told["tools"] == tools() and told["tools"]["tensorflow"].startswith("2.21")
    assert told["tfctr_cache"] == 1 and told["level"] == "engine"
    assert [file["name"] for file in told["files"]] == ["report.json", "tower.onnx"]
    assert {file["bytes"] for file in told["files"]} == {2, 400}


def test_the_label_is_no_part_of_the_key(tmp_path):
    with CompileCache(tmp_path) as cache:
        cache.get_or_build("tower", KEY, Builder(), label="one")
        assert cache.get_or_build("tower", KEY, no_build, label="another").record["label"] == "one"
    with CompileCache(tmp_path, label="models/ctr") as cache:
        assert cache.get_or_build("tower", key(2), Builder(), label="serving_default").record["label"] == (
            "models/ctr serving_default"
        )
        assert cache.get_or_build("tower", key(3), Builder()).record["label"] == "models/ctr"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        ({2: "x", 10: "y"}, {"10": "y", "2": "x"}),
    ],
)
def test_equal_keys(one, other):
    assert key_hash("tower", one) == key_hash("tower", other)


@pytest.mark.parametrize("other", [{"a": 2}, {"a": "1"}, {"a": 1, "b": None}, {"A": 1}, {"a": [1]}, {}])
def test_other_keys(other):
    assert key_hash("tower", {"a": 1}) != key_hash("tower", other)


@pytest.mark.parametrize("bad", [{"a": float("nan")}, {"a": object()}, {"a": b"bytes"}])
def test_a_key_is_json(tmp_path, bad):
    with CompileCache(tmp_path) as cache, pytest.raises(InternalError, match="a cache key must be made of JSON values"):
        cache.get_or_build("tower", bad, no_build)


def test_files_may_lie_in_folders(tmp_path):
    files = {"blobs/32": b"a", "blobs/256": b"b", "weird name \n\u00e9": b"c", "empty": b""}
    with CompileCache(tmp_path) as cache:
        cache.get_or_build("engine", KEY, Builder(files))
        entry = cache.get_or_build("engine", KEY, no_build)
        assert {name: entry.read(name) for name in entry.files} == files


def test_an_error_of_the_build_is_the_caller_s(tmp_path):
    def fail(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise UsageError("the tower can't be built")

    with CompileCache(tmp_path) as cache:
        with pytest.raises(UsageError, match="the tower can't be built"):
            cache.get_or_build("tower", KEY, fail)
        assert list((tmp_path / "tmp").iterdir()) == list((tmp_path / "locks").iterdir()) == []
        assert cache.find("tower", KEY) is None
        assert not cache.get_or_build("tower", KEY, Builder()).hit
    assert cache.notes == []


def test_interrupted(tmp_path):
    def interrupt(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise KeyboardInterrupt

    with CompileCache(tmp_path) as cache:
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_build("tower", KEY, interrupt)
        assert list((tmp_path / "tmp").iterdir()) == []
        assert cache.get_or_build("tower", KEY, Builder()).status == "miss"


@pytest.mark.parametrize("names", [[], ["key.json"], ["link"]])
def test_what_a_build_may_not_leave(tmp_path, names):
    def build(folder: Path) -> None:
        for name in names:
            if name == "link":
                (folder / name).symlink_to("/etc/passwd")
            else:
                (folder / name).write_bytes(b"{}")

    with CompileCache(tmp_path) as cache, pytest.raises(InternalError, match="no file was built|no ordinary file"):
        cache.get_or_build("tower", KEY, build)
    assert list((tmp_path / "tower").iterdir()) == list((tmp_path / "tmp").iterdir()) == []


def test_levels_may_nest_and_a_key_not_in_itself(tmp_path):
    def engine(folder: Path) -> None:
        tower = cache.get_or_build("tower", KEY, Builder())
        (folder / "plan").write_bytes(tower.read("tower.onnx"))

    def itself(folder: Path) -> None:
        cache.get_or_build("tower", key(2), itself)

    with CompileCache(tmp_path) as cache:
        assert cache.get_or_build("engine", KEY, engine).read("plan") == b"onnx" * 100
        with pytest.raises(InternalError, match="asks for itself"):
            cache.get_or_build("tower", key(2), itself)
        assert cache.get_or_build("tower", key(2), Builder()).status == "miss"


def test_threads_build_once(tmp_path):
    build, ready = Builder(), threading.Barrier(8)
    found = []

    def slowly(folder: Path) -> None:
        build(folder)
        deadline = time.monotonic() + 60
        while not cache.notes and time.monotonic() < deadline:  # until somebody waits for it
            time.sleep(0.005)

    with CompileCache(tmp_path) as cache:

        def ask() -> None:
            ready.wait()
            found.append(cache.get_or_build("tower", KEY, slowly, label="model"))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert build.calls == 1
    assert sorted(one.status for one in found) == ["hit"] * 7 + ["miss"]
    assert len({one.folder for one in found}) == 1
    assert all("waiting for another builder of tower/" in line for line in cache.notes) and len(cache.notes) == 1


def test_no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with CompileCache(None) as cache:
        first = cache.get_or_build("tower", KEY, Builder())
        again = cache.get_or_build("tower", KEY, Builder())
        assert [first.status, again.status] == ["off", "off"]
        assert first.note == "no compile cache" and not first.stored
        assert first.read("tower.onnx") == b"onnx" * 100
        assert cache.find("tower", KEY) is None
    assert cache.notes == []  # it was asked for
    assert list(tmp_path.iterdir()) == []


def test_files_stay_while_an_entry_is_held(tmp_path):
    """Also where nobody keeps or closes the cache object."""
    entry = CompileCache(None).get_or_build("tower", KEY, Builder())
    gc.collect()
    assert entry.read("report.json") == b"{}"
    folder = entry.folder
    del entry
    gc.collect()
    assert not folder.exists()


def test_remarks_go_to_the_log(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    with caplog.at_level(logging.WARNING, "tfctr.cache"), CompileCache(tmp_path / "file") as cache:
        cache.get_or_build("tower", KEY, Builder())
        cache.get_or_build("tower", KEY, Builder())
    told = [record.message for record in caplog.records if record.name == "tfctr.cache"]
    assert told == cache.notes and len(cache.notes) == 1


def test_an_entry_of_no_use(tmp_path):
    """Its bytes are right, and the engine does not take them."""
    with CompileCache(tmp_path, note=lambda line: None) as cache:
        entry = cache.get_or_build("engine", KEY, Builder())
        cache.reject(entry, "OpenVINO does not take the blob")
        assert "can't be used: OpenVINO does not take the blob; set aside as" in cache.notes[0]
        assert cache.get_or_build("engine", KEY, Builder()).status == "miss"
        assert len(list((tmp_path / "damaged").iterdir())) == 1
        cache.reject(entry, "again")


def test_where_it_lies(monkeypatch, tmp_path):
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("TFCTR_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_root() == home / ".cache" / "tfctr"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_root() == home / ".cache" / "tfctr"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_root() == tmp_path / "xdg" / "tfctr"
    monkeypatch.setenv("TFCTR_CACHE_DIR", "~/mine")
    assert default_root() == home / "mine"
    monkeypatch.setenv("TFCTR_CACHE_DIR", "off")
    assert default_root() is None
    monkeypatch.setenv("TFCTR_CACHE_DIR", "")
    assert default_root() == tmp_path / "xdg" / "tfctr"


def test_backup_tools_leave_it_out(tmp_path):
    with CompileCache(tmp_path / "a" / "b") as cache:
        cache.get_or_build("tower", KEY, Builder())
    tag = (tmp_path / "a" / "b" / MARKER).read_text()
    assert tag.startswith("Signature: 8a477f597d28d172789f06886806bc55\n")


def test_limits(tmp_path):
    assert CompileCache(tmp_path).limit_bytes == DEFAULT_LIMIT_BYTES == 2 * 1024**3
    with pytest.raises(UsageError, match="a limit of -1 bytes"):
        CompileCache(tmp_path, -1)


def test_a_symlinked_root(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with CompileCache(tmp_path / "link" / "cache") as cache:
        assert cache.get_or_build("tower", KEY, Builder()).status == "miss"
    with CompileCache(tmp_path / "real" / "cache") as cache:
        assert cache.get_or_build("tower", KEY, no_build).status == "hit"
