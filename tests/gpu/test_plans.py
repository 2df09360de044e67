"""Plans of the five towers on a GPU: loaded, run, and held against ONNX Runtime; graphs and streams."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.export.onnx.exports import exported
from tests.export.towers import TOWERS, tower_inputs
from tests.gpu.conftest import run_onnx
from tfctr.engines import native, providers
from tfctr.errors import TfctrError

pytestmark = pytest.mark.usefixtures("gpu")
MAX_DP = 4e-3  # the floor of FP16 engines


@pytest.mark.parametrize("name", TOWERS)
def test_fp16_plans_give_onnx_runtimes_numbers(machine, half, name):
    source = exported(name).model
    with machine.open(half(name), f"{name}_fp16") as engine:
        for rows in (1, 32, 500, 1024):
            feeds = tower_inputs(name, rows=rows, seed=rows)
            got, want = engine.run(feeds), run_onnx(source, feeds)
            for output in want:
                np.testing.assert_allclose(got[output], want[output], atol=MAX_DP, rtol=0)


@pytest.mark.parametrize("name", TOWERS)
def test_fp32_plans_give_onnx_runtimes_numbers(machine, name):
    """TensorFloat-32 may stand for FP32 in matrix products: its 10 bits bound the difference."""
    source = exported(name).model
    feeds = tower_inputs(name, rows=200, seed=3)
    with machine.open(source, f"{name}_fp32") as engine:
        got, want = engine.run(feeds), run_onnx(source, feeds)
    for output in want:
        np.testing.assert_allclose(got[output], want[output], atol=MAX_DP, rtol=0)


def test_more_rows_than_the_plan_takes(machine, half):
    feeds = tower_inputs("dlrm", rows=2500, seed=3)
    with machine.open(half("dlrm"), "dlrm_pieces") as engine:
        got, want = engine.run(feeds), run_onnx(exported("dlrm").model, feeds)
        told = engine.describe()
    np.testing.assert_allclose(got["click"], want["click"], atol=MAX_DP, rtol=0)
    assert (told["split"], told["pieces"]) == (1, 3)


@pytest.mark.parametrize("name", TOWERS)
def test_a_recorded_graph_gives_the_bits_of_an_enqueue(machine, half, name):
    """Same kernels, same shapes: replayed again and again, and after other sizes were run in between."""
    model = half(name)
    plan = machine.plan(model)
    providers.load("tensorrt")
    with (
        native.open_engine(machine.spec(model, plan, f"{name}_plain", graphs=False)) as plain,
        native.open_engine(machine.spec(model, plan, f"{name}_graph")) as recorded,
    ):
        assert recorded.describe()["recorded"] > 0, recorded.describe()["not_recorded"]
        for rows in (32, 256, 40, 32, 1024, 32):
            feeds = tower_inputs(name, rows=rows, seed=rows)
            want = plain.run(feeds)
            for _ in range(3):
                got = recorded.run(feeds)
                for output in want:
                    np.testing.assert_array_equal(got[output], want[output])


def test_calls_from_several_threads(machine, half):
    wants = {
        rows: run_onnx(exported("dcn").model, tower_inputs("dcn", rows=rows, seed=rows)) for rows in (16, 100, 500)
    }
    failed = []
    with machine.open(half("dcn"), "dcn_threads", contexts=4) as engine:

        def work(number):
            for k in range(50):
                rows = (16, 100, 500)[(number + k) % 3]
                got = engine.run(tower_inputs("dcn", rows=rows, seed=rows))
                if not np.allclose(got["click"], wants[rows]["click"], atol=MAX_DP):
                    failed.append(rows)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = engine.describe()
    assert failed == []
    assert (told["calls"], told["lanes"]) == (400, 4)


def test_what_is_no_plan_is_refused_with_tensorrts_words(machine, half):
    model = half("dcn")
    data = machine.plan(model)
    providers.load("tensorrt")
    for damage, bad in (("cut", data[: len(data) // 2]), ("garbage", bytes(1000))):
        with pytest.raises(TfctrError, match="can't load the plan"):
            native.open_engine(machine.spec(model, bad, damage))
    native.open_engine(machine.spec(model, data, "whole")).close()
