"""ModelInferRequest bytes to the packed form; what the official client and protobuf write, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tests.core import wire_testing as wire
from tests.core.test_packer import arrays
from tests.core.wire_testing import arrays_of, packer, part, same
from tfctr.core import library
from tfctr.errors import InputError

DATATYPES = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "bfloat16": "BF16", "bool": "BOOL", "string": "BYTES",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
}  # fmt: skip
CONTENTS = {
    "bool": "bool_contents", "float32": "fp32_contents", "float64": "fp64_contents", "string": "bytes_contents",
    "int64": "int64_contents", "uint64": "uint64_contents",
}  # fmt: skip
CONTENTS |= dict.fromkeys(("int8", "int16", "int32"), "int_contents")
CONTENTS |= dict.fromkeys(("uint8", "uint16", "uint32"), "uint_contents")


def raw_bytes(array, dtype) -> bytes:
    return wire.byte_strings(array.ravel()) if dtype == "string" else array.tobytes()


def pack_body(plan, body):
    return library.native().pack_body(plan, "kserve", body)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_values_of_every_datatype_in_contents_and_raw(data):
    dtypes = data.draw(st.lists(st.sampled_from(list(DATATYPES)), min_size=1, max_size=4))
    raw = any(d in ("float16", "bfloat16") for d in dtypes) or data.draw(st.booleans())
    values = [data.draw(arrays(d)) for d in dtypes]
    request = service_pb2.ModelInferRequest(model_name="m", id="7")
    for k, (dtype, value) in enumerate(zip(dtypes, values, strict=True)):
        entry = request.inputs.add(name=f"x{k}", datatype=DATATYPES[dtype], shape=value.shape)
        if raw:
            request.raw_input_contents.append(raw_bytes(value, dtype))
        else:
            getattr(entry.contents, CONTENTS[dtype]).extend(value.ravel().tolist())
    plan = packer(*(part(f"x{k}", d) for k, d in enumerate(dtypes)))
    packed = pack_body(plan, request.SerializeToString())
    assert all(map(same, arrays_of(packed, dtypes), values))


def test_the_official_client():
    """Its own serialisation of inputs; strings as objects, and a float as bfloat16."""
    arrays_given = {
        "ids": np.arange(6, dtype=np.int64).reshape(2, 3),
        "price": np.array([0.5, 2.0], np.float32),
        "text": np.array([b"a", "é".encode()], object),
        "flag": np.array([True, False]),
    }
    inputs = []
    for name, array in arrays_given.items():
        entry = triton.InferInput(
            name, array.shape, triton.np_to_triton_dtype(array.dtype) if array.dtype != object else "BYTES"
        )
        entry.set_data_from_numpy(array)
        inputs.append(entry)
    half = triton.InferInput("half", [2], "BF16")
    half.set_data_from_numpy(np.array([1.0, -2.0], ml_dtypes.bfloat16))
    inputs.append(half)
    request = triton._utils._get_inference_request(
        inputs=inputs, model_name="m", model_version="3", request_id="r",
        outputs=[triton.InferRequestedOutput("y")],
        sequence_id=0, sequence_start=False, sequence_end=False, priority=2, timeout=5000, parameters=None,
    )  # fmt: skip
    body = request.SerializeToString()
    dtypes = ["int64", "float32", "string", "bool", "float32"]
    plan = packer_with_outputs([part(n, d) for n, d in zip([*arrays_given, "half"], dtypes, strict=True)], ["y"])
    packed = pack_body(plan, body)
    found = arrays_of(packed, dtypes)
    assert all(map(same, found[:4], arrays_given.values()))
    assert found[4].tolist() == [1.0, -2.0]
    assert library.native().peek_kserve(body) == ("m", "3", "r", {"priority": 2, "timeout": 5000})


def packer_with_outputs(parts, names):
    outputs = [{"name": n, "tensor": f"{n}:0", "numpy": np.dtype(np.float32)} for n in names]
    description = {"context": "model 'm'", "parts": parts, "features": [], "packed": None, "outputs": outputs}
    return library.native().Packer(description)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_damaged_messages_are_read_as_protobuf_reads_them_or_refused(data):
    dtype = data.draw(st.sampled_from([d for d in DATATYPES if d != "bfloat16"]))
    array = data.draw(arrays(dtype))
    request = service_pb2.ModelInferRequest(model_name="m")
    entry = request.inputs.add(name="x", datatype=DATATYPES[dtype], shape=array.shape)
    if dtype == "float16" or data.draw(st.booleans()):
        request.raw_input_contents.append(raw_bytes(array, dtype))
    else:
        getattr(entry.contents, CONTENTS[dtype]).extend(array.ravel().tolist())
    body = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(body)))
        change = data.draw(st.sampled_from(["cut", "set", "insert"]))
        if change == "cut":
            del body[at:]
        elif change == "insert":
            body[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        elif at < len(body):
            body[at] = data.draw(st.integers(0, 255))
    check_like_protobuf(bytes(body), dtype)


def check_like_protobuf(body, dtype):
    try:
        request = service_pb2.ModelInferRequest.FromString(body)
    except Exception:
        request = None
    try:
        mine = arrays_of(pack_body(packer(part("x", dtype)), body), [dtype])[0]
    except InputError:
        return
    assert request is not None
    (entry,) = request.inputs
    assert tuple(entry.shape) == mine.shape
    if entry.datatype != DATATYPES[dtype]:
        return  # cast
    if request.raw_input_contents:
        raw = request.raw_input_contents[0]
        expected = raw if dtype != "bool" else bytes(b != 0 for b in raw)
        assert raw_bytes(mine, dtype) == expected
    else:
        assert (
            mine.ravel().tolist() == pytest.approx(list(getattr(entry.contents, CONTENTS[dtype])), nan_ok=True)
            if dtype != "string"
            else list(entry.contents.bytes_contents) == mine.ravel().tolist()
        )


INT64 = wire.varint(1) + wire.varint(2)


@pytest.mark.parametrize(
    ("inputs", "raw", "why"),
    [
        ([wire.infer_input("x", "INT64", [3], wire.of_bytes(3, INT64))], [], r"int64 \[3\] with 2 values"),
        ([wire.infer_input("x", "INT64", [1], wire.of_bytes(3, INT64))], [], "more values"),
        ([wire.infer_input("x", "INT64", [2**40], wire.of_bytes(3, INT64))], [], "with 2 values"),
        ([wire.infer_input("x", "INT64", [2])], [], "with 0 values"),
        ([wire.infer_input("x", "INT64", [-1])], [b""], "negative"),
        ([wire.infer_input("x", "INT64", [2**62, 4])], [b""], "more values than any message"),
        ([wire.infer_input("x", "INT64", [2])], [b"1234567"], "7 bytes instead of 16"),
        ([wire.infer_input("x", "INT64", [2], wire.of_bytes(3, INT64))], [bytes(16)], "both contents and raw"),
        ([wire.infer_input("x", "FP16", [1], wire.of_bytes(6, bytes(4)))], [], "without raw_input_contents"),
        ([wire.infer_input("x", "INT8", [1], wire.of_bytes(2, wire.varint(200)))], [], "does not fit its type"),
        ([wire.infer_input("x", "UINT8", [1], wire.of_bytes(4, wire.varint(256)))], [], "does not fit its type"),
        ([wire.infer_input("x", "FLOAT", [1])], [bytes(4)], "datatype 'FLOAT', which is unknown"),
        ([wire.infer_input("x", "", [1])], [bytes(4)], "without a datatype"),
        ([wire.infer_input("x", "FP32", [1])], [bytes(4)], r"float32 \[1\], expected int64"),
        ([wire.infer_input("x", "UINT64", [1])], [b"\xff" * 8], "18446744073709551615, which does not fit"),
        ([wire.infer_input("x", "BYTES", [1])], [b"\1\0\0\0a"], r"string \[1\], expected int64"),
        (
            [wire.of_bytes(5, wire.of_bytes(1, b"x") + wire.of_bytes(4, wire.of_bytes(1, b"shared_memory_region")))],
            [],
            "shared memory",
        ),
    ],
)  # fmt: skip
def test_refused_tensors(inputs, raw, why):
    with pytest.raises(InputError, match=f"input 'x': got .*{why}"):
        pack_body(packer(part("x", "int64")), wire.infer_request(inputs, raw))


@pytest.mark.parametrize(
    "raw", [b"", b"\1\0\0\0", b"\1\0\0\0ab", b"\xff\xff\xff\xffa", b"\1\0\0", b"\1\0\0\0a\0\0\0\0\0\0\0\0"]
)
def test_refused_byte_strings(raw):
    with pytest.raises(InputError, match="input 'x': got .*bytes, which hold other strings"):
        pack_body(packer(part("x", "string")), wire.infer_request([wire.infer_input("x", "BYTES", [1])], [raw]))


def test_messages_that_do_not_add_up():
    one = wire.infer_input("x", "INT64", [1], wire.of_bytes(3, wire.varint(1)))
    bare = wire.infer_input("x", "INT64", [1])
    plan = packer(part("x", "int64"))
    with pytest.raises(InputError, match="input 'x' is given twice"):
        pack_body(plan, wire.infer_request([one, one]))
    with pytest.raises(InputError, match="1 inputs and 2 raw_input_contents"):
        pack_body(plan, wire.infer_request([bare], [bytes(8), bytes(8)]))
    with pytest.raises(InputError, match="0 inputs and 1 raw_input_contents"):
        pack_body(plan, wire.infer_request([], [bytes(8)]))
    with pytest.raises(InputError, match="missing input 'x'"):
        pack_body(plan, wire.infer_request([]))
    with pytest.raises(InputError, match="no output 'y'"):
        pack_body(plan, wire.infer_request([one]) + wire.of_bytes(6, wire.of_bytes(1, b"y")))
    plan = packer_with_outputs([part("x", "int64")], ["y"])
    classify = wire.of_bytes(2, wire.of_bytes(1, b"classification") + wire.of_bytes(2, wire.of_varint(2, 3)))
    with pytest.raises(InputError, match="output 'y': the parameter 'classification'"):
        pack_body(plan, wire.infer_request([one]) + wire.of_bytes(6, wire.of_bytes(1, b"y") + classify))


def test_contents_in_pieces():
    pieces = b"".join(wire.of_bytes(5, wire.of_bytes(3, wire.varint(v))) for v in (1, 2, 3))
    message = wire.of_bytes(1, b"x") + wire.of_bytes(2, b"INT64") + wire.of_varint(3, 3) + pieces
    body = wire.of_bytes(5, message)
    assert service_pb2.ModelInferRequest.FromString(body).inputs[0].contents.int64_contents == [1, 2, 3]
    assert arrays_of(pack_body(packer(part("x", "int64")), body), ["int64"])[0].tolist() == [1, 2, 3]


def test_parameters():
    request = service_pb2.ModelInferRequest(model_name="m", id="é")
    request.parameters["a"].bool_param = True
    request.parameters["b"].int64_param = -5
    request.parameters["c"].string_param = "text"
    request.parameters["d"].double_param = 0.25
    request.parameters["e"].uint64_param = 2**63
    request.parameters["f"].SetInParent()
    expected = {"a": True, "b": -5, "c": "text", "d": 0.25, "e": 2**63, "f": None}
    assert library.native().peek_kserve(request.SerializeToString()) == ("m", "", "é", expected)
    with pytest.raises(InputError, match="ModelInferRequest"):
        library.native().peek_kserve(b"\x0a\x05m")


def hashes(values, dtype) -> set:
    """The hash of the first value in every message and in a dict."""
    array = np.array(values, object if dtype == "string" else dtype)
    field_hash = library.native().field_hash
    name = DATATYPES[dtype]
    raw = wire.infer_request([wire.infer_input("x", name, array.shape)], [raw_bytes(array, dtype)])
    if dtype == "string":
        tensor = wire.tensor_proto(dtype, array.shape, b"".join(wire.of_bytes(8, v) for v in values))
    else:
        tensor = wire.tensor_proto(dtype, array.shape, wire.of_bytes(4, array.tobytes()))
    return {
        field_hash("kserve", raw, "x"),
        field_hash("tfs", wire.predict_request({"x": tensor}), "x"),
        field_hash("tfs", {"x": array}, "x"),
        field_hash("tfs", {"x": values}, "x"),
        field_hash("kserve", {"x": [values]}, "x"),
    }


def fnv_mixed(data: bytes) -> int:
    """FNV-1a of 64 bits, then SplitMix64's finaliser."""
    mask = 2**64 - 1
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & mask
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & mask
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & mask
    return h ^ (h >> 31)


def test_the_hash_of_a_field_is_that_of_its_first_value():
    seven = hashes([7, 8], "int64")
    assert len(seven) == 1
    for dtype in ("int32", "uint64", "float32", "uint8", "float64"):
        assert hashes([7, 9], dtype) == seven
    assert hashes([8, 7], "int64") != seven
    assert len(hashes([0.1], "float64") | hashes([np.float32(0.1).item()], "float32")) == 1
    assert len(hashes([b"ab", b""], "string") | {library.native().field_hash("tfs", {"x": ["ab"]}, "x")}) == 1
    assert hashes([2**63 + 1], "uint64") != hashes([-(2**63) + 1], "int64")
    spread = {library.native().field_hash("tfs", {"x": k}, "x") % 100 for k in range(1000)}
    assert len(spread) == 100
    # The same in every release and process: traffic must not change sides.
    assert seven == {library.native().field_hash("tfs", {"x": 7}, "x")}
    assert seven == {fnv_mixed(b"i" + (7).to_bytes(8, "little"))}
    none = library.native().field_hash
    for source in ({}, {"x": []}, {"x": [[], []]}, b"", b"\xff", wire.predict_request({"x": b""})):
        assert none("tfs", source, "x") is None
