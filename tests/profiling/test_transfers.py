"""Counting transfers: tensors, strings, waits and bytes of small graphs on two logical CPU devices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tfctr.profiling.transfers import Count, count_transfers, transfers

FROM, TO = ("CPU:0", "CPU:1"), ("CPU:1", "CPU:0")
v1 = tf.compat.v1


def traced(build: Callable[[tf.Tensor], list[tf.Tensor]], rows: int = 3, parts: bool = True) -> config_pb2.RunMetadata:
    """RunMetadata of a graph over x float32 [B, 2]."""
    metadata = v1.RunMetadata()
    config = v1.ConfigProto(device_count={"CPU": 2})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        x = v1.placeholder(tf.float32, [None, 2], "x")
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=parts)
        session.run(build(x), {x: np.ones((rows, 2), np.float32)}, options, metadata)
    return metadata


def on(device: int, value: Callable[..., tf.Tensor], *inputs: tf.Tensor) -> tf.Tensor:
    with tf.device(f"/CPU:{device}"):
        return value(*inputs)


def test_tensors_and_bytes_of_each_direction() -> None:
    found = count_transfers(traced(lambda x: [on(1, tf.square, x), on(1, lambda v: tf.cast(v, tf.float64), x)]))
    assert found[FROM] == Count(transfers=1, bytes=3 * 2 * 4)  # one input, read twice
    assert found[TO] == Count(transfers=2, bytes=3 * 2 * 4 + 3 * 2 * 8)


def test_an_empty_batch_has_no_bytes() -> None:
    assert count_transfers(traced(lambda x: [on(1, tf.square, x)], rows=0))[FROM] == Count(transfers=1)


def test_strings_and_control_edges_are_apart() -> None:
    def build(x: tf.Tensor) -> list[tf.Tensor]:
        text = on(0, tf.strings.as_string, x)
        square = on(0, tf.square, x)
        with tf.control_dependencies([square]):
            return [on(1, tf.strings.length, text)]

    found = count_transfers(traced(build))
    assert found[FROM] == Count(strings=1, waits=1, unknown=1)
    waits = [t for t in transfers(traced(build)) if t.control]
    assert [(t.tensor, t.bytes) for t in waits] == [("Square:0", 0)]


def test_nothing_crosses_on_one_device() -> None:
    assert count_transfers(traced(lambda x: [tf.square(x)])) == {}


def test_a_run_without_partition_graphs_is_an_error() -> None:
    with pytest.raises(ValueError, match="output_partition_graphs=True"):
        transfers(traced(lambda x: [tf.square(x)], parts=False))
