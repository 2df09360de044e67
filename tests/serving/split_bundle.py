"""A bundle made by hand whose signature has a split form: user inputs of every kind once per user, one user feature
that stays on the item side. Serving is tested with it without converting anything.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfctr.bundle import manifest as manifests
from tfctr.bundle import naming
from tfctr.core import library

v1 = tf.compat.v1
NAME = "serving_default"
# input -> (dtype, shape, side); side "item" of a user feature: it stays with the rows
INPUTS: dict[str, tuple[str, list[int], str]] = {
    "age": ("float32", [-1, 2], "user"),
    "city": ("string", [-1], "user"),
    "hist": ("int64", [-1], "user"),
    "hist_1": ("int64", [-1], "user"),
    "item": ("float32", [-1, 3], "item"),
    "mood": ("int64", [-1], "item"),
    "tags/dense_shape": ("int64", [2], "user"),
    "tags/indices": ("int64", [-1, 2], "user"),
    "tags/values": ("int64", [-1], "user"),
}
FEATURES = [
    {"name": "age", "kind": "dense", "parts": {"values": "age"}},
    {"name": "city", "kind": "dense", "parts": {"values": "city"}},
    {"name": "hist", "kind": "ragged", "parts": {"values": "hist", "row_splits": "hist_1"}},
    {"name": "item", "kind": "dense", "parts": {"values": "item"}},
    {"name": "mood", "kind": "dense", "parts": {"values": "mood"}},
    {
        "name": "tags",
        "kind": "sparse",
        "parts": {role: f"tags/{role}" for role in ("values", "indices", "dense_shape")},
    },
]
ONCE = [name for name, (_, _, side) in INPUTS.items() if side == "user"]


def request(rows: int, users: int | None, seed: int = 0) -> dict[str, Any]:
    """A request with user features of ``users`` rows (None: as many as there are others)."""
    rng = np.random.default_rng(seed)
    count = rows if users is None else users
    return {
        "age": rng.normal(size=(count, 2)).astype(np.float32),
        "city": [f"city {k}" for k in rng.integers(0, 9, count)],
        "hist": [rng.integers(0, 99, rng.integers(0, 4)).tolist() for _ in range(count)],
        "item": rng.normal(size=(rows, 3)).astype(np.float32),
        "mood": rng.integers(0, 9, count),
        "tags": [rng.integers(0, 99, rng.integers(0, 4)).tolist() for _ in range(count)],
    }


def repeated(given: dict[str, Any], row_to_user: np.ndarray) -> dict[str, Any]:
    """The same request with the user features at all rows."""
    return {
        name: value
        if name == "item"
        else value[row_to_user]
        if isinstance(value, np.ndarray)
        else [value[k] for k in row_to_user]
        for name, value in given.items()
    }


def save(path: Path, *, packed: bool = True, split: bool = True) -> Path:
    """Writes the bundle; signatures ``serving_default``, ``__packed``, ``__split``, ``__split__packed`` as asked."""
    signatures = {}
    with tf.Graph().as_default(), v1.Session() as session:
        for form in ("", "__split") if split else ("",):
            names = sorted([*INPUTS, *(["row_to_user"] if form else [])])
            entries = {name: INPUTS.get(name, ("int64", [-1], ""))[:2] for name in names}
            inputs = {
                name: v1.placeholder(dtype, [None if n < 0 else n for n in shape])
                for name, (dtype, shape) in entries.items()
            }
            signatures[NAME + form] = v1.saved_model.predict_signature_def(inputs, _outputs(inputs))
            if packed:
                signatures[f"{NAME}{form}__packed"] = _packed(entries)
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    _write_manifest(path, signatures, packed=packed, split=split)
    return path


def _packed(entries: dict[str, tuple[str, list[int]]]) -> Any:
    names = sorted(entries)
    sources = {
        "arena": v1.placeholder(tf.uint8, [None]),
        "shapes": v1.placeholder(tf.int64, [None]),
        "strings": v1.placeholder(tf.string, [None]),
    }
    types = [tf.as_dtype(entries[name][0]) for name in names]
    parts = library.load().tfctr_unpack(*sources.values(), layout=types, emit=list(range(len(names))), Tout=types)
    return v1.saved_model.predict_signature_def(sources, _outputs(dict(zip(names, parts, strict=True))))


def _outputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """What the "model" computes: everything of a row, user side gathered where there is a row_to_user. ``form`` tells
    which form ran."""
    split = "row_to_user" in inputs
    place = inputs["row_to_user"] if split else tf.range(tf.shape(inputs["item"])[0])
    hist = tf.RaggedTensor.from_row_splits(inputs["hist"], inputs["hist_1"])
    shape = inputs["tags/dense_shape"]
    tags = tf.math.unsorted_segment_sum(inputs["tags/values"], inputs["tags/indices"][:, 0], shape[0])
    side = tf.stack([tf.reduce_sum(hist, 1), hist.row_lengths(), tags], 1)
    return {
        "age": tf.gather(inputs["age"], place),
        "city": tf.gather(inputs["city"], place),
        "sums": tf.gather(side, place),
        "score": inputs["item"][:, 0] * tf.gather(inputs["age"], place)[:, 0] + tf.cast(inputs["mood"], tf.float32),
        "form": tf.fill([tf.shape(inputs["item"])[0]], 2 if split else 1),
    }


def _write_manifest(path: Path, signatures: dict[str, Any], *, packed: bool, split: bool) -> None:
    tensors = {name: info.name for name, info in signatures[NAME].inputs.items()}
    users = [f["name"] for f in FEATURES if f["name"] != "item"]
    entry: dict[str, Any] = {
        "packed": f"{NAME}__packed" if packed else None,
        "optimised": True,
        "inputs": [
            {"name": name, "dtype": dtype, "shape": shape, "tensor": tensors[name]}
            for name, (dtype, shape, _) in INPUTS.items()
        ],
        "outputs": [
            {"name": name, "kind": "dense", "dtype": tf.as_dtype(info.dtype).name, "shape": None, "tensor": info.name}
            for name, info in sorted(signatures[NAME].outputs.items())
        ],
        "features": FEATURES,
        "lookups": [],
        "boundary": [],
        "user": {"features": users, "inputs": [name for name in INPUTS if name != "item"]},
        "split": None,
    }
    if split:
        entry["split"] = {
            "signature": f"{NAME}__split",
            "packed": f"{NAME}__split__packed" if packed else None,
            "row_to_user": "row_to_user",
            "user_inputs": ONCE,
            "user_features": [name for name in users if name != "mood"],
            "item_side": [{"feature": "mood", "op": "AddV2", "node": "add", "reason": "meets the item side there"}],
            "broadcasts": [],
            "flops": {"before_per_row": 0, "user_per_row": 0, "item_per_row": 0},
            "boundary": [],
        }
    model = path / naming.MODEL
    manifest = {
        "format": manifests.FORMAT,
        "tfctr": "test",
        "bundle_id": "hand-made",
        "model": {"file": naming.MODEL, "bytes": model.stat().st_size, "sha256": manifests.file_hash(model)},
        "store": {"files": []},
        "signatures": {NAME: entry},
    }
    (path / naming.MANIFEST).parent.mkdir(exist_ok=True)
    (path / naming.MANIFEST).write_text(json.dumps(manifest))
