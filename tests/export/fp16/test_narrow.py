"""FP16 behind the gate: what passes, what gets more islands, what ends in FP32."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest

from export.fp16.convert import Fp16Options, count_casts, to_fp16
from export.fp16.half_eval import evaluate
from export.fp16.narrow import NarrowOptions, narrow_tower
from graph_opt.gate import GateLimits, engine_limits
from tests.export.fp16.graphs import mlp, model, node, normal, value, weights
from tests.export.fp16.test_calibrate import cross
from tests.export.onnx.exports import exported
from tests.export.towers import TOWERS, tower_inputs
from tfctr.errors import InputError, UsageError

CLAMPED = NarrowOptions(clamped=("x",))


def written(found):
    """The report as JSON, and back."""
    return json.loads(json.dumps(found.to_json(), allow_nan=False))


@pytest.mark.parametrize("name", TOWERS)
def test_five_towers(name):
    """The floor of the FP16 engines: max |dp| up to 4e-3, as the judge has it."""
    source = exported(name).model
    names = ("history", "target") if name == "din" else ("embeddings",)
    found = narrow_tower(source, tower_inputs(name, rows=200, seed=7), NarrowOptions(clamped=names))
    assert found.precision == "fp16" and found.gate.passed
    assert found.gate.worst_dp <= 4e-3
    assert [step.what for step in found.steps] == ["FP16"]
    assert found.fp16.heavy == found.fp16.heavy_of
    assert found.fp16.casts == count_casts(found.model) == {"dlrm": 2, "dcn": 2, "din": 5, "mmoe": 5, "trf": 6}[name]
    onnx.checker.check_model(found.model, full_check=True)
    assert written(found)["fp16"]["islands"]
    # No judge of FP16, but another reader of what the graph says.
    session = onnxruntime.InferenceSession(found.model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = tower_inputs(name, rows=50, seed=7)
    for output, array in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(array, evaluate(source, feeds)[output.name], atol=5e-3)


def test_cross_net_over_inputs_at_the_clamp():
    """Embeddings of N(0, 50): the clamp does not bound terms of degree 4; plain FP16 is wrong, islands by name hold."""
    source, feeds = exported("dcn").model, {"embeddings": tower_inputs("dcn", rows=100)["embeddings"] * 50}
    plain = evaluate(to_fp16(source, Fp16Options(clamped=("embeddings",))).model, feeds)
    want = evaluate(source, {"embeddings": np.clip(feeds["embeddings"], -10, 10)})
    assert np.isnan(plain["click"]).any() or np.abs(plain["click"] - want["click"]).max() > 5e-3
    found = narrow_tower(source, feeds, NarrowOptions(clamped=("embeddings",)))
    assert found.precision == "fp16" and found.gate.passed
    assert found.steps[0].added and all("reaches" in why for why in found.steps[0].added.values())
    assert found.clamp.rows_beyond == {"embeddings": 1.0} and found.clamp.max_dp > 0.5


def test_plain_tower_passes():
    found = narrow_tower(mlp(), {"x": normal(100, 16)}, CLAMPED)
    assert found.precision == "fp16"
    assert found.text.startswith("FP16, 1 of 8 nodes in FP32, 2 casts; passed on 100 rows")
    assert "no sample reaches it" in found.text


def test_labels_are_judged():
    feeds = {"x": normal(300, 16)}
    labels = np.random.default_rng(0).random(300) < evaluate(mlp(), feeds)["p"][:, 0]
    found = narrow_tower(mlp(), feeds, CLAMPED, labels=labels)
    assert abs(found.gate.worst_auc_delta) <= 1e-4
    assert "AUC" in found.text


def test_batches_of_users():
    """Several batches, users apart from rows; the sensitivity of few rows keeps every user."""
    source = model(
        [
            node("MatMul", ["user", "wu"], "u"),
            node("Gather", ["u", "row_to_user"], "r", axis=0),
            node("MatMul", ["item", "wi"], "i"),
            node("Add", ["r", "i"], "logit"),
            node("Sigmoid", ["logit"], "p"),
        ],
        [value("user", "U", 4), value("item", "N", 4), value("row_to_user", "N", kind="int64")],
        [value("p", "N", 1)],
        {"wu": weights(4, 1), "wi": weights(4, 1)},
    )
    batches = [{"user": normal(90, 4), "item": normal(n, 4), "row_to_user": np.arange(n) % 90} for n in (100, 30, 0)]
    strict = NarrowOptions(clamped=("user", "item"), limits=GateLimits(max_dp=1e-9, max_bias=1, max_auc_delta=1))
    assert narrow_tower(source, batches, NarrowOptions(clamped=("user", "item"))).gate.rows == 130
    found = narrow_tower(source, batches, strict)
    assert found.precision == "fp32" and found.model is source


def test_calibration_adds_islands():
    """A cross net over inputs at the clamp: FP16 holds the first terms, FP32 the last."""
    found = narrow_tower(cross(4), {"x": normal(64, 4, scale=50)}, CLAMPED)
    assert found.precision == "fp16"
    assert found.steps[0].what == "FP16 with islands by structure and calibration"
    added = found.steps[0].added
    assert "Mul_c3" in added and "reaches" in added["Mul_c3"] and "Mul_c0" not in added
    assert np.isfinite(evaluate(found.model, {"x": normal(64, 4, scale=50)})["p"]).all()
    assert {"Mul_c3"} <= {island["node"] for island in written(found)["fp16"]["islands"]}


def test_always_overflows_ends_in_fp32():
    """Every matrix product is beyond 65504: nothing is left for FP16."""
    source = model(
        [node("MatMul", ["x", "w"], "h"), node("Mul", ["h", "small"], "logit"), node("Sigmoid", ["logit"], "p")],
        [value("x", "N", 4)],
        [value("p", "N", 1)],
        {"w": weights(4, 1) * np.float32(1e6), "small": 1e-6},
    )
    found = narrow_tower(source, {"x": normal(50, 4)}, CLAMPED)
    assert found.precision == "fp32" and found.model is source and found.fp16 is None
    assert found.text == "FP32: no matrix product is left in FP16"
    assert written(found)["steps"][-1] == {
        "what": "no matrix product is left in FP16",
        "added": {},
        "gate": None,
        "seconds": 0.0,
    }


def badly_scaled():
    """A difference of two large numbers decides; the rest of the tower is harmless."""
    return model(
        [
            node("MatMul", ["x", "w"], "a"),
            node("Add", ["a", "far"], "b"),
            node("Sub", ["b", "far"], "c"),
            node("MatMul", ["x", "v"], "d"),
            node("Relu", ["d"], "e"),
            node("MatMul", ["e", "u"], "f"),
            node("Add", ["c", "f"], "logit"),
            node("Sigmoid", ["logit"], "p"),
        ],
        [value("x", "N", 8)],
        [value("p", "N", 1)],
        {"w": weights(8, 1), "far": 3000.0, "v": weights(8, 8), "u": weights(8, 1)},
    )


def test_the_costly_nodes_become_islands():
    found = narrow_tower(badly_scaled(), {"x": normal(200, 8)}, CLAMPED)
    assert found.precision == "fp16" and len(found.steps) == 2
    first, second = found.steps
    assert not first.gate.passed and second.gate.passed
    assert "Add_b" in second.added and "uses" in second.added["Add_b"]
    assert not {"MatMul_d", "MatMul_f", "Relu_e"} & set(second.added)
    assert found.fp16.heavy >= 2


def test_fp32_after_every_step_is_in_the_report():
    """Limits that no FP16 meets: three steps, then FP32 with the last verdict."""
    strict = NarrowOptions(clamped=("x",), limits=GateLimits(max_dp=1e-7, max_bias=1e-8, max_auc_delta=0))
    found = narrow_tower(mlp(), {"x": normal(60, 16)}, strict)
    assert found.precision == "fp32"
    assert found.text.startswith("FP32: ") and "failed on 60 rows" in found.text
    assert written(found)["steps"][0]["what"] == "FP16"


def test_clamp_is_in_the_reference_and_reported():
    feeds = {"x": normal(400, 16, scale=6)}
    found = narrow_tower(mlp(), feeds, CLAMPED)
    share = np.mean((np.abs(feeds["x"]) > 10).any(axis=1))
    assert found.clamp.rows_beyond == {"x": pytest.approx(share)} and 0.5 < share < 1
    free, clamped = evaluate(mlp(), feeds)["p"], evaluate(mlp(), {"x": np.clip(feeds["x"], -10, 10)})["p"]
    assert found.clamp.max_dp == pytest.approx(np.abs(free - clamped).max(), abs=1e-6)
    assert found.gate.worst_dp < 5e-3 < found.clamp.max_dp
    assert f"{share:.2%}" in found.text and "in the FP32 reference too" in found.text


def test_no_clamp():
    found = narrow_tower(mlp(), {"x": normal(50, 16)}, NarrowOptions(clamp=None, clamped=("x",)))
    assert found.fp16.clamped == () and found.text.endswith("no clamp")


def test_masks_are_not_clamped():
    """An input named as an embedding that holds -1e9: the clamp would unmask it."""
    source = model(
        [
            node("MatMul", ["x", "w"], "s"),
            node("Add", ["s", "bias"], "m"),
            node("Softmax", ["m"], "a", axis=-1),
            node("MatMul", ["a", "v"], "logit"),
            node("Sigmoid", ["logit"], "p"),
        ],
        [value("x", "N", 4), value("bias", "N", 6)],
        [value("p", "N", 1)],
        {"w": weights(4, 6), "v": weights(6, 1)},
    )
    feeds = {"x": normal(40, 4), "bias": np.where(np.arange(6) < 3, 0, -1e9).astype("f4") * np.ones((40, 1), "f4")}
    found = narrow_tower(source, feeds, NarrowOptions(clamped=("x", "bias")))
    assert found.precision == "fp16" and found.fp16.clamped == ("x",)
    assert found.clamp.masks == ("bias",) and "hold masks: bias" in found.clamp.text
    assert "Add_m" in found.steps[0].added


def test_nan_weights_are_refused_by_name():
    bad = weights(16, 8)
    bad[3, 4] = np.nan
    source = mlp()
    source.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(bad, "w0"))
    with pytest.raises(InputError, match="'w0' has 1 NaN of 128"):
        narrow_tower(source, {"x": normal(10, 16)}, CLAMPED)


@pytest.mark.parametrize("samples", [[], {}, {"x": np.zeros((0, 16), np.float32)}])
def test_no_samples(samples):
    with pytest.raises(InputError, match="no samples"):
        narrow_tower(mlp(), samples, CLAMPED)


def test_unknown_names():
    with pytest.raises(UsageError, match="clamped input 'y'.*are x"):
        narrow_tower(mlp(), {"x": normal(3, 16)}, NarrowOptions(clamped=("y",)))
    with pytest.raises(UsageError, match="island 'y'"):
        narrow_tower(mlp(), {"x": normal(3, 16)}, NarrowOptions(islands={"y": "?"}))


def test_missing_input_is_named():
    with pytest.raises(InputError, match="input 'x' is missing"):
        narrow_tower(mlp(), {"z": normal(3, 16)}, NarrowOptions())


def test_engine_limits():
    assert engine_limits("fp16") == GateLimits(max_dp=5e-3, max_bias=1e-3, max_auc_delta=1e-4)
    assert engine_limits("bf16", max_bias=1e-2) == GateLimits(max_dp=2e-2, max_bias=1e-2, max_auc_delta=1e-4)
    with pytest.raises(UsageError, match="'int8'; known: fp16, bf16"):
        engine_limits("int8")
