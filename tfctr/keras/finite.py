"""All gradients are looked at before any of them is applied."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from tfctr.embedding import tracing
from tfctr.errors import UsageError

_MARK = "_tfctr_checks_finite"
_Optimizer = TypeVar("_Optimizer", bound=keras.optimizers.Optimizer)


def check_finite(optimizer: _Optimizer) -> _Optimizer:
    """Makes `optimizer` look at all gradients of a step, dense ones and those of tables, before it applies any.

    Without it a table refuses NaN and Inf by itself, before any of its own rows changes; but other tables may have been
    updated by then, and dense variables take such a gradient silently. With it the step fails as a whole and nothing
    has changed: neither variables nor tables, nor `optimizer.iterations`. It reads each gradient once more.

    >>> model.compile(tfctr.keras.check_finite(keras.optimizers.Adam(1e-3)), loss="binary_crossentropy")

    Works in `fit`, custom `train_step`s and custom loops alike, as all of them end in `optimizer.apply`. It belongs to
    this object, not to its configuration: call it again on the optimizer of a model that was loaded from a `.keras`
    file.

    Args:
      optimizer: any Keras optimizer; it is changed, and handed back.

    Raises:
      UsageError: here, if it is no Keras optimizer.
      tf.errors.InvalidArgumentError: in a step, naming the first variable or table whose gradient holds NaN or Inf.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(f"check_finite: got {type(optimizer).__name__}, expected a Keras optimizer such as Adam()")
    if not getattr(optimizer, _MARK, False):
        optimizer.apply = _checking(optimizer, optimizer.apply)
        setattr(optimizer, _MARK, True)
    return optimizer


def _checking(optimizer: keras.optimizers.Optimizer, apply: Callable[..., Any]) -> Callable[..., Any]:
    @tracing.as_written
    @functools.wraps(apply)
    def checked(grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        grads = list(grads)
        variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
        with tf.control_dependencies(_assertion(grads, variables)):
            return apply(grads, None if trainable_variables is None else variables)

    return checked


def _assertion(grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """An op that fails where a gradient is not finite, naming the first such variable; in eager mode it fails here."""
    given = [(grad, variable) for grad, variable in zip(grads, variables, strict=False) if grad is not None]
    if not given:
        return []
    names = [getattr(variable, "path", None) or variable.name for _, variable in given]
    numbers = [grad.values if isinstance(grad, tf.IndexedSlices) else grad for grad, _ in given]
    finite = tf.stack([tf.reduce_all(tf.math.is_finite(one)) for one in numbers])
    first = tf.gather(names, tf.argmin(tf.cast(finite, tf.int32)))
    message = tf.strings.join(["the gradient of ", first, " holds NaN or Inf; the step was not applied"])
    op = tf.debugging.Assert(tf.reduce_all(finite), [message])
    return [] if op is None else [op]
