"""Deltas of models that hold their tables in other ways: parts, vocabularies, tables that are weights, frozen graphs,
state that serving writes, engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfctr
from tests.export.refresh.retrained import moved, retrain
from tests.models.base import run_stock
from tests.models.fixtures import Zoo
from tests.models.zoo import MODELS as BUILDERS
from tfctr.bundle.reader import open_bundle
from tfctr.errors import ConvertAnewError

MODELS = (
    "a_safe_sparse_defid_w",
    "c_keras_onehot",
    "e_vocab_file",  # vocabularies in files
    "h_part_div_ref",  # partitioned variables, merged
    "h_part_mod_res",
    "m_control_flow",  # a table inside a branch and a loop
    "m_mutable_table",  # state that stays
    "m_tied_softmax",  # a table that is a weight too
    "n_plain_mlp",  # no table at all
    "p_bfloat16_tables",
)
PARTITIONED = ("h_part_div_ref", "h_part_mod_res")  # retraining would save them whole


def _rows_only(name: str, value: np.ndarray) -> np.ndarray:
    """Some rows of what has many; dense weights as they are."""
    if value.dtype.kind != "f" or value.ndim != 2 or len(value) < 20:
        return value
    value = value.copy()
    value[::7] += np.asarray(0.5, value.dtype)
    return value


@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_tables_are_those_of_the_new_model(tmp_path: Path, zoo: Zoo, name: str) -> None:
    old = zoo(name)
    requests: dict[str, Any] = {old.signature: old.inputs, **{k: v[0] for k, v in old.others.items()}}
    tfctr.convert(old.path, tmp_path / "v0", dense="tensorflow")
    for number, change in ((1, _rows_only), (2, moved())):
        if name in PARTITIONED:
            new = tmp_path / f"new{number}"
            requests = BUILDERS[name].save(str(new), np.random.default_rng(90 + number))
        else:
            new = retrain(old.path if number == 1 else tmp_path / "new1", tmp_path / f"new{number}", change)
        version = tmp_path / f"v{number}"
        tfctr.make_delta(tmp_path / f"v{number - 1}", new, tmp_path / f"d{number}")
        tfctr.apply_delta(tmp_path / f"v{number - 1}", [tmp_path / f"d{number}"], version)
        want, got = run_stock(new, requests), run_stock(version, requests)
        for signature, outputs in want.items():
            for output, value in outputs.items():
                np.testing.assert_array_equal(got[signature][output], value)
    _same_tables(tmp_path / "v2", new, tmp_path / "anew")


def _same_tables(version: Path, new: Path, anew: Path) -> None:
    tfctr.convert(new, anew, dense="tensorflow")
    theirs = [e for e in open_bundle(anew).manifest["store"]["files"] if e["kind"] == "table"]
    ours = [e for e in open_bundle(version).manifest["store"]["files"] if e["kind"] == "table"]
    assert sorted(e["source"] for e in ours) == sorted(e["source"] for e in theirs)
    names = [e["name"] for e in ours]
    for entry in ours:
        if len(entry["shape"]) != 2 or names.count(entry["name"]) > 1 or entry["dtype"] != "float32":
            continue
        a, b = (tfctr.load_table(bundle, entry["name"]) for bundle in (version, anew))
        ids = np.arange(entry["shape"][0])
        np.testing.assert_array_equal(a.lookup(ids), b.lookup(ids))


def test_another_model_is_refused(tmp_path: Path, zoo: Zoo) -> None:
    tfctr.convert(zoo("a_safe_sparse_defid_w").path, tmp_path / "v0", dense="tensorflow")
    with pytest.raises(ConvertAnewError, match="the structure changed"):
        tfctr.make_delta(tmp_path / "v0", zoo("c_keras_onehot").path, tmp_path / "delta")
    assert not (tmp_path / "delta").exists()
