"""By last step or by rows: the same delta, whatever was done to a real table since it was saved."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from graph_opt.delta.steps import Compared, compare_table
from tests.graph_opt.delta.test_rows import base_table
from tfctr.core import library

DIM, KEYS = 5, np.arange(600)
START = 100


class Table:
    """An embedding variable that keeps last steps, saved at step 100."""

    def __init__(self) -> None:
        self.step = tf.Variable(np.int64(START), trainable=False)
        self.users = tfctr.EmbeddingVariable(
            DIM,
            "users",
            optimizer=tfctr.optimizers.SGD(0.1),
            initializer=tfctr.Uniform(-1.0, 1.0),
            eviction=tfctr.StepEviction(10_000),
            step=self.step,
        )
        for at in (20, 60, START - 1):
            self.step.assign(at)
            self.users.lookup(tf.constant(KEYS[: at * 6]), training=True)
            self.update(KEYS[at : at + 50])
        self.step.assign(START)

    def update(self, keys: np.ndarray) -> None:
        slopes = tf.ones([len(keys), DIM])
        self.users.apply_gradients(tf.IndexedSlices(slopes, tf.constant(keys)), step=self.step)

    def save(self, path: Path, **left_out: bool) -> Path:
        with tfctr.checkpoint_options(**left_out):
            return Path(tf.train.Checkpoint(users=self.users, step=self.step).write(str(path)))


def _same_step(table: Table, _: Path) -> None:
    """Rows change in the very step in which the table was saved."""
    table.update(KEYS[3:9])
    table.users.lookup(tf.constant([10_000, 10_001]), training=True)


def _trained(table: Table, _: Path) -> None:
    for step in range(START, START + 5):
        table.step.assign(step)
        table.users.lookup(tf.constant([20_000 + step]), training=True)
        table.update(KEYS[step - 40 : step - 10])
    table.users.erase(tf.constant(KEYS[:7]))


def _imported(table: Table, _: Path) -> None:
    """Rows are put in from outside: over known keys, and new ones."""
    table.step.assign(START + 3)
    keys = np.concatenate([KEYS[40:60], [30_000, 30_001]])
    tfctr.warm_start.from_numpy(table.users, keys, np.ones((len(keys), DIM), np.float32))


def _erased_and_back(table: Table, _: Path) -> None:
    table.users.erase(tf.constant(KEYS[100:110]))
    table.users.lookup(tf.constant(KEYS[100:105]), training=True)


def _restored_without_steps(table: Table, base: Path) -> None:
    with tfctr.checkpoint_options(steps=False):
        tf.train.Checkpoint(users=table.users, step=table.step).read(str(base)).assert_consumed()
    table.step.assign(START + 2)
    table.update(KEYS[5:8])


def _restored(table: Table, base: Path) -> None:
    _trained(table, base)
    tf.train.Checkpoint(users=table.users, step=table.step).read(str(base)).assert_consumed()
    table.update(KEYS[5:8])


def _another_run(table: Table, _: Path) -> None:
    """All rows are those of a run that did not go on from the saved table; most keep an old step."""
    keys, rows = table.users.keys(), table.users.lookup(table.users.keys())
    before = table.step.value()
    table.step.assign(30)
    tfctr.warm_start.from_numpy(table.users, np.asarray(keys), np.asarray(rows) + 1)
    table.step.assign(before + 10)


def _step_went_back(table: Table, _: Path) -> None:
    table.step.assign(10)
    table.update(KEYS[50:90])


@pytest.mark.parametrize(
    ("change", "by"),
    [
        (_same_step, "last step"),
        (_trained, "last step"),
        (_imported, "last step"),
        (_erased_and_back, "last step"),
        (_restored, "last step"),
        (_restored_without_steps, None),
        (_another_run, "rows"),
        (_step_went_back, "rows"),
    ],
)
def test_by_last_step_misses_no_row(tmp_path: Path, change: Callable[[Table, Path], None], by: str | None) -> None:
    native = _native()
    table = Table()
    base = table.save(tmp_path / "base")
    native.build_hash_table_from_checkpoint(base, "users", tmp_path / "users.hash", name="users")
    assert native.hash_info(tmp_path / "users.hash")["step"] == START
    change(table, base)
    new = table.save(tmp_path / "new")
    found, wanted = (_compare(tmp_path, new, by_step) for by_step in (True, False))
    assert by in (None, found.delta.compared_by), found
    assert wanted.delta.compared_by == "rows"
    assert wanted.delta.added + wanted.delta.changed + wanted.delta.removed > 0
    for ours, theirs in zip(*(native.read_delta(tmp_path / f"{b}.delta") for b in (True, False)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_checkpoint_without_steps_is_compared_by_rows(tmp_path: Path) -> None:
    table = Table()
    base = table.save(tmp_path / "base")
    _native().build_hash_table_from_checkpoint(base, "users", tmp_path / "users.hash", name="users")
    _trained(table, base)
    found = _compare(tmp_path, table.save(tmp_path / "new", steps=False), True)
    assert found.delta.compared_by == "rows"
    assert "no last steps" in found.notes[0]
    assert found.delta.removed == 7


def _compare(folder: Path, new: Path, by_step: bool) -> Compared:
    sources = [{"kind": "embedding", "path": new, "key": "users"}]
    table = base_table(folder / "users.hash", None, "float32")
    return compare_table(table, sources, folder / f"{by_step}.delta", by_step=by_step)


def _native() -> Any:
    library.load()
    return importlib.import_module("tfctr.core._native")
