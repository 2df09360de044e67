"""JSON of both protocols: rows to columns, KServe's inputs, outputs as text and as bytes."""

import base64
import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.core import wire_testing as wire
from tests.core.test_packer import arrays
from tests.core.test_wire_kserve import DATATYPES, raw_bytes
from tests.core.wire_testing import same
from tfctr.core import library
from tfctr.errors import InputError


def columns(rows):
    return library.native().instances_to_columns(rows)


CELLS = st.recursive(st.integers() | st.floats(allow_nan=False) | st.text() | st.booleans(), st.lists, max_leaves=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=5), unique=True, min_size=1, max_size=4), st.data())
def test_rows_become_columns(names, data):
    if names == ["b64"]:
        return  # an object of that one name means bytes
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(names, CELLS)), min_size=1, max_size=4))
    assert columns(rows) == {n: [row[n] for row in rows] for n in names}


def test_bare_rows_and_bytes():
    assert columns([]) == {}
    assert columns([1, 2]) == {"": [1, 2]}
    assert columns([[1], []]) == {"": [[1], []]}
    coded = {"b64": base64.b64encode(b"\xff\0").decode()}
    assert columns([coded, "x"]) == {"": [b"\xff\0", "x"]}
    assert columns([{"a": coded, "b": [[coded], ["t"]]}]) == {"a": [b"\xff\0"], "b": [[[b"\xff\0"], ["t"]]]}
    value = [coded, "x"]
    assert library.native().without_base64(value, "inputs.a") == [b"\xff\0", "x"]
    assert value == [coded, "x"]  # not changed
    plain = [[1, 2], [3]]
    assert library.native().without_base64(plain, "inputs.a") is plain


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=50))
def test_base64(data):
    coded = base64.b64encode(data).decode()
    assert library.native().without_base64({"b64": coded}, "x") == data
    written = library.native().write_json({"y_bytes": np.array([data], object)}, "columns")
    assert json.loads(written) == [{"b64": coded}]


DEEP: list = []
for _ in range(200):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"a": 1}, 2], r"instances\[1\]: a number where instances\[0\] is an object"),
        ([1, {"a": 1}], r"instances\[1\]: an object where instances\[0\] is a number"),
        ([{"a": 1, "b": 2}, {"a": 1}], r"instances\[1\]: 'b' is missing"),
        ([{"a": 1}, {"a": 1, "c": 2}], r"instances\[1\]: has 'c', which instances\[0\] has not"),
        ([{"a": 1}, {"c": 2}], r"instances\[1\]: 'a' is missing"),
        ([{"a": {"x": 1}}], r"instances\[0\].a: found an object, expected values"),
        ([{"a": 1, "b": {"b64": 5}}], r"instances\[0\].b: found an object"),
        ([{"a": {"b64": "!!!!"}}], r"instances\[0\].a: b64 '!!!!' is no valid base64"),
        ([{"a": {"b64": "YWI"}}], "no valid base64"),
        ([{"a": {"b64": "Y=I="}}], "no valid base64"),
        ([{"a": DEEP}], "nested deeper than 64"),
    ],
)
def test_rows_that_do_not_fit(rows, why):
    with pytest.raises(InputError, match=why):
        columns(rows)


def kserve(inputs, tail=b""):
    return library.native().kserve_inputs(inputs, tail)


def entry(name="x", datatype="INT64", shape=(1,), **more):
    return {"name": name, "datatype": datatype, "shape": list(shape)} | more


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_kserve_inputs_in_bytes_and_in_json(data):
    dtypes = data.draw(st.lists(st.sampled_from(list(DATATYPES)), min_size=1, max_size=4))
    inputs, tail, values = [], b"", {}
    for k, dtype in enumerate(dtypes):
        array = data.draw(arrays(dtype))
        values[f"x{k}"] = array
        as_bytes = dtype in ("string", "float16", "bfloat16", "float32", "float64") or data.draw(st.booleans())
        one = entry(f"x{k}", DATATYPES[dtype], array.shape)
        if as_bytes:
            raw = raw_bytes(array, dtype)
            tail += raw
            one["parameters"] = {"binary_data_size": len(raw)}
        else:
            one["data"] = array.ravel().tolist() if data.draw(st.booleans()) or array.ndim == 0 else array.tolist()
        inputs.append(one)
    found = kserve(inputs, tail)
    assert list(found) == list(values)
    assert all(same(found[name], values[name]) for name in values)


def test_kserve_json_values():
    found = kserve([
        entry("f", "FP32", [2], data=[1, 0.1]), entry("b", "BYTES", [2], data=["a", "é"]),
        entry("h", "BF16", [1], data=[1.5]),
        entry("z", "BOOL", [3], parameters={"binary_data_size": 3}),
    ], b"\0\1\2")  # fmt: skip
    assert found["f"].dtype == np.float32
    assert found["f"].tolist() == [1, np.float32(0.1)]
    assert found["b"].tolist() == ["a", "é"]
    assert found["h"].dtype == ml_dtypes.bfloat16
    assert found["z"].view(np.uint8).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("inputs", "tail", "why"),
    [
        ([7], b"", r"inputs\[0\]: a number, expected an object"),
        ([{"datatype": "INT64"}], b"", r"inputs\[0\]: no name"),
        ([entry(data=[1]), entry(data=[1])], b"", "input 'x' is given twice"),
        ([entry(datatype="INT")], b"", "datatype 'INT', which is unknown"),
        ([entry(datatype=5)], b"", "no datatype"),
        ([{"name": "x", "datatype": "INT64", "data": [1]}], b"", "no shape"),
        ([entry(shape=[True], data=[1])], b"", "dimension 0 is no size"),
        ([entry(shape=[2**70], data=[1])], b"", "dimension 0 is no size"),
        ([entry(shape=[-1], data=[1])], b"", "dimension 0 is negative"),
        ([entry(shape=[1] * 100, data=[1])], b"", "shape of 100 dimensions"),
        ([entry(shape=[2**60, 2**60], data=[1])], b"", "more values than any message"),
        ([entry(shape=[2**40], data=[1])], b"", "1 values, expected 1099511627776"),
        ([entry()], b"", "no data, expected a list"),
        ([entry(data=5)], b"", "a number as data"),
        ([entry(data=[1.5])], b"", "1.5.*expected int64 as its datatype says"),
        ([entry(data=["1"])], b"", "expected int64"),
        ([entry(data=[2**63])], b"", "9223372036854775808, which does not fit"),
        ([entry(data=[None])], b"", "None"),
        ([entry("x", "BYTES", data=[5])], b"", "expected string"),
        ([entry(data=[1], parameters={"binary_data_size": 8})], bytes(8), "both data and binary_data_size"),
        ([entry(parameters={"binary_data_size": 9})], bytes(8), "9 where 8 bytes are left"),
        ([entry(parameters={"binary_data_size": 4})], bytes(4), "4 bytes instead of 8"),
        ([entry(parameters={"binary_data_size": -8})], bytes(8), "is no size"),
        ([entry(parameters={"binary_data_size": 8})], bytes(9), "1 bytes follow the JSON and belong to no input"),
        ([entry("x", "BYTES", parameters={"binary_data_size": 4})], b"\xff\xff\xff\xff", "which hold other strings"),
        ([entry(parameters={"shared_memory_region": "r"})], b"", "shared memory"),
        ([entry(data=DEEP)], b"", "nested deeper"),
    ],
)  # fmt: skip
def test_kserve_inputs_that_do_not_fit(inputs, tail, why):
    with pytest.raises(InputError, match=why):
        kserve(inputs, tail)


def read(outputs, form):
    return json.loads(library.native().write_json(outputs, form))


FLOATS = [np.float32, np.float64, np.float16, np.int64, np.uint64, np.int8, np.bool_]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_json_reads_back_as_the_same_numbers(data):
    dtype = data.draw(st.sampled_from(FLOATS))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    array = data.draw(hnp.arrays(dtype, shape))
    back = np.array(read({"y": array}, "columns"), dtype)
    assert np.array_equal(back.ravel(), array.ravel(), equal_nan=array.dtype.kind == "f")
    if array.ndim > 0:
        assert read({"y": array}, "rows").__repr__() == read({"y": array}, "columns").__repr__()


def test_shortest_floats():
    write = library.native().write_json
    assert write({"y": np.array([0.1, 1, 1e-7, 16777216], np.float32)}, "columns") == b"[0.1, 1.0, 1e-07, 16777216.0]"
    assert write({"y": np.array(0.1)}, "columns") == b"0.1"
    assert write({"y": np.array([np.nan, np.inf, -np.inf])}, "columns") == b"[NaN, Infinity, -Infinity]"
    assert write({"y": np.array([2**64 - 1], np.uint64)}, "columns") == b"[18446744073709551615]"
    assert write({"y": np.array([0.1], ml_dtypes.bfloat16)}, "columns") == b"[0.100097656]"


def test_forms():
    a, b = np.array([[1, 2], [3, 4]]), np.array([b"x", '"\\\n\x01é'.encode()], object)
    assert read({"a": a}, "rows") == [[1, 2], [3, 4]]
    assert read({"a": a, "b": b}, "rows") == [{"a": [1, 2], "b": "x"}, {"a": [3, 4], "b": '"\\\n\x01é'}]
    assert read({"a": a, "b": b}, "columns") == {"a": [[1, 2], [3, 4]], "b": ["x", '"\\\n\x01é']}
    assert read({"a": a.T}, "columns") == [[1, 3], [2, 4]]
    assert read({}, "columns") == {}
    assert read({"b": np.array([b"\xff"], object)}, "rows") == [{"b64": "/w=="}]
    with pytest.raises(InputError, match="output 'c' has 3 rows and 'a' has 2"):
        read({"a": a, "c": np.zeros(3)}, "rows")
    with pytest.raises(InputError, match="output 'c' has no rows.*ask with \"inputs\""):
        read({"c": np.array(1.0)}, "rows")
    with pytest.raises(InputError, match="output 'z': values of type complex64"):
        read({"z": np.zeros(1, np.complex64)}, "rows")
    with pytest.raises(ValueError, match="expected rows or columns"):
        read({}, "other")


def test_kserve_outputs():
    outputs = {"a": np.array([[0.5, 1]], np.float32), "b": np.array([b"x", b"\xff"], object), "c": np.array([True])}
    text, tail = library.native().write_kserve_json(outputs, binary=["b"])
    assert json.loads(text) == [
        {"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1.0]},
        {"name": "b", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 10}},
        {"name": "c", "datatype": "BOOL", "shape": [1], "data": [True]},
    ]
    assert tail == wire.byte_strings([b"x", b"\xff"])
    text, tail = library.native().write_kserve_json(outputs, all_binary=True)
    assert [one["parameters"]["binary_data_size"] for one in json.loads(text)] == [8, 10, 1]
    assert tail == struct.pack("<ff", 0.5, 1) + wire.byte_strings([b"x", b"\xff"]) + b"\1"
    with pytest.raises(InputError, match="output 'b' has text that is no UTF-8; ask for it as binary"):
        library.native().write_kserve_json(outputs)
