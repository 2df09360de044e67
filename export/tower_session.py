"""A tower run by TensorFlow: the numbers every engine is judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

import numpy as np
import tensorflow as tf

from export.feeds import Sizes, open_sizes, random_feeds
from export.tower import Tower


def sizes_differ(tower: Tower) -> bool:
    """Whether inner sizes of different names may differ: two histories, each of a length of its own. Some models need
    equal lengths all the same, which only a run tells.
    """
    if len(open_sizes(tower)) < 2:
        return False
    with TowerSession(tower) as session:
        try:
            session.run(random_feeds(tower, Sizes(rows=3, distinct=True)))
        except (tf.errors.InvalidArgumentError, ValueError):
            return False
    return True


class TowerSession:
    """Runs one tower in a session of its own; close it, or use it in a ``with`` statement.

    threads: of the session, for operations and between them. optimise: let grappler rewrite the graph (as a model is
    served); False: run the nodes as they are. Not copied: the tower's graph. Thread-safe.
    """

    def __init__(self, tower: Tower, *, threads: int = 1, optimise: bool = True) -> None:
        self.tower = tower
        self._tensors = {one.name: one.tensor for one in (*tower.inputs, *tower.outputs)}
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(tower.graph_def, name="")
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
        if not optimise:
            config.graph_options.optimizer_options.opt_level = -1
            config.graph_options.rewrite_options.disable_meta_optimizer = True
        self._session = tf.compat.v1.Session(graph=graph, config=config)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name. feeds: arrays by input name, all of them."""
        return dict(zip(self.output_names, self.fetch(self._output_tensors, feeds), strict=True))

    def fetch(self, tensors: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Values of any tensors of the tower's graph ("node:0")."""
        return self._session.run(
            list(tensors), {one.tensor: np.asarray(feeds[one.name], one.dtype) for one in self.tower.inputs}
        )

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.tower.outputs)

    @property
    def _output_tensors(self) -> list[str]:
        return [one.tensor for one in self.tower.outputs]

    def close(self) -> None:
        """Frees the session; the object can't be used after it."""
        self._session.close()

    def __enter__(self) -> TowerSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
