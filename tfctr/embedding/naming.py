"""Names of tables: which one a handle finds, and that two variables never share one unawares.

In eager mode every variable has a table of its own whatever its name is, so a model can be made twice in one process.
In a TF1 graph the name is all that a parameter server, a second graph of the same model or a checkpoint knows, so the
table has exactly that name, and two variables of one name in a graph are refused.
"""

import itertools
import uuid
import weakref
from typing import Any

import tensorflow as tf

from tfctr.embedding import table_config
from tfctr.errors import UsageError

_counter = itertools.count()
_of_graph: weakref.WeakKeyDictionary[tf.Graph, set[str]] = weakref.WeakKeyDictionary()
_shared: weakref.WeakValueDictionary[tuple[str, str], Any] = weakref.WeakValueDictionary()


def variable_name(name: str | None, eager: bool) -> str:
    """The full name: in a TF1 graph with the variable scope before it; made up where none is given.

    Raises:
      UsageError: the name is no name, or none is given in a TF1 graph.
    """
    if name is None:
        if not eager:
            raise UsageError("embedding variable: name is None, expected a name: a TF1 graph finds its table by it")
        number = next(_counter)
        return f"embedding_{number}" if number else "embedding"
    table_config.check_name(name)
    scope = "" if eager else tf.compat.v1.get_variable_scope().name
    return f"{scope}/{name}" if scope else name


def table_name(name: str, shared_name: str | None, eager: bool) -> str:
    """The name under which the table lives in TensorFlow's resource manager.

    Raises:
      UsageError: this graph has a variable of that name.
    """
    if shared_name is not None:
        table_config.check_name(shared_name)
    if eager:
        return shared_name or f"{name}_{uuid.uuid4().hex}"
    shared = shared_name or name
    names = _of_graph.setdefault(tf.compat.v1.get_default_graph(), set())
    if shared in names:
        raise UsageError(
            f"embedding variable {name!r}: this graph has an embedding variable of that name; "
            f"share that object, or give another name"
        )
    names.add(shared)
    return shared


def claim(shared_name: str, device: str, variable: Any) -> None:
    """Notes that `variable` (eager) has this table of this device.

    Raises:
      UsageError: another live variable of this process has it.
    """
    if (shared_name, device) in _shared:
        raise taken(variable.name, shared_name)
    _shared[shared_name, device] = variable


def taken(name: str, shared_name: str) -> UsageError:
    """The error of a `shared_name` that another variable of this process has."""
    return UsageError(
        f"embedding variable {name!r}: another variable of this process has the shared_name {shared_name!r}; "
        f"share that object, or give another name"
    )


def is_claimed(shared_name: str) -> bool:
    """Whether a live variable of this process has a table of that name, on any device."""
    return any(claimed == shared_name for claimed, _ in _shared)
