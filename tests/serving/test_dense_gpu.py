"""Sessions over a bundle for a GPU: without one, with one made of fakes, with another one; and the command line."""

from __future__ import annotations

import json
import logging

import pytest

import tfctr
from tests.serving import dense_bundles as bundles
from tests.serving.dense_bundles import request, same
from tfctr.cli.main import main
from tfctr.engines import tensorrt_cuda
from tfctr.errors import UsageError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bundles.save(tmp_path_factory.mktemp("dense_gpu") / "model")


@pytest.fixture(scope="module")
def gpu_bundle(model):
    """TensorRT, fp16, a plan for sm89; OpenVINO as its fallback."""
    return bundles.convert_for_gpu(model, model.parent / "tensorrt")


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU (fakes)."""
    yield bundles.with_gpu(monkeypatch)
    tensorrt_cuda.driver.cache_clear()
    tensorrt_cuda.gpu.cache_clear()


@pytest.fixture
def said(caplog):
    """Warnings of tfctr so far."""
    caplog.set_level(logging.WARNING, "tfctr")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "tfctr"]


@pytest.fixture(scope="module")
def reference(gpu_bundle):
    """The same bundle with its tower on TensorFlow."""
    with tfctr.ServingSession(gpu_bundle, engine="tensorflow") as session:
        yield session


def test_a_gpu_bundle_without_a_gpu_runs_its_fallback(gpu_bundle, reference, said):
    with tfctr.ServingSession(gpu_bundle) as session:
        for users in (None, 1):
            same(session.predict(request(9, users)), reference.predict(request(9, users)))
        dense = session.describe()["dense"]
    assert (dense["asked"], dense["running"], dense["precision"]) == ("tensorrt", "openvino", "fp32")
    assert dense["fallback"]
    assert dense["calls"] == 2
    (line,) = said()
    assert "runs on openvino fp32 instead of tensorrt fp16: tensorrt: " in line
    for refused in ({"fallback": False}, {"engine": "tensorrt"}):
        with pytest.raises(UsageError, match="there is: tensorrt fp16 for sm89; openvino fp32; tensorflow"):
            tfctr.ServingSession(gpu_bundle, **refused)


def test_with_neither_a_gpu_nor_openvino_both_reasons_are_told(gpu_bundle, reference, monkeypatch, said):
    bundles.without_package(monkeypatch, "openvino")
    with tfctr.ServingSession(gpu_bundle) as session:
        same(session.predict(request(9)), reference.predict(request(9)), atol=0)
        reason = session.describe()["dense"]["reason"]
    assert "tensorrt: " in reason
    assert "openvino: the package openvino is not installed" in reason
    assert len(said()) == 1


def test_a_gpu_bundle_can_be_asked_for_openvino(gpu_bundle, gpu):
    with tfctr.ServingSession(gpu_bundle, engine="openvino", fallback=False) as session:
        dense = session.describe()["dense"]
        assert (dense["asked"], dense["running"], dense["fallback"]) == ("openvino", "openvino", False)


def test_a_gpu_bundle_on_a_gpu(gpu_bundle, gpu, reference, said):
    with tfctr.ServingSession(gpu_bundle, fallback=False) as session:
        for rows, users in ((1, None), (9, 1), (40, None), (40, None), (2000, None)):
            same(session.predict(request(rows, users)), reference.predict(request(rows, users)), atol=5e-3)
        dense = session.describe()["dense"]
    assert (dense["asked"], dense["running"], dense["precision"]) == ("tensorrt", "tensorrt", "fp16")
    assert not dense["fallback"]
    assert dense["calls"] == 5
    assert [engine["target"] for engine in dense["engines"]] == ["sm89", "sm89"]
    assert sum(engine["split"] for engine in dense["engines"]) == 1  # 2000 rows, the plan takes 1024
    assert said() == []
    assert gpu.driver.live() == {"memory": 0, "streams": 0, "graphs": 0}


def test_requests_go_up_and_down_in_one_copy_each(gpu_bundle, gpu):
    with tfctr.ServingSession(gpu_bundle) as session:
        session.predict(request(40))
        gpu.driver.done.clear()
        session.predict(request(40))
        assert [what[0] for what in gpu.driver.done] == ["up", "kernels", "down"]


def test_an_error_of_the_gpu_comes_with_cudas_text(gpu_bundle, gpu, reference):
    with tfctr.ServingSession(gpu_bundle) as session:
        session.predict(request(40))
        gpu.driver.fail["cuStreamSynchronize"] = 700
        with pytest.raises(tfctr.errors.TfctrError, match="CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"):
            session.predict(request(40))
        gpu.driver.fail.clear()
        same(session.predict(request(40)), reference.predict(request(40)), atol=5e-3)


def test_another_gpu_falls_back_and_names_the_plans(gpu_bundle, monkeypatch, said):
    bundles.with_gpu(monkeypatch, (12, 0))
    with tfctr.ServingSession(gpu_bundle) as session:
        assert session.describe()["dense"]["running"] == "openvino"
    assert "no plan for this GPU (Fake GPU, sm120); the bundle has plans for sm89" in said()[0]
    tensorrt_cuda.driver.cache_clear()
    tensorrt_cuda.gpu.cache_clear()


def test_the_command_line(gpu_bundle, model, capsys):
    assert main(["predict", str(gpu_bundle), "--rows", "2", "--engine", "tensorflow"]) == 0
    assert main(["predict", str(gpu_bundle), "--rows", "2", "--no-fallback"]) == 2
    assert "tensorrt fp16 does not run the dense tower here" in capsys.readouterr().err
    assert main(["verify", str(model), str(gpu_bundle), "--engine", "openvino", "--no-fallback"]) == 0
    capsys.readouterr()
    command = ["bench", str(gpu_bundle), "--baseline", str(model), "--batch", "8", "--rounds", "5"]
    assert main(command) == 0
    assert "dense tower: openvino fp32 (2026.4.1" in capsys.readouterr().out.replace("\n", " ")
    assert main([*command, "--json", "--engine", "tensorflow"]) == 0
    (figure,) = json.loads(capsys.readouterr().out)["batches"]
    assert figure["dense"]["running"] == "tensorflow"
