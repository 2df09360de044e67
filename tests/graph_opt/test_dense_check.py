"""The last comparison of forms with an engine: it runs the real op, and an engine that is wrong is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.dense import openvino
from export.dense_pass import DenseOptions, dense_pass
from graph_opt import convert
from graph_opt.dense_check import DenseVerdicts, by_check_provider
from graph_opt.gate import GateLimits
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.parity import OutputParity
from graph_opt.report import Pass, PassOutcome
from tests.export.dense.rankers import save, write_samples
from tfctr.errors import OutputsDifferError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("ranker") / "model")


@pytest.fixture(scope="module", autouse=True)
def quick_tuning() -> None:
    openvino.TUNING_SECONDS = 0.1


def passes(cache_dir: Path, *more: Callable[[GraphItem], None]) -> tuple[Pass, ...]:
    """The pass of the dense tower, and passes that spoil what it made."""
    made = dense_pass(DenseOptions(dense="openvino", cache_dir=cache_dir, buckets=(8,)))

    def spoil(change: Callable[[GraphItem], None]) -> Pass:
        def run(item: GraphItem, _: ConvertOptions) -> PassOutcome:
            change(item)
            return PassOutcome(fired=1)

        return Pass(name="spoil", run=run, does="spoils the engine", order_reason="after it")

    return (made, *(spoil(change) for change in more))


def other_weights(item: GraphItem) -> None:
    """The engine reads another model: one whose first bias is not the tower's."""
    import onnx
    from onnx import numpy_helper

    index = next(k for k, file in enumerate(item.files) if file.kind == "blob")
    path = item.files[index].path
    assert path is not None
    model = onnx.load(str(path))
    for constant in model.graph.initializer:
        value = numpy_helper.to_array(constant)
        if value.dtype == np.float32 and value.ndim == 1:
            constant.CopyFrom(numpy_helper.from_array(value + np.float32(0.01), constant.name))
            break
    from graph_opt.store_files import add_blob

    del item.files[index]
    path.unlink()
    assert add_blob(item, model.SerializeToString(), path.name) == index


def no_model(item: GraphItem) -> None:
    """The engine reads what is no model."""
    from graph_opt.store_files import add_blob

    index = next(k for k, file in enumerate(item.files) if file.kind == "blob")
    path = item.files[index].path
    assert path is not None
    del item.files[index]
    assert add_blob(item, b"no model at all", path.name) == index


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (other_weights, "signature 'serving_default__dense', output '.*': the engine's form differs by up to"),
        (no_model, "signature 'serving_default__dense', output '': the engine's form raises: engine 'serving_default'"),
    ],
)
def test_a_wrong_engine_is_found(model: Path, tmp_path: Path, spoil: Callable[[GraphItem], None], said: str) -> None:
    with pytest.raises(OutputsDifferError, match=said):
        convert(model, tmp_path / "bundle", dense_passes=passes(tmp_path / "cache", spoil))
    assert not (tmp_path / "bundle").exists()


def limits(found: GateLimits) -> Callable[[GraphItem], None]:
    def change(item: GraphItem) -> None:
        item.dense = {form: dataclasses.replace(one, limits=found) for form, one in item.dense.items()}

    return change


def test_the_gate_judges_an_engine_of_less_precision(model: Path, tmp_path: Path) -> None:
    """Wrong by what the limits allow, and by more."""
    samples = {
        "samples_path": write_samples(tmp_path / "rows.npz", 50, label=np.arange(50) % 2),
        "label_output": "score",
    }
    from tfctr.converting import with_samples

    def run(found: GateLimits) -> Mapping[str, Any]:
        spoiled = passes(tmp_path / "cache", other_weights, limits(found))
        options = with_samples(ConvertOptions(dense_passes=spoiled, force=True, **samples))
        return convert(model, tmp_path / "bundle", options).manifest

    manifest = run(GateLimits(max_dp=0.1, max_bias=0.1, max_auc_delta=0.5))
    gates = manifest["parity"]["dense_gate"]
    assert [one["signature"] for one in gates] == ["serving_default__dense", "serving_default__dense__packed"]
    assert all(one["passed"] and one["rows"] == 50 and one["auc_delta"] is not None for one in gates)
    assert manifest["signatures"]["serving_default"]["dense"]["check"]["max_dp"] > 0
    with pytest.raises(OutputsDifferError, match="the accuracy gate of the engine's form failed on 50 rows"):
        run(GateLimits(max_dp=1e-6, max_bias=0.1, max_auc_delta=0.5))


def test_a_fallback_has_none_of_the_providers_options(model: Path, tmp_path: Path) -> None:
    kept: list[GraphItem] = []
    made = (*passes(tmp_path / "cache", lambda item: kept.append(item.copy())),)
    convert(model, tmp_path / "bundle", dense_passes=made)
    (item,) = kept
    item.dense = {
        form: dataclasses.replace(one, provider="tensorrt", check_provider="openvino")
        for form, one in item.dense.items()
    }
    engine = item.dense["serving_default"].node
    node = next(node for node in by_check_provider(item).graph_def.node if node.name == engine)
    assert (node.attr["provider"].s, node.attr["precision"].s, node.attr["options"].s) == (b"openvino", b"fp32", b"{}")
    before = next(node for node in item.graph_def.node if node.name == engine)
    assert b"buckets" in before.attr["options"].s  # the item itself is as it was


def test_nothing_different_says_nothing() -> None:
    same = OutputParity(signature="s", output="o", ok=True)
    assert DenseVerdicts(outputs=[same], gates=[{"signature": "s", "passed": True}]).different == ""
