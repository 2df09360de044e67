"""From what users call ids to a table's int64 keys: dtypes are checked, int32 widened, strings fingerprinted.

A string's key is its 64-bit farmhash fingerprint (`tf.fingerprint`, stock TensorFlow: the same on every machine and
release). Two strings share a key with probability 2**-64: among 100 million different strings the chance that any two
do is 0.03 %. The table holds the fingerprint, not the string.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfctr.embedding.options import Key
from tfctr.errors import InputError, UsageError

_TAKES = {
    tf.int64: (tf.int64, tf.int32, tf.int16, tf.int8, tf.uint8, tf.uint16, tf.uint32),
    tf.int32: (tf.int32, tf.int16, tf.int8, tf.uint8, tf.uint16),
    tf.string: (tf.string,),
}


def key_dtype(owner: str, given: Any) -> tf.DType:
    """The `key_dtype` argument as a DType.

    Raises:
      UsageError: it is none of int64, int32, string.
    """
    try:
        dtype = tf.as_dtype(given)
    except TypeError:
        dtype = None
    if dtype not in _TAKES:
        raise UsageError(f"{owner}: key_dtype is {given!r}, expected tf.int64, tf.int32 or tf.string")
    return dtype


def to_int64(owner: str, dtype: tf.DType, ids: Any) -> tf.Tensor:
    """Ids of any shape as int64 keys of that shape.

    Args:
      owner: names the variable in errors.
      dtype: the variable's key dtype.
      ids: a tensor, an array, or (nested) lists of numbers or strings.

    Raises:
      InputError: ids of another dtype: floats lose bits, wider integers do not fit, strings and numbers do not mix.
    """
    if not tf.is_tensor(ids):
        ids = _from_python(owner, dtype, ids)
    if ids.dtype not in _TAKES[dtype]:
        names = ", ".join(taken.name for taken in _TAKES[dtype])
        raise InputError(f"{owner}: ids are {ids.dtype.name}, expected {names} (its key_dtype is {dtype.name})")
    if dtype == tf.string:
        return fingerprint(ids)
    return ids if ids.dtype == tf.int64 else tf.cast(ids, tf.int64)


def _from_python(owner: str, dtype: tf.DType, ids: Any) -> tf.Tensor:
    try:
        array = np.asarray(ids)
    except ValueError as error:  # lists of unequal length
        raise InputError(f"{owner}: ids are no tensor of {dtype.name}: {error}") from None
    if array.size == 0 and not isinstance(ids, np.ndarray):
        return tf.zeros(array.shape, dtype)  # an empty list has no dtype of its own
    if array.dtype.kind in "iu" and dtype != tf.string and not isinstance(ids, np.ndarray):
        limits = np.iinfo(dtype.as_numpy_dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise InputError(f"{owner}: ids hold {array.min()} to {array.max()}, expected {dtype.name} values")
        array = array.astype(dtype.as_numpy_dtype)
    try:
        return tf.convert_to_tensor(array)
    except (TypeError, ValueError) as error:
        raise InputError(f"{owner}: ids are no tensor of {dtype.name}: {error}") from None


def fingerprint(strings: tf.Tensor) -> tf.Tensor:
    """The int64 keys of strings of any shape."""
    bits = tf.fingerprint(tf.reshape(strings, [-1, 1]), method="farmhash64")
    keys = tf.reshape(tf.bitcast(bits, tf.int64), tf.shape(strings))
    keys.set_shape(strings.shape)
    return keys


def protected(owner: str, dtype: tf.DType, keys: Sequence[Key]) -> list[int]:
    """Keys given as Python values (`protected_keys`), as int64.

    Raises:
      UsageError: strings where keys are numbers, or the other way round.
    """
    wanted = (str, bytes) if dtype == tf.string else (int,)
    for key in keys:
        if not isinstance(key, wanted):
            expected = "strings" if dtype == tf.string else "whole numbers"
            raise UsageError(
                f"{owner}: protected_keys hold {key!r}, expected {expected} (its key_dtype is {dtype.name})"
            )
    if dtype != tf.string or not keys:
        return [int(key) for key in keys]
    with tf.init_scope():
        if tf.executing_eagerly():
            return [int(key) for key in fingerprint(tf.constant(list(keys))).numpy()]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return [int(key) for key in session.run(fingerprint(tf.constant(list(keys))))]
