"""Smaller tables under an engine: each of the two is judged against the form that differs from it in that one thing."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from onnx import TensorProto, numpy_helper

import tfctr
from export.dense import run as dense_run
from export.dense.choose import Choice
from export.dense.tower import ExportedTower
from export.dense_pass import DenseOptions
from graph_opt.gate import GateLimits, engine_limits, limits_for
from graph_opt.item import GraphItem
from tests.export.dense.conftest import Convert
from tests.export.dense.rankers import request as rows
from tests.export.dense.rankers import save
from tfctr.bundle.reader import open_bundle
from tfctr.cli.main import main
from tfctr.cli.verify import _gate_limits
from tfctr.errors import OutputsDifferError

FLOAT = TensorProto.FLOAT
LARGER = 20  # tables of one page would not get smaller
DTYPES = {"fp16": "float16", "int8": "uint8"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("narrow") / "model", more=("same",), larger=LARGER)


@pytest.fixture(scope="module", params=DTYPES)
def bundle(
    request: pytest.FixtureRequest, model: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """OpenVINO engines over smaller tables, user features split; called as its --table-dtype."""
    table_dtype = str(request.param)
    out = tmp_path_factory.mktemp("bundles") / table_dtype
    options = DenseOptions(dense="openvino", cache_dir=cache_dir, buckets=(8,))
    tfctr.convert(model, out, dense=options, user_features=("user",), table_dtype=table_dtype)
    return out


def requests() -> list[dict[str, np.ndarray]]:
    """One row, more rows with a variant and without, and users once beside many candidates."""
    shared = rows(24)
    users = {"user": shared["user"][:3], "row_to_user": np.arange(24) % 3}
    return [rows(1), rows(8), rows(33), {**shared, **users}]


def test_what_was_judged(bundle: Path) -> None:
    """The tables by their gate, on forms without an engine; the engine to 1e-5, over the smaller tables."""
    manifest = open_bundle(bundle).manifest
    assert {one["dtype"] for one in manifest["store"]["files"] if one["kind"] == "table"} == {DTYPES[bundle.name]}
    parity = manifest["parity"]
    plain = {"serving_default", "same", "serving_default__packed", "same__packed"}
    assert {one["signature"] for one in parity["gate"]} == plain and all(one["passed"] for one in parity["gate"])
    limits = limits_for(bundle.name)
    assert all(one["limits"] == dataclasses.asdict(limits) for one in parity["gate"])
    assert "dense_gate" not in parity  # the engine is fp32: no gate of the tables excuses it
    worst: dict[str, float] = {}
    for one in parity["outputs"]:
        worst[one["signature"]] = max(worst.get(one["signature"], 0.0), one["max_abs"])
    forms = {f"{form}{packed}" for form in ("__dense", "__split__dense") for packed in ("", "__packed")}
    for name in ("serving_default", "same"):
        assert {f"{name}{form}" for form in forms} <= set(worst)
        assert max(worst[f"{name}{form}"] for form in forms) <= 1e-5
    assert max(one["max_dp"] for one in parity["gate"]) > 1e-5  # narrow tables do move the outputs


def test_one_bundle_serves_both(bundle: Path, model: Path) -> None:
    """With the engine as without it over the same tables; within the gate's limit of the original."""
    original = tf.saved_model.load(str(model)).signatures["serving_default"]
    limit = limits_for(bundle.name).max_dp
    with tfctr.ServingSession(bundle) as engine, tfctr.ServingSession(bundle, engine="tensorflow") as plain:
        for inputs in requests():
            got, want = engine.predict(inputs), plain.predict(inputs)
            for name, value in want.items():
                np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)
            given = dict(inputs)
            if "row_to_user" in given:
                given["user"] = given["user"][given.pop("row_to_user")]
            exact = original(**{name: tf.constant(value) for name, value in given.items()})["score"].numpy()
            assert np.abs(got["score"] - exact).max() <= limit
        told, also = engine.describe(), plain.describe()
        assert (told["dense"]["running"], told["dense"]["calls"]) == ("openvino", 4)
        assert told["split"]["signature"] == "serving_default__split__dense" and told["requests"]["split"] == 1
        assert (also["dense"]["running"], also["split"]["signature"]) == ("tensorflow", "serving_default__split")
    assert (np.abs(got["score"] - exact) > 1e-6).any()  # it was the smaller tables that were read


def test_a_refresh_keeps_both(bundle: Path, tmp_path: Path) -> None:
    new = save(tmp_path / "new", more=("same",), larger=LARGER, weight_scale=0.9)
    manifest = tfctr.refresh(bundle, new, tmp_path / "fresh").manifest
    assert manifest["precision"] == open_bundle(bundle).manifest["precision"]
    for name in ("serving_default", "same"):
        info = manifest["signatures"][name]
        assert info["dense"]["form"] == f"{name}__dense" and info["split"]["dense"]["form"] == f"{name}__split__dense"
        assert max(one["dense"]["check"]["max_difference"] for one in (info, info["split"])) <= 1e-5
    assert all(one["passed"] for one in manifest["parity"]["gate"]) and "dense_gate" not in manifest["parity"]
    want = tf.saved_model.load(str(new)).signatures["serving_default"]
    inputs = rows(20)
    exact = want(**{name: tf.constant(value) for name, value in inputs.items()})["score"].numpy()
    with tfctr.ServingSession(tmp_path / "fresh") as session:
        got = session.predict(inputs)["score"]
        assert session.describe()["dense"]["running"] == "openvino"
    assert 1e-7 < np.abs(got - exact).max() <= limits_for(bundle.name).max_dp


def test_verify_takes_the_gates_together(bundle: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each was judged against what was there before it, so the original may be left by both."""
    assert main(["verify", str(model), str(bundle), "--signature", "same", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["form"] for one in told["gate"]} == {"rows", "user rows once"}
    tables = limits_for(bundle.name)
    assert all(one["limits"] == dataclasses.asdict(tables) for one in told["gate"])
    manifest = copy.deepcopy(open_bundle(bundle).manifest)
    bf16 = engine_limits("bf16")
    manifest["signatures"]["same"]["dense"]["accuracy"] = {"limits": dataclasses.asdict(bf16)}
    tower = {"signature": "same", "precision": "bf16"}
    assert _gate_limits(manifest, tower) == tables + bf16
    assert (tables + bf16).max_dp == tables.max_dp + bf16.max_dp
    assert _gate_limits(manifest, {**tower, "precision": "fp32"}) == tables
    assert _gate_limits({**manifest, "parity": {}}, tower) == bf16
    assert _gate_limits({**manifest, "parity": {}}, {**tower, "precision": "fp32"}) is None


def wrong_engine(monkeypatch: pytest.MonkeyPatch, by: float, limits: GateLimits | None = None) -> None:
    """From here on engines add ``by`` to the logit, unnoticed until the last comparison. limits: they are said to be of
    less precision, and have passed a gate with these.
    """
    write, write_all = dense_run._write_form, dense_run._write

    def moved(item: GraphItem, exported: ExportedTower, choice: Choice, *more: Any) -> Any:
        model = exported.model
        bias = next(one for one in model.graph.initializer if list(one.dims) == [1] and one.data_type == FLOAT)
        bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(by), bias.name))
        assert choice.built is not None
        files = (("onnx", "tower.onnx", model.SerializeToString()),)
        wrong = dataclasses.replace(choice, built=dataclasses.replace(choice.built, files=files))
        return write(item, exported, wrong, *more)

    def limited(item: GraphItem, *more: Any) -> Any:
        found = write_all(item, *more)
        item.dense = {form: dataclasses.replace(one, limits=limits) for form, one in item.dense.items()}
        return found

    monkeypatch.setattr(dense_run, "_write_form", moved)
    monkeypatch.setattr(dense_run, "_write", limited)


@pytest.mark.parametrize("form", ["__dense", "__split__dense"])
def test_the_gate_of_the_tables_excuses_no_engine(
    model: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """An engine that is off by less than int8 tables may move a score is refused all the same."""
    wrong_engine(monkeypatch, 1e-3)  # 2.5e-4 of the score at most; the limit of int8 is 5e-3
    only = frozenset({f"serving_default{form.removesuffix('__dense')}"})
    monkeypatch.setattr(dense_run, "forms_of", lambda _: sorted(only))
    more = {"table_dtype": "int8", "user_features": ("user",)}
    with pytest.raises(OutputsDifferError, match=f"'serving_default{form}'.*: the engine's form .*nothing was written"):
        convert(model, dense="openvino", more=more, required=True)


def test_an_engine_of_less_precision_has_its_own_gate(
    model: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"table_dtype": "int8", "signatures": ("serving_default", "same"), "max_dp": 0.5}
    wrong_engine(monkeypatch, 3e-3, engine_limits("bf16"))
    parity = convert(model, dense="openvino", more=more)["parity"]
    assert {one["limits"]["max_dp"] for one in parity["gate"]} == {0.5}
    gates = parity["dense_gate"]
    assert {one["signature"] for one in gates} >= {"serving_default__dense", "serving_default__dense__packed"}
    assert {one["limits"]["max_dp"] for one in gates} == {2e-2}
    assert all(5e-4 < one["max_dp"] < 7.6e-4 for one in gates)  # the engine's part only, without the tables'
    wrong_engine(monkeypatch, 0.0, dataclasses.replace(engine_limits("bf16"), max_dp=1e-4))
    with pytest.raises(OutputsDifferError, match="the accuracy gate of the engine's form failed"):
        convert(model, dense="openvino", more=more, required=True)
    stays = convert(model, dense="openvino", more=more)["signatures"]["serving_default"]["dense"]
    assert stays["provider"] == "tensorflow" and stays["form"] is None
    assert stays["reason"].startswith("with an engine the last comparison fails: signature 'serving_default__dense")
