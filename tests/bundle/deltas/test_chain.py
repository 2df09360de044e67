"""From training to serving and on: each version, on disk, in memory, compacted, is a full conversion of its model."""

from pathlib import Path

import numpy as np
import tensorflow as tf

import tfctr
from tests.bundle.deltas import delta_models as models


def train(model: models.Model, round_: int) -> None:
    """Rows changed, users gained and lost; in odd rounds dense weights too."""
    random = np.random.default_rng(round_)
    items = model.items.numpy()
    items[random.integers(0, models.ITEMS, 4)] += 1
    model.items.assign(items)
    model.users.lookup(tf.constant(random.integers(0, 10**6, 5)), training=True)
    model.users.erase(tf.constant(models.KEYS[round_ * 2 : round_ * 2 + 2]))
    if round_ % 2:
        model.kernel.assign_add(tf.ones_like(model.kernel) * 0.1)


def same(full: Path, *others: Path | tfctr.ServingSession) -> None:
    given = models.inputs(7)
    with tfctr.ServingSession(full) as session:
        expected = session.predict(given)
    for other in others:
        got = (
            other.predict(given)
            if isinstance(other, tfctr.ServingSession)
            else tfctr.ServingSession(other).predict(given)
        )
        for name, value in expected.items():
            np.testing.assert_array_equal(value, got[name], name)
    rows = {name: tfctr.load_table(full, name) for name in ("items", "users")}
    for other in others:
        if isinstance(other, Path):
            for name, table in rows.items():
                found = tfctr.load_table(other, name)
                assert len(found) == len(table)
                keys = np.sort(table.keys())
                np.testing.assert_array_equal(np.sort(found.keys()), keys)
                np.testing.assert_array_equal(found.lookup(keys), table.lookup(keys))


def test_three_rounds_of_training(tmp_path):
    model = models.Model()
    tfctr.convert(models.save(model, tmp_path / "model0"), tmp_path / "bundle")
    served = tmp_path / "bundle"
    with tfctr.ServingSession(served) as session:
        for round_ in (1, 2, 3):
            train(model, round_)
            newer = models.save(model, tmp_path / f"model{round_}")
            delta, version = tmp_path / f"delta{round_}", tmp_path / f"version{round_}"
            tfctr.make_delta(served, newer, delta)
            report = tfctr.apply_delta(served, delta, version)
            assert report.dense == bool(round_ % 2)
            session.apply_deltas(delta)
            tfctr.convert(newer, tmp_path / f"full{round_}")
            tfctr.compact(version, tmp_path / f"flat{round_}")
            same(tmp_path / f"full{round_}", version, tmp_path / f"flat{round_}", session)
            # The next delta is made on the compacted version, and fits both.
            served = tmp_path / f"flat{round_}"
        assert session.version.hash == report.version.hash
    tfctr.apply_delta(tmp_path / "bundle", [tmp_path / f"delta{k}" for k in (1, 2, 3)], tmp_path / "at once")
    same(tmp_path / "full3", tmp_path / "at once")
