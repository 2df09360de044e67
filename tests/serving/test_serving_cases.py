"""What servers of models are known to do wrong, tried on small models; all cases: test_known_cases.py."""

import concurrent.futures
import ctypes
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

import tfctr
from tests.fresh import in_fresh_process, private_bytes
from tests.serving.test_bundle_session import Model, request_
from tests.serving.versions.fakes import FakeClock, FakeLoader, in_thread, write
from tfctr.data.output_files import flatten_outputs
from tfctr.errors import DeadlineError, InputError
from tfctr.profiling.compare import compare_outputs
from tfctr.serving import model_folder
from tfctr.serving.versions import ModelManager, ModelSpec


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    module = Model()
    tf.saved_model.save(module, str(folder / "model"), signatures=module.serve)
    tfctr.convert(str(folder / "model"), str(folder / "bundle"))
    return folder / "bundle"


def niceness(name):
    """Of every thread of this process whose name begins so."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            text = (task / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        called, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if called.startswith(name):
            found.append(int(fields[16]))
    return found


def unseen_requests(bundle):
    """Memory and what is shared, before and after 800 requests of unseen strings and other shapes."""

    def ask(group, first, count):
        for k in range(first, first + count):
            words = [[f"unseen {k} {j}"] for j in range(1 + k % 37)]
            group.predict(request_(len(words), k) | {"words": words})

    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=2, batching=tfctr.BatchingOptions())) as group:
        ask(group, 0, 400)
        told = [(private_bytes(), group.describe()["shared"])]
        ask(group, 400, 800)
        assert group.version.describe()["queue"]["waiting"] == 0
        return [*told, (private_bytes(), group.describe()["shared"])]


def test_requests_leave_no_state_behind(bundle):
    """deeprec case 22 (#1018); Triton #6038: unseen ids and another shape in each request, and nothing that grows."""
    (before, shared_before), (after, shared_after) = in_fresh_process(unseen_requests, bundle)
    assert after < before + 8_000_000  # 10 KB of each request would be as much
    assert shared_after == shared_before


def test_a_load_is_not_on_the_threads_that_serve(bundle, monkeypatch):
    """TF Serving #881, #910, #996, #1866: restore ran in the pool of inference. Here on a thread of its own, nicer."""
    seen = []
    real = model_folder.load_model

    def load(*arguments, **options):
        done = threading.Event()

        def watch():
            while not done.is_set():
                seen.append((max(niceness("")), niceness("tfctr_run_")))

        watching = in_thread(watch)
        seen.append((max(niceness("")), niceness("tfctr_run_")))  # the one that watches may get its turn late
        try:
            return real(*arguments, **options)
        finally:
            done.set()
            watching.join()

    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=2)) as serving:
        monkeypatch.setattr("tfctr.serving.executors.load_model", load)
        with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=2)):
            serving.predict(request_(3))
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        assert max(highest for highest, _ in seen) == max(usual, 10)
        assert all(nice == [usual] * len(nice) and len(nice) >= 2 for _, nice in seen)


def test_requests_are_answered_while_another_model_loads(tmp_path):
    """TF Serving #1866: a load that does not end holds no request of another model, nor of its own."""
    loader, inside, done = FakeLoader(), [], []
    specs = [ModelSpec(name=name, base_path=tmp_path / name) for name in ("a", "b")]
    write(tmp_path / "a", 1, "a1"), write(tmp_path / "b", 1, "b1")
    made = ModelManager(specs, FakeClock(), loader=loader, start=False)
    made.poll()

    def during(number):
        inside.append(number)
        for name in ("a", "b"):
            with made.acquire(name) as lease:
                done.append(lease.version.text)

    loader.during = during
    write(tmp_path / "b", 2, "b2")
    loading = in_thread(lambda: (made.poll(), made.poll()))
    loading.join(120)
    assert not loading.is_alive() and inside == [2] and done == ["a1", "b1"]
    with made.acquire("b") as lease:
        assert lease.version.text == "b2"


def test_a_reload_is_warm(bundle, tmp_path):
    """Triton #7762, #8117, #5757, #5042; the same model loaded again has run before it answers."""
    options = tfctr.GroupOptions(executors=2)
    with ModelManager([ModelSpec(name="m", base_path=bundle, options=options)], FakeClock(), start=False) as made:
        made.poll()
        made.reload("m")
        with made.acquire("m") as lease:
            told = lease.version.describe()
        assert told["warm_up"]["executors"] == 2 and told["warm_up"]["requests"] > 0


class Wide(tf.Module):
    """167 id features: 160 with one id a row, 7 with any number."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(3)
        self.tables = [tf.Variable(rng.normal(size=(20, 4)).astype(np.float32), name=f"table{k}") for k in range(167)]

    def score(self, **inputs):
        found = [tf.gather(self.tables[k], inputs[f"one{k}"]) for k in range(160)]
        for k in range(160, 167):
            ids = tf.SparseTensor(inputs[f"many{k}_indices"], inputs[f"many{k}_values"], inputs[f"many{k}_shape"])
            found.append(tf.nn.safe_embedding_lookup_sparse(self.tables[k], ids, combiner="sum"))
        return {"score": tf.reduce_sum(tf.stack(found), [0, 2])}

    def save(self, folder):
        shapes = {"indices": [None, 2], "values": [None], "shape": [2]}
        specs = {f"one{k}": tf.TensorSpec([None], tf.int64, f"one{k}") for k in range(160)}
        for k in range(160, 167):
            names = {f"many{k}_{part}": shape for part, shape in shapes.items()}
            specs |= {name: tf.TensorSpec(shape, tf.int64, name) for name, shape in names.items()}
        function = tf.function(self.score, autograph=False).get_concrete_function(**specs)
        tf.saved_model.save(self, str(folder), signatures={"serving_default": function})

    def request(self, rows):
        """(inputs, scores)"""
        rng = np.random.default_rng(rows)
        ids = rng.integers(0, 20, (167, rows))
        inputs = {f"one{k}": ids[k] for k in range(160)}
        for k in range(160, 167):
            at = np.stack([np.arange(rows), np.zeros(rows, np.int64)], 1)
            inputs |= {f"many{k}_indices": at, f"many{k}_values": ids[k], f"many{k}_shape": np.array([rows, 1])}
        return inputs, sum(self.tables[k].numpy()[ids[k]].sum(1) for k in range(167))


def test_a_request_of_167_sparse_features(tmp_path):
    """TF Serving #1989, #1950: hundreds of tensors, and a lookup for each feature; here one operation for all."""
    from tests.serving.server.grpc_serving import serving
    from tests.serving.server.test_grpc_faults import PREDICT, predict_body

    model = Wide()
    model.save(tmp_path / "model")
    tfctr.convert(tmp_path / "model", tmp_path / "bundle")
    inputs, want = model.request(16)
    with tfctr.ServingSession(tmp_path / "bundle") as session:
        _, metadata = session.run_traced(inputs)
    labels = [node.timeline_label for device in metadata.step_stats.dev_stats for node in device.node_stats]
    assert sum("TfctrFusedLookup" in label for label in labels) == 1 and len(labels) < 20
    with ModelManager([ModelSpec(name="wide", base_path=tmp_path / "bundle", poll_seconds=0)]) as manager:
        assert manager.wait(240), manager.status()
        with serving(manager) as front:
            reply, _ = front.call(PREDICT, predict_body(inputs, "wide"))
            got = tf.make_ndarray(predict_pb2.PredictResponse.FromString(reply).outputs["score"])
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
            assert front.record.answers[-1].rows == 16


@pytest.mark.parametrize("name", ["m_mutable_table", "k_two_stage", "m_control_flow"])
def test_what_is_inside_at_the_end_is_answered(zoo, tmp_path, name):
    """deeprec case 23 (#465, #934, #257, #384, #122): no stage hangs at the end, none changes a dtype."""
    model = zoo(name)
    tfctr.convert(model.path, tmp_path / "bundle")
    options = tfctr.GroupOptions(executors=2, batching=tfctr.BatchingOptions())
    with tfctr.SessionGroup(tmp_path / "bundle", options) as group:
        asked = [group.predict_async(model.inputs, signature=model.signature) for _ in range(20)]
        assert group.close(60)
    done, left = concurrent.futures.wait(asked, timeout=60)
    assert not left
    for one in done:
        got = flatten_outputs(one.result())
        assert all(found.ok for found in compare_outputs(got, model.outputs))
        assert {key: value.dtype for key, value in got.items()} == {
            key: value.dtype for key, value in model.outputs.items()
        }


def test_rows_outside_a_sparse_features_shape_are_named(bundle):
    """By its name, in a group too; whoever comes after is answered."""
    good = {"tags_indices": [[0, 0]], "tags_values": [3], "tags_shape": [2, 1]}
    others = {key: value for key, value in request_(2).items() if key != "tags"}
    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(batching=tfctr.BatchingOptions())) as group:
        (tags,) = [one for one in group.version.signature("serving_default").features if one.name == "tags"]
        names = {"tags_indices": "indices", "tags_values": "values", "tags_shape": "dense_shape"}
        for row in (2, -1, 2**62):
            for change in ({"tags_indices": [[row, 0]]}, {"tags_indices": [[0, 0]], "tags_shape": [-row, 1]}):
                parts = {tags.parts[names[key]]: np.array(value) for key, value in (good | change).items()}
                if change.get("tags_shape") == [1, 1]:
                    continue
                with pytest.raises(InputError, match="'tags'"):
                    group.predict(others | parts)
        parts = {tags.parts[names[key]]: np.array(value) for key, value in good.items()}
        assert group.predict(others | parts)["score"].shape == (2,)


def test_a_deadline_that_passes_before_the_reply_names_that_stage(tmp_path):
    """The answer is there in time, and nobody can give it: the test keeps the GIL until the deadline is over."""
    from tests.serving.server.grpc_serving import Slow

    model, pipe, libc = Slow(), tmp_path / "pipe", ctypes.PyDLL(None)  # PyDLL: calls keep the GIL
    tf.saved_model.save(model, str(tmp_path / "model"), {"held": model.held})
    with tfctr.SessionGroup(tmp_path / "model", tfctr.GroupOptions(warm_up=False)) as group:
        for attempt, ms in enumerate((100, 1000, 5000, 20_000)):
            path = pipe.with_name(f"pipe{attempt}")
            os.mkfifo(path)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                inputs = {"path": np.array([os.fsencode(path)], object)}
                asked = pool.submit(group.predict, inputs, signature="held", deadline_ms=ms)
                while not group.describe()["executors"][0]["running"] and not asked.done():
                    pass
                opened = libc.open(os.fsencode(path), os.O_RDWR)  # the request goes on
                libc.usleep(ms * 1000)
                os.close(opened)
                error = asked.exception()
            if isinstance(error, DeadlineError) and error.stage == "reply":
                return
        pytest.fail(f"given up elsewhere: {error}")
