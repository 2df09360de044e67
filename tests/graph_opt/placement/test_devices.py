"""Device maps: what is accepted, and what is an error before any work."""

from __future__ import annotations

import pytest
from tensorflow.core.framework import node_def_pb2

from graph_opt.option_checks import check_options
from graph_opt.options import ConvertOptions
from graph_opt.placement.devices import canonical_device, device_map, runs_on
from tfctr.errors import UsageError


@pytest.mark.parametrize(
    ("given", "sparse", "dense"),
    [
        ({"sparse": "/CPU:0", "dense": "/GPU:1"}, "/device:CPU:0", "/device:GPU:1"),
        ({"sparse": "/device:cpu:0", "dense": "/gpu:0"}, "/device:CPU:0", "/device:GPU:0"),
        ({"dense": "/CPU:1"}, "/device:CPU:0", "/device:CPU:1"),
    ],
)
def test_spellings(given: dict[str, str], sparse: str, dense: str) -> None:
    found = device_map(given)
    assert found is not None
    assert (found.sparse, found.dense) == (sparse, dense)
    assert device_map({}) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sparse": "/CPU:0"}, "says nothing of the dense part"),
        (
            {"sparse": "/GPU:0", "dense": "/GPU:0"},
            "sparse=/GPU:0: embedding tables, strings and vocabularies need a CPU",
        ),
        ({"dense": "/device:FPGA:0"}, "no device type 'FPGA'; TensorFlow here knows CPU, GPU"),
        ({"dense": "/GPU"}, "dense=/GPU: no device"),
        ({"dense": "gpu zero"}, "dense=gpu zero: no device"),
        ({"dense": "/GPU:*"}, "dense=/GPU:"),
        ({"dense": "/GPU:99999999999999999999"}, "dense=/GPU:99999999999999999999: no device"),
        ({"dense": "/job:worker/CPU:0"}, "dense=/job:worker/CPU:0: a device of another process"),
        ({"dense": "/job:localhost/task:3/CPU:0"}, "a device of another process"),
        ({"tower": "/GPU:0"}, "no part 'tower'; the parts are sparse and dense"),
    ],
)
def test_what_is_no_device_map(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match="--device-map"):
        device_map(given)
    with pytest.raises(UsageError) as error:
        check_options(ConvertOptions(device_map=given))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"force_placement": True}, "--force-placement: says nothing without --device-map"),
        ({"device_map": {"dense": "/GPU:0"}, "disable": ("place_devices",)}, "needs the pass place_devices"),
    ],
)
def test_options_that_contradict_each_other(options: dict, said: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UsageError, match=said):
        check_options(ConvertOptions(**options))


def test_canonical_device_leaves_what_it_does_not_know() -> None:
    assert canonical_device("/cpu:0") == "/device:CPU:0"
    assert canonical_device("somewhere/else:x") == "somewhere/else:x"


@pytest.mark.parametrize(
    ("op", "attrs", "gpu"),
    [("MatMul", {"T": 1}, True), ("AsString", {"T": 1}, False), ("Slice", {"T": 4, "Index": 3}, False)],
)
def test_kernels(op: str, attrs: dict[str, int], gpu: bool) -> None:
    """DataTypes 1: float32, 3: int32, 4: uint8."""
    node = node_def_pb2.NodeDef(op=op)
    for key, value in attrs.items():
        node.attr[key].type = value
    assert runs_on(node, "GPU") is gpu
    assert runs_on(node, "CPU")
