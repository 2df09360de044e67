"""Plans on a GPU, with a provider of our own in TensorRT's place: nothing here runs on one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from export.dense import on_gpu, tensorrt
from export.onnx.runtime import OnnxSession
from tests.export.dense.conftest import Convert
from tests.export.dense.test_conversion import dense
from tfctr.engines import native, providers
from tfctr.errors import TfctrError

OFF = {"by": 0.0}


class _Stand:
    """Runs the fp32 model of a spec in ONNX Runtime; its outputs are off by ``OFF``."""

    def __init__(self, spec: dict[str, Any]) -> None:
        path = next(file["path"] for file in spec["files"] if file["role"] == "onnx")
        self._session = OnnxSession(onnx.load(path))
        self._inputs = [one["name"] for one in spec["inputs"]]
        self._outputs = [one["name"] for one in spec["outputs"]]

    def run(self, inputs: list[Any], outputs: list[Any]) -> None:
        arrays = {name: _array(*one) for name, one in zip(self._inputs, inputs, strict=True)}
        found = self._session.run(arrays)
        for name, one in zip(self._outputs, outputs, strict=True):
            _array(*one)[...] = found[name] + np.float32(OFF["by"])

    def describe(self) -> dict[str, Any]:
        return {"version": "1"}


def _array(address: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * count).from_address(address), dtype).reshape(shape)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def why_not(provider: str, entry: Any = None) -> str:
        return "" if provider == "tensorrt" else "not here"

    monkeypatch.setattr(tensorrt, "why_not", why_not)
    monkeypatch.setattr("export.dense.choose.why_not", why_not)
    monkeypatch.setattr(on_gpu.providers, "load", lambda provider: native.register_engine_provider(provider, _Stand))
    monkeypatch.setattr(on_gpu, "ROUNDS", 3)
    monkeypatch.setitem(OFF, "by", 0.0)
    yield
    native.register_engine_provider("tensorrt", _refuse)


def _refuse(_: dict[str, Any]) -> Any:
    raise RuntimeError("the stand-in is gone")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("ratio", [3.0, 0.5])
def test_auto_measures_the_plan(ranker: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    monkeypatch.setattr(on_gpu, "_in_turn", lambda *_: (1.0, ratio))
    monkeypatch.setattr(providers, "why_not", lambda provider, entry=None: "" if provider == "tensorrt" else "not here")
    more = {"signatures": ("serving_default",)}
    entry = dense(convert(ranker, dense="auto", targets=("sm89",), more=more))
    told = f"TensorRT is {ratio:.2f}x as fast as TensorFlow on this machine's CPU"
    assert (entry["provider"] == "tensorrt") == (ratio > 1) and told in entry["reason"]
    assert [row["engine_ms"] for row in entry["versus_tensorflow"]["rows"]] == [1.0] * 3
    assert entry["steps"][-1]["what"] == "on the GPU of this machine" and entry["steps"][-1]["gate"]["passed"]


@pytest.mark.usefixtures("gpu")
def test_numbers_of_the_gpu_that_are_off(ranker: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OFF, "by", 0.5)
    entry = dense(convert(ranker, dense="tensorrt", targets=("sm89",), more={"signatures": ("serving_default",)}))
    assert entry["form"] is None
    assert (
        "tensorrt: on this GPU its numbers do not pass the accuracy gate, which failed on 1024 rows" in entry["reason"]
    )


def test_a_plan_that_does_not_open(ranker: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(provider: str) -> None:
        raise TfctrError("no such device")

    monkeypatch.setattr(tensorrt, "why_not", lambda provider, entry=None: "")
    monkeypatch.setattr(on_gpu.providers, "load", fails)
    entry = dense(convert(ranker, dense="tensorrt", targets=("sm89",), more={"signatures": ("serving_default",)}))
    assert entry["form"] is None and entry["reason"] == "tensorrt: on this GPU: no such device"


def test_calls_take_turns() -> None:
    calls: list[int] = []
    one, two = on_gpu._in_turn(lambda: calls.append(1), lambda: calls.append(2))
    assert one >= 0 and two >= 0
    assert calls == [1, 2] * (on_gpu.ROUNDS + on_gpu.WARM_UP)
