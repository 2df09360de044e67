"""What an embedding variable can be asked and told besides training: sizes, counts, contents, eviction.

Every method works in eager mode, where it returns Python and NumPy values, and while a graph is built (`tf.function`,
TF1), where it returns tensors and ops.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session as client_session

from tfctr.core import library
from tfctr.embedding import ops, tracing
from tfctr.embedding import option_values as check
from tfctr.embedding.options import Eviction
from tfctr.errors import InputError, UsageError

if TYPE_CHECKING:
    from tfctr.embedding.table_config import TableOptions


class _Structure:
    """Lets a `tf.function` return a dataclass of tensors, and a session fetch it: it comes back with numbers in it."""

    def __tf_flatten__(self) -> tuple[Any, tuple[Any, ...]]:
        """What is no tensor, and the tensors."""
        return (), tuple(vars(self).values())

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, components: tuple[Any, ...]) -> Any:
        """Undoes `__tf_flatten__`."""
        return cls(*metadata, *components)


@dataclasses.dataclass(frozen=True)
class PolicyReport(_Structure):
    """What one policy of an eviction took: its share of the EvictionReport."""

    policy: Eviction
    rows: Any
    counters: Any
    bytes: Any

    def __tf_flatten__(self) -> tuple[Any, tuple[Any, ...]]:
        """The policy, and the tensors."""
        return (self.policy,), (self.rows, self.counters, self.bytes)


@dataclasses.dataclass(frozen=True)
class EvictionReport(_Structure):
    """What an eviction took, or with `dry_run` would take.

    Attributes:
      rows: rows.
      counters: counters of keys that had no row.
      bytes: their memory, free for later keys of the table; not returned to the system.
      policies: the same by policy, in the order in which they ran.
    """

    rows: Any
    counters: Any
    bytes: Any
    policies: tuple[PolicyReport, ...]


@dataclasses.dataclass(frozen=True)
class TableRows(_Structure):
    """Contents of a table, in no particular order: row i of everything belongs to key i.

    Attributes:
      keys: int64 [n]; fingerprints where ids are strings.
      values: float32 [n, dim].
      slots: optimizer slots by name, float32 [n, dim] or [n, 1]; empty unless asked for.
      frequency: int64 [n], occurrences in training lookups; None where they are not kept.
      last_step: int64 [n], step of the last update; None where it is not kept.
      last_time_ms: int64 [n], its time in milliseconds; None where it is not kept.
    """

    keys: Any
    values: Any
    slots: dict[str, Any]
    frequency: Any
    last_step: Any
    last_time_ms: Any


def _fetched(structure: _Structure) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """What `session.run` is to fetch for a structure, and how that becomes one again."""
    parts = tf.nest.flatten(structure)

    def together(values: list[Any]) -> Any:
        left = iter(values)
        return tf.nest.pack_sequence_as(structure, [None if part is None else next(left) for part in parts])

    return [part for part in parts if part is not None], together


client_session.register_session_run_conversion_functions(_Structure, _fetched)


@tracing.as_written
class TableAdmin:
    """The part of `EmbeddingVariable` that is about the table as a whole."""

    if TYPE_CHECKING:
        handle: Any  # of EmbeddingVariable, as all of these
        step: Any

        @property
        def owner(self) -> str: ...

        @property
        def options(self) -> TableOptions: ...

        def as_keys(self, ids: Any) -> Any: ...

    def size(self) -> Any:
        """How many keys have a row."""
        return _value(ops.size(self.handle).rows)

    def counters(self) -> Any:
        """How many keys are counted and have no row yet; 0 with a Bloom filter, which cannot know."""
        return _value(ops.size(self.handle).counters)

    def bytes(self) -> Any:
        """Memory of the table: index, rows and counters, to the byte."""
        return _value(ops.size(self.handle).bytes)

    def contains(self, ids: Any) -> Any:
        """Which ids have a row: bool, in the shape of the ids. InputError: ids of another dtype."""
        return _value(ops.contains(self.handle, self.as_keys(ids)))

    def frequency(self, ids: Any) -> Any:
        """How often training lookups named each id, of keys that are not admitted yet too: int64, in the shape of the
        ids.

        Raises:
          UsageError: the table does not keep it: pass `record_frequency=True`, an admission option, or "lfu".
          InputError: ids of another dtype.
        """
        if not self.options.keeps_frequency:
            raise UsageError(
                f"{self.owner}: it keeps no frequency, expected record_frequency=True, an admission option or "
                f'CapacityEviction(order="lfu")'
            )
        return _value(ops.frequency(self.handle, self.as_keys(ids)))

    def keys(self) -> Any:
        """The keys that have a row, int64 [n], in no particular order; fingerprints where ids are strings."""
        return self._rows(()).keys

    def export(self, slots: bool = False) -> TableRows:
        """All rows as arrays. Each shard of the table is of one moment; value, slots and counts of a row always are.

        Args:
          slots: the optimizer's slots too.
        """
        names = self.options.optimizer.slot_names if slots and self.options.optimizer else ()
        return self._rows(names)

    def evict(self, dry_run: bool = False, step: Any = None) -> EvictionReport:
        """Runs the eviction policies now, in the order given, each on what the former left.

        Args:
          dry_run: only count what they would take.
          step: int64 scalar that row ages are measured from; None: the variable's step.

        Raises:
          UsageError: the variable has no eviction policy.
        """
        policies = self.options.eviction
        if not policies:
            raise UsageError(
                f"{self.owner}: it has no eviction policy, expected eviction=tfctr.StepEviction(...) or another"
            )
        if not tf.is_tensor(dry_run):
            check.flag(self.owner, "dry_run", dry_run)
        evicted = ops.evict(self.handle, self._step_or(step), dry_run=dry_run)
        columns = (evicted.rule_rows, evicted.rule_counters, evicted.rule_bytes)
        by_policy = zip(policies, *(tf.unstack(column, len(policies)) for column in columns), strict=True)
        return EvictionReport(
            rows=_value(evicted.rows),
            counters=_value(evicted.counters),
            bytes=_value(evicted.bytes),
            policies=tuple(PolicyReport(policy, *map(_value, taken)) for policy, *taken in by_policy),
        )

    def erase(self, ids: Any) -> Any:
        """Takes the rows and counters of ids; returns how many had a row. One that returns later starts afresh.

        Raises:
          InputError: ids of another dtype.
        """
        return _value(ops.erase(self.handle, tf.reshape(self.as_keys(ids), [-1])))

    def reserve(self, rows: int) -> Any:
        """Makes room for `rows` rows in total, so that the table need not grow while it is trained.

        Raises:
          UsageError: `rows` is no whole number >= 0.
          tf.errors.ResourceExhaustedError: that would pass the table's `max_bytes`.
        """
        return ops.reserve(self.handle, check.whole(self.owner, "rows", rows, 0, 2**40))

    def _step_or(self, step: Any) -> Any:
        return as_step(self.owner, self.step if step is None else step)

    def _rows(self, slot_names: tuple[str, ...]) -> TableRows:
        if not tf.executing_eagerly():
            return self._as_rows(slot_names, self._export(slot_names, 0, -1))
        first, shards, parts = 0, 1, []
        while first < shards:  # shard by shard: the copy in TensorFlow's memory is one shard at a time
            part = self._export(slot_names, first, 1)
            shards = int(part[-1])
            parts.append([tensor.numpy() for tensor in part[:-1]])
            first += 1
        columns = []
        for k in range(len(parts[0])):
            columns.append(np.concatenate([part[k] for part in parts]))
            for part in parts:
                part[k] = None
        return self._as_rows(slot_names, columns)

    def _export(self, slot_names: tuple[str, ...], first_shard: int, num_shards: int) -> list[Any]:
        keys, values, slots, *rest = library.load().tfctr_ev_export(
            handle=self.handle,
            first_shard=tf.constant(first_shard, tf.int64),
            num_shards=tf.constant(num_shards, tf.int64),
            K=len(slot_names),
            slot_names=list(slot_names),
        )
        return [keys, values, *slots, *rest]

    def _as_rows(self, slot_names: tuple[str, ...], columns: list[Any]) -> TableRows:
        keys, values, *others = columns
        options = self.options
        frequency, last_step, last_time = others[len(slot_names) : len(slot_names) + 3]
        return TableRows(
            keys=keys,
            values=values,
            slots=dict(zip(slot_names, others, strict=False)),
            frequency=frequency if options.keeps_frequency else None,
            last_step=last_step if options.keeps_last_step else None,
            last_time_ms=last_time if options.keeps_last_time else None,
        )


def as_step(owner: str, step: Any) -> tf.Tensor:
    """A step given as a whole number, a variable or a tensor, as int64 scalar.

    Raises:
      InputError: it is of another kind.
    """
    expected = "a whole number, or an int64 or int32 scalar"
    if isinstance(step, bool | str | float):
        raise InputError(f"{owner}: step is {step!r}, expected {expected}")
    tensor = tf.convert_to_tensor(step, tf.int64) if isinstance(step, int) else tf.convert_to_tensor(step)
    if tensor.dtype not in (tf.int64, tf.int32) or not tensor.shape.is_compatible_with([]):
        raise InputError(f"{owner}: step is {tensor.dtype.name} {tensor.shape}, expected {expected}")
    return tf.cast(tensor, tf.int64)


def _value(tensor: Any) -> Any:
    """A Python number or NumPy array in eager mode; in a graph the tensor."""
    if not tf.executing_eagerly():
        return tensor
    array = tensor.numpy()
    return array if getattr(array, "ndim", 0) else array.item()
