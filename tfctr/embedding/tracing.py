"""What autograph does with this package inside a user's `tf.function`: nothing.

Autograph would convert every function of ours that such a function calls, and theirs in turn: seconds at the first
trace, for code that has no Python branch or loop over tensors. TensorFlow's and Keras' own packages are on its list of
those to leave alone; ours mark their functions. A callback of the user's is converted as if the user called it.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.autograph.impl import api

_Any = TypeVar("_Any", bound=Callable[..., Any])


def as_written(function: _Any) -> _Any:
    """Marks a function, or every method of a class: autograph calls it as it is.

    `tf.autograph.experimental.do_not_convert` would also switch autograph off for what is called from within, so that
    `user_code` could not know what the user asked for; TensorFlow has no public name for the mark alone.
    """
    if inspect.isclass(function):
        for method in vars(function).values():
            if inspect.isfunction(method):
                api.autograph_artifact(method)
        return function
    marked: _Any = api.autograph_artifact(function)
    return marked


def user_code(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A user's callable for a call from a function of ours: converted where the `tf.function` around it converts."""
    autograph = tf.__internal__.autograph
    converted: Callable[..., Any] = autograph.tf_convert(callback, autograph.control_status_ctx())
    return converted
