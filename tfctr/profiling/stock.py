"""Stock TensorFlow as referee and baseline: the two fast ways in which Python runs a SavedModel, unchanged.

Both use default grappler and nothing of ours (a bundle also loads here: its ops are in the loaded library).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfctr.errors import UsageError

Arrays = Mapping[str, np.ndarray]


class StockSession:
    """``tf.compat.v1.Session`` with a callable made once: TensorFlow's own fastest way to run a graph from Python.

    Args:
      info: the signature's manifest entry; ``inputs`` and ``outputs`` name tensors.
      threads: intra-op and inter-op threads; None = TensorFlow's default.
    """

    def __init__(
        self, path: str, info: Mapping[str, Any], tags: Sequence[str] = ("serve",), threads: int | None = 1
    ) -> None:
        config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
        if threads is not None:
            config.intra_op_parallelism_threads = threads
            config.inter_op_parallelism_threads = threads
            config.use_per_session_threads = True
        self._graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=self._graph, config=config)
        with self._graph.as_default():
            tf.compat.v1.saved_model.load(self._session, list(tags), path)
        self._inputs = [entry["name"] for entry in info["inputs"]]
        self._outputs = [(part, tensor) for entry in info["outputs"] for part, tensor in _output_tensors(entry)]
        feeds = [self._graph.get_tensor_by_name(entry["tensor"]) for entry in info["inputs"]]
        fetches = [tensor for _, tensor in self._outputs]
        self._callable = self._session.make_callable(fetches, feed_list=feeds, accept_options=True)

    def predict(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Arrays by input name to arrays by output name (parts of composite outputs as ``name/part``)."""
        values = self._callable(*[inputs[name] for name in self._inputs])
        return {name: value for (name, _), value in zip(self._outputs, values, strict=True)}

    def op_times_us(self, inputs: Arrays) -> dict[str, float]:
        """Microseconds by node name of one traced call."""
        return op_times_us(self.run_traced(inputs))

    def run_traced(self, inputs: Arrays, graphs: bool = False) -> Any:
        """RunMetadata of one call: op times, and with ``graphs`` the partition graphs.

        By SOFTWARE_TRACE: FULL_TRACE takes the profiler of the whole process, so that a second one beside it fails.
        """
        options = tf.compat.v1.RunOptions(
            trace_level=tf.compat.v1.RunOptions.SOFTWARE_TRACE, output_partition_graphs=graphs
        )
        metadata = tf.compat.v1.RunMetadata()
        self._callable(*[inputs[name] for name in self._inputs], options=options, run_metadata=metadata)
        return metadata

    def close(self) -> None:
        self._session.close()


class StockFunction:
    """``tf.saved_model.load(path).signatures[signature]``: eager tensors in, eager tensors out, NumPy at both ends.

    Sparse parts are passed as the signature names them; thread numbers are the process's.
    """

    def __init__(self, path: str, info: Mapping[str, Any], signature: str, tags: Sequence[str] | None = None) -> None:
        self._model = tf.saved_model.load(path, tags=list(tags) if tags else None)
        if signature not in self._model.signatures:
            raise UsageError(f"{path}: no signature {signature!r}; it has {', '.join(self._model.signatures)}")
        self._function = self._model.signatures[signature]
        self._dtypes = {entry["name"]: entry["dtype"] for entry in info["inputs"]}
        known = set(self._function.structured_input_signature[1])
        if known != set(self._dtypes):
            raise UsageError(f"{path}: as a function the signature takes {sorted(known)}, not {sorted(self._dtypes)}")

    def predict(self, inputs: Arrays) -> dict[str, np.ndarray]:
        feeds = {name: tf.constant(inputs[name], dtype=dtype) for name, dtype in self._dtypes.items()}
        return {name: value.numpy() for name, value in self._function(**feeds).items()}


def op_times_us(metadata: Any) -> dict[str, float]:
    """Microseconds by node name of one traced run (RunMetadata, such as ``ServingSession.run_traced`` returns)."""
    times: dict[str, float] = {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            elapsed = node.op_end_rel_micros - node.op_start_rel_micros
            times[node.node_name] = times.get(node.node_name, 0.0) + float(elapsed)
    return times


def _output_tensors(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(flat output name, tensor) of one manifest output; composite outputs have one tensor per part."""
    if entry.get("parts"):
        return [(f"{entry['name']}/{part}", tensor) for part, tensor in entry["parts"].items()]
    return [(entry["name"], entry["tensor"])]
