"""Bundles on a GPU, and on the same machine with its GPU hidden."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from examples.models import REFERENCE_MODELS, USER_FEATURES, requests
from export.dense_pass import DenseOptions
from tests.export.dense import rankers
from tests.serving.dense_bundles import request

MAX_DP = 4e-3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return rankers.save(tmp_path_factory.mktemp("gpu") / "model")


@pytest.fixture(scope="module")
def bundle(model, machine):
    """FP16 plans for this GPU."""
    options = DenseOptions(dense="tensorrt", cache_dir="off", required=True, targets=(machine.gpu.target,))
    tfctr.convert(model, model.parent / "bundle", dense=options, user_features=["user"])
    return model.parent / "bundle"


def test_a_bundle_runs_on_the_gpu(bundle):
    with tfctr.ServingSession(bundle, fallback=False) as gpu, tfctr.ServingSession(bundle, engine="tensorflow") as cpu:
        for rows, users in ((1, None), (40, 1), (300, None), (3000, 1)):
            got, want = gpu.predict(request(rows, users)), cpu.predict(request(rows, users))
            np.testing.assert_allclose(got["score"], want["score"], atol=MAX_DP, rtol=0)
        dense = gpu.describe()["dense"]
    assert (dense["running"], dense["precision"], dense["fallback"]) == ("tensorrt", "fp16", False)
    assert dense["calls"] == 4


def test_sessions_run_beside_each_other(bundle):
    sessions = [tfctr.ServingSession(bundle, fallback=False) for _ in range(3)]
    wants = {rows: sessions[0].predict(request(rows))["score"] for rows in (10, 100)}
    failed = []

    def work(session):
        for k in range(100):
            rows = (10, 100)[k % 2]
            if not np.allclose(session.predict(request(rows))["score"], wants[rows], atol=1e-6):
                failed.append(rows)

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for session in sessions:
        session.close()


def test_a_hidden_gpu_means_the_fallback(bundle):
    """In a process of its own: CUDA reads the variable once."""
    code = (
        "import json, sys, tfctr\n"
        "with tfctr.ServingSession(sys.argv[1]) as session:\n"
        "    print(json.dumps(session.describe()['dense']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bundle)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    dense = json.loads(done.stdout)
    assert (dense["asked"], dense["fallback"]) == ("tensorrt", True)
    assert dense["running"] in ("openvino", "tensorflow")
    assert "CUDA_ERROR_NO_DEVICE" in dense["reason"]


@pytest.fixture(scope="module")
def tensorflow_gpu():
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("TensorFlow sees no GPU (requirements-gpu.txt has its CUDA libraries)")


@pytest.mark.usefixtures("tensorflow_gpu")
@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_placed_models_give_the_same_numbers_on_a_gpu(tmp_path, name):
    """Kernels on the GPU, packed transfers, split forms: docs/gpu.md, "What has not run on a GPU"."""
    REFERENCE_MODELS[name](vocabulary=1000, width=8).save(str(tmp_path / "m"))
    places, users = {"sparse": "/CPU:0", "dense": "/GPU:0"}, USER_FEATURES[name]
    tfctr.convert(tmp_path / "m", tmp_path / "b", user_features=users, device_map=places, dense="tensorflow")
    tfctr.convert(tmp_path / "m", tmp_path / "c", user_features=users, dense="tensorflow")
    with (
        tfctr.ServingSession(tmp_path / "c", device_map={"": "/CPU:0"}) as cpu,
        tfctr.ServingSession(tmp_path / "b") as gpu,
    ):
        assert gpu.describe()["devices"]["fell_back"] == []
        for count in (None, 1):
            given = requests(name, rows=50, users=count, vocabulary=1000)
            got, want = gpu.predict(given), cpu.predict(given)
            for output in want:
                np.testing.assert_allclose(got[output], want[output], atol=1e-4, rtol=1e-3)


@pytest.mark.usefixtures("tensorflow_gpu")
def test_two_executors_have_a_virtual_gpu_each(tmp_path):
    """In a process of its own: virtual devices are made once. Streams of different priorities, merged."""
    REFERENCE_MODELS["dlrm"](vocabulary=1000, width=8).save(str(tmp_path / "m"))
    places = {"sparse": "/CPU:0", "dense": "/GPU:0"}
    tfctr.convert(tmp_path / "m", tmp_path / "b", device_map=places, dense="tensorflow")
    code = (
        "import sys, numpy as np, tfctr\n"
        "from examples.models import requests\n"
        "from tfctr.serving.executor_config import ExecutorOptions, executor_setups\n"
        "options = ExecutorOptions(executors=2, gpu_memory_mb_per_executor=1024, stream_priorities=(-1, 0))\n"
        "sessions = [tfctr.ServingSession(sys.argv[1], **one.arguments()) for one in executor_setups(options)]\n"
        "given = requests('dlrm', rows=50, users=None, vocabulary=1000)\n"
        "first, second = [session.predict(given)['click'] for session in sessions]\n"
        "np.testing.assert_allclose(first, second, atol=1e-6)\n"
        "assert all(s.describe()['devices']['fell_back'] == [] for s in sessions)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "b")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
