"""Lookups in embedding variables, with the words and results of `tf.nn.embedding_lookup[_sparse]`.

Three functions: rows of ids (dense or ragged), combined rows (sparse or ragged), and many of either in one op.
Gradients come as `tf.IndexedSlices` for each variable's `handle`; tapes watch it without being told.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from tfctr.embedding import ops, tracing
from tfctr.embedding import option_values as check
from tfctr.embedding import training as updates
from tfctr.embedding.variable import EmbeddingVariable
from tfctr.errors import InputError, UsageError


@dataclasses.dataclass(frozen=True, eq=False)
class Lookup:
    """One lookup of `embedding_lookup_group`.

    Attributes:
      variable: the EmbeddingVariable.
      ids: dense or ragged ids without a combiner; with one a SparseTensor or a RaggedTensor [rows, (ids)].
      combiner: None (one row per id), "sum", "mean" or "sqrtn".
      weights: of ids that are combined, shaped like them; None: 1.
      max_norm: rows longer than this are scaled down to it before they are combined; None: no limit.
    """

    variable: EmbeddingVariable
    ids: Any
    combiner: str | None = None
    weights: Any = None
    max_norm: float | None = None


@tracing.as_written
def embedding_lookup(
    variable: EmbeddingVariable,
    ids: Any,
    *,
    training: Any = False,
    max_norm: float | None = None,
    name: str | None = None,
) -> Any:
    """One row per id, as `tf.nn.embedding_lookup`.

    Args:
      variable: the table.
      ids: of its key dtype, any shape: a tensor, array or lists, or a RaggedTensor. Any id is allowed.
      training: a bool or bool scalar. True counts every id and gives a row to those that are admitted; False leaves
        the table as it is. Ids without a row read as the default value.
      max_norm: rows longer (L2) than this are scaled down to it in the result; None: no limit.
      name: of the op.

    Returns:
      float32 `ids.shape + [dim]`; ragged where the ids are.

    Raises:
      InputError: ids of another dtype, or sparse ids.
      tf.errors.ResourceExhaustedError: the table would pass its `max_bytes`; names table, bytes and limit.
    """
    return embedding_lookup_group([Lookup(variable, ids, max_norm=max_norm)], training=training, name=name)[0]


@tracing.as_written
def embedding_lookup_sparse(
    variable: EmbeddingVariable,
    sp_ids: Any,
    sp_weights: Any = None,
    combiner: str | None = None,
    max_norm: float | None = None,
    *,
    training: Any = False,
    name: str | None = None,
) -> tf.Tensor:
    """Rows of ids combined per row, as `tf.nn.embedding_lookup_sparse`.

    A row without ids is zeros, and there are always as many rows as the ids' dense shape says (stock drops trailing
    empty rows). A row whose weights add up to 0 is zeros where the combiner divides. Ids without a table row take part
    with the default value.

    Args:
      variable: the table.
      sp_ids: SparseTensor (rows in order) or RaggedTensor [rows, (ids)] of the key dtype.
      sp_weights: float weights with the indices (row splits) of sp_ids; None: 1.
      combiner: "sum", "mean" (also None) or "sqrtn".
      max_norm: rows longer (L2) than this are scaled down to it before they are combined; None: no limit.
      training: see `embedding_lookup`.
      name: of the op.

    Returns:
      float32 [rows, dim].

    Raises:
      InputError: ids or weights of another kind, dtype or structure.
      tf.errors.InvalidArgumentError: rows of a SparseTensor that are not in order, named by number.
    """
    lookup = Lookup(variable, sp_ids, "mean" if combiner is None else combiner, sp_weights, max_norm)
    return embedding_lookup_group([lookup], training=training, name=name)[0]


@tracing.as_written
def embedding_lookup_group(
    lookups: Sequence[Lookup | tuple[EmbeddingVariable, Any]], *, training: Any = False, name: str | None = None
) -> list[Any]:
    """Many lookups in one op: the way to look up all features of a model.

    It is one call: occurrences in several lookups of one table count together, before any row is read.

    Args:
      lookups: `Lookup`s, or (variable, ids) for those without more. One variable may appear several times.
      training: see `embedding_lookup`; the same for all.
      name: of the op.

    Returns:
      The results in order, as of `embedding_lookup` and `embedding_lookup_sparse`.

    Raises:
      UsageError: something that is no lookup, or an unknown combiner.
      InputError: ids or weights that don't fit; names the variable, what came and what was expected.
    """
    wanted = [lookup if isinstance(lookup, Lookup) else _from_pair(lookup) for lookup in lookups]
    inputs = _Inputs()
    prepared = [inputs.add(lookup) for lookup in wanted]
    variables = [lookup.variable for lookup in wanted]
    for variable in variables:
        _tell_tapes(variable)
    results: list[Any] = [None] * len(wanted)
    for places in updates.by_device(variables).values():
        rows = ops.lookup(
            [variables[i].handle for i in places],
            [prepared[i].keys for i in places],
            [prepared[i].spec for i in places],
            row_splits=inputs.row_splits,
            weights=inputs.weights,
            step=0 if training is False else updates.common_step(variables),
            training=training,
            name=name,
        )
        for i, found in zip(places, rows, strict=True):
            ids = prepared[i].ragged
            results[i] = found if ids is None else ids.with_flat_values(found)
    return results


@dataclasses.dataclass(frozen=True, eq=False)
class _Prepared:
    keys: tf.Tensor
    spec: ops.LookupSpec
    ragged: tf.RaggedTensor | None = None  # whose structure the result takes


class _Inputs:
    """The row_splits and weights of a group; lookups that share a tensor share the input."""

    def __init__(self) -> None:
        self.row_splits: list[tf.Tensor] = []
        self.weights: list[tf.Tensor] = []
        self._splits_of: list[tuple[Any, int]] = []  # indices or splits of ids, and their place in row_splits

    def add(self, lookup: Lookup) -> _Prepared:
        variable, ids = lookup.variable, lookup.ids
        limit = _limit(variable, lookup.max_norm)
        if lookup.combiner is None:
            return self._plain(lookup, limit)
        if lookup.combiner not in ops.COMBINERS:
            raise UsageError(
                f"{variable.owner}: combiner is {lookup.combiner!r}, expected {', '.join(ops.COMBINERS)} or None"
            )
        if isinstance(ids, tf.compat.v1.SparseTensorValue):
            ids = tf.SparseTensor.from_value(ids)
        if isinstance(ids, tf.SparseTensor):
            keys, splits = ids.values, self._splits(ids.indices, ids)
        elif isinstance(ids, tf.RaggedTensor) and ids.ragged_rank == 1 and ids.values.shape.rank == 1:
            keys, splits = ids.values, self._splits(ids.row_splits, None)
        else:
            raise InputError(
                f"{variable.owner}: ids to combine are {_kind(ids)}, expected a SparseTensor or a RaggedTensor [rows, "
                f"(ids)]"
            )
        weights = -1
        if lookup.weights is not None:
            weights = len(self.weights)
            self.weights.append(_weights(variable, ids, lookup.weights))
        spec = ops.LookupSpec(variable.dim, lookup.combiner, splits, weights, limit)
        return _Prepared(variable.as_keys(keys), spec)

    def _plain(self, lookup: Lookup, limit: float) -> _Prepared:
        variable, ids = lookup.variable, lookup.ids
        spec = ops.LookupSpec(variable.dim, max_norm=limit)
        if lookup.weights is not None:
            raise InputError(f"{variable.owner}: weights came without a combiner, expected sum, mean or sqrtn")
        if isinstance(ids, tf.SparseTensor | tf.compat.v1.SparseTensorValue):
            raise InputError(
                f"{variable.owner}: ids are a SparseTensor, expected a combiner with them (embedding_lookup_sparse)"
            )
        if isinstance(ids, tf.RaggedTensor):
            return _Prepared(variable.as_keys(ids.flat_values), spec, ids)
        return _Prepared(variable.as_keys(ids), spec)

    def _splits(self, source: Any, sparse: tf.SparseTensor | None) -> int:
        for known, place in self._splits_of:
            if known is source:
                return place
        if sparse is None:
            made = tf.cast(source, tf.int64)
        else:
            made = ops.row_splits_of(source, sparse.dense_shape)
            rows = sparse.shape[0] if sparse.shape.rank else None
            made.set_shape([None if rows is None else rows + 1])
        self._splits_of.append((source, len(self.row_splits)))
        self.row_splits.append(made)
        return len(self.row_splits) - 1


def _from_pair(pair: Any) -> Lookup:
    if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], EmbeddingVariable):
        return Lookup(*pair)
    raise UsageError(f"embedding_lookup_group: {pair!r} came, expected a tfctr.Lookup or (variable, ids)")


def _limit(variable: EmbeddingVariable, max_norm: float | None) -> float:
    if max_norm is None:
        return ops.NO_LIMIT
    # What a float32 can't hold would be infinite, and a row times it NaN.
    return check.real(variable.owner, "max_norm", max_norm, above=0, high=tf.float32.max)


def _weights(variable: EmbeddingVariable, ids: Any, weights: Any) -> tf.Tensor:
    """The flat float32 weights of ids; their number is checked when the op runs."""
    if isinstance(weights, tf.compat.v1.SparseTensorValue):
        weights = tf.SparseTensor.from_value(weights)
    if type(weights) is not type(ids):
        raise InputError(f"{variable.owner}: weights are {_kind(weights)}, expected {_kind(ids)} as the ids are")
    if not weights.dtype.is_floating:
        raise InputError(f"{variable.owner}: weights are {weights.dtype.name}, expected float32")
    return tf.cast(weights.values, tf.float32)


def _kind(value: Any) -> str:
    if isinstance(value, tf.RaggedTensor):
        return f"a RaggedTensor of shape {value.shape}"
    return f"a {type(value).__name__}"


class _Watched:
    """What tapes and functions keep of a table: they want the look of a variable."""

    trainable = True

    def __init__(self, variable: EmbeddingVariable) -> None:
        self.handle = variable.handle
        self._owner = variable.owner

    def ref(self) -> Any:
        raise UsageError(
            f"{self._owner}: it is looked up within tf.recompute_grad or tf.custom_gradient, expected outside: give "
            f"them the rows as an argument"
        )


def _tell_tapes(variable: EmbeddingVariable) -> None:
    """Does what reading a tf.Variable does: tapes give the gradient of its handle then, as do functions called under
    one. TensorFlow has no public name for it."""
    watched = getattr(variable, "_watched", None)
    if watched is None or watched.handle is not variable.handle:
        watched = _Watched(variable)
        variable._watched = watched
    resource_variable_ops.variable_accessed(watched)
