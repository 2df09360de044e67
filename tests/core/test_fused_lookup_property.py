"""Generated specs and adversarial ids: TfctrFusedLookup against the NumPy reference, args and arena form alike.

Also: the same bits with every instruction set, the same errors however work is split.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from graph_opt.lookup_spec import LookupSpec, Step
from tests.core.lookup_reference import LookupError_, lookup
from tests.core.lookup_testing import LookupBench

ROWS = 31
WIDTHS = (1, 3, 8, 16, 65)
# Ids that a table of ROWS rows has and has not; the good ones are more likely.
IDS = [*range(ROWS), -1, -1, 0, ROWS - 1, ROWS, -(2**31), 2**31, -(2**63), 2**63 - 1]
GOOD = [*range(ROWS), -1, -1]
LENGTHS = [0, 0, 1, 1, 2, 3, 7, 8, 9, 10, 17]
WEIGHTS = [0.0, -1.0, 0.5, 1.0, 2.0]
# An empty row that is filled counts one value: its sum is divided by 1 + eps.
FILLED_ROW = {
    "form": "ragged", "combiner": "mean", "rows": "rows", "empty": "zeros", "accumulation": "sequential",
    "denominator": "eps", "denominator_eps": 1e-3, "fill_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> tuple[LookupBench, dict[int, tuple[int, np.ndarray]]]:
    return make_bench(tmp_path_factory.mktemp("property"), "test_fused_lookup_property")


def make_bench(folder: Any, name: str) -> tuple[LookupBench, dict[int, tuple[int, np.ndarray]]]:
    """A table of every width, of values that add up without cancelling (all positive)."""
    bench = LookupBench(folder, name)
    rng = np.random.default_rng(0)
    tables = {w: rng.uniform(0.1, 1, (ROWS, w)).astype(np.float32) for w in WIDTHS}
    return bench, {w: (bench.table(t), t) for w, t in tables.items()}


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], int, dict[str, np.ndarray]]:
    """Fields of a spec, a width, and its inputs."""
    form = draw(st.sampled_from(["dense", "sparse", "ragged", "segments"]))
    combiner = draw(st.sampled_from(["sum", "mean", "sqrtn"] + (["none"] if form == "dense" else [])))
    pool = draw(st.sampled_from([GOOD, GOOD, IDS]))
    fields: dict[str, Any] = {"form": form, "combiner": combiner}
    inputs: dict[str, np.ndarray] = {}
    if form == "dense":
        shape = (draw(st.sampled_from([0, 1, 7])), draw(st.sampled_from([1, 3, 9, 17])))
        count = shape[0] * shape[1]
    else:
        lengths = draw(st.lists(st.sampled_from(LENGTHS), max_size=7))
        count = sum(lengths)
    ids = np.array(draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count)), np.int64)
    if draw(st.booleans()) and pool is GOOD:
        ids = ids.astype(np.int32)
    inputs["ids"] = ids.reshape(shape) if form == "dense" else ids
    if form != "dense":
        inputs |= _rows(draw, form, lengths, fields)
    _options(draw, fields, inputs, count)
    return fields, draw(st.sampled_from(WIDTHS)), inputs


def _rows(draw: st.DrawFn, form: str, lengths: list[int], fields: dict[str, Any]) -> dict[str, np.ndarray]:
    rows = np.repeat(np.arange(len(lengths)), lengths)
    fields["rows"] = "rows"
    fields["empty"] = draw(st.sampled_from(["zeros", "nan", "natural"]))
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    if form == "ragged":
        return {"rows": np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)}
    fields["sort_rows"] = draw(st.booleans())
    if draw(st.integers(0, 4)) == 0:
        rows = rows[np.random.default_rng(draw(st.integers(0, 9))).permutation(len(rows))]
    short = draw(st.integers(0, 3)) == 0 and not fields["sort_rows"]
    if short:
        fields["empty"] = "short"
    else:
        fields["shape"] = "shape"
    total = len(lengths) - (draw(st.integers(0, 9)) == 0)  # sometimes one row too few
    if form == "segments":
        return {"rows": rows.astype(dtype)} | ({} if short else {"shape": np.array(max(total, 0), np.int64)})
    indices = np.stack([rows, np.zeros_like(rows)], 1).astype(np.int64)
    return {"rows": indices} | ({} if short else {"shape": np.array([max(total, 0), 5], np.int64)})


def _options(draw: st.DrawFn, fields: dict[str, Any], inputs: dict[str, np.ndarray], count: int) -> None:
    form, combiner = fields["form"], fields["combiner"]
    steps = draw(
        st.sampled_from([
            (), ("prune_negative",), ("prune_negative",), ("wrap_negative", ROWS), ("mod", ROWS),
            ("select_negative", 3), ("select_out_of_range", 0, ROWS, 2), ("prune_equal", 5),
            ("select_equal", 4, -1),
        ])
    )  # fmt: skip
    prunes = steps and steps[0].startswith("prune")
    if steps and not (prunes and combiner == "none"):
        fields["steps"] = (Step(steps[0], tuple(str(a) for a in steps[1:])),)
    if combiner == "none":
        return
    if form == "dense" and draw(st.booleans()):
        fields["mask"] = "mask"
        inputs["mask"] = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)
        inputs["mask"] = inputs["mask"].reshape(inputs["ids"].shape)
    if draw(st.booleans()):
        fields |= {"weights": "weights", "prune_weights": draw(st.booleans()), "accumulation": "sequential"}
        weights = draw(st.lists(st.sampled_from(WEIGHTS), min_size=count, max_size=count))
        inputs["weights"] = np.array(weights, np.float32).reshape(inputs["ids"].shape)
        fields["denominator"] = draw(st.sampled_from(["no_nan", "max1"]))
    elif draw(st.booleans()):
        fields["accumulation"] = "sequential"
        fields["denominator"] = draw(st.sampled_from(["count", "max1", "eps", "no_nan"]))
        fields["denominator_eps"] = 1e-3 if fields["denominator"] == "eps" else 0.0
    if draw(st.integers(0, 3)) == 0:
        fields["fill_id"] = draw(st.sampled_from([0, 7, ROWS - 1, ROWS]))
    if draw(st.integers(0, 4)) == 0:
        fields["max_norm"] = 0.9


def make_spec(fields: dict[str, Any], width: int, table: int) -> LookupSpec:
    return LookupSpec(
        name="f", table=table, table_rows=ROWS, table_width=width, table_dtype="float32", ids="ids", **fields
    )  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(), packed=st.booleans())
@example(case=(FILLED_ROW, 1, {"ids": np.zeros(0, np.int64), "rows": np.zeros(2, np.int32)}), packed=False)
def test_against_the_reference(bench, case, packed):
    fields, width, inputs = case
    index, table = bench[1][width]
    spec = make_spec(fields, width, index)
    try:
        with np.errstate(all="ignore"):
            want = lookup(spec, table, inputs)
    except LookupError_:
        with pytest.raises(tf.errors.InvalidArgumentError, match="lookup 'f'"):
            bench[0].run(spec, inputs, packed=packed)
        return
    got = bench[0].run(spec, inputs, packed=packed)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


_SCRIPT = """
import hashlib, json, sys, pathlib, tempfile
import numpy as np
from tests.core.test_fused_lookup_property import fixed_digest
from tfctr.core import library
with tempfile.TemporaryDirectory() as folder:
    print(json.dumps({"isa": library.native().isa_name(), "digest": fixed_digest(pathlib.Path(folder))}))
"""


def fixed_digest(folder: Any) -> str:
    """Digest of the bits that many lookups of every dtype, width, form and combiner give."""
    import hashlib

    import ml_dtypes

    bench = LookupBench(folder, "digest")
    rng = np.random.default_rng(3)
    digest = hashlib.sha256()
    lengths = [0, 1, 2, 3, 8, 9, 10, 17, 0, 33]
    rows = np.repeat(np.arange(len(lengths)), lengths)
    inputs = {
        "ids": rng.integers(-1, ROWS, len(rows)),
        "rows": np.stack([rows, rows], 1),
        "shape": np.array([len(lengths), 99]),
        "weights": rng.uniform(0.1, 2, len(rows)).astype(np.float32),
    }
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64):
        for width in (1, 3, 4, 8, 12, 16, 20, 32, 64, 65, 100, 128):
            table = rng.normal(size=(ROWS, width)).astype(dtype)
            index = bench.table(table)
            for combiner in ("sum", "mean", "sqrtn"):
                for extra in ({}, {"weights": "weights", "denominator": "no_nan"}, {"max_norm": 0.9}):
                    spec = LookupSpec(
                        name="f", table=index, table_rows=ROWS, table_width=width,
                        table_dtype=tf.as_dtype(table.dtype).name, form="sparse", ids="ids", rows="rows", shape="shape",
                        steps=(Step("prune_negative"),), combiner=combiner, empty="zeros", sort_rows=True, **extra,
                    )  # fmt: skip
                    digest.update(bench.run(spec, inputs).tobytes())
    return digest.hexdigest()


def run_with(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=os.environ | environment, capture_output=True, text=True, timeout=300
    )


def test_every_instruction_set_gives_the_same_bits(tmp_path):
    from tfctr.core import library

    native = library.native()
    order = ["baseline", "avx2", "avx512"]
    supported = order[: order.index(native.detected_isa()) + 1]
    here = fixed_digest(tmp_path)
    for isa in supported:
        if isa == native.isa_name():
            continue
        result = run_with({"TFCTR_ISA": isa})
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout.splitlines()[-1]) == {"isa": isa, "digest": here}


def test_an_instruction_set_that_is_not_there_is_named(tmp_path):
    code = "from tfctr.core import library\nlibrary.native().isa_name()"
    asked = "avx512" if "avx512f" not in pathlib.Path("/proc/cpuinfo").read_text() else "avx1024"
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TFCTR_ISA": asked}, capture_output=True, text=True, timeout=300
    )
    assert result.returncode != 0
    assert asked in result.stderr.splitlines()[-1] and "TFCTR_ISA" in result.stderr.splitlines()[-1]


def test_work_is_split_over_threads_without_a_change(tmp_path):
    bench, tables = make_bench(tmp_path, "threads")
    rng = np.random.default_rng(5)
    lengths = rng.integers(0, 12, 6000)
    rows = np.repeat(np.arange(6000), lengths)
    order = np.arange(len(rows))
    inputs = {
        "ids": rng.integers(-1, ROWS, len(rows)),
        "rows": np.stack([rows, rows], 1),
        "shape": np.array([6000, 99]),
    }
    specs = [
        make_spec(
            {"form": "sparse", "rows": "rows", "shape": "shape", "combiner": c, "empty": "zeros", "sort_rows": True,
             "steps": (Step("prune_negative"),)}, w, tables[w][0],
        )
        for c in ("sum", "mean") for w in (16, 65)
    ]  # fmt: skip
    for spec in specs:
        whole = bench.run(spec, inputs)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(whole, lookup(spec, tables[spec.table_width][1], inputs), rtol=1e-5, atol=1e-5)
        shuffled = rng.permutation(order)
        mixed = dict(inputs, ids=inputs["ids"][shuffled], rows=inputs["rows"][shuffled])
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(bench.run(spec, mixed), whole, rtol=1e-5, atol=1e-5)
        broken = dict(inputs, ids=inputs["ids"].copy())
        broken["ids"][[20_000, 5_000]] = ROWS
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"id {ROWS} at row {rows[5_000]} "):
            bench.run(spec, broken)
