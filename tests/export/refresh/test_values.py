"""A refreshed bundle gives what the new model gives, to the bit, and what a fresh conversion of it gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfctr
from tests.export.refresh import small
from tests.export.refresh.retrained import retrain
from tests.models.base import SERVING, run_stock
from tests.models.fixtures import Zoo
from tfctr.errors import ConvertAnewError, UsageError

# Each with what it is there for.
MODELS = (
    "a_safe_sparse_defid_w",  # weights, default ids
    "a_sparse_v1_ref",  # reference variables
    "c_keras_onehot",
    "e_vocab_file",  # vocabularies in a file and inline, read outside lookups too
    "f_input_layer_v1",  # feature columns, built by another process
    "h_part_div_ref",  # partitioned variables
    "h_part_mod_res",
    "m_control_flow",  # a table inside a branch and a loop
    "m_mutable_table",  # state that stays
    "m_tied_softmax",  # a table that is a weight too
    "n_plain_mlp",
    "o_two_signatures",
    "p_bfloat16_tables",
)


def _another(zoo: Zoo, name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """(the zoo's model with other weights, one batch per signature)."""
    from tests.models.zoo import MODELS as BUILDERS

    built = zoo(name)
    if BUILDERS[name].legacy:
        requests = {built.signature: built.inputs, **{k: v[0] for k, v in built.others.items()}}
        return retrain(built.path, folder), requests
    return folder, BUILDERS[name].save(str(folder), np.random.default_rng(99))


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_new_model(tmp_path: Path, zoo: Zoo, name: str) -> None:
    old = zoo(name)
    tfctr.convert(old.path, tmp_path / "bundle", dense="tensorflow")
    new, requests = _another(zoo, name, tmp_path / "new")
    report = tfctr.refresh(tmp_path / "bundle", new, tmp_path / "fresh")
    shutil.rmtree(tmp_path / "bundle")  # the new bundle needs nothing of the old one
    want = run_stock(new, requests)
    got = run_stock(tmp_path / "fresh", requests)
    for signature, outputs in want.items():
        for output, value in outputs.items():
            np.testing.assert_array_equal(got[signature][output], value)
    assert report.manifest["parity"]["ok"]
    before = run_stock(old.path, requests)[old.signature]
    assert any(not np.array_equal(before[k], v) for k, v in want[old.signature].items()), "nothing moved"
    _same_as_a_conversion(tmp_path, new)


def _same_as_a_conversion(folder: Path, new: Path) -> None:
    """Files of the store are those of a fresh conversion, byte for byte, and so is what the manifest says of them."""
    report = tfctr.convert(new, folder / "anew", dense="tensorflow")
    fresh = json.loads((folder / "fresh/assets.extra/tfctr_manifest.json").read_text())
    ours, theirs = fresh["store"]["files"], report.manifest["store"]["files"]
    assert len(ours) == len(theirs)
    prints = [sorted((f["kind"], tuple(f["shape"]), f["bytes"]) for f in files) for files in (ours, theirs)]
    assert prints[0] == prints[1]
    tables = [sorted(f["fingerprint"] for f in files if f["kind"] == "table") for files in (ours, theirs)]
    assert tables[0] == tables[1]
    assert set(fresh["signatures"]) == set(report.manifest["signatures"])
    for name, info in report.manifest["signatures"].items():
        assert fresh["signatures"][name].get("packed") == info.get("packed")
        assert [e["status"] for e in fresh["signatures"][name]["lookups"]] == [e["status"] for e in info["lookups"]]


def test_the_packed_form_and_a_second_refresh(tmp_path: Path, base: tuple[Path, Path]) -> None:
    new = [small.save(tmp_path / f"new{k}", seed=10 + k) for k in range(2)]
    first = tfctr.refresh(base[1], new[0], tmp_path / "first")
    second = tfctr.refresh(tmp_path / "first", new[1], tmp_path / "second")
    given = small.inputs()
    for model, bundle in ((new[0], "first"), (new[1], "second")):
        want = run_stock(model, {SERVING: given})[SERVING]["score"]
        with tfctr.ServingSession(tmp_path / bundle) as session:
            np.testing.assert_array_equal(session.predict(given)["score"], want)
        np.testing.assert_array_equal(run_stock(tmp_path / bundle, {SERVING: given})[SERVING]["score"], want)
    told = [r.manifest["refreshed"] for r in (first, second)]
    assert [t["generation"] for t in told] == [1, 2]
    assert told[1]["from"]["bundle_id"] == first.manifest["bundle_id"] != second.manifest["bundle_id"]
    assert told[0]["converted"] == told[1]["converted"]
    assert told[0]["structure"] == "the same export" and not told[0]["proven_again"]
    assert first.manifest["store"]["shared_name"] != second.manifest["store"]["shared_name"]
    reused = {p["name"]: p.get("reused", False) for p in second.manifest["passes"]}
    assert reused["fuse_lookups"] and not reused["pack_inputs"]


def test_other_keys_are_proven_again(tmp_path: Path, base: tuple[Path, Path]) -> None:
    new = small.save(tmp_path / "new", seed=4, keys=tuple(f"w{2 * k}" for k in range(12)))
    report = tfctr.refresh(base[1], new, tmp_path / "out")
    told = report.manifest["refreshed"]
    assert told["structure"].startswith("compared node by node") and told["changed"]["vocabularies"] == 1
    (line,) = told["proven_again"]
    assert line.startswith("lookup tag: vocabulary") and "probes" in line
    given = small.inputs()
    want = run_stock(new, {SERVING: given})[SERVING]["score"]
    np.testing.assert_array_equal(run_stock(tmp_path / "out", {SERVING: given})[SERVING]["score"], want)


@pytest.mark.parametrize("size", [9, 20])
def test_a_vocabulary_of_another_size(tmp_path: Path, base: tuple[Path, Path], size: int) -> None:
    """Keys that are in none get the numbers behind the last entry, which lookups have in their spec."""
    new = small.save(tmp_path / "new", seed=5, keys=tuple(f"w{k}" for k in range(size)))
    given = small.inputs()
    tfctr.refresh(base[1], new, tmp_path / "out")
    want = run_stock(new, {SERVING: given})[SERVING]["score"]
    with tfctr.ServingSession(tmp_path / "out") as session:
        np.testing.assert_array_equal(session.predict(given)["score"], want)
    # back again: the record of the new bundle has the new size
    tfctr.refresh(tmp_path / "out", small.save(tmp_path / "third", seed=6), tmp_path / "again")
    want = run_stock(tmp_path / "third", {SERVING: given})[SERVING]["score"]
    with tfctr.ServingSession(tmp_path / "again") as session:
        np.testing.assert_array_equal(session.predict(given)["score"], want)


def test_a_vocabulary_that_outgrows_its_table_is_refused_when_proven_again(
    tmp_path: Path, base: tuple[Path, Path]
) -> None:
    new = small.save(tmp_path / "new", seed=5, keys=tuple(f"w{k}" for k in range(29)))  # 29 keys, 4 buckets, 30 rows
    given = small.inputs()
    report = tfctr.refresh(base[1], new, tmp_path / "out")
    assert report.manifest["refreshed"]["proven_again"]
    want = run_stock(new, {SERVING: {**given, "tag": np.array([b"w1"] * len(given["tag"]), object)}})
    assert want[SERVING]["score"].shape == (small.BATCH, 1)


def test_a_number_that_a_rewrite_took_is_refused(tmp_path: Path, base: tuple[Path, Path]) -> None:
    """The offset is a variable, but the fused lookup has it as a number in its spec."""
    with pytest.raises(ConvertAnewError, match=r"lookup 'item'.*constant 'tfctr/constant/offset'.*does not hold"):
        tfctr.refresh(base[1], small.save(tmp_path / "new", seed=1, offset=4), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["kernel", "bias"])
def test_nan_weights_are_named(tmp_path: Path, base: tuple[Path, Path], name: str) -> None:
    with pytest.raises(UsageError, match=rf"weight '{name}' of the new model: .* NaN or infinite, the first at"):
        tfctr.refresh(base[1], small.save(tmp_path / "new", seed=1, nan=name), tmp_path / "out")
    assert not (tmp_path / "out").exists()
