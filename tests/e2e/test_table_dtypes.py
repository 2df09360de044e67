"""Conversions with narrow tables: what the bundle holds and says, what it gives, and that real scores pass the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.core.test_fused_lookup_storage import read_back, stored
from tfctr.cli.main import main
from tfctr.errors import OutputsDifferError, StrictRefusal

FEATURES, VOCABULARY, WIDTH, BATCH = 3, 2000, 16, 40
STORAGE = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks.models import save_baseline

    folder = tmp_path_factory.mktemp("narrow") / "model"
    save_baseline(FEATURES, str(folder), VOCABULARY, WIDTH)
    return folder


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks.models import baseline_inputs

    file = tmp_path_factory.mktemp("samples") / "rows.npz"
    labels = np.arange(BATCH, dtype=np.float32) % 2
    np.savez(file, label=labels, **baseline_inputs(FEATURES, BATCH, vocabulary=VOCABULARY))
    return file


def inputs(samples: Path) -> dict[str, Any]:
    return {name: value for name, value in np.load(samples).items() if name != "label"}


def compress_report(manifest: dict[str, Any]) -> dict[str, Any]:
    (found,) = [p for p in manifest["passes"] if p["name"] == "compress_tables"]
    return found


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "int8"])
def test_the_bundle_says_what_its_tables_are_and_gives_their_scores(tmp_path, model, samples, dtype):
    limits: dict[str, Any] = {"max_dp": 0.05, "max_bias": 0.05, "max_auc_delta": 1.0}
    wide = tfctr.convert(model, tmp_path / "wide").manifest
    report = tfctr.convert(
        model, tmp_path / "bundle", table_dtype=dtype, samples_path=samples, report_path=tmp_path / "r.html", **limits
    )
    manifest = report.manifest
    assert manifest["precision"] == f"fp32, tables {dtype}" and wide["precision"] == "fp32"
    factor = {"fp16": 2, "bf16": 2, "int8": 3.1}[dtype]
    for before, after in zip(wide["store"]["files"], manifest["store"]["files"], strict=True):
        path = report.path / after["file"]
        assert after["storage"] == STORAGE[dtype] and "storage" not in before
        assert after["stands_for"] == {"dtype": "float32", "shape": [VOCABULARY, WIDTH]}
        assert path.stat().st_size == after["bytes"] < before["bytes"] / factor + 4096
        table = np.fromfile(tmp_path / "wide" / before["file"], np.float32, VOCABULARY * WIDTH).reshape(-1, WIDTH)
        want = stored(table, STORAGE[dtype])
        got = np.fromfile(path, want.dtype, want.size).reshape(want.shape)
        np.testing.assert_array_equal(read_back(got), read_back(want))
    assert sorted(p.name for p in (report.path / "assets/tfctr").iterdir()) == sorted(
        Path(f["file"]).name for f in manifest["store"]["files"]
    )
    lookups = manifest["signatures"]["serving_default"]["lookups"]
    assert {entry["storage"] for entry in lookups} == {STORAGE[dtype]}
    parity = manifest["parity"]
    assert parity["ok"] and all(p["worst"] <= 1 for p in parity["outputs"])  # over float32 tables, as ever
    assert [g["signature"] for g in parity["gate"]] == ["serving_default", "serving_default__packed"]
    assert "accuracy gate" in parity["judged"] and parity["gate_inputs"] == f"the samples of {samples}"
    gates = [g["outputs"][0] for g in parity["gate"]]
    assert gates[0]["max_dp"] == gates[1]["max_dp"] > 0 and gates[0]["auc_delta"] is not None
    given = inputs(samples)
    with tfctr.ServingSession(tmp_path / "bundle") as narrow, tfctr.ServingSession(tmp_path / "wide") as exact:
        (got,), (want,) = narrow.predict(given).values(), exact.predict(given).values()
    loaded = tf.saved_model.load(str(tmp_path / "bundle"))
    (stock,) = loaded.signatures["serving_default"](**{k: tf.constant(v) for k, v in given.items()}).values()
    np.testing.assert_allclose(got, stock.numpy(), rtol=1e-5, atol=1e-6)
    assert 0 < np.abs(got - want).max() <= 0.05


def test_without_samples_the_report_says_what_was_judged(tmp_path, model):
    report = tfctr.convert(model, tmp_path / "bundle", table_dtype="fp16")
    assert "AUC was not judged at all" in report.manifest["parity"]["gate_inputs"]
    assert "judged on generated inputs" in compress_report(report.manifest)["reason"]


def test_where_the_gate_fails_the_bundle_is_the_float32_one(tmp_path, model, samples):
    options: dict[str, Any] = {"table_dtype": "int8", "max_dp": 0.0, "max_bias": 0.0, "samples_path": samples}
    manifest = tfctr.convert(model, tmp_path / "bundle", **options).manifest
    assert manifest["precision"] == "fp32" and "gate" not in manifest["parity"]
    refused = compress_report(manifest)["refused"]
    assert len(refused) == FEATURES and all("stays float32: accuracy gate: failed" in r["reason"] for r in refused)
    assert {f["dtype"] for f in manifest["store"]["files"]} == {"float32"}
    with pytest.raises(StrictRefusal, match="accuracy gate"):
        tfctr.convert(model, tmp_path / "strict", strict=True, **options)
    assert not (tmp_path / "strict").exists()


def test_the_last_check_judges_what_own_passes_leave(tmp_path, model, samples):
    """A pass after compress_tables that breaks a narrow table's lookups is found; nothing is written."""

    def break_it(item, options):
        del options
        for node in item.graph_def.node:
            if node.op == "TfctrFusedLookup":
                spec = node.attr["spec"].s.decode()
                node.attr["spec"].s = spec.replace("storage=float16", "storage=bfloat16").encode()
        item.groups = [
            tfctr_group(group) for group in item.groups
        ]  # fmt: skip
        for k, file in enumerate(item.files):
            item.files[k] = relabelled(file)
        return tfctr_passes.PassOutcome(fired=1)

    import dataclasses

    from tfctr import passes as tfctr_passes
    from tfctr.core.library import native

    def tfctr_group(group):
        lookups = tuple((dataclasses.replace(s, storage="bfloat16"), place) for s, place in group.lookups)
        return dataclasses.replace(group, lookups=lookups)

    def relabelled(file):
        """The same bits under another dtype."""
        import ml_dtypes

        bits = np.fromfile(file.path, np.uint16, VOCABULARY * WIDTH).reshape(VOCABULARY, WIDTH)
        path = file.path.with_suffix(".wrong.table")
        native().write_table(str(path), file.name, bits.view(ml_dtypes.bfloat16))
        file.path.unlink()
        return dataclasses.replace(
            file, path=path, dtype="bfloat16", fingerprint=native().file_info(str(path))["fingerprint"]
        )

    own = tfctr_passes.Pass(name="own", run=break_it, does="")
    with pytest.raises(OutputsDifferError, match="over fp16 tables the accuracy gate failed"):
        tfctr.convert(model, tmp_path / "bundle", table_dtype="fp16", samples_path=samples, extra_passes=(own,))
    assert not (tmp_path / "bundle").exists()


def test_split_forms_over_narrow_tables_are_compared_with_the_plain_form(tmp_path, model, samples):
    options: dict[str, Any] = {"table_dtype": "int8", "max_dp": 0.05, "max_bias": 0.05}
    manifest = tfctr.convert(model, tmp_path / "bundle", user_features=("f0",), **options).manifest
    assert manifest["signatures"]["serving_default"]["split"] is not None
    split = manifest["parity"]["gate_split"]
    assert {p["signature"] for p in split} == {"serving_default__split", "serving_default__split__packed"}
    assert all(p["ok"] for p in split)


def test_verify_judges_narrow_tables_by_the_gate_that_the_bundle_passed(tmp_path, model, samples, capsys):
    assert main(["convert", str(model), str(tmp_path / "b"), "--table-dtype", "fp16", "--samples", str(samples)]) == 0
    capsys.readouterr()
    assert main(["verify", str(model), str(tmp_path / "b"), "--inputs", str(samples), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["equal"] is False and told["gate"][0]["passed"] and "passed on 40 rows" in told["gate"][0]["text"]
    assert main(["verify", str(model), str(tmp_path / "b"), "--inputs", str(samples)]) == 0
    assert "accuracy gate" in capsys.readouterr().out


@pytest.mark.long
def test_movielens_passes_the_gate_with_half_the_bytes(tmp_path, shared_data):
    folder = shared_data / "ml-100k"
    if not folder.is_dir():
        pytest.skip("no ../shared/data/ml-100k here")
    import keras

    from examples import movielens, wide_deep
    from tfctr.profiling.auc import auc

    data = movielens.load(folder)
    keras.utils.set_random_seed(1)
    trained = wide_deep.build(data.features, data.crosses)
    wide_deep.train(trained, data, epochs=1, batch=1024)
    wide_deep.save(trained, data.features, str(tmp_path / "model"))
    np.savez(tmp_path / "rows.npz", label=data.test_labels, **wide_deep.request(data.test))
    report = tfctr.convert(
        tmp_path / "model", tmp_path / "bundle", table_dtype="fp16", samples_path=tmp_path / "rows.npz"
    )
    details = compress_report(report.manifest)["details"]
    gate = details["gate"]["serving_default"]
    assert gate["passed"] and gate["rows"] == len(data.test_labels) == 10_000
    assert abs(gate["auc_delta"]) <= 1e-4 and gate["outputs"][0]["auc_reference"] > 0.6
    assert {"table_item/embeddings_1", "table_user_id/embeddings_1"} <= {t["table"] for t in details["tables"]}
    # Half, but for the padding of the files to pages.
    assert details["bytes_after"] <= details["bytes_before"] / 2 + 4500 * len(details["tables"])
    with tfctr.ServingSession(report.path) as session:
        (scores,) = session.predict(wide_deep.request(data.test)).values()
    assert auc(data.test_labels, scores) == pytest.approx(gate["outputs"][0]["auc_reference"], abs=1e-4)
