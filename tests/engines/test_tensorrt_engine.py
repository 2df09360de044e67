"""The TensorRT provider over a fake driver and a fake TensorRT: copies, streams, graphs, pieces, errors.

Not a word here is about a GPU: tests/gpu has those.
"""

from __future__ import annotations

import ctypes
import logging
import threading

import numpy as np
import pytest

from tests.engines.fake_cuda import ILLEGAL_ADDRESS, NO_DEVICE, OUT_OF_MEMORY, FakeDriver
from tests.engines.fake_tensorrt import expected, fake_tensorrt, make_plan
from tfctr.engines import tensorrt_cuda
from tfctr.engines.tensorrt_cuda import CudaError, Driver, Gpu
from tfctr.engines.tensorrt_engine import Settings, TensorRTEngine
from tfctr.engines.tensorrt_lane import place
from tfctr.engines.tensorrt_plan import Plan, PlanTensor, TensorRTError
from tfctr.errors import CorruptFileError, InputError, UsageError, VersionError

INPUTS = [{"name": "x", "dtype": "float32", "shape": ["N", 3]}]
OUTPUTS = [{"name": "y", "dtype": "float32", "shape": ["N", 2]}]
rng = np.random.default_rng(3)


class Rig:
    """An engine over fakes."""

    def __init__(self, plan=None, name="tensorrt_rtx", inputs=INPUTS, version="1.7.1.116", driver=None, **settings):
        self.driver = driver or FakeDriver()
        self.trt = fake_tensorrt(self.driver, name, version)
        self.data = make_plan(rng) if plan is None else plan
        gpu = Gpu(Driver(self.driver))
        self.plan = Plan(self.trt, gpu, self.data, label="serving_default__dense", built=version)
        self.engine = TensorRTEngine(self.plan, inputs, OUTPUTS, Settings(**settings))

    def check(self, rows, shift=None):
        """Runs ``rows`` random rows and compares."""
        x = rng.normal(size=(rows, 3)).astype(np.float32)
        given = {"x": x} if shift is None else {"x": x, "shift": np.float32(shift)}
        got = self.engine.compute(given)["y"]
        np.testing.assert_allclose(got, expected(self.data, x, shift or 0.0), rtol=1e-6)

    def one_call(self, rows):
        """What one call put on its stream, and the calls of the driver, after a warm-up."""
        self.check(rows)
        self.driver.calls.clear()
        self.driver.done.clear()
        self.check(rows)
        return [what[0] for what in self.driver.done], [call[0] for call in self.driver.calls]


@pytest.mark.parametrize("name", ["tensorrt_rtx", "tensorrt"])
def test_a_call_is_one_copy_up_one_run_one_copy_down(name):
    rig = Rig(name=name, graphs=False)
    done, calls = rig.one_call(32)
    assert done == ["up", "kernels", "down"]
    assert calls == ["cuCtxSetCurrent", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"]


@pytest.mark.parametrize("name", ["tensorrt_rtx", "tensorrt"])
def test_a_recorded_call_is_one_launch(name):
    rig = Rig(name=name)
    done, calls = rig.one_call(32)
    assert done == ["up", "kernels", "down"]
    assert calls == ["cuCtxSetCurrent", "cuGraphLaunch", "cuStreamSynchronize"]
    assert rig.engine.describe()["recorded"] == 1


def test_inputs_share_one_buffer_at_aligned_offsets():
    tensors = [PlanTensor("a", np.dtype("float32"), (-1, 3)), PlanTensor("b", np.dtype("int64"), (-1,))]
    slots, end = place(tensors, {"a": (5, 3), "b": (5,)}, 256)
    assert (slots["a"].offset, slots["a"].size) == (256, 60)
    assert (slots["b"].offset, slots["b"].size, end) == (512, 40, 768)
    rig = Rig(_with_shift(), inputs=[*INPUTS, {"name": "shift", "dtype": "float32", "shape": []}], graphs=False)
    rig.check(16, shift=0.5)
    rig.check(7, shift=-0.25)
    (size, _), *_ = [what[1:] for what in rig.driver.done if what[0] == "up"]
    assert size == 512  # 16 rows of 3 floats, and one float, each from a multiple of 256
    assert rig.driver.count("cuMemAlloc_v2") == rig.driver.count("cuMemHostAlloc") == 1


def _with_shift():
    width = 3
    return make_plan(
        rng,
        inputs={"x": ["FLOAT", [-1, width]], "shift": ["FLOAT", []]},
        profiles=[{"x": [[1, width], [8, width], [64, width]], "shift": [[], [], []]}],
    )


def test_batches_are_filled_up_to_recorded_sizes_and_outputs_cut():
    rig = Rig()
    for rows in (1, 3, 16, 17, 40, 63, 64):
        for _ in range(3):
            rig.check(rows)
    told = rig.engine.describe()
    assert told["graph_rows"] == [16, 32, 64]
    assert told["recorded"] == 3
    assert (told["calls"], told["split"]) == (21, 0)
    assert len(rig.trt.contexts) == 3  # a recorded context is left alone
    assert {len(context.streams) for context in rig.trt.contexts} == {1}


def test_sizes_of_graphs_can_be_named():
    rig = Rig(graph_rows=(20, 50, 9999))
    for rows in (10, 30, 60):
        rig.check(rows)
    assert rig.engine.describe()["graph_rows"] == [20, 50]
    assert [context.shapes["x"][0] for context in rig.trt.contexts] == [20, 50, 60]


def test_more_rows_than_the_plan_takes_are_run_in_pieces_and_counted():
    rig = Rig()
    rig.check(150)
    told = rig.engine.describe()
    assert (told["calls"], told["pieces"], told["split"], told["most_rows"]) == (1, 3, 1, 64)


def test_sizes_beside_the_rows_are_refused_by_name():
    profiles = [{"x": [[1, 2], [8, 3], [64, 4]]}]
    rig = Rig(make_plan(rng, inputs={"x": ["FLOAT", [-1, -1]]}, profiles=profiles))
    rig.check(5)
    with pytest.raises(InputError, match=r"input 'x' has the shape \[5, 9\]; the plan takes \[1, 2\] to \[64, 4\]"):
        rig.engine.compute({"x": np.zeros((5, 9), np.float32)})
    rig.check(5)


def test_the_smallest_profile_that_holds_a_batch_is_taken():
    profiles = [{"x": [[1, 3], [64, 3], [512, 3]]}, {"x": [[1, 3], [8, 3], [32, 3]]}]
    rig = Rig(make_plan(rng, profiles=profiles))
    rig.check(20)
    rig.check(100)
    assert [context.profile for context in rig.trt.contexts] == [1, 0]


def test_unusual_sizes_share_a_context_and_are_not_recorded():
    """A history of any length: what is not tuned for must not make a context for each length."""
    profiles = [{"x": [[1, 2], [8, 3], [64, 9]]}]
    data = make_plan(rng, width=3, inputs={"x": ["FLOAT", [-1, -1]]}, profiles=profiles)
    rig = Rig(data, inputs=[{"name": "x", "dtype": "float32", "shape": ["N", "T"]}])
    rig.check(10)
    before = rig.driver.count("cuMemAlloc_v2")
    for width, rows in ((4, 3), (5, 17), (9, 40), (4, 40), (9, 1), (2, 64)):
        with pytest.raises(Exception, match="mismatch"):  # the fake multiplies by 3 columns; shapes got as far as that
            rig.engine.compute({"x": np.zeros((rows, width), np.float32)})
    rig.check(10)
    told = rig.engine.describe()
    assert told["recorded"] == 1
    assert len(rig.trt.contexts) == 2
    assert [context.shapes["x"] for context in rig.trt.contexts] == [(16, 3), (64, 2)]
    assert rig.driver.count("cuMemAlloc_v2") == before + 3  # grown for (3, 4), (17, 5) and (40, 9)
    with pytest.raises(InputError, match=r"input 'x' has the shape \[5, 10\]"):
        rig.engine.compute({"x": np.zeros((5, 10), np.float32)})
    rig.engine.close()
    assert rig.driver.live() == {"memory": 0, "streams": 0, "graphs": 0}


def test_more_rows_than_any_graph_has():
    rig = Rig(graph_rows=(1,))
    for rows in (1, 2, 3, 40, 1):
        rig.check(rows)
    assert len(rig.trt.contexts) == 2
    assert rig.engine.describe()["recorded"] == 1


def test_a_warm_engine_has_all_its_graphs():
    rig = Rig()
    rig.engine.warm_up()
    told = rig.engine.describe()
    assert (told["recorded"], told["calls"], told["lanes"]) == (3, 0, 1)
    rig.driver.calls.clear()
    rig.check(20)
    assert [call[0] for call in rig.driver.calls] == ["cuCtxSetCurrent", "cuGraphLaunch", "cuStreamSynchronize"]
    assert len(rig.trt.contexts) == 3


def test_calls_at_one_time_share_no_stream_context_or_buffer():
    rig = Rig(contexts=4)
    barrier = threading.Barrier(4)
    failed = []

    def work(seed):
        mine = np.random.default_rng(seed)
        barrier.wait()
        for _ in range(30):
            x = mine.normal(size=(int(mine.integers(1, 64)), 3)).astype(np.float32)
            got = rig.engine.compute({"x": x})["y"]
            if not np.allclose(got, expected(rig.data, x), rtol=1e-6):
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    barrier = threading.Barrier(len(threads))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    told = rig.engine.describe()
    assert told["calls"] == 240
    assert 1 <= told["lanes"] <= 4
    assert {len(context.streams) for context in rig.trt.contexts} == {1}
    addresses = [context.addresses["x"] for context in rig.trt.contexts]
    assert len(set(addresses)) == len(addresses)


def test_two_engines_of_one_plan_share_nothing():
    first = Rig()
    second = Rig(first.data, driver=first.driver)
    for rig in (first, second, first, second):
        rig.check(8)
    assert len(first.trt.contexts) == len(second.trt.contexts) == 1
    (mine,), (theirs,) = first.trt.contexts, second.trt.contexts
    assert len(mine.streams | theirs.streams) == 2
    assert not set(mine.addresses.values()) & set(theirs.addresses.values())


def test_everything_is_given_back():
    rig = Rig()
    for rows in (8, 30, 150):
        rig.check(rows)
    rig.engine.close()
    assert rig.driver.live() == {"memory": 0, "streams": 0, "graphs": 0}
    with pytest.raises(TensorRTError, match="the engine is closed"):
        rig.check(8)


def test_cuda_errors_come_with_their_text_and_the_next_call_works():
    rig = Rig(graphs=False)
    rig.check(8)
    for call, code, text in (
        ("cuMemcpyHtoDAsync_v2", OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
        ("cuStreamSynchronize", ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"),
    ):
        rig.driver.fail[call] = code
        with pytest.raises(CudaError, match=f"{call}: {text}"):
            rig.check(8)
        rig.driver.fail.clear()
        rig.check(8)


def test_no_memory_for_a_new_size_is_an_error_and_leaks_nothing():
    rig = Rig()
    rig.check(8)
    before = rig.driver.live()
    rig.driver.fail["cuMemAlloc_v2"] = OUT_OF_MEMORY
    with pytest.raises(CudaError, match="cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"):
        rig.check(40)
    rig.driver.fail.clear()
    assert rig.driver.live() == before
    rig.check(40)


def test_no_stream_leaves_room_for_the_next_call():
    rig = Rig(contexts=1)
    rig.driver.fail["cuStreamCreate"] = OUT_OF_MEMORY
    with pytest.raises(CudaError, match="cuStreamCreate"):
        rig.check(8)
    rig.driver.fail.clear()
    rig.check(8)


def test_a_run_that_tensorrt_refuses_quotes_its_log():
    rig = Rig(make_plan(rng, fails="execute"))
    with pytest.raises(
        TensorRTError,
        match="__dense: tensorrt_rtx 1.7.1.116 does not run the plan: error: IExecutionContext::enqueueV3",
    ):
        rig.check(8)
    assert not rig.driver.capturing


@pytest.mark.parametrize("why", ["fails", "not_capturable", "driver"])
def test_a_plan_that_can_not_be_recorded_runs_without_and_says_so(why, caplog):
    more = {"fails": {"fails": "capture"}, "not_capturable": {"not_capturable": True}, "driver": {}}[why]
    rig = Rig(make_plan(rng, **more))
    if why == "driver":
        rig.driver.fail["cuGraphInstantiateWithFlags"] = OUT_OF_MEMORY
    with caplog.at_level(logging.WARNING, "tfctr"):
        for _ in range(3):
            rig.check(8)
    told = rig.engine.describe()
    assert told["recorded"] == 0
    assert told["not_recorded"]
    assert sum("no CUDA graph" in one.getMessage() for one in caplog.records) == 1
    assert not rig.driver.capturing
    rig.engine.close()
    assert rig.driver.live() == {"memory": 0, "streams": 0, "graphs": 0}


def test_a_plan_of_another_version_names_both():
    with pytest.raises(VersionError, match="built by tensorrt_rtx 1.6.0.1, installed is 1.7.1.116: convert again"):
        rig = Rig()
        Plan(rig.trt, rig.plan.gpu, rig.data, label="m", built="1.6.0.1")
    for name in ("tensorrt_rtx", "tensorrt"):  # not known beforehand: TensorRT's own words have both
        driver = FakeDriver()
        trt = fake_tensorrt(driver, name, "1.8.0.1")
        with pytest.raises(VersionError, match="expecting library version 1.8.0.1 got 1.7.1.116"):
            Plan(trt, Gpu(Driver(driver)), make_plan(rng), label="m")


def test_what_is_no_plan_is_told_so():
    rig = Rig()
    with pytest.raises(
        CorruptFileError, match=r"can't load the plan \(MALFORMED_ENGINE\): error: Serialized engine has"
    ):
        Plan(rig.trt, rig.plan.gpu, b"\0\1garbage", label="m")
    with pytest.raises(TensorRTError, match="can't load the plan: error: cudaError 2: out of memory"):
        Plan(rig.trt, rig.plan.gpu, make_plan(rng, fails="deserialise"), label="m")


def test_no_context_is_an_error_with_the_log():
    rig = Rig(make_plan(rng, fails="context"))
    with pytest.raises(TensorRTError, match="makes no execution context: error: Requested amount of GPU memory"):
        rig.check(3)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([{"name": "z", "dtype": "float32", "shape": ["N", 3]}], r"the plan has the inputs \['x'\], expected \['z'\]"),
        ([{"name": "x", "dtype": "float16", "shape": ["N", 3]}], "input 'x' is float32 in the plan, expected float16"),
    ],
)
def test_a_plan_with_other_tensors_is_refused(inputs, message):
    with pytest.raises(TensorRTError, match=message):
        Rig(inputs=inputs)


def test_a_tensor_without_numpy_type_is_named():
    with pytest.raises(TensorRTError, match="tensor 'x' of the plan has no NumPy type"):
        Rig(make_plan(rng, inputs={"x": ["BF16", [-1, 3]]}))


def test_a_batch_that_can_not_be_run_in_pieces_is_refused():
    rig = Rig()
    rig.engine = TensorRTEngine(rig.plan, INPUTS, [{"name": "y", "dtype": "float32", "shape": [2]}])
    with pytest.raises(TensorRTError, match="150 rows; the plan takes 64, and output 'y' is not one per row"):
        rig.engine.compute({"x": np.zeros((150, 3), np.float32)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 3}, "unknown option 'speed' of tensorrt; there is: contexts, graph_rows"),
        ({"contexts": 0}, "count from 1"),
        ({"graph_rows": [0, 3]}, "count from 1"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UsageError, match=message):
        Settings.of({"tensorrt": options, "buckets": [32]}, "m")
    assert Settings.of({"buckets": [32]}, "m") == Settings()


def test_a_machine_without_a_gpu_says_so_in_cudas_words(monkeypatch):
    fake = FakeDriver()
    fake.fail["cuInit"] = NO_DEVICE
    monkeypatch.setattr(tensorrt_cuda, "open_library", lambda: fake)
    tensorrt_cuda.driver.cache_clear()
    with pytest.raises(CudaError, match="cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"):
        tensorrt_cuda.gpu()
    tensorrt_cuda.driver.cache_clear()


def test_a_driver_that_is_too_old_is_named():
    with pytest.raises(CudaError, match="has no cuGraphInstantiateWithFlags: it is too old"):
        Driver(FakeDriver(missing={"cuGraphInstantiateWithFlags"}))


def test_an_error_that_the_driver_has_no_text_for():
    fake = FakeDriver()
    fake.fail["cuDeviceGet"] = 12345
    with pytest.raises(CudaError, match="cuDeviceGet: error 12345: error 12345"):
        Gpu(Driver(fake))


def test_the_functions_of_the_driver_are_typed():
    fake = FakeDriver()
    Driver(fake)
    assert fake.cuMemAlloc_v2.argtypes == (ctypes.c_void_p, ctypes.c_size_t)
