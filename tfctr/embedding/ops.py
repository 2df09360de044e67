"""The ops over embedding variables, typed and documented, and the gradient of a lookup.

Thin: every function is one op of tfctr/core/ops/embedding_ops.cc, which says what it does. Users call
`tfctr.embedding_lookup` and the methods of `tfctr.EmbeddingVariable` instead.
"""

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import cpp_shape_inference_pb2
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

from tfctr.core import library
from tfctr.errors import UsageError

NO_LIMIT = -1.0  # max_norm of a lookup without one
COMBINERS = ("sum", "mean", "sqrtn")


@dataclasses.dataclass(frozen=True)
class LookupSpec:
    """What is static about one lookup of a group.

    dim: floats of a row of its table.
    combiner: "" (one row per key), "sum", "mean" or "sqrtn".
    splits: which of the group's row_splits, -1 without a combiner.
    weights: which of the group's weights, or -1.
    max_norm: limit of the L2 norm of a row, NO_LIMIT for none.
    """

    dim: int
    combiner: str = ""
    splits: int = -1
    weights: int = -1
    max_norm: float = NO_LIMIT


class Size(NamedTuple):
    """Rows, counted keys without a row, bytes of memory: int64 scalars."""

    rows: tf.Tensor
    counters: tf.Tensor
    bytes: tf.Tensor


class Evicted(NamedTuple):
    """What an eviction removed, or would: int64 scalars; `rule_*` have one number per rule."""

    rows: tf.Tensor
    counters: tf.Tensor
    bytes: tf.Tensor
    rule_rows: tf.Tensor
    rule_counters: tf.Tensor
    rule_bytes: tf.Tensor


def handle(config: str, *, shared_name: str = "", container: str = "", name: str | None = None) -> tf.Tensor:
    """Makes the table that `config` (JSON) describes, or finds it by `shared_name`.

    Raises:
      tf.errors.InvalidArgumentError: the config is wrong, or the name has a table with another config.
    """
    made = library.load().tfctr_ev_handle(config=config, shared_name=shared_name, container=container, name=name)
    _tell_shape(made, json.loads(config)["dim"])
    return made


def _tell_shape(table: tf.Tensor, dim: int) -> None:
    """Gives the handle the shape [0, dim] of float32: gradients of `tf.cond` want to know what a branch's zeros are."""
    data = cpp_shape_inference_pb2.CppShapeInferenceResult.HandleData(is_set=True)
    data.shape_and_type.add(shape=tf.TensorShape([0, dim]).as_proto(), dtype=tf.float32.as_datatype_enum)
    handle_data_util.set_handle_data(table, data)


def beside(table: tf.Tensor) -> Any:
    """A device scope for ops on a table: its own device where that is a remote one or was chosen in a TF1 graph,
    whatever scope the caller is in. A local table says nothing, so that no device name gets into a SavedModel.
    """
    return contextlib.nullcontext() if "/job:localhost" in table.device else tf.device(table.device)


def _attributes(specs: Sequence[LookupSpec]) -> dict[str, list[Any]]:
    return {
        "dims": [spec.dim for spec in specs],
        "combiners": [spec.combiner for spec in specs],
        "splits_index": [spec.splits for spec in specs],
        "weights_index": [spec.weights for spec in specs],
        "max_norms": [spec.max_norm for spec in specs],
    }


def lookup(
    handles: Sequence[tf.Tensor],
    keys: Sequence[tf.Tensor],
    specs: Sequence[LookupSpec],
    *,
    row_splits: Sequence[tf.Tensor] = (),
    weights: Sequence[tf.Tensor] = (),
    step: tf.Tensor | int = 0,
    training: tf.Tensor | bool = False,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Looks up len(specs) lookups in one op; differentiable with respect to the handles and the weights.

    Args:
      handles: resource scalar of each lookup's table.
      keys: int64, any shape without a combiner, else the flat values of a ragged batch.
      specs: static part of each lookup.
      row_splits: int64 vectors that the specs refer to.
      weights: float32 vectors that the specs refer to.
      step: int64 scalar, the model-wide step.
      training: count keys and make rows; else the tables stay as they are.
      name: of the op.

    Returns:
      For each lookup float32 keys.shape + [dim], or [rows, dim] with a combiner.
    """
    with beside(handles[0]):
        return library.load().tfctr_ev_lookup(
            handles=list(handles),
            keys=list(keys),
            row_splits=list(row_splits),
            weights=list(weights),
            step=tf.convert_to_tensor(step, tf.int64),
            training=training,
            name=name,
            **_attributes(specs),
        )


def apply(
    handles: Sequence[tf.Tensor],
    keys: Sequence[tf.Tensor],
    grads: Sequence[tf.Tensor],
    learning_rates: Sequence[tf.Tensor | float],
    step: tf.Tensor | int,
    *,
    name: str | None = None,
) -> Any:
    """One optimizer step of each table, from int64 keys [n] and float32 grads [n, dim].

    Returns:
      The operation in a graph, None in eager mode.

    Raises:
      tf.errors.InvalidArgumentError: a gradient holds NaN or infinity (the table is left as it was), or the shapes of
        keys and grads don't fit the table.
    """
    with beside(handles[0]):
        return library.load().tfctr_ev_apply(
            handles=list(handles),
            keys=list(keys),
            grads=list(grads),
            learning_rates=[tf.cast(rate, tf.float32) for rate in learning_rates],
            step=tf.convert_to_tensor(step, tf.int64),
            name=name,
        )


def row_splits_of(indices: tf.Tensor, dense_shape: tf.Tensor) -> tf.Tensor:
    """Row splits [dense_shape[0] + 1] of a SparseTensor; rows out of order are refused by number."""
    return library.load().tfctr_ev_row_splits(indices=indices, dense_shape=dense_shape)


def size(table: tf.Tensor) -> Size:
    """Rows, counters and bytes of a table."""
    with beside(table):
        return Size(*library.load().tfctr_ev_size(table))


def frequency(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Training occurrences of each int64 key, of keys that are not admitted too."""
    with beside(table):
        return library.load().tfctr_ev_frequency(table, keys)


def contains(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Whether each int64 key has a row."""
    with beside(table):
        return library.load().tfctr_ev_contains(table, keys)


def erase(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Removes the rows of int64 keys; returns how many there were."""
    with beside(table):
        return library.load().tfctr_ev_erase(table, keys)


def evict(table: tf.Tensor, step: tf.Tensor | int, *, dry_run: tf.Tensor | bool = False) -> Evicted:
    """Runs the eviction rules of a table's config."""
    with beside(table):
        return Evicted(*library.load().tfctr_ev_evict(table, tf.convert_to_tensor(step, tf.int64), dry_run))


def reserve(table: tf.Tensor, rows: tf.Tensor | int) -> Any:
    """Makes room for `rows` rows in total."""
    with beside(table):
        return library.load().tfctr_ev_reserve(table, tf.convert_to_tensor(rows, tf.int64))


def set_clock(table: tf.Tensor, time_ms: tf.Tensor | int) -> Any:
    """Sets the table's time in milliseconds since 1970; -1 gives it the system's clock back."""
    with beside(table):
        return library.load().tfctr_ev_set_clock(table, tf.convert_to_tensor(time_ms, tf.int64))


def set_frozen(table: tf.Tensor, frozen: tf.Tensor | bool) -> Any:
    """Frozen: training lookups only look, updates are refused; holds for graphs that were made before."""
    with beside(table):
        return library.load().tfctr_ev_set_frozen(table, frozen)


def slices_of(keys: tf.Tensor, grads: tf.Tensor, dim: int) -> tf.IndexedSlices:
    """The gradient of a table: rows `grads` of flat `keys`; keys may repeat.

    Its dense shape has no rows, as the handle's: any int64 is a key, so no dense tensor can hold it. int32, as
    TensorFlow makes the zeros of a branch of `tf.cond` that was not taken.
    """
    return tf.IndexedSlices(
        tf.reshape(grads, [-1, dim]), tf.reshape(keys, [-1]), dense_shape=tf.constant([0, dim], tf.int32)
    )


def _specs_of(op: tf.Operation) -> list[LookupSpec]:
    columns = [op.get_attr(name) for name in ("dims", "combiners", "splits_index", "weights_index", "max_norms")]
    return [
        LookupSpec(dim, combiner.decode() if isinstance(combiner, bytes) else combiner, splits, weights, max_norm)
        for dim, combiner, splits, weights, max_norm in zip(*columns, strict=True)
    ]


def _refuse_loops(graph: Any) -> None:
    """TensorFlow adds the gradients of a loop's turns up densely, which for a table would drop most of them."""
    while graph is not None:
        if isinstance(graph, WhileBodyFuncGraph):
            raise UsageError(
                "embedding variables: a gradient came for a lookup within a loop (tf.while_loop, tf.map_fn, tf.scan, a "
                "for over a tensor), expected lookups before the loop: look all ids up at once, and take rows inside"
            )
        graph = getattr(graph, "outer_graph", None)


@tf.RegisterGradient("TfctrEvLookup")
def _lookup_gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """IndexedSlices for each handle. A plain lookup needs no op for it; the others sum their occurrences in one."""
    _refuse_loops(getattr(op, "graph", None))  # none in eager mode
    specs = _specs_of(op)
    n, s = len(specs), op.get_attr("S")
    inputs = list(op.inputs)
    handles, keys = inputs[:n], inputs[n : 2 * n]
    row_splits, weights = inputs[2 * n : 2 * n + s], inputs[2 * n + s : -2]
    tables: list[Any] = [None] * n
    summed = []
    for i, (spec, grad) in enumerate(zip(specs, grads, strict=True)):
        if grad is None:
            continue
        if spec.combiner or spec.max_norm >= 0:
            summed.append(i)
        else:
            tables[i] = slices_of(keys[i], tf.convert_to_tensor(grad), spec.dim)
    of_weights: list[Any] = [None] * len(weights)
    if summed:
        chosen = [specs[i] for i in summed]
        unique_keys, sums, weight_grads = library.load().tfctr_ev_lookup_grad(
            handles=[handles[i] for i in summed],
            keys=[keys[i] for i in summed],
            row_splits=row_splits,
            weights=weights,
            grads=[tf.convert_to_tensor(grads[i]) for i in summed],
            **_attributes(chosen),
        )
        for i, unique, rows in zip(summed, unique_keys, sums, strict=True):
            tables[i] = slices_of(unique, rows, specs[i].dim)
        of_weights = list(weight_grads)
    return [*tables, *[None] * (n + s), *of_weights, None, None]
