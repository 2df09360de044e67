"""The reference models of ``examples/models``, trained for a moment, and the requests that they are timed with."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np

from benchmarks.effects.settings import BURST, ONE_USER

RING = 8  # different requests, in turn
_RATE, _START = 0.05, 0.1  # of Adagrad
Request = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """vocabulary: rows of the largest tables. width: columns of an embedding. hidden: the tower's layers. rows: of a
    request. burst, burst_rows: requests that come together, and rows of each.
    """

    vocabulary: int = 100_000
    width: int = 16
    hidden: tuple[int, ...] = (512, 256)
    rows: int = 256
    burst: int = 8
    burst_rows: int = 32
    steps: int = 60

    def words(self) -> str:
        tower = "-".join(map(str, self.hidden))
        return (
            f"tables of up to {self.vocabulary:,} rows x {self.width}, tower {tower}, trained for {self.steps} steps "
            f"of Adagrad. Requests: {self.rows} rows of as many users; one user beside {self.rows} candidates (the "
            f"split only); {self.burst} requests of {self.burst_rows} rows at once (executors and batching only)"
        )


def save_trained(name: str, folder: pathlib.Path, shape: Shape) -> dict[str, float]:
    """Trains and saves a reference model, with its optimizer's slots as training leaves them. Returns the loss at the
    first and the last step.
    """
    import tensorflow as tf

    from examples.models import REFERENCE_MODELS

    model = REFERENCE_MODELS[name](shape.vocabulary, shape.width, shape.hidden)
    variables = list(model.trainable_variables)
    slots = [tf.Variable(tf.fill(v.shape, _START), trainable=False, name=f"slot{k}") for k, v in enumerate(variables)]
    model.slots = slots  # type: ignore[attr-defined]

    def step(label: tf.Tensor, **request: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.add_n([_cross_entropy(label, output) for output in model.serve(**request).values()])
        for variable, slot, gradient in zip(variables, slots, tape.gradient(loss, variables), strict=True):
            if gradient is not None:
                _adagrad(variable, slot, gradient)
        return loss

    label = tf.TensorSpec([None, 1], tf.float32)
    train = tf.function(step, autograph=False).get_concrete_function(label=label, **model.specs())
    losses = []
    for number in range(shape.steps):
        request = requests_of(name, "train", shape, seed=1000 + number)[0]
        feeds = {key: tf.constant(value) for key, value in request.items()}
        losses.append(float(train(label=tf.constant(_labels(request, number)), **feeds)))
    model.save(str(folder))
    return {"first_loss": losses[0], "last_loss": losses[-1]} if losses else {}


def _cross_entropy(label, output):  # type: ignore[no-untyped-def]
    import tensorflow as tf

    p = tf.clip_by_value(output, 1e-6, 1 - 1e-6)
    return -tf.reduce_mean(label * tf.math.log(p) + (1 - label) * tf.math.log(1 - p))


def _adagrad(variable, slot, gradient) -> None:  # type: ignore[no-untyped-def]
    import tensorflow as tf

    if isinstance(gradient, tf.IndexedSlices):
        at = gradient.indices
        slot.scatter_add(tf.IndexedSlices(tf.square(gradient.values), at))
        move = _RATE * gradient.values * tf.math.rsqrt(tf.gather(slot, at))
        variable.scatter_sub(tf.IndexedSlices(move, at))
    else:
        slot.assign_add(tf.square(gradient))
        variable.assign_sub(_RATE * gradient * tf.math.rsqrt(slot))


def _labels(request: Request, seed: int) -> np.ndarray:
    """Clicks [B, 1] that depend on the item's numbers, its category and the user's age."""
    weights = np.random.default_rng(0).normal(size=request["item_dense"].shape[1])
    logit = request["item_dense"] @ weights + np.sin(request["category"]) + np.cos(request["age"]) - 0.5
    clicked = np.random.default_rng(seed).random(len(logit)) < 1 / (1 + np.exp(-logit))
    return clicked[:, None].astype(np.float32)


def requests_of(name: str, kind: str, shape: Shape, seed: int = 0) -> list[Request]:
    """Requests of one kind: a ring of them; for "train" a single one."""
    from examples.models import requests

    count = {BURST: RING * shape.burst, "train": 1}.get(kind, RING)
    rows, users = (shape.burst_rows, None) if kind == BURST else (shape.rows, 1 if kind == ONE_USER else None)
    return [requests(name, rows, seed + k, users=users, vocabulary=shape.vocabulary) for k in range(count)]
