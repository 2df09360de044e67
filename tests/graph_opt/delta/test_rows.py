"""Rows: base + deltas in order are the newest state, row by row and bit for bit, in every storage."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_opt.delta.base import BaseTable
from graph_opt.delta.rows import ROWS, UNTRUSTED, compare
from graph_opt.delta.steps import compare_table
from tests.graph_opt.delta.checkpoints import DIM, TABLE, State, write
from tfctr.core import library
from tfctr.errors import ConvertAnewError, CorruptFileError, UsageError

STORAGES = ("float32", "float16", "bfloat16", "int8")
KEYS = st.one_of(st.integers(-3, 40), st.sampled_from([-(2**63), 2**63 - 1, 1 << 40]))
ROW = st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.5, 3e-5, 0.1, 7.25]), min_size=DIM, max_size=DIM)
STATE = st.dictionaries(KEYS, ROW, max_size=30)


def native() -> Any:
    library.load()
    return importlib.import_module("tfctr.core._native")


def as_state(drawn: dict[int, list[float]]) -> State:
    return {key: np.array(row, np.float32) for key, row in drawn.items()}


def base_table(path: Path, overlay: Path | None, storage: str, kind: str = "hash") -> BaseTable:
    info = native().hash_info(path) if kind == "hash" else native().file_info(path)
    shape = tuple(info["shape"])
    dtype = storage if kind == "hash" else info["dtype"]
    narrow = None if storage == "float32" else storage
    return BaseTable(
        index=0, kind=kind, name="users", path=path, overlay=overlay, dtype=dtype, shape=shape, source=TABLE,
        storage=narrow,
    )  # fmt: skip


def embedding(prefix: Path) -> dict[str, Any]:
    return {"kind": "embedding", "path": prefix, "key": TABLE}


def follow(folder: Path, table: BaseTable, prefix: Path, number: int) -> tuple[BaseTable, dict[str, Any]]:
    """``table`` with what changed to the checkpoint ``prefix`` in its overlay; the counts."""
    delta, overlay = folder / f"{number}.delta", folder / f"{number}.overlay"
    counts = compare(table, [embedding(prefix)], delta)
    info = native().delta_info(delta)
    assert (info["rows"], info["removed"]) == (counts["added"] + counts["changed"], counts["removed"])
    native().build_overlay(overlay, table.path, table.overlay, [delta])
    return base_table(table.path, overlay, table.dtype), counts


def same_rows(table: BaseTable, whole: Path, keys: list[int]) -> None:
    """The served table has the keys of the hash file ``whole`` and no others, and the same stored rows."""
    served = native().ServedTable(table.path, table.overlay)
    full = native().ServedTable(whole)
    asked = np.array([*keys, 77777, -12345], np.int64)
    assert sorted(served.keys().tolist()) == sorted(full.keys().tolist())
    np.testing.assert_array_equal(served.contains(asked), full.contains(asked))
    np.testing.assert_array_equal(served.stored(asked), full.stored(asked))


@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=12, deadline=None)
@given(states=st.lists(STATE, min_size=4, max_size=4), cuts=st.integers(1, 4), seed=st.integers(0, 9))
def test_chain_is_a_full_conversion(
    tmp_path_factory: pytest.TempPathFactory, storage: str, states: list, cuts: int, seed: int
) -> None:
    """Inserts, updates, evictions, re-inserts, chains of up to four deltas, any slices and orders."""
    folder = tmp_path_factory.mktemp("chain")
    seen: set[int] = set()
    table = None
    for number, drawn in enumerate(states):
        state = as_state(drawn)
        seen |= set(state)
        prefix = write(folder / f"ckpt{number}", state, cuts=cuts, seed=seed + number, default=0.25)
        whole = folder / f"{number}.hash"
        native().build_hash_table_from_checkpoint(prefix, TABLE, whole, storage, name="users")
        if table is None:
            table = base_table(whole, None, storage)
            continue
        before = set(native().ServedTable(table.path, table.overlay).keys().tolist())
        table, counts = follow(folder, table, prefix, number)
        assert counts["rows"] == len(state)
        assert counts["added"] == len(set(state) - before)
        assert counts["removed"] == len(before - set(state))
        same_rows(table, whole, sorted(seen))


@pytest.mark.parametrize("storage", STORAGES)
def test_no_change_is_an_empty_delta(tmp_path: Path, storage: str) -> None:
    state = as_state({k: [k, -0.0, np.nan if storage != "int8" else 2.0, 1.0, 0.5] for k in range(50)})
    prefix = write(tmp_path / "ckpt", state)
    native().build_hash_table_from_checkpoint(prefix, TABLE, tmp_path / "t.hash", storage, name="users")
    again = write(tmp_path / "again", state, seed=4, cuts=3)
    _, counts = follow(tmp_path, base_table(tmp_path / "t.hash", None, storage), again, 1)
    assert (counts["added"], counts["changed"], counts["removed"]) == (0, 0, 0)


@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_static_chain(tmp_path_factory: pytest.TempPathFactory, storage: str, data: st.DataObject) -> None:
    """A static table, from tensors of a checkpoint or files, whole or in parts of either strategy."""
    folder = tmp_path_factory.mktemp("static")
    rows = data.draw(st.integers(1, 25))
    state = st.lists(ROW, min_size=rows, max_size=rows)
    table = None
    for number in range(4):
        values = np.array(data.draw(state), np.float32)
        wide, whole = folder / f"{number}.wide", folder / f"{number}.table"
        native().write_table(wide, "users", values)
        if storage == "float32":
            whole = wide
        else:
            native().narrow_table(wide, storage, whole)
        if table is None:
            table = base_table(whole, None, storage, "table")
            continue
        delta, overlay = folder / f"{number}.delta", folder / f"{number}.overlay"
        counts = compare(table, _static_sources(folder, values, number, data), delta)
        assert (counts["rows"], counts["added"], counts["removed"]) == (rows, 0, 0)
        native().build_overlay(overlay, table.path, table.overlay, [delta])
        table = base_table(table.path, overlay, storage, "table")
        narrow = "" if storage == "float32" else storage
        served = native().ServedTable(table.path, overlay, "mapped", narrow)
        full = native().ServedTable(whole, None, "mapped", narrow)
        ids = np.arange(rows)
        np.testing.assert_array_equal(served.stored(ids), full.stored(ids))
        np.testing.assert_array_equal(served.dense(), full.dense())


def _static_sources(folder: Path, values: np.ndarray, number: int, data: st.DataObject) -> list[dict[str, Any]]:
    parts = data.draw(st.integers(1, min(3, len(values))))
    mod = data.draw(st.booleans())
    found = []
    for part, ids in enumerate(np.array_split(np.arange(len(values)), parts)):
        mine = values[part::parts] if mod else values[ids]
        first, stride = (part, parts) if mod else (int(ids[0]), 1)
        key = f"emb/part_{part}"
        prefix = write(folder / f"ckpt{number}_{part}", {}, others={key: mine})
        found.append({"kind": "tensor", "path": prefix, "key": key, "first": first, "stride": stride})
    return found[::-1]


def test_rows_are_compared_where_steps_mislead(tmp_path: Path) -> None:
    """A table that did not go on from the served one: rows of another run, older steps."""
    state = {k: np.full(DIM, k, np.float32) for k in range(400)}
    steps = dict.fromkeys(state, 5)
    prefix = write(tmp_path / "base", state, step=100, last_steps=steps)
    native().build_hash_table_from_checkpoint(prefix, TABLE, tmp_path / "t.hash", "float32", name="users")
    table = base_table(tmp_path / "t.hash", None, "float32")
    other = {k: v + 1 for k, v in state.items()}
    new = write(tmp_path / "new", other, step=120, last_steps=steps)
    found = compare_table(table, [embedding(new)], tmp_path / "d.delta", by_step=True)
    assert found.delta.changed == 400
    assert found.delta.compared_by == ROWS
    assert UNTRUSTED in found.notes[0]
    assert found.delta.old_steps == 400


@pytest.mark.parametrize(
    ("base_step", "new_step", "kept", "why"),
    [
        (100, 90, True, "the step went back"),
        (0, 90, True, "is not known"),
        (-1, 90, True, "is not known"),
        (100, 120, False, "no last steps"),
    ],
)
def test_where_steps_say_nothing_rows_are_compared(
    tmp_path: Path, base_step: int, new_step: int, kept: bool, why: str
) -> None:
    state = {k: np.full(DIM, k, np.float32) for k in range(30)}
    steps = dict.fromkeys(state, 5) if kept else None
    prefix = write(tmp_path / "base", state, step=base_step, last_steps=steps)
    native().build_hash_table_from_checkpoint(prefix, TABLE, tmp_path / "t.hash", "float32", name="users")
    state[7] = state[7] + 1
    new = write(tmp_path / "new", state, step=new_step, last_steps=steps)
    found = compare_table(
        base_table(tmp_path / "t.hash", None, "float32"), [embedding(new)], tmp_path / "d.delta", by_step=True
    )
    assert (found.delta.changed, found.delta.compared_by) == (1, ROWS)
    assert why in found.delta.why
    assert why in found.notes[0]


def test_by_last_step_looks_at_what_changed_since(tmp_path: Path) -> None:
    """Rows updated in the very step of the save, inserted, or removed, are found; the others are trusted."""
    state = {k: np.full(DIM, k, np.float32) for k in range(500)}
    steps = {k: k % 100 for k in state}
    prefix = write(tmp_path / "base", state, step=100, last_steps=steps)
    native().build_hash_table_from_checkpoint(prefix, TABLE, tmp_path / "t.hash", "float32", name="users")
    for key, step in ((3, 100), (4, 101), (9000, 130)):
        state[key], steps[key] = np.full(DIM, -1, np.float32), step
    del state[11]
    new = write(tmp_path / "new", state, step=130, last_steps=steps)
    found = compare_table(
        base_table(tmp_path / "t.hash", None, "float32"), [embedding(new)], tmp_path / "d.delta", by_step=True
    ).delta
    assert (found.added, found.changed, found.removed, found.compared_by) == (1, 2, 1, "last step")
    assert found.trusted == 497
    keys, _, removed = native().read_delta(tmp_path / "d.delta")
    assert (keys.tolist(), removed.tolist()) == ([3, 4, 9000], [11])


def test_bad_rows_are_named(tmp_path: Path) -> None:
    state = {k: np.full(DIM, k, np.float32) for k in range(20)}
    prefix = write(tmp_path / "base", state)
    for storage in ("int8", "float16", "float32"):
        native().build_hash_table_from_checkpoint(prefix, TABLE, tmp_path / f"{storage}.hash", storage, name="users")
    state[5] = np.array([1, np.nan, 1, 1, 1], np.float32)
    new = [embedding(write(tmp_path / "nan", state))]
    with pytest.raises(UsageError, match="'users'.*key 5 holds NaN, so it can't be stored as int8"):
        compare(base_table(tmp_path / "int8.hash", None, "int8"), new, tmp_path / "d")
    counts = compare(base_table(tmp_path / "float32.hash", None, "float32"), new, tmp_path / "d")
    assert (counts["nonfinite"], counts["first_nonfinite"]) == (1, 5)
    state[5] = np.full(DIM, 1e30, np.float32)
    new = [embedding(write(tmp_path / "large", state))]
    with pytest.raises(UsageError, match="key 5 .*too large, so it can't be stored as float16"):
        compare(base_table(tmp_path / "float16.hash", None, "float16"), new, tmp_path / "e")
    assert not (tmp_path / "e").exists()


def test_another_default_row_is_refused(tmp_path: Path) -> None:
    state = {1: np.ones(DIM, np.float32)}
    prefix = write(tmp_path / "base", state)
    native().build_hash_table_from_checkpoint(prefix, TABLE, tmp_path / "t.hash", "float32", name="users")
    new = write(tmp_path / "new", state, default=0.5)
    with pytest.raises(ConvertAnewError, match="'users': the default value .* is another one.*; convert"):
        compare(base_table(tmp_path / "t.hash", None, "float32"), [embedding(new)], tmp_path / "d")


def test_damaged_checkpoints_are_found(tmp_path: Path) -> None:
    state = {k: np.full(DIM, k, np.float32) for k in range(300)}
    prefix = write(tmp_path / "base", state)
    native().build_hash_table_from_checkpoint(prefix, TABLE, tmp_path / "t.hash", "float32", name="users")
    table = base_table(tmp_path / "t.hash", None, "float32")
    shard = tmp_path / "base.data-00000-of-00001"
    whole = shard.read_bytes()
    for at in (10, 1000, 5000):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(CorruptFileError, match="checksum does not match|twice|does not describe"):
            compare(table, [embedding(prefix)], tmp_path / "d")
        assert not (tmp_path / "d").exists()
    shard.write_bytes(whole[:-400])
    with pytest.raises(CorruptFileError, match="truncated"):
        compare(table, [embedding(prefix)], tmp_path / "d")


def test_a_key_twice_is_named(tmp_path: Path) -> None:
    state = {k: np.full(DIM, k, np.float32) for k in range(10)}
    prefix = write(tmp_path / "base", state)
    native().build_hash_table_from_checkpoint(prefix, TABLE, tmp_path / "t.hash", "float32", name="users")
    state[77] = np.ones(DIM, np.float32)
    for key, twice in ((3, 4), (77, 78)):
        many = {**state, twice: np.ones(DIM, np.float32)}
        new = write(tmp_path / f"new{key}", many)
        data = tmp_path / f"new{key}.data-00000-of-00001"
        _rewrite_keys(new, many, {twice: key})
        assert data.exists()
        with pytest.raises((CorruptFileError, UsageError), match=f"key {key} .*twice"):
            compare(base_table(tmp_path / "t.hash", None, "float32"), [embedding(new)], tmp_path / "d")


def _rewrite_keys(prefix: Path, state: State, other: dict[int, int]) -> None:
    import tensorflow as tf

    from tests.graph_opt.delta.checkpoints import description

    keys = np.array([other.get(k, k) for k in state], np.int64)
    rows = np.array(list(state.values()), np.float32)
    names = [f"{TABLE}/keys", f"{TABLE}/values", f"{TABLE}/config"]
    tensors = [tf.constant(keys), tf.constant(rows), tf.constant(description())]
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * 3, tensors=tensors)
