"""Sessions over GraphItems: initialised, with their mutable state restored, optimisers off."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from graph_opt.item import GraphItem
from graph_opt.view import canonical


def session_config(threads: int = 1) -> config_pb2.ConfigProto:
    """A session with thread pools of its own and TensorFlow's default optimisers."""
    config = config_pb2.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    config.allow_soft_placement = True
    config.use_per_session_threads = True
    return config


def plain_config(threads: int = 1) -> config_pb2.ConfigProto:
    """A session that runs the graph as it is written: no grappler, no constant folding (recipes: proofs)."""
    config = session_config(threads)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    return config


def asset_feeds(item: GraphItem) -> dict[str, str]:
    """Asset tensor -> path of the file, for running the model's own initialisers."""
    folder = Path(item.source_path or ".") / "assets"
    return {
        canonical(a.tensor_info.name): str(item.asset_paths.get(a.filename, folder / a.filename)) for a in item.assets
    }


def what_happened(message: str) -> str:
    """The one line of a TensorFlow error that says what went wrong; the others say where in the graph."""
    lines = [line.strip() for line in message.splitlines()]
    where = ("Graph execution error", "Detected at", "Node:", "[[")
    return next((line for line in lines if line and not line.startswith(where)), message.strip())


class ItemSession:
    """A v1 Session over a GraphItem that has been given its initialiser (``finish.finish``). Use as a context manager.

    restore: checkpoint prefix with the mutable state, None where there is none. optimised: with default grappler.
    """

    def __init__(
        self, item: GraphItem, *, restore: str | None = None, threads: int = 1, optimised: bool = False
    ) -> None:
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.import_graph_def(item.graph_def, name="")
        self._session = tf.compat.v1.Session(
            graph=self._graph, config=session_config(threads) if optimised else plain_config(threads)
        )
        try:
            if restore is not None and item.restore_op:
                self._session.run(item.restore_op, {item.restore_filename: restore})
            if item.init_op:
                self._session.run(self._graph.get_operation_by_name(item.init_op), asset_feeds(item))
        except BaseException:
            self.close()
            raise

    def run(self, fetches: list[str], feeds: dict[str, Any]) -> list[Any]:
        """Values of ``fetches`` (tensor names); errors are TensorFlow's own."""
        return list(self._session.run(fetches, feeds))

    def op_times_us(self, names: Collection[str], feeds: dict[str, Any]) -> float:
        """Microseconds that the nodes ``names`` took in one run that computes them (step statistics)."""
        metadata = config_pb2.RunMetadata()
        operations = [self._graph.get_operation_by_name(name) for name in names]
        self._session.run(
            operations, feeds, config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE), metadata
        )
        stats = [n for device in metadata.step_stats.dev_stats for n in device.node_stats]
        return sum(n.op_end_rel_nanos - n.op_start_rel_nanos for n in stats if n.node_name in names) / 1e3

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> ItemSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
