"""Session groups over bundles whose dense tower an engine runs: executors share it, batches go through it, a server
answers as the session does, and an engine that does not run here is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import parser

import tfctr
from tests.serving import dense_bundles as bundles
from tests.serving.dense_bundles import NAME, request, same
from tests.serving.server.gate import until
from tests.serving.server.test_grpc_faults import PREDICT, predict_body
from tfctr.errors import UsageError
from tfctr.serving.server.metrics import Metrics
from tfctr.serving.versions import ModelManager, ModelSpec

BATCHING = tfctr.BatchingOptions(max_batch_rows=64)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bundles.save(tmp_path_factory.mktemp("dense_group") / "model")


@pytest.fixture(scope="module")
def bundle(model):
    """OpenVINO, fp32; a variant of 8 rows; the input ``user`` once per user."""
    return bundles.convert(model, model.parent / "openvino", "openvino")


@pytest.fixture(scope="module")
def gpu_bundle(model):
    """TensorRT, fp16, a plan for sm89; OpenVINO as its fallback."""
    return bundles.convert_for_gpu(model, model.parent / "tensorrt")


@pytest.fixture(scope="module")
def session(bundle):
    with tfctr.ServingSession(bundle) as made:
        yield made


@pytest.fixture(scope="module")
def group(bundle):
    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=3, batching=BATCHING)) as made:
        yield made


def runs(one):
    """Of the compiled engines: they count for all who use them."""
    (told,) = one["dense"].values() if NAME in one["dense"] else (one["dense"],)
    return [sum(variant["runs"] for variant in engine["variants"]) for engine in told["engines"]]


def test_executors_and_sessions_share_the_compiled_engines(group, session):
    before = runs(session.describe())
    assert len(before) == 2  # the plain form's and the split form's: not one of each for every executor
    for seed in range(9):
        group.predict(request(5, seed=seed))
    told = group.describe()
    assert told["shared"]["engines"] == 2 and min(one["runs"] for one in told["executors"]) > 0
    assert runs(told) == runs(session.describe())
    assert runs(told)[0] - before[0] >= 9
    dense = told["dense"][NAME]
    assert (dense["asked"], dense["running"], dense["fallback"]) == ("openvino", "openvino", False)


@pytest.mark.parametrize("rows", [0, 1, 8, 63, 64, 65, 200])
@pytest.mark.parametrize("users", [None, 1])
def test_a_group_gives_the_sessions_numbers(group, session, rows, users):
    """Larger ones than a run are cut, one user's included."""
    given = request(rows, users if rows else None)
    same(group.predict(given), session.predict(given))


def test_requests_run_together_through_the_engine(group, session):
    told = group.describe()["signatures"][NAME]
    assert told["batching"], told["batching_reason"]
    requests = [request(1 + k % 6, 1 if k % 3 == 0 else None, seed=k) for k in range(48)]
    want = [session.predict(one) for one in requests]
    for _ in range(50):  # threads that get their turns one after the other meet nobody
        before = sum(one["runs"] for one in group.describe()["executors"])
        with ThreadPoolExecutor(16) as pool:
            for got, expected in zip(pool.map(group.predict, requests), want, strict=True):
                same(got, expected)
        if sum(one["runs"] for one in group.describe()["executors"]) - before < len(requests):
            return
    pytest.fail("no two requests ran together")


def serve(folder, name, **options):
    spec = ModelSpec(name=name, base_path=folder, options=tfctr.GroupOptions(**options), poll_seconds=0)
    return ModelManager([spec])


def test_a_server_gives_the_sessions_answers(bundle, session):
    from tensorflow_serving.apis import predict_pb2

    from tests.serving.server.grpc_serving import serving
    from tests.serving.server.test_grpc_tfs import outputs_of

    with serve(bundle, "m", executors=2) as manager:
        assert manager.wait(240), manager.status()
        with serving(manager) as front:
            for rows in (1, 8, 30):
                reply, _ = front.call(PREDICT, predict_body(request(rows), "m"))
                got = outputs_of(predict_pb2.PredictResponse.FromString(reply))
                same(got, session.predict(request(rows)), atol=0)


def engine_metric(manager):
    metrics = Metrics(manager)
    _, page = metrics.render()
    families = parser.text_string_to_metric_families(page.decode())
    (sample,) = [one for family in families for one in family.samples if one.name == "tfctr_dense_engine"]
    return sample.labels


def test_a_gpu_bundle_on_a_machine_without_one_is_refused_by_name(gpu_bundle):
    with pytest.raises(UsageError, match="tensorrt fp16 does not run the dense tower here: .*no fallback is allowed"):
        tfctr.SessionGroup(gpu_bundle, tfctr.GroupOptions(fallback=False))
    with serve(gpu_bundle, "m", fallback=False) as manager:
        until(lambda: manager.status("m")[0].versions and manager.status("m")[0].versions[0].error)
        assert "tensorrt fp16 does not run the dense tower here" in manager.status("m")[0].versions[0].error


def test_its_fallback_is_named_in_status_and_metrics(gpu_bundle):
    with tfctr.ServingSession(gpu_bundle, engine="tensorflow") as plain:
        want = plain.predict(request(9))
    with serve(gpu_bundle, "m", executors=2, batching=BATCHING) as manager:
        assert manager.wait(240), manager.status()
        with manager.acquire("m") as lease:
            same(lease.version.signature(NAME).predict(request(9))[0], want)
        dense = manager.status("m")[0].versions[0].describe["dense"][NAME]
        assert (dense["asked"], dense["running"], dense["fallback"]) == ("tensorrt", "openvino", True)
        assert "tensorrt: " in dense["reason"]
        labels = engine_metric(manager)
    assert (labels["asked"], labels["running"], labels["fallback"]) == ("tensorrt", "openvino", "true")
    assert labels["signature"] == NAME and "tensorrt: " in labels["reason"]
