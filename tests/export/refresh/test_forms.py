"""What a refresh makes again beside the plain form: split forms, narrow tables, merged ones, engines."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.export.refresh import small
from tests.models.base import SERVING, run_stock, save_module
from tfctr.errors import OutputsDifferError


class _Users(tf.Module):
    """A user and an item side whose first layer is split: its weights are taken apart. scale: of the item table."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)

        def weights(*shape: int) -> tf.Variable:
            return tf.Variable(rng.normal(size=shape).astype(np.float32))

        self.user, self.item = weights(600, 6), tf.Variable(rng.normal(size=(700, 8)).astype(np.float32) * scale)
        # zeros, as layers begin: equal contents must not make two weights one
        self.hidden, self.bias = weights(16, 8), tf.Variable(np.zeros(8, np.float32) if seed == 0 else weights(8))
        self.out = weights(8, 1)

    def serve(self, user: tf.Tensor, item: tf.Tensor, age: tf.Tensor) -> dict[str, tf.Tensor]:
        x = tf.concat([tf.gather(self.user, user), tf.gather(self.item, item), age], 1)
        hidden = tf.nn.relu(tf.matmul(x, self.hidden) + self.bias)
        return {"score": tf.sigmoid(tf.matmul(hidden, self.out))}


def _users(folder: Path, seed: int, scale: float = 1.0) -> Path:
    specs = {
        "user": tf.TensorSpec([None], tf.int64, "user"),
        "item": tf.TensorSpec([None], tf.int64, "item"),
        "age": tf.TensorSpec([None, 2], tf.float32, "age"),
    }
    model = _Users(seed, scale)
    save_module(str(folder), model, model.serve, specs)
    return folder


def _request(rows: int = 12) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        "user": np.repeat(rng.integers(0, 600, 1), rows),
        "item": rng.integers(0, 700, rows),
        "age": np.repeat(rng.normal(size=(1, 2)).astype(np.float32), rows, 0),
    }


def test_the_split_form_is_proven_again_with_the_parts_of_the_new_weights(tmp_path: Path) -> None:
    old, new = _users(tmp_path / "old", 0), _users(tmp_path / "new", 1)
    options: dict[str, Any] = {"user_features": ("user", "age"), "dense": "tensorflow"}
    tfctr.convert(old, tmp_path / "bundle", **options)
    report = tfctr.refresh(tmp_path / "bundle", new, tmp_path / "fresh")
    tfctr.convert(new, tmp_path / "anew", **options)
    told = report.manifest["refreshed"]
    assert [t.split(":")[0] for t in told["proven_again"]] == ["split form serving_default__split"]
    assert not told["dropped"]
    given = _request()
    once = {**given, "user": given["user"][:1], "age": given["age"][:1]}
    want = run_stock(new, {SERVING: given})[SERVING]["score"]
    found = []
    for name in ("fresh", "anew"):
        with tfctr.ServingSession(tmp_path / name) as session:
            np.testing.assert_array_equal(session.predict(given)["score"], want)
            found.append(session.predict(once)["score"])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"dense_limit_bytes": 64, "user_features": ("user", "age")},  # weights in files, their parts too
        {"device_map": {"sparse": "/CPU:0", "dense": "/GPU:0"}, "user_features": ("user",)},
        {"user_features": ("user",), "table_dtype": "fp16", "max_dp": 0.1, "max_bias": 0.1},
        {"disable": ("pack_inputs", "normalise")},
        {"disable": ("fuse_lookups",)},
    ],
    ids=["weights in files", "two devices", "narrow and split", "passes disabled", "unfused"],
)
def test_options_of_the_conversion_are_kept(tmp_path: Path, options: dict[str, Any]) -> None:
    old, new = _users(tmp_path / "old", 0), _users(tmp_path / "new", 1)
    tfctr.convert(old, tmp_path / "bundle", dense="tensorflow", **options)
    reports = [
        tfctr.refresh(tmp_path / "bundle", new, tmp_path / "fresh"),
        tfctr.convert(new, tmp_path / "anew", dense="tensorflow", **options),
    ]
    assert len({len(r.manifest["store"]["files"]) for r in reports}) == 1
    given = _request()
    requests = [given]
    if "user_features" in options:
        users = [name for name in given if name in options["user_features"]]
        requests.append({name: value[:1] if name in users else value for name, value in given.items()})
    for request in requests:
        found = []
        for report in reports:
            with tfctr.ServingSession(report.path) as session:
                found.append(session.predict(request)["score"])
        np.testing.assert_array_equal(found[0], found[1])


def test_narrow_tables_are_narrow_again(tmp_path: Path) -> None:
    old, new = _users(tmp_path / "old", 0), _users(tmp_path / "new", 1)
    options: dict[str, Any] = {"table_dtype": "fp16", "max_dp": 0.1, "max_bias": 0.1, "dense": "tensorflow"}
    tfctr.convert(old, tmp_path / "bundle", **options)
    report = tfctr.refresh(tmp_path / "bundle", new, tmp_path / "fresh")
    anew = tfctr.convert(new, tmp_path / "anew", **options)
    assert report.manifest["precision"] == anew.manifest["precision"] == "fp32, tables fp16"
    files = [[(f["storage"], f["fingerprint"]) for f in r.manifest["store"]["files"]] for r in (report, anew)]
    assert files[0] == files[1]
    given = _request()
    found = [run_stock(tmp_path / name, {SERVING: given})[SERVING]["score"] for name in ("fresh", "anew")]
    np.testing.assert_array_equal(found[0], found[1])
    assert {g["signature"] for g in report.manifest["parity"]["gate"]} == {SERVING, f"{SERVING}__packed"}
    assert {e["storage"] for e in report.manifest["signatures"][SERVING]["lookups"]} == {"float16"}


def test_a_table_that_can_be_narrow_no_more_is_float32(tmp_path: Path) -> None:
    tfctr.convert(_users(tmp_path / "old", 0), tmp_path / "bundle", table_dtype="fp16", max_dp=0.1, max_bias=0.1,
                  dense="tensorflow")  # fmt: skip
    new = _users(tmp_path / "new", 1, scale=1e6)  # out of the range of fp16
    report = tfctr.refresh(tmp_path / "bundle", new, tmp_path / "fresh")
    storage = {f["shape"][0]: f.get("storage") for f in report.manifest["store"]["files"]}
    assert storage == {600: "float16", 700: None}
    (narrow,) = [p for p in report.manifest["passes"] if p["name"] == "compress_tables"]
    assert any("can't be stored as float16" in r["reason"] for r in narrow["refused"])
    given = _request()
    want = run_stock(new, {SERVING: given})[SERVING]["score"]
    np.testing.assert_allclose(run_stock(tmp_path / "fresh", {SERVING: given})[SERVING]["score"], want, atol=0.1)


@pytest.mark.parametrize("provider", ["openvino", "tensorrt"])
def test_the_engine_is_made_again_as_it_was_chosen(tmp_path: Path, monkeypatch: Any, provider: str) -> None:
    from export.dense_pass import DenseOptions
    from tfctr.engines import providers

    if providers.why_not("openvino"):  # tensorrt's fallback too
        pytest.skip(providers.why_not("openvino"))
    if provider == "tensorrt":
        pytest.importorskip("tensorrt_rtx")
    old, new = small.save(tmp_path / "old"), small.save(tmp_path / "new", seed=1)
    targets = ("sm89",) if provider == "tensorrt" else ()
    dense = DenseOptions(dense=provider, targets=targets, cache_dir="off")
    before = tfctr.convert(old, tmp_path / "bundle", dense=dense).manifest["signatures"][SERVING]["dense"]
    assert before["form"] == f"{SERVING}__dense"

    def measured(*_: Any, **__: Any) -> None:
        raise AssertionError("a refresh measures nothing")

    monkeypatch.setattr("export.dense.openvino.tune", measured)
    report = tfctr.refresh(tmp_path / "bundle", new, tmp_path / "fresh", cache_dir="off")
    after = report.manifest["signatures"][SERVING]["dense"]
    kept = ("provider", "precision", "form", "packed", "fallback", "clamp", "targets", "buckets", "threads", "reason")
    for key in kept:
        assert after[key] == before[key], key
    assert [f["role"] for f in after["files"]] == [f["role"] for f in before["files"]]
    assert after["key"]["tower"] != before["key"]["tower"]
    files = [report.manifest["store"]["files"][f["index"]]["fingerprint"] for f in after["files"]]
    assert len(set(files)) == len(files)
    given = small.inputs()
    want = run_stock(new, {SERVING: given})[SERVING]["score"]
    with tfctr.ServingSession(tmp_path / "fresh") as session:
        np.testing.assert_allclose(session.predict(given)["score"], want, rtol=1e-5, atol=1e-5)
    # the plain forms are there as ever, to the bit
    np.testing.assert_array_equal(run_stock(tmp_path / "fresh", {SERVING: given})[SERVING]["score"], want)


def test_a_tower_that_stayed_on_tensorflow_stays(base: tuple[Path, Path]) -> None:
    """Nothing is exported for it."""
    from export.dense.options import DenseOptions
    from export.dense.reuse import entries_of, reused
    from tfctr.bundle.reader import read_manifest

    manifest = read_manifest(base[1])
    entry: dict[str, Any] = dict.fromkeys(("targets", "islands", "buckets"), ())
    entry |= {"provider": "tensorflow", "precision": "fp32", "reason": "TensorFlow was faster", "clamp": None}
    manifest["signatures"][SERVING]["dense"] = entry
    options = DenseOptions(reuse=entries_of(manifest))
    assert reused(options, SERVING).dense == "tensorflow"
    assert reused(options, "another") is options
    assert reused(dataclasses.replace(options, reuse=None), SERVING).dense == "auto"


def test_an_engine_that_does_not_run_here_is_told(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    """It can't be judged with the new weights: TensorFlow serves them, and the report has the reason of now."""
    from export.dense_pass import DenseOptions
    from tfctr.bundle.reader import read_manifest
    from tfctr.cli.main import main
    from tfctr.engines import providers

    if providers.why_not("openvino"):
        pytest.skip(providers.why_not("openvino"))
    old, new = small.save(tmp_path / "old"), small.save(tmp_path / "new", seed=1)
    report = tfctr.convert(old, tmp_path / "bundle", dense=DenseOptions(dense="openvino", cache_dir="off"))
    assert report.manifest["signatures"][SERVING]["dense"]["reason"] == "asked for"
    with monkeypatch.context() as patch:
        patch.setattr(providers, "why_not", lambda *_: "the package openvino is not installed")
        command = ["refresh", str(tmp_path / "bundle"), str(new), str(tmp_path / "fresh"), "--cache-dir", "off"]
        assert main(command) == 0
    after = read_manifest(tmp_path / "fresh")["signatures"][SERVING]["dense"]
    printed = " ".join(capfd.readouterr().out.split())
    assert f"dense tower ({SERVING}): stays on TensorFlow: {after['reason']}" in printed
    assert (after["form"], after["provider"]) == (None, "tensorflow")
    assert after["reason"] == (
        "openvino, which ran it before, does not run here, so new weights can't be judged: "
        "the package openvino is not installed"
    )
    want = run_stock(new, {SERVING: small.inputs()})[SERVING]["score"]
    with tfctr.ServingSession(tmp_path / "fresh") as session:
        np.testing.assert_array_equal(session.predict(small.inputs())["score"], want)


def test_a_wrong_graph_is_never_written(tmp_path: Path, base: tuple[Path, Path], monkeypatch: Any) -> None:
    """Whatever went wrong before: the final comparison has the last word."""
    from graph_opt.renewal import rebuild as module

    real = module.fill

    def wrong(node: Any, value: Any) -> None:
        real(node, value * 1.01 if node.name.endswith("kernel") and wrong.calls else value)  # type: ignore[attr-defined]
        wrong.calls += node.name.endswith("kernel")  # type: ignore[attr-defined]

    wrong.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "fill", wrong)
    with pytest.raises(OutputsDifferError, match="signature 'serving_default', output 'score'.*nothing was written"):
        tfctr.refresh(base[1], small.save(tmp_path / "new", seed=1), tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new"]
