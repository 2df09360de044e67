"""Lookups over float32 tables that are stored in fewer bytes: bit-equal to the float32 op over the stored values."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph_opt.lookup_spec import LookupSpec, OutputSpec, Placement, Step, spec_text
from tests.core import test_fused_lookup_property as property_cases
from tests.core.lookup_testing import LookupBench

ROWS = 41
WIDTHS = (1, 3, 16, 17, 64, 65, 128, 257)
STORAGES = ("float16", "bfloat16", "int8")
LENGTHS = (0, 1, 2, 7, 8, 9, 10, 16, 0, 17, 40)
PRUNE = (Step("prune_negative"),)
_HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def stored(table: np.ndarray, storage: str) -> np.ndarray:
    """The array that the file of ``table`` holds, written down independently of the C++."""
    if storage in _HALVES:
        return table.astype(_HALVES[storage])
    scale = (np.abs(table).max(axis=1) / np.float32(127)).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 0
    divisor = np.where(scale == 0, np.float32(1), scale)[:, None]
    numbers = np.where(scale[:, None] == 0, 0, np.clip(np.rint(table / divisor), -127, 127)).astype(np.int8)
    return np.concatenate([scale.view(np.uint8).reshape(-1, 4), numbers.view(np.uint8)], axis=1)


def read_back(array: np.ndarray) -> np.ndarray:
    """The float32 values that a stored array stands for."""
    if array.dtype != np.uint8:
        return array.astype(np.float32)
    scale = np.ascontiguousarray(array[:, :4]).view(np.float32)
    return array[:, 4:].view(np.int8).astype(np.float32) * scale


def odd_values(width: int, storage: str, seed: int = 0) -> np.ndarray:
    """[ROWS, width] with what rounds, underflows or has a sign in it; rows 3 and 4 hold zeros and minus zeros."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(ROWS, width)).astype(np.float32)
    table[1] *= 1e-6  # subnormal halves
    table[2] *= 60000 / max(1, np.abs(table[2]).max())
    table[3], table[4] = 0.0, -0.0
    table[5] *= 1e-39  # subnormal float32: halves underflow, int8 rows are zeros
    if storage != "int8":
        table[6, :: max(1, width // 3)] = np.inf
        table[7, 0], table[7, -1] = np.nan, -np.inf
    return table


class Tables:
    """For each (width, storage): the file of the narrow table and that of the same values in float32."""

    def __init__(self, folder: pathlib.Path, name: str, widths: tuple[int, ...] = WIDTHS):
        self.bench = LookupBench(folder, name)
        self.files: dict[tuple[int, str], tuple[int, int]] = {}
        for width in widths:
            for storage in STORAGES:
                array = stored(odd_values(width, storage), storage)
                self.files[width, storage] = self.bench.table(array), self.bench.table(read_back(array))

    def both(self, width: int, storage: str, inputs: dict[str, Any], **fields: Any) -> tuple[np.ndarray, np.ndarray]:
        """The lookup over the narrow table, and over its values in float32."""
        narrow, wide = self.files[width, storage]
        common: dict[str, Any] = {
            "name": "f", "table_rows": ROWS, "table_width": width, "table_dtype": "float32", "ids": "ids", **fields,
        }  # fmt: skip
        form = "like" if fields.get("combiner", "none") == "none" and "ids_per_row" not in fields else "rows"
        got = self.bench.run(LookupSpec(table=narrow, storage=storage, **common), inputs, form=form)
        return got, self.bench.run(LookupSpec(table=wide, **common), inputs, form=form)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(tmp_path_factory.mktemp("storage"), "test_fused_lookup_storage")


def same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bit for bit, whatever a NaN's payload."""
    assert got.dtype == want.dtype == np.float32 and got.shape == want.shape
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], want.view(np.uint32)[~nan])


def coo(seed: int, low: int = -1, dtype: Any = np.int64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    return {
        "ids": rng.integers(low, ROWS, len(rows)).astype(dtype),
        "rows": np.stack([rows, np.zeros_like(rows)], 1).astype(np.int64),
        "shape": np.array([len(LENGTHS), 99], np.int64),
        "weights": rng.uniform(0.1, 2, len(rows)).astype(np.float32),
    }


SPARSE = {"form": "sparse", "rows": "rows", "shape": "shape", "empty": "zeros", "sort_rows": True, "steps": PRUNE}
EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fill": {"fill_id": 2},
    "nan": {"empty": "nan"},
    "weights": {"weights": "weights", "denominator": "no_nan", "accumulation": "sequential"},
    "max_norm": {"max_norm": 0.9},
    "weights, max_norm, fill": {
        "weights": "weights", "denominator": "no_nan", "accumulation": "sequential", "max_norm": 0.5, "fill_id": 1,
    },
    "divisors": {"denominator": "max1", "accumulation": "sequential"},
}  # fmt: skip


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_reductions_have_the_bits_of_the_stored_values(tables, storage, width, combiner):
    for number, (_, extra) in enumerate(EXTRAS.items()):
        for dtype in (np.int64, np.int32):
            inputs = coo(number, dtype=dtype)
            if "weights" not in extra:
                del inputs["weights"]
            same_bits(*tables.both(width, storage, inputs, **SPARSE | {"combiner": combiner} | extra))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("width", WIDTHS)
def test_other_forms_have_the_bits_of_the_stored_values(tables, storage, width):
    rng = np.random.default_rng(width)
    ids = rng.integers(0, ROWS, (12, 19))
    mask = {"ids": ids, "mask": rng.random(ids.shape) < 0.6}
    splits = np.concatenate([[0], np.cumsum(LENGTHS)])
    ragged = {"ids": coo(1, low=0)["ids"], "rows": splits}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"ids": ids}, {"form": "dense", "combiner": "none"}),
        ({"ids": ids[:, :1].astype(np.int32)}, {"form": "dense", "combiner": "none", "ids_per_row": 1}),
        ({"ids": ids}, {"form": "dense", "combiner": "none", "ids_per_row": 19}),
        ({"ids": ids}, {"form": "dense", "combiner": "none", "max_norm": 1.0}),
        ({"ids": ids - ROWS}, {"form": "dense", "combiner": "none", "steps": (Step("wrap_negative", (str(ROWS),)),)}),
        ({"ids": ids}, {"form": "dense", "combiner": "none", "mask_value": str(int(ids[0, 0]))}),
        ({"ids": ids}, {"form": "dense", "combiner": "sum", "accumulation": "sequential"}),
        (mask, {"form": "dense", "combiner": "mean", "accumulation": "sequential", "mask": "mask"}),
        (mask, {"form": "dense", "combiner": "mean", "accumulation": "sequential", "mask": "mask", "max_norm": 2.0}),
        (ragged, {"form": "ragged", "combiner": "mean", "rows": "rows"}),
        (ragged | {"rows": splits.astype(np.int32)}, {"form": "ragged", "combiner": "sqrtn", "rows": "rows"}),
        ({**ragged, "rows": np.sort(coo(1)["rows"][:, 0])}, {"form": "segments", "combiner": "sum", "rows": "rows"}),
    ]
    for inputs, fields in cases:
        same_bits(*tables.both(width, storage, inputs, **fields))


@pytest.mark.parametrize("storage", STORAGES)
def test_the_narrow_file_holds_what_numpy_rounds_to(tmp_path, storage):
    from tfctr.core.library import native

    for width in (1, 7, 33):
        table = odd_values(width, storage, seed=width)
        native().write_table(str(tmp_path / "wide"), "emb", table)
        done: list[int] = []
        info = native().narrow_table(str(tmp_path / "wide"), storage, str(tmp_path / "narrow"), done.append)
        want = stored(table, storage)
        assert info["dtype"] == want.dtype.name and tuple(info["shape"]) == want.shape and info["name"] == "emb"
        assert sum(done) == want.nbytes
        data = np.fromfile(tmp_path / "narrow", want.dtype, want.size).reshape(want.shape)
        with np.errstate(invalid="ignore"):
            got, wanted = read_back(data), read_back(want)
        same_bits(got, wanted)
        finite = np.isfinite(table)
        error = np.abs(wanted[finite].astype(np.float64) - table[finite].astype(np.float64)).max()
        assert info["max_abs_error"] == pytest.approx(error, rel=1e-12)


@pytest.mark.parametrize(
    ("storage", "value", "reason"),
    [
        ("float16", 70000.0, "row 5 holds 70000.0+, which is too large, so it can't be stored as float16"),
        ("bfloat16", 3.4e38, "row 5 holds .*too large"),
        ("int8", np.nan, "row 5 holds NaN, so it can't be stored as int8"),
        ("int8", -np.inf, "row 5 holds an infinity"),
    ],
)
def test_values_that_cannot_be_stored_are_named(tmp_path, storage, value, reason):
    from tfctr.core.library import native

    table = np.zeros((9, 3), np.float32)
    table[5, 1] = value
    native().write_table(str(tmp_path / "wide"), "user_emb", table)
    with pytest.raises(ValueError, match=f"table 'user_emb': {reason}"):
        native().narrow_table(str(tmp_path / "wide"), storage, str(tmp_path / "narrow"))
    assert [p.name for p in tmp_path.iterdir()] == ["wide"]


def test_only_float32_tables_are_narrowed(tmp_path):
    from tfctr.core.library import native

    native().write_table(str(tmp_path / "wide"), "emb", np.zeros((2, 2)))
    with pytest.raises(ValueError, match="only float32 tables"):
        native().narrow_table(str(tmp_path / "wide"), "float16", str(tmp_path / "narrow"))
    with pytest.raises(ValueError, match="can't be stored as int32"):
        native().narrow_table(str(tmp_path / "wide"), "int32", str(tmp_path / "narrow"))


def test_a_stopped_narrowing_leaves_nothing(tmp_path):
    from tfctr.core.library import native

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    native().write_table(str(tmp_path / "wide"), "emb", np.zeros((2, 2), np.float32))
    with pytest.raises(KeyboardInterrupt):
        native().narrow_table(str(tmp_path / "wide"), "int8", str(tmp_path / "narrow"), stop)
    assert [p.name for p in tmp_path.iterdir()] == ["wide"]


def test_the_file_must_have_the_stored_shape_and_dtype(tables):
    narrow, wide = tables.files[16, "int8"]
    inputs = {"ids": np.zeros((1, 1), np.int64)}
    common: dict[str, Any] = {"name": "f", "table_rows": ROWS, "table_width": 16, "table_dtype": "float32",
                              "form": "dense", "ids": "ids"}  # fmt: skip
    for table, storage, expected in ((wide, "int8", "20 uint8"), (wide, "float16", "16 float16"),
                                     (narrow, None, "16 float32")):  # fmt: skip
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"expected {ROWS} rows of {expected}"):
            tables.bench.run(LookupSpec(table=table, storage=storage, **common), inputs, form="like")


def test_specs_say_what_storage_is_for(tables):
    with pytest.raises(ValueError, match="can't be stored as 'int4'"):
        LookupSpec(name="f", table=0, table_rows=1, table_width=1, table_dtype="float32", form="dense", ids="ids",
                   storage="int4")  # fmt: skip
    with pytest.raises(ValueError, match="a float64 table can't be stored as 'int8'"):
        LookupSpec(name="f", table=0, table_rows=1, table_width=1, table_dtype="float64", form="dense", ids="ids",
                   storage="int8")  # fmt: skip
    spec = LookupSpec(name="f", table=tables.files[16, "float16"][0], table_rows=ROWS, table_width=16,
                      table_dtype="float16", form="dense", ids="ids")  # fmt: skip
    text = spec_text(
        [(spec, Placement(0, 0))], [OutputSpec(form="like", columns=16, dtype="float16")], {"ids": "arg:0"}
    )
    ops, ids = tables.bench._ops, tf.zeros((1, 1), tf.int64)
    arena = {"arena": tf.zeros(0, tf.uint8), "shapes": tf.zeros(0, tf.int64), "strings": tf.zeros(0, tf.string)}
    for word, reason in (("storage=int8", "storage int8 is for float32 tables, not for float16"),
                         ("storage=int32", "word 'storage': illegal value 'int32'")):  # fmt: skip
        broken = text.replace("table_dtype=float16", f"table_dtype=float16 {word}")
        with pytest.raises(tf.errors.InvalidArgumentError, match=reason):
            ops.TfctrFusedLookup(
                store=tables.bench.store(), args=[ids], spec=broken, layout=[], Tout=[tf.float16], **arena
            )


@pytest.fixture(scope="module")
def property_tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[LookupBench, dict[tuple[int, str], Any]]:
    """Files of (narrow, values) of the sizes that the generated cases are for."""
    bench = LookupBench(tmp_path_factory.mktemp("storage_property"), "test_fused_lookup_storage_property")
    rng = np.random.default_rng(0)
    found = {}
    for width in property_cases.WIDTHS:
        table = rng.normal(size=(property_cases.ROWS, width)).astype(np.float32)
        for storage in STORAGES:
            array = stored(table, storage)
            found[width, storage] = bench.table(array), bench.table(read_back(array))
    return bench, found


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=property_cases.cases(), storage=st.sampled_from(STORAGES), packed=st.booleans())
def test_generated_lookups_give_the_bits_and_errors_of_the_stored_values(property_tables, case, storage, packed):
    bench, files = property_tables
    fields, width, inputs = case
    narrow, wide = files[width, storage]
    spec = property_cases.make_spec(fields, width, wide)
    error = ""
    try:
        want = bench.run(spec, inputs, packed=packed)
    except tf.errors.InvalidArgumentError as raised:
        error = raised.message.split("table_")[0]
    narrowed = dataclasses.replace(spec, table=narrow, storage=storage)
    if error:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            bench.run(narrowed, inputs, packed=packed)
        assert caught.value.message.split("table_")[0] == error
    else:
        same_bits(bench.run(narrowed, inputs, packed=packed), want)


_SCRIPT = """
import json, pathlib, tempfile
from tests.core.test_fused_lookup_storage import digest
from tfctr.core import library
with tempfile.TemporaryDirectory() as folder:
    print(json.dumps({"isa": library.native().isa_name(), "digest": digest(pathlib.Path(folder))}))
"""


def digest(folder: pathlib.Path) -> str:
    """Of the bits of many lookups over narrow tables."""
    tables = Tables(folder, "storage_digest", (1, 4, 8, 16, 20, 32, 64, 65, 128))
    found = hashlib.sha256()
    for width, storage in tables.files:
        for extra in EXTRAS.values():
            got, _ = tables.both(width, storage, coo(7), **SPARSE | {"combiner": "mean"} | extra)
            found.update(np.where(np.isnan(got), np.float32(7), got).tobytes())
        got, _ = tables.both(width, storage, {"ids": coo(3, low=0)["ids"][:, None]}, form="dense", combiner="none")
        found.update(np.where(np.isnan(got), np.float32(7), got).tobytes())
    return found.hexdigest()


def test_every_instruction_set_gives_the_same_bits(tmp_path):
    from tfctr.core.library import native

    order = ["baseline", "avx2", "avx512"]
    here = digest(tmp_path)
    for isa in order[: order.index(native().detected_isa()) + 1]:
        if isa == native().isa_name():
            continue
        result = subprocess.run(
            [sys.executable, "-c", _SCRIPT], env=os.environ | {"TFCTR_ISA": isa}, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout.splitlines()[-1]) == {"isa": isa, "digest": here}
