"""The building half of a TensorRT without a GPU: plans hold their ONNX model, which ONNX Runtime runs.

``tests.engines.fake_tensorrt`` is the other half; together a tower goes from conversion to requests.
"""

from __future__ import annotations

import base64
import json
import types
from typing import Any

import onnx

from tests.engines.fake_tensorrt import fake_tensorrt

_TYPES = {onnx.TensorProto.FLOAT: "FLOAT", onnx.TensorProto.INT64: "INT64", onnx.TensorProto.BOOL: "BOOL"}


def fake_library(driver: Any, version: str = "1.7.1.116") -> Any:
    """A module that builds and runs."""
    trt = fake_tensorrt(driver, "tensorrt_rtx", version)
    trt.ComputeCapability = types.SimpleNamespace(__members__={"SM89": 89, "SM86": 86}, SM89=89, SM86=86)
    trt.NetworkDefinitionCreationFlag = types.SimpleNamespace()
    trt.BuilderFlag = types.SimpleNamespace(REFIT="refit")
    trt.OnnxParser = lambda network, log: types.SimpleNamespace(parse=lambda data: _parse(network, data))
    trt.Builder = lambda log: _Builder(version)
    return trt


def _parse(network, data):
    network.model = onnx.load_from_string(data)
    return True


class _Config:
    def __init__(self):
        self.profiles = []

        self.refittable = False

    def set_compute_capability(self, target, index):
        self.target = target

    def set_flag(self, flag):
        self.refittable = flag == "refit"

    def add_optimization_profile(self, profile):
        self.profiles.append(profile.shapes)
        return len(self.profiles) - 1


class _Profile:
    def __init__(self):
        self.shapes = {}

    def set_shape(self, name, least, best, most):
        self.shapes[name] = [least, best, most]


class _Builder:
    def __init__(self, version):
        self.version = version

    def create_network(self, flags):
        return types.SimpleNamespace()

    def create_builder_config(self):
        return _Config()

    def create_optimization_profile(self):
        return _Profile()

    def build_serialized_network(self, network, config):
        graph = network.model.graph
        fixed = {t.name for t in graph.initializer}
        inputs = {value.name: _tensor(value) for value in graph.input if value.name not in fixed}
        profiles = [{**{name: [t[1]] * 3 for name, t in inputs.items()}, **given} for given in config.profiles]
        plan = {
            "version": self.version,
            "inputs": inputs,
            "outputs": {value.name: _tensor(value) for value in graph.output},
            "profiles": profiles,
            "refittable": config.refittable,
            "weights": _weights(graph),
            "onnx": base64.b64encode(network.model.SerializeToString()).decode(),
        }
        return json.dumps(plan).encode()


def _weights(graph):
    """Kernels and biases, flat, by name; shapes and axes are not exchanged."""
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    return {name: a.reshape(-1).tolist() for name, a in arrays.items() if a.dtype.kind == "f" and a.ndim}


def _tensor(value):
    tensor = value.type.tensor_type
    return [_TYPES[tensor.elem_type], [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]]
