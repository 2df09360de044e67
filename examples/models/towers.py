"""Five dense towers as recommenders have them, frozen: what engines are made from, tested with and timed on.

    tower = dense_tower("din", seed=0)
    feeds = tower_inputs("din", rows=64, seed=1)  # arrays by input name

| name | tower | inputs |
|---|---|---|
| dlrm | dot products of 27 vectors of 32, MLP 1024-512-256 | embeddings |
| dcn | 3 full-rank cross layers beside MLP 512-256-128, 416 columns | embeddings |
| din | attention over 50 clicks of 32 with Dice and PReLU, then MLP 256-128 | history, mask, target |
| mmoe | GateNet, layer norm, 8 experts in one einsum, two tasks with batch norm | embeddings |
| trf | transformer block over 26 fields of 64: 4 heads, exact GELU, 2 layer norms | embeddings |

They are written on Keras 3 as a model's author would. Weights are random by seed; the heads are scaled so that logits
have mean 0 and standard deviation ``LOGIT_STD``. Shape letters: B rows, F fields, T positions, D width, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from export.tower import Tower, TowerTensor

LOGIT_STD = 1.2
FIELDS, FIELD_WIDTH = 27, 32
CROSS_COLUMNS = 416
POSITIONS, CLICK_WIDTH = 50, 32
EXPERT_COLUMNS, EXPERTS = 384, 8
TOKENS, TOKEN_WIDTH, HEADS = 26, 64, 4

# Scores of padded positions before the softmax, as models of the field have it.
_PADDED = -(2.0**32) + 1

_Logits = dict[str, tf.Tensor]


class _Model(keras.layers.Layer):
    """A tower with one kernel of one column per output ("head"), scaled when its logits have been seen."""

    outputs: Sequence[str] = ("click",)

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.heads = {output: keras.layers.Dense(1, name=f"head_{output}") for output in self.outputs}

    def logits(self, feeds: dict[str, tf.Tensor]) -> _Logits:
        """[B, 1] by output name."""
        raise AssertionError(f"{type(self).__name__} has no logits")

    def call(self, feeds: dict[str, tf.Tensor]) -> _Logits:
        return {name: tf.sigmoid(logit) for name, logit in self.logits(feeds).items()}


def _mlp(sizes: Sequence[int], name: str, activation: str | None = "relu") -> list[keras.layers.Layer]:
    return [keras.layers.Dense(size, activation=activation, name=f"{name}{k}") for k, size in enumerate(sizes)]


def _chain(x: tf.Tensor, layers: Sequence[keras.layers.Layer]) -> tf.Tensor:
    for layer in layers:
        x = layer(x)
    return x


class _Dlrm(_Model):
    """Dot products of all pairs of fields, beside the fields themselves (Naumov et al., 2019)."""

    def __init__(self) -> None:
        super().__init__("dlrm")
        self.top = _mlp((1024, 512, 256), "top")
        self.pairs = np.flatnonzero(np.tri(FIELDS, k=-1, dtype=bool)).astype(np.int32)

    def logits(self, feeds: dict[str, tf.Tensor]) -> _Logits:
        x = feeds["embeddings"]
        products = tf.reshape(tf.matmul(x, x, transpose_b=True), [-1, FIELDS * FIELDS])
        pairs = tf.gather(products, self.pairs, axis=1)
        flat = tf.reshape(x, [-1, FIELDS * FIELD_WIDTH])
        return {"click": self.heads["click"](_chain(tf.concat([flat, pairs], 1), self.top))}


class _Dcn(_Model):
    """Cross layers x0 * (W x + b) + x with full W, beside an MLP (Wang et al., 2021)."""

    def __init__(self) -> None:
        super().__init__("dcn")
        self.cross = _mlp((CROSS_COLUMNS,) * 3, "cross", activation=None)
        self.deep = _mlp((512, 256, 128), "deep")

    def logits(self, feeds: dict[str, tf.Tensor]) -> _Logits:
        x = x0 = feeds["embeddings"]
        for layer in self.cross:
            x = x0 * layer(x) + x
        return {"click": self.heads["click"](tf.concat([x, _chain(x0, self.deep)], 1))}


class _Dice(keras.layers.Layer):
    """p x + alpha (1 - p) x, p = sigmoid(batch norm of x) (Zhou et al., 2018)."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.norm = keras.layers.BatchNormalization(center=False, scale=False, epsilon=1e-8, name="norm")

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.alpha = self.add_weight(shape=(shape[-1],), name="alpha")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        p = tf.sigmoid(self.norm(x, training=False))
        return self.alpha * (1.0 - p) * x + p * x


class _Din(_Model):
    """The target item asks the click history; padded positions get no weight."""

    def __init__(self) -> None:
        super().__init__("din")
        self.attention = [
            keras.layers.Dense(80, name="attention0"),
            _Dice("dice0"),
            keras.layers.Dense(40, name="attention1"),
            keras.layers.PReLU(shared_axes=[1], name="prelu1"),
            keras.layers.Dense(1, name="attention2"),
        ]
        self.deep = [
            keras.layers.Dense(256, name="deep0"),
            _Dice("deep_dice0"),
            keras.layers.Dense(128, name="deep1"),
            keras.layers.PReLU(name="deep_prelu1"),
        ]

    def logits(self, feeds: dict[str, tf.Tensor]) -> _Logits:
        clicks, target = feeds["history"], feeds["target"]
        query = tf.tile(target[:, tf.newaxis], [1, POSITIONS, 1])
        asked = tf.concat([query, clicks, query - clicks, query * clicks], 2)
        scores = tf.squeeze(_chain(asked, self.attention), 2)
        scores = tf.where(feeds["mask"], scores, tf.ones_like(scores) * _PADDED)
        weights = tf.nn.softmax(scores / CLICK_WIDTH**0.5)
        interest = tf.squeeze(tf.matmul(weights[:, tf.newaxis], clicks), 1)
        return {"click": self.heads["click"](_chain(tf.concat([interest, target, interest * target], 1), self.deep))}


class _Mmoe(_Model):
    """A gate per input column, layer norm, experts mixed by one gate per task (Ma et al., 2018)."""

    outputs = ("click", "conversion")

    def __init__(self) -> None:
        super().__init__("mmoe")
        self.gate_net = keras.layers.Dense(EXPERT_COLUMNS, activation="sigmoid", name="gate_net")
        self.norm = keras.layers.LayerNormalization(name="norm")
        self.experts = keras.layers.EinsumDense(
            "bi,ieo->beo", (EXPERTS, 256), bias_axes="eo", activation="relu", name="experts"
        )
        self.gates = {task: keras.layers.Dense(EXPERTS, name=f"gate_{task}") for task in self.outputs}
        self.towers = {
            task: [
                keras.layers.Dense(128, name=f"{task}0"),
                keras.layers.BatchNormalization(name=f"{task}_norm0"),
                keras.layers.ReLU(name=f"{task}_relu0"),
                keras.layers.Dense(64, activation="relu", name=f"{task}1"),
            ]
            for task in self.outputs
        }

    def logits(self, feeds: dict[str, tf.Tensor]) -> _Logits:
        x = feeds["embeddings"]
        h = self.norm(x * self.gate_net(x))
        experts = self.experts(h)
        found = {}
        for task in self.outputs:
            mixed = tf.einsum("be,beo->bo", tf.nn.softmax(self.gates[task](h)), experts)
            found[task] = self.heads[task](_chain(mixed, self.towers[task]))
        return found


class _Transformer(_Model):
    """One post-norm block over the fields, then an MLP over all of them."""

    def __init__(self) -> None:
        super().__init__("trf")
        self.attention = keras.layers.MultiHeadAttention(HEADS, TOKEN_WIDTH // HEADS, name="attention")
        self.norms = [keras.layers.LayerNormalization(name=f"norm{k}") for k in range(2)]
        self.feed_forward = [
            keras.layers.Dense(256, activation="gelu", name="up"),
            keras.layers.Dense(TOKEN_WIDTH, name="down"),
        ]
        self.top = _mlp((256,), "top")

    def logits(self, feeds: dict[str, tf.Tensor]) -> _Logits:
        x = feeds["embeddings"]
        x = self.norms[0](x + self.attention(x, x))
        x = self.norms[1](x + _chain(x, self.feed_forward))
        return {"click": self.heads["click"](_chain(tf.reshape(x, [-1, TOKENS * TOKEN_WIDTH]), self.top))}


_MODELS: dict[str, tuple[Callable[[], _Model], dict[str, tuple[str, tuple[int, ...]]]]] = {
    "dlrm": (_Dlrm, {"embeddings": ("float32", (FIELDS, FIELD_WIDTH))}),
    "dcn": (_Dcn, {"embeddings": ("float32", (CROSS_COLUMNS,))}),
    "din": (
        _Din,
        {
            "history": ("float32", (POSITIONS, CLICK_WIDTH)),
            "mask": ("bool", (POSITIONS,)),
            "target": ("float32", (CLICK_WIDTH,)),
        },
    ),
    "mmoe": (_Mmoe, {"embeddings": ("float32", (EXPERT_COLUMNS,))}),
    "trf": (_Transformer, {"embeddings": ("float32", (TOKENS, TOKEN_WIDTH))}),
}
TOWERS = tuple(_MODELS)


def tower_inputs(name: str, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays by input name: embeddings of standard deviation 1; masks of 0 to all positions, true ones first."""
    rng = np.random.default_rng((seed, TOWERS.index(name)))
    found = {}
    for field, (dtype, shape) in _MODELS[name][1].items():
        if dtype == "bool":
            found[field] = np.arange(shape[0]) < rng.integers(0, shape[0] + 1, (rows, 1))
        else:
            found[field] = rng.standard_normal((rows, *shape), np.float32)
    return found


def dense_tower(name: str, seed: int = 0) -> Tower:
    """One of ``TOWERS``, its weights random by ``seed``: equal seeds give equal weights (node names may differ)."""
    make, inputs = _MODELS[name]
    model = make()
    sample = {field: tf.constant(array) for field, array in tower_inputs(name, 512, seed + 1).items()}
    model(sample)
    _randomise(model, np.random.default_rng(seed))
    for output, logit in model.logits(sample).items():
        kernel, bias = model.heads[output].kernel, model.heads[output].bias
        scale = LOGIT_STD / np.std(logit)
        kernel.assign(kernel * scale)
        bias.assign((bias - np.mean(logit)) * scale)
    specs = {field: tf.TensorSpec((None, *shape), dtype, field) for field, (dtype, shape) in inputs.items()}
    frozen = convert_variables_to_constants_v2(tf.function(model.call, autograph=False).get_concrete_function(specs))
    order = sorted(model.outputs)  # of a dictionary's values in a concrete function
    return Tower(
        signature=name,
        graph_def=frozen.graph.as_graph_def(),
        inputs=tuple(
            TowerTensor(
                name=field, tensor=f"{field}:0", source=f"{field}:0", dtype=dtype, shape=(None, *shape), side="item"
            )
            for field, (dtype, shape) in inputs.items()
        ),
        outputs=tuple(
            TowerTensor(name=output, tensor=tensor.name, source=tensor.name, dtype="float32", shape=(None, 1))
            for output, tensor in zip(order, frozen.outputs, strict=True)
        ),
        nodes=frozenset(node.name for node in frozen.graph.as_graph_def().node if node.op != "Placeholder"),
    )


def _randomise(model: _Model, rng: np.random.Generator) -> None:
    """Overwrites every weight: kernels keep variance, everything else is near what training starts from."""
    for weight in model.weights:
        kind, shape = weight.path.rsplit("/", maxsplit=1)[-1], tuple(weight.shape)
        if kind == "kernel":
            fan_in = shape[0] if "attention_output" not in weight.path else shape[0] * shape[1]
            values = rng.standard_normal(shape) * (1.5 / fan_in) ** 0.5
        elif kind in ("gamma", "moving_variance"):
            values = rng.uniform(0.5, 1.5, shape)
        elif kind == "alpha":
            values = rng.uniform(0, 0.5, shape)
        else:
            values = rng.standard_normal(shape) * 0.1
        weight.assign(values.astype(np.float32))
