"""A TensorRT without a GPU: what tfctr uses of the Python modules ``tensorrt`` and ``tensorrt_rtx``, over a FakeDriver.

A plan is JSON: what it takes, its profiles, its weights; it computes ``relu(x @ w + b)`` for every row of ``x``, plus
``shift`` (one number for all rows) where it has such an input. One with an ``onnx`` model (tests.engines.fake_builder)
computes that. The flags of a plan make it fail as the real thing does.
"""

from __future__ import annotations

import base64
import ctypes
import enum
import importlib.machinery
import json
import types
from typing import Any

import numpy as np


class DataType(enum.Enum):
    FLOAT = "float32"
    HALF = "float16"
    INT64 = "int64"
    BOOL = "bool"
    BF16 = "none"


class TensorIOMode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


class EngineInvalidityDiagnostics(enum.IntFlag):
    VERSION_MISMATCH, UNSUPPORTED_CC, MALFORMED_ENGINE = 1, 2, 32


class Strategy(enum.Enum):
    LAZY, EAGER, NONE = range(3)


def make_plan(rng: np.random.Generator, width: int = 3, **more: Any) -> bytes:
    """A plan for rows of ``width`` numbers. more: replaces keys of the JSON."""
    plan = {
        "version": "1.7.1.116",
        "inputs": {"x": ["FLOAT", [-1, width]]},
        "outputs": {"y": ["FLOAT", [-1, 2]]},
        "profiles": [{"x": [[1, width], [8, width], [64, width]]}],
        "weights": {
            "w": rng.normal(size=(width, 2)).astype(np.float32).tolist(),
            "b": rng.normal(size=2).astype(np.float32).tolist(),
        },
    }
    return json.dumps({**plan, **more}).encode()


def expected(plan: bytes, x: np.ndarray, shift: float = 0.0) -> np.ndarray:
    """What a plan computes."""
    weights = json.loads(plan)["weights"]
    return _compute(x, weights, shift)


def _compute(x, weights, shift):
    bias = np.float32(weights["b"]) if "b" in weights else np.float32(0)
    return np.maximum(x @ np.float32(weights["w"]) + bias + np.float32(shift), 0).astype(np.float32)


def fake_tensorrt(driver: Any, name: str = "tensorrt_rtx", version: str = "1.7.1.116") -> Any:
    """A module. ``calls`` of it lists what was called; ``contexts`` the contexts made."""
    trt = types.ModuleType(name)
    trt.__spec__ = importlib.machinery.ModuleSpec(name, None)  # as one that is installed
    trt.__version__ = version
    trt.calls, trt.contexts = [], []
    trt.driver = driver

    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING, INFO = range(4)

        def __init__(self):
            pass

    trt.ILogger = ILogger
    trt.DataType, trt.TensorIOMode = DataType, TensorIOMode
    trt.nptype = _nptype
    trt.Runtime = lambda log: _Runtime(trt, log)
    trt.Refitter = lambda engine, log: _Refitter(trt, engine, log)
    trt.Weights = lambda array: array
    if name == "tensorrt_rtx":
        trt.EngineInvalidityDiagnostics = EngineInvalidityDiagnostics
        trt.DynamicShapesKernelSpecializationStrategy = Strategy
    return trt


def _nptype(dtype):
    if dtype is DataType.BF16:
        raise TypeError("Could not resolve TensorRT datatype to an equivalent numpy datatype.")
    return np.dtype(dtype.value).type


class _Runtime:
    def __init__(self, trt, log):
        self.trt, self.log = trt, log
        if trt.__name__ == "tensorrt_rtx":
            self.get_engine_validity = self._validity

    def deserialize_cuda_engine(self, data):
        self.trt.calls.append(("deserialise",))
        try:
            plan = json.loads(data)
        except ValueError:
            self.log.log(self.log.ERROR, "Serialized engine has an unexpected magic tag")
            return None
        if plan["version"] != self.trt.__version__:
            self.log.log(
                self.log.ERROR,
                "The engine plan file is not compatible with this version of TensorRT, expecting library version "
                f"{self.trt.__version__} got {plan['version']}, please rebuild.",
            )
            return None
        if plan.get("fails") == "deserialise":
            self.log.log(self.log.ERROR, "cudaError 2: out of memory")
            return None
        return _Engine(self.trt, plan, self.log)

    def _validity(self, data):
        try:
            same = json.loads(data)["version"] == self.trt.__version__
        except ValueError:
            return "INVALID", EngineInvalidityDiagnostics.MALFORMED_ENGINE
        return "INVALID", EngineInvalidityDiagnostics(0 if same else 1)


class _Engine:
    def __init__(self, trt, plan, log):
        self.trt, self.plan, self.log = trt, plan, log
        self._session = None
        self.tensors = {**plan["inputs"], **plan["outputs"]}
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = len(plan["profiles"])
        self.refittable = bool(plan.get("refittable"))

    def session(self):
        """Runs the plan's ONNX model."""
        if self._session is None:
            import onnx
            import onnxruntime

            model = onnx.load_from_string(base64.b64decode(self.plan["onnx"]))
            for one in model.graph.initializer:
                if one.name in self.plan["weights"]:
                    like = onnx.numpy_helper.to_array(one)
                    new = np.array(self.plan["weights"][one.name], like.dtype).reshape(like.shape)
                    one.CopyFrom(onnx.numpy_helper.from_array(new, one.name))
            data = model.SerializeToString()
            self._session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        return self._session

    def forget_session(self):
        """The weights are others now."""
        self._session = None

    def get_tensor_name(self, number):
        return list(self.tensors)[number]

    def get_tensor_mode(self, name):
        return TensorIOMode.INPUT if name in self.plan["inputs"] else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name):
        return DataType[self.tensors[name][0]]

    def get_tensor_shape(self, name):
        return self.tensors[name][1]

    def get_tensor_profile_shape(self, name, number):
        return self.plan["profiles"][number][name]

    def create_runtime_config(self):
        return types.SimpleNamespace()

    def create_execution_context(self, config=None):
        assert (config is None) == (self.trt.__name__ == "tensorrt")
        assert config is None or config.dynamic_shapes_kernel_specialization_strategy is Strategy.EAGER
        if self.plan.get("fails") == "context":
            self.log.log(self.log.ERROR, "Requested amount of GPU memory could not be allocated")
            return None
        context = _Context(self)
        self.trt.contexts.append(context)
        return context

    def serialize(self):
        return json.dumps(self.plan).encode()


class _Context:
    def __init__(self, engine):
        self.engine, self.trt, self.plan = engine, engine.trt, engine.plan
        self.shapes, self.addresses, self.streams = {}, {}, set()
        self.profile = None
        if self.trt.__name__ == "tensorrt_rtx":
            self.is_stream_capturable = lambda stream: not self.plan.get("not_capturable")

    def set_optimization_profile_async(self, number, stream):
        self.profile = number
        self.streams.add(stream)
        return True

    def set_input_shape(self, name, shape):
        assert not self.streams & set(self.trt.driver.capturing), "a shape set while the context is recorded"
        low, _, high = self.plan["profiles"][self.profile][name]
        fits = all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))
        if not fits:
            self.engine.log.log(self.engine.log.ERROR, f"Set dimension {shape} for tensor {name} does not satisfy")
        self.shapes[name] = tuple(shape)
        return fits

    def infer_shapes(self):
        return [name for name in self.plan["inputs"] if name not in self.shapes]

    def get_tensor_shape(self, name):
        if name in self.shapes:
            return self.shapes[name]
        rows = max(shape[0] for shape in self.shapes.values() if shape)
        return tuple(rows if size == -1 else size for size in self.plan["outputs"][name][1])

    def set_tensor_address(self, name, address):
        assert address % 256 == 0
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream):
        self.trt.calls.append(("execute", stream))
        self.streams.add(stream)
        if self.plan.get("fails") == "execute" or (self.plan.get("fails") == "capture" and self.trt.driver.capturing):
            self.engine.log.log(self.engine.log.ERROR, "IExecutionContext::enqueueV3: Error Code 1: Cuda Runtime")
            return False
        assert set(self.addresses) == set(self.engine.tensors)
        self.trt.driver.enqueue(stream, ("kernels", stream), self._kernels)
        return True

    def _kernels(self):
        if "onnx" in self.plan:
            results = self.engine.session().run(None, {name: self._array(name) for name in self.plan["inputs"]})
            for name, value in zip(self.plan["outputs"], results, strict=True):
                self._array(name)[...] = value
            return
        shift = float(self._array("shift")) if "shift" in self.plan["inputs"] else 0.0
        self._array("y")[...] = _compute(self._array("x"), self.plan["weights"], shift)

    def _array(self, name):
        shape, dtype = self.get_tensor_shape(name), np.dtype(self.engine.get_tensor_dtype(name).value)
        size = int(np.prod(shape)) * dtype.itemsize
        memory = (ctypes.c_char * size).from_address(self.addresses[name])
        return np.frombuffer(memory, dtype).reshape(shape)


class _Refitter:
    """loses: weights that a refit quietly drops, as releases of the real thing have."""

    def __init__(self, trt, engine, log):
        assert engine.refittable
        self.trt, self.engine, self.log, self.given = trt, engine, log, {}

    def get_all_weights(self):
        return list(self.engine.plan["weights"])

    def get_weights_prototype(self, name):
        known = self.engine.plan["weights"].get(name)
        size = -1 if known is None else int(np.size(known))
        return types.SimpleNamespace(dtype=DataType.FLOAT, size=size)

    def set_named_weights(self, name, weights):
        fits = name in self.engine.plan["weights"] and weights.size == np.size(self.engine.plan["weights"][name])
        if fits:
            self.given[name] = weights
        return fits

    def get_missing_weights(self):
        return [name for name in self.engine.plan.get("together", ()) if name not in self.given]

    def refit_cuda_engine(self):
        self.trt.calls.append(("refit", sorted(self.given)))
        if self.engine.plan.get("fails") == "refit":
            self.log.log(self.log.ERROR, "Error Code 1: Myelin (CUDA error 400)")
            return False
        weights = self.engine.plan["weights"]
        for name, value in self.given.items():
            shape = np.shape(weights[name])
            weights[name] = value.reshape(shape).tolist()
        for name in self.engine.plan.get("loses", ()):
            weights.pop(name)
        self.engine.forget_session()
        return True
