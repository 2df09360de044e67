"""Shape arithmetic as constants: what is folded, with which -1, and what is left."""

import numpy as np
import onnx
import pytest
import tensorflow as tf

from export.feeds import Sizes, random_feeds
from export.onnx.constants import gather_constants
from export.onnx.convert import convert
from export.onnx.exporter import to_onnx
from export.onnx.fold_shapes import _reshape_target, fold_shapes
from export.onnx.probing import PROBES
from export.onnx.runtime import OnnxSession
from export.referee import judge
from export.tower_session import TowerSession
from tests.export.onnx.exports import exported, ops, small_tower, translated
from tests.export.towers import tower

_ARITHMETIC = {"Shape", "ReduceProd", "Cast", "Max"}


@pytest.mark.parametrize(("name", "at_least"), [("din", 15), ("mmoe", 20), ("trf", 30)])
def test_shape_arithmetic_goes(name, at_least):
    """Dense layers of rank 3 (Tensordot) and einsums compute their shapes, ten nodes each."""
    before, after = translated(name), exported(name).model
    assert _ARITHMETIC & set(ops(before))
    assert len(before.graph.node) - len(after.graph.node) >= at_least
    assert not _ARITHMETIC & set(ops(after)) and ops(after)["ConstantOfShape"] == 0


@pytest.mark.parametrize("name", ["dlrm", "dcn"])
def test_nothing_to_fold(name):
    assert exported(name).report["shapes_folded"] == 0
    assert len(translated(name).graph.node) == len(exported(name).model.graph.node)


def test_folding_the_input_would_give_two_open_axes():
    """An einsum's computed shapes hold a -1 already, beside sizes that vary: the target comes from the output."""
    model = translated("mmoe")
    gather_constants(model)
    constants = {one.name for one in model.graph.initializer}
    reshapes = [n for n in model.graph.node if n.op_type == "Reshape" and n.input[1] not in constants]
    for node in reshapes:
        model.graph.output.append(onnx.ValueInfoProto(name=node.input[1]))
    session = OnnxSession(model)
    runs = []
    for sizes in PROBES[:2]:
        feeds = random_feeds(tower("mmoe"), sizes)
        runs.append(session.run({one.tensor: feeds[one.name] for one in tower("mmoe").inputs}))
    naive = [[a if a == b else -1 for a, b in zip(*(run[n.input[1]] for run in runs), strict=True)] for n in reshapes]
    assert any(shape.count(-1) == 2 for shape in naive)
    for one in exported("mmoe").model.graph.initializer:
        value = onnx.numpy_helper.to_array(one)
        if value.dtype == np.int64 and value.ndim == 1:
            assert (value == -1).sum() <= 1, one.name


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([(3, 8), (5, 8)], [(3, 2, 4), (5, 2, 4)], [-1, 2, 4]),
        ([(3, 8), (5, 8)], [(6, 4), (10, 4)], [-1, 4]),
        ([(3, 8), (5, 8)], [(4, 6), (4, 10)], [4, -1]),
        ([(3, 8), (3, 8)], [(24,), (24,)], [24]),
        # Two sizes vary: one must be the input's own.
        ([(3, 4, 8), (5, 4, 8), (3, 7, 8)], [(3, 4, 2, 4), (5, 4, 2, 4), (3, 7, 2, 4)], [0, -1, 2, 4]),
        ([(3, 4, 8), (5, 4, 8), (3, 7, 8)], [(12, 8), (20, 8), (21, 8)], [-1, 8]),
        ([(3, 4, 8), (5, 4, 8), (3, 7, 8)], [(24, 4), (40, 4), (42, 4)], [-1, 4]),
        ([(12, 2), (20, 2), (21, 2)], [(3, 4, 2), (5, 4, 2), (3, 7, 2)], None),
        ([(6, 4), (10, 4), (6, 7)], [(3, 8), (5, 8), (3, 14)], None),
        ([(6, 4), (10, 4), (6, 7)], [(2, 3, 4), (2, 5, 4), (2, 3, 7)], None),
        ([(8, 4), (8, 4), (8, 7)], [(2, 4, 4), (2, 4, 4), (2, 4, 7)], [2, 4, -1]),
        # Open axes before and behind the copied one.
        ([(3, 4), (5, 4), (3, 7)], [(3, 4, 1), (5, 4, 1), (3, 7, 1)], [0, -1, 1]),
        ([(6, 4), (10, 4), (6, 7)], [(3, 4, 2), (5, 4, 2), (3, 7, 2)], [-1, 0, 2]),
        # A size of 0 would read as "the input's".
        ([(3, 0), (5, 0)], [(3, 0, 2), (5, 0, 2)], None),
        ([(3, 8), (5, 8)], [(24,), (5, 8)], None),
    ],
)  # fmt: skip
def test_targets(before, after, expected):
    found = _reshape_target(before, after)
    assert (None if found is None else found.tolist()) == expected


def test_open_axis_before_a_copied_one():
    assert _reshape_target([(6, 4), (10, 4), (6, 7)], [(3, 4), (5, 4), (3, 7)]).tolist() == [-1, 0]


def test_users_and_items():
    """Two row counts in one model, each with a Dense of rank 3 over it."""
    weights = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)

    def build(user_x, row_to_user, item):
        users = tf.tensordot(user_x, weights, 1)
        return {"y": tf.tensordot(item, weights, 1) + tf.gather(users, row_to_user)}

    made = small_tower(
        build, user_x=("float32", (None, 3, 4)), row_to_user=("int64", (None,)), item=("float32", (None, 3, 4))
    )
    result = to_onnx(made)
    assert not _ARITHMETIC & set(ops(result.model)) and result.report["shapes_folded"] > 0
    assert judge(made, result.model).max_difference < 1e-5
    assert [d.dim_param for d in result.model.graph.input[0].type.tensor_type.shape.dim] == ["U", "", ""]
    assert [d.dim_param for d in result.model.graph.input[2].type.tensor_type.shape.dim] == ["N", "", ""]


def test_positions_of_any_number():
    """A history whose length is not known either."""
    weights = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)

    def build(history):
        scores = tf.nn.softmax(tf.reduce_sum(tf.tensordot(history, weights, 1), -1))
        return {"y": tf.linalg.matvec(history, scores, transpose_a=True)}

    made = small_tower(build, history=("float32", (None, None, 4)))
    result = to_onnx(made)
    # [N * T, 6] -> [N, T, 6]: no constant shape says that. It is left, and said.
    assert len(result.report["shapes_left"]) == 1 and "stay computed: Reshape" in result.notes[-1]
    assert judge(made, result.model).max_difference < 1e-5
    with TowerSession(made) as session:
        for rows, positions in ((1, 1), (5, 50), (50, 3)):
            feeds = random_feeds(made, Sizes(rows=rows, inner=positions))
            np.testing.assert_allclose(
                OnnxSession(result.model).run(feeds)["y"], session.run(feeds)["y"], rtol=1e-5, atol=1e-6
            )


def test_what_depends_on_data_stays():
    """The same in every probe, and yet not a constant."""

    def build(x, length):
        width = tf.minimum(tf.reduce_max(length), 2) + 1  # 3 where any length is 2 or more
        return {"y": tf.reduce_sum(x[:, :width], 1, keepdims=True)}

    made = small_tower(build, x=("float32", (None, 5)), length=("int32", (None,)))
    model = convert(made)
    gather_constants(model)
    assert fold_shapes(model, made) == (0, [])
    feeds = {"x": np.ones((2, 5), np.float32), "length": np.zeros(2, np.int32)}
    session = OnnxSession(to_onnx(made).model)
    np.testing.assert_array_equal(session.run(feeds)["y"], [[1], [1]])


def test_what_bends_with_the_rows_stays():
    """min(rows, 20) is linear in every probe and not at 64 rows."""

    def build(x):
        rows = tf.shape(x)[0]
        kept = tf.minimum(rows, 20)
        return {"y": tf.reshape(x[:kept], tf.stack([kept, 2, 2]))}

    made = small_tower(build, x=("float32", (None, 4)))
    model = to_onnx(made).model
    x = np.arange(256, dtype=np.float32).reshape(64, 4)
    assert OnnxSession(model).run({"x": x})["y"].shape == (20, 2, 2)
