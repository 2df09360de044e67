"""Labels and request ids of an input file: never fed to the model; AUC is told, ids come back."""

import json
import pathlib

import numpy as np
import pytest

from tests.models.zoo import build
from tfctr.cli.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return build("a_safe_sparse_one", tmp_path_factory.mktemp("zoo")).path


def test_labels_and_request_ids(model: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    inputs = dict(np.load(model / "inputs.npz", allow_pickle=True))
    (score,) = np.load(model / "outputs.npz", allow_pickle=True).values()
    clicks = (score.reshape(-1) > np.median(score)).astype(np.int64)
    ids = np.array([f"r{k}" for k in range(len(clicks))])
    file, out, bundle = str(tmp_path / "in.npz"), str(tmp_path / "out.npz"), str(tmp_path / "bundle")
    np.savez(file, click=clicks, request_id=ids, **inputs)
    labelled = ["--inputs", file, "--label", "click=score"]

    assert main(["predict", str(model), *labelled, "--output", out]) == 0
    assert "score against" in (told := capfd.readouterr().err) and "AUC 1.0000" in told
    assert [str(v) for v in np.load(out, allow_pickle=True)["request_id"]] == ids.tolist()

    assert main(["convert", str(model), bundle, "--samples", file, "--label", "click"]) == 0
    assert "of disk" in capfd.readouterr().err  # stated before copying
    assert main(["verify", str(model), bundle, *labelled, "--json"]) == 0
    (entry,) = json.loads(capfd.readouterr().out)["auc"]
    assert entry["original"] == entry["converted"] == 1.0

    for wrong, word in (("click=nothing", "'nothing'"), ("=score", "NAME=OUTPUT"), ("label", "click")):
        assert main(["predict", str(model), "--inputs", file, "--label", wrong]) == 2
        assert word in capfd.readouterr().err.strip().splitlines()[-1]


def test_inspect_names_features_not_parts(model: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    """TF2 saves the SparseTensor ``f0`` as ``f0``, ``f0_1``, ``f0_2``; the lookup over it goes by ``f0``."""
    assert main(["inspect", str(model), "--json"]) == 0
    (entry,) = json.loads(capfd.readouterr().out)["signatures"]["serving_default"]["lookups"]
    assert (entry["feature"], entry["name"]) == ("f0", "f0")
