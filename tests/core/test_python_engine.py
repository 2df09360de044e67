"""Engines whose provider is written in Python, and the choice of a provider when a model is loaded."""

import gc
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from tests.core.dense_testing import EngineGraph, write_tower
from tfctr.core import library
from tfctr.engines import native
from tfctr.engines.node import engine_spec
from tfctr.engines.spec import EngineSpec
from tfctr.errors import TfctrError


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_tower(tmp_path_factory.mktemp("dense") / "small.onnx")


class FakeEngine:
    """A provider in Python: score = sum of x, hidden = rows. Knows memory by its address alone."""

    opened: list[dict] = []  # noqa: RUF012

    def __init__(self, spec):
        self.opened.append(spec)
        if spec["options"].get("refuse"):
            raise RuntimeError("no such device: 7")
        self.closed, self.runs = False, 0

    def run(self, inputs, outputs):
        x, scale = (self._array(one) for one in inputs[:2])
        if x[0, 0] == 1234:
            raise ValueError("illegal memory access")
        hidden, score = (self._array(one) for one in outputs)
        hidden[...] = x[:, :1]
        score[...] = x.sum(axis=1) * scale[0]
        self.runs += 1

    def describe(self):
        return {"version": "7", "runs": self.runs}

    def close(self):
        self.opened.append({"closed": True})

    @staticmethod
    def _array(one):
        import ctypes

        address, dtype, shape = one
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype).reshape(shape)


@pytest.fixture
def fake():
    # A class of the test's own: engines of earlier tests may be closed at any moment, by the garbage collector.
    kind = type("FakeEngine", (FakeEngine,), {"opened": []})
    native.register_engine_provider("fake", kind)
    return kind


def test_a_provider_in_python(small, fake):
    spec = small.spec(provider="fake", precision="any", options={"a": [1, {"b": "é"}]}, threads=2)
    feeds = small.feeds(5)
    with EngineGraph(spec).open() as graph:
        got = graph.run(feeds)
        np.testing.assert_allclose(got["score"], feeds["x"].sum(axis=1) * 1.5, rtol=1e-5)
        np.testing.assert_array_equal(got["hidden"], np.repeat(feeds["x"][:, :1], 8, axis=1))
        assert graph.run(small.feeds(0))["hidden"].shape == (0, 8)
        with native.open_engine(spec) as engine:
            described = engine.describe()
            assert described == {"version": "7", "runs": 1, "provider": "fake", "precision": "any", "threads": 2}
            assert engine.export() == {}
    del graph
    gc.collect()
    assert "fake" in native.engine_providers()
    opened, closed = fake.opened
    assert closed == {"closed": True}
    assert opened["options"] == {"a": [1, {"b": "é"}]} and opened["threads"] == 2 and opened["label"] == "small"
    assert opened["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": ["N", 24]},
        {"name": "scale", "dtype": "float32", "shape": [1]},
    ]
    fingerprint = native.blob_info(small.path)["fingerprint"]
    assert opened["files"] == [{"role": "onnx", "path": str(small.path), "fingerprint": fingerprint}]


def test_what_a_provider_in_python_raises(small, fake):
    with EngineGraph(small.spec(provider="fake", precision="x", options={"refuse": True})).open() as graph:
        for _ in range(2):  # tried again each time
            with pytest.raises(tf.errors.InternalError, match=r"engine 'small' \(fake\): .*no such device: 7"):
                graph.run(small.feeds(2))
    assert len(fake.opened) == 2
    with EngineGraph(small.spec(provider="fake", precision="x")).open() as graph:
        bad = small.feeds(2)
        bad["x"][0, 0] = 1234
        with pytest.raises(tf.errors.InternalError, match=r"\(fake\): ValueError: illegal memory access"):
            graph.run(bad)
        graph.run(small.feeds(2))
    with (
        native.open_engine(small.spec(provider="fake", precision="x")) as engine,
        pytest.raises(TfctrError, match="illegal memory access"),
    ):
        engine.run(bad)


def test_a_provider_in_python_from_many_threads(small, fake):
    with EngineGraph(small.spec(provider="fake", precision="t")).open() as graph:
        wrong = []

        def work(seed):
            try:
                for rows in range(1, 30):
                    feeds = small.feeds(rows, seed=seed)
                    got = graph.run(feeds)["score"]
                    np.testing.assert_allclose(got, feeds["x"].sum(axis=1) * 1.5, rtol=1e-4, atol=1e-5)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert wrong == []
    assert sum("closed" not in one for one in fake.opened) == 1


def test_a_model_is_loaded_with_another_provider(small, fake, tmp_path):
    """One graph, made for a provider that is not here, runs by the one that the load chooses."""
    made_for = small.spec(provider="tensorrt", precision="fp16", options={"profile": 1})
    _save(made_for, tmp_path / "model")
    module = library.native()

    def engines(**choice):
        found = module.Model(str(tmp_path / "model"), ["serve"], 1, b"", {}, choice).engines()
        for one in found:
            node = node_def_pb2.NodeDef.FromString(one.pop("node_def"))
            assert engine_spec(node, {0: small.path}).provider == one["provider"]
        return found

    own = {"node": "engine", "label": "small", "provider": "tensorrt", "precision": "fp16", "threads": 1}
    assert engines() == [own]
    chosen = {"provider": "openvino", "precision": "fp32", "threads": 2}
    assert engines(**chosen) == [own | chosen]
    with pytest.raises(ValueError, match="'speed' is none of provider, precision, options, threads"):
        engines(speed=3)
    feeds = small.feeds(4)
    assert _predict(tmp_path / "model", {"provider": "fake", "precision": "p"}, feeds).shape == (4,)
    assert fake.opened[0]["options"] == {} and fake.opened[0]["precision"] == "p"
    options = json.dumps({"buckets": [4], "warm": [1]})
    got = _predict(tmp_path / "model", {"provider": "openvino", "precision": "fp32", "options": options}, feeds)
    np.testing.assert_allclose(got, small.expected(feeds)["score"], rtol=1e-5, atol=1e-5)


def _save(spec: EngineSpec, folder: Path) -> None:
    with EngineGraph(spec, "saved") as graph, graph.graph.as_default():
        v1 = tf.compat.v1.saved_model
        inputs = {
            one.name: v1.build_tensor_info(graph.graph.get_tensor_by_name(f"in_{one.name}:0")) for one in spec.inputs
        }
        outputs = {"score": v1.build_tensor_info(graph.graph.get_tensor_by_name("engine:1"))}
        builder = v1.Builder(str(folder))
        signature = v1.build_signature_def(inputs, outputs, "predict")
        opened = graph.graph.get_operations()[-1]
        builder.add_meta_graph_and_variables(graph.session, ["serve"], {"s": signature}, main_op=opened)
        builder.save()


def _predict(folder: Path, engine: dict, feeds: dict) -> np.ndarray:
    model = library.native().Model(str(folder), ["serve"], 1, b"", {}, engine)
    assert model.engines()[0]["provider"] == engine["provider"]
    described = {
        "context": "small",
        "parts": [
            {
                "name": name,
                "tensor": f"in_{name}:0",
                "dtype": tf.as_dtype(array.dtype).as_datatype_enum,
                "numpy": array.dtype,
                "shape": None,
            }
            for name, array in feeds.items()
        ],
        "features": [],
        "outputs": [{"name": "score", "tensor": "engine:1", "numpy": np.dtype("float32")}],
        "packed": None,
    }
    return library.native().Predictor(model, described).predict(feeds)["score"]
