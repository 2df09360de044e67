"""What goes first when the cache is too large, and what never goes."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from export.cache import CompileCache, Entry
from export.cache.entries import FORMAT
from export.cache.eviction import evict, stored
from export.cache.places import Places
from tests.export.cache.keys import Builder, end, hear, key, no_build, start, tell

SIZE = 100_000


def fill(root: Path, numbers: range) -> list[Entry]:
    """Entries of ``SIZE`` bytes and a little; last used a minute apart, the first one longest ago."""
    found = []
    with CompileCache(root, limit_bytes=1 << 40) as cache:
        for k in numbers:
            found.append(cache.get_or_build("tower", key(k), Builder({"x": b"x" * SIZE})))
    now = time.time()
    for k, one in enumerate(found):
        age(one, now - 60 * (len(found) - k))
    return found


def age(entry: Entry, when: float) -> None:
    os.utime(entry.folder / "key.json", (when, when))


def there(entries: list[Entry]) -> list[bool]:
    return [one.folder.exists() for one in entries]


def room_for(entries: int) -> int:
    return entries * (SIZE + 2000)


def test_the_longest_unused_go_first(tmp_path):
    entries = fill(tmp_path, range(5))
    with CompileCache(tmp_path) as cache:  # a hit counts as use
        assert cache.get_or_build("tower", key(0), no_build).hit
    with CompileCache(tmp_path, limit_bytes=room_for(3)) as cache:
        new = cache.get_or_build("tower", key(9), Builder({"x": b"x" * SIZE}))
        assert there(entries) == [True, False, False, False, True]
        assert new.folder.exists()
        assert cache.notes == []


def test_reading_what_lies_there_is_no_use(tmp_path):
    entries = fill(tmp_path, range(2))
    before = [one.used for one in stored(Places(tmp_path))]
    (entries[0].folder / "x").read_bytes()
    assert [one.used for one in stored(Places(tmp_path))] == before


def test_entries_in_use_stay(tmp_path):
    entries = fill(tmp_path, range(3))
    with CompileCache(tmp_path, limit_bytes=0) as cache:
        assert cache.get_or_build("tower", key(1), no_build).hit
        new = cache.get_or_build("tower", key(9), Builder())
        assert there(entries) == [False, True, False] and new.folder.exists()
        assert len(cache.notes) == 1 and "are in use, which is more than its limit of 0 bytes" in cache.notes[0]
    with CompileCache(tmp_path, limit_bytes=0) as cache:
        cache.get_or_build("engine", key(9), Builder())
        assert there([*entries, new]) == [False] * 4


def test_entries_in_use_elsewhere_stay(tmp_path):
    entries = fill(tmp_path, range(2))
    other = start(tmp_path, 'say(cache.get_or_build("tower", key(0), Builder()).status)\nwait()')
    assert hear(other) == "hit"
    age(entries[0], time.time() - 9999)
    assert [one.name for one in evict(Places(tmp_path), 0).gone] == [entries[1].key]
    tell(other)
    end(other)
    assert [one.name for one in evict(Places(tmp_path), 0).gone] == [entries[0].key]


def test_larger_than_the_limit(tmp_path):
    with CompileCache(tmp_path, limit_bytes=10, note=lambda line: None) as cache:
        entry = cache.get_or_build("tower", key(0), Builder())
        assert entry.status == "miss" and entry.read("report.json") == b"{}"
        assert cache.get_or_build("tower", key(0), no_build).hit


def test_a_clock_that_was_set_back(tmp_path):
    """Times in the future count as now: such an entry is no better than one that was just used."""
    entries = fill(tmp_path, range(3))
    age(entries[2], time.time() + 10**7)
    assert all(one.used <= time.time() for one in stored(Places(tmp_path)))
    gone = evict(Places(tmp_path), room_for(1)).gone
    assert [one.name for one in gone] == [entries[0].key, entries[1].key]
    with CompileCache(tmp_path) as cache:
        assert cache.get_or_build("tower", key(2), no_build).hit
    assert (entries[2].folder / "key.json").stat().st_mtime <= time.time()


def test_what_was_set_aside_goes_first(tmp_path):
    entries = fill(tmp_path, range(3))
    (entries[2].folder / "x").write_bytes(b"y" * SIZE)
    with CompileCache(tmp_path, note=lambda line: None) as cache:
        cache.get_or_build("tower", key(2), Builder({"x": b"x" * SIZE}))
    assert len(list((tmp_path / "damaged").iterdir())) == 1
    evict(Places(tmp_path), room_for(3))
    assert list((tmp_path / "damaged").iterdir()) == [] and all(there(entries))


def test_entries_of_another_format_stay(tmp_path):
    """And are not counted: another version of tfctr looks after them."""
    entries = fill(tmp_path, range(2))
    other = entries[0].folder.with_name("f" * 64)
    entries[0].folder.rename(other)
    record = json.loads((other / "key.json").read_text())
    (other / "key.json").write_text(json.dumps({**record, "tfctr_cache": FORMAT + 1, "new": True}))
    evicted = evict(Places(tmp_path), 0)
    assert [one.name for one in evicted.gone] == [entries[1].key] and evicted.left_bytes == 0
    assert other.is_dir()
    (foreign,) = stored(Places(tmp_path))
    assert foreign.foreign == f"format {FORMAT + 1}; this tfctr writes and reads format {FORMAT}"


def test_strange_things_in_the_folder(tmp_path):
    """What is not ours is not touched."""
    fill(tmp_path, range(1))
    (tmp_path / "tower" / "notes").mkdir()
    (tmp_path / "tower" / ("A" * 64)).write_text("x")
    (tmp_path / "mine").write_text("x")
    (tmp_path / "tower" / ("a" * 64)).symlink_to(tmp_path / "mine")
    evict(Places(tmp_path), 0)
    assert (tmp_path / "tower" / "notes").is_dir() and (tmp_path / "tower" / ("A" * 64)).exists()
    assert (tmp_path / "mine").read_text() == "x"


@pytest.mark.parametrize("processes", [2])
def test_evictors_and_users_at_once(tmp_path, processes):
    """Everybody always reads whole entries, whatever the others remove."""
    body = f"""
    import random
    from export.cache.store import CompileCache
    chance = random.Random(int(arguments[0]))
    wait()
    until = time.time() + 1.5
    hits = builds = 0
    while time.time() < until or not hits or builds <= 6:
        n = chance.randrange(6)
        with CompileCache({str(tmp_path)!r}, limit_bytes=25_000, note=lambda line: None) as mine:
            entry = mine.get_or_build("tower", key(n), Builder({{"x": bytes([n]) * 10_000}}))
            assert entry.status in ("hit", "miss"), entry.note
            assert entry.read("x") == bytes([n]) * 10_000
            hits += entry.hit
            builds += not entry.hit
    say([hits, builds])
    """
    others = [start(tmp_path, body, str(k)) for k in range(processes)]
    for one in others:
        tell(one)
    counts = [hear(one) for one in others]
    for one in others:
        end(one)
    assert all(hits > 0 and builds > 6 for hits, builds in counts)
    assert sum(one.bytes for one in stored(Places(tmp_path))) < 40_000
    assert list((tmp_path / "tmp").iterdir()) == list((tmp_path / "locks").iterdir()) == []
    assert not (tmp_path / "damaged").exists()


def test_threads_evict_at_once(tmp_path):
    entries = fill(tmp_path, range(20))
    gone: list[str] = []
    threads = [
        threading.Thread(target=lambda: gone.extend(one.name for one in evict(Places(tmp_path), room_for(5)).gone))
        for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(gone) == sorted(one.key for one in entries[:15])  # each once, and none too many
    assert there(entries) == [False] * 15 + [True] * 5
