"""The cut on graphs by hand: what is inside, what stays outside and why, names, sides, sizes."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from export.attempt import attempt_export
from export.cut import CannotExport, check_texts, cut_tower
from export.tower_session import sizes_differ
from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.recognise.facts import Facts
from graph_opt.testing import SIGNATURE, apply, graph_item
from graph_opt.view import GraphView
from tests.export.wholes import cut_and_compare, exported, inputs_of
from tests.graph_opt.graphs import placeholder, sparse_feeds, sparse_input, table
from tfctr.errors import StrictRefusal

RNG = np.random.default_rng(5)
IDS = RNG.integers(0, 100, 9)


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def ops(tower) -> set[str]:
    return {node.op for node in tower.graph_def.node}


@pytest.fixture
def item_of(tmp_path) -> Callable:
    def make(build, **tables):
        return graph_item(build, tables=tables, work_dir=tmp_path)

    return make


def ranker(tables):
    """A lookup, a dense input, a tower."""
    ids, x = placeholder(tf.int64, [None], "item"), placeholder(tf.float32, [None, 3], "price")
    joined = tf.concat([tf.gather(tables["emb"], ids), x], 1)
    return {"score": tf.sigmoid(tf.matmul(tf.nn.relu(tf.matmul(joined, weights(7, 5))), weights(5, 1)))}


REQUEST = {"item": IDS, "price": RNG.normal(size=(9, 3)).astype(np.float32)}


def test_between_lookups_and_outputs(item_of):
    item = item_of(ranker, emb=table())
    tower = cut_and_compare(item, REQUEST)
    assert inputs_of(tower) == {
        "item": ("float32", (None, 4), "item"),
        "price": ("float32", (None, 3), "dense"),
    }
    assert [(o.name, o.shape, o.dtype, o.side) for o in tower.outputs] == [("score", (None, 1), "float32", "")]
    assert tower.signature == SIGNATURE and tower.left_outside == ()
    assert "GatherV2" not in ops(tower) and {"MatMul", "ConcatV2", "Sigmoid"} <= ops(tower)
    assert exported(item).verdict.max_difference <= 1e-5


def test_fused_lookups(item_of):
    def build(tables):
        parts = [sparse_input(name) for name in ("a", "b")]
        means = [tf.nn.safe_embedding_lookup_sparse(tables["emb"], part, combiner="mean") for part in parts]
        return {"score": tf.matmul(tf.concat(means, 1), weights(8, 1))}

    item, _ = apply(fuse_lookups, item_of(build, emb=table()))
    tower = cut_and_compare(item, {**sparse_feeds("a", [2, 0, 3]), **sparse_feeds("b", [1, 1, 0], seed=1)})
    assert inputs_of(tower) == {"embeddings": ("float32", (None, 8), "item")}


def test_variables_in_files_become_constants(item_of):
    """A dense variable above the limit is a file of the store; the tower has its numbers."""
    kernel = weights(4, 6)

    def build(tables):
        x = placeholder(tf.float32, [None, 4], "x")
        return {"y": tf.matmul(x, tables["kernel"]) + tf.reduce_sum(tables["kernel"], 0)}

    item = item_of(build, kernel=kernel)
    tower = cut_and_compare(item, {"x": weights(3, 4, seed=1)})
    constants = [tf.make_ndarray(n.attr["value"].tensor) for n in tower.graph_def.node if n.op == "Const"]
    assert any(np.array_equal(value, kernel) for value in constants)
    item.files[0] = type(item.files[0])(
        kind="table", path=None, name="kernel", dtype="float32", shape=(4, 6), source="kernel"
    )
    with pytest.raises(CannotExport, match="the weights kernel have not been read"):
        cut_tower(item, SIGNATURE)


def test_several_outputs(item_of):
    """An inner tensor, a last one, one that is no business of the tower's."""

    def build(tables):
        found = ranker(tables)
        ids = tf.compat.v1.get_default_graph().get_tensor_by_name("item:0")
        hidden = tf.nn.relu(tf.matmul(tf.gather(tables["emb"], ids), weights(4, 2)))
        return {**found, "hidden": hidden, "both": tf.reduce_sum(hidden, 1) + found["score"][:, 0], "echo": ids + 1}

    tower = cut_and_compare(item_of(build, emb=table()), REQUEST)
    assert [o.name for o in tower.outputs] == ["both", "hidden", "score"]


def test_labels_stay_outside(item_of):
    """Class labels are strings: the engine gives the number of the class."""

    def build(tables):
        scores = tf.nn.softmax(tf.matmul(placeholder(tf.float32, [None, 4], "x"), weights(4, 3)))
        labels = tf.gather(tf.constant(["no", "maybe", "yes"]), tf.argmax(scores, 1))
        return {"scores": scores, "label": labels}

    tower = cut_and_compare(item_of(build), {"x": weights(5, 4)})
    assert {o.dtype for o in tower.outputs} == {"float32", "int64"}
    assert "scores" in [o.name for o in tower.outputs]


@pytest.mark.parametrize("kind", ["float", "class"])
def test_numbers_as_text(item_of, kind):
    """Digits of a score show every rounding, so that no other one would ever be equal; those of a class don't."""

    def build(tables):
        scores = tf.nn.softmax(tf.matmul(placeholder(tf.float32, [None, 4], "x"), weights(4, 3)))
        text = tf.strings.as_string(tf.argmax(scores, 1) if kind == "class" else tf.reshape(tf.identity(scores), [-1]))
        return {"scores": scores, "text": text}

    item = item_of(build)
    tower = cut_and_compare(item, {"x": weights(5, 4)})  # as ONNX it is what it was
    facts = Facts(GraphView(item.graph_def))
    if kind == "class":
        check_texts(item, tower, facts)
        return
    with pytest.raises(CannotExport, match=r"\(AsString\) writes its numbers as text: every rounding shows there"):
        check_texts(item, tower, facts)


def test_double_precision_at_the_end(item_of):
    def build(tables):
        logit = tf.matmul(placeholder(tf.float32, [None, 4], "x"), weights(4, 1))
        return {"score": tf.sigmoid(tf.cast(logit, tf.float64))}

    tower = cut_and_compare(item_of(build), {"x": weights(5, 4)})
    assert [o.dtype for o in tower.outputs] == ["float32"]
    assert any("Cast: float64" in line for line in tower.left_outside)


def test_double_precision_throughout(item_of):
    def build(tables):
        return {"y": tf.matmul(placeholder(tf.float64, [None, 4], "x"), np.ones((4, 1)))}

    with pytest.raises(CannotExport, match="nothing to gain: no matrix product can leave .*float64"):
        cut_tower(item_of(build), SIGNATURE)


@pytest.mark.parametrize(("first", "last"), [(8, 64), (64, 8)])
def test_an_op_in_the_middle(item_of, first, last):
    """What no engine knows parts the tower; the side with more weights is taken."""

    def build(tables):
        x = placeholder(tf.float32, [None, 4], "x")
        hidden = tf.math.igamma(2.0, tf.nn.softplus(tf.matmul(x, weights(4, first))))
        return {"y": tf.matmul(tf.matmul(hidden, weights(first, last)), weights(last, 64 + first))}

    tower = cut_and_compare(item_of(build), {"x": weights(5, 4)})
    assert "Igamma" not in ops(tower)
    assert len(tower.left_outside) == 1 and "no ONNX translation; 1 matrix product with it" in tower.left_outside[0]


def test_an_op_at_the_end_and_at_the_start(item_of):
    def build(tables):
        x = tf.math.log1p(tf.abs(placeholder(tf.float32, [None, 4], "x")))
        return {"y": tf.math.bessel_i0(tf.tanh(tf.matmul(x, weights(4, 2))))}

    tower = cut_and_compare(item_of(build), {"x": weights(5, 4)})
    assert {line.split(": ")[1] for line in tower.left_outside} == {"Log1p", "BesselI0"}
    assert {"MatMul", "Tanh"} <= ops(tower)


def test_nothing_to_gain(item_of):
    x = np.ones((2, 4), np.float32)
    item = item_of(lambda t: {"y": tf.sigmoid(placeholder(tf.float32, [None, 4], "x") * 2.0)})
    with pytest.raises(CannotExport, match="it has no dense tower: no matrix product"):
        cut_tower(item, SIGNATURE)
    attempt = attempt_export(item, SIGNATURE)
    assert attempt.tower is None and "no matrix product" in attempt.reason and attempt.as_dict()["inputs"] == []
    with pytest.raises(StrictRefusal, match=f"{SIGNATURE}: the dense tower stays on TensorFlow: it has no dense"):
        attempt_export(item, SIGNATURE, required=True)
    assert x.shape == (2, 4)


def test_two_stages(item_of):
    """A matrix product that a lookup needs can't be in one tower with what reads the lookup."""

    def build(tables):
        first = tf.matmul(placeholder(tf.float32, [None, 4], "x"), weights(4, 100))
        found = tf.gather(tables["emb"], tf.argmax(first, 1))
        hidden = tf.nn.relu(tf.matmul(found, weights(4, 300)))
        return {"y": tf.matmul(hidden, weights(300, 2)) + tf.reduce_sum(first, 1, keepdims=True)}

    tower = cut_and_compare(item_of(build, emb=table()), {"x": weights(5, 4)})
    assert len([n for n in tower.graph_def.node if n.op == "MatMul"]) == 2
    assert any("is computed from the tower and read by it" in line for line in tower.left_outside)


def test_rows_from_ids(item_of):
    """The number of rows is taken from ids, which the tower does not get."""

    def build(tables):
        ids = placeholder(tf.int64, [None], "item")
        x = placeholder(tf.float32, [None, 4], "x")
        ones = tf.fill(tf.stack([tf.shape(ids)[0], 1]), 1.0)
        return {"y": tf.matmul(tf.concat([x, ones], 1), weights(5, 2))}

    item = item_of(build)
    tower = cut_and_compare(item, {"item": IDS, "x": weights(9, 4)}, {"item": IDS[:0], "x": weights(0, 4)})
    assert list(inputs_of(tower)) == ["x"]
    exported(item)


def test_rows_from_a_sparse_shape(item_of):
    def build(tables):
        part = sparse_input("a")
        mean = tf.nn.safe_embedding_lookup_sparse(tables["emb"], part, combiner="mean")
        rows = tf.cast(part.dense_shape[0], tf.int32)
        bias = tf.tile(tf.constant(weights(1, 3)), tf.stack([rows, 1]))
        return {"y": tf.matmul(tf.concat([mean, bias], 1), weights(7, 1))}

    item, _ = apply(fuse_lookups, item_of(build, emb=table()))
    tower = cut_and_compare(item, sparse_feeds("a", [2, 0, 3]))
    assert list(inputs_of(tower)) == ["a"]


def test_one_number_for_the_request(item_of):
    def build(tables):
        heat = placeholder(tf.float32, [], "heat")
        return {"y": tf.matmul(placeholder(tf.float32, [None, 4], "x"), weights(4, 2)) / heat}

    item = item_of(build)
    item.signatures[SIGNATURE].inputs["heat"].tensor_shape.unknown_rank = False  # as in a SavedModel
    tower = cut_and_compare(item, {"x": weights(5, 4), "heat": np.float32(2)})
    assert inputs_of(tower)["heat"] == ("float32", (), "dense")
    exported(item)


def test_masks_of_ids(item_of):
    """What is made of ids stays outside: the tower gets a mask, not int64."""

    def build(tables):
        ids = placeholder(tf.int64, [None, 6], "history")
        rows = tf.gather(tables["emb"], ids)
        mask = tf.cast(tf.not_equal(ids, 0), tf.float32)
        return {"y": tf.matmul(tf.reduce_sum(rows * mask[:, :, tf.newaxis], 1), weights(4, 2))}

    tower = cut_and_compare(item_of(build, emb=table()), {"history": RNG.integers(0, 100, (5, 6))})
    assert {dtype for dtype, _, _ in inputs_of(tower).values()} <= {"float32", "bool"}


def test_ids_whose_shape_is_needed(item_of):
    """Positions of any number, which only the ids tell: they go in."""

    def build(tables):
        ids = placeholder(tf.int64, [None, None], "history")
        rows = tf.gather(tables["emb"], ids)
        mask = tf.cast(tf.not_equal(ids, 0), tf.float32)
        flat = tf.reshape(tf.tensordot(rows, weights(4, 1), 1), tf.shape(ids)) * mask
        return {"y": tf.reduce_sum(flat, 1, keepdims=True)}

    item = item_of(build, emb=table())
    cut_and_compare(item, {"history": RNG.integers(0, 100, (5, 6))}, {"history": RNG.integers(0, 100, (2, 3))})
    exported(item)


def test_control_flow_stays(item_of):
    def build(tables):
        x = placeholder(tf.float32, [None, 4], "x")
        hidden = tf.matmul(x, weights(4, 8))

        @tf.function(autograph=False)
        def chosen(h):
            return tf.cond(tf.reduce_sum(h) > 0, lambda: h * 2.0, lambda: h)

        with tf.compat.v1.get_default_graph().as_default():
            picked = tf.compat.v1.cond(tf.reduce_sum(x) > 0, lambda: hidden * 2.0, lambda: hidden)
        return {"y": tf.matmul(tf.nn.relu(picked), weights(8, 64))}

    tower = cut_and_compare(item_of(build), {"x": weights(5, 4)}, {"x": -weights(5, 4)})
    assert not {"If", "StatelessIf", "Switch", "Merge"} & ops(tower)
    assert any("control flow" in line or "effect" in line for line in tower.left_outside)


def test_random_numbers_stay(item_of):
    def build(tables):
        hidden = tf.matmul(placeholder(tf.float32, [None, 4], "x"), weights(4, 8))
        return {"y": hidden, "noisy": hidden + tf.random.uniform([8])}

    tower = cut_tower(item_of(build), SIGNATURE)
    assert [o.name for o in tower.outputs] == ["y"]
    assert not any("Random" in op for op in ops(tower))


def test_names(item_of):
    """Letters, digits and underscores, no two the same; an output keeps its name before an input does."""

    def build(tables):
        a = placeholder(tf.float32, [None, 2], "user/age")
        b = placeholder(tf.float32, [None, 2], "user_age")
        score = placeholder(tf.float32, [None, 2], "score")
        return {
            "score": tf.matmul(tf.concat([a, b, score], 1), weights(6, 1)),
            "7.day/rate": tf.matmul(a, weights(2, 1)),
        }

    request = {name: weights(3, 2) for name in ("user/age", "user_age", "score")}
    tower = cut_and_compare(item_of(build), request)
    assert sorted(inputs_of(tower)) == ["score_1", "user_age", "user_age_1"]
    assert [o.name for o in tower.outputs] == ["_7_day_rate", "score"]


def test_moving_the_cut(item_of):
    """Nodes at which an export failed are avoided, with the reason."""
    item = item_of(ranker, emb=table())
    tower = cut_tower(item, SIGNATURE)
    sigmoid = next(n.name for n in tower.graph_def.node if n.op == "Sigmoid")
    other = cut_tower(item, SIGNATURE, avoid={sigmoid: "it failed before"})
    assert "Sigmoid" not in ops(other)
    assert other.left_outside == (f"{sigmoid}: Sigmoid: it failed before",)


def test_an_export_that_fails_moves_the_cut(item_of, monkeypatch):
    """An op that translates to what not every engine knows: the tower ends before it."""
    monkeypatch.setattr("export.onnx.checks.KNOWN_OPS", frozenset({"MatMul", "Relu", "Concat"}))
    attempt = attempt_export(item_of(ranker, emb=table()), SIGNATURE)
    assert attempt.reason == "" and "Sigmoid" not in ops(attempt.tower)
    assert "op Sigmoid" in attempt.left_outside[0] and "every engine knows" in attempt.left_outside[0]
    assert {"cut", "export", "compare"} == set(attempt.seconds)
    report = attempt.as_dict()
    assert report["difference"]["rows"] == [1, 7, 64] and report["onnx"]["opset"] == 18


def test_an_error_of_a_library_is_a_reason(item_of, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("export.attempt.to_onnx", broken)
    attempt = attempt_export(item_of(ranker, emb=table()), SIGNATURE)
    assert attempt.reason == "the export failed: RuntimeError: out of luck" and attempt.onnx is None


def test_a_library_that_is_missing_is_a_reason(item_of, monkeypatch):
    def broken(*_, **__):
        raise ModuleNotFoundError("No module named 'tf2onnx'", name="tf2onnx")

    monkeypatch.setattr("export.attempt.to_onnx", broken)
    attempt = attempt_export(item_of(ranker, emb=table()), SIGNATURE)
    assert attempt.reason == "tf2onnx is not installed (pip install 'tfctr[export]')"


def test_weights_that_are_no_numbers(item_of):
    def build(tables):
        bad = weights(4, 2)
        bad[1, 1] = np.nan
        return {"y": tf.matmul(placeholder(tf.float32, [None, 4], "x"), tf.constant(bad, name="kernel"))}

    assert "weight kernel has 1 NaN" in attempt_export(item_of(build), SIGNATURE).reason


@pytest.mark.parametrize("equal", [False, True])
def test_two_histories_of_any_length(item_of, equal):
    """Lengths that come from one input have one name, and may differ from others unless the model needs them equal."""

    def build(tables):
        scores = []
        for name in ("clicks", "buys"):
            ids = placeholder(tf.int64, [None, None], name)
            rows = tf.gather(tables["emb"], ids)
            mask = tf.cast(tf.not_equal(ids, 0), tf.float32)
            scores.append(tf.reshape(tf.tensordot(rows, weights(4, 1), 1), tf.shape(ids)) * mask)
        joined = scores[0] * scores[1] if equal else tf.concat(scores, 1)
        return {"y": tf.reduce_sum(joined, 1, keepdims=True)}

    item = item_of(build, emb=table())
    lengths = (6, 6) if equal else (6, 3)
    request = {n: RNG.integers(0, 100, (5, k)) for n, k in zip(("clicks", "buys"), lengths, strict=True)}
    tower = cut_and_compare(item, request)
    names = {one.name: one.dims[1] for one in tower.inputs}
    assert len(set(names.values())) == 2 and names["clicks"] == names["clicks_1"] != names["buys"]
    assert sizes_differ(tower) == (not equal)
    exported(item)
