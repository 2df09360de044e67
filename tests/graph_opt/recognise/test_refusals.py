"""Every reason to leave a lookup, and lookups that are still found beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from graph_opt.recognise import reasons
from tests.graph_opt.recognise.support import Model, recognise

Build = Callable[[Model], tf.Tensor | list[tf.Tensor]]


def in_loop(m: Model) -> tf.Tensor:
    table, ids = m.table(), m.input("ids", [3, None])
    with tf.compat.v1.variable_scope("loop"):
        tf.compat.v1.disable_control_flow_v2()
        try:
            return tf.compat.v1.while_loop(
                lambda k, total: k < 3,
                lambda k, total: (k + 1, total + tf.gather(table, ids[k])),
                [tf.constant(0), tf.zeros([1, 4])],
                shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 4])],
            )[1]
        finally:
            tf.compat.v1.enable_control_flow_v2()


def in_branch(m: Model) -> tf.Tensor:
    table, ids = m.table(), m.input("ids", [None])
    return tf.cond(m.input("flag", [], tf.bool), lambda: tf.gather(table, ids), lambda: tf.zeros([1, 4]))


def mutable_variable(m: Model) -> tf.Tensor:
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[50, 4], shared_name="counts")
    return tf.raw_ops.ResourceGather(resource=handle, indices=m.input("ids", [None]), dtype=tf.float32)


def mutable_hash_table(m: Model) -> tf.Tensor:
    table = tf.raw_ops.MutableHashTableOfTensorsV2(key_dtype=tf.int64, value_dtype=tf.float32, value_shape=[4])
    return tf.raw_ops.LookupTableFindV2(table_handle=table, keys=m.input("ids", [None]), default_value=tf.zeros([4]))


def read_densely(m: Model) -> list[tf.Tensor]:
    table = m.table()
    rows = tf.gather(table, m.input("ids", [None]))
    return [rows, tf.matmul(rows, table, transpose_b=True)]


def on_gpu(m: Model) -> tf.Tensor:
    table, ids = m.table(), m.input("ids", [None])
    with tf.device("/GPU:0"):
        return tf.gather(table, ids)


def behind_an_assert(m: Model) -> tf.Tensor:
    table, ids = m.table(), m.input("ids", [None])
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_any(ids > 0), [ids])]):
        return tf.gather(table, ids)


def integer_table(m: Model) -> tf.Tensor:
    return tf.gather(m.table(dtype=tf.int64), m.input("ids", [None]))


def cube(m: Model) -> tf.Tensor:
    ops = m._ops
    tensor = ops.tfctr_table(m._store, index=0, dtype=tf.float32, shape=[5, 4, 3])
    m.tables[tensor.op.name] = m.table().op and next(iter(m.tables.values()))
    return tf.gather(tensor, m.input("ids", [None]))


def other_axis(m: Model) -> tf.Tensor:
    return tf.gather(m.table(), m.input("ids", [None]), axis=1)


def constant_ids(m: Model) -> tf.Tensor:
    return tf.gather(m.table(), tf.constant([1, 2, 3]))


def small_ids(m: Model) -> tf.Tensor:
    table = m.table()
    return tf.raw_ops.GatherNd(params=table, indices=m.input("ids", [None, 1], tf.int32))


def short_ids(m: Model) -> tf.Tensor:
    return tf.raw_ops.GatherV2(params=m.table(), indices=m.input("ids", [None], tf.int16), axis=0)


def unknown_rank(m: Model) -> tf.Tensor:
    return tf.gather(m.table(), tf.compat.v1.placeholder(tf.int64, None, name="ids"))


def parts_of_two_widths(m: Model) -> tf.Tensor:
    parts = [m.table(13, 4), m.table(12, 4, tf.float16)]
    ids = m.input("ids", [None])
    owner = tf.cast(ids % 2, tf.int32)
    where = tf.dynamic_partition(tf.range(tf.size(ids)), owner, 2)
    inside = tf.dynamic_partition(ids // 2, owner, 2)
    rows = [tf.gather(parts[0], inside[0]), tf.cast(tf.gather(parts[1], inside[1]), tf.float32)]
    return tf.dynamic_stitch(where, rows)


def part_used_elsewhere(m: Model) -> list[tf.Tensor]:
    parts = [m.table(13, 4), m.table(12, 4)]
    ids = m.input("ids", [None])
    owner = tf.cast(ids % 2, tf.int32)
    where = tf.dynamic_partition(tf.range(tf.size(ids)), owner, 2)
    inside = tf.dynamic_partition(ids // 2, owner, 2)
    rows = [tf.gather(part, i) for part, i in zip(parts, inside, strict=True)]
    return [tf.dynamic_stitch(where, rows), rows[0]]


CASES: list[tuple[Build, str]] = [
    (in_loop, reasons.CONTROL_FLOW),
    (in_branch, reasons.CONTROL_FLOW),
    (mutable_variable, reasons.MUTABLE_TABLE),
    (mutable_hash_table, reasons.MUTABLE_TABLE),
    (read_densely, reasons.READ_DENSELY),
    (on_gpu, reasons.ON_GPU),
    (behind_an_assert, reasons.CONTROL_EDGE),
    (integer_table, reasons.TABLE_DTYPE),
    (cube, reasons.TABLE_RANK),
    (other_axis, reasons.GATHER_AXIS),
    (small_ids, reasons.GATHER_AXIS),
    (constant_ids, reasons.CONSTANT_IDS),
    (short_ids, reasons.IDS_DTYPE),
    (unknown_rank, reasons.NOT_IN_LANGUAGE),
    (part_used_elsewhere, reasons.USED_INSIDE),
    (parts_of_two_widths, reasons.PARTS_DIFFER),
]


@pytest.mark.parametrize(("build", "reason"), CASES, ids=[b.__name__ for b, _ in CASES])
def test_reason(build: Build, reason: str) -> None:
    _, refusals = recognise(build)
    assert reason in {r.reason for r in refusals}
    assert all(r.gather and r.nodes for r in refusals)


def test_a_densely_read_table_is_still_looked_up_in() -> None:
    candidates, refusals = recognise(read_densely)
    assert len(candidates) == 1
    assert [r.reason for r in refusals] == [reasons.READ_DENSELY]


def test_ids_checked_by_an_assert_start_behind_it() -> None:
    def build(m: Model) -> tf.Tensor:
        table, raw = m.table(), m.input("ids", [None])
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_any(raw > 0), [raw])]):
            checked = tf.identity(raw, name="checked")
        return tf.gather(table, checked % 50)

    candidates, refusals = recognise(build)
    assert refusals == []
    assert candidates[0].spec.ids == "checked:0"
    assert [s.text() for s in candidates[0].spec.steps] == ["mod:50"]


def test_second_stage_reads_the_first_ones_result() -> None:
    def build(m: Model) -> tf.Tensor:
        first = tf.gather(m.table(width=1), m.input("ids", [None]), name="first")
        return tf.gather(m.table(), tf.cast(tf.reshape(first, [-1]), tf.int64), name="second")

    candidates, refusals = recognise(build)
    assert refusals == []
    assert [c.gather for c in candidates] == ["first", "second"]
    assert "ids:0" not in candidates[1].spec.sources()


def test_lookups_that_no_output_needs_are_not_mentioned() -> None:
    def build(m: Model) -> tf.Tensor:
        tf.gather(m.table(), m.input("unused", [None]))
        return tf.gather(m.table(), m.input("ids", [None]))

    candidates, refusals = recognise(build)
    assert [c.spec.name for c in candidates] == ["ids"]
    assert refusals == []


def test_every_reason_has_a_case() -> None:
    assert {reason for _, reason in CASES} == set(reasons.ALL)


def test_every_reason_is_one_sentence() -> None:
    assert len(set(reasons.ALL)) == len(reasons.ALL)
    assert all(r == r.strip() and not r.endswith(".") and "\n" not in r for r in reasons.ALL)
