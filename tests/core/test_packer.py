"""Requests to the packed form and back through TfctrUnpack: every dtype and rank, lists, casts, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tfctr.core import library
from tfctr.errors import InputError

DTYPES = (
    ["float32", "float64", "float16", "bfloat16", "bool", "complex64", "string"]
    + [f"int{n}" for n in (8, 16, 32, 64)]
    + [f"uint{n}" for n in (8, 16, 32, 64)]
)
INT64 = np.iinfo(np.int64)


def numpy_dtype(name):
    return np.dtype(object) if name == "string" else np.dtype(tf.as_dtype(name).as_numpy_dtype)


def part(name, dtype, shape=None):
    enum = tf.as_dtype(dtype).as_datatype_enum
    return {"name": name, "tensor": f"{name}:0", "dtype": enum, "numpy": numpy_dtype(dtype), "shape": shape}


def packer(*parts, features=()):
    description = {
        "context": "model 'm'",
        "parts": list(parts),
        "features": list(features),
        "packed": None,
        "outputs": [],
    }
    return library.native().Packer(description)


def unpack(packed, dtypes, emit=None):
    """What TfctrUnpack makes of a packed request: arrays of the inputs numbered `emit` (all)."""
    emit = list(range(len(dtypes))) if emit is None else emit
    types = [tf.as_dtype(d) for d in dtypes]
    outputs = library.load().tfctr_unpack(
        packed.arena,
        packed.shapes,
        tf.constant(packed.strings, tf.string, shape=[len(packed.strings)]),
        layout=types,
        emit=emit,
        Tout=[types[k] for k in emit],
    )
    return [o.numpy() for o in outputs]


def pack_one(value, dtype, shape=None):
    """One input through packing and unpacking."""
    return unpack(packer(part("x", dtype, shape)).pack({"x": value}), [dtype])[0]


@st.composite
def arrays(draw, dtype):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    if dtype == "string":
        values = draw(st.lists(st.binary(max_size=40), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        array = np.empty(len(values), object)
        array[:] = values
        return array.reshape(shape)
    if dtype == "bfloat16":
        return draw(hnp.arrays(np.float32, shape)).astype(ml_dtypes.bfloat16)
    return draw(hnp.arrays(numpy_dtype(dtype), shape))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_arrays_come_back_unchanged(data):
    dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=6))
    values = [data.draw(arrays(d)) for d in dtypes]
    packed = packer(*(part(f"x{k}", d) for k, d in enumerate(dtypes))).pack({f"x{k}": v for k, v in enumerate(values)})
    for value, got in zip(values, unpack(packed, dtypes), strict=True):
        got = np.asarray(got, dtype=value.dtype)
        assert got.shape == value.shape
        assert got.tolist() == value.tolist() if value.dtype == object else got.tobytes() == value.tobytes()


def test_unpack_gives_the_inputs_asked_for_in_any_order():
    packed = packer(part("a", "int64"), part("b", "string"), part("c", "float32")).pack(
        {"a": [1, 2], "b": "x", "c": 2.5}
    )
    c, a = unpack(packed, ["int64", "string", "float32"], emit=[2, 0])
    assert c == np.float32(2.5)
    assert a.tolist() == [1, 2]


def test_segments_start_at_multiples_of_64_bytes():
    packed = packer(part("a", "int8"), part("b", "float64")).pack({"a": np.ones(65, np.int8), "b": [1.5]})
    assert packed.arena.size == 192
    assert packed.arena[128:136].view(np.float64) == [1.5]
    assert packed.shapes.tolist() == [1, 65, 1, 1]


@pytest.mark.parametrize(
    "break_it", ["shapes_short", "shapes_long", "negative", "arena_short", "arena_long", "strings", "overflow"]
)
def test_unpack_refuses_a_damaged_request(break_it):
    packed = packer(part("a", "int64"), part("b", "string")).pack({"a": [1, 2], "b": ["x"]})
    arena, shapes, strings = packed.arena, packed.shapes, packed.strings
    arena = {"arena_short": arena[:8], "arena_long": np.r_[arena, np.zeros(64, np.uint8)]}.get(break_it, arena)
    shapes = {
        "shapes_short": shapes[:-1],
        "shapes_long": np.r_[shapes, 0],
        "negative": np.array([1, -2, 1, 1]),
        "overflow": np.array([3, 2**31, 2**31, 4, 1, 1]),
    }.get(break_it, shapes)
    strings = np.array(["x", "y"], object) if break_it == "strings" else strings
    with pytest.raises(tf.errors.InvalidArgumentError):
        library.load().tfctr_unpack(arena, shapes, strings, layout=[tf.int64, tf.string], emit=[0], Tout=[tf.int64])


def test_unpack_checks_the_shapes_it_promises():
    packed = packer(part("a", "int64")).pack({"a": [1, 2]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected"):
        library.load().tfctr_unpack(
            packed.arena,
            packed.shapes,
            tf.constant([], tf.string),
            layout=[tf.int64],
            emit=[0],
            Tout=[tf.int64],
            output_shapes=[tf.TensorShape([None, 3])],
        )


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (np.array([1, -2], np.int64), "int32", [1, -2]),
        (np.array([1, 2], np.uint8), "int64", [1, 2]),
        (np.array([0.5, np.inf], np.float64), "float32", [0.5, np.inf]),
        (np.array([1, 2], np.float16), "float32", [1, 2]),
        (np.array([3], np.int64), "float32", [3]),
        (np.array([True, False]), "int64", [1, 0]),
        (np.array([1, 2], ">i4"), "int32", [1, 2]),
        (np.array([1, 2], ">i8"), "int32", [1, 2]),
        (np.array([1.5], ml_dtypes.bfloat16), "float32", [1.5]),
        (np.array([1.5], np.float32), "bfloat16", [1.5]),
        (np.arange(12).reshape(3, 4).T, "int64", np.arange(12).reshape(3, 4).T.tolist()),
        (np.arange(10)[::-3], "int64", [9, 6, 3, 0]),
        (np.frombuffer(b"\0" + np.array([7, 8]).tobytes(), np.int64, offset=1), "int32", [7, 8]),
        (np.array([]), "int64", []),
        (np.array([1, 2], object), "int64", [1, 2]),
        (np.int32(5), "int64", 5),
        (np.float64(0.5), "float32", 0.5),
        (7, "int32", 7),
        (True, "bool", True),
        (2**64 - 1, "uint64", 2**64 - 1),
        ([[1, 2], [3, 4]], "int64", [[1, 2], [3, 4]]),
        (((1, 2), [np.int64(3), True]), "int64", [[1, 2], [3, 1]]),
        ([np.array([1, 2]), np.array([3, 4])], "int32", [[1, 2], [3, 4]]),
        ([1, 2.5, np.float32(0.25)], "float32", [1, 2.5, 0.25]),
        ([True, np.bool_(False)], "bool", [True, False]),
        ([1.5], "bfloat16", [1.5]),
        ([[], []], "int64", [[], []]),
        (tf.constant([[1, 2]]), "int64", [[1, 2]]),
        (memoryview(np.array([1.0, 2.0])), "float64", [1.0, 2.0]),
    ],
)
def test_values_are_cast_where_they_fit(value, dtype, want):
    got = pack_one(value, dtype)
    assert got.dtype == numpy_dtype(dtype)
    assert got.astype(np.float64).tolist() == np.asarray(want, np.float64).tolist()


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (np.array(["a", "öß", "日本", "🙂", ""]), ["a", "öß", "日本", "🙂", ""]),
        (np.array(["a", "öß🙂"]).astype(">U3"), ["a", "öß🙂"]),
        (np.array([b"a", b"b\0c"]), [b"a", b"b\0c"]),
        (np.array(["a", b"\xff\x00\xfe"], object), ["a", b"\xff\x00\xfe"]),
        (np.array(["a", "bc"], np.dtypes.StringDType()), ["a", "bc"]),
        (["a", b"\xff", np.str_("s"), np.bytes_(b"t")], ["a", b"\xff", "s", "t"]),
        ([["a", "b"], ["c", "d"]], [["a", "b"], ["c", "d"]]),
        ([np.array(["a", "b"]), np.array(["c", "d"], object)], [["a", "b"], ["c", "d"]]),
        ("x" * 1000, "x" * 1000),
        (b"abc", "abc"),
        (tf.constant(["a", b"\xff"]), ["a", b"\xff"]),
        (tf.constant("scalar"), "scalar"),
        ([], []),
        (np.array([]), []),
        (np.array(["x", "y", "z"], object)[::2], ["x", "z"]),
    ],
)
def test_strings_of_every_kind(value, want):
    got = np.asarray(pack_one(value, "string"), object)
    encoded = np.vectorize(lambda s: s.encode() if isinstance(s, str) else s, otypes=[object])
    want = np.array(want, object)
    assert got.shape == want.shape
    assert got.tolist() == (encoded(want).tolist() if want.size else [])


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (np.array([1.0, 2.0]), "int64", r"got float64 \[2\], expected int64"),
        (np.array([1, 2**40]), "int32", "the value 1099511627776, which does not fit, expected int32"),
        (np.array([-1]), "uint64", "-1, which does not fit"),
        (np.array([2**63], np.uint64), "int64", "9223372036854775808, which does not fit"),
        (np.array([1e300]), "float32", "1e.300, which does not fit"),
        (np.array([1, 2]), "bool", r"got int64 \[2\], expected bool"),
        (np.array(["a"]), "int64", r"got <U1 \[1\]"),
        (np.array([1, 2]), "string", r"got int64 \[2\], expected string"),
        (np.ma.masked_array([1, 2], [0, 1]), "int64", "a masked array"),
        (np.array(["2020-01-01"], "M8[D]"), "int64", "datetime64"),
        (np.array([1 + 2j]), "float64", "complex128"),
        ([1, 2.5], "int64", r"the float 2.5 at \[1\]"),
        ([[1], [2, 3]], "int64", r"a list of 2 at \[1\] where the one before has 1"),
        ([[1], 2], "int64", r"at \[1\] where other places have a list"),
        ([1, [2]], "int64", r"a list at \[1\] where other places have a value"),
        ([[1, "x"]], "float32", r"the str 'x' at \[0\]\[1\]"),
        ([2**70], "int64", "which does not fit"),
        ([-1], "uint8", "the value -1, which does not fit"),
        ([1], "bool", "the int 1"),
        ([None], "int64", r"None at \[0\]"),
        (["a", 1], "string", r"value of type int at \[1\]"),
        (np.array(["a", 1], object), "string", "value of type int at value 1"),
        (np.array(["a", None], object), "string", "None at value 1"),
        (["\ud800"], "string", "not valid Unicode at value 0"),
        (np.array(["\ud800"]), "string", "not valid Unicode at value 0"),
        (None, "int64", "got None"),
        ({"a": 1}, "int64", "value of type dict"),
        ({1, 2}, "int64", "value of type set"),
        (object(), "int64", "value of type object"),
        (tf.sparse.from_dense([[1]]), "int64", "a SparseTensor"),
        (tf.ragged.constant([[1], []]), "int64", "a RaggedTensor"),
    ],
)
def test_what_does_not_fit_is_named(value, dtype, message):
    with pytest.raises(InputError, match=message) as caught:
        pack_one(value, dtype)
    assert str(caught.value).startswith("model 'm': input 'x': got ")


@pytest.mark.parametrize(
    ("value", "shape", "message"),
    [
        (np.zeros((2, 4), np.float32), [-1, 3], r"got float32 \[2, 4\], expected float32 \[\?, 3\]"),
        (np.zeros(3, np.float32), [-1, 3], r"got float32 \[3\], expected"),
        (np.zeros((1, 2, 3), np.float32), [], r"got float32 \[1, 2, 3\], expected float32 \[\]"),
        ([[1.0, 2.0]], [-1, 3], r"got float32 \[1, 2\]"),
        (1.0, [-1], r"got float32 \[\]"),
    ],
)
def test_a_wrong_shape_is_named(value, shape, message):
    with pytest.raises(InputError, match=message):
        pack_one(value, "float32", shape)


def test_an_empty_list_takes_the_dimensions_that_are_known():
    assert pack_one([], "float32", [-1, 3]).shape == (0, 3)
    assert pack_one([[], []], "float32", [-1, -1, 5]).shape == (2, 0, 5)


def test_a_transposed_array_of_another_type():
    got = pack_one(np.arange(6, dtype=np.int32).reshape(2, 3).T, "int64")
    assert got.tolist() == [[0, 3], [1, 4], [2, 5]]


SPARSE = [part("s/values", "int64", [-1]), part("s/indices", "int64", [-1, 2]), part("s/dense_shape", "int64", [2])]
SPARSE_FEATURE = {"name": "s", "kind": "sparse", "values": 0, "indices": 1, "dense_shape": 2}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(INT64.min, INT64.max), max_size=4), max_size=6),
    st.sampled_from(["list", "ragged", "arrays"]),
)
def test_rows_become_a_sparse_feature(rows, form):
    value = rows
    if form == "ragged":
        value = tf.RaggedTensor.from_row_lengths(
            tf.constant([v for row in rows for v in row], tf.int64), tf.constant([len(row) for row in rows], tf.int64)
        )
    elif form == "arrays":
        value = [np.array(row, np.int64) for row in rows]
    values, indices, shape = unpack(packer(*SPARSE, features=[SPARSE_FEATURE]).pack({"s": value}), ["int64"] * 3)
    assert values.tolist() == [v for row in rows for v in row]
    assert indices.tolist() == [[i, j] for i, row in enumerate(rows) for j in range(len(row))]
    assert shape.tolist() == [len(rows), max(map(len, rows), default=0)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.lists(st.text(max_size=3), max_size=3), max_size=3), max_size=4), st.booleans())
def test_nested_rows_become_a_ragged_feature_of_two_levels(rows, as_tensor):
    parts = [part("r", "string", [-1]), part("r_1", "int32", [-1]), part("r_2", "int64", [-1])]
    feature = {"name": "r", "kind": "ragged", "values": 0, "row_splits": [1, 2]}
    value = tf.ragged.constant(rows, tf.string, ragged_rank=2) if as_tensor else rows
    values, outer, inner = unpack(packer(*parts, features=[feature]).pack({"r": value}), ["string", "int32", "int64"])
    got = tf.RaggedTensor.from_nested_row_splits(
        tf.constant(values, tf.string, shape=[len(values)]), [np.int64(outer), inner]
    )
    want = [[[s.encode() for s in inner_row] for inner_row in row] for row in rows]
    assert got.to_list() == want


def test_ragged_values_may_have_inner_dimensions():
    parts = [part("r/values", "float32", [-1, 2]), part("r/row_splits", "int64", [-1])]
    feature = {"name": "r", "kind": "ragged", "values": 0, "row_splits": [1]}
    values, splits = unpack(
        packer(*parts, features=[feature]).pack({"r": [[[1, 2], [3, 4]], [], [[5, 6]]]}), ["float32", "int64"]
    )
    assert values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert splits.tolist() == [0, 2, 2, 3]


@pytest.mark.parametrize("rows", [np.arange(6).reshape(2, 3), tf.constant([[0, 1, 2], [3, 4, 5]])])
def test_a_matrix_means_rows_of_equal_length(rows):
    values, indices, shape = unpack(packer(*SPARSE, features=[SPARSE_FEATURE]).pack({"s": rows}), ["int64"] * 3)
    assert values.tolist() == [0, 1, 2, 3, 4, 5]
    assert indices.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert shape.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {"s": [1, 2]},
            r"feature 's': got a value of type int at \[0\] where a list of values belongs, expected a sparse",
        ),
        ({"s": [[1], [2.5]]}, r"feature 's': got the float 2.5 at \[1\]\[0\]"),
        ({"s": np.arange(3)}, r"feature 's': got int64 \[3\], expected a sparse int64 feature"),
        ({"s": 5}, "got a value of type int"),
        ({"s": tf.ragged.constant([[[1]]])}, r"a RaggedTensor of 2 ragged dimension"),
        ({"s": [[1]], "s/values": [1]}, "is given twice"),
        (
            {"s/values": [1, 2], "s/indices": [[0, 0]], "s/dense_shape": [1, 1]},
            r"got 2 values .* and indices of shape \[1, 2\]",
        ),
        ({"s/values": [1], "s/indices": [[0, 0]]}, r"missing input 's/dense_shape' .*a part of feature 's'"),
        ({}, "missing feature 's'"),
        ({"t": [[1]]}, "there is no input 't'"),
        ({"s/valeus": [1]}, "did you mean 's/values'"),
        ({3: [1]}, "input names are strings, got 3"),
    ],
)
def test_what_a_feature_refuses(request_, message):
    with pytest.raises(InputError, match=message):
        packer(*SPARSE, features=[SPARSE_FEATURE]).pack(request_)


def test_a_name_that_is_feature_and_part():
    """TF2 saves one SparseTensor `a` as `a` (indices), `a_1` (values) and `a_2` (dense_shape)."""
    parts = [part("a", "int64", [-1, 2]), part("a_1", "int64", [-1]), part("a_2", "int64", [2])]
    feature = {"name": "a", "kind": "sparse", "values": 1, "indices": 0, "dense_shape": 2}
    made = packer(*parts, features=[feature])
    sparse = tf.sparse.from_dense(np.array([[7, 0], [8, 9]]))
    want = made.pack({"a": sparse.indices, "a_1": sparse.values, "a_2": sparse.dense_shape})
    flat = {"a": sparse.indices.numpy().tolist(), "a_1": [7, 8, 9], "a_2": [2, 2]}
    for request in ({"a": sparse}, {"a_1": sparse}, {"a": [[7], [8, 9]]}, {"a_1": [[7], [8, 9]]}, flat):
        got = made.pack(request)
        assert got.arena.tolist() == want.arena.tolist()
        assert got.shapes.tolist() == want.shapes.tolist()


def test_a_value_class_is_as_good_as_a_tensor():
    made = packer(*SPARSE, features=[SPARSE_FEATURE])
    value = tf.compat.v1.SparseTensorValue(np.array([[0, 0], [1, 1]]), np.array([5, 6], np.int32), (2, 2))
    values, indices, shape = unpack(made.pack({"s": value}), ["int64"] * 3)
    assert (values.tolist(), indices.tolist(), shape.tolist()) == ([5, 6], [[0, 0], [1, 1]], [2, 2])
    ragged = tf.compat.v1.ragged.RaggedTensorValue(np.array([5, 6]), np.array([0, 1, 2]))
    assert unpack(made.pack({"s": ragged}), ["int64"] * 3)[1].tolist() == [[0, 0], [1, 0]]


def test_an_array_that_fails_to_convert_is_an_input_error():
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise ValueError("broken on purpose")

    with pytest.raises(InputError, match=r"has no array form .*broken on purpose"):
        pack_one(Broken(), "int64")
