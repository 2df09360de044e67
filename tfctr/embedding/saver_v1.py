"""Embedding variables and `tf.compat.v1.train.Saver`.

A variable that is made in a TF1 graph joins the collection SAVEABLE_OBJECTS, so `Saver()` (and what makes one, such as
`MonitoredTrainingSession`) saves and restores it under its name, as the same tensors that `tf.train.Checkpoint` writes.
Saver feeds every tensor to one op, so the whole table is copied in memory while it saves or restores. This one streams,
a shard at a time, and reads and writes the same files:

>>> saver = tf.compat.v1.train.Saver(builder=StreamingSaverBuilder())

`checkpoint_options` counts when the Saver, or the variable, is made.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.training import saver as stock_saver
from tensorflow.python.training.saving import saveable_object

from tfctr.core import library
from tfctr.embedding import checkpoint, ops
from tfctr.embedding.options import BloomAdmission

_STREAMED, _OTHERS = "-tfctr.EmbeddingVariable", "-tfctr.others"  # behind a prefix while it is written


def add_to_graph(table: Any) -> None:
    """Lets Savers of the table's graph find it."""
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS, TableSaveable(table))


class TableSaveable(saveable_object.SaveableObject):
    """An `EmbeddingVariable` of a TF1 graph as Saver sees it: a list of named tensors, and how to take them back."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self._parts = checkpoint.current_options()
        with tf.device(table.handle.device), tf.name_scope(f"{table.name}/save/"):
            tensors = self._tensors()
        self._tensor_names = list(tensors)
        specs = [
            saveable_object.SaveSpec(tensor, "", f"{table.name}/{part}", tensor.dtype, table.handle.device)
            for part, tensor in tensors.items()
        ]
        # A meta graph lists a collection by the names of its items, which have to be those of ops when it is loaded.
        super().__init__(table.handle, specs, table.handle.op.name)

    def _tensors(self) -> dict[str, tf.Tensor]:
        """The tensors of the bundle, by part; all rows come from one op, each shard of one moment."""
        table, parts = self.table, self._parts
        step = tf.cast(tf.convert_to_tensor(table.step), tf.int64)
        slots = self._slot_names()
        evicted = [ops.evict(table.handle, step).rows] if table.options.evict_on_save else []
        with tf.control_dependencies(evicted):
            counted = list(library.load().tfctr_ev_export_counters(table.handle))
        with tf.control_dependencies(counted):  # before the rows: see SaveCounters in ev_save_table.cc
            keys, values, slot_rows, frequency, last_step, last_time, _ = library.load().tfctr_ev_export(
                handle=table.handle,
                first_shard=tf.constant(0, tf.int64),
                num_shards=tf.constant(-1, tf.int64),
                K=len(slots),
                slot_names=list(slots),
            )
        tensors = {"keys": keys, "values": values}
        tensors |= {f"slots/{name}": rows for name, rows in zip(slots, slot_rows, strict=True)}
        if table.options.keeps_frequency and parts.counters:
            tensors["frequency"] = frequency
        if table.options.keeps_last_step and parts.steps:
            tensors["last_step"] = last_step
        if table.options.keeps_last_time and parts.steps:
            tensors["last_time"] = last_time
        tensors |= self._counters(counted)
        tensors["config"] = self._description(tf.shape(keys, tf.int64)[0], step)
        return tensors

    def _slot_names(self) -> tuple[str, ...]:
        optimizer = self.table.optimizer
        return tuple(optimizer.slot_names) if optimizer is not None and self._parts.slots else ()

    def _counters(self, counted: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        keys, counts, last_step, last_time, bloom = counted
        options = self.table.options
        if options.admission is None or not self._parts.counters:
            return {}
        if isinstance(options.admission, BloomAdmission):
            return {"bloom": bloom}
        tensors = {"counters/keys": keys, "counters/counts": counts}
        if options.keeps_last_step and self._parts.steps:
            tensors["counters/last_step"] = last_step
        if options.keeps_last_time and self._parts.steps:
            tensors["counters/last_time"] = last_time
        return tensors

    def _description(self, rows: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """The tensor NAME/config, as Description in ev_save_table.cc writes it."""
        parts = self._parts
        left_out = ", ".join(f'"{name}"' for name in ("slots", "counters", "steps") if not getattr(parts, name))
        key_dtype = checkpoint.key_kind(self.table)
        return tf.strings.join(
            [
                '{"format": 1, "rows": "',
                tf.strings.as_string(rows),
                '", "step": "',
                tf.strings.as_string(step),
                f'", "key_dtype": "{key_dtype}", "left_out": [{left_out}], "table": {self.table.config}}}',
            ]
        )

    def restore(self, restored_tensors: list[tf.Tensor], restored_shapes: Any) -> tf.Operation:
        """Takes the table's tensors back; where a StreamingSaverBuilder reads, these are the prefix instead."""
        table = self.table
        if restored_tensors[0].dtype == tf.string:
            (op,) = checkpoint.restore_tables(restored_tensors[0], {table.name: table})
            return op
        given = dict(zip(self._tensor_names, restored_tensors, strict=True))
        nothing = tf.zeros([0], tf.int64)
        step = tf.constant(0, tf.int64)  # not used: what rows and counters keep of steps is given
        slots = self._slot_names()
        whole = tf.debugging.assert_equal(
            tf.strings.regex_full_match(given["config"], r'(?s)\{"format": 1[,}].*'),
            True,
            message=f"embedding variable {table.name!r}: the checkpoint has no whole table of format 1; a delta is "
            f"restored by Saver(builder=StreamingSaverBuilder())",
        )
        with tf.device(table.handle.device), tf.control_dependencies([whole]):
            rows = library.load().tfctr_ev_import(
                handle=table.handle,
                step=step,
                keys=given["keys"],
                values=given["values"],
                slots=[given[f"slots/{name}"] for name in slots],
                frequency=given.get("frequency", nothing),
                last_step=given.get("last_step", nothing),
                last_time=given.get("last_time", nothing),
                slot_names=list(slots),
                replace=True,
            )
            if table.options.admission is None:
                return rows
            with tf.control_dependencies([rows]):
                return library.load().tfctr_ev_import_counters(
                    handle=table.handle,
                    step=step,
                    keys=given.get("counters/keys", nothing),
                    counts=given.get("counters/counts", nothing),
                    last_step=given.get("counters/last_step", nothing),
                    last_time=given.get("counters/last_time", nothing),
                    bloom=given.get("bloom", tf.zeros([0], tf.uint8)),
                )


class StreamingSaverBuilder(stock_saver.BulkSaverBuilder):
    """`Saver(builder=StreamingSaverBuilder())`: embedding variables are streamed, the rest is as in any Saver."""

    def save_op(self, filename_tensor: tf.Tensor, saveables: list[Any]) -> tf.Operation:
        """Writes tables into bundles of their own, the other tensors into another, and joins them under one prefix."""
        tables, others = _apart(saveables)
        if not tables:
            return super().save_op(filename_tensor, saveables)
        prefixes = checkpoint.save_tables(tf.strings.join([filename_tensor, _STREAMED]), tables)
        written: list[Any] = list(prefixes)
        if others:
            prefixes.append(tf.strings.join([filename_tensor, _OTHERS]))
            written.append(super().save_op(prefixes[-1], others))
        with tf.control_dependencies(written):
            return tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=tf.stack(prefixes), destination_prefix=filename_tensor, delete_old_dirs=True
            )

    def bulk_restore(
        self, filename_tensor: tf.Tensor, saveables: list[Any], preferred_shard: int, restore_sequentially: bool
    ) -> list[tf.Tensor]:
        """Tensors of everything but tables, which get the prefix in their place and read it themselves."""
        _, others = _apart(saveables)
        read = iter(
            super().bulk_restore(filename_tensor, others, preferred_shard, restore_sequentially) if others else []
        )
        tensors: list[tf.Tensor] = []
        for saveable in saveables:
            is_table = isinstance(saveable, TableSaveable)
            tensors.extend(filename_tensor if is_table else next(read) for _ in saveable.specs)
        return tensors


def _apart(saveables: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    tables = {each.table.name: each.table for each in saveables if isinstance(each, TableSaveable)}
    return tables, [each for each in saveables if not isinstance(each, TableSaveable)]
