"""TfctrFusedLookup against stock TensorFlow: bit for bit where stock only gathers and sums segments."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from graph_opt.lookup_spec import CopySpec, LookupSpec, OutputSpec, Placement, Step
from tests.core.lookup_testing import LookupBench, spec

ROWS = 97
WIDTHS = (1, 3, 8, 16, 32, 64, 65, 128, 257)
LENGTHS = (0, 1, 2, 7, 8, 9, 10, 16, 17, 19, 40)
PRUNE = (Step("prune_negative"),)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> LookupBench:
    return LookupBench(tmp_path_factory.mktemp("lookup"), "test_fused_lookup")


@pytest.fixture(scope="module")
def tables(bench: LookupBench) -> dict[tuple[int, str], tuple[int, np.ndarray]]:
    rng = np.random.default_rng(0)
    found = {}
    for width in WIDTHS:
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64):
            if dtype is not np.float32 and width not in (3, 16, 65):
                continue
            array = rng.normal(size=(ROWS, width)).astype(dtype)
            found[width, np.dtype(dtype).name] = (bench.table(array), array)
    return found


def coo(lengths: Any, rng: np.random.Generator, low: int = -1) -> dict[str, np.ndarray]:
    """Sparse ids with the given number of values per row; negative ones among them."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    columns = np.concatenate([np.arange(n) for n in lengths] or [np.zeros(0)]).astype(np.int64)
    return {
        "ids": rng.integers(low, ROWS, len(rows)),
        "rows": np.stack([rows, columns], 1).astype(np.int64).reshape(-1, 2),
        "shape": np.array([len(lengths), max([*lengths, 1])], np.int64),
    }


def stock_sparse(inputs: dict[str, np.ndarray], key: str = "ids") -> tf.SparseTensor:
    return tf.SparseTensor(inputs["rows"], inputs[key], inputs["shape"])


def safe(table: Any, **fields: Any) -> LookupSpec:
    return spec(*table, form="sparse", rows="rows", shape="shape", empty="zeros", sort_rows=True, steps=PRUNE, **fields)


def same_bits(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_safe_lookup_has_stocks_bits_for_every_length_and_width(bench, tables, width, combiner):
    inputs = coo(LENGTHS, np.random.default_rng(width), low=-2)
    table = tables[width, "float32"]
    want = tf.nn.safe_embedding_lookup_sparse(tf.constant(table[1]), stock_sparse(inputs), combiner=combiner)
    same_bits(bench.run(safe(table, combiner=combiner), inputs), want.numpy())
    same_bits(bench.run(safe(table, combiner=combiner), inputs, packed=True), want.numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("width", [3, 16, 65])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_other_dtypes_have_stocks_bits(bench, tables, dtype, width, combiner):
    inputs = coo(LENGTHS, np.random.default_rng(5))
    table = tables[width, dtype]
    want = tf.nn.safe_embedding_lookup_sparse(tf.constant(table[1]), stock_sparse(inputs), combiner=combiner)
    same_bits(bench.run(safe(table, combiner=combiner), inputs), want.numpy())


@pytest.mark.parametrize("width", [3, 16, 65])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_weighted_lookup(bench, tables, width, combiner, dtype):
    rng = np.random.default_rng(6)
    inputs = coo(LENGTHS, rng)
    kind = np.dtype(dtype)  # stock takes weights of the table's dtype only
    inputs["weights"] = rng.choice([-1.5, 0.0, 0.25, 1.0, 3.0], len(inputs["ids"])).astype(kind)
    table = tables[width, dtype]
    want = tf.nn.safe_embedding_lookup_sparse(
        tf.constant(table[1]), stock_sparse(inputs), stock_sparse(inputs, "weights"), combiner=combiner
    ).numpy()
    got = bench.run(
        safe(
            table,
            combiner=combiner,
            weights="weights",
            prune_weights=combiner != "sum",
            accumulation="sequential",
            denominator="no_nan",
        ),
        inputs,
    )
    if combiner == "sqrtn":  # stock's Pow is not always the rounded square
        tolerance = 2e-3 if dtype == "float16" else 1e-6
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=1e-7)
    else:
        same_bits(got, want)


def test_nan_weights_are_pruned_for_mean_and_poison_sum(bench, tables):
    inputs = coo([2, 1], np.random.default_rng(1), low=0)
    inputs["weights"] = np.array([1.0, np.nan, np.nan], np.float32)
    for combiner in ("sum", "mean"):
        table = tables[16, "float32"]
        want = tf.nn.safe_embedding_lookup_sparse(
            tf.constant(table[1]), stock_sparse(inputs), stock_sparse(inputs, "weights"), combiner=combiner
        ).numpy()
        got = bench.run(
            safe(
                table,
                combiner=combiner,
                weights="weights",
                prune_weights=combiner != "sum",
                accumulation="sequential",
                denominator="no_nan",
            ),
            inputs,
        )
        same_bits(got, want)
        assert np.isnan(got).any() == (combiner == "sum")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("width", [16, 65])
def test_default_id_fills_empty_rows(bench, tables, weighted, width):
    rng = np.random.default_rng(2)
    inputs = coo([0, 2, 0, 0, 3, 0], rng)
    inputs["ids"][:2] = -1  # row 1 becomes empty by pruning
    table = tables[width, "float32"]
    fields: dict[str, Any] = {"combiner": "mean", "fill_id": 7}
    weights = None
    if weighted:
        inputs["weights"] = rng.uniform(0.5, 2, len(inputs["ids"])).astype(np.float32)
        weights = stock_sparse(inputs, "weights")
        fields |= {"weights": "weights", "prune_weights": True, "accumulation": "sequential", "denominator": "no_nan"}
    want = tf.nn.safe_embedding_lookup_sparse(
        tf.constant(table[1]), stock_sparse(inputs), weights, combiner="mean", default_id=7
    )
    same_bits(bench.run(safe(table, **fields), inputs), want.numpy())


@pytest.mark.parametrize("width", WIDTHS)
def test_max_norm(bench, tables, width):
    inputs = coo([1, 2, 9, 0], np.random.default_rng(3))
    table = tables[width, "float32"]
    want = tf.nn.safe_embedding_lookup_sparse(
        tf.constant(table[1]), stock_sparse(inputs), combiner="mean", max_norm=1.25
    ).numpy()
    got = bench.run(safe(table, combiner="mean", max_norm=1.25), inputs)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)
    if width <= 257:
        same_bits(got, want)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("width", [16, 65])
def test_plain_lookup_is_short_and_refuses_unsorted_rows(bench, tables, combiner, width):
    inputs = coo([0, 2, 0, 9, 17, 0, 0], np.random.default_rng(4), low=0)
    table = tables[width, "float32"]
    plain = spec(*table, form="sparse", rows="rows", combiner=combiner, empty="short")
    want = tf.nn.embedding_lookup_sparse(tf.constant(table[1]), stock_sparse(inputs), None, combiner=combiner).numpy()
    assert len(want) == 5
    used = {k: inputs[k] for k in ("ids", "rows")}
    same_bits(bench.run(plain, used), want)
    used["rows"] = used["rows"][::-1].copy()
    with pytest.raises(tf.errors.InvalidArgumentError, match="'feature'.*segment ids are not increasing"):
        bench.run(plain, used)


def test_unsorted_rows_are_sorted_stably_where_stock_does(bench, tables):
    rng = np.random.default_rng(7)
    inputs = coo([3, 12, 0, 5], rng)
    order = rng.permutation(len(inputs["ids"]))
    inputs = {"ids": inputs["ids"][order], "rows": inputs["rows"][order], "shape": inputs["shape"]}
    for width in (16, 65):
        table = tables[width, "float32"]
        want = tf.nn.safe_embedding_lookup_sparse(tf.constant(table[1]), stock_sparse(inputs), combiner="sum")
        same_bits(bench.run(safe(table, combiner="sum"), inputs), want.numpy())


@pytest.mark.parametrize("width", [16, 65])
def test_ids_of_rank_three(bench, tables, width):
    rng = np.random.default_rng(8)
    shape = np.array([2, 3, 4], np.int64)
    indices = np.array([i for i in itertools.product(range(2), range(3), range(4)) if sum(i) % 3], np.int64)
    inputs = {"ids": rng.integers(-1, ROWS, len(indices)), "rows": indices, "shape": shape}
    table = tables[width, "float32"]
    want = tf.nn.safe_embedding_lookup_sparse(tf.constant(table[1]), stock_sparse(inputs), combiner="mean").numpy()
    same_bits(bench.run(safe(table, combiner="mean"), inputs), want.reshape(6, width))


@pytest.mark.parametrize("splits_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("width", [16, 65])
def test_ragged_lookup(bench, tables, splits_dtype, combiner, width):
    ids = np.random.default_rng(9).integers(0, ROWS, sum(LENGTHS))
    splits = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(splits_dtype)
    table = tables[width, "float32"]
    ragged = tf.RaggedTensor.from_row_splits(ids, splits)
    want = tf.nn.embedding_lookup_sparse(tf.constant(table[1]), ragged.to_sparse(), None, combiner=combiner).numpy()
    got = bench.run(
        spec(*table, form="ragged", rows="rows", combiner=combiner, empty="zeros"), {"ids": ids, "rows": splits}
    )
    same_bits(got, want)


@pytest.mark.parametrize("rows_dtype", [np.int32, np.int64])
def test_segments(bench, tables, rows_dtype):
    rng = np.random.default_rng(10)
    ids, rows = rng.integers(0, ROWS, 20), np.sort(rng.integers(0, 6, 20)).astype(rows_dtype)
    for width in (16, 65):
        index, table = tables[width, "float32"]
        want = tf.raw_ops.SparseSegmentMeanWithNumSegments(
            data=table, indices=ids, segment_ids=rows, num_segments=9
        ).numpy()
        fields = {"form": "segments", "rows": "rows", "shape": "count", "combiner": "mean", "empty": "zeros"}
        got = bench.run(spec(index, table, **fields), {"ids": ids, "rows": rows, "count": np.int32(9)})
        same_bits(got, want)
        with pytest.raises(tf.errors.InvalidArgumentError, match="row 5 .* is not in|number of segments"):
            bench.run(spec(index, table, **fields), {"ids": ids, "rows": np.full_like(rows, 5), "count": np.int32(5)})


@pytest.mark.parametrize("ids_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("width", WIDTHS)
def test_keras_style_gather_wraps_negative_ids(bench, tables, ids_dtype, width):
    ids = np.array([[0, 1], [-1, ROWS - 1], [-ROWS, 5]], ids_dtype)
    index, table = tables[width, "float32"]
    want = tf.gather(table, np.where(ids < 0, ids + ROWS, ids)).numpy()
    like = spec(index, table, form="dense", steps=(Step("wrap_negative", (str(ROWS),)),))
    same_bits(bench.run(like, {"ids": ids}, form="like"), want)
    flat = spec(index, table, form="dense", steps=(Step("wrap_negative", (str(ROWS),)),), ids_per_row=2)
    same_bits(bench.run(flat, {"ids": ids}), want.reshape(3, -1))
    for bad in (ROWS, -ROWS - 1):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"'feature' \(table 'table_\d+', 97 rows\): id .* row 1"
        ):
            bench.run(flat, {"ids": np.array([[0, 1], [0, bad]], ids_dtype)})


@pytest.mark.parametrize("length", [1, 5, 16, 21])
@pytest.mark.parametrize("width", [3, 8, 12, 16, 65])
@pytest.mark.parametrize("batch", [0, 1, 7])
def test_masked_sequence_pooling(bench, tables, bench_tables_12, length, width, batch):
    rng = np.random.default_rng(11)
    ids = rng.integers(0, ROWS, (batch, length))
    mask = rng.random((batch, length)) < 0.7
    index, table = bench_tables_12 if width == 12 else tables[width, "float32"]
    vectors = tf.gather(table, ids) * tf.cast(mask, tf.float32)[:, :, None]
    total = tf.reduce_sum(vectors, 1)
    count = tf.reduce_sum(tf.cast(mask, tf.float32), 1, keepdims=True)
    common = {"form": "dense", "mask": "mask", "accumulation": "sequential"}
    inputs = {"ids": ids, "mask": mask}
    same_bits(bench.run(spec(index, table, combiner="sum", **common), inputs), total.numpy())
    got = bench.run(spec(index, table, combiner="mean", denominator="max1", **common), inputs)
    same_bits(got, (total / tf.maximum(count, 1.0)).numpy())
    eps = {"denominator": "eps", "denominator_eps": 1e-8}
    same_bits(bench.run(spec(index, table, combiner="mean", **eps, **common), inputs), (total / (count + 1e-8)).numpy())
    same_bits(bench.run(spec(index, table, combiner="mean", **common), inputs), (total / count).numpy())
    mean = tf.reduce_mean(tf.gather(table, ids), 1).numpy()
    positions = {"combiner": "mean", "accumulation": "sequential", "denominator": "positions"}
    same_bits(bench.run(spec(index, table, form="dense", **positions), {"ids": ids}), mean)


@pytest.fixture(scope="module")
def bench_tables_12(bench: LookupBench) -> tuple[int, np.ndarray]:
    table = np.random.default_rng(12).normal(size=(ROWS, 12)).astype(np.float32)
    return bench.table(table), table


def test_masked_ids_are_still_checked(bench, tables):
    index, table = tables[16, "float32"]
    masked = spec(index, table, form="dense", mask_value="0", combiner="sum", accumulation="sequential")
    ids = np.array([[0, 3], [0, 0]])
    same_bits(bench.run(masked, {"ids": ids}), np.stack([table[3], np.zeros(16, np.float32)]))
    wrong = spec(
        index,
        table,
        form="dense",
        mask_value="0",
        combiner="sum",
        accumulation="sequential",
        steps=(Step("add", ("97",)),),
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="id 97 at row 0"):
        bench.run(wrong, {"ids": np.array([[0, 0]])})


def test_concatenated_group_with_copy_and_packed_inputs(bench, tables):
    rng = np.random.default_rng(13)
    a, b = tables[16, "float32"], tables[3, "float32"]
    inputs = coo([2, 0, 1, 3], rng) | {"other": rng.integers(0, ROWS, 4).astype(np.int32)}
    inputs["numbers"] = rng.normal(size=(4, 5)).astype(np.float32)
    first = safe(a, combiner="mean")
    second = spec(*b, form="dense")
    second = LookupSpec(**{**second.__dict__, "name": "second", "ids": "other"})
    outputs = [OutputSpec(form="rows", columns=24, dtype="float32")]
    parts = [(first, Placement(0, 5)), (second, Placement(0, 21))]
    copies = [(CopySpec(name="numbers", source="numbers", width=5), Placement(0, 0))]
    pooled = tf.nn.safe_embedding_lookup_sparse(tf.constant(a[1]), stock_sparse(inputs), combiner="mean")
    want = np.concatenate([inputs["numbers"], pooled.numpy(), b[1][inputs["other"]]], 1)
    for packed in (False, True):
        same_bits(bench.run_group(parts, outputs, inputs, [tf.float32], packed=packed, copies=copies)[0], want)
    inputs["other"] = inputs["other"][:3]
    with pytest.raises(tf.errors.InvalidArgumentError, match="'feature'.*has 4 rows, but lookup 'second'.*has 3"):
        bench.run_group(parts, outputs, inputs, [tf.float32], copies=copies)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": np.array([0, ROWS, 0])}, r"lookup 'feature' \(table 'table_\d+', 97 rows\): id 97 at row 1 is not in"),
        ({"ids": np.array([0, 2**62, 0])}, "id 4611686018427387904 at row 1"),
        ({"rows": np.array([[0, 0], [1, 0], [2, 0]])}, "row 2 of value 2 is not in"),
        ({"rows": np.array([[0, 0], [-1, 0], [1, 0]])}, "row -1 of value 1 is not in"),
        ({"rows": np.array([[0, 0], [1, 0]])}, r"indices of shape \[2, 2\] for 3 ids"),
        ({"shape": np.array([2])}, "dense_shape of 1 numbers"),
        ({"shape": np.array([0, 2])}, "row 0 of value 0 is not in"),
        ({"shape": np.array([-1, 2])}, "dense_shape has dimension -1"),
        ({"ids": np.zeros((3, 1), np.int64)}, "expected a vector"),
    ],
)
@pytest.mark.parametrize("width", [16, 65])
def test_bad_sparse_inputs_name_the_lookup(bench, tables, change, message, width):
    inputs = {"ids": np.array([0, 1, 2]), "rows": np.array([[0, 0], [1, 0], [1, 1]]), "shape": np.array([2, 2])}
    table = tables[width, "float32"]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        bench.run(safe(table, combiner="mean"), inputs | change)
    assert bench.run(safe(table, combiner="mean"), inputs).shape == (2, width)  # the next request works


@pytest.mark.parametrize("splits", [[1, 3], [0, 2], [0, 2, 1, 3], [0, 5, 3], [0, -1, 3], []])
@pytest.mark.parametrize("width", [16, 65])
def test_bad_row_splits(bench, tables, splits, width):
    ragged = spec(*tables[width, "float32"], form="ragged", rows="rows", combiner="sum", empty="zeros")
    with pytest.raises(tf.errors.InvalidArgumentError, match="'feature'.*row_splits"):
        bench.run(ragged, {"ids": np.array([0, 1, 2]), "rows": np.array(splits, np.int64)})


def test_wrong_number_of_weights(bench, tables):
    inputs = coo([1, 1], np.random.default_rng(0)) | {"weights": np.ones(3, np.float32)}
    weighted = safe(tables[16, "float32"], combiner="sum", weights="weights", accumulation="sequential")
    with pytest.raises(tf.errors.InvalidArgumentError, match="'feature'.*3 weights for 2 ids"):
        bench.run(weighted, inputs)


def test_sizes_beyond_32_bits(tmp_path: pathlib.Path):
    from tfctr.core import library

    rows, width = 2**24 + 3, 160  # 2.7e9 elements in a sparse file
    bench = LookupBench(tmp_path, "test_large")
    ids = np.array([0, rows - 1, 2**24], np.int64)
    values = np.random.default_rng(0).normal(size=(3, width)).astype(np.float32)
    file = str(tmp_path / "large.tbl")
    library.native().write_surrogate_table(file, "large", "float32", [rows, width], ids, values)
    bench._files.append(file)
    bench._kinds.append("table")
    large = LookupSpec(
        name="large", table=0, table_rows=rows, table_width=width, table_dtype="float32", form="dense", ids="ids"
    )
    same_bits(bench.run(large, {"ids": ids}), values)


def test_shape_function():
    from tfctr.core import library

    ops = library.load()
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.compat.v1.placeholder(tf.int64, [None, 7])
        text = (
            "tfctr-lookup 1\noutput 0 form=rows columns=4 dtype=float32\noutput 1 form=like columns=4 dtype=float32\n"
            + "".join(
                "lookup name=f table=0 table_rows=9 table_width=4 table_dtype=float32 form=dense ids=arg:0 "
                f"combiner={c} output={k} column=0\n"
                for k, c in enumerate(["sum", "none"])
            )
        )
        rows, like = ops.TfctrFusedLookup(
            store=ops.TfctrStore(container="", shared_name="shapes"),
            arena=tf.constant([], tf.uint8),
            shapes=tf.constant([], tf.int64),
            strings=tf.constant([], tf.string),
            args=[ids],
            spec=text,
            layout=[],
            Tout=[tf.float32, tf.float32],
        )
    assert rows.shape.as_list() == [None, 4]
    assert like.shape.as_list() == [None, 7, 4]
