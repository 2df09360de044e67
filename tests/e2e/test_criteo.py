"""Parity on the Criteo sample: 26 columns of hex strings (many empty) and 13 counts, through a Keras model."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import tfctr

LOOKED_UP = ("C6", "C9", "C14", "C17", "C20", "C22", "C23", "C25")  # few values: a vocabulary; the others are hashed


def _read(path: Path) -> dict[str, np.ndarray]:
    """Columns of the sample: C1-C26 as bytes, I1-I13 as float32 with NaN where empty."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns: dict[str, np.ndarray] = {}
    for k in range(1, 27):
        columns[f"C{k}"] = np.array([row[f"C{k}"].encode() for row in rows], object)
    for k in range(1, 14):
        columns[f"I{k}"] = np.array([float(row[f"I{k}"]) if row[f"I{k}"] else np.nan for row in rows], np.float32)
    return columns


def _save(folder: Path, train: dict[str, np.ndarray]) -> None:
    import keras

    from tests.models.keras_onehot import export, randomise

    layers = keras.layers
    inputs, parts = {}, []
    for name, column in train.items():
        inputs[name] = keras.Input((), dtype="string" if name[0] == "C" else "float32", name=name)
        if name[0] == "I":
            filled = keras.ops.where(keras.ops.isnan(inputs[name]), 0.0, inputs[name])
            parts.append(keras.ops.log1p(keras.ops.maximum(filled, 0.0))[:, None] * 0.2)
            continue
        if name in LOOKED_UP:
            known = sorted({v.decode() for v in column.tolist()} - {""})
            rows, ids = len(known) + 1, layers.StringLookup(vocabulary=known, name=f"row_{name}")(inputs[name])
        else:
            rows, ids = 400, layers.Hashing(400, name=f"row_{name}")(inputs[name])
        parts.append(layers.Embedding(rows, 8, name=f"embedding_{name}")(ids))
    hidden = layers.Dense(32, activation="relu", name="hidden")(layers.Concatenate()(parts))
    model = keras.Model(inputs, {"click": layers.Dense(1, activation="sigmoid", name="click")(hidden)})
    randomise(model, np.random.default_rng(0))
    export(model, str(folder), train)


def test_converted_model_gives_stock_scores(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "criteo-tiny"
    if not folder.is_dir():
        pytest.skip("no ../shared/data/criteo-tiny here")
    from tests.models.base import run_stock

    _save(tmp_path / "model", _read(folder / "train.csv"))
    report = tfctr.convert(tmp_path / "model", tmp_path / "bundle", strict=True, require_fused=("*",)).as_dict()
    lookups = report["signatures"]["serving_default"]["lookups"]
    assert [entry["status"] for entry in lookups] == ["fused"] * 26
    rows = _read(folder / "test.csv")  # values that the vocabulary does not know
    stock = run_stock(tmp_path / "model", {"serving_default": rows})["serving_default"]["click"]
    assert np.std(stock) > 0.05
    with tfctr.ServingSession(tmp_path / "bundle") as session:
        fused = session.predict(rows)["click"]
        one = session.predict({name: column[:1] for name, column in rows.items()})["click"]
    np.testing.assert_allclose(fused, stock, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one, stock[:1], rtol=1e-5, atol=1e-6)
