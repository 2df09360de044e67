"""predict, verify and bench with user rows once, on a converted reference model."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import tfctr
from examples.models import REFERENCE_MODELS, USER_FEATURES, repeat_users, requests
from tfctr.cli.main import main

NAME = "wide_and_deep"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """model/, and bundle/ converted with its user features."""
    folder = tmp_path_factory.mktemp("users")
    REFERENCE_MODELS[NAME](vocabulary=200, width=4).save(str(folder / "model"))
    tfctr.convert(folder / "model", folder / "bundle", user_features=USER_FEATURES[NAME])
    return folder


def output(capfd: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    capfd.readouterr()
    assert main(list(argv)) == code
    return capfd.readouterr().out


def scores(text: str) -> np.ndarray:
    return np.array([json.loads(line)["click"] for line in text.splitlines()]).reshape(-1)


@pytest.fixture(scope="module")
def request_(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return requests(NAME, rows=6, users=1, vocabulary=200)


@pytest.fixture(scope="module")
def wanted(folder: pathlib.Path, request_: dict[str, np.ndarray]) -> np.ndarray:
    whole = repeat_users(REFERENCE_MODELS[NAME].features, request_, np.zeros(6, np.int64))
    with tfctr.ServingSession(folder / "bundle") as session:
        return np.asarray(session.predict(whole)["click"]).reshape(-1)


def test_predict_takes_one_user_row_beside_candidates(folder, request_, wanted, capfd) -> None:
    np.savez(folder / "one.npz", **request_)
    text = output(capfd, "predict", str(folder / "bundle"), "--inputs", str(folder / "one.npz"))
    np.testing.assert_allclose(scores(text), wanted, atol=1e-5)
    np.savez(folder / "two.npz", **requests(NAME, rows=6, users=2, vocabulary=200), row_to_user=[0, 1, 1, 0, 1, 0])
    assert len(scores(output(capfd, "predict", str(folder / "bundle"), "--inputs", str(folder / "two.npz")))) == 6


def test_predict_on_a_plain_model_names_the_user_features(folder, request_, wanted, capfd) -> None:
    np.savez(folder / "one.npz", **request_)
    arguments = ["predict", str(folder / "model"), "--inputs", str(folder / "one.npz")]
    output(capfd, *arguments, code=2)
    text = output(capfd, *arguments, "--user-features", ",".join(USER_FEATURES[NAME]))
    np.testing.assert_allclose(scores(text), wanted, atol=1e-5)
    assert main([*arguments, "--user-features", "nobody"]) == 2
    assert "no feature or input 'nobody'" in capfd.readouterr().err


def rows_of(name: str, request_: dict[str, np.ndarray], row: int) -> Any:
    if f"{name}_indices" not in request_:
        return request_[name][row].tolist()
    return request_[f"{name}_values"][request_[f"{name}_indices"][:, 0] == row].tolist()


def test_predict_takes_requests_line_by_line(folder, request_, wanted, capfd) -> None:
    users = set(USER_FEATURES[NAME])
    items = [f.name for f in REFERENCE_MODELS[NAME].features if not f.user]
    line = {
        "request_id": "r1",
        "user": {name: rows_of(name, request_, 0) for name in users},
        "candidates": [{name: rows_of(name, request_, row) for name in items} for row in range(6)],
    }
    file = folder / "requests.jsonl"
    file.write_text(json.dumps(line) + "\n" + json.dumps(line | {"request_id": "r2"}) + "\n")
    for model in ("bundle", "model"):
        text = output(capfd, "predict", str(folder / model), "--inputs", str(file))
        np.testing.assert_allclose(scores(text), np.tile(wanted, 2), atol=1e-5)
        assert [json.loads(row)["request_id"] for row in text.splitlines()] == ["r1"] * 6 + ["r2"] * 6


def test_verify_checks_the_split_form_too(folder, request_, capfd) -> None:
    np.savez(folder / "one.npz", **request_)
    for inputs in ([], ["--inputs", str(folder / "one.npz")]):
        told = json.loads(output(capfd, "verify", str(folder / "model"), str(folder / "bundle"), "--json", *inputs))
        assert told["equal"]
        assert {entry["form"] for entry in told["outputs"]} == {"rows", "user rows once"}
    assert "user rows once" in output(capfd, "verify", str(folder / "model"), str(folder / "bundle"))


def test_bench_gives_the_stock_side_repeated_rows(folder, request_, capfd) -> None:
    arguments = ["bench", str(folder / "bundle"), "--baseline", str(folder / "model"), "--batch", "8", "--rounds", "5"]
    (figure,) = json.loads(output(capfd, *arguments, "--user-rows", "1", "--json"))["batches"]
    assert set(figure["timings"]) >= {"tfctr", "stock Session", "tfctr, user rows repeated"}
    assert figure["user_route"] == "split form"
    assert figure["speedup_over_repeated"]["median"] > 0
    assert "get the user rows repeated" in output(capfd, *arguments, "--user-rows", "2")
    np.savez(folder / "one.npz", **request_)
    output(capfd, *arguments, "--user-rows", "1", "--inputs", str(folder / "one.npz"))


def test_bench_user_rows_that_make_no_sense(folder, capfd) -> None:
    arguments = ["bench", str(folder / "model"), "--baseline", str(folder / "model"), "--batch", "8", "--rounds", "5"]
    assert main([*arguments, "--user-rows", "1"]) == 2
    assert "declares no user features; name them with --user-features" in capfd.readouterr().err
    arguments[1] = str(folder / "bundle")
    assert main([*arguments, "--user-rows", "9"]) == 2
    assert "--user-rows 9: more than the 8 rows of a batch" in capfd.readouterr().err
