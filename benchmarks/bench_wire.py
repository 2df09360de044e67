"""Request bytes to the packed form: the wire parser against what a Python server does with a PredictRequest.

Run: python -m benchmarks.bench_wire [--json FILE] [--features 120] [--rows 100] [--rounds 200]

A request of F inputs [B], built once by the official messages in each of four forms: int64 ids as tensor_content, as
int64_val, float32 as float_val, and int64 as KServe's raw_input_contents. Contestants take turns on the same bytes:

  parser         one native call, the GIL released: bytes to arena, shapes and strings
  make_ndarray   protobuf's parse, then tf.make_ndarray of every input (a dict of arrays)
  numpy          protobuf's parse, then np.frombuffer or np.fromiter of every input, the fastest that Python has

Their results are compared before. The reply of one [B] output is timed too: bytes of a PredictResponse.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

Call = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--features", type=int, default=120)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    figures: dict[str, Any] = {"features": args.features, "rows": args.rows}
    for form in ("tensor_content", "int64_val", "float_val", "raw_input_contents"):
        figures[form] = _measure(form, args.features, args.rows, args.rounds)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def _arrays(features: int, rows: int, dtype: Any) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    values = random.integers(0, 1_000_000, (features, rows)).astype(dtype)
    return {f"feature_{k:03d}": values[k] for k in range(features)}


def _body(form: str, arrays: dict[str, np.ndarray]) -> bytes:
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2
    from tritonclient.grpc import service_pb2

    if form == "raw_input_contents":
        infer = service_pb2.ModelInferRequest(model_name="m")
        for name, array in arrays.items():
            infer.inputs.add(name=name, datatype="INT64", shape=array.shape)
            infer.raw_input_contents.append(array.tobytes())
        return infer.SerializeToString()
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    for name, array in arrays.items():
        tensor = request.inputs[name]
        tensor.dtype = tf.as_dtype(array.dtype).as_datatype_enum
        tensor.tensor_shape.dim.add(size=len(array))
        if form == "tensor_content":
            tensor.tensor_content = array.tobytes()
        else:
            getattr(tensor, form).extend(array.tolist())
    return request.SerializeToString()


def _python_ways(form: str, body: bytes, dtype: Any) -> dict[str, Call]:
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2
    from tritonclient.grpc import service_pb2

    def make_ndarray() -> dict[str, np.ndarray]:
        return {name: tf.make_ndarray(t) for name, t in predict_pb2.PredictRequest.FromString(body).inputs.items()}

    def numpy_predict() -> dict[str, np.ndarray]:
        found = {}
        for name, tensor in predict_pb2.PredictRequest.FromString(body).inputs.items():
            shape = [d.size for d in tensor.tensor_shape.dim]
            if form == "tensor_content":
                found[name] = np.frombuffer(tensor.tensor_content, dtype).reshape(shape)
            else:
                found[name] = np.array(getattr(tensor, form), dtype).reshape(shape)
        return found

    def numpy_infer() -> dict[str, np.ndarray]:
        request = service_pb2.ModelInferRequest.FromString(body)
        pairs = zip(request.inputs, request.raw_input_contents, strict=True)
        return {entry.name: np.frombuffer(raw, dtype).reshape(entry.shape) for entry, raw in pairs}

    if form == "raw_input_contents":
        return {"numpy": numpy_infer}
    return {"make_ndarray": make_ndarray, "numpy": numpy_predict}


def _measure(form: str, features: int, rows: int, rounds: int) -> dict[str, Any]:
    import tensorflow as tf

    from tfctr.core import library
    from tfctr.profiling.paired import measure_paired

    native = library.native()
    dtype = np.dtype(np.float32 if form == "float_val" else np.int64)
    arrays = _arrays(features, rows, dtype)
    body = _body(form, arrays)
    number = tf.as_dtype(dtype).as_datatype_enum
    parts = [{"name": n, "tensor": f"{n}:0", "dtype": number, "numpy": dtype, "shape": [-1]} for n in arrays]
    plan = native.Packer({"context": "bench", "parts": parts, "features": [], "packed": None, "outputs": []})
    protocol = "kserve" if form == "raw_input_contents" else "tfs"
    want = plan.pack(arrays)
    packed = native.pack_body(plan, protocol, body)
    np.testing.assert_array_equal(packed.arena, want.arena)
    ways = _python_ways(form, body, dtype)
    for way in ways.values():
        for name, array in way().items():
            np.testing.assert_array_equal(array, arrays[name])
    peek = native.peek_kserve if protocol == "kserve" else native.peek_tfs
    output = {"scores": np.zeros(rows, np.float32)}
    calls: dict[str, Call] = {"parser": lambda: native.pack_body(plan, protocol, body)}
    calls |= ways
    calls |= {"peek": lambda: peek(body), "reply": lambda: native.write_reply(protocol, output, "m", 1)}
    timings = measure_paired(calls, rounds=rounds)
    base = timings["parser"].median_ms
    for name, timing in timings.items():
        print(
            f"{form:18s} {len(body):7d} bytes  {name:12s} min {timing.min_ms * 1e3:8.1f} us  median"
            f" {timing.median_ms * 1e3:8.1f}  p99 {timing.p99_ms * 1e3:8.1f}  {timing.median_ms / base:6.1f} x parser",
            flush=True,
        )
    return {name: timing.as_dict() for name, timing in timings.items()}


if __name__ == "__main__":
    main()
