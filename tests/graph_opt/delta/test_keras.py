"""A Keras model: exports number its variables, checkpoints of training name them by layers."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfctr


def _model() -> keras.Model:
    user, kind = (keras.Input((1,), dtype="int64", name=name) for name in ("user", "kind"))
    of_user = tfctr.keras.Embedding(8, optimizer=tfctr.optimizers.Adagrad(0.1), name="of_user")(user)
    of_kind = keras.layers.Embedding(50, 8, name="of_kind")(kind)
    x = keras.layers.Concatenate()([keras.layers.Flatten()(rows) for rows in (of_user, of_kind)])
    for units in (6, 6):  # two layers of one shape: only names tell them apart
        x = keras.layers.Dense(units, activation="relu")(x)
    return keras.Model({"user": user, "kind": kind}, keras.layers.Dense(1, activation="sigmoid", name="click")(x))


def test_export_and_checkpoint_give_the_same_delta(tmp_path: Path) -> None:
    model, random = _model(), np.random.default_rng(0)
    model.compile("adam", "binary_crossentropy")

    def batch(rows: int) -> dict[str, np.ndarray]:
        return {"user": random.integers(0, 90, (rows, 1)), "kind": random.integers(0, 50, (rows, 1))}

    def train() -> None:
        model.fit(batch(64), random.integers(0, 2, (64, 1)).astype(np.float32), batch_size=16, verbose=0)

    train()
    tfctr.keras.export(model, tmp_path / "m0")
    tfctr.convert(tmp_path / "m0", tmp_path / "v0", dense="tensorflow")
    train()
    tfctr.keras.export(model, tmp_path / "m1")
    prefix = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    request = batch(30)
    want = model.predict(request, verbose=0)
    for number, new in enumerate((tmp_path / "m1", prefix)):
        report = tfctr.make_delta(tmp_path / "v0", new, tmp_path / f"d{number}")
        assert report.dense == "6 dense weights changed"
        assert {t.name for t in report.tables if t.changed} == {t.name for t in report.tables}
        tfctr.apply_delta(tmp_path / "v0", [tmp_path / f"d{number}"], tmp_path / f"v1{number}")
        (got,) = tfctr.ServingSession(tmp_path / f"v1{number}").predict(request).values()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    # A delta from a checkpoint leaves a version that takes the next export, and the next checkpoint.
    assert tfctr.make_delta(tmp_path / "v11", tmp_path / "m1", tmp_path / "d2").empty
    assert tfctr.make_delta(tmp_path / "v11", prefix, tmp_path / "d3").empty
