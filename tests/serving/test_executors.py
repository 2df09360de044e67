"""Session config, device maps and executors, on logical CPU devices: where nodes run, and what falls back."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

import tfctr
from examples.models import REFERENCE_MODELS, USER_FEATURES, requests
from tests.serving.split_bundle import request, save
from tfctr.errors import UsageError
from tfctr.serving.executor_config import ExecutorOptions, executor_setups

v1 = tf.compat.v1


def save_placed(path, dense: str) -> None:
    """A gather on /CPU:0 and a tower on ``dense``, a While body and an unplaced node among them; with a variable."""
    rng = np.random.default_rng(5)
    soft = config_pb2.ConfigProto(allow_soft_placement=True)
    with tf.Graph().as_default(), v1.Session(config=soft) as session:
        with tf.device("/CPU:0"):
            ids = v1.placeholder(tf.int64, [None], name="ids")
            table = v1.get_variable("table", initializer=rng.normal(size=(50, 4)).astype(np.float32), use_resource=True)
            rows = tf.gather(table, ids, name="sparse/rows")
        with tf.device(dense):
            weights = tf.constant(rng.normal(size=(4, 2)).astype(np.float32), name="tower/weights")
            hidden = tf.matmul(rows, weights, name="tower/matmul")
            looped = tf.while_loop(lambda k, h: k < 2, lambda k, h: (k + 1, h * 2.0), [0, hidden])[1]
            score = tf.reduce_sum(tf.nn.relu(looped, name="tower/relu"), 1, name="tower/sum")
        session.run(v1.global_variables_initializer())
        signature = v1.saved_model.predict_signature_def({"ids": ids}, {"score": score, "text": tf.as_string(ids)})
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    path = tmp_path_factory.mktemp("placed") / "model"
    save_placed(path, "/CPU:1")
    return path


def devices_of_tower(session, inputs):
    """Short device names by node of the tower, from one traced run."""
    _, metadata = session.run_traced(inputs)
    return {
        node.node_name: device.device.rsplit("/device:", 1)[-1]
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        if node.node_name.startswith("tower/")
    }


INPUTS = {"ids": np.arange(20) % 7}


def test_two_executors_have_a_dense_device_each(placed):
    setups = executor_setups(ExecutorOptions(executors=2, dense_device_type="CPU"))
    assert [s.device_map for s in setups] == [{"/CPU:1": "/CPU:1"}, {"/CPU:1": "/CPU:2"}]
    first, second = [tfctr.ServingSession(placed, **setup.arguments()) for setup in setups]
    assert set(devices_of_tower(first, INPUTS).values()) == {"CPU:1"}
    assert set(devices_of_tower(second, INPUTS).values()) == {"CPU:2"}
    assert devices_of_tower(first, INPUTS).keys() >= {"tower/matmul", "tower/relu"}
    wants = first.predict(INPUTS)
    np.testing.assert_array_equal(second.predict(INPUTS)["score"], wants["score"])
    assert first.describe()["devices"]["fell_back"] == []
    assert len(second.describe()["devices"]["session"]) == 3
    failed = []

    def work() -> None:
        for _ in range(100):
            if not np.array_equal(second.predict(INPUTS)["score"], wants["score"]):
                failed.append(1)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    first.close()
    for worker in workers:
        worker.join()
    assert failed == []
    np.testing.assert_array_equal(second.predict(INPUTS)["score"], wants["score"])
    second.close()


def test_executors_over_a_placed_bundle_take_user_rows_once(tmp_path):
    REFERENCE_MODELS["dlrm"](vocabulary=100, width=4).save(str(tmp_path / "m"))
    places = {"sparse": "/CPU:0", "dense": "/CPU:1"}
    tfctr.convert(tmp_path / "m", tmp_path / "b", user_features=USER_FEATURES["dlrm"], device_map=places)
    setups = executor_setups(ExecutorOptions(executors=2, dense_device_type="CPU"))
    given = requests("dlrm", rows=8, users=1, vocabulary=100)
    with tfctr.ServingSession(tmp_path / "b") as alone:  # one device: all falls back to it
        want = alone.predict(given)["click"]
        assert {one["device"][-5:] for one in alone.describe()["devices"]["fell_back"]} == {"CPU:1"}
    for number, setup in enumerate(setups, 1):
        with tfctr.ServingSession(tmp_path / "b", **setup.arguments()) as session:
            np.testing.assert_allclose(session.predict(given)["click"], want, atol=1e-6)
            _, metadata = session.run_traced(given)
            products = {
                device.device[-5:]
                for device in metadata.step_stats.dev_stats
                for node in device.node_stats
                if "MatMul" in node.timeline_label
            }
            assert products == {f"CPU:{number}"}
            told = session.describe()
            assert told["requests"]["split"] == 2
            assert told["devices"]["fell_back"] == []


def test_devices_that_are_not_there_are_told_once(placed, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "tfctr"), tfctr.ServingSession(placed) as session:
        (fallen,) = session.describe()["devices"]["fell_back"]
        score = session.predict(INPUTS)["score"]
        assert set(devices_of_tower(session, INPUTS).values()) == {"CPU:0"}
    assert fallen["device"].endswith("CPU:1")
    assert fallen["ops"]["MatMul"] == 1
    assert fallen["nodes"] == sum(fallen["ops"].values())
    (warning,) = [r.getMessage() for r in caplog.records if "devices that are not here" in r.getMessage()]
    assert "\n" not in warning
    assert "CPU:1" in warning
    save_placed(tmp_path / "gpu", "/device:GPU:0")
    with tfctr.ServingSession(tmp_path / "gpu") as session:  # a model for a GPU on a machine without one
        np.testing.assert_array_equal(session.predict(INPUTS)["score"], score)
        assert [one["device"] for one in session.describe()["devices"]["fell_back"]] == ["/device:GPU:0"]


@pytest.mark.parametrize(
    ("device", "key"),
    [
        ("/device:GPU:0", "/GPU:0"),
        ("/GPU:0", "/device:GPU:0"),
        ("/job:localhost/replica:0/task:0/device:GPU:0", "/GPU:0"),
        ("/device:GPU:*", "/GPU:0"),
        ("", ""),
    ],
)
def test_a_device_map_matches_every_spelling(tmp_path, device, key):
    save_placed(tmp_path / "m", device)
    config = config_pb2.ConfigProto(device_count={"CPU": 4})
    with tfctr.ServingSession(tmp_path / "m", config=config, device_map={key: "/CPU:3"}) as session:
        assert set(devices_of_tower(session, INPUTS).values()) == {"CPU:3"}
        assert session.describe()["devices"]["fell_back"] == []


def test_a_device_map_leaves_other_devices_alone(placed):
    config = config_pb2.ConfigProto(device_count={"CPU": 3})
    with tfctr.ServingSession(placed, config=config, device_map={"/CPU:2": "/CPU:0", "/GPU:0": "/CPU:0"}) as session:
        assert set(devices_of_tower(session, INPUTS).values()) == {"CPU:1"}


@pytest.mark.parametrize("device_map", [{"/CPU:1": "nowhere"}, {"gpu zero": "/CPU:0"}, {"/CPU:1": ""}])
def test_a_device_map_of_no_devices_is_refused(placed, device_map):
    with pytest.raises(UsageError, match="device_map: .* is no device; expected one such as /CPU:0"):
        tfctr.ServingSession(placed, device_map=device_map)


def test_a_session_takes_its_config_and_stays_itself(tmp_path):
    config = config_pb2.ConfigProto(device_count={"CPU": 2})
    with tfctr.ServingSession(save(tmp_path / "b"), config=config) as session:
        assert session.predict(request(4, 1))["score"].shape == (4,)
        assert len(session.describe()["devices"]["session"]) == 2


def test_settings_for_a_gpu():
    options = ExecutorOptions(executors=2, gpu=1, gpu_memory_mb_per_executor=512, stream_priorities=(-1, 0))
    first, second = executor_setups(options)
    gpu = first.config.gpu_options
    assert gpu.visible_device_list == "1"
    (virtual,) = gpu.experimental.virtual_devices
    assert list(virtual.memory_limit_mb) == [512, 512]
    assert list(virtual.priority) == [-1, 0]
    merge = gpu.experimental.stream_merge_options
    assert merge.merge_host_to_device_stream
    assert merge.merge_device_to_host_stream
    assert merge.merge_device_to_device_stream
    assert first.config == second.config  # a process has one set of virtual devices
    assert [one.device_map for one in (first, second)] == [
        {"/GPU:0": "/GPU:0", "": "/GPU:0"},
        {"/GPU:0": "/GPU:1", "": "/GPU:1"},
    ]
    alone = executor_setups(ExecutorOptions())[0]
    assert alone.device_map == {}
    assert not alone.config.gpu_options.experimental.virtual_devices


def test_gpu_settings_do_no_harm_without_a_gpu(placed):
    options = ExecutorOptions(executors=2, gpu_memory_mb_per_executor=512, stream_priorities=(-1, 0))
    with tfctr.ServingSession(placed, **executor_setups(options)[1].arguments()) as session:
        assert session.predict(INPUTS)["score"].shape == (20,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executors": 0}, "executors is 0, expected 1 to"),
        ({"executors": 1000}, "executors is 1000"),
        ({"intra_op_threads": 0}, "intra_op_threads is 0"),
        ({"dense_device_type": "TPU"}, "dense_device_type is 'TPU', expected GPU or CPU"),
        ({"gpu": -1}, "gpu is -1"),
        ({"executors": 2}, "several executors: need gpu_memory_mb_per_executor"),
        ({"stream_priorities": (0,)}, "stream_priorities: need gpu_memory_mb_per_executor"),
        ({"gpu_memory_mb_per_executor": 0}, "is 0, expected more than 0 MB"),
        ({"gpu_memory_mb_per_executor": -5.0}, "is -5.0"),
        ({"gpu_memory_mb_per_executor": float("nan")}, "is nan"),
        ({"gpu_memory_mb_per_executor": 64, "stream_priorities": (0, 0)}, "2 stream_priorities for 1 executors"),
        ({"executors": 2, "gpu_memory_mb_per_executor": 64, "stream_priorities": (0,)}, "1 stream_priorities for 2"),
        ({"gpu_memory_mb_per_executor": 64, "stream_priorities": (1,)}, "1 is above 0"),
        ({"dense_device_type": "CPU", "gpu_memory_mb_per_executor": 64}, "gpu_memory_mb_per_executor is 64, but"),
        (
            {"dense_device_type": "CPU", "stream_priorities": (0,)},
            "stream_priorities is .*, but dense_device_type is CPU",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        executor_setups(ExecutorOptions(**options))
