"""What ops add to the step record of a run: nanoseconds, ids looked up per table, and ids that got the default row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph_opt.lookup_spec import LookupSpec, OutputSpec, Placement, Step
from tests.core import test_fused_lookup_property as property_cases
from tests.core.dense_testing import EngineGraph, write_tower
from tests.core.lookup_testing import LookupBench
from tests.core.test_fused_lookup_hashed import FIND, INT64, POOL, Tables, some_table
from tests.core.test_packer import packer, part
from tfctr.core import library


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(tmp_path_factory.mktemp("step_record"), "test_step_record")


def recorded(run: Any) -> dict[str, Any]:
    """What one call of ``run`` adds."""
    with library.native().StepRecord() as record:
        run()
    return record.read()


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=property_cases.cases(), which=some_table, packed=st.booleans(), turn=st.integers(0, 60))
def test_unknown_keys_are_counted_exactly_in_every_form(tables, case, which, packed, turn):
    fields, _, inputs = case
    table = tables.tables[which]
    prune = fields.get("steps") == (Step("prune_negative"),)
    keys = POOL[(np.asarray(inputs["ids"], np.int64) % property_cases.ROWS + turn) % len(POOL)]
    fields = {k: v for k, v in fields.items() if k not in ("steps", "fill_id")} | {
        "name": "f", "table_width": table.dim, "table_dtype": "float32", "ids": "ids", "table": table.index,
        "storage": None if table.storage == "float32" else table.storage,
    }  # fmt: skip
    spec = LookupSpec(table_rows=0, steps=(*((Step("prune_negative"),) if prune else ()), FIND), **fields)
    try:
        counts = recorded(lambda: tables.bench.run(spec, inputs | {"ids": keys}, packed=packed))
    except tf.errors.InvalidArgumentError:
        return
    asked = keys.reshape(-1)
    unknown = [k for k in asked.tolist() if k not in table.rows and not (prune and k < 0)]
    if asked.size == 0:
        assert counts["tables"] == {}
        return
    (one,) = counts["tables"].values()
    assert one["lookups"] == asked.size
    if spec.mask is None and spec.mask_value is None and not spec.prune_weights:
        assert one["default_rows"] == len(unknown)
    else:  # values that do not count are not counted either
        assert one["default_rows"] <= len(unknown)
    assert counts["lookup_ns"] > 0


@pytest.mark.parametrize("rows", [1, 700, 5000])
def test_lookups_that_share_keys_count_each_for_itself(tables, rows):
    """Two equal lookups, two that share their keys, and one of another table, in one piece of work or several."""
    one, two = tables.tables[16, "float32", True], tables.tables[16, "int8", False]
    keys = np.resize(POOL, (rows, 2))
    common: dict[str, Any] = {"table_rows": 0, "table_width": 16, "table_dtype": "float32", "ids": "ids"}
    common |= {"form": "dense", "steps": (FIND,), "empty": "zeros"}
    specs = [
        LookupSpec(name=f"f{k}", table=t.index, combiner=c, **common, **more)
        for k, (t, c, more) in enumerate([
            (one, "mean", {}), (one, "sum", {}), (one, "sum", {}), (two, "sum", {"storage": "int8"}),
        ])
    ]  # fmt: skip
    lookups = [(spec, Placement(0, 16 * k)) for k, spec in enumerate(specs)]
    output = OutputSpec(form="rows", columns=64, dtype="float32")
    counts = recorded(lambda: tables.bench.run_group(lookups, [output], {"ids": keys}, [tf.float32]))["tables"]
    flat = keys.reshape(-1).tolist()
    unknown = {t.index: sum(k not in t.rows for k in flat) for t in (one, two)}
    assert counts[f"table_{one.index}"] == {"lookups": 3 * keys.size, "default_rows": 3 * unknown[one.index]}
    assert counts[f"table_{two.index}"] == {"lookups": keys.size, "default_rows": unknown[two.index]}
    assert unknown[one.index] > 0 or rows == 1


def test_a_failed_lookup_and_the_next_one(tmp_path):
    bench = LookupBench(tmp_path, "test_step_record_failed")
    index = bench.table(np.ones((4, 8), np.float32))
    spec = LookupSpec(
        name="f", table=index, table_rows=4, table_width=8, table_dtype="float32", ids="ids", form="dense"
    )

    def fail() -> None:
        with pytest.raises(tf.errors.InvalidArgumentError):
            bench.run(spec, {"ids": np.array([7])}, form="like")

    failed = recorded(fail)
    assert failed["lookup_ns"] > 0
    assert failed["tables"] == {}
    counts = recorded(lambda: bench.run(spec, {"ids": np.array([0, 3, 3])}, form="like"))
    assert counts["tables"] == {"table_0": {"lookups": 3, "default_rows": 0}}


@pytest.mark.parametrize("overlaid", [False, True])
@pytest.mark.parametrize("size", [0, 1, 600])
def test_the_plain_hash_lookup_counts_too(tables, overlaid, size):
    table = tables.tables[8, "float16", overlaid]
    keys = np.resize(POOL, size)
    counts = recorded(lambda: tables.bench.hash_rows(table.index, keys, 8, "float16"))["tables"]
    unknown = sum(k not in table.rows for k in keys.tolist())
    assert counts == ({f"table_{table.index}": {"lookups": size, "default_rows": unknown}} if size else {})


def test_unpacking_is_pack_time_and_nothing_is_kept_without_a_record(tables):
    packed = packer(part("a", "int64"), part("b", "float32")).pack({"a": [1, 2], "b": [0.5]})

    def unpack() -> None:
        library.load().tfctr_unpack(
            packed.arena, packed.shapes, tf.constant([], tf.string), layout=[tf.int64, tf.float32], emit=[0, 1],
            Tout=[tf.int64, tf.float32],
        )  # fmt: skip

    counts = recorded(unpack)
    assert counts["pack_ns"] > 0
    assert (counts["lookup_ns"], counts["dense_ns"], counts["tables"]) == (0, 0, {})
    record = library.native().StepRecord()
    with record:
        pass
    unpack()
    tables.bench.hash_rows(tables.tables[8, "float32", False].index, [INT64.max, 3], 8)
    assert record.read() == {"lookup_ns": 0, "dense_ns": 0, "pack_ns": 0, "tables": {}}


def test_the_dense_engine_adds_its_time(tmp_path):
    pytest.importorskip("openvino")
    tower = write_tower(tmp_path / "small.onnx")
    with EngineGraph(tower.spec()) as graph:
        graph.session.close()
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=-1)  # ops run on the thread of the caller
        graph.session = tf.compat.v1.Session(graph=graph.graph, config=config)
        graph.open().run(tower.feeds(4))
        counts = recorded(lambda: graph.run(tower.feeds(4)))
    assert counts["dense_ns"] > 0
    assert (counts["lookup_ns"], counts["tables"]) == (0, {})
