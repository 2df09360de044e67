"""The five reference models on two devices: one tensor each way, lookups first, the same numbers.

Bundles are loaded into fresh sessions with two logical CPU devices. Cases 30, 31 and 32 of what DeepRec's users met:
repeated runs over changing batch sizes, models that the passes are not made for, copies at the boundary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tfctr
from examples.models import REFERENCE_MODELS, USER_FEATURES, repeat_users, requests
from graph_opt.placement.devices import runs_on
from tests.graph_opt.placement.two_devices import assert_same, crossed
from tfctr.bundle.packing import pack
from tfctr.serving.executor_config import ExecutorOptions, executor_setups

SIGNATURE, VOCABULARY = "serving_default", 300
TWO_CPUS = {"sparse": "/CPU:0", "dense": "/CPU:1"}
TOWER = {
    "MatMul", "_FusedMatMul", "BatchMatMulV2", "_FusedBatchMatMulV2", "_MklMatMul", "BiasAdd", "Relu", "Sigmoid",
    "Square", "AddN", "Softmax", "Tile", "Sub",
}  # fmt: skip
Request = dict[str, Any]


class Loaded:
    """A bundle in a v1 session of its own with two CPU devices.

    plain: without grappler, whose fusions depend on what stands beside a product, and round in another way.
    """

    def __init__(self, path: Path, *, plain: bool = False) -> None:
        self._graph = tf.Graph()
        config = tf.compat.v1.ConfigProto(
            device_count={"CPU": 2}, intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
        )
        config.use_per_session_threads = True
        config.graph_options.rewrite_options.disable_meta_optimizer = plain
        self._session = tf.compat.v1.Session(graph=self._graph, config=config)
        with self._graph.as_default():
            meta = tf.compat.v1.saved_model.loader.load(self._session, ["serve"], str(path))
        self.signatures = meta.signature_def
        self.nodes = meta.graph_def.node

    def run(self, signature: str, request: Request, *, packed: bool = False):  # type: ignore[no-untyped-def]
        """(outputs, RunMetadata)."""
        info = self.signatures[f"{signature}__packed" if packed else signature]
        if packed:
            arena, shapes, _ = pack([request[k] for k in sorted(self.signatures[signature].inputs)])
            request = {"arena": arena, "shapes": shapes}
        options = tf.compat.v1.RunOptions(
            trace_level=tf.compat.v1.RunOptions.FULL_TRACE, output_partition_graphs=True
        )  # fmt: skip
        metadata = tf.compat.v1.RunMetadata()
        fetches = {key: tensor.name for key, tensor in info.outputs.items()}
        feeds = {info.inputs[key].name: value for key, value in request.items()}
        return self._session.run(fetches, feeds, options, metadata), metadata

    def close(self) -> None:
        self._session.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, make in REFERENCE_MODELS.items():
        make(vocabulary=VOCABULARY, width=4, hidden=(16, 8)).save(str(folder / name))
    return {name: folder / name for name in REFERENCE_MODELS}


@pytest.fixture(scope="module", params=REFERENCE_MODELS)
def case(
    request: pytest.FixtureRequest, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Loaded, Path, dict[str, Any]]]:
    """(name, bundle on two devices, bundle on one, manifest of the first)."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    users = USER_FEATURES[name]
    report = tfctr.convert(models[name], folder / "two", device_map=TWO_CPUS, user_features=users, strict=True)
    tfctr.convert(models[name], folder / "one", user_features=users, strict=True)
    loaded = Loaded(folder / "two")
    yield name, loaded, folder / "one", report.manifest
    loaded.close()


def users_request(name: str, rows: int, users: int, row_to_user: str, seed: int = 1) -> tuple[Request, Request]:
    """A request in the split form, and the one that a client without it sends."""
    split = requests(name, rows, seed, users=users, vocabulary=VOCABULARY)
    whose = np.random.default_rng(seed).integers(0, users, rows)
    return {**split, row_to_user: whose}, repeat_users(REFERENCE_MODELS[name].features, split, whose)


def assert_alike(got: Request, want: Request, bundle: Loaded) -> None:
    """Bit for bit; but AddN starts with whichever input's buffer it may take over, so its order of sums may change."""
    if all(node.op != "AddN" for node in bundle.nodes):
        assert_same(got, want)
        return
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, 1e-5, 1e-7)


@pytest.mark.parametrize("packed", [False, True])
def test_one_transfer_each_way(case: tuple[str, Loaded, Path, dict[str, Any]], packed: bool) -> None:
    name, bundle, _, manifest = case
    split = manifest["signatures"][SIGNATURE]["split"]
    runs = [(SIGNATURE, requests(name, 33, 4, vocabulary=VOCABULARY))]
    runs += [(split["signature"], users_request(name, 33, users, split["row_to_user"])[0]) for users in (1, 3)]
    for signature, request in runs:
        to_dense, back = crossed(bundle.run(signature, request, packed=packed)[1])
        assert (to_dense.transfers, to_dense.strings, to_dense.waits) == (1, 0, 0), signature
        assert (back.transfers, back.strings, back.waits) == (1, 0, 0), signature


def test_the_numbers_are_those_of_one_device(case: tuple[str, Loaded, Path, dict[str, Any]]) -> None:
    """Bit for bit; in the split form the products over user rows may add up in another order."""
    name, _, one, manifest = case
    split = manifest["signatures"][SIGNATURE]["split"]
    with (
        contextlib.closing(Loaded(one, plain=True)) as before,
        contextlib.closing(Loaded(one.parent / "two", plain=True)) as after,
    ):
        for rows in (0, 1, 33):
            request = requests(name, rows, 4, vocabulary=VOCABULARY)
            for packed in (False, True):
                got, want = (b.run(SIGNATURE, request, packed=packed)[0] for b in (after, before))
                assert_alike(got, want, after)
        for rows, users in ((1, 1), (33, 3), (5, 5)):
            request, _ = users_request(name, rows, users, split["row_to_user"])
            got, want = (b.run(split["signature"], request)[0] for b in (after, before))
            for key, value in want.items():
                np.testing.assert_allclose(got[key], value, 1e-5, 1e-6)


@pytest.mark.parametrize("users", [None, 1])
def test_no_embedding_op_starts_after_the_tower(
    case: tuple[str, Loaded, Path, dict[str, Any]], users: int | None
) -> None:
    """In the packed forms, as the executor runs them on one device."""
    name, _, one, _ = case
    with tfctr.ServingSession(one) as session:
        request = requests(name, 64, 4, users=users, vocabulary=VOCABULARY)
        for _ in range(3):
            _, metadata = session.run_traced(request)
            starts: dict[str, list[int]] = {}
            for device in metadata.step_stats.dev_stats:
                for node in device.node_stats:
                    op = node.timeline_label.partition(" = ")[2].partition("(")[0]
                    starts.setdefault(op, []).append(node.all_start_nanos)
            tower = [start for op in TOWER & starts.keys() for start in starts[op]]
            assert max(starts["TfctrFusedLookup"]) < min(tower)


def test_a_hundred_runs_over_changing_batch_sizes_give_the_same_bits(
    case: tuple[str, Loaded, Path, dict[str, Any]],
) -> None:
    name, bundle, _, _ = case
    sizes = (7, 64, 1, 33)
    asked = {rows: requests(name, rows, rows, vocabulary=VOCABULARY) for rows in sizes}
    first = {rows: bundle.run(SIGNATURE, asked[rows], packed=True)[0] for rows in sizes}
    for number in range(100):
        rows = sizes[number % len(sizes)]
        assert_alike(bundle.run(SIGNATURE, asked[rows], packed=True)[0], first[rows], bundle)


def test_no_constant_is_copied_at_the_boundary(case: tuple[str, Loaded, Path, dict[str, Any]]) -> None:
    """deeprec.md case 32: constants on the wrong device. test_one_transfer_each_way counts the copies there are."""
    _, bundle, _, _ = case
    device = {node.name: node.device for node in bundle.nodes}
    constants = {node.name for node in bundle.nodes if node.op == "Const"}
    for node in bundle.nodes:
        for tensor in node.input:
            source = tensor.partition(":")[0]
            if source in constants and node.device:
                assert device[source] == node.device, (source, node.name)


def test_the_same_bundle_on_our_executor(models: dict[str, Path], tmp_path: Path) -> None:
    """Two executors, each with a dense device of its own."""
    tfctr.convert(models["dlrm"], tmp_path / "bundle", device_map=TWO_CPUS)
    request = requests("dlrm", 20, 3, vocabulary=VOCABULARY)
    with tfctr.ServingSession(models["dlrm"]) as stock:
        want = stock.predict(request)
    for setup in executor_setups(ExecutorOptions(executors=2, dense_device_type="CPU")):
        with tfctr.ServingSession(tmp_path / "bundle", **setup.arguments()) as session:
            np.testing.assert_allclose(session.predict(request)["click"], want["click"], 1e-5, 1e-6)


@pytest.mark.parametrize("name", ["wide_and_deep", "din", "mmoe"])
def test_a_bundle_placed_for_a_gpu(models: dict[str, Path], name: str, tmp_path: Path) -> None:
    """It loads where there is none, and every operation on the GPU has a kernel for it."""
    report = tfctr.convert(
        models[name], tmp_path / "bundle", device_map={"sparse": "/CPU:0", "dense": "/GPU:0"},
        user_features=USER_FEATURES[name], strict=True,
    )  # fmt: skip
    request = requests(name, 20, 3, vocabulary=VOCABULARY)
    with tfctr.ServingSession(models[name]) as stock, tfctr.ServingSession(report.path) as session:
        want = stock.predict(request)
        for key, value in session.predict(request).items():
            np.testing.assert_allclose(value, want[key], 1e-5, 1e-6)
        # With 400 rows there is room for more users behind them than there are.
        for rows, users in ((20, 1), (400, 1), (400, 3)):
            split, repeated = users_request(name, rows, users, session.row_to_user or "")
            for key, value in session.predict(split).items():
                np.testing.assert_allclose(value, stock.predict(repeated)[key], 1e-5, 1e-6)
        fell = session.describe()["devices"]["fell_back"]
        assert [entry["device"] for entry in fell] == ["/device:GPU:0"]
    function = tf.saved_model.load(str(report.path)).signatures[SIGNATURE]
    for key, value in function(**{k: tf.constant(v) for k, v in request.items()}).items():
        np.testing.assert_allclose(value, want[key], 1e-5, 1e-6)
    saved = saved_model_pb2.SavedModel.FromString((report.path / "saved_model.pb").read_bytes())
    nodes = [n for n in saved.meta_graphs[0].graph_def.node if n.device == "/device:GPU:0"]
    assert len(nodes) > 10
    assert [(n.name, n.op) for n in nodes if not runs_on(n, "GPU")] == []


@pytest.mark.parametrize("dense", ["/CPU:1", "/GPU:0", "/GPU:7"])
def test_a_model_without_embeddings_converts_and_serves(dense: str, tmp_path: Path) -> None:
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)])
    model.export(str(tmp_path / "model"), verbose=False)
    report = tfctr.convert(tmp_path / "model", tmp_path / "bundle", device_map={"sparse": "/CPU:0", "dense": dense})
    assert {p["status"] for p in report.manifest["passes"]} == {"ok"}
    x = np.ones((3, 4), np.float32)
    with tfctr.ServingSession(tmp_path / "model") as stock, tfctr.ServingSession(report.path) as session:
        (name,) = [i.name for i in session.inputs]
        for key, value in stock.predict({name: x}).items():
            np.testing.assert_allclose(session.predict({name: x})[key], value, 1e-5, 1e-6)


def test_variables_that_stay_are_placed_too(models: dict[str, Path], tmp_path: Path) -> None:
    """Without prune_training every variable counts as written; the shape of a handle is not that of its rows."""
    disable = ("prune_training", "fuse_lookups")
    report = tfctr.convert(models["deepfm"], tmp_path / "two", device_map=TWO_CPUS, disable=disable, strict=True)
    assert report.manifest["mutable_state"]
    request = requests("deepfm", 9, 4, vocabulary=VOCABULARY)
    with (
        contextlib.closing(Loaded(models["deepfm"], plain=True)) as before,
        contextlib.closing(Loaded(tmp_path / "two", plain=True)) as after,
    ):
        assert_alike(after.run(SIGNATURE, request)[0], before.run(SIGNATURE, request)[0], after)
