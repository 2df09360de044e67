"""Each id step of TfctrFusedLookup against the stock ops it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.lookup_spec import LookupSpec, Step
from tests.core.lookup_testing import LookupBench

ROWS = 50_000
EXTREMES = [0, 1, -1, 7, -8, 49_999, 50_000, 2**31 - 1, -(2**31), 2**31, 2**40 + 3, -(2**45), 2**63 - 1, -(2**63)]
WORDS = [b"", b"a", b"ab", b"abc", b"abcd", b"abcde", b"12345678", b"123456789", b"\xff\xfe\x80", b"x" * 31, b"y" * 200]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> LookupBench:
    bench = LookupBench(tmp_path_factory.mktemp("steps"), "test_fused_lookup_steps")
    bench.table(np.arange(ROWS, dtype=np.float64).reshape(-1, 1))  # the value of a row is its number
    return bench


def rows_of(bench: LookupBench, values: Any, *steps: Step) -> np.ndarray:
    """The row numbers that `steps` make of `values`."""
    spec = LookupSpec(
        name="steps",
        table=0,
        table_rows=ROWS,
        table_width=1,
        table_dtype="float64",
        form="dense",
        ids="ids",
        steps=steps,
    )
    return bench.run(spec, {"ids": values})[:, 0].astype(np.int64)


def step(kind: str, *args: object) -> Step:
    return Step(kind, tuple(str(a) for a in args))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64, np.int8, np.uint8, np.int16, np.uint16])
def test_mod_of_every_integer_type(bench, dtype):
    values = np.array([*EXTREMES, 2**63, 2**64 - 1], object)
    values = (values % 2 ** (8 * np.dtype(dtype).itemsize)).astype(np.uint64).astype(dtype)
    modulus = 97 if np.dtype(dtype).itemsize == 1 else 1009
    want = np.mod(values.astype(object), modulus).astype(np.int64)
    np.testing.assert_array_equal(rows_of(bench, values, step("mod", modulus)), want)
    if dtype in (np.int32, np.int64, np.uint64):
        stock = tf.math.floormod(tf.constant(values), tf.constant(modulus, dtype)).numpy().astype(np.int64)
        np.testing.assert_array_equal(want, stock)


@pytest.mark.parametrize("target", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("source", [np.int32, np.int64, np.float32, np.float64])
def test_cast_then_mod(bench, target, source):
    values = np.array(EXTREMES if source == np.int64 else [0, 1, -1, 7, -8, 49_999, 123_456], source)
    if np.issubdtype(source, np.floating):
        values = np.concatenate([values, np.array([0.5, 1.9, 2.999, 40_000.7], source)])
        if target.startswith("u"):
            values = np.abs(values)
    want = tf.math.floormod(tf.cast(tf.cast(values, target), tf.int64), 1009)
    got = rows_of(bench, values, step("cast", target), step("cast", "int64"), step("mod", 1009))
    np.testing.assert_array_equal(got, want.numpy())


def test_arithmetic_wraps_in_its_type(bench):
    values = np.array([0, 5, -3, 2**31 - 1, -(2**31)], np.int32)
    stock = tf.math.floormod(tf.constant(values) * 7 + 11, 1000)
    got = rows_of(bench, values, step("mul", 7), step("add", 11), step("mod", 1000))
    np.testing.assert_array_equal(got, stock.numpy())
    stock = tf.math.floormod(tf.math.floordiv(tf.constant(values), 3), 1000)
    np.testing.assert_array_equal(rows_of(bench, values, step("divide", 3), step("mod", 1000)), stock.numpy())


def test_stacked_table_offsets(bench):
    ids = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    want = (ids + np.array([0, 100, 1000])).reshape(-1)
    np.testing.assert_array_equal(rows_of(bench, ids, step("addcol", 0, 100, 1000)), want)
    with pytest.raises(tf.errors.InvalidArgumentError, match="'steps'.*addcol has 2 numbers, the ids have 3"):
        rows_of(bench, ids, step("addcol", 0, 100))


def test_selects(bench):
    values = np.array([-5, -1, 0, 9, 10, 11], np.int64)
    np.testing.assert_array_equal(rows_of(bench, values, step("select_negative", 77)), [77, 77, 0, 9, 10, 11])
    np.testing.assert_array_equal(
        rows_of(bench, values, step("select_out_of_range", 0, 10, 42)), [42, 42, 0, 9, 42, 42]
    )
    huge = np.array([2**63, 3], np.uint64)
    np.testing.assert_array_equal(rows_of(bench, huge, step("select_out_of_range", 0, 10, 42)), [42, 3])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_keras_hashing_of_integers(bench, dtype):
    values = np.array([v for v in EXTREMES if np.iinfo(dtype).min <= v <= np.iinfo(dtype).max], dtype)
    want = tf.strings.to_hash_bucket_fast(tf.as_string(values), 4999)
    np.testing.assert_array_equal(rows_of(bench, values, Step("as_string"), step("hash_fast", 4999)), want.numpy())
    want = tf.strings.to_hash_bucket_strong(tf.as_string(values), 4999, key=[133, 137])
    got = rows_of(bench, values, Step("as_string"), step("hash_strong", 4999, 133, 137))
    np.testing.assert_array_equal(got, want.numpy())


@pytest.mark.parametrize("packed", [False, True])
def test_hashing_of_strings(bench, packed):
    words = WORDS + [bytes([200, 3, 250]) * n for n in range(1, 9)]
    spec = LookupSpec(
        name="s", table=0, table_rows=ROWS, table_width=1, table_dtype="float64", form="dense", ids="ids",
        steps=(step("hash_fast", 49_999),),
    )  # fmt: skip
    got = bench.run(spec, {"ids": np.array(words, object)}, packed=packed)[:, 0].astype(np.int64)
    np.testing.assert_array_equal(got, tf.strings.to_hash_bucket_fast(words, 49_999).numpy())
    for key in ([1, 2], [2**63, 2**64 - 1]):
        got = rows_of(bench, np.array(words, object), step("hash_strong", 49_999, *key))
        signed = [k - 2**64 if k >= 2**63 else k for k in key]
        want = tf.strings.to_hash_bucket_strong(words, 49_999, key=signed)
        np.testing.assert_array_equal(got, want.numpy())
        np.testing.assert_array_equal(
            rows_of(bench, np.array(words, object), step("hash_strong", 49_999, *signed)), want
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_bucketize(bench, dtype):
    values = np.array([-1e9, -1, 0, 0.1, 0.5, 1, 2, 2.5, 1e9], np.float64).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        values = np.concatenate([values, np.array([np.nan, np.inf, -np.inf, 0.1], dtype)])
    boundaries = [-0.5, 0.1, 1.0, 2.5]
    want = tf.raw_ops.Bucketize(input=values, boundaries=boundaries).numpy()
    np.testing.assert_array_equal(rows_of(bench, values, step("bucketize", *boundaries)), want)


def test_vocabularies(bench):
    strings = bench.vocab([b"red", b"green", b"", b"17"], np.array([10, 11, 12, 13], np.int64))
    numbers = bench.vocab(np.array([5, -3, 2**40], np.int64), np.array([20, 21, 22], np.int64))
    words = np.array([b"red", b"blue", b"", b"green"], object)
    np.testing.assert_array_equal(rows_of(bench, words, step("vocab", strings, 0)), [10, 0, 12, 11])
    oov = 30 + tf.strings.to_hash_bucket_fast([b"blue"], 7).numpy()
    np.testing.assert_array_equal(rows_of(bench, words, step("vocab_oov", strings, 30, 7)), [10, oov[0], 12, 11])
    ids = np.array([5, 6, -3, 2**40], np.int64)
    np.testing.assert_array_equal(rows_of(bench, ids, step("vocab", numbers, 1)), [20, 1, 21, 22])
    oov = 30 + tf.strings.to_hash_bucket_fast([b"6"], 7).numpy()
    np.testing.assert_array_equal(rows_of(bench, ids, step("vocab_oov", numbers, 30, 7)), [20, oov[0], 21, 22])
    text = np.array([17, 18], np.int64)
    np.testing.assert_array_equal(rows_of(bench, text, Step("as_string"), step("vocab", strings, 3)), [13, 3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="'steps'.*file 0 of the store is no vocabulary"):
        rows_of(bench, words, step("vocab", 0, 0))


def test_prune_equal_drops_values(bench):
    def total(values: Any, text: str, *steps: Step) -> list[float]:
        spec = LookupSpec(
            name="p", table=0, table_rows=ROWS, table_width=1, table_dtype="float64", form="dense", ids="ids",
            steps=(step("prune_equal", text), *steps), combiner="sum",
        )  # fmt: skip
        return bench.run(spec, {"ids": values})[:, 0].tolist()

    assert total(np.array([[1, -1, 3], [-1, -1, -1]]), "-1") == [4, 0]
    assert total(np.array([[1.0, -1.0], [2.5, 3.0]], np.float32), "-1", step("cast", "int64")) == [1, 5]
    words = np.array([[b"a", b""], [b"", b""]], object)
    hashed = tf.strings.to_hash_bucket_fast([b"a"], 100).numpy()[0]
    assert total(words, "", step("hash_fast", 100)) == [hashed, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1.*expected 'tfctr-lookup 1'"),
        ("tfctr-lookup 2\n", "version 1"),
        ("tfctr-lookup 1\noutput 0 form=rows columns=x dtype=float32\n", "line 2, word 'columns'.*'x'"),
        ("tfctr-lookup 1\noutput 0 form=rows columns=1 dtype=float64\nlookup nam=f\n", "line 3, word 'nam'.*unknown"),
        ("lookup steps=modd:3", "line 3, word 'steps'.*unknown step 'modd'"),
        ("lookup steps=mod:0", "line 3, word 'steps'.*mod needs a positive number"),
        ("lookup steps=hash_fast:5", "step 0 cannot take int64 values"),
        ("lookup combiner=avg", "line 3, word 'combiner'.*'avg'"),
        ("lookup ids=arg:4", "ids is arg:4, but there are only 1"),
        ("lookup column=1", "starts at column 1, expected 0"),
        ("lookup table_width=3", "has 1 columns, its parts fill 3"),
        ("lookup table_rows=51", "the table file holds 50000 rows of 1 float64, expected 51 rows"),
        ("lookup name=%zz", "line 3, word 'name'.*escape"),
        ("lookup weights=arg:0", "need a combiner"),
    ],
)
def test_bad_specs_are_refused_by_line_and_word(bench, text, message):
    from tfctr.core import library

    words = {
        "name": "f", "table": "0", "table_rows": str(ROWS), "table_width": "1", "table_dtype": "float64",
        "form": "dense", "ids": "arg:0", "output": "0", "column": "0",
    }  # fmt: skip
    if text.startswith("lookup "):
        words |= dict(w.split("=", 1) for w in text.split()[1:])
        line = "lookup " + " ".join(f"{k}={v}" for k, v in words.items())
        text = f"tfctr-lookup 1\noutput 0 form=rows columns=1 dtype=float64\n{line}\n"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        library.load().TfctrFusedLookup(
            store=bench.store(),
            arena=np.zeros(0, np.uint8),
            shapes=np.zeros(0, np.int64),
            strings=tf.constant([], tf.string),
            args=[tf.constant([1, 2], tf.int64)],
            spec=text,
            layout=[],
            Tout=[tf.float64],
        )
