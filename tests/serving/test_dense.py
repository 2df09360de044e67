"""Sessions over bundles whose dense tower an engine runs: which form runs, what falls back and how that is said."""

from __future__ import annotations

import json
import logging
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.serving import dense_bundles as bundles
from tests.serving.dense_bundles import NAME, request, same
from tfctr.engines import isa, openvino_library
from tfctr.errors import CorruptFileError, InputError, UsageError

ATOL = bundles.ATOL


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bundles.save(tmp_path_factory.mktemp("dense") / "model")


@pytest.fixture(scope="module")
def bundle(model):
    """OpenVINO, fp32; a variant of 8 rows; the input ``user`` once per user."""
    return bundles.convert(model, model.parent / "openvino", "openvino")


@pytest.fixture
def said(caplog):
    """Warnings of tfctr so far."""
    caplog.set_level(logging.WARNING, "tfctr")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "tfctr"]


@pytest.fixture(scope="module")
def reference(bundle):
    """The same bundle with its tower on TensorFlow."""
    with tfctr.ServingSession(bundle, engine="tensorflow") as session:
        yield session


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 100])
@pytest.mark.parametrize("users", [None, 1, 3])
def test_an_engine_gives_tensorflows_numbers(bundle, reference, rows, users):
    given = request(rows, users if rows else None)
    if users == 3 and rows:
        given |= {"user": request(3)["user"], reference.row_to_user: np.arange(rows) % 3}
        if rows < 3:
            given["user"] = given["user"][:rows]
    with tfctr.ServingSession(bundle) as session:
        same(session.predict(given), reference.predict(given))
        told = session.describe()
        assert told["dense"]["calls"] == 1
        assert told["requests"]["split" if "row_to_user" in given or (users == 1 and rows > 1) else "plain"] == 1


def test_what_describe_says(bundle, said):
    with tfctr.ServingSession(bundle) as session:
        told = session.describe()
        assert session.packed
        assert session.signatures == (NAME,)
        assert [one.name for one in session.outputs] == ["logit", "score"]
    dense = told["dense"]
    assert (dense["asked"], dense["running"], dense["precision"]) == ("openvino", "openvino", "fp32")
    assert (dense["fallback"], dense["reason"], dense["calls"]) == (False, "", 0)
    assert dense["isa"] == {"built": isa.cpu_isa(), "here": isa.cpu_isa()}
    assert dense["engine"]["name"] == "openvino"
    assert dense["engine"]["version"].startswith("2026.4.1")
    assert dense["buckets"] == [8]
    assert len(dense["engines"]) == 2  # the plain form's and the split form's
    json.dumps(told)
    assert told["split"]["signature"] == f"{NAME}__split__dense"
    assert said() == []


def test_inputs_that_are_not_packed(bundle, reference, tmp_path):
    def edit(manifest):
        info = manifest["signatures"][NAME]
        for form in (info, info["dense"], info["split"], info["split"]["dense"]):
            form["packed"] = None

    with tfctr.ServingSession(bundles.edited(bundle, tmp_path / "b", edit)) as session:
        assert not session.packed
        for users in (None, 1):
            same(session.predict(request(9, users)), reference.predict(request(9, users)))
        assert session.describe()["dense"]["calls"] == 2


@pytest.mark.parametrize("stays", ["plain", "split"])
def test_one_of_the_forms_may_stay_on_tensorflow(bundle, reference, tmp_path, stays):
    """A converter that measures may find the engine faster for one form only."""

    def edit(manifest):
        info = manifest["signatures"][NAME]
        form = info if stays == "plain" else info["split"]
        form["dense"] |= {"form": None, "packed": None, "provider": "tensorflow", "reason": "TensorFlow is faster"}

    with tfctr.ServingSession(bundles.edited(bundle, tmp_path / "b", edit)) as session:
        for users in (None, 1):
            same(session.predict(request(9, users)), reference.predict(request(9, users)))
        told = session.describe()
        assert told["requests"] == {"plain": 1, "split": 1, "repeated": 0}
        assert (told["dense"]["running"], told["dense"]["calls"], len(told["dense"]["engines"])) == ("openvino", 1, 1)
        assert told["split"]["signature"] == (f"{NAME}__split" if stays == "split" else f"{NAME}__split__dense")


def test_traces_show_the_engine(bundle, reference):
    def ops(session):
        _, metadata = session.run_traced(request(9))
        return {
            node.timeline_label.split("= ")[-1].split("(")[0]
            for device in metadata.step_stats.dev_stats
            for node in device.node_stats
        }

    with tfctr.ServingSession(bundle) as session:
        assert "TfctrDenseEngine" in ops(session)
        assert "MatMul" not in ops(session)
    assert "MatMul" in ops(reference)


def test_engines_are_warm_before_the_first_request(bundle):
    with tfctr.ServingSession(bundle) as session:
        (plain, _) = session.describe()["dense"]["engines"]
        assert all(variant["warm_ms"] > 0 for variant in plain["variants"])


def test_threads_are_the_sessions(bundle):
    with tfctr.ServingSession(bundle, intra_op_threads=2) as two, tfctr.ServingSession(bundle) as one:
        assert {engine["threads"] for engine in two.describe()["dense"]["engines"]} == {2}
        assert {engine["threads"] for engine in one.describe()["dense"]["engines"]} == {1}
        same(two.predict(request(20)), one.predict(request(20)))


def test_sessions_share_an_engine_and_outlive_each_other(bundle, reference):
    first, second = tfctr.ServingSession(bundle), tfctr.ServingSession(bundle)
    first.predict(request(5))
    ran = lambda session: sum(v["runs"] for v in session.describe()["dense"]["engines"][0]["variants"])  # noqa: E731
    assert ran(second) == ran(first) >= 1
    assert second.describe()["dense"]["calls"] == 0
    first.close()
    same(second.predict(request(5)), reference.predict(request(5)))
    second.close()


def test_sixteen_threads(bundle, reference):
    wants = {rows: reference.predict(request(rows)) for rows in (1, 5, 8, 30)}
    failed = []
    with tfctr.ServingSession(bundle) as session:

        def work(number):
            for k in range(20):
                rows = (1, 5, 8, 30)[(number + k) % 4]
                got = session.predict(request(rows))
                if any(not np.allclose(got[name], wants[rows][name], atol=ATOL) for name in got):
                    failed.append(rows)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert session.describe()["dense"]["calls"] == 320


def test_close_while_predicting(bundle):
    session = tfctr.ServingSession(bundle)
    started, ended, errors = threading.Barrier(5), [], []

    def work():
        started.wait()
        try:
            while True:
                session.predict(request(40))
        except UsageError as error:
            ended.append(str(error))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    session.close()
    for thread in threads:
        thread.join(120)
    assert errors == []
    assert len(ended) == 4
    assert "this ServingSession is closed" in ended[0]


def test_bad_requests_name_the_input_and_the_next_one_works(bundle, reference):
    with tfctr.ServingSession(bundle) as session:
        bad = request(9)
        bad["price"] = bad["price"][:, :2]
        with pytest.raises(InputError, match="price"):
            session.predict(bad)
        bad = request(9)
        bad["price"] = bad["price"][:5]
        with pytest.raises(InputError):
            session.predict(bad)
        same(session.predict(request(9)), reference.predict(request(9)))


def test_stock_tensorflow_runs_the_form_with_the_engine(bundle, reference):
    loaded = tf.saved_model.load(str(bundle))
    got = loaded.signatures[f"{NAME}__dense"](**{name: tf.constant(value) for name, value in request(9).items()})
    same({name: value.numpy() for name, value in got.items()}, reference.predict(request(9)))


@pytest.mark.parametrize("how", ["package", "library", "version"])
def test_without_openvino_tensorflow_runs_and_one_line_says_so(bundle, reference, monkeypatch, said, tmp_path, how):
    if how == "package":
        bundles.without_package(monkeypatch, "openvino")
        reason = "the package openvino is not installed"
    elif how == "library":
        monkeypatch.setattr(openvino_library, "LIBRARY", tmp_path / "libtfctr_openvino.so")
        reason = "has no libtfctr_openvino.so"
    else:
        monkeypatch.setattr(openvino_library, "installed", lambda: "2025.1.0")
        reason = "is built against OpenVINO 2026.4.1.*but 2025.1.0 is installed"
    with tfctr.ServingSession(bundle) as session:
        for users in (None, 1):
            same(session.predict(request(9, users)), reference.predict(request(9, users)), atol=0)
        dense = session.describe()["dense"]
        assert session.describe()["split"]["signature"] == f"{NAME}__split"
    assert (dense["asked"], dense["running"], dense["precision"]) == ("openvino", "tensorflow", "fp32")
    assert (dense["fallback"], dense["engine"], dense["buckets"], dense["calls"]) == (True, None, [], 0)
    (line,) = said()
    assert "\n" not in line
    assert f"signature '{NAME}': the dense tower runs on tensorflow fp32 instead of openvino fp32: openvino: " in line
    assert line.endswith(dense["reason"])
    with pytest.raises(UsageError, match=f"openvino fp32 does not run the dense tower here: .*{reason}") as refused:
        tfctr.ServingSession(bundle, fallback=False)
    assert "no fallback is allowed; there is: openvino fp32; tensorflow" in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("tensorrt", "no engine 'tensorrt'; there is: openvino fp32; tensorflow"),
        ("onnxruntime", "engine 'onnxruntime': expected tensorflow, openvino, tensorrt"),
    ],
)
def test_an_engine_that_the_bundle_does_not_have(bundle, engine, message):
    with pytest.raises(UsageError, match=message):
        tfctr.ServingSession(bundle, engine=engine)


def test_an_engine_that_is_asked_for(bundle, said):
    with tfctr.ServingSession(bundle, engine="tensorflow") as session:
        dense = session.describe()["dense"]
        assert (dense["asked"], dense["running"], dense["fallback"]) == ("tensorflow", "tensorflow", False)
        assert dense["reason"] == "asked for"
    with tfctr.ServingSession(bundle, engine="openvino") as session:
        assert session.describe()["dense"]["running"] == "openvino"
    assert said() == []


def test_an_engine_that_is_asked_for_and_does_not_run_is_an_error(bundle, monkeypatch):
    bundles.without_package(monkeypatch, "openvino")
    with pytest.raises(UsageError, match="openvino fp32 does not run the dense tower here: .* it was asked for"):
        tfctr.ServingSession(bundle, engine="openvino")


def test_models_without_an_engine(model):
    with tfctr.ServingSession(model) as session:
        dense = session.describe()["dense"]
        assert (dense["asked"], dense["running"], dense["fallback"], dense["reason"]) == (
            "tensorflow",
            "tensorflow",
            False,
            "",
        )
    with pytest.raises(UsageError, match="no engine 'openvino'; there is: tensorflow"):
        tfctr.ServingSession(model, engine="openvino")
    tfctr.ServingSession(model, engine="tensorflow", fallback=False).close()


def test_a_bundle_that_stayed_on_tensorflow_says_why(bundle, tmp_path):
    def edit(manifest):
        info = manifest["signatures"][NAME]
        for form in (info, info["split"]):
            form["dense"] |= {"form": None, "packed": None, "provider": "tensorflow", "reason": "TensorFlow is faster"}

    path = bundles.edited(bundle, tmp_path / "b", edit)
    with tfctr.ServingSession(path, fallback=False) as session:
        dense = session.describe()["dense"]
        assert (dense["running"], dense["fallback"], dense["reason"]) == ("tensorflow", False, "TensorFlow is faster")
    with pytest.raises(UsageError, match="no engine 'openvino'; there is: tensorflow .TensorFlow is faster."):
        tfctr.ServingSession(path, engine="openvino")


def test_another_cpu_is_told(bundle, monkeypatch, said):
    built = isa.cpu_isa()
    monkeypatch.setattr(isa, "cpu_isa", lambda: "avx512")
    with tfctr.ServingSession(bundle) as session:
        assert session.describe()["dense"]["isa"] == {"built": built, "here": "avx512"}
    (line,) = said()
    assert f"was tuned on a CPU with {built}, this one has avx512; it runs in fp32 as asked" in line


def test_bf16_falls_back_where_the_cpu_has_none(bundle, reference, monkeypatch, said, tmp_path):
    def attributes(node):
        node.attr["precision"].s = b"bf16"

    def edit(manifest):
        info = manifest["signatures"][NAME]
        for form in (info, info["split"]):
            form["dense"] |= {"precision": "bf16", "fallback": "openvino"}

    monkeypatch.setattr(isa, "supports_bf16", lambda: False)
    path = bundles.edited(bundles.with_nodes(bundle, tmp_path / "a", attributes), tmp_path / "b", edit)
    with tfctr.ServingSession(path) as session:
        dense = session.describe()["dense"]
        same(session.predict(request(9)), reference.predict(request(9)))
    assert (dense["asked"], dense["running"], dense["precision"], dense["fallback"]) == (
        "openvino",
        "openvino",
        "fp32",
        True,
    )
    assert {engine["precision"] for engine in dense["engines"]} == {"fp32"}
    assert "bf16 needs a CPU with avx512_bf16 or amx_bf16" in dense["reason"]
    assert len(said()) == 1
    with tfctr.ServingSession(path, engine="openvino") as session:  # by the same provider, in fp32
        assert session.describe()["dense"]["precision"] == "fp32"
        assert session.describe()["dense"]["fallback"]
    for more in ({}, {"engine": "openvino"}):
        with pytest.raises(UsageError, match="openvino bf16 does not run .* bf16 needs a CPU"):
            tfctr.ServingSession(path, fallback=False, **more)


def test_an_engine_that_does_not_open_falls_back_or_is_an_error(bundle, reference, said, tmp_path):
    def edit(node):
        node.attr["roles"].list.s[0] = b"nothing"

    path = bundles.with_nodes(bundle, tmp_path / "b", edit)
    with tfctr.ServingSession(path) as session:
        same(session.predict(request(9)), reference.predict(request(9)), atol=0)
        assert session.describe()["dense"]["fallback"]
    assert len(said()) == 1
    assert "onnx" in said()[0]
    with pytest.raises(UsageError, match="no fallback is allowed"):
        tfctr.ServingSession(path, fallback=False)


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_damaged_engine_files_are_refused_by_name(bundle, tmp_path, damage):
    path = tmp_path / "b"
    shutil.copytree(bundle, path)
    file = bundles.engine_file(path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(bytes(data) if damage == "flipped" else bytes(data[:-7]))
    for engine in (None, "tensorflow"):
        with pytest.raises(CorruptFileError, match=file.name):
            tfctr.ServingSession(path, engine=engine)


def test_a_manifest_that_names_a_form_that_is_not_there(bundle, tmp_path):
    def edit(manifest):
        manifest["signatures"][NAME]["dense"]["form"] = "nothing"

    with pytest.raises(CorruptFileError, match="names the signature 'nothing'"):
        tfctr.ServingSession(bundles.edited(bundle, tmp_path / "b", edit))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"provider": "mystery"}, "has the provider 'mystery' in 'fp32', expected one of tensorflow: fp32; openvino"),
        ({"precision": "fp4"}, "has the provider 'openvino' in 'fp4', expected one of"),
        ({"fallback": "nothing"}, "has the provider 'nothing' in 'fp32', expected one of"),
        ({"fallback": "tensorrt", "fallback_precision": "bf16"}, "has the provider 'tensorrt' in 'bf16'"),
    ],
)
def test_a_manifest_that_names_what_there_is_not(bundle, tmp_path, change, said):
    def edit(manifest):
        manifest["signatures"][NAME]["dense"] |= change

    with pytest.raises(CorruptFileError, match=said):
        tfctr.ServingSession(bundles.edited(bundle, tmp_path / "b", edit))


def test_a_manifest_that_lacks_the_engines_file(bundle, tmp_path):
    def edit(manifest):
        manifest["store"]["files"] = manifest["store"]["files"][:1]

    with pytest.raises(CorruptFileError, match="the graph's engine reads file . of the store, the manifest has 1"):
        tfctr.ServingSession(bundles.edited(bundle, tmp_path / "b", edit))
