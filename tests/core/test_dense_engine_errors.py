"""TfctrDenseEngine: what is refused, when, and how it is said."""

import numpy as np
import pytest
import tensorflow as tf

from tests.core.dense_testing import EngineGraph, check, write_tower
from tfctr.core import library
from tfctr.engines import native
from tfctr.engines.spec import EngineFile, EngineTensor
from tfctr.errors import CorruptFileError, InputError, UsageError


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_tower(tmp_path_factory.mktemp("dense") / "small.onnx")


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return write_tower(tmp_path_factory.mktemp("dense") / "split.onnx", users=True)


def test_loading_a_graph_opens_nothing(tmp_path):
    """A graph whose provider is not there, or whose file is no model, loads; only a run says so."""
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"no model at all" * 100)
    tower_of_junk = write_tower(tmp_path / "x.onnx")
    spec = tower_of_junk.spec(files=(EngineFile("onnx", junk),), label="m/score")
    with (
        EngineGraph(spec).open() as graph,
        pytest.raises(tf.errors.FailedPreconditionError, match=r"engine 'm/score' \(openvino\): OpenVINO: "),
    ):
        graph.run(tower_of_junk.feeds(1))
    missing = tower_of_junk.spec(provider="nothing_here", precision="fp64", label="m/score")
    with (
        EngineGraph(missing).open() as graph,
        pytest.raises(
            tf.errors.FailedPreconditionError,
            match=r"engine 'm/score' \(nothing_here\): the provider 'nothing_here' is not loaded.*loaded: .*openvino.*"
            "libtfctr_nothing_here.so",
        ),
    ):
        graph.run(tower_of_junk.feeds(1))


def test_files_that_were_exchanged_cut_or_damaged(tmp_path, small):
    path = tmp_path / "t.onnx"
    path.write_bytes(small.path.read_bytes())
    spec = small.spec(files=(EngineFile("onnx", path),))
    fingerprint = native.blob_info(path)["fingerprint"]
    assert len(fingerprint) == 16 and int(fingerprint[8:], 16) == path.stat().st_size
    whole = path.read_bytes()
    for damaged in (whole[:-7], bytes([whole[0] ^ 4]) + whole[1:]):
        path.write_bytes(damaged)
        with (
            EngineGraph(spec, fingerprints=[fingerprint]) as graph,
            pytest.raises(
                tf.errors.DataLossError,
                match=rf"\(blob\) '{path}' has the fingerprint .*, the bundle expects {fingerprint}",
            ),
        ):
            graph.open()
    path.write_bytes(b"")
    with (
        EngineGraph(spec, fingerprints=[fingerprint]) as graph,
        pytest.raises(tf.errors.DataLossError, match="is empty"),
    ):
        graph.open()
    path.unlink()
    with EngineGraph(spec, fingerprints=[fingerprint]) as graph, pytest.raises(tf.errors.NotFoundError, match="t.onnx"):
        graph.open()
    with pytest.raises(CorruptFileError, match=r"engine 'small' \(openvino\): cannot open.*t.onnx"):
        native.open_engine(spec)


def test_other_kinds_of_files(tmp_path, small):
    library.native().write_table(tmp_path / "table", "t", np.zeros((3, 2), np.float32))
    spec = small.spec(files=(EngineFile("onnx", tmp_path / "table"),))
    handle = library.load().tfctr_store(shared_name="kinds")
    with pytest.raises(tf.errors.DataLossError, match="not a whole table"):
        library.load().tfctr_store_open(handle, [str(small.path)], kinds=["table"], fingerprints=[""])
    with pytest.raises(tf.errors.InvalidArgumentError, match="neither 'table' nor 'vocab' nor 'blob'"):
        library.load().tfctr_store_open(handle, [str(small.path)], kinds=["blobs"], fingerprints=[""])
    with pytest.raises(UsageError, match=r"engine 'small' \(openvino\): OpenVINO: "):
        native.open_engine(spec)


WRONG_INPUTS = [
    ({"x": np.zeros((3, 5), np.float32)}, r"input 'x' is float32 \[3, 5\], expected float32 \[N, 24\], N = 3"),
    ({"x": np.zeros((3, 24, 1), np.float32)}, r"input 'x' is float32 \[3, 24, 1\], expected float32 \[N, 24\]"),
    ({"scale": np.zeros((2,), np.float32)}, r"input 'scale' is float32 \[2\], expected float32 \[1\]"),
    ({"row_to_user": np.zeros((4,), np.int64)}, r"input 'row_to_user' is int64 \[4\], expected int64 \[N\], N = 3"),
]
WRONG_INPUTS += [
    (
        {"row_to_user": np.int64([0, user, 0])},
        rf"input 'row_to_user' holds {user} for row 1, expected a user row in \[0, 1\)",
    )
    for user in (1, -1, 2**40)
]
WRONG_INPUTS += [
    ({"user": np.zeros((0, 8), np.float32)}, r"input 'row_to_user' holds 0 for row 0, expected a user row in \[0, 0\)")
]


@pytest.mark.parametrize(("change", "message"), WRONG_INPUTS)
def test_wrong_inputs_name_input_engine_and_what_was_expected(split, change, message):
    feeds = split.feeds(3) | change
    with EngineGraph(split.spec()).open() as graph:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"engine 'small' \(openvino\): " + message):
            graph.run(feeds)
        check(graph.run(split.feeds(3)), split.expected(split.feeds(3)))
    with native.open_engine(split.spec()) as engine, pytest.raises(InputError, match=message):
        engine.run(feeds)


def test_wrong_inputs_in_python(small):
    with native.open_engine(small.spec()) as engine:
        with pytest.raises(InputError, match="input 'x' is float64"):
            engine.run(small.feeds(3) | {"x": np.zeros((3, 24))})
        with pytest.raises(InputError, match=r"inputs missing: \['x'\], unknown: \['y'\]"):
            engine.run({"y": np.zeros(3), "scale": np.zeros(1)})


def test_a_model_that_is_not_what_the_spec_says(small):
    x, hidden = small.spec().inputs[0], small.spec().outputs[0]
    cases = [
        ({"outputs": (hidden, EngineTensor("nothing", "float32", ("N",)))}, "has no output 'nothing'"),
        (
            {"outputs": (EngineTensor("score", "float32", ("N", 1)),)},
            r"output 'score' is f32 \[\?\] in the model, expected float32 \[N, 1\]",
        ),
        (
            {"outputs": (EngineTensor("score", "int32", ("N",)),)},
            r"output 'score' is f32 \[\?\] in the model, expected int32",
        ),
        ({"inputs": (x,)}, "the model has 2 inputs, of which 1"),
        (
            {"inputs": (x, EngineTensor("scale", "int64", (1,)))},
            r"input 'scale' is f32 \[1\] in the model, expected int64",
        ),
        ({"files": (EngineFile("plan:sm89", small.path),)}, "no file of the role 'onnx'"),
        ({"outputs": (EngineTensor("score", "float32", ("M",)),)}, "no input has its open size 'M'"),
    ]
    for change, message in cases:
        with pytest.raises(UsageError, match=r"engine 'small' \(openvino\): .*" + message):
            native.open_engine(small.spec(**change))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bucket": [3]}, "no option 'bucket'"),
        ({"buckets": [0]}, "'buckets': expected row counts of 1 or more"),
        ({"buckets": 3}, "'buckets': expected a list"),
        ({"buckets": [8], "pad": {"9": 3}}, "'pad': expected buckets of 'buckets', found 9"),
        ({"buckets": [8], "pad": {"x": 3}}, "'pad': expected .*found 'x'"),
        ({"buckets": [8], "chunk": 9}, "'chunk'"),
        ({"dynamic": False}, "'buckets': expected at least one"),
        ({"dynamic": 1}, "'dynamic': expected true or false"),
        ({"contexts": 0}, "'contexts': expected 1 to"),
        ({"users": 1.5}, "'users'"),
    ],
)
def test_options_that_make_no_sense(small, options, message):
    with pytest.raises(UsageError, match=r"engine 'small' \(openvino\): .*" + message):
        native.open_engine(small.spec(options=options))


def test_rows_beyond_the_buckets_without_a_dynamic_variant(small):
    with native.open_engine(small.spec(options={"buckets": [8], "dynamic": False})) as engine:
        with pytest.raises(InputError, match="no variant for 9 rows.*buckets up to 8 rows"):
            engine.run(small.feeds(9))
        check(engine.run(small.feeds(3)), small.expected(small.feeds(3)))
