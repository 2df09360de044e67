"""TfctrDenseEngine and the engines of Python: numbers, sizes, memory, threads, sharing, precisions."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tensorflow as tf

from export.onnx.exporter import to_onnx
from tests.core.dense_testing import EngineGraph, check, write_tower
from tests.export.towers import TOWERS, tower, tower_inputs
from tfctr.core import library
from tfctr.engines import native
from tfctr.engines.node import engine_node, engine_spec
from tfctr.engines.spec import EngineFile, EngineSpec, EngineTensor
from tfctr.errors import UsageError

OPTIONS = {"buckets": [16, 32], "pad": {"32": 20}, "chunk": 32, "warm": [1]}
# Empty, one row, below, at, filled up to, between and above the buckets, in pieces.
SIZES = (0, 1, 7, 16, 17, 20, 31, 32, 33, 64, 75)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_tower(tmp_path_factory.mktemp("dense") / "small.onnx")


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return write_tower(tmp_path_factory.mktemp("dense") / "split.onnx", users=True)


@pytest.mark.parametrize("options", [{}, OPTIONS, {"buckets": [16, 128], "dynamic": False}], ids=str)
def test_op_gives_the_numbers_of_onnxruntime(small, options):
    with EngineGraph(small.spec(options=options)).open() as graph:
        for rows in SIZES:
            feeds = small.feeds(rows)
            check(graph.run(feeds), small.expected(feeds))


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=str)
def test_user_rows(split, options):
    with EngineGraph(split.spec(options=options)).open() as graph:
        for rows in SIZES:
            for users in (1, 3):
                feeds = split.feeds(rows, users)
                check(graph.run(feeds), split.expected(feeds))
        check(graph.run(split.feeds(0, 0)), split.expected(split.feeds(0, 1)))


def test_two_threads(small):
    with native.open_engine(small.spec(threads=2, options=OPTIONS)) as engine:
        for rows in SIZES:
            check(engine.run(small.feeds(rows)), small.expected(small.feeds(rows)))
        assert engine.describe()["threads"] == 2


def test_variants_are_used_as_options_say(small):
    with native.open_engine(small.spec(options=OPTIONS)) as engine:
        for rows in (0, 5, 16, 20, 75):  # nothing, dynamic, 16, filled up to 32, 32 + 32 + dynamic
            engine.run(small.feeds(rows))
        described = engine.describe()
    runs = {one["rows"]: (one["runs"], one["padded_runs"]) for one in described["variants"]}
    assert runs == {None: (2, 0), 16: (1, 0), 32: (3, 1)}
    assert described["precision"] == "fp32" and described["version"].startswith("2026.")
    assert all(one["compile_ms"] > 0 and not one["from_blob"] for one in described["variants"])


@pytest.mark.parametrize("users", [None, 1, 3])
def test_batches_of_all_sizes_run_as_a_few(small, split, users):
    """OpenVINO keeps kernels for every number of rows that it meets, most of a megabyte each."""
    tower, given = (small, ()) if users is None else (split, (users,))
    with native.open_engine(tower.spec(options={"warm": [1]})) as engine:
        for rows in (32, 33, 40, 64, 65, 101, 256, 300, 513):
            check(engine.run(tower.feeds(rows, *given)), tower.expected(tower.feeds(rows, *given)))
        (dynamic,) = engine.describe()["variants"]
    assert (dynamic["runs"], dynamic["padded_runs"]) == (9, 5)  # 34, 68, 104, 304, 544


@pytest.mark.parametrize(
    "name", [name if name == "dcn" else pytest.param(name, marks=pytest.mark.long) for name in TOWERS]
)
def test_towers(name, tmp_path):
    model = to_onnx(tower(name)).model
    path = tmp_path / "tower.onnx"
    path.write_bytes(model.SerializeToString())
    spec = spec_of(model, path)
    session = onnxruntime.InferenceSession(str(path))
    names = [one.name for one in spec.outputs]
    with native.open_engine(spec) as engine:
        for rows in (1, 16, 20, 33):
            feeds = tower_inputs(name, rows, seed=rows)
            check(engine.run(feeds), dict(zip(names, session.run(names, feeds), strict=True)))


def spec_of(model, path) -> EngineSpec:
    def tensors(values):
        return tuple(
            EngineTensor(
                one.name,
                {1: "float32", 6: "int32", 7: "int64", 9: "bool"}[one.type.tensor_type.elem_type],
                tuple(d.dim_param or d.dim_value for d in one.type.tensor_type.shape.dim),
            )
            for one in values
        )

    return EngineSpec(
        provider="openvino",
        precision="fp32",
        inputs=tensors(model.graph.input),
        outputs=tensors(model.graph.output),
        files=(EngineFile("onnx", path),),
        options=OPTIONS,
        label="tower",
    )


def test_inputs_are_not_written_to_and_outputs_are_the_callers(small):
    with native.open_engine(small.spec(options=OPTIONS)) as engine:
        for rows in (16, 20, 33):
            feeds = small.feeds(rows)
            before = {name: array.copy() for name, array in feeds.items()}
            first = engine.run(feeds)
            kept = {name: array.copy() for name, array in first.items()}
            engine.run(small.feeds(rows, seed=1))
            check(first, kept)
            for name, array in before.items():
                np.testing.assert_array_equal(feeds[name], array)


def test_memory_that_is_not_aligned(small):
    with native.open_engine(small.spec(options=OPTIONS)) as engine:
        for rows in (16, 17, 40):
            feeds = small.feeds(rows)
            expected = small.expected(feeds)
            room = np.zeros(feeds["x"].nbytes + 4, np.uint8)
            moved = room[4:].view(np.float32).reshape(feeds["x"].shape)
            moved[...] = feeds["x"]
            check(engine.run({**feeds, "x": moved}), expected)
            fortran = np.asfortranarray(feeds["x"])
            check(engine.run({**feeds, "x": fortran}), expected)


@pytest.mark.parametrize("options", [{}, {**OPTIONS, "max_contexts": 3}], ids=str)
def test_many_threads(small, options):
    sizes = (1, 16, 20, 33)
    feeds = {(rows, seed): small.feeds(rows, seed=seed) for rows in sizes for seed in range(8)}
    expected = {key: small.expected(one) for key, one in feeds.items()}
    wrong = []
    with EngineGraph(small.spec(options=options)).open() as graph:

        def work(seed):
            try:
                for turn in range(40):
                    key = (sizes[turn % len(sizes)], seed)
                    check(graph.run(feeds[key]), expected[key])
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        with native.open_engine(small.spec(options=options)) as engine:
            most = max(one["contexts"] for one in engine.describe()["variants"])
    assert wrong == []
    assert 1 <= most <= 3 if options else most >= 1


def test_sessions_and_python_share_one_engine(small):
    spec = small.spec(options={"warm": [3]})
    other_label = small.spec(options={"warm": [3]}, label="another")
    with EngineGraph(spec, "a").open() as a, EngineGraph(other_label, "b").open() as b:
        a.run(small.feeds(1))
        with native.open_engine(spec) as engine:
            b.run(small.feeds(1))
            assert engine.describe()["variants"][0]["runs"] == 2
            with native.open_engine(small.spec(options={"warm": [4]})) as different:
                assert different.describe()["variants"][0]["runs"] == 0


def test_after_a_fork(small, split):
    """A compilation in the child would wait for ever for threads that only the parent has; what is open runs."""
    feeds = small.feeds(9)
    with native.open_engine(small.spec()) as engine:
        want = engine.run(feeds)
        child = os.fork()
        if child == 0:  # leaves by os._exit, whatever happens: it is a copy of the whole test run
            status = 1
            try:
                signal.alarm(300)
                check(engine.run(feeds), want)
                native.open_engine(split.spec())
            except UsageError as error:
                status = 0 if "forked from one that had used OpenVINO" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        check(engine.run(feeds), want)


def test_an_engine_ends_with_its_last_user(small):
    spec = small.spec(options={"warm": [5]})
    with native.open_engine(spec) as engine:
        engine.run(small.feeds(1))
    with native.open_engine(spec) as engine:
        assert engine.describe()["variants"][0]["runs"] == 0
    with pytest.raises(UsageError, match="is closed"):
        engine.run(small.feeds(1))


def test_blobs_make_the_same_engine(small, tmp_path):
    spec = small.spec(options=OPTIONS)
    with native.open_engine(spec) as engine:
        blobs = engine.export()
    assert set(blobs) == {"blob:dynamic", "blob:16", "blob:32"}
    files = list(spec.files)
    for role, content in blobs.items():
        path = tmp_path / role.replace(":", "_")
        path.write_bytes(content)
        files.append(EngineFile(role, path))
    again = small.spec(options=OPTIONS, files=tuple(files))
    with native.open_engine(again) as engine:
        assert [(one["from_blob"], one["note"]) for one in engine.describe()["variants"]] == [(True, "")] * 3
        for rows in SIZES:
            check(engine.run(small.feeds(rows)), small.expected(small.feeds(rows)))


def _blob(small, tmp_path, change) -> str:
    """The note of a dynamic variant opened with a changed blob, after checking that it computes all the same."""
    with native.open_engine(small.spec()) as engine:
        content = engine.export()["blob:dynamic"]
    path = tmp_path / "blob"
    path.write_bytes(change(content))
    spec = small.spec(files=(*small.spec().files, EngineFile("blob:dynamic", path)))
    with native.open_engine(spec) as engine:
        check(engine.run(small.feeds(9)), small.expected(small.feeds(9)))
        (variant,) = engine.describe()["variants"]
    assert not variant["from_blob"] and str(path) in variant["note"]
    return variant["note"]


def test_blobs_that_do_not_fit_are_compiled_anew(small, tmp_path):
    assert "contents are damaged" in _blob(small, tmp_path, lambda b: b[:-1] + bytes([b[-1] ^ 1]))
    assert "contents are damaged" in _blob(small, tmp_path, lambda b: b[:5000])
    assert "no compiled model that tfctr wrote" in _blob(small, tmp_path, lambda b: b[:100])
    assert "no compiled model that tfctr wrote" in _blob(small, tmp_path, lambda b: b"x" * 9000)
    version = native.open_engine(small.spec()).describe()["version"].encode()
    other = b"2020" + version[4:]
    note = _blob(small, tmp_path, lambda b: b.replace(version, other, 1))
    assert f"made for openvino {other.decode()}, not for {version.decode()}" in note
    fingerprint = native.blob_info(small.path)["fingerprint"].encode()
    note = _blob(small, tmp_path, lambda b: b.replace(fingerprint, b"0" * 16, 1))
    assert "made for onnx 0000000000000000, not for " in note


def test_precisions(small, monkeypatch):
    from tfctr.engines import isa

    assert isa.cpu_isa() == library.native().cpu_isa()
    if isa.supports_bf16():
        with native.open_engine(small.spec(precision="bf16")) as engine:
            assert engine.describe()["precision"] == "bf16"
            np.testing.assert_allclose(
                engine.run(small.feeds(8))["score"], small.expected(small.feeds(8))["score"], atol=0.05
            )
    else:
        with pytest.raises(UsageError, match=r"bf16: this CPU \(\w+\) has no bfloat16.*expected avx512_bf16 or amx"):
            native.open_engine(small.spec(precision="bf16"))
    with pytest.raises(UsageError, match="openvino has no precision fp16.*openvino: fp32, bf16"):
        small.spec(precision="fp16")


def test_isa_levels():
    from tfctr.engines.isa import isa_of_flags

    avx512 = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"}
    assert isa_of_flags({"sse4_2"}) == "baseline"
    assert isa_of_flags({"avx2", "fma", "f16c"}) == "avx2"
    assert isa_of_flags(avx512) == "avx512"
    assert isa_of_flags(avx512 | {"avx512_bf16"}) == "avx512_bf16"
    assert isa_of_flags(avx512 | {"avx512_bf16", "amx_tile", "amx_bf16"}) == "amx_bf16"


def test_node_and_spec_are_each_others_inverse(split, tmp_path):
    spec = split.spec(options=OPTIONS, threads=3)
    node = engine_node("e", "store", ["a", "b", "c", "d"], spec, [7])
    assert engine_spec(node, {7: split.path}) == spec
    assert EngineTensor.parse("x", "float32", "") == EngineTensor("x", "float32", ())
    for wrong in ("float99", "string"):
        with pytest.raises(UsageError, match="is none of float32"):
            EngineTensor("x", wrong, ())
    with pytest.raises(UsageError, match="size -1 is neither"):
        EngineTensor("x", "float32", (-1,))


def test_shapes_are_inferred(split):
    with EngineGraph(split.spec()) as graph:
        outputs = graph.graph.get_operation_by_name("engine").outputs
        assert [one.shape.as_list() for one in outputs] == [[None, 8], [None]]
    with tf.Graph().as_default():
        node = engine_node("e", "s", ["x", "scale"], write_tower_spec(), [0])
        graph = tf.compat.v1.GraphDef(node=[node])
        graph.node.add(name="s", op="TfctrStore")
        for name, shape in (("x", [5, 24]), ("scale", [1])):
            tf.compat.v1.placeholder(tf.float32, shape, name=f"in_{name}")
        for name in ("x", "scale"):
            placed = graph.node.add(name=name, op="Placeholder")
            placed.attr["dtype"].type = tf.float32.as_datatype_enum
            for size in {"x": (5, 24), "scale": (1,)}[name]:
                placed.attr["shape"].shape.dim.add().size = size
        (hidden, _) = tf.import_graph_def(graph, return_elements=["e:0", "e:1"])
        assert hidden.shape.as_list() == [5, 8]


def write_tower_spec() -> EngineSpec:
    return EngineSpec(
        provider="openvino",
        precision="fp32",
        inputs=(EngineTensor("x", "float32", ("N", 24)), EngineTensor("scale", "float32", (1,))),
        outputs=(EngineTensor("hidden", "float32", ("N", 8)), EngineTensor("score", "float32", ("N",))),
        files=(EngineFile("onnx", Path("unused")),),
    )


def test_fixed_sizes_only(tmp_path):
    """A tower without an open size has one variant, whatever the buckets."""
    import onnx

    made = write_tower(tmp_path / "open.onnx")
    model = onnx.load(str(made.path))
    for value in (*model.graph.input, *model.graph.output):
        dim = value.type.tensor_type.shape.dim[0]
        if dim.dim_param:
            dim.dim_value = 6
    onnx.save(model, str(tmp_path / "fixed.onnx"))
    spec = made.spec(
        inputs=(EngineTensor("x", "float32", (6, 24)), EngineTensor("scale", "float32", (1,))),
        outputs=(EngineTensor("hidden", "float32", (6, 8)), EngineTensor("score", "float32", (6,))),
        files=(EngineFile("onnx", tmp_path / "fixed.onnx"),),
        options=OPTIONS,
    )
    with native.open_engine(spec) as engine:
        check(engine.run(made.feeds(6)), made.expected(made.feeds(6)))
        assert [one["rows"] for one in engine.describe()["variants"]] == [None]


def test_a_context_under_load_is_made_beside_the_calls(small):
    """Calls at one time wait for the context that there is, not for a compilation; more are there a moment later."""
    options = {"buckets": [16], "warm": [3], "max_contexts": 3}

    def contexts(engine):
        return [one["contexts"] for one in engine.describe()["variants"]]

    with native.open_engine(small.spec(options=options)) as engine:
        feeds = small.feeds(16)
        expected = small.expected(feeds)
        assert contexts(engine) == [1, 1]
        for _ in range(3):
            check(engine.run(feeds), expected)
        assert contexts(engine) == [1, 1]  # one call at a time needs one
        with ThreadPoolExecutor(8) as pool:
            end = time.monotonic() + 60
            while contexts(engine)[1] < 3 and time.monotonic() < end:
                for got in pool.map(lambda _: engine.run(feeds), range(64)):
                    check(got, expected)
        assert contexts(engine) == [1, 3]  # of the variant that was called, and not more than allowed
        assert all(one["note"] == "" for one in engine.describe()["variants"])


def test_an_engine_ends_while_contexts_are_made(small):
    for _ in range(5):
        with native.open_engine(small.spec(options={"warm": [4], "max_contexts": 4})) as engine:
            feeds = small.feeds(7)
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(engine.run, [feeds] * 16))


@pytest.mark.parametrize("contexts", [1, 2])
def test_contexts_that_are_made_beforehand(small, contexts):
    options = {"buckets": [16], "contexts": contexts, "max_contexts": 2, "warm": [5]}
    with native.open_engine(small.spec(options=options)) as engine:
        assert [one["contexts"] for one in engine.describe()["variants"]] == [contexts, contexts]
