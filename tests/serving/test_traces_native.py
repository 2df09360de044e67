"""Traced runs of native groups: which requests are due, what a trace says, what is dropped; runs do not mix."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

import tfctr
from tests.serving.native_group import BAD, GATE, block, check, make, opened, pool, request, wait_until
from tfctr.core import library

__all__ = ["make", "opened", "pool"]


def traced_nodes(trace):
    metadata = config_pb2.RunMetadata.FromString(trace["metadata"])
    return {node.node_name for device in metadata.step_stats.dev_stats for node in device.node_stats}


def graph_nodes(trace):
    metadata = config_pb2.RunMetadata.FromString(trace["graphs"])
    return {node.name for graph in metadata.partition_graphs for node in graph.node}


def ask(signature, native, name="", inputs=None):
    inputs = inputs or request(2)
    outputs, _ = signature.predict(inputs, native.Call(request_id=name))
    check(outputs, inputs)


def start(group, signature, native, every=1, **options):
    """Sampling, with what it needs made; the next request is due."""
    group.trace_start(1, **options)
    ask(signature, native)
    assert group.trace_prepare() == []
    group.trace_start(every, **options)


def test_every_nth_request_is_traced(make, opened):
    native = opened.native
    group, signature = make()
    ask(signature, native)
    assert group.trace_take() is None and group.trace_counts()["every"] == 0
    start(group, signature, native, every=3)
    for number in range(7):
        ask(signature, native, f"r{number}")
    assert [group.trace_take()["requests"][0]["id"] for _ in range(3)] == ["r0", "r3", "r6"]
    assert group.trace_take() is None
    counts = group.trace_counts()
    assert counts == {"every": 3, "traced": 3, "dropped": 0, "failed": 0, "waiting": 0}


def test_the_first_of_a_form_only_says_what_it_needs(make, opened):
    native = opened.native
    group, signature = make()
    group.trace_start(100)
    ask(signature, native, "first")
    assert group.trace_counts()["traced"] == 0
    assert group.trace_prepare() == [] and group.trace_prepare() == []
    ask(signature, native, "second")  # what was owed to the first
    ask(signature, native, "third")
    trace = group.trace_take()
    assert [one["id"] for one in trace["requests"]] == ["second"] and group.trace_take() is None
    assert len(GATE.runs) == 4, "the first was run once more, to learn the graph"


def test_what_a_trace_says(make, opened):
    native = opened.native
    group, signature = make()
    start(group, signature, native)
    ask(signature, native, "a", request(5))
    ask(signature, native, "b")
    trace = group.trace_take()
    assert trace["signature"] == "s" and trace["executor"] == 0 and trace["rows"] == 5 and trace["thread"] > 0
    (told,) = trace["requests"]
    assert told["id"] == "a" and told["rows"] == 5 and told["pack_ns"] > 0 and told["queue_ns"] >= 0
    nodes = traced_nodes(trace)
    assert any("GatherV2" in node for node in nodes) and nodes - {"_SOURCE", "_SINK"} <= graph_nodes(trace)
    metadata = config_pb2.RunMetadata.FromString(trace["metadata"])
    assert not metadata.partition_graphs, "a copy of the graph is no part of the request"
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            begin = node.all_start_nanos + node.op_start_rel_nanos
            assert node.op_end_rel_nanos >= node.op_start_rel_nanos >= 0
            assert trace["start_ns"] - 1000 <= begin <= trace["start_ns"] + trace["run_ns"]
    known = group.trace_take({trace["form"]})
    assert known["form"] == trace["form"] and known["graphs"] is None


def test_without_a_second_run_the_graph_is_not_known(make, opened):
    native = opened.native
    group, signature = make()
    start(group, signature, native, replay=False)
    runs = len(GATE.runs)
    ask(signature, native)
    assert group.trace_take()["graphs"] == b"" and len(GATE.runs) == runs + 1 == 2


def test_a_run_of_several_requests_names_them(make, opened, pool):
    native = opened.native
    group, signature = make(batching={"max_batch_rows": 64})
    start(group, signature, native, every=1000)
    ask(signature, native, "alone")
    assert group.trace_take()["requests"][0]["id"] == "alone"
    group.trace_start(2)
    held = block(group, signature, pool, native)  # the first, due
    waiting = [pool.submit(ask, signature, native, f"r{k}", request(k + 1)) for k in range(3)]
    wait_until(lambda: group.describe()["waiting"] == 3)
    GATE.opened.set()
    for one in [*held, *waiting]:
        one.result()
    assert len(group.trace_take()["requests"]) == 1
    together = group.trace_take()
    assert sorted((one["id"], one["rows"]) for one in together["requests"]) == [("r0", 1), ("r1", 2), ("r2", 3)]
    assert together["rows"] == 6 and all(one["queue_ns"] > 0 for one in together["requests"])


def test_no_room_no_trace(make, opened):
    native = opened.native
    group, signature = make()
    start(group, signature, native, room=2)
    for number in range(5):
        ask(signature, native, f"r{number}")
    counts = group.trace_counts()
    assert (counts["traced"], counts["dropped"], counts["waiting"]) == (2, 3, 2)
    assert [group.trace_take()["requests"][0]["id"] for _ in range(2)] == ["r0", "r1"]
    ask(signature, native, "r5")
    assert group.trace_take()["requests"][0]["id"] == "r5"


def test_runs_that_fail_are_counted(make, opened):
    native = opened.native
    group, signature = make()
    start(group, signature, native)
    with pytest.raises(native.ServeFailed, match="x is bad"):
        signature.predict(request(1, first=BAD), native.Call())
    assert group.trace_take() is None and group.trace_counts()["failed"] == 1
    ask(signature, native, "next")
    assert group.trace_take()["requests"][0]["id"] == "next"


def test_off_forgets_what_waits_and_gives_memory_back(make, opened):
    native = opened.native
    group, signature = make()
    start(group, signature, native)
    ask(signature, native)
    group.trace_stop()
    assert group.trace_take() is None
    ask(signature, native)
    assert group.trace_counts() == {"every": 0, "traced": 1, "dropped": 0, "failed": 0, "waiting": 0}
    group.trace_start(1)
    ask(signature, native)
    assert group.trace_take() is None, "its form is made anew"


@pytest.mark.parametrize("options", [{"every": 0}, {"every": -1}, {"every": 1, "room": 0}])
def test_settings_that_are_wrong(make, options):
    group, _ = make()
    with pytest.raises(ValueError, match="every and room"):
        group.trace_start(**options)


class Named(tf.Module):
    """Nodes that say whose they are."""

    def __init__(self, name):
        super().__init__()
        self.label = name
        self.table = tf.Variable(np.arange(20, dtype=np.float32).reshape(10, 2))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(self, ids):
        with tf.name_scope(self.label):
            return {"score": tf.reduce_sum(tf.gather(self.table, ids), 1)}


@pytest.fixture(scope="module")
def two_groups(tmp_path_factory):
    """Models left and right, two executors each."""
    made = {}
    for name in ("left", "right"):
        folder = tmp_path_factory.mktemp("named") / name
        module = Named(name)
        tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
        made[name] = tfctr.SessionGroup(folder, tfctr.GroupOptions(executors=2))
    yield made
    for group in made.values():
        group.close()


def test_traces_under_load_do_not_mix(two_groups):
    """Two models with two executors each, every request traced, from six threads, while TensorFlow's own profiler
    records the process: each trace has its model's nodes and its request's id and rows, and no others."""
    native = library.native()
    ids, groups = {}, {name: group.version.group for name, group in two_groups.items()}
    for name, group in two_groups.items():
        groups[name].trace_start(1, 1000)
        group.predict({"ids": np.arange(3)})
        assert groups[name].trace_prepare() == []

    def client(name, number):
        signature = two_groups[name].version.signature("serving_default")
        for k in range(20):
            rows, call = 1 + k % 7, native.Call(request_id=f"{name}-{number}-{k}")
            ids[call.request_id] = rows
            outputs, _ = signature.predict({"ids": np.arange(rows)}, call)
            np.testing.assert_array_equal(outputs["score"], np.arange(rows) * 4 + 1)

    with tf.profiler.experimental.Profile(str(two_groups["left"].version.folder / "profile")):
        threads = [threading.Thread(target=client, args=(name, k)) for name in groups for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen, executors = set(), set()
    for name, group in groups.items():
        other = "right" if name == "left" else "left"
        while (trace := group.trace_take()) is not None:
            nodes = traced_nodes(trace)
            assert any(f"{name}/" in node for node in nodes) and not any(f"{other}/" in node for node in nodes)
            (told,) = trace["requests"]
            assert told["id"].startswith(name) and ids[told["id"]] == told["rows"] == trace["rows"]
            gathers = [node for node in nodes if node.endswith("GatherV2") or "embedding_lookup" in node]
            assert len(gathers) <= 1, "one run, one gather"
            seen.add(told["id"])
            executors.add((name, trace["executor"]))
        assert group.trace_counts()["dropped"] == 0
        group.trace_stop()
    assert seen == set(ids)
    assert len(executors) >= 2
