"""A model with a fused static table, one that stock ops read whole, an embedding variable and a vocabulary; deltas for
its bundle written by hand; and what its rows should be, as plain dictionaries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfctr
from tfctr.bundle.deltas.delta_folder import Delta
from tfctr.bundle.deltas.delta_writer import DeltaWriter
from tfctr.bundle.deltas.identity import Version, version_of
from tfctr.bundle.reader import open_bundle
from tfctr.core import library

ITEMS, WHOLE, DIM, USERS = 60, 24, 8, 40
KEYS = np.concatenate([np.arange(USERS - 3) * 7919, [-(2**63), 2**63 - 1, -5]]).astype(np.int64)
DEFAULT = 0.25
Rows = dict[int, np.ndarray]
Changes = Mapping[str, tuple[Rows, Sequence[int]]]


class Model(tf.Module):
    """items: gathered; whole: multiplied as a matrix, so that TfctrTable carries it; users: an embedding variable."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        self.items = tf.Variable(random.normal(size=(ITEMS, DIM)).astype(np.float32), name="items")
        # Above 16 MB it would be a file by itself; a gather makes it one at any size.
        self.whole = tf.Variable(random.normal(size=(WHOLE, DIM)).astype(np.float32), name="whole")
        self.kernel = tf.Variable(random.normal(size=(3 * DIM,)).astype(np.float32), name="kernel")
        self.words = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(["x", "y", "z"], tf.constant([1, 2, 3], tf.int64)), 2
        )
        self.users = tfctr.EmbeddingVariable(
            DIM, "users", default_value=DEFAULT, initializer=tfctr.Uniform(-1.0, 1.0),
            optimizer=tfctr.optimizers.SGD(0.1),
        )  # fmt: skip
        self.users.lookup(tf.constant(KEYS), training=True)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, name="item"),
            tf.TensorSpec([None], tf.string, name="word"),
            tf.TensorSpec([None], tf.int64, name="user"),
        ]
    )
    def serve(self, item: tf.Tensor, word: tf.Tensor, user: tf.Tensor) -> dict[str, tf.Tensor]:
        of_item = tf.gather(self.items, item)
        of_word = tf.gather(self.whole, self.words.lookup(word))
        of_user = tfctr.embedding_lookup(self.users, user)
        score = tf.reduce_sum(tf.concat([of_item, of_word, of_user], 1) * self.kernel, 1)
        dot = tf.linalg.matvec(self.whole, tf.reduce_sum(of_item, 0))
        return {"score": score, "items": of_item, "users": of_user, "dot": dot}


def inputs(seed: int, rows: int = 16) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "item": random.integers(0, ITEMS, rows),
        "word": random.choice(np.array([b"x", b"y", b"z", b"other"], object), rows),
        "user": random.choice(np.append(KEYS, [4242, 31]), rows),
    }


def save(model: Model, path: Path) -> Path:
    tf.saved_model.save(model, str(path), signatures=model.serve)
    return path


@dataclasses.dataclass
class Expected:
    """What every row of a version should be: table -> key -> row. Only tables that were named are in it."""

    rows: dict[str, Rows]

    def after(self, changes: Changes) -> Expected:
        made = {name: dict(rows) for name, rows in self.rows.items()}
        for name, (given, removed) in changes.items():
            for key in removed:
                made[name].pop(key, None)
            made[name].update(given)
        return Expected(made)

    def check(self, bundle: Path) -> None:
        """Every row of every table by ``tfctr.load_table``, in float32, bit by bit; nothing else is there."""
        for name, rows in self.rows.items():
            table = tfctr.load_table(bundle, name)
            keys = np.array(sorted(rows), np.int64)
            np.testing.assert_array_equal(table.lookup(keys), np.stack([rows[int(k)] for k in keys]))
            assert len(table) == len(rows)


def expected(model: Model) -> Expected:
    keys, values = KEYS, model.users.lookup(tf.constant(KEYS)).numpy()
    return Expected(
        {
            "items": dict(enumerate(model.items.numpy())),
            "whole": dict(enumerate(model.whole.numpy())),
            "users": {int(key): row for key, row in zip(keys, values, strict=True)},
        }
    )


def version(bundle: Path) -> Version:
    return version_of(open_bundle(bundle).manifest, str(bundle))


def write_delta(out: Path, bundle: Path, previous: Version, changes: Changes, **dense: Any) -> Delta:
    """A delta of rows (and removed keys) by hand. dense: ``graph`` (bytes) and ``manifest``."""
    native = library.native()
    entries = {entry["name"]: entry for entry in open_bundle(bundle).manifest["store"]["files"]}
    with DeltaWriter(out, previous) as writer:
        for name, (rows, removed) in changes.items():
            entry = entries[name]
            path = writer.table_path(entry["index"], name)
            native.write_delta_file(
                path,
                name,
                np.array(list(rows), np.int64),
                np.array(list(rows.values()), np.float32).reshape(len(rows), DIM),
                np.array(removed, np.int64),
                hashed=entry["kind"] == "hash",
                dtype="float32",
                width=DIM,
                table_rows=0 if entry["kind"] == "hash" else entry["shape"][0],
                metadata={"step": previous.sequence + 1},
            )
            writer.add_table(index=entry["index"], kind=entry["kind"], name=name, rows=len(rows), removed=len(removed))
        if dense:
            writer.dense_path("saved_model.pb").write_bytes(dense["graph"])
            writer.set_dense(dense["manifest"])
        return writer.commit({"path": "by hand", "kind": "checkpoint"})


def random_changes(seed: int, known: Expected, count: int = 5) -> Changes:
    """Rows changed in both kinds of tables, users added and removed."""
    random = np.random.default_rng(seed)

    def row() -> np.ndarray:
        return random.normal(size=DIM).astype(np.float32)

    users = list(known.rows["users"])
    removed = [int(k) for k in random.choice(np.array(users, np.int64), min(count, len(users)), replace=False)]
    given = {int(k): row() for k in random.choice(np.array(users, np.int64), min(count, len(users)), replace=False)}
    given |= {int(random.integers(-(2**62), 2**62)): row() for _ in range(count)}
    gone = [key for key in removed if key not in given]
    return {
        "items": ({int(k): row() for k in random.integers(0, ITEMS, count)}, []),
        "whole": ({int(random.integers(0, WHOLE)): row()}, []),
        "users": (given, gone),
    }
