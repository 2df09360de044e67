"""A session for a few runs: without the Python objects that `tf.import_graph_def` makes of every node, which take
longer than anything else of a small run over a large graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import c_api_util, importer

from graph_opt.item import GraphItem
from graph_opt.sessions import asset_feeds, plain_config, session_config
from graph_opt.verify import output_dtypes
from graph_opt.view import canonical, node_of, port_of


class LightSession:
    """As ``ItemSession``, for graphs that are run by name. Use as a context manager."""

    def __init__(self, item: GraphItem, *, restore: str | None = None, optimised: bool = False) -> None:
        graph = tf.Graph()
        _import(graph, item.graph_def)
        self._nodes = {node.name: node for node in item.graph_def.node}
        self._session = tf.compat.v1.Session(graph=graph, config=session_config() if optimised else plain_config())
        self._calls: dict[tuple[tuple[str, ...], ...], Any] = {}
        try:
            if restore is not None and item.restore_op:
                self._call([], {item.restore_filename: restore}, [item.restore_op])
            if item.init_op:
                self._call([], asset_feeds(item), [item.init_op])
        except BaseException:
            self.close()
            raise

    def run(self, fetches: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
        """Values of ``fetches`` (tensor names); errors are TensorFlow's own."""
        given = {canonical(name): value for name, value in feeds.items()}
        wanted = [name for name in dict.fromkeys(map(canonical, fetches)) if name not in given]
        found = dict(zip(wanted, self._call(wanted, given, []), strict=True)) if wanted else {}
        return [found[name] if name in found else np.asarray(given[name]) for name in map(canonical, fetches)]

    def _call(self, fetches: Sequence[str], feeds: Mapping[str, Any], targets: Sequence[str]) -> Any:
        key = (tuple(fetches), tuple(feeds), tuple(targets))
        if key not in self._calls:
            options = config_pb2.CallableOptions(feed=list(feeds), fetch=fetches, target=targets)
            self._calls[key] = self._session._make_callable_from_options(options)
        return self._calls[key](*(self._array(name, value) for name, value in feeds.items()))

    def _array(self, tensor: str, value: Any) -> Any:
        dtype = tf.as_dtype(output_dtypes(self._nodes[node_of(tensor)])[port_of(tensor)])
        return np.asarray(value, dtype.as_numpy_dtype)

    def close(self) -> None:
        self._calls.clear()
        self._session.close()

    def __enter__(self) -> LightSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _import(graph: tf.Graph, graph_def: graph_pb2.GraphDef) -> None:
    """What ``tf.import_graph_def`` does below its Python objects."""
    scoped = c_api_util.ScopedTFImportGraphDefOptions()
    importer._PopulateTFImportGraphDefOptions(scoped.options, "", {}, [], False, False)
    data = pywrap_tf_session.TF_NewBufferFromString(graph_def.SerializeToString())
    try:
        with graph._c_graph.get() as c_graph:
            made = pywrap_tf_session.TF_GraphImportGraphDefWithResults(c_graph, data, scoped.options)
        c_api_util.ScopedTFImportGraphDefResults(made)
    finally:
        pywrap_tf_session.TF_DeleteBuffer(data)
