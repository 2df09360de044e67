"""Real processes on one cache: one of them builds; what a killed one leaves is never used, and goes."""

import contextlib
import time
from pathlib import Path

from export.cache import CompileCache
from export.cache.eviction import sweep
from export.cache.places import Places
from tests.export.cache.keys import KEY, Builder, end, hear, in_child, key, kill, no_build, start, tell

BUILD_SLOWLY = """
def build(folder):
    say("building")
    wait()
    (folder / "tower.onnx").write_bytes(b"made by one")
entry = cache.get_or_build("tower", KEY, build)
say([entry.status, entry.note, cache.notes, entry.read("tower.onnx").decode()])
"""


def waits(process, cache: Path) -> None:
    """Until it waits for a lock (its state in the kernel: sleeping in flock)."""
    for _ in range(200):
        with contextlib.suppress(OSError):
            if "lock" in Path(f"/proc/{process.pid}/wchan").read_text():
                return
        with contextlib.suppress(OSError):
            waiting = [line for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
            if any(f" {process.pid} " in line for line in waiting):
                return
        time.sleep(0.02)


def test_two_processes_build_once(tmp_path):
    one = start(tmp_path, BUILD_SLOWLY)
    assert hear(one) == "building"
    two = start(tmp_path, BUILD_SLOWLY.replace('say("building")', 'say("built twice")'))
    waits(two, tmp_path)
    tell(one)
    assert hear(one) == ["miss", "", [], "made by one"]
    status, note, notes, data = hear(two)
    assert (status, data) == ("hit", "made by one")
    if note:  # it had to wait, rather than come when all was done
        assert note == "another builder made it meanwhile"
        assert "waiting for another builder of tower/" in notes[0]
    end(one)
    end(two)


def test_many_processes_many_keys(tmp_path):
    """Every key is built exactly once, whoever comes first."""
    body = """
    import random
    built = 0
    def build(folder):
        global built
        built += 1
        time.sleep(0.02)
        (folder / "x").write_text("x")
    wait()
    numbers = list(range(10))
    random.Random(int(arguments[0])).shuffle(numbers)
    found = [cache.get_or_build("tower", key(n), build).read("x").decode() for n in numbers]
    assert found == ["x"] * 10
    say(built)
    """
    processes = [start(tmp_path, body, str(k)) for k in range(3)]
    for one in processes:
        tell(one)
    assert sum(hear(one) for one in processes) == 10
    for one in processes:
        end(one)
    assert list((tmp_path / "locks").iterdir()) == list((tmp_path / "tmp").iterdir()) == []


def test_killed_while_building(tmp_path):
    """What it left is not used; whoever waits for it builds; its folder goes."""
    one = start(
        tmp_path,
        """
        def build(folder):
            (folder / "tower.onnx").write_bytes(b"half")
            (folder / "key.json").write_text("{}")
            say("building")
            wait()
        cache.get_or_build("tower", KEY, build)
        """,
    )
    assert hear(one) == "building"
    assert len(list((tmp_path / "tmp").iterdir())) == 1
    two = start(tmp_path, BUILD_SLOWLY)
    waits(two, tmp_path)
    kill(one)
    assert hear(two) == "building"  # the lock was freed
    assert len(list((tmp_path / "tmp").iterdir())) == 1  # its own; that of the dead one is gone
    tell(two)
    assert hear(two)[0] == "miss"
    end(two)
    assert list((tmp_path / "locks").iterdir()) == list((tmp_path / "tmp").iterdir()) == []
    with CompileCache(tmp_path) as cache:
        assert cache.get_or_build("tower", KEY, no_build).read("tower.onnx") == b"made by one"


def test_what_it_left_goes_with_the_next_build_of_anything(tmp_path):
    one = start(
        tmp_path,
        """
        def build(folder):
            (folder / "half").write_bytes(b"half")
            say("building")
            wait()
        cache.get_or_build("engine", key(1), build)
        """,
    )
    assert hear(one) == "building"
    assert sweep(Places(tmp_path)) == 0  # a builder that lives keeps its folder
    kill(one)
    left = list((tmp_path / "tmp").iterdir()) + list((tmp_path / "locks").iterdir())
    assert len(left) == 2
    with CompileCache(tmp_path) as cache:
        cache.get_or_build("tower", KEY, Builder())
        assert list((tmp_path / "locks").iterdir()) == list((tmp_path / "tmp").iterdir()) == []
        assert cache.get_or_build("engine", key(1), Builder()).status == "miss"


def test_killed_between_seal_and_rename(tmp_path):
    """The fullest half-written state there is."""
    one = start(
        tmp_path,
        """
        def stop(self, target):
            say(str(self))
            wait()
        rename, Path.rename = Path.rename, stop
        cache.get_or_build("tower", KEY, Builder())
        """,
    )
    sealed = Path(hear(one))
    kill(one)
    assert (sealed / "key.json").is_file() and sealed.parent == tmp_path / "tmp"
    with CompileCache(tmp_path) as cache:
        assert cache.find("tower", KEY) is None
        assert cache.get_or_build("tower", KEY, Builder()).status == "miss"
        assert not sealed.exists()


def test_killed_holding_an_entry(tmp_path):
    """Its mark of use goes with it."""
    one = start(tmp_path, 'say(str(cache.get_or_build("tower", KEY, Builder()).folder))\nwait()')
    folder = Path(hear(one))
    with CompileCache(tmp_path, limit_bytes=0) as cache:
        cache.get_or_build("tower", key(1), Builder())
        assert folder.exists()
        kill(one)
        cache.get_or_build("tower", key(2), Builder())
        assert not folder.exists()


def test_a_forked_child_leaves_its_parent_s_files(tmp_path):
    with CompileCache(None) as cache:
        entry = cache.get_or_build("tower", KEY, Builder())

        def close() -> bool:
            cache.close()
            return True

        assert in_child(close)
        assert entry.read("report.json") == b"{}"
