"""PredictRequest bytes to the packed form, against protobuf's own parser and tf.make_ndarray."""

import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import predict_pb2

from tests.core import wire_testing as wire
from tests.core.test_packer import arrays, numpy_dtype
from tests.core.test_user_rows import packer as user_packer
from tests.core.wire_testing import arrays_of, ndarray_of, packer, part, same
from tfctr.core import library
from tfctr.errors import InputError

DTYPES = ["float32", "float64", "float16", "bfloat16", "bool", "string"]
DTYPES += [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
# Field of the values, and how protobuf codes them.
LISTS = {"float32": 5, "float64": 6, "string": 8, "int64": 10, "bool": 11, "float16": 13, "bfloat16": 13}
LISTS |= {"uint32": 16, "uint64": 17} | dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), 7)


def pack(tensor: bytes, dtype: str, shape=None):
    """One input 'x' through the parser."""
    body = wire.predict_request({"x": tensor})
    return arrays_of(library.native().pack_body(packer(part("x", dtype, shape)), "tfs", body), [dtype])[0]


def element(dtype: str, value) -> tuple[int, bytes]:
    """(kind on the wire, bytes) of one value."""
    if dtype == "float32":
        return wire.FIXED32, struct.pack("<f", value)
    if dtype == "float64":
        return wire.FIXED64, struct.pack("<d", value)
    if dtype == "string":
        return wire.BYTES, wire.varint(len(value)) + value
    if dtype in ("float16", "bfloat16"):
        value = int(np.asarray(value, numpy_dtype(dtype)).view(np.uint16))
    return wire.VARINT, wire.varint(int(value))


@st.composite
def value_fields(draw, dtype, values) -> bytes:
    """The list of values as any client may write it: packed, unpacked, in pieces, with strange fields between them."""
    field = LISTS[dtype]
    out = b""
    left = list(values)
    while left:
        count = draw(st.integers(1, len(left)))
        run, left = left[:count], left[count:]
        coded = [element(dtype, v) for v in run]
        if dtype == "string" or draw(st.booleans()):
            out += b"".join(wire.tag(field, kind) + data for kind, data in coded)
        else:
            out += wire.of_bytes(field, b"".join(data for _, data in coded))
        out += draw(st.sampled_from([b"", b"", STRANGE, wire.of_bytes(field, b"") if dtype != "string" else b""]))
    return out


# Fields that no TensorProto has, of every kind, a group with a group in it among them.
STRANGE = (
    wire.of_varint(200, 7) + wire.tag(201, wire.FIXED64) + b"8 bytes." + wire.tag(202, wire.FIXED32) + b"four"
    + wire.of_bytes(203, b"bytes") + wire.tag(204, wire.GROUP) + wire.of_varint(1, 1) + wire.tag(5, wire.GROUP)
    + wire.tag(5, wire.END_GROUP) + wire.tag(204, wire.END_GROUP)
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_values_of_every_type_and_coding(data):
    dtype = data.draw(st.sampled_from(DTYPES))
    array = data.draw(arrays(dtype))
    content = dtype != "string" and data.draw(st.booleans())
    if content:
        values = wire.of_bytes(4, array.tobytes())
    else:
        values = data.draw(value_fields(dtype, array.ravel().tolist() if dtype != "bfloat16" else array.ravel()))
    tensor = wire.tensor_proto(dtype, array.shape, values)
    if data.draw(st.booleans()):  # type and shape may come after the values
        tensor = values + wire.tensor_proto(dtype, array.shape)
    assert same(pack(tensor, dtype), array if content else ndarray_of(tensor))
    assert same(pack(tensor, dtype), array)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DTYPES), st.data())
def test_short_lists_repeat_their_last_value(dtype, data):
    values = data.draw(arrays(dtype)).ravel()[:3]
    dims = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    listed = values if dtype == "bfloat16" else values.tolist()
    tensor = wire.tensor_proto(
        dtype, dims, b"".join(wire.tag(LISTS[dtype], k) + b for k, b in (element(dtype, v) for v in listed))
    )
    if len(values) > np.prod(dims):
        with pytest.raises(InputError, match="more values"):
            pack(tensor, dtype)
        return
    assert same(pack(tensor, dtype), ndarray_of(tensor))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whole_requests_as_clients_write_them(data):
    """tf.make_tensor_proto, several inputs, protobuf's own serialisation."""
    dtypes = data.draw(st.lists(st.sampled_from([d for d in DTYPES if d != "bfloat16"]), min_size=1, max_size=5))
    values = [data.draw(arrays(d)) for d in dtypes]
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    for k, (dtype, value) in enumerate(zip(dtypes, values, strict=True)):
        request.inputs[f"x{k}"].CopyFrom(tf.make_tensor_proto(value, dtype, value.shape))
    plan = packer(*(part(f"x{k}", d) for k, d in enumerate(dtypes)))
    packed = library.native().pack_body(plan, "tfs", request.SerializeToString())
    assert all(map(same, arrays_of(packed, dtypes), values))
    with_lists = plan.pack({f"x{k}": v for k, v in enumerate(values)})
    assert packed.arena.tobytes() == with_lists.arena.tobytes()
    assert list(packed.shapes) == list(with_lists.shapes)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_messages_are_read_as_protobuf_reads_them_or_refused(data):
    """Bytes cut off, changed and inserted: where protobuf and make_ndarray give a tensor, we give the same or refuse;
    where protobuf refuses, we do."""
    dtype = data.draw(st.sampled_from(DTYPES))
    array = data.draw(arrays(dtype))
    values = data.draw(value_fields(dtype, array.ravel().tolist() if dtype != "bfloat16" else array.ravel()))
    tensor = bytearray(wire.tensor_proto(dtype, array.shape, values))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(tensor)))
        change = data.draw(st.sampled_from(["cut", "set", "insert", "remove"]))
        if change == "cut":
            del tensor[at:]
        elif change == "insert":
            tensor[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        elif at < len(tensor) and change == "set":
            tensor[at] = data.draw(st.integers(0, 255))
        elif change == "remove":
            del tensor[at : at + 1]
    check_like_protobuf(bytes(tensor), dtype)


def check_like_protobuf(message: bytes, dtype: str):
    try:
        proto = tensor_pb2.TensorProto.FromString(message)
    except Exception:
        proto = None
    try:
        mine = pack(message, dtype)
    except InputError:
        mine = None
    if proto is None:
        assert mine is None
    if mine is None or proto is None or proto.dtype != tf.as_dtype(dtype).as_datatype_enum:
        return
    assert same(mine, tf.make_ndarray(proto))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_an_input_error(body):
    plan = packer(part("x", "float32"))
    try:
        predict_pb2.PredictRequest.FromString(body)
    except Exception:
        with pytest.raises(InputError, match="PredictRequest"):
            library.native().pack_body(plan, "tfs", body)
    else:
        with pytest.raises(InputError, match="'x'|there is no input"):
            library.native().pack_body(plan, "tfs", body)


def test_the_last_of_several_equal_names_counts():
    first, last = (wire.tensor_proto("int64", [1], wire.of_varint(10, v)) for v in (1, 2))
    body = wire.predict_request({"x": first}) + wire.of_bytes(2, wire.of_bytes(1, b"x") + wire.of_bytes(2, last))
    assert predict_pb2.PredictRequest.FromString(body).inputs["x"].int64_val[:] == [2]
    plan = packer(part("x", "int64"))
    assert arrays_of(library.native().pack_body(plan, "tfs", body), ["int64"])[0].tolist() == [2]


def test_a_tensor_that_comes_in_pieces_is_put_together():
    pieces = [wire.tensor_proto("int64", [3], wire.of_varint(10, 1)), wire.of_varint(10, 2), wire.of_varint(10, 3)]
    entry = wire.of_bytes(1, b"x") + b"".join(wire.of_bytes(2, one) for one in pieces)
    body = wire.of_bytes(2, entry)
    assert predict_pb2.PredictRequest.FromString(body).inputs["x"].int64_val[:] == [1, 2, 3]
    plan = packer(part("x", "int64"))
    assert arrays_of(library.native().pack_body(plan, "tfs", body), ["int64"])[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("length", range(1, 12))
def test_long_varints(length):
    values = wire.varint(5, length) + wire.varint(-7)
    tensor = wire.tensor_proto("int64", [2], wire.of_bytes(10, values))
    if length <= 10:
        assert pack(tensor, "int64").tolist() == [5, -7] == ndarray_of(tensor).tolist()
    else:
        with pytest.raises(InputError, match="'x'.*malformed"):
            pack(tensor, "int64")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_varints_of_all_lengths(values):
    tensor = wire.tensor_proto("int64", [len(values)], wire.of_bytes(10, b"".join(map(wire.varint, values))))
    assert pack(tensor, "int64").tolist() == values


def test_strings_of_tensor_content():
    """C++ clients may write them so: all lengths, then all strings."""
    texts = [b"a", b"", b"long" * 50]
    content = b"".join(wire.varint(len(t)) for t in texts) + b"".join(texts)
    tensor = wire.tensor_proto("string", [3], wire.of_bytes(4, content))
    assert pack(tensor, "string").tolist() == texts
    for broken in (content[:-1], content + b"x", b"\xff" * 5):
        with pytest.raises(InputError, match="'x'"):
            pack(wire.tensor_proto("string", [3], wire.of_bytes(4, broken)), "string")


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (b"", "without a dtype"),
        (wire.tensor_proto("complex64", [1]), "DataType 8"),
        (wire.tensor_proto("resource", [1]), "DataType 20"),
        (wire.tensor_proto("int64", [-1]), "dimension 0 is negative"),
        (wire.tensor_proto("int64", [2, -5], wire.of_varint(10, 1)), "dimension 1 is negative"),
        (wire.of_varint(1, 9) + wire.of_bytes(2, wire.of_varint(3, 1)), "unknown rank"),
        (wire.tensor_proto("int64", [2**40, 2**40]), "more values than any message"),
        (wire.tensor_proto("int64", [2**40, 2**40, 0]), "more values than any message"),
        (wire.tensor_proto("int64", [2**31], wire.of_varint(10, 1)), "filled up to 16 MiB"),
        (wire.tensor_proto("string", [2**24]), "filled up to 16 MiB"),
        (wire.tensor_proto("int64", [2**50], wire.of_bytes(4, b"12345678")), "8 bytes instead of"),
        (wire.tensor_proto("int64", [2], wire.of_bytes(4, b"1234567")), "7 bytes instead of 16"),
        (wire.tensor_proto("int64", [1] * 255), "254 dimensions"),
        (wire.tensor_proto("uint8", [1], wire.of_varint(7, 256)), "does not fit its type"),
        (wire.tensor_proto("int8", [1], wire.of_varint(7, -129)), "does not fit its type"),
        (wire.tensor_proto("float16", [1], wire.of_varint(13, 65536)), "does not fit its type"),
        (wire.tensor_proto("float32", [2], wire.of_bytes(5, b"12345")), "malformed"),
        (wire.tensor_proto("int64", [1]) + wire.tag(9, wire.GROUP), "malformed"),
        (wire.tensor_proto("int64", [1]) + wire.tag(9, wire.END_GROUP), "malformed"),
        (wire.tensor_proto("int64", [1]) + wire.tag(1, 7) + b"\0", "malformed"),
        (wire.tensor_proto("int64", [1]) + b"\0\0", "malformed"),
        (wire.tensor_proto("int64", [1]) + wire.tag(9, wire.GROUP) * 500, "malformed"),
    ],
)
def test_refused_tensors(tensor, why):
    dtype = tf.as_dtype(wire_type(tensor)).name
    with pytest.raises(InputError, match=rf"input 'x': got .*{why}.*, expected"):
        pack(tensor, dtype)


def wire_type(tensor: bytes) -> int:
    return tensor[1] if len(tensor) > 1 and tensor[1] not in (0, 8, 20) else 9


def test_many_short_lists_share_one_budget():
    """Each of them alone would be filled up."""
    tensor = wire.tensor_proto("int64", [2**20 - 1], wire.of_varint(10, 1))
    plan = packer(*(part(f"x{k}", "int64") for k in range(3)))
    body = wire.predict_request({f"x{k}": tensor for k in range(3)})
    with pytest.raises(InputError, match="'x2'.*filled up"):
        library.native().pack_body(plan, "tfs", body)


@pytest.mark.parametrize("name", ["é" * 3, "x" * 5000, "\x01"])
def test_names_that_are_strange(name):
    with pytest.raises(InputError, match="there is no input"):
        library.native().pack_body(packer(part("x", "int64")), "tfs", wire.predict_request({name: b""}))


def test_names_that_are_no_text():
    body = wire.of_bytes(2, wire.of_bytes(1, b"\xff\xfe") + wire.of_bytes(2, b""))
    with pytest.raises(InputError, match=r"input name '\\xff\\xfe' is no UTF-8"):
        library.native().pack_body(packer(part("x", "int64")), "tfs", body)


def test_missing_unknown_and_misspelt_inputs():
    plan = packer(part("user_id", "int64", [-1]), part("price", "float32", [-1]))
    ids = wire.tensor_proto("int64", [1], wire.of_varint(10, 1))
    price = wire.tensor_proto("float32", [1], wire.of_bytes(5, b"\0\0\0\0"))
    pack_body = library.native().pack_body
    with pytest.raises(InputError, match=r"model 'm': missing input 'price' \(float32 \[\?\]\)"):
        pack_body(plan, "tfs", wire.predict_request({"user_id": ids}))
    with pytest.raises(InputError, match="no input 'user_ids'; did you mean 'user_id'"):
        pack_body(plan, "tfs", wire.predict_request({"user_ids": ids, "price": price}))
    with pytest.raises(InputError, match="no input 'zzz'; the signature takes 'user_id', 'price'"):
        pack_body(plan, "tfs", wire.predict_request({"zzz": ids}))
    with pytest.raises(InputError, match=r"no output 'nope'; the signature gives"):
        pack_body(plan, "tfs", wire.predict_request({"user_id": ids, "price": price}) + wire.of_bytes(3, b"nope"))


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.data())
def test_casts_are_those_of_python_requests(sent, wanted, data):
    array = data.draw(arrays(sent))
    plan = packer(part("x", wanted))
    body = wire.predict_request({"x": wire.tensor_proto(sent, array.shape, wire.of_bytes(4, array.tobytes()))})
    if sent == "string":
        texts = b"".join(wire.of_bytes(8, t) for t in array.ravel())
        body = wire.predict_request({"x": wire.tensor_proto(sent, array.shape, texts)})
    results = []
    for call in (lambda: plan.pack({"x": array}), lambda: library.native().pack_body(plan, "tfs", body)):
        try:
            results.append(arrays_of(call(), [wanted])[0])
        except InputError:
            results.append(None)
    if sent == "string" and array.size == 0:
        return  # an array of no objects may be of any type in Python
    assert (results[0] is None) == (results[1] is None)
    assert results[0] is None or same(*results)


@pytest.mark.parametrize("shape", [[-1], [-1, 2], [3], []])
def test_shapes_are_checked(shape):
    ok = {1: [4], 2: [4, 2], 0: []}[len(shape)] if shape != [3] else [3]
    values = wire.of_bytes(4, np.zeros(ok, np.int64).tobytes())
    assert pack(wire.tensor_proto("int64", ok, values), "int64", shape).shape == tuple(ok)
    wrong = wire.tensor_proto("int64", [1, 1, 5], wire.of_bytes(4, bytes(40)))
    with pytest.raises(InputError, match=r"input 'x': got int64 \[1, 1, 5\], expected int64 \["):
        pack(wrong, "int64", shape)


SPARSE = (
    [part("s/indices", "int64", [-1, 2]), part("s/values", "int64", [-1]), part("s/dense_shape", "int64", [2])],
    [{"name": "s", "kind": "sparse", "values": 1, "indices": 0, "dense_shape": 2}],
)
RAGGED = (
    [part("r/values", "float32", [-1]), part("r/row_splits", "int32", [-1])],
    [{"name": "r", "kind": "ragged", "values": 0, "row_splits": [1]}],
)


def content(dtype, array) -> bytes:
    array = np.asarray(array, dtype)
    return wire.tensor_proto(dtype, array.shape, wire.of_bytes(4, array.tobytes()))


@pytest.mark.parametrize(("parts", "features"), [SPARSE, RAGGED])
def test_features_as_parts_and_as_rows_of_one_length(parts, features):
    plan = packer(*parts, features=features)
    name = features[0]["name"]
    rows = np.arange(6).reshape(2, 3)
    whole = {name: content("int32", rows)}
    if name == "s":
        given = {
            "s/indices": content("int64", [[r, c] for r in range(2) for c in range(3)]),
            "s/values": content("int32", rows.ravel()),  # cast as dense inputs are
            "s/dense_shape": content("int64", [2, 3]),
        }
    else:
        given = {"r/values": content("float32", rows.ravel()), "r/row_splits": content("int64", [0, 3, 6])}
    expected = plan.pack({name: rows})
    for request in (whole, given):
        packed = library.native().pack_body(plan, "tfs", wire.predict_request(request))
        assert packed.arena.tobytes() == expected.arena.tobytes()
        assert list(packed.shapes) == list(expected.shapes)
    with pytest.raises(InputError, match=f"given twice.*feature '{name}'"):
        library.native().pack_body(plan, "tfs", wire.predict_request(given | whole))
    del given[next(iter(given))]
    with pytest.raises(InputError, match=f"missing input.*a part of feature '{name}'"):
        library.native().pack_body(plan, "tfs", wire.predict_request(given))
    with pytest.raises(InputError, match=f"feature '{name}': got"):
        library.native().pack_body(plan, "tfs", wire.predict_request({name: content("int32", [1, 2])}))


def test_claimed_rows_of_nothing_are_not_believed():
    plan = packer(*RAGGED[0], features=RAGGED[1])
    with pytest.raises(InputError, match="feature 'r': got"):
        library.native().pack_body(plan, "tfs", wire.predict_request({"r": wire.tensor_proto("float32", [2**40, 0])}))


def test_parts_that_disagree():
    plan = packer(*RAGGED[0], features=RAGGED[1])
    request = {"r/values": content("float32", [1, 2, 3]), "r/row_splits": content("int32", [0, 2])}
    with pytest.raises(InputError, match="feature 'r': got 3 values.*row_splits that end at 2"):
        library.native().pack_body(plan, "tfs", wire.predict_request(request))


@pytest.mark.parametrize("splits", [[0, 5, 3], [1, 3], [0, -1, 3], [0, 2**31 - 1, 3], [-(2**31), 3]])
def test_row_splits_that_do_not_rise(splits):
    """TensorFlow itself answers some of these with rows that are not the client's."""
    plan = packer(*RAGGED[0], features=RAGGED[1])
    request = {"r/values": content("float32", [1, 2, 3]), "r/row_splits": content("int32", splits)}
    with pytest.raises(InputError, match="feature 'r': got row_splits .*do not rise from 0 to the 3 values"):
        library.native().pack_body(plan, "tfs", wire.predict_request(request))


def test_peek():
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "ranker", "serving_default"
    request.output_filter.extend(["a", "b"])
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0]))
    peek = library.native().peek_tfs
    assert peek(request.SerializeToString()) == ("ranker", None, None, "serving_default", ["a", "b"])
    request.model_spec.version.value = 0
    assert peek(request.SerializeToString())[1:3] == (0, None)
    request.model_spec.version.value = 7
    assert peek(request.SerializeToString())[1:3] == (7, None)
    request.model_spec.version_label = "canary"
    assert peek(request.SerializeToString())[1:3] == (None, "canary")
    assert peek(b"") == ("", None, None, "", [])
    # The parts of a message that comes twice are put together; of version and label the last one counts.
    twice = wire.of_bytes(1, wire.of_bytes(1, b"a") + wire.of_bytes(4, b"l")) + wire.of_bytes(
        1, wire.of_bytes(2, wire.of_varint(1, 3))
    )
    spec = predict_pb2.PredictRequest.FromString(twice).model_spec
    assert (spec.name, spec.version.value, spec.WhichOneof("version_choice")) == ("a", 3, "version")
    assert peek(twice)[:3] == ("a", 3, None)
    with pytest.raises(InputError, match="PredictRequest"):
        peek(b"\xff")


def test_errors_fit_a_header():
    tensor = wire.tensor_proto("int64", [1] * 254, wire.of_varint(10, 1))
    with pytest.raises(InputError, match=r"int64 \[1, 1.* 254 dimensions\], expected") as error:
        pack(tensor, "int64", [-1])
    assert len(str(error.value)) < 500


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(0, 5), st.data())
def test_rows_of_users_are_those_of_python_requests(users, rows, data):
    """User rows once per user, repeated for every candidate, with row_to_user or without."""
    parts = [part("age", "int32", [-1]), part("name", "string", [-1]), part("item", "int64", [-1])]
    plan = user_packer(parts, ["age", "name"])
    row_to_user = np.sort(data.draw(hnp.arrays(np.int64, rows, elements=st.integers(0, users - 1))))
    request = {
        "age": np.arange(users, dtype=np.int32),
        "name": np.array([b"user %d" % k for k in range(users)], object),
        "item": np.arange(rows),
    }
    if users > 1 or data.draw(st.booleans()):
        request["row_to_user"] = row_to_user
    tensors = {n: content(a.dtype.name, a) for n, a in request.items() if n != "name"}
    tensors["name"] = wire.tensor_proto("string", [users], b"".join(wire.of_bytes(8, t) for t in request["name"]))
    results = []
    body = wire.predict_request(tensors)
    for call in (lambda: plan.pack(request), lambda: library.native().pack_body(plan, "tfs", body)):
        try:
            packed = call()
            results.append((packed.repeated, *(a.tolist() for a in arrays_of(packed, ["int32", "string", "int64"]))))
        except InputError as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_many_threads_read_at_once():
    """No lock, no state between requests: the GIL is released while each is read."""
    plan = packer(*(part(f"x{k}", "int64", [-1]) for k in range(20)))
    bodies = [wire.predict_request({f"x{k}": content("int64", np.full(50, n)) for k in range(20)}) for n in range(8)]

    def read(n):
        for _ in range(50):
            packed = library.native().pack_body(plan, "tfs", bodies[n])
            assert (packed.arena.view(np.int64).reshape(20, -1)[:, :50] == n).all()
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
