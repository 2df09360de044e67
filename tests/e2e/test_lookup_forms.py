"""Keras preprocessing layers in front of embeddings: which of their ops the fused lookup takes in; stock's numbers.

What stays outside, and why: a vocabulary without out-of-vocabulary rows checks its input (an assertion, which must go
on being made); IntegerLookup with several out-of-vocabulary rows spreads unknown keys by modulo.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tfctr
from tests.models.base import run_stock
from tests.models.keras_onehot import export, randomise

NAMES = [f"n{k}" for k in range(40)]
NUMBERS = list(range(100, 160))
# Layer -> (input dtype, rows of the table, steps in the lookup; () where its ops stay outside).
FORMS: dict[str, tuple[str, int, tuple[str, ...], Callable[[Any], Any]]] = {
    "hashed": ("string", 50, ("hash_fast",), lambda layers: layers.Hashing(50)),
    "hashed_mask": (
        "string", 50, ("hash_fast", "add", "select_equal"), lambda layers: layers.Hashing(50, mask_value=""),
    ),
    "hashed_number_mask": (
        "int64", 50, ("as_string", "hash_fast", "add", "select_equal"), lambda layers: layers.Hashing(50, mask_value=0),
    ),
    "salted_mask": (
        "string", 50, ("hash_strong", "add", "select_equal"),
        lambda layers: layers.Hashing(50, mask_value="n1", salt=3),
    ),
    "mask": (
        "string", 42, ("vocab", "select_equal"), lambda layers: layers.StringLookup(vocabulary=NAMES, mask_token=""),
    ),
    "mask_three_unknown": (
        "string", 44, ("vocab_oov", "select_equal"),
        lambda layers: layers.StringLookup(vocabulary=NAMES, mask_token="", num_oov_indices=3),
    ),
    "none_unknown": (
        "string", 40, (), lambda layers: layers.StringLookup(vocabulary=NAMES, num_oov_indices=0),
    ),
    "number_mask": (
        "int64", 62, ("vocab", "select_equal"), lambda layers: layers.IntegerLookup(vocabulary=NUMBERS, mask_token=0),
    ),
    "number_32": ("int32", 61, ("cast", "vocab"), lambda layers: layers.IntegerLookup(vocabulary=NUMBERS)),
    "number_three_unknown": (
        "int64", 63, (), lambda layers: layers.IntegerLookup(vocabulary=NUMBERS, num_oov_indices=3),
    ),
}  # fmt: skip


def _inputs(rng: np.random.Generator) -> dict[str, np.ndarray]:
    words = np.array([b"", b"unknown", *(n.encode() for n in NAMES)], object)
    numbers = np.array([0, 7, *NUMBERS])
    known = {"none_unknown": words[2:]}
    return {
        name: rng.choice(known.get(name, words if dtype == "string" else numbers.astype(dtype)), 64)
        for name, (dtype, *_) in FORMS.items()
    }


def test_preprocessing_layers_are_part_of_the_lookup(tmp_path: Path) -> None:
    import keras

    rng = np.random.default_rng(0)
    inputs = {name: keras.Input((), dtype=dtype, name=name) for name, (dtype, *_) in FORMS.items()}
    embedded = [
        keras.layers.Embedding(rows, 4)(make(keras.layers)(inputs[name])) for name, (_, rows, _, make) in FORMS.items()
    ]
    model = keras.Model(inputs, {"y": keras.layers.Dense(1)(keras.layers.Concatenate()(embedded))})
    randomise(model, rng)
    request = _inputs(rng)
    export(model, str(tmp_path / "model"), request)
    report = tfctr.convert(tmp_path / "model", tmp_path / "bundle", strict=True, require_fused=("*",)).as_dict()
    lookups = {entry["name"]: entry for entry in report["signatures"]["serving_default"]["lookups"]}
    for name, (_, _, steps, _) in FORMS.items():
        found = [step.split(":")[0] for step in lookups[name]["steps"]]
        assert found == [*steps, "wrap_negative"], name
    want = run_stock(tmp_path / "model", {"serving_default": request})["serving_default"]["y"]
    with tfctr.ServingSession(tmp_path / "bundle") as session:
        np.testing.assert_allclose(session.predict(request)["y"], want, rtol=1e-5, atol=1e-6)
