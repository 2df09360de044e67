"""Reply messages, read by the official messages and tf.make_ndarray."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis import predict_pb2
from tritonclient.grpc import InferResult, service_pb2

from tests.core.test_packer import DTYPES, arrays
from tests.core.test_wire_kserve import DATATYPES, raw_bytes
from tests.core.wire_testing import same
from tfctr.core import library
from tfctr.errors import InputError, InternalError


def write(protocol, outputs, **more):
    return library.native().write_reply(protocol, outputs, "ranker", 12, **more)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_predict_responses(data):
    dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4))
    outputs = {f"y{k}": data.draw(arrays(d)) for k, d in enumerate(dtypes)}
    reply = predict_pb2.PredictResponse.FromString(write("tfs", outputs, signature="serving_default"))
    spec = reply.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("ranker", 12, "serving_default")
    assert set(reply.outputs) == set(outputs)
    for name, array in outputs.items():
        assert same(tf.make_ndarray(reply.outputs[name]), array)
        if array.dtype == np.float32:  # many clients read the list
            assert np.array_equal(np.array(reply.outputs[name].float_val, np.float32), array.ravel(), equal_nan=True)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_infer_responses(data):
    dtypes = data.draw(st.lists(st.sampled_from(list(DATATYPES)), min_size=1, max_size=4))
    outputs = {f"y{k}": data.draw(arrays(d)) for k, d in enumerate(dtypes)}
    reply = service_pb2.ModelInferResponse.FromString(write("kserve", outputs, id="r7"))
    assert (reply.model_name, reply.model_version, reply.id) == ("ranker", "12", "r7")
    assert [o.name for o in reply.outputs] == list(outputs)
    for output, raw, dtype, array in zip(
        reply.outputs, reply.raw_output_contents, dtypes, outputs.values(), strict=True
    ):
        assert (output.datatype, tuple(output.shape)) == (DATATYPES[dtype], array.shape)
        assert raw == raw_bytes(array, dtype)
    result = InferResult(reply)
    for name, array in outputs.items():
        if array.size and array.ndim:
            assert same(result.as_numpy(name).astype(array.dtype), array)


@pytest.mark.parametrize("protocol", ["tfs", "kserve"])
def test_rows_of_a_batch(protocol):
    """Part of a batch: rows 2 and 3 of each output."""
    outputs = {
        "a": np.arange(12, dtype=np.float32).reshape(6, 2),
        "b": np.array([b"0", b"1", b"2", b"3", b"4", b"5"], object),
        "c": np.arange(6),
    }
    part = {name: array[2:4] for name, array in outputs.items()}
    assert write(protocol, outputs, first_row=2, rows=2) == write(protocol, part)
    assert write(protocol, outputs, first_row=6, rows=0) == write(protocol, {n: a[6:] for n, a in outputs.items()})
    for first, rows in ((5, 2), (-1, 1), (7, 0)):
        with pytest.raises(InternalError, match="output 'a': rows"):
            write(protocol, outputs, first_row=first, rows=rows)
    with pytest.raises(InternalError, match="output 'd': rows"):
        write(protocol, {"d": np.array(1.0)}, first_row=0, rows=1)


@pytest.mark.parametrize("protocol", ["tfs", "kserve"])
def test_outputs_asked_for(protocol):
    outputs = {"a": np.ones(2, np.float32), "b": np.zeros(2, np.int64), "c": np.ones(1)}
    asked = write(protocol, outputs, output_filter=["c", "a"])
    assert asked == write(protocol, {"c": outputs["c"], "a": outputs["a"]})
    with pytest.raises(InputError, match="no output 'd'"):
        write(protocol, outputs, output_filter=["d"])


def test_types_that_one_protocol_has_not():
    output = {"z": np.array([1 + 2j], np.complex64)}
    reply = predict_pb2.PredictResponse.FromString(write("tfs", output))
    assert tf.make_ndarray(reply.outputs["z"]).tolist() == [1 + 2j]
    with pytest.raises(InternalError, match="output 'z': the KServe protocol has no datatype for complex64"):
        write("kserve", output)
