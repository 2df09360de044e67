"""A small model in two versions and a slow one, behind the real gRPC server, for tests of the protocols."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tfctr
from tfctr.serving.group_options import BatchingOptions, GroupOptions
from tfctr.serving.server.auth import Auth
from tfctr.serving.server.context import ServerContext
from tfctr.serving.server.grpc_server import build_grpc_server
from tfctr.serving.server.limits import Limits
from tfctr.serving.server.metrics import Metrics
from tfctr.serving.versions import All, ModelManager, ModelSpec

MODEL, SLOW = "ranker", "slow"
ROWS = 50
EXAMPLES = {
    "items": tf.io.FixedLenFeature([2], tf.int64),
    "price": tf.io.FixedLenFeature([1], tf.float32),
    "city": tf.io.FixedLenFeature([], tf.string),
}
METHODS = {"classify": "tensorflow/serving/classify", "regress": "tensorflow/serving/regress"}


class Ranker(tf.Module):
    """Scores rows by two ids, a number and a string."""

    def __init__(self, scale: float):
        table = np.random.default_rng(7).normal(size=(ROWS, 4)).astype(np.float32)
        self.table = tf.Variable(table * np.float32(scale), name="table")

    def _score(self, items: tf.Tensor, price: tf.Tensor, city: tf.Tensor) -> tf.Tensor:
        rows = tf.gather(self.table, tf.math.floormod(items, ROWS))
        rows = tf.reduce_sum(rows, 1) + tf.gather(self.table, tf.strings.to_hash_bucket_fast(city, ROWS))
        return tf.sigmoid(tf.reduce_sum(rows, 1, keepdims=True) + price)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.int64, "items"),
            tf.TensorSpec([None, 1], tf.float32, "price"),
            tf.TensorSpec([None], tf.string, "city"),
        ]
    )
    def score(self, items: tf.Tensor, price: tf.Tensor, city: tf.Tensor) -> dict[str, tf.Tensor]:
        score = self._score(items, price, city)
        return {"score": score, "where": tf.strings.upper(city), "first": items[:, 0]}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def classify(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        score = self._score(**tf.io.parse_example(examples, EXAMPLES))
        labels = tf.tile(tf.constant([["no", "yes"]]), [tf.shape(score)[0], 1])
        return {"classes": labels, "scores": tf.concat([1 - score, score], 1)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def regress(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"outputs": self._score(**tf.io.parse_example(examples, EXAMPLES))}


class Slow(tf.Module):
    """Takes as long as it is told to: about a microsecond a loop."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, "loops")])
    def spin(self, loops: tf.Tensor) -> dict[str, tf.Tensor]:
        count = tf.while_loop(lambda k: k < loops[0], lambda k: k + 1, [tf.constant(0)])[0]
        return {"count": tf.fill([1], count)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "path")])
    def held(self, path: tf.Tensor) -> dict[str, tf.Tensor]:
        """Until the named pipe is opened by a reader (gate.py). What no path is, as in generated requests, is done."""

        def write() -> tf.Tensor:
            with tf.control_dependencies([tf.io.write_file(path[0], "done")]):
                return tf.constant("done")

        is_path = tf.strings.regex_full_match(path[0], "/.*")
        return {"done": tf.fill([1], tf.cond(is_path, write, lambda: ""))}


def save_ranker(folder: Path, scale: float) -> None:
    ranker = Ranker(scale)
    signatures = {"serving_default": ranker.score, "classify": ranker.classify, "regress": ranker.regress}
    tf.saved_model.save(ranker, str(folder), signatures)
    file = folder / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for name, method in METHODS.items():  # what TF2 can't say
        model.meta_graphs[0].signature_def[name].method_name = method
    file.write_bytes(model.SerializeToString())


class Models(NamedTuple):
    """manager: with ranker 1 (a bundle), 2 (a plain SavedModel) and slow. stock: the originals of ranker by version."""

    manager: ModelManager
    stock: dict[int, Callable[..., dict[str, np.ndarray]]]


@contextlib.contextmanager
def models(folder: Path) -> Iterator[Models]:
    """Saves, converts and loads them."""
    save_ranker(folder / "original", 1.0)
    save_ranker(folder / MODEL / "2", 2.0)
    tfctr.convert(folder / "original", folder / MODEL / "1")
    slow = Slow()
    tf.saved_model.save(slow, str(folder / SLOW / "1"), {"serving_default": slow.spin, "held": slow.held})
    specs = [
        ModelSpec(
            name=MODEL,
            base_path=folder / MODEL,
            policy=All(),
            labels={"stable": 1, "canary": 2},
            options=GroupOptions(batching=BatchingOptions()),
            poll_seconds=0,
        ),
        ModelSpec(name=SLOW, base_path=folder / SLOW, options=GroupOptions(warm_up=False), poll_seconds=0),
    ]
    manager = ModelManager(specs)
    try:
        assert manager.wait(120), manager.status(describe=False)
        yield Models(manager, {1: _stock(folder / "original"), 2: _stock(folder / MODEL / "2")})
    finally:
        manager.close(5)


def _stock(folder: Path) -> Callable[..., dict[str, np.ndarray]]:
    signature = tf.saved_model.load(str(folder)).signatures["serving_default"]

    def run(**inputs: Any) -> dict[str, np.ndarray]:
        return {
            name: value.numpy() for name, value in signature(**{k: tf.constant(v) for k, v in inputs.items()}).items()
        }

    return run


def request(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of ranker."""
    rng = np.random.default_rng(seed)
    return {
        "items": rng.integers(-100, 100, (rows, 2)),
        "price": rng.normal(size=(rows, 1)).astype(np.float32),
        "city": np.array([b"ulm", b"bonn", "köln".encode(), b""], object)[rng.integers(0, 4, rows)],
    }


class Answer(NamedTuple):
    """What was recorded of one request."""

    api: str
    method: str
    model: str
    version: int | None
    code: str
    request_id: str
    stage: str
    message: str
    rows: int
    timing: Any


class Record:
    """The log of a test's server: what it says of every request."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._changed = threading.Condition()

    def wants(self, code: str, seconds: float) -> bool:
        return True

    def answered(
        self, transport: str, api: str, method: str, model: str, version: Any, code: str, seconds: float,
        request_id: str, details: Any,
    ) -> None:  # fmt: skip
        assert transport == "grpc" and seconds >= 0
        with self._changed:
            self.answers.append(Answer(api, method, model, version, code, request_id, **details))
            self._changed.notify_all()

    def wait_for(self, code: str, timeout: float = 120) -> Answer:
        """The first request that ended so; waits for it."""

        def found() -> list[Answer]:
            return [one for one in self.answers if one.code == code]

        with self._changed:
            assert self._changed.wait_for(found, timeout), self.answers
            return found()[0]


class Front(NamedTuple):
    """A server that runs, and a channel to it."""

    ctx: ServerContext
    record: Record
    address: str
    channel: grpc.Channel

    def call(self, path: str, body: bytes, metadata: Any = (), timeout: float | None = 120) -> Any:
        """Sends the bytes of a message; (reply, call)."""
        return self.channel.unary_unary(path).with_call(body, metadata=metadata, timeout=timeout)


@contextlib.contextmanager
def serving(
    manager: Any, *, auth: Auth | None = None, limits: Limits | None = None, default_deadline_ms: float | None = None,
    credentials: tuple[Any, Any] | None = None, threads: int = 8,
) -> Iterator[Front]:  # fmt: skip
    """credentials: (the server's, the client's)."""
    record: Any = Record()
    ctx = ServerContext(
        manager=manager,
        metrics=Metrics(),
        log=record,
        limits=limits or Limits(),
        auth=auth or Auth(),
        default_deadline_ms=default_deadline_ms,
        grpc_threads=threads,
    )
    server = build_grpc_server(ctx)
    if credentials is None:
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        channel = grpc.insecure_channel(address)
    else:
        address = f"localhost:{server.add_secure_port('localhost:0', credentials[0])}"
        channel = grpc.secure_channel(address, credentials[1])
    server.start()
    try:
        with channel:
            yield Front(ctx, record, address, channel)
    finally:
        ctx.state.drain()
        server.stop(5).wait()
