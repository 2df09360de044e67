"""`EmbeddingVariable`: an embedding table without a vocabulary and without collisions, for stock TensorFlow.

>>> users = tfctr.EmbeddingVariable(16, "users", optimizer=tfctr.optimizers.Adagrad(0.05))
>>> with tf.GradientTape() as tape:
...     rows = users.lookup([17, 4, -1], training=True)      # [3, 16]; unseen ids get rows
...     loss = tf.reduce_sum(rows**2)
>>> users.apply_gradients(tape.gradient(loss, users.handle))  # only rows of these ids change

docs/embedding_variable.md states exactly who gets a row, when it is updated, and when it goes.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfctr.embedding import keys as key_conversion
from tfctr.embedding import naming, ops, out_of_scope, saver_v1, table_config, tracing
from tfctr.embedding import option_values as check
from tfctr.embedding.checkpoint import CheckpointedTable
from tfctr.embedding.clock import ManualClock
from tfctr.embedding.optimizers import Optimizer
from tfctr.embedding.options import Admission, Eviction, Initializer, Uniform
from tfctr.embedding.table_admin import TableAdmin
from tfctr.errors import UsageError


@tracing.as_written
class EmbeddingVariable(TableAdmin, CheckpointedTable):
    """A table from ids to rows of `dim` float32 numbers that grows as ids appear and shrinks by rule.

    Every id of the key dtype is an ordinary key: negative ones, the extremes and 0 too. A row holds the value, the
    optimizer's slots, and what the options need. It works in eager mode, in `tf.function`, in TF1 graphs and on
    parameter servers (whose processes must `import tfctr`), is saved by `tf.train.Checkpoint`, `tf.saved_model.save`
    and TF1's `Saver` as tensors that `tf.train.load_checkpoint` lists, and never moves to a GPU.

    Args:
      dim: numbers of a row, 1 to 1,048,576.
      name: for errors and op names. In a TF1 graph it is required, must be new in the graph, gets the variable scope
        put before it, and names the table on a parameter server. In eager mode equal names do not share a table.
      key_dtype: `tf.int64`, `tf.int32` (widened), or `tf.string` (64-bit fingerprint; see `tfctr.embedding.keys`).
      initializer: first values of rows: `tfctr.Uniform` (default, -0.05 to 0.05), `Normal`, `TruncatedNormal`,
        `Constant`.
      seed: 0 to 2**64 - 1; first values are a pure function of (seed, key, column). None: made from the name.
      default_value: what a key without a row reads as: a number, or `dim` of them.
      optimizer: one of `tfctr.optimizers`, for example `tfctr.optimizers.Adagrad(0.05)`. None: rows are never updated.
      admission: None (a row at the first training lookup), `tfctr.CounterAdmission` or `tfctr.BloomAdmission`.
      eviction: None, or a policy, or a sequence of them, run in this order: `tfctr.StepEviction`, `TtlEviction`,
        `L2Eviction`, `CapacityEviction`.
      evict_every_steps: evict by itself every so many steps, after an update; 0: only when `evict` is called.
      evict_on_save: evict by itself before each save.
      record_frequency: keep how often training named each key, where no option needs it already, for `frequency`.
      record_last_step: keep the step of each row's last update, where no option needs it already: `tfctr delta` then
        compares only rows that were updated since its base. 8 bytes a row.
      record_changes: remember which rows changed since a save, so that `tfctr.DeltaCheckpointManager` saves only those;
        without it this table is saved whole each time. 4 bytes a row.
      max_bytes: limit of the table's memory, as `bytes()` counts it; None: no limit. A training lookup that would pass
        it fails, unless there is a `CapacityEviction`, which then makes room.
      expected_rows: rows to make room for at once, so that the table need not grow step by step. Not a limit.
      shards: parts with a lock of their own, 1 to 4,096; None: 16. Saved tables fit any number.
      step: the model-wide step: an int64 variable such as `optimizer.iterations`, counting finished updates. It is read
        and never written here. None: `tf.compat.v1.train.get_or_create_global_step()` in a TF1 graph, else a variable
        of this object's own that every `apply_gradients` moves forward by one.
      clock: a `tfctr.ManualClock`; None: the system's clock.
      shared_name: a fixed name of the table, by which several processes find it on one parameter server. None: the
        name in a TF1 graph, else one that no other variable has.
      unknown: options of other systems that ask for GPU tables, multi-hash or a dimension per key are refused by name.

    Raises:
      UsageError: an option is wrong, the name is taken, or a strategy with several replicas is in scope; names the
        variable, what came and what was expected.
    """

    def __init__(
        self,
        dim: int,
        name: str | None = None,
        *,
        key_dtype: Any = tf.int64,
        initializer: Initializer | None = None,
        seed: int | None = None,
        default_value: Any = 0.0,
        optimizer: Optimizer | None = None,
        admission: Admission | None = None,
        eviction: Eviction | Sequence[Eviction] | None = None,
        evict_every_steps: int = 0,
        evict_on_save: bool = False,
        record_frequency: bool = False,
        record_last_step: bool = False,
        record_changes: bool = False,
        max_bytes: int | None = None,
        expected_rows: int = 0,
        shards: int | None = None,
        step: Any = None,
        clock: ManualClock | None = None,
        shared_name: str | None = None,
        **unknown: Any,
    ) -> None:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        with tf.init_scope():
            self._eager = tf.executing_eagerly()
            self._name = naming.variable_name(name, self._eager)
            out_of_scope.refuse_options(self.owner, unknown)
            self._check_surroundings(replicas, clock)
            self._key_dtype = key_conversion.key_dtype(self.owner, key_dtype)
            self._options = table_config.table_options(
                self._name,
                dim,
                initializer=Uniform() if initializer is None else initializer,
                seed=seed,
                default_value=default_value,
                optimizer=optimizer,
                admission=admission,
                eviction=eviction,
                evict_every_steps=evict_every_steps,
                evict_on_save=evict_on_save,
                record_frequency=record_frequency,
                record_last_step=record_last_step,
                record_changes=record_changes,
                max_bytes=max_bytes,
                expected_rows=expected_rows,
                shards=shards,
            )
            self._own_step = False
            self.use_step(step)
            self._config = self._options.to_json(self._protected_keys)
            self._shared_name = naming.table_name(self._name, shared_name, self._eager)
            self._keeps_table = shared_name is not None
            self._made_by = id(self)  # a copy.copy has another id, and must not destroy the table
            self._frozen = False
            super().__init__(device="/CPU:0")
            self._make_table()
            self._clock = clock
            if clock is not None:
                self._start_clock(clock)
            if not self._eager:
                saver_v1.add_to_graph(self)

    def _check_surroundings(self, replicas: int, clock: Any) -> None:
        if replicas > 1:
            raise UsageError(
                f"{self.owner}: the strategy has {replicas} replicas, expected one: a table lives once, and would take "
                f"their gradients one by one; use one device, or parameter servers"
            )
        if clock is not None and not isinstance(clock, ManualClock):
            raise UsageError(f"{self.owner}: clock is {clock!r}, expected a tfctr.ManualClock or None")

    def _protected_keys(self, keys: Sequence[Any]) -> list[int]:
        return key_conversion.protected(self.owner, self._key_dtype, keys)

    def _make_table(self) -> None:
        try:
            handle = self.resource_handle
        except (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError) as error:
            if naming.is_claimed(self._shared_name):
                raise naming.taken(self._name, self._shared_name) from None
            said = re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", error.message)  # TensorFlow's frame around it
            raise UsageError(f"{self.owner}: {said}") from None
        if self._keeps_table and self._eager:
            naming.claim(self._shared_name, handle.device, self)

    def _create_resource(self) -> tf.Tensor:
        return ops.handle(self._config, shared_name=self._shared_name, name=self._name.replace("/", "_").lstrip("."))

    def _destroy_resource(self) -> None:
        handle = self._resource_handle
        mine = self._eager and not self._keeps_table and self._made_by == id(self)
        if mine and handle is not None:
            tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> "EmbeddingVariable":
        raise UsageError(
            f"{self.owner}: it can't be copied: a copy of its handle would be the same table; make another variable "
            f"and give it the rows (tfctr.warm_start.from_numpy, or a checkpoint)"
        )

    # What it is

    @property
    def owner(self) -> str:
        """How messages call it: `embedding variable 'users'`."""
        return f"embedding variable {self._name!r}"

    @property
    def name(self) -> str:
        """The name, with the variable scope where there is one."""
        return self._name

    @property
    def dim(self) -> int:
        """Numbers of a row."""
        return self._options.dim

    @property
    def dtype(self) -> tf.DType:
        """Of values: float32."""
        return tf.float32

    @property
    def key_dtype(self) -> tf.DType:
        """Of ids: int64, int32 or string."""
        return self._key_dtype

    @property
    def handle(self) -> tf.Tensor:
        """The table, a resource scalar; gradients of lookups are gradients with respect to it."""
        return self.resource_handle

    @property
    def options(self) -> table_config.TableOptions:
        """All options, checked, in their one form."""
        return self._options

    @property
    def optimizer(self) -> Optimizer | None:
        """What updates its rows."""
        return self._options.optimizer

    @property
    def config(self) -> str:
        """The table's configuration, JSON (`tfctr.embedding.table_config`)."""
        return self._config

    @property
    def frozen(self) -> bool:
        """Whether `freeze` was called."""
        return self._frozen

    def __repr__(self) -> str:
        return f"<tfctr.EmbeddingVariable {self._name!r} dim={self.dim} key_dtype={self._key_dtype.name}>"

    # Step and clock

    @property
    def step(self) -> Any:
        """The int64 variable that counts finished updates."""
        return self._step

    @property
    def owns_step(self) -> bool:
        """Whether `apply_gradients` moves the step forward: no step was given, and this is no TF1 graph."""
        return self._own_step

    def use_step(self, step: Any) -> None:
        """Takes another model-wide step from now on: an int64 variable, or None for what the constructor says of None.

        Functions that were traced before keep the step they were traced with.

        Raises:
          UsageError: `step` is no int64 scalar variable.
        """
        with tf.init_scope():
            self._own_step = step is None and self._eager
            if step is None and self._eager:
                step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
            elif step is None:
                step = tf.compat.v1.train.get_or_create_global_step()
        if isinstance(getattr(type(step), "value", None), property):
            step = step.value  # of a Keras variable: TensorFlow's
        dtype, shape = getattr(step, "dtype", None), getattr(step, "shape", None)
        if dtype not in (tf.int64, tf.int64._as_ref) or shape is None or shape.rank != 0 or not hasattr(step, "assign"):
            raise UsageError(f"{self.owner}: step is {step!r}, expected an int64 scalar tf.Variable or None")
        self._step = step
        self._track_trackable(step, "step", overwrite=True)

    def move_clock(self, time_ms: int) -> Any:
        """Sets the table's time to `time_ms` (milliseconds); -1: the system's clock. Returns None, or the op in a TF1
        graph. For one table: a `tfctr.ManualClock` moves all of its tables.
        """
        return self._run_once(lambda: ops.set_clock(self.handle, time_ms))

    def _start_clock(self, clock: ManualClock) -> None:
        clock.attach(self)
        op = self.move_clock(clock.time_ms)
        if op is not None:
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, op)

    # Training

    def as_keys(self, ids: Any) -> tf.Tensor:
        """Ids of any shape as the table's int64 keys of that shape; strings become fingerprints.

        Raises:
          InputError: ids of another dtype; names the variable, what came and what was expected.
        """
        return key_conversion.to_int64(self.owner, self._key_dtype, ids)

    def lookup(
        self, ids: Any, *, training: bool = False, max_norm: float | None = None, name: str | None = None
    ) -> Any:
        """Rows of ids, as `tfctr.embedding_lookup(self, ids, ...)`: float32 `ids.shape + [dim]`, ragged for ragged ids.

        Args:
          ids: of the key dtype, any shape; a tensor, a ragged tensor, an array or lists.
          training: count the ids and give rows to those that are admitted. False: the table stays as it is.
          max_norm: rows longer than this are scaled down to it in what is returned; the table keeps them as they are.
          name: of the op.

        Raises:
          InputError: ids of another dtype, or sparse ones.
          tf.errors.ResourceExhaustedError: the table would pass its `max_bytes`.
        """
        from tfctr.embedding import lookup

        return lookup.embedding_lookup(self, ids, training=training, max_norm=max_norm, name=name)

    def apply_gradients(self, gradient: Any, *, learning_rate: Any = None, step: Any = None) -> Any:
        """Updates the rows of one gradient, as `tfctr.apply_gradients([(gradient, self)], ...)`.

        Args:
          gradient: `tf.IndexedSlices` of float32 rows [n, dim] by int64 keys [n], as `tape.gradient(loss, self.handle)`
            and `tf.gradients(loss, self.handle)` give it. Equal keys are summed; keys without a row are left out.
          learning_rate: a number or scalar tensor; None: the optimizer's, a schedule at the step.
          step: int64 scalar, finished updates before this one; None: the variable's step.

        Returns:
          None in eager mode, the op in a graph.

        Raises:
          InputError: no gradient, or one of another kind or dim.
          UsageError: the variable has no optimizer, is frozen, or has the learning rate "model".
          tf.errors.InvalidArgumentError: a sum is NaN or infinite; names table and key. No row has changed.
        """
        from tfctr.embedding import training

        return training.apply_gradients([(gradient, self)], learning_rate=learning_rate, step=step)

    def freeze(self, frozen: bool = True) -> Any:
        """From now on lookups neither insert nor count, and updates are refused; `freeze(False)` undoes it.

        Holds at once for functions that were traced before. Returns None, or the op to run in a TF1 graph.

        Raises:
          UsageError: `frozen` is neither True nor False.
        """
        self._frozen = check.flag(self.owner, "frozen", frozen)
        return self._run_once(lambda: ops.set_frozen(self.handle, self._frozen))

    def _run_once(self, make: Callable[[], Any]) -> Any:
        """Runs an op of the table at once, even while a `tf.function` is traced; in a TF1 graph returns it."""
        with tf.init_scope() if self._eager else self.handle.graph.as_default():
            return make()
