"""SavedModels with embedding variables, by every way to make one: what their conversion is tested on.

Tables are filled by training lookups, so that every key has a row of its own (initial values are a function of the
key); ``UNKNOWN`` was never looked up, ``RARE`` too seldom to be admitted where there is admission.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfctr

v1 = tf.compat.v1
KEYS = np.array([-(2**63), -7, -1, 0, 1, 2, 3, 12, 99, 1 << 40, 2**63 - 1], np.int64)
INTS = np.array([-(2**31), -2, 0, 5, 8, 13, 2**31 - 1], np.int32)
WORDS = [b"", b"a", b"news", b"\xc3\xa9", b"x" * 100]
UNKNOWN, RARE = 4242, 555
BATCH = 6


def _inputs() -> dict[str, np.ndarray]:
    """A batch that has known, unknown and rare keys, empty rows, and weights 0, negative, and cancelling each other."""
    lengths = [2, 0, 3, 1, 4, 0]
    values = np.concatenate([KEYS[:8], [UNKNOWN, RARE]]).astype(np.int64)
    rows = np.repeat(np.arange(BATCH), lengths)
    columns = np.concatenate([np.arange(n) for n in lengths])
    weights = np.array([0.5, 2, 1, -1, 0, 1, 0.25, 3, 1.5, 1], np.float32)
    words = np.empty(BATCH, object)
    words[:] = [*WORDS, b"unknown"]
    return {
        "user": np.concatenate([KEYS[[0, 3, 10]], [UNKNOWN, RARE], KEYS[[8]]]).astype(np.int64),
        "seen": np.resize(np.append(KEYS, [UNKNOWN, RARE]), (BATCH, 3)).astype(np.int64),
        "word": words,
        "small": np.append(INTS[:5], np.int32(77)).astype(np.int32),
        "tags/values": values,
        "tags/row_splits": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "bag/indices": np.stack([rows, columns], 1).astype(np.int64),
        "bag/values": values[::-1].copy(),
        "bag/dense_shape": np.array([BATCH, 4], np.int64),
        "bag/weights": weights,
        "item": np.array([0, 4, 9, 1, 1, 3], np.int64),
    }


INPUTS = _inputs()
_TYPES = {name: tf.as_dtype(value.dtype if value.dtype != object else tf.string) for name, value in INPUTS.items()}
_SHAPES: dict[str, list[int | None]] = {"seen": [None, 3], "bag/indices": [None, 2], "bag/dense_shape": [2]}
SPECS = {name: tf.TensorSpec(_SHAPES.get(name, [None]), dtype, name) for name, dtype in _TYPES.items()}


class Tables:
    """The tables of the module and of the TF1 model: every key dtype, admission, eviction, default values."""

    def __init__(self, width: int = 8) -> None:
        grow = {"optimizer": tfctr.optimizers.Adagrad(0.1), "initializer": tfctr.Uniform(-1.0, 1.0)}
        self.users = tfctr.EmbeddingVariable(
            width,
            "users",
            admission=tfctr.CounterAdmission(2),
            default_value=0.25,
            eviction=tfctr.StepEviction(99),
            **grow,
        )
        self.words = tfctr.EmbeddingVariable(
            width, "words", key_dtype=tf.string, default_value=np.linspace(-1, 1, width), record_frequency=True, **grow
        )
        self.small = tfctr.EmbeddingVariable(
            width, "small", key_dtype=tf.int32, eviction=tfctr.CapacityEviction(100, "lfu"), **grow
        )
        self.bags = tfctr.EmbeddingVariable(width, "bags", admission=tfctr.BloomAdmission(1, 1000), **grow)

    def fill(self) -> list[Any]:
        """Gives every known key a row; the operations in a TF1 graph."""
        known = tf.constant(np.concatenate([np.repeat(KEYS, 2), [RARE]]))  # a rare key: one occurrence, two are needed
        return [
            self.users.lookup(known, training=True),
            self.words.lookup(tf.constant(WORDS), training=True),
            self.small.lookup(tf.constant(INTS), training=True),
            self.bags.lookup(tf.constant(KEYS), training=True),
        ]

    def features(self, x: dict[str, Any]) -> list[tf.Tensor]:
        """All lookups of a batch, [B, width] each."""
        tags = tf.RaggedTensor.from_row_splits(x["tags/values"], x["tags/row_splits"], validate=False)
        bag = tf.SparseTensor(x["bag/indices"], x["bag/values"], x["bag/dense_shape"])
        weights = tf.SparseTensor(x["bag/indices"], x["bag/weights"], x["bag/dense_shape"])
        user, word, of_tags = tfctr.embedding_lookup_group(
            [(self.users, x["user"]), (self.words, x["word"]), tfctr.Lookup(self.users, tags, "sum")]
        )
        return [
            user,
            word,
            of_tags,
            tfctr.embedding_lookup(self.small, x["small"], max_norm=1.5),
            tfctr.embedding_lookup_sparse(self.bags, bag, combiner="mean"),
            tfctr.embedding_lookup_sparse(self.bags, bag, weights, combiner="sqrtn", max_norm=0.75),
            tfctr.embedding_lookup_sparse(self.users, tags, combiner="sqrtn"),
            tf.reshape(tfctr.embedding_lookup(self.users, x["seen"]), [-1, 3 * self.users.dim]),
        ]


LOOKUPS = 8  # of embedding variables; one more of a static table


def _dense(x: list[tf.Tensor], kernel: Any) -> tf.Tensor:
    return tf.sigmoid(tf.concat(x, 1) @ kernel)


class Module(tf.Module):
    """Embedding variables beside a static table, one score per row."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables()
        self.members = [self.tables.users, self.tables.words, self.tables.small, self.tables.bags]  # so they are saved
        random = np.random.default_rng(3)
        self.items = tf.Variable(random.normal(size=(10, 8)).astype(np.float32), name="items")
        self.kernel = tf.Variable((random.normal(size=(11 * 8, 1)) * 0.3).astype(np.float32), name="kernel")

    @tf.function(input_signature=[SPECS])
    def serve(self, x: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        rows = [*self.tables.features(x), tf.gather(self.items, x["item"])]
        return {"score": _dense(rows, self.kernel), "rows": tf.concat(rows, 1)}


def save_module(path: Path) -> None:
    """A tf.Module; signature inputs are named as in ``INPUTS``."""
    module = Module()
    module.tables.fill()
    serve = tf.function(lambda **x: module.serve({k.replace("__", "/"): v for k, v in x.items()}))
    specs = {k.replace("/", "__"): tf.TensorSpec(s.shape, s.dtype, k) for k, s in SPECS.items()}
    tf.saved_model.save(module, str(path), {"serving_default": serve.get_concrete_function(**specs)})


def save_tf1(path: Path) -> None:
    """A TF1 graph, saved by tf.compat.v1.saved_model with the stock Saver."""
    with tf.Graph().as_default():
        x = {name: v1.placeholder(spec.dtype, spec.shape, name.replace("/", "_")) for name, spec in SPECS.items()}
        tables = Tables()
        filled = tables.fill()
        random = np.random.default_rng(4)
        items = v1.get_variable("items", initializer=random.normal(size=(10, 8)).astype(np.float32))
        kernel = v1.get_variable("kernel", initializer=(random.normal(size=(11 * 8, 1)) * 0.3).astype(np.float32))
        rows = [*tables.features(x), tf.gather(items, x["item"])]
        outputs = {"score": _dense(rows, kernel), "rows": tf.concat(rows, 1)}
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(filled)
            v1.saved_model.simple_save(session, str(path), x, outputs)


def save_keras(path: Path) -> None:
    """The example's DeepFM, trained a little; ragged inputs stay ragged."""
    from examples.models.keras_deepfm_ev import Field, deepfm_ev

    fields = [Field("user", "int64"), Field("word", "string"), Field("tags", "int64", several=True)]
    model = deepfm_ev(fields, width=7, hidden=(16,))
    x = keras_inputs()
    model.fit(x, {"click": np.tile([0.0, 1.0], BATCH // 2)}, epochs=2, batch_size=BATCH, verbose=0)
    tfctr.keras.export(model, path)


def keras_inputs() -> dict[str, Any]:
    """What the Keras model is trained with: half of its keys are in ``INPUTS``."""
    tags = tf.RaggedTensor.from_row_splits(INPUTS["tags/values"], INPUTS["tags/row_splits"])
    return {"user": tf.constant(INPUTS["user"][::-1].copy()), "word": tf.constant(INPUTS["word"]), "tags": tags}


def keras_request() -> dict[str, np.ndarray]:
    """A batch for its signature, with keys that it was not trained on."""
    names = ("user", "word", "tags/values", "tags/row_splits")
    request = {name: INPUTS[name] for name in names}
    return {**request, "tags/values": np.where(INPUTS["tags/values"] == 0, UNKNOWN, INPUTS["tags/values"])}


MODELS: dict[str, tuple[Callable[[Path], None], Callable[[], dict[str, np.ndarray]]]] = {
    "keras": (save_keras, keras_request),
    "module": (save_module, lambda: INPUTS),
    "tf1": (save_tf1, lambda: INPUTS),
}
