"""The original SavedModel behind the same kind of gRPC front as `tfctr serve` has: what a careful user of stock
TensorFlow would write.

Run: python -m benchmarks.stock_server SAVED_MODEL [--port 9500] [--decode numpy|make_ndarray] [--inter-op 1|2]
  [--threads N] [--core 0]

A synchronous grpc server with handlers on bytes; PredictRequest parsed by protobuf, tensors by ``tf.make_ndarray`` or
by ``numpy.frombuffer`` on ``tensor_content``; a Session callable made once, default grappler. Prints one
line, "ready PORT", when it serves. Ends with its standard input, or with SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--decode", choices=("numpy", "make_ndarray"), default="numpy")
    parser.add_argument("--inter-op", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="gRPC workers; requests beyond them wait, in order")
    parser.add_argument("--core", type=int, help="run on this core only")
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    serve(args)


def serve(args: argparse.Namespace) -> None:
    import grpc

    answer = predictor(args.model, args.decode, args.inter_op)
    server = grpc.server(
        futures.ThreadPoolExecutor(args.threads),
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
    )
    handler = grpc.unary_unary_rpc_method_handler(lambda body, context: answer(body))
    service = grpc.method_handlers_generic_handler("tensorflow.serving.PredictionService", {"Predict": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port(f"127.0.0.1:{args.port}")
    server.start()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
    print(f"ready {port}", flush=True)
    stopped.wait()
    server.stop(1).wait()


def predictor(path: str, decode: str, inter_op: int, signature: str = "serving_default") -> Callable[[bytes], bytes]:
    """Request bytes to reply bytes."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    graph = tf.Graph()
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=inter_op, use_per_session_threads=True
    )
    session = tf.compat.v1.Session(graph=graph, config=config)
    with graph.as_default():
        meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
    told = meta.signature_def[signature]
    names, outputs = list(told.inputs), list(told.outputs)
    feeds = [graph.get_tensor_by_name(told.inputs[name].name) for name in names]
    fetches = [graph.get_tensor_by_name(told.outputs[name].name) for name in outputs]
    run = session.make_callable(fetches, feed_list=feeds)
    to_array = tf.make_ndarray if decode == "make_ndarray" else _by_numpy(tf)

    def answer(body: bytes) -> bytes:
        request = predict_pb2.PredictRequest.FromString(body)
        values = run(*[to_array(request.inputs[name]) for name in names])
        reply = predict_pb2.PredictResponse()
        reply.model_spec.CopyFrom(request.model_spec)
        for name, value in zip(outputs, values, strict=True):
            reply.outputs[name].CopyFrom(tf.make_tensor_proto(value))
        return bytes(reply.SerializeToString())

    return answer


def _by_numpy(tf: Any) -> Callable[[Any], Any]:
    """The fast way for tensors that were sent as bytes; the others go to ``tf.make_ndarray``."""
    import numpy as np

    types = {number: tf.dtypes.as_dtype(number).as_numpy_dtype for number in (1, 2, 3, 9)}  # float, double, ints

    def to_array(tensor: Any) -> Any:
        if not tensor.tensor_content or tensor.dtype not in types:
            return tf.make_ndarray(tensor)
        shape = [dim.size for dim in tensor.tensor_shape.dim]
        return np.frombuffer(tensor.tensor_content, types[tensor.dtype]).reshape(shape)

    return to_array


if __name__ == "__main__":
    main()
