"""Training embedding variables in plain TensorFlow: eager, `tf.function`, TF1 graphs. Keras models need none of this.

>>> step = tf.Variable(0, dtype=tf.int64)
>>> users = tfctr.EmbeddingVariable(16, "users", optimizer=tfctr.optimizers.Adagrad(0.05), step=step)
>>> items = tfctr.EmbeddingVariable(16, "items", optimizer=tfctr.optimizers.Adagrad(0.05), step=step)
>>> with tf.GradientTape() as tape:
...     score = tf.reduce_sum(users.lookup(user_ids, training=True) * items.lookup(item_ids, training=True), axis=1)
...     loss = tf.reduce_mean((score - labels) ** 2)
>>> gradients = tape.gradient(loss, [users.handle, items.handle])
>>> tfctr.apply_gradients(zip(gradients, [users, items]))   # one op for both
>>> step.assign_add(1)
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfctr.embedding import ops, tracing
from tfctr.embedding.table_admin import as_step
from tfctr.embedding.variable import EmbeddingVariable
from tfctr.errors import InputError, UsageError


def common_step(variables: Sequence[EmbeddingVariable]) -> tf.Tensor:
    """The step, int64 scalar, of variables that are looked up or updated together: the largest of theirs.

    Variables that were given one step variable (as a model's should be) have just that.
    """
    steps = list({id(variable.step): variable.step for variable in variables}.values())
    values = [as_step(variables[0].owner, step) for step in steps]
    return values[0] if len(values) == 1 else tf.reduce_max(tf.stack(values))


@tracing.as_written
def apply_gradients(
    grads_and_variables: Iterable[tuple[Any, EmbeddingVariable]],
    *,
    learning_rate: Any = None,
    step: Any = None,
    name: str | None = None,
) -> Any:
    """Updates the rows of embedding variables from their gradients, all of one device in one op.

    Every key that has a row at this moment is updated once, from the sum of its gradients; others are left out.
    Variables that keep a step of their own (`owns_step`) are at the same next step afterwards. In a TF1 graph let
    global_step move only after the op that this returns; `minimize` sees to it.

    Args:
      grads_and_variables: (gradient, variable) pairs; a gradient is `tf.IndexedSlices` of float32 rows [n, dim] by
        int64 keys [n], as `tape.gradient` gives it for `variable.handle`. Pairs with None are left out.
      learning_rate: number or scalar tensor for all of them; None: each optimizer's, a schedule at the step.
      step: int64 scalar, finished updates before this one; None: the variables' step.
      name: of the ops.

    Returns:
      None in eager mode, the op in a graph.

    Raises:
      InputError: there is no gradient at all, or one of another kind, dtype or dim.
      UsageError: a variable has no optimizer, is frozen, or has the learning rate "model" and none is given.
      tf.errors.InvalidArgumentError: a sum is NaN or infinite; names table and key. No row of that table has changed.
    """
    pairs = [(gradient, variable) for gradient, variable in grads_and_variables]
    for gradient, variable in pairs:
        _check_pair(gradient, variable)
    given = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    if not given:
        names = ", ".join(repr(variable.name) for _, variable in pairs) or "no variable"
        raise InputError(
            f"embedding variables {names}: no gradient came, expected one at least: look up with training=True under "
            f"the tape, and ask for the gradient of variable.handle"
        )
    merged = _merged(given)
    variables = [variable for _, variable in merged]
    before = common_step(variables) if step is None else as_step(variables[0].owner, step)
    rates = [_rate(variable, before, learning_rate) for variable in variables]
    applied = []
    for places in by_device(variables).values():
        applied.append(
            ops.apply(
                [variables[k].handle for k in places],
                [merged[k][0].indices for k in places],
                [merged[k][0].values for k in places],
                [rates[k] for k in places],
                before,
                name=name,
            )
        )
    return _next_step(variables, before, [op for op in applied if op is not None])


@tracing.as_written
def minimize(
    loss: Any,
    variables: Sequence[Any],
    optimizer: Any = None,
    *,
    tape: tf.GradientTape | None = None,
    step: Any = None,
    name: str | None = None,
) -> Any:
    """One training step over embedding variables and ordinary ones.

    Args:
      loss: scalar tensor.
      variables: embedding variables and `tf.Variable`s (or Keras variables), in any order; frozen embedding variables
        are left out.
      optimizer: for the ordinary ones: a Keras optimizer, or one of `tf.compat.v1.train`, which also moves the
        embedding variables' step forward if that is a variable it may write (TF1's global_step). None if there are
        none.
      tape: the tape that watched the lookups; None in a TF1 graph.
      step: int64 scalar for the embedding variables; None: their step.
      name: of the ops.

    Returns:
      None in eager mode; in a graph the op that runs the whole step.

    Raises:
      UsageError: there are ordinary variables and no optimizer, or embedding variables without one.
      InputError: no embedding variable has a gradient.
    """
    tables = [v for v in variables if isinstance(v, EmbeddingVariable) and not v.frozen]
    dense = [v for v in variables if not isinstance(v, EmbeddingVariable)]
    if dense and optimizer is None:
        raise UsageError(
            f"tfctr.minimize: optimizer is None, expected one for the {len(dense)} variables that are no tables"
        )
    sources = [*(table.handle for table in tables), *(getattr(v, "value", v) if _is_keras(v) else v for v in dense)]
    gradients = tape.gradient(loss, sources) if tape is not None else tf.gradients(loss, sources)
    sparse = list(zip(gradients[: len(tables)], tables, strict=True))
    done = apply_gradients(sparse, step=step, name=name) if tables else None
    if not dense:
        return done
    pairs = list(zip(gradients[len(tables) :], dense, strict=True))
    with tf.control_dependencies([done] if done is not None else []):
        if isinstance(optimizer, tf.compat.v1.train.Optimizer):
            steps = {id(table.step): table.step for table in tables if not table.owns_step}
            moved = next(iter(steps.values())) if len(steps) == 1 and step is None else None
            update = optimizer.apply_gradients(pairs, global_step=moved)
            return (
                None if tf.executing_eagerly() else tf.group([op for op in (done, update) if op is not None], name=name)
            )
        optimizer.apply_gradients(pairs)  # Keras: eager, or in a tf.function, which runs all its updates
    return done


def _is_keras(variable: Any) -> bool:
    return isinstance(getattr(type(variable), "value", None), property)


def _check_pair(gradient: Any, variable: Any) -> None:
    if not isinstance(variable, EmbeddingVariable):
        raise InputError(
            f"apply_gradients: {variable!r} came, expected an EmbeddingVariable; minimize takes both kinds"
        )
    if gradient is None:
        return
    if not isinstance(gradient, tf.IndexedSlices):
        raise InputError(
            f"{variable.owner}: the gradient is {type(gradient).__name__}, expected tf.IndexedSlices of rows "
            f"[n, {variable.dim}] by int64 keys [n]"
        )
    values, keys = tf.convert_to_tensor(gradient.values), tf.convert_to_tensor(gradient.indices)
    if values.dtype != tf.float32 or keys.dtype != tf.int64:
        raise InputError(
            f"{variable.owner}: the gradient has {values.dtype.name} rows by {keys.dtype.name} keys, expected float32 "
            f"by int64"
        )
    if not values.shape.is_compatible_with([None, variable.dim]) or not keys.shape.is_compatible_with([None]):
        raise InputError(
            f"{variable.owner}: the gradient has rows {values.shape} by keys {keys.shape}, expected "
            f"[n, {variable.dim}] by [n]"
        )


def _merged(given: list[tuple[Any, EmbeddingVariable]]) -> list[tuple[Any, EmbeddingVariable]]:
    """One gradient per variable: a key must not be updated twice in a step."""
    slices: dict[int, list[Any]] = {}
    variables: dict[int, EmbeddingVariable] = {}
    for gradient, variable in given:
        slices.setdefault(id(variable), []).append(gradient)
        variables[id(variable)] = variable
    merged = []
    for key, parts in slices.items():
        gradient = parts[0]
        if len(parts) > 1:
            gradient = tf.IndexedSlices(
                tf.concat([part.values for part in parts], 0), tf.concat([part.indices for part in parts], 0)
            )
        merged.append((gradient, variables[key]))
    return merged


def _rate(variable: EmbeddingVariable, step: tf.Tensor, given: Any) -> Any:
    if variable.optimizer is None:
        raise UsageError(
            f"{variable.owner}: it has no optimizer, expected optimizer=tfctr.optimizers.Adagrad(0.05) or another"
        )
    if variable.frozen:
        raise UsageError(f"{variable.owner}: it is frozen, expected freeze(False) before an update")
    if isinstance(given, str):
        raise UsageError(f"{variable.owner}: learning_rate is {given!r}, expected a number or scalar tensor")
    rate = variable.optimizer.rate_at(step) if given is None else given
    if isinstance(rate, str):
        raise UsageError(
            f'{variable.owner}: its learning_rate is "{rate}", which a Keras model gives it (tfctr.keras); expected a '
            f"number, a schedule, or learning_rate= here"
        )
    return rate


def by_device(variables: Sequence[EmbeddingVariable]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for k, variable in enumerate(variables):
        places.setdefault(variable.handle.device or "", []).append(k)
    return places


def _next_step(variables: Sequence[EmbeddingVariable], before: tf.Tensor, applied: list[Any]) -> Any:
    own = list({id(variable.step): variable.step for variable in variables if variable.owns_step}.values())
    with tf.control_dependencies(applied):
        moved = [step.assign(before + 1) for step in own]
    return None if tf.executing_eagerly() else tf.group([*applied, *moved])
