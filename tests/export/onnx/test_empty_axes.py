"""Squeeze and Unsqueeze without axes: OpenVINO reads them otherwise than ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.onnx.constants import gather_constants
from export.onnx.empty_axes import drop_empty_axes
from export.onnx.runtime import OnnxSession
from tests.export.onnx.exports import exported, translated


def empty(model: onnx.ModelProto) -> list[str]:
    values = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    return [
        node.op_type
        for node in model.graph.node
        if node.op_type in ("Squeeze", "Unsqueeze")
        and len(node.input) > 1
        and values.get(node.input[1], np.ones(1)).size == 0
    ]


def openvino_reads(model: onnx.ModelProto) -> bool:
    import openvino

    try:
        openvino.Core().compile_model(
            openvino.Core().read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
    except RuntimeError:
        return False
    return True


def test_openvino_cannot_import_them():
    model = translated("mmoe")
    gather_constants(model)
    assert empty(model) and not openvino_reads(model)
    assert drop_empty_axes(model) == 1
    assert not empty(model) and openvino_reads(model)
    assert not empty(exported("mmoe").model)


@pytest.mark.parametrize("name", ["din", "trf"])
def test_openvino_imports_the_others(name):
    assert openvino_reads(exported(name).model)


def model_of(nodes: list[onnx.NodeProto], outputs: list[str]) -> onnx.ModelProto:
    axes = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("none", []), ("one", [1]))]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs], axes,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_chains_and_outputs():
    """Chains of them go as one; the name of an output stays; those with axes stay."""
    model = model_of(
        [
            helper.make_node("Unsqueeze", ["x", "none"], ["a"]),
            helper.make_node("Squeeze", ["a", "none"], ["b"]),
            helper.make_node("Squeeze", ["b", "one"], ["c"]),
            helper.make_node("Squeeze", ["b", "none"], ["d"]),
        ],
        ["c", "d"],
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 1, 3)
    with pytest.raises(Exception, match="Squeeze"):  # ONNX Runtime takes "none" for "all" in Squeeze
        OnnxSession(model).run({"x": x})
    assert drop_empty_axes(model) == 3
    assert [node.op_type for node in model.graph.node] == ["Squeeze", "Identity"]
    after = OnnxSession(model).run({"x": x})
    np.testing.assert_array_equal(after["c"], x[:, 0])
    np.testing.assert_array_equal(after["d"], x)


def test_nothing_to_drop():
    model = model_of([helper.make_node("Squeeze", ["x", "one"], ["y"])], ["y"])
    before = model.SerializeToString()
    assert drop_empty_axes(model) == 0 and model.SerializeToString() == before
