"""Towers of split forms: both sides of the boundary, our joins as stock operations."""

import numpy as np
import pytest

from examples.models import REFERENCE_MODELS, USER_FEATURES, requests
from export.attempt import attempt_export
from graph_opt import pipeline
from graph_opt.options import ConvertOptions
from graph_opt.saved_model import load_inlined
from graph_opt.testing import SIGNATURE
from tests.export.wholes import assert_of_the_model, cut_and_compare, inputs_of
from tests.graph_opt.split.helpers import form_of, split
from tests.graph_opt.split.test_rules import CASES, ITEM, USER, item_of

# Each join: sums, segments along an inner axis, several entries per row, gathers; sizes of either side.
JOINS = (
    "dense layer", "wide and deep", "factorisation machine", "flattened with the item's shape", "dense per field",
    "einsum over fields", "attention over a history", "cross layers", "zeros of the user's shape",
    "user's part is an output",
)  # fmt: skip
TO_USER = np.array([2, 0, 1, 1, 0, 2, 0])


def request(row_to_user: str) -> dict[str, np.ndarray]:
    return {**{name: value[:3] for name, value in USER.items()}, **ITEM, row_to_user: TO_USER}


@pytest.mark.parametrize("name", JOINS)
def test_rules(name, tmp_path):
    check(name, "/CPU:0", tmp_path)


@pytest.mark.parametrize("name", ["dense layer", "attention over a history"])
def test_stock_joins(name, tmp_path):
    """What a split writes for a GPU, which has no kernels of our ops."""
    check(name, "/GPU:0", tmp_path)


def check(name, device, tmp_path):
    after, _ = split(item_of(CASES[name][0], tmp_path), *USER, device_map={"dense": device})
    form = form_of(after)
    tower = cut_and_compare(after, request(form.row_to_user), signature=form.signature)
    sides = {key: side for key, (_, _, side) in inputs_of(tower).items()}
    for key, side in sides.items():
        expected = "row_to_user" if key == form.row_to_user else "user" if key in USER else "dense"
        assert side == expected, (key, side)
    if device == "/CPU:0":
        attempt = attempt_export(after, form.signature)
        assert attempt.reason == "" and attempt.verdict.max_difference < 1e-4, attempt.reason


def test_both_forms_are_cut(tmp_path):
    """The plain form of the same item has one side."""
    after, _ = split(item_of(CASES["dense layer"][0], tmp_path), *USER)
    plain = cut_and_compare(after, {**USER, **ITEM}, signature=SIGNATURE)
    assert {side for _, _, side in inputs_of(plain).values()} == {"dense"}
    assert not any(key.startswith("row_to_user") for key in inputs_of(plain))


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_reference_models(name, tmp_path):
    """Both forms of each convert and match; the towers are the model's own."""
    REFERENCE_MODELS[name]().save(str(tmp_path / "model"))
    item = load_inlined(tmp_path / "model")
    item.work_dir, item.store_name = tmp_path / "store", "tfctr_test"
    item.work_dir.mkdir()
    passes = [one for one in pipeline.DEFAULT_PASSES if one.name != "pack_inputs"]
    pipeline.run_passes(item, passes, ConvertOptions(user_features=USER_FEATURES[name]))
    plain = requests(name, rows=12, seed=3)
    once = requests(name, rows=12, seed=3, users=3)
    form = item.split[SIGNATURE]
    once[form.row_to_user] = np.arange(12) % 3
    for signature, given in ((SIGNATURE, plain), (form.signature, once)):
        attempt = attempt_export(item, signature, required=True)
        assert attempt.verdict.max_difference <= 1e-5 and attempt.left_outside == ()
        assert_of_the_model(item, attempt.tower, given)
        outputs = [one.name for one in attempt.tower.outputs]
        assert outputs == (["click", "conversion"] if name == "mmoe" else ["click"])
        sides = {one.side for one in attempt.tower.inputs}
        assert ("user" in sides and "row_to_user" in sides) == (signature != SIGNATURE)
