"""Inputs of a Keras model as the tensors of a signature, and back."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfctr.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Input:
    """One input. kind: "dense", "ragged" or "sparse". shape: with the batch. parts: signature input -> what it
    takes."""

    name: str
    kind: str
    shape: tuple[int | None, ...]
    parts: dict[str, tf.TensorSpec]

    @property
    def feature(self) -> dict[str, Any] | None:
        """What `tfctr.bundle.input_features` records; None for a dense input."""
        if self.kind == "dense":
            return None
        return {"name": self.name, "kind": self.kind, "parts": {name.rsplit("/", 1)[1]: name for name in self.parts}}

    def tensor(self, given: Mapping[str, tf.Tensor]) -> Any:
        """The model's input from the signature's tensors."""
        if self.kind == "dense":
            return given[self.name]
        if self.kind == "ragged":
            return tf.RaggedTensor.from_row_splits(given[f"{self.name}/values"], given[f"{self.name}/row_splits"])
        sparse = tf.SparseTensor(*(given[f"{self.name}/{role}"] for role in ("indices", "values", "dense_shape")))
        sparse.set_shape(self.shape)
        return sparse


def inputs_of(structure: Any, model: str) -> list[Input]:
    """The inputs in a structure (dict, list, one) of Keras tensors or TensorFlow specs, in `keras.tree.flatten`'s
    order.

    Raises:
      UsageError: an input has no name, two have the same, or one can't be taken apart; names it and the model.
    """
    found = [_input(leaf, name, model) for name, leaf in _leaves(structure)]
    seen: set[str] = set()
    for one in found:
        if repeated := seen & {one.name, *one.parts}:
            raise UsageError(f"model {model!r}: two inputs go by the name {sorted(repeated)[0]!r}; name them apart")
        seen |= {one.name, *one.parts}
    return found


def assembled(structure: Any, inputs: Sequence[Input], given: Mapping[str, tf.Tensor]) -> Any:
    """What the model is called with, from the signature's tensors."""
    return keras.tree.pack_sequence_as(structure, [one.tensor(given) for one in inputs])


def _leaves(structure: Any) -> list[tuple[str | None, Any]]:
    """(name, leaf) in the order of `keras.tree.flatten`; a leaf of a dict goes by its key."""
    if isinstance(structure, Mapping):
        names = keras.tree.flatten({key: key for key in structure})
        return [(str(name), structure[name]) for name in names]
    return [(getattr(leaf, "name", None), leaf) for leaf in keras.tree.flatten(structure)]


def _input(leaf: Any, name: str | None, model: str) -> Input:
    kind = _kind(leaf)
    if kind is None:
        raise UsageError(
            f"model {model!r}: input {name or leaf!r} is a {type(leaf).__name__}, expected keras.Input(...), "
            f"tf.TensorSpec, tf.RaggedTensorSpec or tf.SparseTensorSpec"
        )
    if not name:
        raise UsageError(f"model {model!r}: an input has no name; give the inputs as a dict: {{name: {leaf!r}}}")
    if leaf.shape is None or tf.TensorShape(leaf.shape).rank is None:
        raise UsageError(f"model {model!r}: input {name!r} has no rank; give it a shape")
    shape = (None, *tf.TensorShape(leaf.shape).as_list()[1:])
    dtype = tf.as_dtype(leaf.dtype)
    levels = getattr(leaf, "ragged_rank", None)
    if kind == "ragged" and (len(shape) < 2 or levels not in (None, 1) or None in shape[2:]):
        raise UsageError(
            f"model {model!r}: ragged input {name!r} of shape {shape} is ragged in more than its second axis, and one "
            f"row_splits can't say that"
        )
    return Input(name, kind, shape, _parts(name, kind, shape, dtype))


def _kind(leaf: Any) -> str | None:
    if isinstance(leaf, keras.KerasTensor):
        return "ragged" if leaf.ragged else "sparse" if leaf.sparse else "dense"
    kinds = ((tf.RaggedTensorSpec, "ragged"), (tf.SparseTensorSpec, "sparse"), (tf.TensorSpec, "dense"))
    return next((kind for spec, kind in kinds if isinstance(leaf, spec)), None)


def _parts(name: str, kind: str, shape: tuple[int | None, ...], dtype: tf.DType) -> dict[str, tf.TensorSpec]:
    specs: dict[str, tuple[list[int | None], tf.DType]]
    if kind == "dense":
        return {name: tf.TensorSpec(shape, dtype, name)}
    if kind == "ragged":
        specs = {"values": ([None, *shape[2:]], dtype), "row_splits": ([None], tf.int64)}
    else:
        rank = len(shape)
        specs = {
            "indices": ([None, rank], tf.int64),
            "values": ([None], dtype),
            "dense_shape": ([rank], tf.int64),
        }
    return {f"{name}/{role}": tf.TensorSpec(dims, of, f"{name}/{role}") for role, (dims, of) in specs.items()}
