"""Dense layers of the reference models, with random weights whose outputs spread.

Shape letters: B rows, I and O columns in and out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def uniform(rng: np.random.Generator, shape: Sequence[int], variance: float, name: str) -> tf.Variable:
    """A variable of uniform numbers around 0."""
    spread = np.float32((12 * variance) ** 0.5)
    return tf.Variable((rng.random(tuple(shape), np.float32) - np.float32(0.5)) * spread, name=name)


class Dense(tf.Module):
    """[B, I] -> [B, O]: x W + b."""

    def __init__(self, rng: np.random.Generator, size_in: int, size_out: int, name: str) -> None:
        super().__init__(name=name)
        self.kernel = uniform(rng, (size_in, size_out), 2 / size_in, "kernel")
        self.bias = uniform(rng, (size_out,), 0.01, "bias")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(tf.matmul(x, self.kernel), self.bias)


class PReLU(tf.Module):
    """max(x, 0) + alpha min(x, 0), alpha [I] learned."""

    def __init__(self, rng: np.random.Generator, size: int, name: str) -> None:
        super().__init__(name=name)
        self.alpha = tf.Variable(rng.random(size, np.float32) * np.float32(0.5), name="alpha")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x) - self.alpha * tf.nn.relu(-x)


class Dice(tf.Module):
    """Data-adaptive activation of DIN (Zhou et al., 2018): p x + alpha (1 - p) x, p = sigmoid of x after a batch norm
    with moving statistics.
    """

    def __init__(self, rng: np.random.Generator, size: int, name: str) -> None:
        super().__init__(name=name)
        self.alpha = tf.Variable(rng.random(size, np.float32) * np.float32(0.5), name="alpha")
        self.mean = uniform(rng, (size,), 0.1, "moving_mean")
        self.variance = tf.Variable(rng.random(size, np.float32) + np.float32(0.5), name="moving_variance")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        p = tf.sigmoid((x - self.mean) * tf.math.rsqrt(self.variance + 1e-9))
        return p * x + self.alpha * (1.0 - p) * x


class Tower(tf.Module):
    """Dense layers of ``sizes`` columns, each with ReLU or an activation that is made for its size.

    activation: class called with (rng, size, name) and then with the layer's output; None: ReLU. output: columns of a
    last layer without activation; 0: there is none.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        size_in: int,
        sizes: Sequence[int],
        name: str,
        *,
        output: int = 0,
        activation: type[PReLU] | type[Dice] | None = None,
    ) -> None:
        super().__init__(name=name)
        every = [size_in, *sizes, *([output] if output else [])]
        self.layers = [Dense(rng, a, b, f"dense{k}") for k, (a, b) in enumerate(itertools.pairwise(every))]
        self.activations = (
            [activation(rng, size, f"activation{k}") for k, size in enumerate(sizes)] if activation else []
        )
        self.hidden = len(sizes)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        for k, layer in enumerate(self.layers):
            x = layer(x)
            if k < self.hidden:
                x = self.activations[k](x) if self.activations else tf.nn.relu(x)
        return x
