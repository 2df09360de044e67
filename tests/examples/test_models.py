"""The reference models: what they return, and that the baseline's requests fit it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tfctr
from benchmarks.models import MAX_IDS, baseline_inputs, ids_and_offsets, save_baseline, zipf_ids
from examples.models import REFERENCE_MODELS, USER_FEATURES, repeat_users, requests


def test_baseline_serves_its_inputs(tmp_path: Path) -> None:
    from tests.models.base import run_stock

    save_baseline(3, str(tmp_path / "m"), vocabulary=500)
    request = baseline_inputs(3, 40, vocabulary=500)
    score = run_stock(tmp_path / "m", {"serving_default": request})["serving_default"]["score"]
    assert score.shape == (40, 1)
    assert np.std(score) > 0.05


def test_ids_and_offsets_hold_the_same_ids() -> None:
    request = baseline_inputs(2, 5, seed=3)
    ids, offsets = ids_and_offsets(2, 5, seed=3)
    assert len(offsets) == 2 * 5 + 1
    assert offsets[-1] == len(ids)
    lengths = np.diff(offsets)
    assert lengths.min() >= 1
    assert lengths.max() <= MAX_IDS
    np.testing.assert_array_equal(ids[offsets[5] :], request["f1_values"])
    np.testing.assert_array_equal(lengths[5:], np.bincount(request["f1_indices"][:, 0], minlength=5))


def test_zipf_ids_repeat_and_stay_in_the_table() -> None:
    ids = zipf_ids(np.random.default_rng(0), 20_000)
    assert 0 <= ids.min() <= ids.max() < 100_000
    assert 0.2 < len(np.unique(ids)) / len(ids) < 0.6
    assert len(np.unique(np.arange(100_000) * 7919 % 100_000)) == 100_000  # scattering maps no two ranks to one row


def test_deepfm_is_a_probability_and_sees_its_second_order_term() -> None:
    import keras

    from examples.models import deepfm

    keras.utils.set_random_seed(0)
    model = deepfm({"user": 50, "item": 70, "city": 10}, dense=2, width=4, hidden=(8,))
    rng = np.random.default_rng(0)
    request = {
        name: rng.integers(0, rows, 20).astype("int32") for name, rows in (("user", 50), ("item", 70), ("city", 10))
    }
    request["dense"] = rng.normal(size=(20, 2)).astype("float32")
    for weight in model.weights:
        weight.assign(rng.normal(0, 0.5, weight.shape))
    tables = {name: np.asarray(model.get_layer(f"embedding_{name}").embeddings) for name in ("user", "item", "city")}
    rows = {name: table[request[name]] for name, table in tables.items()}
    pairs = sum((rows[a] * rows[b]).sum(1) for a, b in (("user", "item"), ("user", "city"), ("item", "city")))
    first = sum(np.asarray(model.get_layer(f"linear_{name}").embeddings)[request[name], 0] for name in rows)
    first = first + request["dense"] @ np.asarray(model.get_layer("linear_dense").kernel)[:, 0]
    hidden = np.concatenate([*rows.values(), request["dense"]], 1)
    for name in ("hidden0", "deep"):
        layer = model.get_layer(name)
        hidden = hidden @ np.asarray(layer.kernel) + np.asarray(layer.bias)
        hidden = np.maximum(hidden, 0) if name == "hidden0" else hidden
    want = 1 / (1 + np.exp(-(first + pairs + hidden[:, 0])))
    assert np.asarray(model(request)["click"])[:, 0] == pytest.approx(want, rel=1e-4, abs=1e-5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The five reference models, small, as SavedModels."""
    folder = tmp_path_factory.mktemp("reference")
    for name, make in REFERENCE_MODELS.items():
        make(vocabulary=300, width=4, hidden=(16, 8)).save(str(folder / name))
    return {name: folder / name for name in REFERENCE_MODELS}


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_every_lookup_of_a_reference_model_is_fused(saved: dict[str, Path], name: str, tmp_path: Path) -> None:
    report = tfctr.convert(saved[name], tmp_path / "bundle", strict=True)
    info = report.manifest["signatures"]["serving_default"]
    assert [e["reason"] for e in info["lookups"] if e["status"] != "fused"] == []
    assert {f["name"] for f in info["features"]} == {f.name for f in REFERENCE_MODELS[name].features}
    with tfctr.ServingSession(saved[name]) as stock, tfctr.ServingSession(tmp_path / "bundle") as bundle:
        request = requests(name, 60, seed=5, vocabulary=300)
        want, got = stock.predict(request), bundle.predict(request)
    assert set(want) == ({"click", "conversion"} if name == "mmoe" else {"click"})
    for output, value in want.items():
        assert value.shape == (60, 1)
        assert np.std(value) > 0.05, output
        np.testing.assert_allclose(got[output], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_seeds_make_the_weights(name: str) -> None:
    def weights(seed: int) -> list[np.ndarray]:
        return [v.numpy() for v in REFERENCE_MODELS[name](vocabulary=50, width=2, hidden=(4, 3), seed=seed).variables]

    first, same, other = weights(1), weights(1), weights(2)
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_requests_give_users_and_items_their_own_rows(name: str) -> None:
    features = REFERENCE_MODELS[name].features
    request = requests(name, 7, seed=2, users=3)
    assert set(request) == set(REFERENCE_MODELS[name]().specs())
    assert set(USER_FEATURES[name]) == {f.name for f in features if f.user}
    for feature in features:
        rows = 3 if feature.user else 7
        if feature.kind == "tags":
            assert request[f"{feature.name}_shape"][0] == rows
            assert request[f"{feature.name}_indices"][-1, 0] == rows - 1
        else:
            assert len(request[feature.name]) == rows
    row_to_user = np.array([2, 0, 0, 1, 2, 2, 0])
    repeated = repeat_users(features, request, row_to_user)
    for feature in features:
        if not feature.user or feature.kind != "tags":
            places = row_to_user if feature.user else np.arange(7)
            np.testing.assert_array_equal(repeated[feature.name], request[feature.name][places])
    if "user_tags" in USER_FEATURES[name]:

        def tags(of: dict[str, np.ndarray]) -> list[list[int]]:
            indices, values = of["user_tags_indices"], of["user_tags_values"]
            return [values[indices[:, 0] == row].tolist() for row in range(of["user_tags_shape"][0])]

        assert tags(repeated) == [tags(request)[user] for user in row_to_user]
    again = requests(name, 7, seed=2, users=3)
    assert all(np.array_equal(again[key], value) for key, value in request.items())
