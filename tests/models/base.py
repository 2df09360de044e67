"""What every model of the zoo is made of: saving, random inputs, and the outputs that stock TensorFlow gives.

A model's ``save`` function writes a SavedModel and returns, per signature, one batch of inputs by signature input name.
Tables hold distinct random values, and the float outputs must differ over the batch: a nearly constant output would
hide a wrong lookup.

Parts of a composite TensorInfo (TF1 ``build_tensor_info(SparseTensor)``) are named ``feature/indices``,
``feature/values`` and ``feature/dense_shape``; every other input and output has its signature name.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

Arrays = dict[str, np.ndarray]
Save = Callable[[str, np.random.Generator], dict[str, Arrays]]
SERVING = "serving_default"
BATCH = 24
MIN_SPREAD = 0.05


@dataclasses.dataclass(frozen=True)
class ModelBuilder:
    """One model of the zoo. ``save(path, rng)`` writes it and returns the inputs of each signature."""

    name: str
    family: str
    save: Save
    legacy: bool = False  # needs TF_USE_LEGACY_KERAS=1, hence a process of its own


@dataclasses.dataclass(frozen=True)
class BuiltModel:
    """A saved model, one batch of inputs and what stock TensorFlow gives (``others``: further signatures)."""

    path: Path
    inputs: Arrays
    outputs: Arrays
    signature: str = SERVING
    others: dict[str, tuple[Arrays, Arrays]] = dataclasses.field(default_factory=dict)


def tensor_names(info: tf.compat.v1.MetaGraphDef, signature: str, direction: str) -> dict[str, str]:
    """Graph tensor name of each input or output ("inputs" | "outputs") of a signature, composite ones by parts."""
    names = {}
    for key, tensor in getattr(info.signature_def[signature], direction).items():
        if tensor.WhichOneof("encoding") == "coo_sparse":
            names[f"{key}/indices"] = tensor.coo_sparse.indices_tensor_name
            names[f"{key}/values"] = tensor.coo_sparse.values_tensor_name
            names[f"{key}/dense_shape"] = tensor.coo_sparse.dense_shape_tensor_name
        else:
            names[key] = tensor.name
    return names


def run_stock(path: Path | str, requests: dict[str, Arrays]) -> dict[str, Arrays]:
    """Runs one batch per signature through a stock TF1 session (default grappler); outputs by signature."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        info = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(path))
        results = {}
        for signature, inputs in requests.items():
            fed, fetched = tensor_names(info, signature, "inputs"), tensor_names(info, signature, "outputs")
            if set(fed) != set(inputs):
                raise ValueError(
                    f"{path}: signature {signature!r} takes {sorted(fed)}, the builder gives {sorted(inputs)}"
                )
            results[signature] = session.run(fetched, {fed[name]: inputs[name] for name in inputs})
    return results


def assert_spread(name: str, outputs: Arrays) -> None:
    """Fails when a float output hardly varies over the batch."""
    for key, value in outputs.items():
        if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
            continue
        spread = float(np.std(np.nan_to_num(np.asarray(value, np.float64)), axis=0).max(initial=0.0))
        if not spread > MIN_SPREAD:
            raise AssertionError(f"model {name!r}: output {key!r} does not spread over the batch (std {spread:.4f})")


def model_rng(name: str) -> np.random.Generator:
    """The random generator of a model: the same values in every run."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def save_build(builder: ModelBuilder, folder: Path) -> None:
    """Saves ``builder`` as ``folder`` with ``inputs.npz`` and ``outputs.npz`` beside saved_model.pb.

    Further signatures get ``inputs.SIGNATURE.npz`` and ``outputs.SIGNATURE.npz``.
    """
    requests = builder.save(str(folder), model_rng(builder.name))
    outputs = run_stock(folder, requests)
    for signature, inputs in requests.items():
        assert_spread(f"{builder.name}:{signature}", outputs[signature])
        suffix = "" if signature == SERVING else f".{signature}"
        # Written through a file object: savez would append .npz to the temporary name.
        for stem, arrays in (("inputs", inputs), ("outputs", outputs[signature])):
            with open(folder / f"{stem}{suffix}.npz", "wb") as file:
                np.savez(file, **{key: _storable(value) for key, value in arrays.items()})


def _storable(value: np.ndarray) -> np.ndarray:
    """bfloat16 has no npz form: stored as float32, which holds every bfloat16 value."""
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else value


def read_build(folder: Path) -> BuiltModel:
    """Reads what ``save_build`` wrote."""

    def arrays(path: Path) -> Arrays:
        with np.load(path, allow_pickle=True) as file:
            return {key: file[key] for key in file.files}

    others = {}
    for path in sorted(folder.glob("inputs.*.npz")):
        signature = path.name.split(".")[1]
        others[signature] = (arrays(path), arrays(folder / f"outputs.{signature}.npz"))
    return BuiltModel(folder, arrays(folder / "inputs.npz"), arrays(folder / "outputs.npz"), SERVING, others)


# Parts that the models share.


def table(rng: np.random.Generator, rows: int, width: int, dtype: type = np.float32) -> np.ndarray:
    """Distinct random rows [rows, width], standard deviation 0.5."""
    return rng.normal(0.0, 0.5, (rows, width)).astype(dtype)


class Tower(tf.Module):
    """A dense part: width > 16 > 1, relu between; [B, width] float32 to [B, 1] float32."""

    def __init__(self, rng: np.random.Generator, width: int) -> None:
        super().__init__()
        self.hidden = tf.Variable(
            rng.normal(0, (2.0 / width) ** 0.5, (width, 16)), dtype=tf.float32, name="hidden/kernel"
        )
        self.hidden_bias = tf.Variable(rng.normal(0, 0.1, 16), dtype=tf.float32, name="hidden/bias")
        self.logit = tf.Variable(rng.normal(0, 0.5, (16, 1)), dtype=tf.float32, name="logit/kernel")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.nn.relu(tf.nn.bias_add(tf.matmul(x, self.hidden), self.hidden_bias)), self.logit)


def save_module(
    path: str,
    module: tf.Module,
    serve: Callable[..., dict[str, tf.Tensor]],
    specs: dict[str, tf.TypeSpec],
    extra: dict[str, tuple[Callable[..., dict[str, tf.Tensor]], dict[str, tf.TypeSpec]]] | None = None,
) -> None:
    """Saves ``module`` with ``serve(**features)`` as serving_default and ``extra`` functions as further signatures."""
    functions = {SERVING: (serve, specs), **(extra or {})}
    signatures = {
        # autograph off: the builders write tf.cond and tf.while_loop themselves
        name: tf.function(function, autograph=False).get_concrete_function(**taken)
        for name, (function, taken) in functions.items()
    }
    tf.saved_model.save(module, path, signatures=signatures)


def row_lengths(rng: np.random.Generator, batch: int, max_length: int, empty_rows: bool = True) -> np.ndarray:
    """Values per row, int64 [batch], up to max_length; ``empty_rows``: first, a middle and last row have none."""
    lengths = rng.integers(0 if empty_rows else 1, max_length + 1, batch)
    lengths[1] = max_length
    if empty_rows:
        lengths[[0, batch // 2, -1]] = 0
    return lengths.astype(np.int64)


def sparse_parts(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices int64 [N, 2] and dense_shape int64 [2] of a sparse batch with ``lengths`` values per row."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.cumsum(lengths) - lengths
    columns = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    return np.stack([rows, columns], 1).astype(np.int64), np.array([len(lengths), max(int(lengths.max()), 1)], np.int64)
