"""DeepCTR's models (family I) on generated data shaped like its examples, plus tf_keras layers by themselves.

Imported only by ``legacy.py``: DeepCTR 0.9 runs on tf-keras (TF_USE_LEGACY_KERAS=1).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.models.base import BATCH, SERVING, Arrays, ModelBuilder
from tests.models.vocabularies import words


def _finish(
    path: str, model: object, rng: np.random.Generator, arrays: Arrays, whole: bool = False, spread: float = 0.5
) -> dict[str, Arrays]:
    """Random weights in every table and kernel (DeepCTR's tables start at 1e-4), then a SavedModel.

    ``whole``: as model.save writes it, with the functions of every layer in the library (seconds); else as
    model.export does. ``spread``: standard deviation of the tables (DeepFM's sum of 26 terms saturates at 0.5).
    """
    for weight in model.weights:  # type: ignore[attr-defined]
        shape = tuple(weight.shape)
        if not weight.dtype.is_floating or "moving_" in weight.name:
            continue
        scale = spread if "embeddings" in weight.name else (3.0 / max(shape[0], 1)) ** 0.5 if len(shape) > 1 else 0.1
        weight.assign(rng.normal(0, scale, shape))
    if whole:
        tf.saved_model.save(model, path)
    else:
        model.export(path)  # type: ignore[attr-defined]
    # DeepCTR's inputs carry the dtype of the feature column; single ids are [B, 1].
    return {SERVING: arrays}


def _criteo(rng: np.random.Generator) -> tuple[list[object], Arrays]:
    """26 label-encoded categories and 13 numeric columns, as DeepCTR prepares the Criteo sample."""
    from deepctr.feature_column import DenseFeat, SparseFeat

    columns: list[object] = []
    arrays: Arrays = {}
    for k in range(26):
        vocabulary = 50 + (k * 61) % 700
        columns.append(SparseFeat(f"C{k + 1}", vocabulary, embedding_dim=4))
        arrays[f"C{k + 1}"] = rng.integers(0, vocabulary, (BATCH, 1)).astype(np.int32)
    for k in range(13):
        columns.append(DenseFeat(f"I{k + 1}", 1))
        arrays[f"I{k + 1}"] = rng.uniform(0, 1, (BATCH, 1)).astype(np.float32)
    return columns, arrays


def _save_deepfm(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    from deepctr.models import DeepFM

    columns, arrays = _criteo(rng)
    return _finish(path, DeepFM(columns, columns, dnn_hidden_units=(32, 16)), rng, arrays, spread=0.12)


def _save_mmoe(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    from deepctr.models import MMOE

    columns, arrays = _criteo(rng)
    model = MMOE(
        columns[:12] + columns[-4:],
        expert_dnn_hidden_units=(16,),
        tower_dnn_hidden_units=(8,),
        task_types=("binary", "binary"),
        task_names=("click", "like"),
    )
    return _finish(path, model, rng, {k: arrays[k] for k in model.input_names})


def _save_esmm(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    from deepctr.models import ESMM

    columns, arrays = _criteo(rng)
    model = ESMM(columns[:10] + columns[-3:], tower_dnn_hidden_units=(16, 8))
    return _finish(path, model, rng, {k: arrays[k] for k in model.input_names})


def _save_din(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    from deepctr.feature_column import DenseFeat, SparseFeat, VarLenSparseFeat
    from deepctr.models import DIN

    length = 6
    columns = [
        SparseFeat("user", 70, embedding_dim=5),
        SparseFeat("gender", 50, embedding_dim=4),
        SparseFeat("item", 160, embedding_dim=8),
        SparseFeat("category", 52, embedding_dim=4),
        DenseFeat("price", 1),
    ]
    for name, vocabulary, width in (("item", 160, 8), ("category", 52, 4)):
        history = SparseFeat(f"hist_{name}", vocabulary, embedding_dim=width, embedding_name=name)
        columns.append(VarLenSparseFeat(history, maxlen=length, length_name="seq_length"))
    lengths = rng.integers(1, length + 1, (BATCH, 1))
    seen = np.arange(length) < lengths
    arrays = {
        "user": rng.integers(0, 70, (BATCH, 1)),
        "gender": rng.integers(0, 50, (BATCH, 1)),
        "item": rng.integers(1, 160, (BATCH, 1)),
        "category": rng.integers(1, 52, (BATCH, 1)),
        "hist_item": rng.integers(1, 160, (BATCH, length)) * seen,
        "hist_category": rng.integers(1, 52, (BATCH, length)) * seen,
        "seq_length": lengths,
    }
    inputs: Arrays = {k: v.astype(np.int32) for k, v in arrays.items()}
    inputs["price"] = rng.uniform(0, 1, (BATCH, 1)).astype(np.float32)
    model = DIN(columns, ["item", "category"], dnn_hidden_units=(16, 8), att_hidden_size=(16, 8))
    return _finish(path, model, rng, inputs)


def _save_multival(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    """String hashes inside the model and a multi-valued feature pooled by mean (DeepFM)."""
    from deepctr.feature_column import SparseFeat, VarLenSparseFeat
    from deepctr.models import DeepFM

    names = [f"v{k}" for k in range(200)]
    columns: list[object] = [
        SparseFeat(name, vocabulary, embedding_dim=4, use_hash=True, dtype="string")
        for name, vocabulary in (("movie", 150), ("user", 97), ("zip", 60))
    ]
    genres = SparseFeat("genres", 100, embedding_dim=4, use_hash=True, dtype="string")
    columns.append(VarLenSparseFeat(genres, maxlen=5, combiner="mean"))
    arrays: Arrays = {name: words(rng, names, (BATCH, 1)) for name in ("movie", "user", "zip")}
    values = words(rng, names[:40], (BATCH, 5), unknown=0.0)
    values[np.arange(5) >= rng.integers(0, 6, (BATCH, 1))] = (
        b"0"  # DeepCTR's padding: "0" hashes to row 0, which is masked
    )
    arrays["genres"] = values
    return _finish(path, DeepFM(columns, columns, dnn_hidden_units=(16,)), rng, arrays, whole=True)


def _save_tf_keras(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    """tf_keras' own Embedding (ResourceGather: -1 is an error): [B], [B, 1] + Flatten, mask_zero + average pooling."""
    import tf_keras
    from tf_keras import layers

    arrays = {
        "one": rng.integers(0, 90, BATCH).astype(np.int32),
        "column": rng.integers(0, 140, (BATCH, 1)),
        "history": rng.integers(1, 75, (BATCH, 7)) * (np.arange(7) < rng.integers(1, 8, (BATCH, 1))),
    }
    x = {k: tf_keras.Input(v.shape[1:], dtype=v.dtype.name, name=k) for k, v in arrays.items()}
    parts = [
        layers.Embedding(90, 6)(x["one"]),
        layers.Flatten()(layers.Embedding(140, 5)(x["column"])),
        layers.GlobalAveragePooling1D()(layers.Embedding(75, 9, mask_zero=True)(x["history"])),
    ]
    hidden = layers.Dense(16, activation="relu")(layers.Concatenate()(parts))
    return _finish(path, tf_keras.Model(x, layers.Dense(1, activation="sigmoid", name="click")(hidden)), rng, arrays)


BUILDERS = [
    ModelBuilder("i_deepctr_deepfm", "I DeepCTR", _save_deepfm, legacy=True),
    ModelBuilder("i_deepctr_mmoe", "I DeepCTR", _save_mmoe, legacy=True),
    ModelBuilder("i_deepctr_esmm", "I DeepCTR", _save_esmm, legacy=True),
    ModelBuilder("i_deepctr_din", "I DeepCTR", _save_din, legacy=True),
    ModelBuilder("i_deepctr_multival_hash", "I DeepCTR", _save_multival, legacy=True),
    ModelBuilder("c_tf_keras", "C Keras one-hot", _save_tf_keras, legacy=True),
]
