"""Embedding variables in checkpoints and SavedModels: part of TensorFlow's own files, streamed, nothing beside them.

Importing this module (`import tfctr` does, as soon as TensorFlow is there) registers how tables are saved and restored,
so `tf.train.Checkpoint`, `CheckpointManager`, `tf.saved_model.save` and Keras' `model.export` need nothing more. The
tensors of a table that a checkpoint calls NAME are `NAME/keys`, `NAME/values`, `NAME/slots/SLOT` and so on
(tfctr/core/ops/embedding_checkpoint_ops.cc lists them); `tf.train.load_checkpoint` reads them.

A table may be restored into any number of shards, and under other admission and eviction policies. Another `dim`, dtype
or set of optimizer slots is refused by name; `checkpoint_options` leaves parts out, when saving as when restoring:

>>> with checkpoint_options(slots=False):          # for serving, or to change the optimizer
...     tf.train.Checkpoint(model=model).write("weights")
"""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model import registration
from tensorflow.python.trackable import resource

from tfctr.core import library
from tfctr.errors import UsageError

_PACKAGE, _NAME = "tfctr", "EmbeddingVariable"  # in checkpoints and SavedModels: must stay as they are
NO_STEP = -1
NOT_MARKED = -1
RESTORED = 1  # the mark that ends when a table has been restored


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """Which parts of tables are saved, or taken from a checkpoint; keys and values always are.

    Attributes:
      slots: optimizer slots. Left out: every slot has its initial value after the restore.
      counters: counts of keys that are not admitted yet, and frequencies of rows. Left out: counting starts at 0, and a
        row's frequency at what admits a key.
      steps: step and time of each row's last update. Left out: every row is as old as if inserted at the restore.
    """

    slots: bool = True
    counters: bool = True
    steps: bool = True


_EVERYTHING = CheckpointOptions()
_options: contextvars.ContextVar[CheckpointOptions] = contextvars.ContextVar("checkpoint_options", default=_EVERYTHING)


@contextlib.contextmanager
def checkpoint_options(*, slots: bool = True, counters: bool = True, steps: bool = True) -> Iterator[None]:
    """Leaves parts of all embedding variables out of what is saved, and of what is restored, in the `with` block.

    An object that is restored when it is created (a deferred restore) follows the options of that moment.

    Args:
      slots: keep optimizer slots.
      counters: keep counts of keys that are not admitted, and frequencies.
      steps: keep step and time of last updates.
    """
    token = _options.set(CheckpointOptions(slots, counters, steps))
    try:
        yield
    finally:
        _options.reset(token)


def current_options() -> CheckpointOptions:
    """The options of the innermost `checkpoint_options`."""
    return _options.get()


@dataclasses.dataclass
class ChainSave:
    """A save that deltas may follow, and that may be one itself: how `DeltaCheckpointManager` has tables saved.

    Attributes:
      save: a random name of this save.
      previous_name: file name of the prefix of the save before it; "" for none, and all tables are saved whole.
      previous_save: the `save` of that.
      marks: (name in the checkpoint, instance of the table) -> the mark that it had at the save before. What is not in
        it is saved whole, unless it was restored from that save.
      ended: the same for the save after this one; filled in by the save.
      tables: name -> (since which mark it was saved, NOT_MARKED where whole; whether it remembers changes); likewise.
    """

    save: str
    previous_name: str = ""
    previous_save: str = ""
    marks: Mapping[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    ended: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    tables: dict[str, tuple[int, bool]] = dataclasses.field(default_factory=dict)

    def mark(self, name: str, table: Any) -> tuple[int, int]:
        """Ends the table's mark; returns since which mark it is saved (-1: whole), and its instance."""
        with tf.init_scope():  # the save of a model with variables on several devices is traced
            instance, ended, origin = (
                part.numpy() for part in library.load().tfctr_ev_mark(handle=table.resource_handle)
            )
        place = (name, int(instance))
        since = NOT_MARKED
        if ended >= 0:
            self.ended[place] = int(ended)
            restored = bool(self.previous_save) and origin.decode() == f"{self.previous_save}/{name}"
            since = self.marks.get(place, RESTORED if restored else NOT_MARKED)
        self.tables[name] = (since, bool(ended >= 0))
        return since, place[1]


_chain_save: contextvars.ContextVar[ChainSave | None] = contextvars.ContextVar("chain_save", default=None)


@contextlib.contextmanager
def saving_in_chain(save: ChainSave) -> Iterator[None]:
    """Tables that are saved in the `with` block are saved as `save` says."""
    token = _chain_save.set(save)
    try:
        yield
    finally:
        _chain_save.reset(token)


class CheckpointedTable(tf.saved_model.experimental.TrackableResource):
    """Base of everything that holds a table: what the registered saver below takes.

    It is a resource, no variable: checkpoint code would save a variable by a code path that knows variables only, and
    load an empty table.
    """

    @property
    def handle(self) -> tf.Tensor:
        """The table, a resource scalar."""
        return self.resource_handle

    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, **kwargs: Any) -> list[Any]:
        captured = super()._export_to_saved_model_graph(object_map, tensor_map, **kwargs)
        # Registered savers are traced with the copy in the SavedModel's graph, so its handle stands for itself.
        copy = object_map[self]
        tensor_map[copy.resource_handle] = copy.resource_handle
        # The copy goes when the SavedModel is written. A loaded table's function would destroy the original with it.
        copy._destroy_resource = _nothing
        return captured


class LoadedEmbeddingVariable(CheckpointedTable):
    """An embedding variable that `tf.saved_model.load` read: the model's functions use it, and save it with them."""

    @classmethod
    def _deserialize_from_proto(cls, object_proto: Any, dependencies: Mapping[str, Any], **_: Any) -> Any:
        loaded = cls(device=object_proto.resource.device)
        creator = dependencies.get("_create_resource")
        if creator is not None:
            loaded._create_resource = creator
        return loaded

    # As TensorFlow's own loaded resources take their functions and children.
    _add_trackable_child = resource.RestoredResource._add_trackable_child


def _nothing() -> None:
    """Destroys nothing."""


def key_kind(table: Any) -> str:
    """ "string" where keys are fingerprints of strings, else "int64"; "" of a loaded table, which does not know."""
    dtype = getattr(table, "key_dtype", None)
    return "" if dtype is None else "string" if dtype == tf.string else "int64"


def _steps(tables: list[Any], known: bool) -> tf.Tensor:
    """The step of each table; NO_STEP where it is not `known`, or the table has none (one of a loaded SavedModel)."""
    values = []
    for table in tables:
        step = getattr(table, "step", None) if known else None
        values.append(tf.constant(NO_STEP, tf.int64) if step is None else tf.cast(tf.convert_to_tensor(step), tf.int64))
    return tf.stack(values)


def _by_device(trackables: Mapping[str, Any]) -> list[tuple[str, list[str], list[Any]]]:
    """(device, names, tables): one op for each device that holds tables, such as a parameter server's."""
    groups: dict[str, dict[str, Any]] = {}
    for name, table in trackables.items():
        groups.setdefault(table.resource_handle.device, {})[name] = table
    return [(device, list(group), list(group.values())) for device, group in groups.items()]


def save_tables(prefix: tf.Tensor | str, tables: Mapping[str, Any]) -> list[tf.Tensor]:
    """Writes tables into bundles, one for each device that holds some.

    Args:
      prefix: of the bundle; "-1", "-2", ... is put behind it for further devices.
      tables: name in the bundle -> embedding variable.

    Returns:
      The prefixes, string scalars; in a graph they are there once the bundles are.
    """
    written = []
    chain = _chain_save.get()
    # A SavedModel's own functions must not need the step; those of a chain are run once.
    known = chain is not None or not tf.inside_function()
    save, how = library.load().tfctr_ev_save, _whole
    if chain is not None:
        save, how = library.load().tfctr_ev_save_delta, functools.partial(_since, chain)
    for i, (device, names, group) in enumerate(_by_device(tables)):
        with tf.device(device):
            written.append(
                save(
                    prefix=tf.strings.join([prefix, f"-{i}"]) if i else prefix,
                    step=_steps(group, known),
                    handles=[table.resource_handle for table in group],
                    names=names,
                    key_dtypes=[key_kind(table) for table in group],
                    **how(names, group),
                )
            )
    return written


def _whole(names: list[str], tables: list[Any]) -> dict[str, Any]:
    return dataclasses.asdict(current_options())


def _since(chain: ChainSave, names: list[str], tables: list[Any]) -> dict[str, Any]:
    marks = [chain.mark(name, table) for name, table in zip(names, tables, strict=True)]
    return {
        "since": tf.constant([since for since, _ in marks], tf.int64),
        "instance": tf.constant([instance for _, instance in marks], tf.int64),
        "save": chain.save,
        "previous_name": chain.previous_name,
        "previous_save": chain.previous_save,
    }


def restore_tables(prefix: tf.Tensor | str, tables: Mapping[str, Any]) -> list[Any]:
    """Replaces the contents of tables by what a checkpoint has under their names, all of them or, on an error, none.

    Tables of several devices are all or none by device.

    Returns:
      The operations in a graph; Nones in eager mode.
    """
    restored = []
    known = tf.executing_eagerly()  # a graph may restore the step at the same time
    for device, names, group in _by_device(tables):
        with tf.device(device):
            restored.append(
                library.load().tfctr_ev_restore(
                    prefix=prefix,
                    step=_steps(group, known),
                    handles=[table.resource_handle for table in group],
                    names=names,
                    key_dtypes=[key_kind(table) for table in group],
                    **dataclasses.asdict(current_options()),
                )
            )
    return restored


def _save(trackables: Mapping[str, Any], file_prefix: tf.Tensor) -> list[tf.Tensor]:
    return save_tables(file_prefix, trackables)


def _restore(trackables: Mapping[str, Any], merged_prefix: tf.Tensor) -> None:
    if not tf.executing_eagerly() and not tf.inside_function():
        # tf.train.Checkpoint never runs what registered savers add to a TF1 graph: the tables would stay empty.
        raise UsageError(
            f"embedding variables {sorted(trackables)}: tf.train.Checkpoint can't restore them into a TF1 graph, use "
            f"tf.compat.v1.train.Saver"
        )
    restore_tables(merged_prefix, trackables)


def _is_table(trackable: Any) -> bool:
    return isinstance(trackable, CheckpointedTable)


def _register() -> None:
    if registration.get_registered_class(f"{_PACKAGE}.{_NAME}") is not None:
        return
    registration.register_serializable(package=_PACKAGE, name=_NAME, predicate=_is_table)(LoadedEmbeddingVariable)
    registration.register_checkpoint_saver(
        package=_PACKAGE, name=_NAME, predicate=_is_table, save_fn=_save, restore_fn=_restore
    )


_register()
