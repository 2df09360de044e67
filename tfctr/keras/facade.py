"""The variable by which Keras knows a table: it has no numbers of its own, its gradient goes to the table's rows."""

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfctr.errors import UsageError
from tfctr.keras import checks

if TYPE_CHECKING:
    from tfctr.embedding.variable import EmbeddingVariable


class TableVariable(keras.Variable):
    """A trainable Keras variable of shape [0, dim] whose gradient updates an embedding table.

    Keras optimizers hand the gradient of a variable with `overwrite_with_gradient` to its `assign` once per step,
    without slots, clipping or weight decay, and leave the rest of the step as it is. That `assign` is the table's own
    fused update here, with the step and, where the table follows it, the learning rate of the optimizer that called.
    The update also moves the table's own step on, which the lookups of the next step see.
    `handle` is the table's, which lookups tell tapes of: so a tape asked for the gradient of this variable has it.
    """

    def __init__(self, table: "EmbeddingVariable", layer: str) -> None:
        """table: what it stands for. layer: name of the layer it belongs to, for messages."""
        self._table = table
        self._layer = layer
        super().__init__(
            initializer="zeros", shape=(0, table.dim), dtype="float32", trainable=True, autocast=False, name="table"
        )
        # A checkpoint reaches layers by the attributes of a model alone; those in Python lists and dicts it has by
        # the variables of the optimizer, if at all. So the rows must be found there too.
        self._track_trackable(table, "rows")

    @property
    def handle(self) -> tf.Tensor:
        """The table's resource: what a tape watches."""
        return self._table.handle

    @property
    def value(self) -> Any:
        """The empty tf.Variable behind it, by which optimizers tell variables apart.

        Raises:
          UsageError: asked by an optimizer that is built within `apply` and can't train a table.
        """
        self._check_caller()
        if (scaler := checks.building_loss_scaler()) is not None:
            checks.check_optimizer(self._layer, scaler)
        return super().value

    @property
    def overwrite_with_gradient(self) -> bool:
        """True. An optimizer asks at the start of `apply`, before any variable has changed.

        Raises:
          UsageError: the optimizer that asks can't train a table.
        """
        self._check_caller()
        return True

    def assign(self, value: Any) -> None:
        """Updates the table's rows from their gradient; a frozen table is passed over.

        Args:
          value: the IndexedSlices that a tape gives for this variable.

        Raises:
          UsageError: `value` is no gradient of a table, or no Keras optimizer calls.
          tf.errors.InvalidArgumentError: the gradient holds NaN or Inf; no row of the table has changed.
        """
        if not isinstance(value, tf.IndexedSlices):
            raise UsageError(
                f"embedding layer {self._layer!r}: its rows are in a table, not in get_weights() and set_weights(); "
                f"copy them with save_weights() and load_weights(), or a tf.train.Checkpoint (instead of EarlyStopping("
                f"restore_best_weights=True) use ModelCheckpoint(save_best_only=True))"
            )
        optimizer = checks.calling_optimizer()
        if optimizer is None:
            raise UsageError(
                f"embedding layer {self._layer!r}: only a Keras optimizer updates its table; for anything else call "
                f"layer.table.apply_gradients(gradient, learning_rate=..., step=...)"
            )
        checks.check_optimizer(self._layer, optimizer)
        if self._table.frozen:
            return
        self._table.apply_gradients(
            value,
            learning_rate=optimizer.learning_rate if self._follows_model() else None,
            step=tf.convert_to_tensor(optimizer.iterations, tf.int64),
        )

    def _follows_model(self) -> bool:
        options = self._table.optimizer
        return options is not None and options.learning_rate == "model"

    def _check_caller(self) -> None:
        optimizer = checks.calling_optimizer()
        if optimizer is not None:
            checks.check_optimizer(self._layer, optimizer)
