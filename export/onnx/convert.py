"""The call of tf2onnx: opset 18, our handlers, nothing printed."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from export.onnx.handlers import HANDLERS
from export.reasons import CannotExport
from export.tower import Tower

OPSET = 18

# tf2onnx keeps functions, tables and counters of names in module variables.
_ONE_AT_A_TIME = threading.Lock()


def convert(tower: Tower, handlers: Mapping[str, tuple[Any, list[Any]]] | None = None) -> onnx.ModelProto:
    """The tower as tf2onnx translates it, not yet repaired or checked: unknown ops may be in it.

    handlers: instead of ``HANDLERS`` (tests show what happens without them). Raises CannotExport where tf2onnx fails.
    """
    import tf2onnx

    with _ONE_AT_A_TIME, quiet() as said:
        try:
            model, external = tf2onnx.convert.from_graph_def(
                tower.graph_def,
                input_names=[one.tensor for one in tower.inputs],
                output_names=[one.tensor for one in tower.outputs],
                opset=OPSET,
                custom_op_handlers=dict(HANDLERS if handlers is None else handlers),
            )
        except Exception as error:  # tf2onnx raises whatever its handlers raise
            raise CannotExport(f"tf2onnx can't translate it: {_one_line(error)}") from error
    failed = [line for line in said if line.startswith("Failed to convert")]
    if failed:
        raise CannotExport(f"tf2onnx can't translate it: {failed[0].splitlines()[0]}")
    if external:
        raise CannotExport("its weights are too large for one ONNX file (2 GiB)")
    return model


@contextlib.contextmanager
def quiet() -> Iterator[list[str]]:
    """Keeps tf2onnx and TensorFlow from printing; yields the list of what tf2onnx logs as errors."""
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    theirs, tensorflow = logging.getLogger("tf2onnx"), logging.getLogger("tensorflow")
    keep, before = Keep(logging.ERROR), (theirs.level, theirs.propagate, tensorflow.level)
    theirs.addHandler(keep)
    theirs.setLevel(logging.ERROR)
    theirs.propagate = False
    tensorflow.setLevel(logging.ERROR)
    try:
        yield said
    finally:
        theirs.removeHandler(keep)
        theirs.setLevel(before[0])
        theirs.propagate = before[1]
        tensorflow.setLevel(before[2])


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
