"""Deltas, overlays and served tables from Python; overlays of a store swapped while sessions run."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fresh import in_fresh_process, private_bytes
from tfctr.core import library

ops = library.load()
native = library.native()

DIM = 4
KEYS = st.integers(-20, 20) | st.sampled_from([-(2**63), 2**63 - 1])


def row_of(key: int, version: int) -> np.ndarray:
    return np.full(DIM, (key % 1000) + 10_000 * version, np.float32)


def write_hash(path: Path, keys: list[int], name: str = "emb") -> None:
    rows = np.stack([row_of(key, 0) for key in keys]) if keys else np.zeros((0, DIM), np.float32)
    native.build_hash_table(path, name, np.array(keys, np.int64), rows, np.full(DIM, -1, np.float32), DIM)


def write_delta(path: Path, added: dict[int, np.ndarray], removed: list[int], name: str = "emb") -> Path:
    rows = np.stack(list(added.values())) if added else np.zeros((0, DIM), np.float32)
    native.write_delta_file(path, name, list(added), rows, removed, hashed=True, dtype="float32", width=DIM)
    return path


@given(st.sets(KEYS, max_size=30), st.lists(st.dictionaries(KEYS, st.booleans(), max_size=12), max_size=4))
@settings(max_examples=25, deadline=None)
def test_a_chain_of_deltas_equals_a_dict(tmp_path_factory, base_keys, chain):
    folder = tmp_path_factory.mktemp("chain")
    write_hash(folder / "base", sorted(base_keys))
    expected = {key: row_of(key, 0) for key in base_keys}
    previous = None
    for version, changes in enumerate(chain, 1):
        added = {key: row_of(key, version) for key, stays in changes.items() if stays}
        removed = [key for key, stays in changes.items() if not stays]
        delta = write_delta(folder / f"d{version}", added, removed)
        keys, _, gone = native.read_delta(delta)
        assert keys.tolist() == sorted(added) and gone.tolist() == sorted(removed)
        info = native.build_overlay(folder / f"o{version}", folder / "base", previous, [delta])
        previous = folder / f"o{version}"
        expected = {key: row for key, row in expected.items() if key not in removed} | added
        assert info["added"] == len(set(native.read_overlay(previous)[0].tolist()) - base_keys)
        assert set(native.read_overlay(previous)[2].tolist()) == base_keys - set(expected)
    table = native.ServedTable(folder / "base", previous)
    assert len(table) == len(expected) and sorted(table.keys().tolist()) == sorted(expected)
    asked = np.array([*range(-21, 22), -(2**63), 2**63 - 1], np.int64)
    default = np.full(DIM, -1, np.float32)
    np.testing.assert_array_equal(table.rows(asked), np.stack([expected.get(int(key), default) for key in asked]))
    assert table.contains(asked).tolist() == [int(key) in expected for key in asked]


def test_a_key_both_added_and_removed_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="delta of table 'emb': key 7 is both added and removed"):
        write_delta(tmp_path / "d", {7: row_of(7, 1)}, [7])
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def static(tmp_path) -> tuple[Path, np.ndarray]:
    array = np.arange(600, dtype=np.float32).reshape(200, 3)
    native.write_table(tmp_path / "static", "item", array)
    return tmp_path / "static", array


def overlay_static(folder: Path, base: Path, ids: list[int], rows: np.ndarray) -> Path:
    native.write_delta_file(
        folder / "sd", "item", ids, rows, [], hashed=False, dtype="float32", width=3, table_rows=200
    )
    native.build_overlay(folder / "so", base, None, [folder / "sd"])
    return folder / "so"


def test_static_table_as_a_tensor_has_the_overlays_rows(tmp_path, static):
    base, array = static
    overlay = overlay_static(tmp_path, base, [199, 3], np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    handle = ops.tfctr_store(shared_name=str(tmp_path))
    ops.tfctr_store_open(
        handle, [str(base), str(overlay)], kinds=["table", "overlay"], fingerprints=["", ""], bases=[0]
    )
    read = lambda: ops.tfctr_table(handle, index=0, dtype=tf.float32, shape=(200, 3)).numpy()  # noqa: E731
    changed = array.copy()
    changed[[199, 3]] = [[1, 2, 3], [4, 5, 6]]
    np.testing.assert_array_equal(read(), changed)
    ops.tfctr_store_overlay(handle, np.zeros(0, np.int64), np.zeros(0, np.str_))
    np.testing.assert_array_equal(read(), array)
    memory = native.MemoryOverlay(base, None, [tmp_path / "sd"])
    ops.tfctr_store_overlay(handle, [0], [memory.path])
    memory.close()
    np.testing.assert_array_equal(read(), changed)


def test_overlays_that_do_not_fit_change_nothing(tmp_path, static):
    base, array = static
    overlay = overlay_static(tmp_path, base, [0], np.ones((1, 3), np.float32))
    native.write_table(tmp_path / "other", "item", array + 1)
    handle = ops.tfctr_store(shared_name=str(tmp_path))
    ops.tfctr_store_open(handle, [str(tmp_path / "other")], kinds=["table"], fingerprints=[""])
    for indices, names, message in [
        ([0], [str(overlay)], "lies over the file"),
        ([1], [str(overlay)], "file 1 of the store is no table or hash file"),
        ([0, 0], [str(overlay)] * 2, "named twice|lies over"),
        ([0], [str(tmp_path / "none")], "none"),
    ]:
        with pytest.raises(tf.errors.OpError, match=message):
            ops.tfctr_store_overlay(handle, indices, names)
    value = ops.tfctr_table(handle, index=0, dtype=tf.float32, shape=(200, 3))
    np.testing.assert_array_equal(value.numpy(), array + 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="1 overlays but 0 bases"):
        ops.tfctr_store_open(handle, [str(overlay)], kinds=["overlay"], fingerprints=[""])


def test_runs_see_old_or_new_overlays_never_a_mix(tmp_path):
    """Two hash tables in one graph, looked up by two threads while their overlays are swapped together."""
    keys = list(range(500))
    bases = []
    for name in ("a", "b"):
        write_hash(tmp_path / name, keys, name)
        bases.append(tmp_path / name)
    overlays = []
    for version in (1, 2):
        pair = []
        for base in bases:
            delta = write_delta(tmp_path / "d", {key: row_of(0, version) for key in keys}, [], base.name)
            native.build_overlay(tmp_path / f"{base.name}{version}", base, None, [delta])
            pair.append(str(tmp_path / f"{base.name}{version}"))
        overlays.append(pair)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        store = ops.tfctr_store(shared_name="mix")
        opened = ops.tfctr_store_open(store, [str(base) for base in bases], kinds=["hash"] * 2, fingerprints=[""] * 2)
        names = tf.compat.v1.placeholder(tf.string, [None])
        swap = ops.tfctr_store_overlay(store, [0, 1], names)
        first = ops.tfctr_hash_lookup(store, tf.constant(keys, tf.int64), index=0, dim=DIM)
        second = ops.tfctr_hash_lookup(store, tf.constant(keys, tf.int64), index=1, dim=DIM)
        session.run(opened)
        session.run(swap, {names: overlays[0]})
        seen: list[float] = []
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                a, b = session.run([first, second])
                seen.extend(np.unique([a, b]) if np.unique([a, b]).size == 1 else [-1.0])

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        swaps = 0
        while swaps < 60 or (not seen and any(thread.is_alive() for thread in threads)):  # they may get their turn late
            session.run(swap, {names: overlays[swaps % 2]})
            swaps += 1
        done.set()
        for thread in threads:
            thread.join()
    assert set(seen) <= {10_000.0, 20_000.0} and seen


def thirty_swaps(folder: Path, memory: str) -> list[int]:
    """Memory after each of 30 overlays of 3.2 MB: 96 MB if they stayed."""
    keys = np.arange(50_000)
    rows = np.ones((50_000, 16), np.float32)
    native.build_hash_table(folder / "base", "emb", keys, rows)
    native.write_delta_file(folder / "d", "emb", keys, rows * 2, [], hashed=True, dtype="float32", width=16)
    before_default = native.table_memory()
    native.set_table_memory(memory)
    handle = ops.tfctr_store(shared_name=str(folder))
    ops.tfctr_store_open(handle, [str(folder / "base")], kinds=["hash"], fingerprints=[""])
    native.set_table_memory(before_default)
    sizes = []
    for _ in range(30):
        overlay = native.MemoryOverlay(folder / "base", None, [folder / "d"])
        ops.tfctr_store_overlay(handle, [0], [overlay.path])
        overlay.close()
        found = ops.tfctr_hash_lookup(handle, keys, index=0, dim=16).numpy()
        assert (found == 2).all()
        del found
        gc.collect()  # answers are as large as an overlay's rows
        sizes.append(private_bytes())
    (space,) = [one for one in native.table_spaces() if one["path"] == str(folder / "base")]
    assert space["memory"] == memory and space["overlays"] == 1
    ops.tfctr_store_overlay(handle, np.zeros(0, np.int64), np.zeros(0, np.str_))
    return sizes


@pytest.mark.parametrize("memory", ["mapped", "huge_pages"])
def test_thirty_swaps_leave_no_memory_behind(tmp_path, memory):
    sizes = in_fresh_process(thirty_swaps, tmp_path, memory)
    assert min(sizes[-5:]) - min(sizes[:5]) < 16 << 20  # 80 MB if overlays stayed
