"""Runs items on two logical CPU devices, and says what crossed between them."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.finish import finish
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.sessions import asset_feeds
from graph_opt.testing import SIGNATURE
from tfctr.profiling.transfers import Count, count_transfers

SPARSE, DENSE = "CPU:0", "CPU:1"
OPTIONS = ConvertOptions(device_map={"sparse": "/CPU:0", "dense": "/CPU:1"})


class TwoDevices:
    """A session over a copy of an item with two CPU devices and default grappler. Use as a context manager.

    soft: operations on devices that do not exist run elsewhere.
    """

    def __init__(self, item: GraphItem, *, soft: bool = False) -> None:
        self._item = item.copy()
        finish(self._item)
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.import_graph_def(self._item.graph_def, name="")
        config = tf.compat.v1.ConfigProto(device_count={"CPU": 2}, intra_op_parallelism_threads=1)
        config.inter_op_parallelism_threads = 1
        config.allow_soft_placement = soft
        config.use_per_session_threads = True
        self._session = tf.compat.v1.Session(graph=self._graph, config=config)
        if self._item.init_op:
            self._session.run(self._graph.get_operation_by_name(self._item.init_op), asset_feeds(self._item))

    def run(
        self, feeds: Mapping[str, Any], signature: str = SIGNATURE
    ) -> tuple[dict[str, np.ndarray], tf.compat.v1.RunMetadata]:
        """Outputs by name, and the RunMetadata with partition graphs; ``feeds`` by input name."""
        info = self._item.signatures[signature]
        options = tf.compat.v1.RunOptions(
            trace_level=tf.compat.v1.RunOptions.FULL_TRACE, output_partition_graphs=True
        )  # fmt: skip
        metadata = tf.compat.v1.RunMetadata()
        fetches = {name: tensor.name for name, tensor in info.outputs.items()}
        values = self._session.run(
            fetches, {info.inputs[k].name: v for k, v in feeds.items()}, options=options, run_metadata=metadata
        )
        return values, metadata

    def __enter__(self) -> TwoDevices:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()


def crossed(metadata: tf.compat.v1.RunMetadata) -> tuple[Count, Count]:
    """What crossed to the dense device, and what came back."""
    found = count_transfers(metadata)
    assert set(found) <= {(SPARSE, DENSE), (DENSE, SPARSE)}
    return found.get((SPARSE, DENSE), Count()), found.get((DENSE, SPARSE), Count())


def devices_of(item: GraphItem) -> dict[str, str]:
    """Node -> "sparse", "dense" or the device it has."""
    names = {"/device:CPU:0": "sparse", "/device:CPU:1": "dense"}
    return {n.name: names.get(n.device, n.device) for n in item.graph_def.node}


def assert_same(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert set(got) == set(want)
    for name, value in want.items():
        assert got[name].dtype == value.dtype, name
        assert got[name].shape == value.shape, name
        if value.dtype == object:
            assert got[name].tolist() == value.tolist(), name
        else:
            assert got[name].tobytes() == value.tobytes(), name
