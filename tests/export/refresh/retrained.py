"""Models as they come an hour later: another checkpoint under the same graph."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

Change = Callable[[str, np.ndarray], np.ndarray]


def moved(seed: int = 7) -> Change:
    """Every floating variable moves by a little everywhere: rows, biases, all."""
    rng = np.random.default_rng(seed)

    def change(name: str, value: np.ndarray) -> np.ndarray:
        if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
            return value
        scale = 0.3 * float(np.std(value.astype(np.float64))) + 0.01
        return (value.astype(np.float64) + rng.normal(0, scale, value.shape)).astype(value.dtype)

    return change


def retrain(model: Path | str, folder: Path | str, change: Change | None = None) -> Path:
    """A copy of the SavedModel ``model`` at ``folder`` with other variables, as a training that went on would save it.

    change: (checkpoint key, value) -> new value of each variable; the same value leaves it.
    """
    folder = Path(folder)
    shutil.copytree(model, folder)
    prefix = folder / "variables" / "variables"
    if prefix.with_suffix(".index").exists():
        write_checkpoint(prefix, change or moved())
    return folder


def write_checkpoint(prefix: Path, change: Change) -> None:
    reader = tf.train.load_checkpoint(str(prefix))
    keys = sorted(reader.get_variable_to_shape_map())
    names, slices, tensors = [], [], []
    for key in keys:
        value = reader.get_tensor(key)
        if isinstance(value, np.ndarray) and value.dtype != object:
            value = change(key, value)
        names.append(key)
        slices.append("")
        tensors.append(value)
    with tf.init_scope():
        constants: list[Any] = [tf.constant(t) for t in tensors]
        for old in prefix.parent.iterdir():
            old.unlink()
        tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=slices, tensors=constants)
