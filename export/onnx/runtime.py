"""ONNX Runtime as the exporter uses it: fp32, explicit threads, none of them spinning, nothing printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx


class OnnxSession:
    """One model in ONNX Runtime. threads: of one operation; operations run one after another. Thread-safe."""

    def __init__(self, model: onnx.ModelProto, *, threads: int = 1) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 4
        # Spinning threads of one engine slow down all others of the process.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.input_names = tuple(one.name for one in self._session.get_inputs())
        self.output_names = tuple(one.name for one in self._session.get_outputs())

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs by name. feeds: arrays by input name."""
        return self.fetch(self.output_names, feeds)

    def fetch(self, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Some outputs by name."""
        return dict(zip(names, self._session.run(list(names), dict(feeds)), strict=True))
