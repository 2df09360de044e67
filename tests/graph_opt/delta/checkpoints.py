"""Checkpoints written tensor by tensor, as training writes them: embedding variables in any slices, any last steps."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

State = dict[int, np.ndarray]  # key -> row
DIM = 5
TABLE = "model/users"


def description(step: int = 0, default: float = 0.0, dim: int = DIM) -> str:
    """What NAME/config says, of a table of ``dim`` numbers."""
    return json.dumps({**_config(dim, default), "step": str(step)})


_CONFIGS: dict[tuple[int, float], dict] = {}


def _config(dim: int, default: float) -> dict:
    """Of a real table, read from a real checkpoint."""
    import tempfile

    import tfctr

    if (dim, default) not in _CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            table = tfctr.EmbeddingVariable(dim, "users", default_value=default, optimizer=tfctr.optimizers.SGD(0.1))
            prefix = tf.train.Checkpoint(users=table).write(f"{folder}/ckpt")
            text = tf.train.load_checkpoint(prefix).get_tensor("users/config")
        _CONFIGS[dim, default] = json.loads(text)
    return _CONFIGS[dim, default]


def write(
    prefix: Path,
    state: State,
    *,
    step: int = 0,
    last_steps: Mapping[int, int] | None = None,
    cuts: int = 1,
    seed: int = 0,
    default: float = 0.0,
    dim: int = DIM,
    others: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A checkpoint whose table has the rows of ``state`` in a random order, in ``cuts`` slices."""
    keys = np.array(sorted(state), np.int64)
    np.random.default_rng(seed).shuffle(keys)
    rows = np.array([state[int(k)] for k in keys], np.float32).reshape(len(keys), dim)
    columns: dict[str, np.ndarray] = {"keys": keys, "values": rows}
    if last_steps is not None:
        columns["last_step"] = np.array([last_steps[int(k)] for k in keys], np.int64)
    names, slices, tensors = [], [], []
    bounds = np.unique(np.linspace(0, len(keys), cuts + 1).astype(int)) if len(keys) else np.array([0, 0])
    for name, column in columns.items():
        for start, end in itertools.pairwise(bounds):
            names.append(f"{TABLE}/{name}")
            whole = len(bounds) == 2
            sizes = " ".join(map(str, column.shape))
            rest = ":-" if column.ndim == 2 else ""
            slices.append("" if whole else f"{sizes} {start},{end - start}{rest}")
            tensors.append(tf.constant(column[start:end]))
    names.append(f"{TABLE}/config")
    slices.append("")
    tensors.append(tf.constant(description(step, default, dim)))
    for name, value in (others or {}).items():
        names.append(name)
        slices.append("")
        tensors.append(tf.constant(value))
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=slices, tensors=tensors)
    return prefix
