"""Writes the fuzzers' first corpus: small requests of every kind, as the official clients write them and as none does.

    python -m tests.fuzz.make_corpus

The first byte of a file says what the rest is (fuzz_checks.h): 0 a PredictRequest, 1 a ModelInferRequest, 2 a
TensorProto, 3 text.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import predict_pb2
from tritonclient.grpc import service_pb2

from tests.core import wire_testing as wire

FOLDER = Path(__file__).parent / "corpus"
ARRAYS = {
    "f32": np.array([[0.5, -1.0], [np.nan, 3.0]], np.float32),
    "f64": np.array([1e-300, np.inf]),
    "f16": np.array([1.5, -2.0], np.float16),
    "i8": np.array([-1, 127], np.int8),
    "i32": np.array([-(2**31), 2**31 - 1], np.int32),
    "i64": np.array([0, 1, -1, 2**40, 2**62], np.int64),
    "u8": np.array([0, 255], np.uint8),
    "u32": np.array([2**32 - 1], np.uint32),
    "u64": np.array([2**64 - 1], np.uint64),
    "bool": np.array([True, False]),
    "text": np.array([b"a", b"", b"caf\xc3\xa9", b"\xff\xfe"], object),
    "scalar": np.array(7, np.int64),
    "none": np.zeros((0, 3), np.float32),
}
DATATYPES = {"f32": "FP32", "f64": "FP64", "f16": "FP16", "i8": "INT8", "i32": "INT32", "i64": "INT64", "u8": "UINT8"}
DATATYPES |= {"u32": "UINT32", "u64": "UINT64", "bool": "BOOL", "text": "BYTES", "scalar": "INT64", "none": "FP32"}


def lists(array: np.ndarray) -> tensor_pb2.TensorProto:
    """The values one by one in the list of their type."""
    tensor = tf.make_tensor_proto(array[()] if array.ndim == 0 else array, shape=array.shape)
    filled = tensor_pb2.TensorProto(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape)
    field = {1: "float_val", 2: "double_val", 7: "string_val", 9: "int64_val", 10: "bool_val", 19: "half_val"}
    field |= {22: "uint32_val", 23: "uint64_val"}
    values = array.view(np.uint16) if array.dtype == np.float16 else array
    getattr(filled, field.get(tensor.dtype, "int_val")).extend(values.ravel().tolist())
    return filled


def predict_requests() -> dict[str, bytes]:
    """By name."""
    found = {}
    whole = predict_pb2.PredictRequest()
    whole.model_spec.name, whole.model_spec.signature_name = "m", "serving_default"
    whole.model_spec.version.value = 3
    whole.output_filter.append("y")
    for name, array in ARRAYS.items():
        one = predict_pb2.PredictRequest()
        one.model_spec.version_label = "canary"
        one.inputs[name].CopyFrom(lists(array))
        found[f"list_{name}"] = one.SerializeToString()
        if array.dtype != object:
            whole.inputs[name].CopyFrom(tf.make_tensor_proto(array, shape=array.shape))
            whole.inputs[name].ClearField("tensor_content")
            whole.inputs[name].tensor_content = array.tobytes()
    found["content"] = whole.SerializeToString(deterministic=True)
    return found


def infer_requests() -> dict[str, bytes]:
    """By name."""
    raw = service_pb2.ModelInferRequest(model_name="m", model_version="1", id="r")
    raw.parameters["priority"].uint64_param = 1
    raw.parameters["note"].string_param = "text"
    raw.outputs.add(name="y").parameters["binary_data"].bool_param = True
    contents = service_pb2.ModelInferRequest(model_name="m")
    fields = {"f32": "fp32", "f64": "fp64", "i8": "int", "i32": "int", "i64": "int64", "u8": "uint", "u32": "uint"}
    fields |= {"u64": "uint64", "bool": "bool", "text": "bytes", "scalar": "int64", "none": "fp32"}
    for name, array in ARRAYS.items():
        raw.inputs.add(name=name, datatype=DATATYPES[name], shape=array.shape)
        raw.raw_input_contents.append(wire.byte_strings(array) if name == "text" else array.tobytes())
        if name in fields:
            entry = contents.inputs.add(name=name, datatype=DATATYPES[name], shape=array.shape)
            getattr(entry.contents, f"{fields[name]}_contents").extend(array.ravel().tolist())
    return {"raw": raw.SerializeToString(deterministic=True), "contents": contents.SerializeToString()}


def tensors() -> dict[str, bytes]:
    """By name: what no client writes."""
    strange = wire.of_varint(200, 7) + wire.tag(204, wire.GROUP) + wire.of_varint(1, 1) + wire.tag(204, wire.END_GROUP)
    texts = [b"a", b"long" * 20]
    return {
        "unpacked": wire.tensor_proto("int64", [3], b"".join(wire.of_varint(10, v) for v in (1, -1, 2**40))),
        "pieces": wire.tensor_proto("int64", [4], wire.of_bytes(10, b"\1\2") + strange + wire.of_bytes(10, b"\3\4")),
        "overlong": wire.tensor_proto("int64", [2], wire.of_bytes(10, wire.varint(5, 10) + wire.varint(6, 3))),
        "short": wire.tensor_proto("int32", [5, 5], wire.of_varint(7, 3)),
        "claim": wire.tensor_proto("int64", [2**31, 2**20], wire.of_varint(10, 1)),
        "negative": wire.tensor_proto("int64", [-1], wire.of_varint(10, 1)),
        "unknown_rank": wire.of_varint(1, 9) + wire.of_bytes(2, wire.of_varint(3, 1)) + wire.of_varint(10, 1),
        "strings": wire.tensor_proto("string", [2], wire.of_bytes(4, b"\1\x50" + b"".join(texts))),
        "long_list": wire.tensor_proto(
            "int64", [40], wire.of_bytes(10, b"".join(wire.varint(3**k) for k in range(40)))
        ),
    }


def main() -> None:
    """Writes the files."""
    FOLDER.mkdir(exist_ok=True)
    kinds = [predict_requests(), infer_requests(), tensors()]
    kinds.append(
        {
            "json": b'{"instances": [{"a": [1, 2.5], "b": {"b64": "YWI="}}]}',
            "base64": b"YWJjZGU=",
            "utf8": "é€😀".encode(),
        }
    )
    for kind, files in enumerate(kinds):
        for name, content in files.items():
            (FOLDER / f"{kind}_{name}").write_bytes(bytes([kind]) + content)


if __name__ == "__main__":
    main()
