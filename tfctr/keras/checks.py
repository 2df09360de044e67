"""What an embedding table can't do inside Keras, refused before anything of a step has happened (docs/decisions/0022).

Two places see all of it. A training call knows the model that was called and so the optimizer it was compiled with, the
strategy and whether XLA compiles the function: `check_call`. An optimizer asks each variable, as the first thing in
`apply`, whether a gradient overwrites it; Keras names the optimizer in its name scope then: `check_optimizer`. So a
custom loop over a model that was never compiled is checked too. Both run while a step is traced and cost nothing after
that.
"""

import inspect
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from tensorflow.python import pywrap_tfe
from tensorflow.python.ops import control_flow_util

from tfctr.errors import UsageError

_DEPTH_OF_BUILD = 12  # calls between an optimizer's build and a variable's value, with the inner optimizer's own build


def calling_optimizer() -> keras.optimizers.Optimizer | None:
    """The optimizer whose `apply` (or whose build inside it) runs now; None outside of one."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    for scope in reversed(scopes):
        if isinstance(scope.caller, keras.optimizers.Optimizer):
            return scope.caller
    return None


def building_loss_scaler() -> keras.optimizers.Optimizer | None:
    """The LossScaleOptimizer whose `build` runs now, called by a user: the one step of it that touches variables before
    it computes with their gradients, and Keras opens no name scope for it. So it is looked for among the callers.
    """
    frame = inspect.currentframe()
    for _ in range(_DEPTH_OF_BUILD):
        frame = frame.f_back if frame is not None else None
        if frame is not None and frame.f_code.co_name == "build":
            caller = frame.f_locals.get("self")
            if isinstance(caller, keras.optimizers.LossScaleOptimizer):
                return caller
    return None


def compiled_optimizer() -> keras.optimizers.Optimizer | None:
    """The optimizer that the model whose call runs now was compiled with, None where there is none."""
    model = _called_model()
    return model.optimizer if model is not None else None


def tape_records() -> bool:
    """Whether a gradient tape is recording a step. Keras may be building a model under it, which is none: it calls the
    layers for their shapes then, without saying whether that is training."""
    recording = not pywrap_tfe.TFE_Py_TapeSetIsEmpty() and not pywrap_tfe.TFE_Py_TapeSetIsStopped()
    return recording and not in_symbolic_scope()


def check_call(layer: str, training: bool) -> None:
    """Refuses a lookup that can't run, and a training one whose gradients could not be applied.

    Args:
      layer: its name, for the message.
      training: whether the lookup inserts and counts.

    Raises:
      UsageError: XLA compiles the function, there is more than one replica, or (training) the compiled optimizer does
        something that a table can't follow.
    """
    if not tf.executing_eagerly() and (_in_xla() or _asks_for_xla()):
        raise UsageError(
            f"{_layer(layer)}: XLA can't look up in a table that grows, so jit_compile=True does not work; compile the "
            f"model with jit_compile=False, and make a tf.function without jit_compile"
        )
    check_replicas(layer)
    if training and (optimizer := compiled_optimizer()) is not None:
        check_optimizer(layer, optimizer)


def check_replicas(layer: str) -> None:
    """Refuses a strategy with more than one replica (UsageError)."""
    strategy = tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync
    if replicas > 1:
        raise UsageError(
            f"{_layer(layer)}: {type(strategy).__name__} has {replicas} replicas, and a table lives once, so it "
            f"would take their gradients one by one; use one replica (one device), or parameter servers with a custom "
            f"loop (docs/keras.md, Several machines)"
        )


def check_optimizer(layer: str, optimizer: Any) -> None:
    """Refuses an optimizer that does more to gradients or variables than a table can follow.

    Raises:
      UsageError: names the layer, the optimizer, the option, and what to do instead.
    """
    who = f"{_layer(layer)}: {type(optimizer).__name__}"
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UsageError(
            f"{who} scales the loss, and so what reaches the table; model.compile(..., auto_scale_loss=False) keeps "
            f"Keras from wrapping the optimizer under mixed_float16 (mixed_bfloat16 needs no scaling)"
        )
    if optimizer.loss_scale_factor is not None:
        raise UsageError(
            f"{who}(loss_scale_factor={optimizer.loss_scale_factor:g}) scales the loss, and so what reaches the "
            f"table; leave loss_scale_factor out (mixed_bfloat16 needs no scaling)"
        )
    if optimizer.use_ema:
        raise UsageError(
            f"{who}(use_ema=True) averages variables of a fixed shape, and a table has none; leave use_ema out, and "
            f"keep averages of the dense variables in a callback of your own if you want them"
        )
    if optimizer.gradient_accumulation_steps:
        raise UsageError(
            f"{who}(gradient_accumulation_steps={optimizer.gradient_accumulation_steps}) adds gradients up in "
            f"variables of a fixed shape, and a table has none; leave it out, and use batches that many times as large"
        )


def _called_model() -> Any:
    """The compiled model whose call runs now, the outermost one; None where there is none."""
    context = global_state.get_global_attribute("current_call_ctx")
    entry = getattr(context, "entry_layer", None)
    return entry if isinstance(entry, keras.Model) and entry.compiled else None


def _in_xla() -> bool:
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def _asks_for_xla() -> bool:
    """Whether the model was compiled with jit_compile=True. Keras takes that back with a warning: the layer can't."""
    model = _called_model()
    told = getattr(model, "_compile_config", None)
    return told is not None and told.config.get("jit_compile") is True


def _layer(name: str) -> str:
    return f"embedding layer {name!r}"
