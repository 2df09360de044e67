"""A model without any lookup: it must go through unharmed."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.models.base import BATCH, SERVING, Arrays, ModelBuilder, Tower, save_module


class Mlp(tf.Module):
    """Ten numeric columns into a tower."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.tower = Tower(rng, 10)

    def serve(self, x: tf.Tensor, y: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"score": self.tower(tf.concat([x, tf.math.log1p(y)], 1))}


def _save(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = Mlp(rng)
    specs = {"x": tf.TensorSpec([None, 6], name="x"), "y": tf.TensorSpec([None, 4], name="y")}
    save_module(path, model, model.serve, specs)
    x = rng.normal(size=(BATCH, 6)).astype(np.float32)
    return {SERVING: {"x": x, "y": rng.exponential(size=(BATCH, 4)).astype(np.float32)}}


BUILDERS = [ModelBuilder("n_plain_mlp", "no lookup", _save)]
