"""The Keras layer over an embedding variable."""

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfctr.embedding import h5, optimizers, tracing
from tfctr.embedding.checkpoint import current_options
from tfctr.embedding.keys import key_dtype as to_key_dtype
from tfctr.embedding.lookup import embedding_lookup, embedding_lookup_sparse
from tfctr.embedding.variable import EmbeddingVariable
from tfctr.errors import UsageError
from tfctr.keras import checks, ids_spec, options_config
from tfctr.keras.facade import TableVariable

# Learning rate and method of tables that are told none: those of many a published CTR model.
DEFAULT_OPTIMIZER = optimizers.Adagrad(0.05)
_STEP = "step"  # name in a Keras file, beside those of tfctr.embedding.h5


@keras.saving.register_keras_serializable(package="tfctr")
@tracing.as_written
class Embedding(keras.layers.Layer):
    """Looks ids up in a table that grows with the ids it meets: no vocabulary, no collisions.

    >>> tags = keras.Input((None,), dtype="int64", ragged=True, name="tags")
    >>> mean = tfctr.keras.Embedding(16, combiner="mean", admission=tfctr.CounterAdmission(3))(tags)
    >>> model = keras.Model(tags, keras.layers.Dense(1, activation="sigmoid")(mean))
    >>> model.compile("adam", "binary_crossentropy")

    Only calls with training=True count ids and make rows, and only while the layer is trainable. The dense part is
    trained by the compiled optimizer, the table by its own (`optimizer`); the model-wide step is the compiled
    optimizer's `iterations`. docs/keras.md has the rules, docs/embedding_variable.md those of admission and eviction.

    Call: `layer(ids, weights=None, training=None)`.
      ids: int64 or int32 (strings where key_dtype="string"): a tensor [..., n], a RaggedTensor [batch, (n)], or a
        SparseTensor [batch, n].
      weights: float32 of the same structure, one per id; with a combiner only.
      Returns: with a combiner [..., dim], the n ids of the last axis combined, zeros where there are none. Without one
        a row per id: [..., n, dim], ragged for ragged ids. In the layer's compute dtype; the table is float32.

    Attributes:
      table: the EmbeddingVariable: `layer.table.size()`, `.evict()`, `.export()`...
    """

    def __init__(
        self,
        dim: int,
        *,
        admission: Any = None,
        eviction: Any = None,
        optimizer: Any = DEFAULT_OPTIMIZER,
        combiner: str | None = None,
        max_norm: float | None = None,
        key_dtype: Any = "int64",
        name: str | None = None,
        trainable: bool = True,
        dtype: Any = None,
        **table_options: Any,
    ) -> None:
        """Makes the layer and its table.

        Args:
          dim: floats of a row.
          admission: who gets a row: CounterAdmission, BloomAdmission; None: every id, at once.
          eviction: who loses it: a policy or several of StepEviction, TtlEviction, L2Eviction, CapacityEviction.
          optimizer: of the table, from `tfctr.optimizers`. Its learning rate is a number, a schedule, or "model": that
            of the optimizer that trains the model, its schedules and callbacks included. Clipping is an option of it
            (clip_value, clip_row_norm, clip_norm); the model's own clipping leaves tables out.
          combiner: "sum", "mean", "sqrtn", or None for one row per id. Sparse ids need one.
          max_norm: rows longer than this (L2) are scaled down to it as they are read, as in tf.nn.embedding_lookup.
          key_dtype: "int64" (takes int32 ids too), "int32" or "string".
          name: of the layer and its table.
          trainable: False: ids are looked up, none is inserted or counted, and no row changes.
          dtype: of what the layer returns, or a dtype policy.
          table_options: as for `tfctr.EmbeddingVariable`: initializer, seed, default_value, evict_every_steps,
            evict_on_save, record_frequency, record_last_step, record_changes, max_bytes, expected_rows, shards, clock.

        Raises:
          UsageError: a bad option (named), or a strategy with more than one replica.
        """
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        checks.check_replicas(self.name)
        if "step" in table_options:
            raise UsageError(f"embedding layer {self.name!r}: step is the optimizer's iterations, and can't be given")
        self._ids = ids_spec.IdsSpec(
            self.name, dim, combiner, to_key_dtype(f"embedding layer {self.name!r}", key_dtype)
        )
        self.max_norm = max_norm
        self.autocast = False  # weights of ids stay float32 under a mixed policy
        self.supports_jit = False
        self._told_of_training = False
        given = {"admission": admission, "eviction": eviction, "optimizer": optimizer, **table_options}
        self._given = options_config.GivenOptions({"key_dtype": self._ids.key_dtype.name, **given})
        self.table = EmbeddingVariable(dim, self.name, **self._given.values)
        with keras.name_scope(self.name, caller=self):
            self._facade = TableVariable(self.table, self.name)
        self.built = True

    @property
    def dim(self) -> int:
        """Floats of a row."""
        return self._ids.dim

    @property
    def combiner(self) -> str | None:
        """How the ids of the last axis become one row; None: they don't."""
        return self._ids.combiner

    def call(self, ids: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Looks `ids` up; see the class."""
        learns = self.trainable and not self.table.frozen
        insert = bool(training) and learns
        checks.check_call(self.name, insert)
        if learns and training is None:
            self._warn_of_training()
        rows = self._rows(ids, weights, insert)
        return rows if rows.dtype == self.compute_dtype else tf.cast(rows, self.compute_dtype)

    def _rows(self, ids: Any, weights: Any, insert: bool) -> Any:
        self._ids.output_spec(ids, weights)
        if self.combiner is None:
            return embedding_lookup(self.table, ids, training=insert, max_norm=self.max_norm)
        shape = None
        if isinstance(ids, tf.Tensor):
            shape = (tf.shape(ids)[:-1], ids.shape[:-1])
            ids, weights = ids_spec.as_ragged(ids), None if weights is None else ids_spec.as_ragged(weights)
        if weights is not None and weights.dtype != tf.float32:
            weights = tf.cast(weights, tf.float32)
        rows = embedding_lookup_sparse(
            self.table, ids, weights, combiner=self.combiner, max_norm=self.max_norm, training=insert
        )
        if shape is not None and shape[1].rank != 1:
            rows = tf.reshape(rows, tf.concat([shape[0], [self.dim]], 0))
        if shape is not None:
            rows = tf.ensure_shape(rows, [*shape[1], self.dim])
        return rows

    def _warn_of_training(self) -> None:
        """Once per layer: a tape records, and nobody said whether this is training."""
        if self._told_of_training or not checks.tape_records():
            return
        self._told_of_training = True
        warnings.warn(
            f"embedding layer {self.name!r}: called under a gradient tape without saying whether this is training: no "
            f"id is inserted or counted, so the table does not grow. Call the model or the layer with training=True "
            f"(training=False if that is meant); fit says it to a subclassed model whose call() takes `training`",
            stacklevel=3,
        )

    def compute_output_spec(self, ids: Any, weights: Any = None, training: bool | None = None) -> keras.KerasTensor:
        """Shape and kind of the output from those of the ids, without a lookup."""
        shape, ragged = self._ids.output_spec(ids, weights)
        return keras.KerasTensor(shape, dtype=self.compute_dtype, ragged=ragged)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Shape of the output for dense ids of `input_shape`."""
        return self._ids.output_shape(tuple(input_shape))

    def get_config(self) -> dict[str, Any]:
        """Everything that makes the layer again, as JSON values; a clock is not among it."""
        own = {"dim": self.dim, "combiner": self.combiner, "max_norm": self.max_norm}
        return super().get_config() | own | self._given.config()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Embedding":
        """Undoes `get_config`."""
        given = dict(config)
        dtype = given.get("dtype")
        if isinstance(dtype, dict):
            given["dtype"] = keras.saving.deserialize_keras_object(dtype)
        plain = {"name", "trainable", "dtype"}
        return cls(**{key: v if key in plain else options_config.from_config(v) for key, v in given.items()})

    def save_own_variables(self, store: Any) -> None:
        """Writes the table's rows into a `.keras` or `.weights.h5` file, in chunks."""
        h5.save_own_variables(self.table, store)
        if current_options().steps:
            store[_STEP] = np.array([tf.convert_to_tensor(self.table.step).numpy()], np.int64)

    def load_own_variables(self, store: Any) -> None:
        """Replaces the table's rows by those of the file, and its step; after an error both are as before."""
        step = self.table.step
        before = tf.convert_to_tensor(step).numpy()
        if _STEP in store and current_options().steps:
            step.assign(np.asarray(store[_STEP])[0])  # first: rows without a step of their own are as old as it
        try:
            h5.load_own_variables(self.table, store)
        except BaseException:
            step.assign(before)
            raise
