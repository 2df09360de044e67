"""Narrow tables: structure, numbers by the gate, twice = once, a fresh session; and a test per reason to leave one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.item import GraphItem
from graph_opt.narrowing import precision, storage_of, widened
from graph_opt.options import ConvertOptions, SampleColumns
from graph_opt.passes import compress_tables as module
from graph_opt.passes.compress_tables import compress_tables
from graph_opt.passes.drop_unused_files import drop_unused_files
from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.passes.pack_inputs import pack_inputs
from graph_opt.pipeline import run_pass
from graph_opt.report import Pass
from graph_opt.testing import SIGNATURE, Tables, apply, assert_refused, graph_item, graph_text, op_counts, run_item
from tests.core.test_fused_lookup_storage import read_back, stored
from tests.graph_opt.graphs import placeholder, sparse_feeds, sparse_input
from tfctr.errors import InputError, StrictRefusal

ROWS = 500
STORAGE = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
LENGTHS = [2, 0, 1, 9, 0, 3, 12]


def rows(seed: int = 0, scale: float = 0.1, width: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=scale, size=(ROWS, width)).astype(np.float32)


def loud(seed: int, offset: float) -> np.ndarray:
    """Values far from zero that cancel out in a sum: rounding them shows."""
    return rows(seed) + np.where(np.arange(16) % 2, offset, -offset).astype(np.float32)


def model(folder: Path, tables: dict[str, np.ndarray], also: Any = None, dtype: tf.DType = tf.float32) -> GraphItem:
    """Mean lookups of one sparse feature per table, summed into a sigmoid; fused by the pass before."""

    def build(given: Tables) -> dict[str, tf.Tensor]:
        found = [
            tf.nn.safe_embedding_lookup_sparse(given[n], sparse_input(n), combiner="mean")
            for n in tables
            if n != "dense"
        ]
        score = tf.sigmoid(tf.reduce_sum(tf.concat([tf.cast(f, tf.float32) for f in found], 1), 1, keepdims=True))
        return {"score": score} | (also(given) if also else {})

    folder.mkdir(exist_ok=True)
    item = graph_item(build, tables=tables, work_dir=folder)
    fused, outcome = apply(fuse_lookups, item, ConvertOptions(table_dtype="fp16"))
    assert outcome.fired == sum(n != "dense" for n in tables)
    return fused


def feeds(names: Any, lengths: list[int] = LENGTHS) -> dict[str, np.ndarray]:
    return {k: v for n, name in enumerate(names) for k, v in sparse_feeds(name, lengths, rows=ROWS, seed=n).items()}


def sampled(names: Any, labels: Any = None, **fields: Any) -> ConvertOptions:
    """Options that judge on fixed inputs: what a samples file holds."""
    return ConvertOptions(
        **{"table_dtype": "fp16", "samples_path": "rows.npz", **fields},
        read_samples=lambda _: feeds(names),
        read_sample_columns=lambda _: SampleColumns(labels=labels),
    )


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "int8"])
def test_the_four_checks(tmp_path, dtype):
    tables = {"a": rows(0), "b": rows(1, width=64)}
    item = model(tmp_path, tables)
    options = ConvertOptions(table_dtype=dtype, max_dp=0.01, max_bias=0.01)
    after, outcome = apply(compress_tables, item, options)
    # Structure: the same nodes, other specs and files; the float32 files are still there for comparisons.
    assert outcome.fired == 2 and not outcome.refused and outcome.rewrites == ("a", "b")
    assert op_counts(after) == op_counts(item)
    assert graph_text(after).count(f"storage={STORAGE[dtype]}") == 2
    for before, now in zip(item.files, after.files, strict=True):
        want = stored(tables[now.name], STORAGE[dtype])
        assert (now.dtype, now.shape, now.narrowed_from) == (want.dtype.name, want.shape, before)
        assert now.path is not None and before.path is not None and now.path.parent == before.path.parent
        data = np.fromfile(now.path, want.dtype, want.size).reshape(want.shape)
        np.testing.assert_array_equal(read_back(data), read_back(want))
        assert before.path.exists() and now.bytes == now.path.stat().st_size < before.bytes
    # Numbers, in fresh sessions: near the float32 ones, and exactly those of the stored values.
    got, want32 = run_item(after, feeds(tables)), run_item(item, feeds(tables))
    assert 0 < np.abs(got["score"] - want32["score"]).max() < 0.01
    exact = model(tmp_path / "exact", {n: read_back(stored(t, STORAGE[dtype])) for n, t in tables.items()})
    np.testing.assert_array_equal(got["score"], run_item(exact, feeds(tables))["score"])
    # Twice is once.
    again, second = apply(compress_tables, after, options)
    assert second.fired == 0 and graph_text(again) == graph_text(after) and again.files == after.files
    # Back again for comparisons.
    wide = widened(after)
    assert wide is not None and graph_text(wide) == graph_text(item) and widened(item) is None
    np.testing.assert_array_equal(run_item(wide, feeds(tables))["score"], want32["score"])
    assert precision(after.files) == f"fp32, tables {dtype}" and precision(item.files) == "fp32"


def test_details_say_bytes_numbers_speed_and_what_was_judged(tmp_path):
    tables = {"a": rows(0), "b": rows(1)}
    labels = np.array([0, 1, 0, 1, 1, 0, 1], np.float32)
    _, outcome = apply(compress_tables, model(tmp_path, tables), sampled(tables, labels))
    details = outcome.details
    assert details["dtype"] == "fp16" and not details["generated"] and details["judged_on"] == "the samples of rows.npz"
    assert details["bytes_after"] < 0.6 * details["bytes_before"]
    assert [t["table"] for t in details["tables"]] == ["a", "b"] and details["left"] == []
    assert all(0 < t["max_abs_error"] < 1e-3 for t in details["tables"])
    gate = details["gate"]["serving_default"]
    assert gate["passed"] and gate["rows"] == 7 and 0 < gate["max_dp"] <= gate["limits"]["max_dp"]
    assert gate["auc_delta"] == 0 and gate["outputs"][0]["auc_reference"] is not None
    assert details["speed"]["lookups_us"] > 0 and details["speed"]["lookups_us_fp32"] > 0
    assert outcome.notes[0].startswith("accuracy gate, serving_default: passed on 7 rows")


def test_without_samples_it_is_judged_on_generated_inputs_and_says_so(tmp_path):
    _, outcome = apply(compress_tables, model(tmp_path, {"a": rows()}), ConvertOptions(table_dtype="fp16"))
    assert outcome.fired == 1
    assert outcome.details["generated"] and "AUC was not judged at all" in outcome.details["judged_on"]
    assert any(note.startswith("judged on generated inputs, 1024 rows") for note in outcome.notes)
    (verdict,) = outcome.details["gate"]["serving_default"]["outputs"]
    assert verdict["auc_delta"] is None and verdict["auc_reason"] == "no labels"


def test_samples_without_labels_say_that_auc_was_not_judged(tmp_path):
    _, outcome = apply(compress_tables, model(tmp_path, {"a": rows()}), sampled("a"))
    assert outcome.details["judged_on"] == "the samples of rows.npz; no labels (column 'label'), so AUC was not judged"


def test_packed_forms_and_renumbered_files_carry_the_storage(tmp_path):
    tables = {"a": rows(0), "b": rows(1)}
    item, _ = apply(
        compress_tables, model(tmp_path, tables), ConvertOptions(table_dtype="int8", max_dp=0.1, max_bias=1)
    )
    item, _ = apply(drop_unused_files, item)
    item, outcome = apply(pack_inputs, item)
    assert outcome.fired == 1 and graph_text(item).count("storage=int8") == 4
    wide = widened(item)
    assert wide is not None and "storage=" not in graph_text(wide)


def test_a_table_of_several_lookups_is_stored_once(tmp_path):
    def build(given: Tables) -> dict[str, tf.Tensor]:
        found = [tf.nn.safe_embedding_lookup_sparse(given["t"], sparse_input(n), combiner="sum") for n in "ab"]
        return {"left": found[0], "right": found[1]}

    item, _ = apply(fuse_lookups, graph_item(build, tables={"t": rows()}, work_dir=tmp_path))
    after, outcome = apply(compress_tables, item, sampled("ab", max_dp=1, max_bias=1))
    assert outcome.fired == 1 and graph_text(after).count("storage=float16") == 2
    assert [storage_of(f) for f in after.files] == ["float16"]


def test_nothing_is_done_unless_asked_for(tmp_path):
    item = model(tmp_path, {"a": rows()})
    after, outcome = apply(compress_tables, item)
    assert outcome.fired == 0 and not outcome.refused and graph_text(after) == graph_text(item)
    assert "--table-dtype" in outcome.notes[0]


def test_a_table_that_is_also_read_otherwise_stays(tmp_path):
    item = model(tmp_path, {"a": rows(0), "b": rows(1)}, lambda given: {"norm": tf.reduce_sum(given["a"])})
    after, outcome = apply(compress_tables, item, sampled("ab"))
    assert outcome.fired == 1 and [storage_of(f) for f in after.files] == [None, "float16"]
    (refused,) = outcome.refused
    assert refused.what == "table a" and refused.reason == "is also read by Sum 'Sum_1', which needs float32"
    assert precision(after.files) == "fp32, tables fp16 and fp32"


def test_a_table_that_a_signature_left_alone_reads_stays(tmp_path):
    """Keras exports a model as ``serve`` and as ``serving_default``: one of them alone may be asked for."""
    item = model(tmp_path, {"a": rows()}, lambda given: {"norm": tf.reduce_sum(given["a"])})
    item.signatures["serve"] = type(item.signatures[SIGNATURE])()
    item.signatures["serve"].outputs["norm"].CopyFrom(item.signatures[SIGNATURE].outputs.pop("norm"))
    reason = r"also read by Sum 'Sum_1' of signature serve \(not optimised\), which needs float32"
    outcome = assert_refused(compress_tables, item, reason, options=sampled("a"))
    assert outcome.details["dtype"] == "fp16" and not outcome.details["tables"]
    assert outcome.details["left"] == [{"table": "table a", "reason": outcome.refused[0].reason}]


def test_a_table_that_no_fused_lookup_reads_stays(tmp_path):
    item = model(tmp_path, {"a": rows(0), "dense": rows(1)}, lambda given: {"x": tf.reduce_sum(given["dense"])})
    _, outcome = apply(compress_tables, item, sampled("a"))
    assert outcome.fired == 1
    assert outcome.refused[0].what == "table dense" and "no fused lookup reads it, but Sum" in outcome.refused[0].reason


def test_a_table_of_another_dtype_stays(tmp_path):
    item = model(tmp_path, {"a": rows().astype(np.float64)})
    assert_refused(compress_tables, item, "is float64; only float32 tables are stored as float16", options=sampled("a"))


def test_a_table_without_a_file_stays(tmp_path):
    item = model(tmp_path, {"a": rows()})
    item.files[0] = dataclasses.replace(item.files[0], path=None)
    assert_refused(compress_tables, item, "was only analysed", options=sampled("a"))


def test_a_table_whose_file_would_not_be_smaller_stays(tmp_path):
    item = model(tmp_path, {"a": rows()[:, :1]})
    assert_refused(compress_tables, item, "500 rows of 1: its file, padded to pages of 4096", options=sampled("a"))
    wide = model(tmp_path / "w", {"a": np.concatenate([rows(width=1)] * 9)})
    assert_refused(compress_tables, wide, "would not be smaller as int8", options=sampled("a", table_dtype="int8"))


def test_a_table_that_is_narrow_already_stays(tmp_path):
    after, _ = apply(compress_tables, model(tmp_path, {"a": rows()}), sampled("a"))
    options = sampled("a", table_dtype="int8")
    assert_refused(compress_tables, after, "is stored as float16 already", options=options)


@pytest.mark.parametrize(
    ("dtype", "value", "reason"),
    [
        ("int8", np.nan, "row 3 holds NaN, so it can't be stored as int8"),
        ("fp16", 1e6, "row 3 holds 1000000.0+, which"),
    ],
)
def test_values_that_cannot_be_stored_leave_the_table(tmp_path, dtype, value, reason):
    table = rows()
    table[3, 1] = value
    options = sampled("a", table_dtype=dtype)
    assert_refused(compress_tables, model(tmp_path, {"a": table}), f"table 'a': {reason}", options=options)
    assert not list(tmp_path.glob("*.float16.table")) + list(tmp_path.glob("*.int8.table"))


def test_the_gate_leaves_the_tables_that_move_scores(tmp_path):
    tables = {"a": rows(0), "loud": loud(1, 300.0), "b": rows(2), "louder": loud(3, 900.0)}
    item = model(tmp_path, tables, lambda given: {})
    after, outcome = apply(compress_tables, item, sampled(tables))
    assert [storage_of(f) for f in after.files] == ["float16", None, "float16", None]
    assert outcome.fired == 2 and {r.what for r in outcome.refused} == {"table loud", "table louder"}
    for refused in outcome.refused:
        assert refused.proof_failed
        assert "stays float32: accuracy gate: failed on 7 rows: output 'score': max |dp|" in refused.reason
    gate = outcome.details["gate"]["serving_default"]
    assert gate["passed"] and outcome.details["gate_runs"] <= 9
    assert {t["table"] for t in outcome.details["left"]} == {"table loud", "table louder"}
    assert sorted(p.name for p in tmp_path.glob("*.float16.table")) == ["0000_a.float16.table", "0002_b.float16.table"]


def test_tables_that_pass_alone_but_not_together(tmp_path):
    tables = {name: rows(k, scale=0.2) for k, name in enumerate("abcd")}
    item = model(tmp_path, tables)
    one = apply(compress_tables, model(tmp_path / "one", {"a": tables["a"]}), sampled("a"))[1]
    limit = one.details["gate"]["serving_default"]["max_dp"] * 1.3
    after, outcome = apply(compress_tables, item, sampled(tables, max_dp=limit, max_bias=1.0))
    kept = [f for f in after.files if storage_of(f)]
    assert 0 < len(kept) < 4 and outcome.details["gate"]["serving_default"]["max_dp"] <= limit
    assert all("accuracy gate" in r.reason for r in outcome.refused) and len(outcome.refused) == 4 - len(kept)


def test_where_no_table_passes_all_stay(tmp_path):
    item = model(tmp_path, {"a": rows(0), "b": rows(1)})
    options = sampled("ab", max_dp=0.0, max_bias=0.0)
    outcome = assert_refused(compress_tables, item, "stays float32: accuracy gate: failed", options=options)
    assert outcome.details["tables"] == [] and not outcome.details["gate"]["serving_default"]["passed"]
    assert not list(tmp_path.glob("*.float16.table"))


def test_beyond_the_number_judged_alone_tables_go_by_their_error(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_ALONE", 1)
    tables = {"a": rows(0, scale=0.01), "b": rows(1, scale=0.02), "loud": loud(2, 900.0)}
    after, outcome = apply(compress_tables, model(tmp_path, tables), sampled(tables))
    assert [storage_of(f) for f in after.files] == ["float16", "float16", None]
    assert outcome.details["gate_runs"] <= 5


def test_strict_mode_raises_where_the_gate_fails(tmp_path):
    item = model(tmp_path, {"a": rows()})
    one = Pass(name="compress_tables", run=compress_tables, does="")
    with pytest.raises(StrictRefusal, match="compress_tables: table a: stays float32: accuracy gate"):
        run_pass(item, one, sampled("a", max_dp=0.0, max_bias=0.0, strict=True))


def test_inputs_that_the_model_refuses_leave_the_tables(tmp_path):
    def refuses(given: Tables) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([tf.debugging.assert_less(placeholder(tf.int32, [None], "x"), 1)]):
            return {"x": tf.constant(1.0)}

    item = model(tmp_path, {"a": rows()}, refuses)
    extra = {"x": np.array([7], np.int32)}
    options = dataclasses.replace(sampled("a"), read_samples=lambda _: feeds("a") | extra)
    outcome = assert_refused(compress_tables, item, "the model refuses the inputs to judge on", options=options)
    assert outcome.refused[0].proof_failed


def test_samples_that_lack_an_input_and_labels_of_no_output_are_the_users_error(tmp_path):
    item = model(tmp_path, {"a": rows()})
    with pytest.raises(InputError, match="needs the input"):
        apply(compress_tables, item, dataclasses.replace(sampled("a"), read_samples=lambda _: {}))
    with pytest.raises(InputError, match="labels of output 'ctr': the outputs are score"):
        apply(compress_tables, item, sampled("a", np.zeros(7), label_output="ctr"))
    assert not list(tmp_path.glob("*.float16.table"))


def test_only_wanted_tables_are_narrowed(tmp_path):
    item = model(tmp_path, {"a": rows(0), "b": rows(1)})
    after, outcome = apply(compress_tables, item, sampled("ab", only_rewrites=frozenset({"b"})))
    assert outcome.fired == 1 and [storage_of(f) for f in after.files] == [None, "float16"]
