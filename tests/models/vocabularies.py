"""Vocabularies in front of tables (family E): Keras preprocessing, vocabulary files, static and mutable tables."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tests.models.base import (
    BATCH,
    SERVING,
    Arrays,
    ModelBuilder,
    Save,
    Tower,
    row_lengths,
    save_module,
    sparse_parts,
    table,
)
from tests.models.keras_onehot import export, randomise


def words(rng: np.random.Generator, vocabulary: list[str], shape: tuple[int, ...], unknown: float = 0.2) -> np.ndarray:
    """Random strings (bytes objects) of which a share is not in the vocabulary, the empty string among them."""
    picked = rng.choice(np.array(vocabulary, object), shape)
    strange = np.array(["", "unknown", "größe", "x" * 40], object)
    return np.vectorize(str.encode, otypes=[object])(
        np.where(rng.random(shape) < unknown, rng.choice(strange, shape), picked)
    )


def _save_keras(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    layers = keras.layers
    names = [f"w{k}" for k in range(60)]
    numbers = [int(v) for v in rng.choice(10**9, 80, replace=False)]
    arrays = {
        "lookup": words(rng, names, (BATCH,)),
        "lookup_two_oov": words(rng, names, (BATCH, 1)),
        "hashing": words(rng, names, (BATCH,)),
        "hashing_salted": words(rng, names, (BATCH, 1)),
        "integer": np.where(rng.random(BATCH) < 0.3, rng.integers(0, 99, BATCH), rng.choice(numbers, BATCH)),
        "discretization": rng.normal(0, 2, BATCH).astype(np.float32),
        "hashing_integer": rng.integers(0, 10**12, BATCH),
    }
    # Column 0 of numbers: NaN and infinities are legal inputs of Bucketize.
    arrays["discretization"][:2] = (np.inf, -np.inf)
    transforms = {
        "lookup": (layers.StringLookup(vocabulary=names, name="to_lookup"), 61),
        "lookup_two_oov": (layers.StringLookup(vocabulary=names, num_oov_indices=3, name="to_lookup_two_oov"), 63),
        "hashing": (layers.Hashing(97, name="to_hashing"), 97),
        "hashing_salted": (layers.Hashing(50, salt=[7, 13], name="to_hashing_salted"), 50),
        "integer": (layers.IntegerLookup(vocabulary=numbers, name="to_integer"), 81),
        "discretization": (
            layers.Discretization(bin_boundaries=[-2.0, -0.5, 0.0, 0.25, 1.0, 3.0], name="to_discretization"),
            7,
        ),
        "hashing_integer": (layers.Hashing(200, name="to_hashing_integer"), 200),
    }
    x, parts = {}, []
    for k, (name, (transform, rows)) in enumerate(transforms.items()):
        value = arrays[name]
        x[name] = keras.Input(value.shape[1:], dtype="string" if value.dtype == object else value.dtype.name, name=name)
        found = layers.Embedding(rows, 4 + k, name=f"embedding_{name}")(transform(x[name]))
        parts.append(layers.Flatten()(found) if value.ndim == 2 else found)
    hidden = layers.Dense(16, activation="relu", name="hidden")(layers.Concatenate()(parts))
    model = keras.Model(x, {"click": layers.Dense(1, activation="sigmoid", name="click")(hidden)})
    randomise(model, rng)
    export(model, path, arrays)
    return {SERVING: arrays}


class VocabularyModel(tf.Module):
    """One string feature through a vocabulary file (an asset) and one through inline keys, an int64 one, a sparse one.

    ``echo``: the ids are an output too, so that the lookup into the vocabulary must stay in the graph.
    """

    def __init__(self, rng: np.random.Generator, file: Path, names: list[str], echo: bool) -> None:
        super().__init__()
        self.echo = echo
        initialiser = tf.lookup.TextFileInitializer(
            str(file), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        )
        self.file_table = tf.lookup.StaticVocabularyTable(initialiser, num_oov_buckets=5)
        inline = tf.lookup.KeyValueTensorInitializer(names[:40], np.arange(40, dtype=np.int64))
        self.inline_table = tf.lookup.StaticHashTable(inline, default_value=40)
        self.numbers = rng.choice(10**12, 70, replace=False)
        numbers = tf.lookup.KeyValueTensorInitializer(self.numbers, rng.permutation(70).astype(np.int64))
        self.number_table = tf.lookup.StaticHashTable(numbers, default_value=0)
        rows = {"city": len(names) + 5, "brand": 41, "item": 70, "tags": len(names) + 5}
        self.tables = {k: tf.Variable(table(rng, v, 6 + i), name=f"emb_{k}") for i, (k, v) in enumerate(rows.items())}
        self.tower = Tower(rng, 6 + 7 + 8 + 9)

    def serve(self, city, brand, item, tags_values, tags_indices, tags_shape):  # type: ignore[no-untyped-def]
        city_ids = self.file_table.lookup(city)
        tags = self.file_table.lookup(tf.SparseTensor(tags_indices, tags_values, tags_shape))
        found = [
            tf.nn.embedding_lookup(self.tables["city"], city_ids),
            tf.gather(self.tables["brand"], self.inline_table.lookup(brand)),
            tf.nn.embedding_lookup(self.tables["item"], self.number_table.lookup(item)),
            tf.nn.safe_embedding_lookup_sparse(self.tables["tags"], tags, combiner="mean"),
        ]
        outputs = {"score": self.tower(tf.concat(found, 1))}
        return {**outputs, "city_id": city_ids} if self.echo else outputs


def _save_file(echo: bool) -> Save:
    def save(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
        names = [f"city {k}" for k in range(90)]
        file = Path(path).with_name(Path(path).name + ".cities.txt")
        file.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        model = VocabularyModel(rng, file, names, echo)
        indices, shape = sparse_parts(row_lengths(rng, BATCH, 4))
        arrays = {
            "city": words(rng, names, (BATCH,)),
            "brand": words(rng, names[:40], (BATCH,)),
            "item": rng.choice(np.concatenate([model.numbers, [1, 2, 3]]), BATCH),
            "tags_values": words(rng, names, (len(indices),)),
            "tags_indices": indices,
            "tags_shape": shape,
        }
        specs = {
            "city": tf.TensorSpec([None], tf.string, "city"),
            "brand": tf.TensorSpec([None], tf.string, "brand"),
            "item": tf.TensorSpec([None], tf.int64, "item"),
            "tags_values": tf.TensorSpec([None], tf.string, "tags_values"),
            "tags_indices": tf.TensorSpec([None, 2], tf.int64, "tags_indices"),
            "tags_shape": tf.TensorSpec([2], tf.int64, "tags_shape"),
        }
        save_module(path, model, model.serve, specs)
        file.unlink()  # the SavedModel has its own copy: a reader of the original path would fail
        return {SERVING: arrays}

    return save


class MutableModel(tf.Module):
    """Ids through a MutableHashTable: read-write state, which must stay a TensorFlow table."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.ids = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=0, name="item_ids")
        self.ids.insert([f"i{k}" for k in range(1, 50)], np.arange(1, 50, dtype=np.int64))
        self.table = tf.Variable(table(rng, 50, 8), name="emb_item")
        self.tower = Tower(rng, 8)

    def serve(self, item: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"score": self.tower(tf.nn.embedding_lookup(self.table, self.ids.lookup(item)))}


def _save_mutable(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = MutableModel(rng)
    save_module(path, model, model.serve, {"item": tf.TensorSpec([None], tf.string, "item")})
    return {SERVING: {"item": words(rng, [f"i{k}" for k in range(1, 60)], (BATCH,))}}


BUILDERS = [
    ModelBuilder("e_keras_lookup", "E vocabularies", _save_keras),
    ModelBuilder("e_vocab_file", "E vocabularies", _save_file(echo=True)),
    ModelBuilder("e_vocab_file_only", "E vocabularies", _save_file(echo=False)),
    ModelBuilder("m_mutable_table", "stays", _save_mutable),
]
