"""What a layer takes as ids and gives for them: kinds, dtypes and shapes, the same for symbolic and real tensors."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tfctr.errors import InputError, UsageError

_COMBINERS = (None, "sum", "mean", "sqrtn")
_SHOWN = {"dense": "a tensor", "ragged": "a RaggedTensor", "sparse": "a SparseTensor"}


@dataclasses.dataclass(frozen=True)
class IdsSpec:
    """Static part of a layer's lookups. layer: its name, for messages."""

    layer: str
    dim: int
    combiner: str | None
    key_dtype: tf.DType

    def __post_init__(self) -> None:
        if self.combiner not in _COMBINERS:
            raise UsageError(f"{self._who()}: combiner is {self.combiner!r}, expected sum, mean, sqrtn or None")

    def output_spec(self, ids: Any, weights: Any) -> tuple[tuple[int | None, ...], bool]:
        """(shape of the output, whether it is ragged).

        Raises:
          InputError: ids or weights of a kind, dtype or rank that this layer does not take; names the layer, what came
            and what was expected.
        """
        kind, shape = self._kind_and_shape("ids", ids)
        self._check_dtype(ids)
        if kind == "sparse" and self.combiner is None:
            raise InputError(f"{self._who()}: sparse ids need a combiner: sum, mean or sqrtn")
        if kind == "sparse" and len(shape) != 2:
            raise InputError(f"{self._who()}: sparse ids have rank {len(shape)}, expected 2: [batch, ids]")
        if kind == "ragged" and self.combiner is not None and len(shape) != 2:
            raise InputError(
                f"{self._who()}: ragged ids have rank {len(shape)}, expected 2 with a combiner: [batch, (ids)]"
            )
        if weights is not None:
            self._check_weights(kind, shape, weights)
        return self.output_shape(shape), kind == "ragged" and self.combiner is None

    def output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Shape of the output for ids of `shape`."""
        if self.combiner is None:
            return (*shape, self.dim)
        if len(shape) < 2:
            raise InputError(
                f"{self._who()}: ids have rank {len(shape)}, expected [batch, ids] or more with the combiner "
                f"{self.combiner!r}; one id per row needs none (combiner=None)"
            )
        return (*shape[:-1], self.dim)

    def _who(self) -> str:
        return f"embedding layer {self.layer!r}"

    def _kind_and_shape(self, what: str, given: Any) -> tuple[str, tuple[int | None, ...]]:
        if isinstance(given, keras.KerasTensor):
            return "ragged" if given.ragged else "sparse" if given.sparse else "dense", tuple(given.shape)
        kinds = ((tf.RaggedTensor, "ragged"), (tf.SparseTensor, "sparse"), (tf.Tensor, "dense"))
        kind = next((name for of, name in kinds if isinstance(given, of)), None)
        if kind is None or given.shape.rank is None:
            came = type(given).__name__ if kind is None else "of no known rank"
            raise InputError(f"{self._who()}: {what} are {came}, expected a tensor, RaggedTensor or SparseTensor")
        return kind, tuple(given.shape)

    def _check_dtype(self, ids: Any) -> None:
        dtype = tf.as_dtype(ids.dtype)
        takes = {tf.string: (tf.string,), tf.int32: (tf.int32,), tf.int64: (tf.int64, tf.int32)}[self.key_dtype]
        if dtype in takes:
            return
        names = " or ".join(one.name for one in takes)
        hint = ""
        if dtype.is_floating:
            hint = (
                f'; keras.Input is float32 unless told otherwise: keras.Input(..., dtype="{takes[0].name}"). And '
                f"Keras' own export of a subclassed model is float32: use tfctr.keras.export(model, path, inputs=...)"
            )
        elif dtype == tf.string:
            hint = '; strings need key_dtype="string"'
        raise InputError(f"{self._who()}: ids are {dtype.name}, expected {names}{hint}")

    def _check_weights(self, kind: str, shape: tuple[int | None, ...], weights: Any) -> None:
        if self.combiner is None:
            raise InputError(f"{self._who()}: weights need a combiner: sum, mean or sqrtn")
        of, dims = self._kind_and_shape("weights", weights)
        if of != kind:
            raise InputError(f"{self._who()}: ids are {_SHOWN[kind]} and weights {_SHOWN[of]}, expected the same kind")
        if not tf.TensorShape(dims).is_compatible_with(tf.TensorShape(shape)):
            raise InputError(f"{self._who()}: ids have shape {shape} and weights {dims}, expected one weight per id")
        if not tf.as_dtype(weights.dtype).is_floating:
            raise InputError(f"{self._who()}: weights are {tf.as_dtype(weights.dtype).name}, expected float32")


def as_ragged(tensor: tf.Tensor) -> tf.RaggedTensor:
    """[..., n] as rows of n: what the lookups with a combiner take."""
    length = tensor.shape[-1] if tensor.shape[-1] is not None else tf.shape(tensor, tf.int64)[-1]
    rows = tf.reduce_prod(tf.shape(tensor, tf.int64)[:-1])
    return tf.RaggedTensor.from_uniform_row_length(tf.reshape(tensor, [-1]), length, nrows=rows)
