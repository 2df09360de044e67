"""``tfctr bisect`` over forms with an engine: two signatures that share a tower, each with a split form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tfctr
from export.dense_pass import DenseOptions
from graph_opt.bisect import Findings, speed
from tests.export.dense import rankers
from tests.export.dense.test_narrow_tables import LARGER, wrong_engine


@pytest.fixture(scope="module")
def one_signature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables that can be smaller: no signature beside reads them."""
    return rankers.save(tmp_path_factory.mktemp("one") / "model", larger=LARGER)


def engines(cache_dir: Path) -> DenseOptions:
    return DenseOptions(dense="openvino", cache_dir=cache_dir, buckets=(8,))


@pytest.mark.parametrize(("users", "form"), [(4, "split dense"), (24, "dense")])
@pytest.mark.parametrize("signature", ["serving_default", "same"])
def test_speed_of_the_form_that_serves(
    ranker: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, signature: str, users: int, form: str
) -> None:
    timed: list[str] = []
    chosen = speed._Timing._form

    def noted(self: speed._Timing, item: object) -> str:
        timed.append(chosen(self, item))
        return timed[-1]

    monkeypatch.setattr(speed._Timing, "_form", noted)
    inputs = {**rankers.request(24), "user": np.arange(24) % users}
    found = tfctr.bisect(
        ranker,
        inputs,
        signature=signature,
        what="speed",
        rounds=12,
        dense=engines(cache_dir),
        user_features=("user",),
    )
    steps = {step.name: step for step in found.steps}
    assert found.what == "speed" and found.signature == signature
    assert steps["dense_engine"].fired == 2  # the plain form and the split one
    for name in ("dense_engine", "pack_inputs"):
        step = steps[name]
        assert step.ratio is not None and step.median_ms > 0 and step.low <= step.ratio <= step.high
    plain = "split" if form.startswith("split") else "plain"
    order = [one for one in dict.fromkeys(timed) if one.startswith(plain) or one.startswith(form)]
    assert order == [plain, form, f"{form} packed"]


def test_an_engine_that_differs_is_named(ranker: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_engine(monkeypatch, 3e-3)
    given = {"dense": engines(cache_dir), "user_features": ("user",)}
    found = tfctr.bisect(ranker, rankers.request(6), signature="same", **given)
    assert found.culprit == "dense_engine" and found.difference is not None
    assert found.difference.form in ("dense", "split dense") and len(found.rewrites) == 1


def test_smaller_tables_hide_no_engine(
    one_signature: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off by less than the gate of the tables allows: found, because the form is held against the one without it."""

    def bisect(out: Path | None = None) -> Findings:
        return tfctr.bisect(
            one_signature,
            rankers.request(6),
            out=out,
            dense=engines(cache_dir),
            table_dtype="int8",
            user_features=("user",),
        )

    right = bisect()
    steps = {step.name: step for step in right.steps}
    assert not right.found and steps["compress_tables"].fired == 2 and steps["dense_engine"].fired == 2
    wrong_engine(monkeypatch, 1e-3)
    found = bisect(tmp_path / "repro")
    assert found.culprit == "dense_engine" and found.difference is not None
    base = found.difference.form.removesuffix("dense").strip() or "plain"
    assert found.difference.reason.endswith(f"against the {base} form")
    told = subprocess.run(
        [sys.executable, str(tmp_path / "repro" / "run.py")], capture_output=True, text=True, check=False
    )
    assert told.returncode == 3, told.stderr[-1000:]
