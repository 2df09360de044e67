"""Several executors over one version: what they share, who runs what, how requests run together, wait and are given up.

The model: a sparse feature, a ragged string feature, dense ids and floats; bit for bit what one session gives.
"""

import threading
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.serving.test_bundle_session import Model, request_
from tests.serving.versions.warm_up_file import write_warm_up
from tfctr.core import library
from tfctr.errors import (
    CorruptFileError,
    DeadlineError,
    InputError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
    UsageError,
)
from tfctr.serving import warmup

BATCHING = tfctr.BatchingOptions(max_batch_rows=64, max_delay_us=2000)


class Two(tf.Module):
    """``apart``: rows know nothing of each other; ``together``: a softmax over the batch."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable(np.arange(40, dtype=np.float32).reshape(10, 4))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def apart(self, ids):
        return {"score": tf.reduce_sum(tf.gather(self.table, ids % 10), 1)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def together(self, ids):
        return {"score": tf.nn.softmax(tf.reduce_sum(tf.gather(self.table, ids % 10), 1))}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def total(self, ids):
        return {"count": tf.size(ids), "score": tf.cast(ids, tf.float32)}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("group")
    module = Model()
    tf.saved_model.save(module, str(folder / "model"), signatures=module.serve)
    tfctr.convert(str(folder / "model"), str(folder / "bundle"))
    return folder / "bundle"


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("two") / "model")
    module = Two()
    tf.saved_model.save(
        module, path, signatures={"serving_default": module.apart, "softmax": module.together, "total": module.total}
    )
    return path


@pytest.fixture(scope="module")
def group(bundle):
    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=3, batching=BATCHING)) as made:
        yield made


@pytest.fixture(scope="module")
def session(bundle):
    with tfctr.ServingSession(bundle) as made:
        yield made


def assert_equal(got, want):
    for name, value in want.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(got[name], value)
        else:
            assert got[name].to_list() == value.to_list()


def counts(group):
    return [one["requests"] for one in group.describe()["executors"]]


@pytest.mark.parametrize("rows", [0, 1, 7, 64, 65, 300])
def test_answers_are_those_of_a_session_to_the_bit(group, session, rows):
    """Requests larger than a run are split and put together."""
    request = request_(rows, rows)
    assert_equal(group.predict(request), session.predict(request))
    assert_equal(group.predict_async(request).result(), session.predict(request))


def test_requests_of_many_threads_run_together(group, session):
    """deeprec case 25; TF Serving #1312, #1529: the achieved batch is told."""
    requests = [request_(1 + k % 5, k) for k in range(60)]
    want = [session.predict(one) for one in requests]
    for _ in range(50):  # threads that get their turns one after the other meet nobody
        before = [one["runs"] for one in group.describe()["executors"]]
        with futures.ThreadPoolExecutor(16) as pool:
            for got, expected in zip(pool.map(group.predict, requests), want, strict=True):
                assert_equal(got, expected)
        runs = sum(one["runs"] for one in group.describe()["executors"]) - sum(before)
        assert 0 < runs <= len(requests)
        if runs < len(requests):
            return
    pytest.fail("no two requests ran together")


def test_round_robin_gives_every_executor_the_same(bundle):
    """deeprec case 25: n sessions, m threads, calls per session within +-1."""
    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=3, routing="round_robin")) as group:
        with futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda k: group.predict(request_(2, k)), range(31)))
        made = counts(group)
    assert sum(made) == 31 and max(made) - min(made) <= 1


def test_least_loaded_uses_all(bundle):
    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=3)) as group:
        for k in range(30):
            group.predict(request_(2, k))
        assert min(counts(group)) > 0


def test_what_executors_share_is_told(group):
    told = group.describe()
    assert told["shared"]["tables"] == 3 and told["shared"]["table_bytes"] > 3 * 30 * 8 * 4
    assert len(told["executors"]) == 3 and all(one["own_bytes"] >= 0 for one in told["executors"])
    assert told["signatures"]["serving_default"]["batching"]


def test_tables_are_mapped_once(bundle):
    def mapped():
        with open("/proc/self/maps", encoding="ascii") as maps:
            return sum(str(bundle) in line for line in maps)

    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=1)):
        one = mapped()
        with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=4)):
            assert mapped() == one > 0


def test_every_executor_is_warm(bundle, monkeypatch):
    """deeprec case 24 (#520): warm-up of every session, strings included."""
    ran = []
    real = tfctr.serving.signature_handle.SignatureHandle.run_on
    monkeypatch.setattr(
        "tfctr.serving.signature_handle.SignatureHandle.run_on",
        lambda self, executor, inputs: ran.append(executor) or real(self, executor, inputs),
    )
    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=3)) as group:
        told = group.describe()["warm_up"]
    assert told["source"] == "generated" and told["requests"] == 3 and told["notes"] == []
    assert sorted(ran) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_recorded_requests_warm_every_executor(two, tmp_path):
    path = tmp_path / "model"
    write_warm_up(two, path, [("", {"ids": [1, 2]}), ("total", {"ids": [3]})])
    with tfctr.SessionGroup(path, tfctr.GroupOptions(executors=2)) as group:
        told = group.describe()["warm_up"]
        assert told["source"] == "recorded" and told["requests"] == 2
    write_warm_up(two, path, [("other", {"ids": [1]})])
    with pytest.raises(UsageError, match=r"request 0: there is no signature 'other'; there is: serving_default, "):
        tfctr.SessionGroup(path)
    write_warm_up(two, path, [("", {"ids": [1]}), ("", {"idz": [1]})])
    with pytest.raises(UsageError, match=r"request 1 does not fit the model, which is refused: .*idz"):
        tfctr.SessionGroup(path)
    file = path / warmup.FILE
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(CorruptFileError, match="damaged or cut off"):
        tfctr.SessionGroup(path)


def test_rows_that_know_of_each_other_are_not_batched(two):
    """Proven at load: a softmax over the batch, and an output without rows, run by themselves."""
    with tfctr.SessionGroup(two, tfctr.GroupOptions(batching=BATCHING)) as group:
        told = group.describe()["signatures"]
        assert told["serving_default"]["batching"] and told["serving_default"]["batching_reason"] == ""
        assert not told["softmax"]["batching"] and "'score' differs" in told["softmax"]["batching_reason"]
        assert not told["total"]["batching"] and "count" in told["total"]["batching_reason"]
        requests = [{"ids": np.arange(k % 4 + 1)} for k in range(20)]
        with futures.ThreadPoolExecutor(8) as pool:
            for out in pool.map(lambda one: group.predict(one, signature="softmax"), requests):
                np.testing.assert_allclose(out["score"].sum(), 1, rtol=1e-5)
        long = group.predict({"ids": np.arange(500)}, signature="softmax")["score"]
        np.testing.assert_allclose(long.sum(), 1, rtol=1e-5)


class Padded(tf.Module):
    """What a row gives depends on the longest row of the batch: in its shape, or in its value."""

    tags = tf.RaggedTensorSpec([None, None], tf.float32, ragged_rank=1)
    words = tf.SparseTensorSpec([None, None], tf.float32)

    @tf.function(input_signature=[tags])
    def wide(self, tags):
        return {"score": tags.to_tensor()}

    @tf.function(input_signature=[tags])
    def mean(self, tags):
        return {"score": tf.reduce_mean(tags.to_tensor(), 1)}

    @tf.function(input_signature=[words])
    def sparse(self, words):
        return {"score": tf.reduce_mean(tf.sparse.to_dense(words), 1)}

    @tf.function(input_signature=[tags])
    def sums(self, tags):
        return {"score": tf.reduce_sum(tags, 1)}


RAGGED = ({"name": "tags", "kind": "ragged", "parts": {"values": "tags", "row_splits": "tags_1"}},)
WORDS = {"indices": "words", "values": "words_1", "dense_shape": "words_2"}
PARTS = dict.fromkeys(("serving_default", "wide", "mean"), RAGGED)
PARTS["sparse"] = ({"name": "words", "kind": "sparse", "parts": WORDS},)


def test_rows_that_are_padded_to_the_longest_are_not_batched(tmp_path):
    module = Padded()
    signatures = {"serving_default": module.sums, "wide": module.wide, "mean": module.mean, "sparse": module.sparse}
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=signatures)
    with tfctr.SessionGroup(tmp_path / "model", tfctr.GroupOptions(features=PARTS, batching=BATCHING)) as group:
        told = group.describe()["signatures"]
        assert told["serving_default"]["batching"], told["serving_default"]["batching_reason"]
        for name, why in {"wide": "shape", "mean": "differs", "sparse": "differs"}.items():
            assert not told[name]["batching"]
            assert "'score'" in told[name]["batching_reason"] and why in told[name]["batching_reason"]
        assert group.predict({"tags": [[1.0], [1.0, 2.0]]}, signature="wide")["score"].tolist() == [[1, 0], [1, 2]]


def test_rows_of_a_request_are_limited(tmp_path):
    """Those that it holds, and those that a dense_shape only claims."""
    module = Padded()
    signatures = {"serving_default": module.sums, "sparse": module.sparse}
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=signatures)
    with tfctr.SessionGroup(tmp_path / "model", tfctr.GroupOptions(features=PARTS, max_request_rows=4)) as group:
        assert len(group.predict({"tags": [[1.0]] * 4})["score"]) == 4
        with pytest.raises(InputError, match=r"'tags' has 5 rows, the limit is 4 \(max_rows\)"):
            group.predict({"tags": [[1.0]] * 5})
        claims = tf.compat.v1.SparseTensorValue(np.array([[0, 0]]), np.ones(1, np.float32), np.array([2**40, 1]))
        with pytest.raises(InputError, match=rf"'words' has {2**40} rows, the limit is 4"):
            group.predict({"words": claims}, signature="sparse")
        with pytest.raises(InputError, match="limit is 4"):
            group.predict_async({"tags": [[1.0]] * 5}).result()
    with pytest.raises(UsageError, match="max_request_rows is -1"):
        tfctr.GroupOptions(max_request_rows=-1)


def test_a_bad_request_does_not_fail_its_batch(group, session):
    good, bad = request_(3, 1), request_(3, 2) | {"ids": np.full((3, 1), 10**6)}
    want = session.predict(good)
    with futures.ThreadPoolExecutor(8) as pool:
        made = [pool.submit(group.predict, bad if k % 4 == 3 else good) for k in range(24)]
        for k, one in enumerate(made):
            if k % 4 == 3:
                with pytest.raises(InputError, match="serving_default"):
                    one.result()
            else:
                assert_equal(one.result(), want)


def test_deadlines(group, bundle):
    request = request_(2)
    assert_equal(group.predict(request, deadline_ms=60_000), group.predict(request))
    with pytest.raises(DeadlineError) as raised:
        group.predict(request, deadline_ms=1e-6)
    assert raised.value.stage in ("pack", "queue")
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="deadline_ms"):
            group.predict(request, deadline_ms=wrong)
    with tfctr.ServingSession(bundle) as session:
        assert_equal(session.predict(request, deadline_ms=60_000), session.predict(request))
        with pytest.raises(DeadlineError):
            session.predict(request, deadline_ms=1e-6)
        with pytest.raises(DeadlineError):
            session.predict_async(request, deadline_ms=1e-6).result()


def test_a_call_that_is_cancelled(group):
    call = library.native().Call()
    call.cancel()
    with pytest.raises(tfctr.errors.CancelledError):
        group.version.signature("serving_default").predict(request_(2), call)
    future = group.predict_async(request_(2))
    if future.cancel():
        with pytest.raises(futures.CancelledError):
            future.result()
    assert len(group.predict(request_(2))["score"]) == 2


def test_a_full_queue_refuses(bundle):
    """Who is refused is told so, the others are answered (Triton #5783; exactly how many: test_group_native.py)."""
    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(queue_limit=1)) as group:
        request, refused = request_(200), 0
        made = []
        for _ in range(200):
            try:
                made.append(group.predict_async(request))
            except OverloadedError:
                refused += 1
        for one in made:
            try:
                one.result()
            except OverloadedError:
                refused += 1
        assert 0 < refused < 200


def test_close_drains(bundle):
    group = tfctr.SessionGroup(bundle)
    made = [group.predict_async(request_(50, k)) for k in range(20)]
    assert group.close()
    assert all(len(one.result()["score"]) == 50 for one in made)
    with pytest.raises(UnavailableError, match="is closed"):
        group.predict(request_(1))
    assert group.close()


def test_a_session_with_executors(bundle, session):
    with tfctr.ServingSession(bundle, executors=2, batching=BATCHING) as made:
        with futures.ThreadPoolExecutor(4) as pool:
            for k, out in enumerate(pool.map(made.predict, [request_(3, k) for k in range(20)])):
                assert_equal(out, session.predict(request_(3, k)))
        assert len(made.describe()["group"]["executors"]) == 2
        assert made.inputs == session.inputs and made.outputs == session.outputs and made.packed
        assert_equal(made.run_traced(request_(3))[0], session.predict(request_(3)))
        future = made.predict_async(request_(3))
        assert made.close()
        assert_equal(future.result(), session.predict(request_(3)))
    with pytest.raises(UsageError, match="closed"):
        made.predict(request_(3))
    assert session.describe()["group"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executors": 0}, "executors is 0"),
        ({"executors": 2, "cpu_sets": ((0,),)}, "1 cpu_sets for 2 executors"),
        ({"cpu_sets": ((4096,),)}, "CPU 4096"),
        ({"routing": "best"}, "routing is 'best'"),
        ({"queue_limit": 0}, "queue_limit is 0"),
        ({"intra_op_threads": 0}, "intra_op_threads is 0"),
    ],
)
def test_options_that_are_wrong(options, message):
    with pytest.raises(UsageError, match=message):
        tfctr.GroupOptions(**options)


@pytest.mark.parametrize("options", [{"max_batch_rows": 0}, {"max_delay_us": -1}])
def test_batching_options_that_are_wrong(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        tfctr.BatchingOptions(**options)


def test_signatures_that_are_not_there(group, bundle):
    with pytest.raises(NotFoundError, match="no signature 'x'; there is: serving_default"):
        group.predict({}, signature="x")
    with pytest.raises(UsageError, match="no signature 'x'; there is: serving_default"):
        tfctr.SessionGroup(bundle, tfctr.GroupOptions(signatures=("x",)))
    with pytest.raises(UsageError, match="no engine 'openvino'"):
        tfctr.SessionGroup(bundle, tfctr.GroupOptions(engine="openvino"))


def test_groups_that_load_at_once(bundle, session):
    """Loading race: several loads of one bundle, in several threads, while another serves."""
    made, failed = [], []

    def load():
        try:
            made.append(tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=2)))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    want = session.predict(request_(4))
    for thread in threads:
        thread.join()
    assert failed == [] and len(made) == 4
    for group in made:
        assert_equal(group.predict(request_(4)), want)
        group.close()
