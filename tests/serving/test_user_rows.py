"""One user row beside many candidates: which form runs, that all routes agree, what is refused, and threads."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.serving.split_bundle import FEATURES, NAME, repeated, request, save
from tfctr.bundle import naming
from tfctr.core import library
from tfctr.errors import CorruptFileError, InputError, UsageError

FORMS = [(packed, split) for packed in (True, False) for split in (True, False)]
IDS = [f"{'packed' if packed else 'fed'}-{'split' if split else 'repeat'}" for packed, split in FORMS]


@pytest.fixture(scope="module", params=FORMS, ids=IDS)
def session(request, tmp_path_factory):
    packed, split = request.param
    with tfctr.ServingSession(save(tmp_path_factory.mktemp("b") / "b", packed=packed, split=split)) as made:
        yield made


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("one") / "bundle")


def assert_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    for name in ("age", "city", "sums", "score"):
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


@pytest.mark.parametrize(("rows", "users"), [(7, 1), (1, 1), (500, 1), (0, 1), (9, 4), (4, 4)])
def test_user_rows_once_equal_user_rows_repeated(session, rows, users):
    given = request(rows, users, seed=rows)
    row_to_user = np.arange(rows)[::-1] % users
    want = session.predict(repeated(given, row_to_user))
    assert (want["form"] == 1).all()
    got = session.predict(given | {"row_to_user": row_to_user})
    assert_same(got, want)
    assert (got["form"] == (2 if session.describe()["split"] else 1)).all()
    if users == 1:
        assert_same(session.predict(given), want)


@pytest.mark.parametrize(("packed", "split"), FORMS, ids=IDS)
def test_inputs_that_a_request_names(tmp_path, packed, split):
    """Sparse and ragged ones, beside what the model declares, and where it declares nothing."""
    path = save(tmp_path / "bundle", packed=packed, split=split)
    call = library.native().Call
    given = request(5, 1)
    with tfctr.SessionGroup(path) as group:
        handle = group.version.signature(NAME)
        want = handle.predict(repeated(given, np.zeros(5, np.int64)))[0]
        for names in ([], ["age", "tags"]):  # declared anyway
            assert_same(handle.predict(given, call(user_inputs=names))[0], want)
        users = repeated(given, np.zeros(5, np.int64)) | {"item": given["item"][:1]}
        shared = handle.predict(users, call(user_inputs=["item"]))[0]
        assert_same(shared, handle.predict(users | {"item": np.repeat(given["item"][:1], 5, 0)})[0])
    if split:
        return
    manifest = json.loads((path / naming.MANIFEST).read_text())
    manifest["signatures"][NAME]["user"] = None
    (path / naming.MANIFEST).write_text(json.dumps(manifest))
    with tfctr.SessionGroup(path) as group:
        handle = group.version.signature(NAME)
        names = [one["name"] for one in FEATURES if one["name"] != "item"]
        assert_same(handle.predict(given, call(user_inputs=names))[0], want)
        assert_same(group.predict(given, user_inputs=names), want)
        assert_same(group.predict_async(given, user_inputs=names).result(), want)
        with pytest.raises(InputError):
            handle.predict(given, call(user_inputs=names[1:]))
        with pytest.raises(InputError, match="there is no input 'row_to_user'|row_to_user"):
            handle.predict(given, call(user_inputs=["row_to_user"]))


def test_a_session_takes_names_too(session):
    given = request(5, 1)
    users = repeated(given, np.zeros(5, np.int64)) | {"item": given["item"][:1]}
    want = session.predict(users | {"item": np.repeat(given["item"][:1], 5, 0)})
    for names in ("item", ["item", "age"]):
        assert_same(session.predict(users, user_inputs=names), want)
    assert_same(session.predict_async(users, user_inputs=["item"]).result(), want)
    with pytest.raises(InputError, match="there is no input 'itme'; did you mean 'item'"):
        session.predict(users, user_inputs=["itme"])


def test_describe_tells_what_ran(session):
    before = session.describe()["requests"]
    session.predict(request(5, None))
    session.predict(request(5, 1))
    told = session.describe()
    after = told["requests"]
    has_split = told["split"] is not None
    # `mood` stays with the rows, so a split request repeats it.
    assert {k: after[k] - before[k] for k in after} == {
        "plain": 1 if has_split else 2,
        "split": 1 if has_split else 0,
        "repeated": 1,
    }
    assert told["user_features"] == ["age", "city", "hist", "mood", "tags"] == list(session.user_features)
    assert told["row_to_user"] == session.row_to_user == "row_to_user"
    assert told["devices"]["session"]
    assert told["devices"]["fell_back"] == []
    assert session.signatures == ("serving_default",)
    json.dumps(told)


def test_a_traced_run_takes_the_same_way(session):
    outputs, metadata = session.run_traced(request(5, 1))
    assert (outputs["form"] == (2 if session.describe()["split"] else 1)).all()
    assert metadata.step_stats.dev_stats


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"row_to_user": [0] * 4 + [-1]}, r"got -1 at \[4\]"),
    ({"row_to_user": [0] * 4 + [2**62]}, r"got 4611686018427387904 at \[4\]"),
    ({"row_to_user": np.zeros(5)}, r"float64 \[5\], expected int64"),
    ({"row_to_user": np.zeros((5, 1), np.int64)}, r"int64 \[5, 1\], expected int64 \[\?\]"),
    ({"row_to_user": [0] * 4}, "4 numbers, expected one for each of the 5 rows of 'item'"),
    ({"row_to_user": [0] * 6}, "6 numbers"),
    ({"row_to_user": []}, "0 numbers"),
    ({"age": np.zeros((2, 2), np.float32)}, "user feature 'age' has 2 rows and user feature 'city' has 1"),
    ({"tags": [[1], [2]]}, "user feature 'tags' has 2"),
    ({"hist": [[1], [2]]}, "user feature 'hist' has 2"),
    ({"mood": np.zeros(5, np.int64)}, "user feature 'mood' has 5"),
    ({"item": np.zeros((0, 3), np.float32), "row_to_user": [0]}, "expected one for each of the 0 rows"),
    (request(5, 2), "has 2 rows and 'item' has 5; expected as many, or one row for one user, or 'row_to_user'"),
    (request(5, 0), "has 0 rows and 'item' has 5"),
    (request(5, 3) | {"row_to_user": [0, 1, 1, 0, 1]}, "has 3 rows, but the largest .* is 1; expected 2 or 1"),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_requests_are_refused_by_name(session, change, message):
    with pytest.raises(InputError, match=message) as caught:
        session.predict(request(5, 1) | change)
    assert "bundle" in str(caught.value) or "model '" in str(caught.value)
    assert "signature 'serving_default'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert session.predict(request(5, 1))["score"].shape == (5,)


def test_nothing_at_all(session):
    empty = session.predict(request(0, 0))
    assert empty["score"].shape == (0,)
    assert empty["city"].shape == (0,)


def test_threads_may_run_both_forms_at_once(bundle):
    with tfctr.ServingSession(bundle) as session:
        cases = []
        for k in range(6):
            given = request(20 + k, 1 + k % 3, seed=k)
            row_to_user = np.arange(20 + k) % (1 + k % 3)
            cases += [given | {"row_to_user": row_to_user}, repeated(given, row_to_user)]
        wants = [session.predict(case) for case in cases]

        def work(number: int) -> None:
            for k in range(40):
                at = (number + k) % len(cases)
                assert_same(session.predict(cases[at]), wants[at])

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(8)))
        counts = session.describe()["requests"]
    assert counts["split"] > 100
    assert counts["plain"] > 100


def test_user_features_may_be_named_at_load(tmp_path):
    model = tmp_path / "model"
    save(model, packed=False, split=False)
    (model / naming.MANIFEST).unlink()
    features = [feature for feature in FEATURES if feature["kind"] != "dense"]
    given = request(6, 1)
    with tfctr.ServingSession(model, features=features) as session:
        assert session.user_features == ()
        with pytest.raises(InputError, match="no user features are declared"):
            session.predict(request(6, None) | {"row_to_user": [0] * 6})
        want = session.predict(repeated(given, np.zeros(6, int)))
    names = ["age", "c*", "hist_1", "mood", "tags/v*"]  # a part means its feature
    with tfctr.ServingSession(model, features=features, user_features=names) as session:
        assert session.user_features == ("age", "city", "hist", "mood", "tags")
        got = session.predict(given)
        assert_same(got, want)
        assert session.describe()["requests"] == {"plain": 1, "split": 0, "repeated": 1}
        two = session.predict(request(6, 2) | {"row_to_user": [1, 0, 1, 0, 1, 0]})
        assert two["score"].shape == (6,)
    with pytest.raises(UsageError, match=r"no feature or input 'nobody' to be a user feature; there is: age"):
        tfctr.ServingSession(model, user_features=["nobody"])


def test_user_features_named_at_load_add_to_those_of_the_bundle(bundle):
    with tfctr.ServingSession(bundle, user_features=["item"]) as session:
        given = request(1, 1)
        assert session.predict(given | {"row_to_user": [0]})["score"].shape == (1,)
        assert "item" in session.user_features


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signature": "gone"}, "signature 'gone', which the model does not have"),
        ({"packed": "gone"}, "signature 'gone', which the model does not have"),
        ({"row_to_user": "other"}, "unlike the plain one|does not take"),
        ({"user_inputs": ["nobody"]}, "user input 'nobody', which it does not have"),
        ({"signature": "serving_default"}, "does not take 'row_to_user'"),
        ({"signature": 3}, "split"),
        ({"user_inputs": None}, "split"),
    ],
)
def test_a_manifest_that_lies_about_the_split_form_is_corrupt(tmp_path, bundle, change, message):
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    manifest = json.loads((broken / naming.MANIFEST).read_text())
    manifest["signatures"]["serving_default"]["split"] |= change
    (broken / naming.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CorruptFileError, match=message):
        tfctr.ServingSession(broken)


def test_stock_tensorflow_runs_the_split_form_too(bundle):
    model = tf.saved_model.load(str(bundle))
    function = model.signatures["serving_default__split"]
    assert "row_to_user" in function.structured_input_signature[1]


def test_weights_of_a_plain_model_follow_their_feature(tmp_path):
    v1 = tf.compat.v1
    shapes = {"s": [None], "s_rows": [None, 2], "s_shape": [2], "w": [None], "item": [None]}
    with tf.Graph().as_default(), v1.Session() as made:
        inputs = {n: v1.placeholder(tf.float32 if n == "w" else tf.int64, shape) for n, shape in shapes.items()}
        summed = tf.math.unsorted_segment_sum(
            tf.cast(inputs["s"], tf.float32) * inputs["w"], inputs["s_rows"][:, 0], inputs["s_shape"][0]
        )
        outputs = {"score": summed + tf.cast(inputs["item"], tf.float32)}
        builder = v1.saved_model.Builder(str(tmp_path / "m"))
        signature = v1.saved_model.predict_signature_def(inputs, outputs)
        builder.add_meta_graph_and_variables(made, ["serve"], {"serving_default": signature})
        builder.save()
    features = [
        {"name": "s", "kind": "sparse", "parts": {"values": "s", "indices": "s_rows", "dense_shape": "s_shape"}},
        {"name": "w", "kind": "dense", "parts": {"values": "w"}, "like": "s"},
    ]
    with tfctr.ServingSession(tmp_path / "m", features=features, user_features=["s"]) as session:
        got = session.predict({"s": [[2, 3]], "w": np.float32([0.5, 2]), "item": [10, 20, 30]})
        assert got["score"].tolist() == [17.0, 27.0, 37.0]


def test_a_model_with_an_input_of_that_name_keeps_it(tmp_path):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as made:
        inputs = {name: v1.placeholder(tf.int64, [None]) for name in ("row_to_user", "u")}
        signature = v1.saved_model.predict_signature_def(inputs, {"sum": inputs["row_to_user"] + 10 * inputs["u"]})
        builder = v1.saved_model.Builder(str(tmp_path / "m"))
        builder.add_meta_graph_and_variables(made, ["serve"], {"serving_default": signature})
        builder.save()
    with tfctr.ServingSession(tmp_path / "m", user_features=["u"]) as session:
        assert session.row_to_user == "row_to_user_1"
        got = session.predict({"row_to_user": [7, 8, 9], "u": [1, 2], "row_to_user_1": [1, 0, 1]})
        assert got["sum"].tolist() == [27, 18, 29]
    with pytest.raises(UsageError, match="closed"):
        session.describe()
