"""Entries that are not what was written: set aside, built anew, said once."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from export.cache import CompileCache, Entry
from export.cache.entries import FORMAT, Damaged, OtherFormat, read_record
from tests.export.cache.keys import KEY, Builder, no_build

FILES = {"tower.onnx": bytes(range(256)) * 20, "sub/report.json": b'{"nodes": 12}'}


@pytest.fixture
def entry(tmp_path) -> Entry:
    with CompileCache(tmp_path) as cache:
        return cache.get_or_build("tower", KEY, Builder(FILES), label="model/ serving_default")


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def rebuilt(root: Path, entry: Entry, why: str) -> None:
    """The entry was set aside with ``why``, once, and is whole again."""
    said: list[str] = []
    build = Builder(FILES)
    with CompileCache(root, note=said.append) as cache:
        assert cache.get_or_build("tower", KEY, build, label="model/ serving_default").status == "miss"
        again = cache.get_or_build("tower", KEY, no_build)
        assert again.status == "hit"
        assert {name: again.read(name) for name in again.files} == FILES
    assert build.calls == 1
    (line,) = said
    assert line.startswith(f"compile cache {root}: tower/{entry.key[:12]} (model/ serving_default) is damaged: ")
    assert why in line and "set aside as" in line and line.endswith("and built anew")
    (aside,) = (root / "damaged").iterdir()
    assert aside.name.startswith(f"tower-{entry.key}-") and str(aside) in line
    assert list((root / "tmp").iterdir()) == list((root / "locks").iterdir()) == []


NAMES = ["tower.onnx", "sub/report.json", "key.json"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [0, 0.5, -1])
def test_truncated(tmp_path, entry, name, keep):
    size = (entry.folder / name).stat().st_size
    os.truncate(entry.folder / name, int(size * keep) if keep >= 0 else size - 1)
    if name == "key.json" and keep == -1:  # the newline at its end says nothing
        with CompileCache(tmp_path) as cache:
            assert cache.get_or_build("tower", KEY, no_build).status == "hit"
        return
    left = int(size * keep) if keep >= 0 else size - 1
    rebuilt(tmp_path, entry, "key.json" if name == "key.json" else f"{name} has {left:,} bytes; {size:,} were written")


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("at", [0, -1])
def test_a_bit_of_an_artefact(tmp_path, entry, name, at):
    flip(entry.folder / name, at, 3)
    rebuilt(tmp_path, entry, f"the checksum of {name} is wrong")


def test_bits_of_key_json(entry):
    """None goes unseen, unless it changes nothing that is said (a space into another one)."""
    path = entry.folder / "key.json"
    good = path.read_bytes()
    seen = 0
    places = range(0, len(good), 2)
    for at in places:
        bad = bytearray(good)
        bad[at] ^= 1 << (at // 2 % 8)
        path.write_bytes(bad)
        try:
            record = read_record(entry.folder)
        except (Damaged, OtherFormat):  # it is not taken
            seen += 1
        else:
            assert record == json.loads(good)
    assert seen > 0.8 * len(places)


@pytest.mark.parametrize("bad", [b"", b"[]", b"null", b"{}", b'{"tfctr_cache": "1"}', b"\xff\xfe", b"[" * 100_000])
def test_key_json_that_is_something_else(tmp_path, entry, bad):
    (entry.folder / "key.json").write_bytes(bad)
    with pytest.raises(Damaged, match="key.json"):
        read_record(entry.folder)
    said: list[str] = []
    with CompileCache(tmp_path, note=said.append) as cache:
        assert cache.get_or_build("tower", KEY, Builder(FILES)).status == "miss"
        assert len(said) == 1 and "is damaged: key.json" in said[0]


def test_another_format_under_our_name(tmp_path, entry):
    """The format is part of every name, so this one is damaged, not another version's."""
    path = entry.folder / "key.json"
    path.write_text(path.read_text().replace(f'"tfctr_cache": {FORMAT}', '"tfctr_cache": 7'))
    with CompileCache(tmp_path, note=lambda line: None) as cache:
        assert cache.get_or_build("tower", KEY, Builder(FILES)).status == "miss"
        assert "is damaged: key.json says format 7" in cache.notes[0]


@pytest.mark.parametrize("name", NAMES)
def test_missing(tmp_path, entry, name):
    (entry.folder / name).unlink()
    if name == "key.json":
        said: list[str] = []
        with CompileCache(tmp_path, note=said.append) as cache:
            assert cache.get_or_build("tower", KEY, Builder(FILES)).status == "miss"
        assert len(said) == 1 and "key.json is missing" in said[0]
        return
    rebuilt(tmp_path, entry, f"{name}: No such file or directory")


def test_a_folder_or_pipe_instead_of_a_file(tmp_path, entry):
    """A pipe would block its reader for ever."""
    (entry.folder / "tower.onnx").unlink()
    os.mkfifo(entry.folder / "tower.onnx")
    rebuilt(tmp_path, entry, "tower.onnx is no ordinary file")
    (entry.folder / "key.json").unlink()
    os.mkfifo(entry.folder / "key.json")
    with CompileCache(tmp_path, note=lambda line: None) as cache:
        assert cache.get_or_build("tower", KEY, Builder(FILES)).status == "miss"


def test_a_link_to_nothing(tmp_path, entry):
    """It is there and can't be opened: nobody waits for it for ever."""
    (entry.folder / "key.json").unlink()
    (entry.folder / "key.json").symlink_to("nothing")
    with CompileCache(tmp_path, note=lambda line: None) as cache:
        assert cache.get_or_build("tower", KEY, Builder(FILES)).status == "miss"
        assert "is damaged: key.json can't be opened" in cache.notes[0]


def test_a_file_instead_of_the_folder(tmp_path, entry):
    shutil.rmtree(entry.folder)
    entry.folder.write_text("x")
    said: list[str] = []
    with CompileCache(tmp_path, note=said.append) as cache:
        assert cache.get_or_build("tower", KEY, Builder(FILES)).status == "miss"
        assert cache.get_or_build("tower", KEY, no_build).status == "hit"
    assert "it is a file; a folder is expected" in said[0]


def test_an_entry_under_another_s_name(tmp_path, entry):
    other = entry.folder.with_name("f" * 64)
    entry.folder.rename(other)
    other.rename(entry.folder.parent.parent / "engine" / entry.key)
    with CompileCache(tmp_path, note=lambda line: None) as cache:
        cache.get_or_build("engine", KEY, Builder(FILES))
        assert cache.get_or_build("tower", KEY, Builder(FILES)).status == "miss"


def test_find_gives_nothing_and_changes_nothing(tmp_path, entry):
    flip(entry.folder / "tower.onnx", 0, 0)
    with CompileCache(tmp_path) as cache:
        assert cache.find("tower", KEY) is None
        assert entry.folder.exists() and cache.notes == []


def test_threads_that_find_it_damaged(tmp_path, entry):
    """One sets it aside and builds, the others take that; all of them go on."""
    flip(entry.folder / "tower.onnx", 7, 7)
    said: list[str] = []
    build = Builder(FILES)
    statuses = []
    with CompileCache(tmp_path, note=said.append) as cache:
        ready = threading.Barrier(6)

        def ask() -> None:
            ready.wait()
            statuses.append(cache.get_or_build("tower", KEY, build).status)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert build.calls == 1 and sorted(statuses) == ["hit"] * 5 + ["miss"]
    assert len([line for line in said if "is damaged" in line]) == 1


def test_damaged_while_it_is_in_use(tmp_path):
    """Who holds it does not keep the next from building."""
    with CompileCache(tmp_path, note=lambda line: None) as cache:
        entry = cache.get_or_build("tower", KEY, Builder(FILES))
        flip(entry.folder / "tower.onnx", 0, 0)
        assert cache.get_or_build("tower", KEY, Builder(FILES)).status == "miss"
        assert cache.get_or_build("tower", KEY, no_build).status == "hit"
