"""The zoo itself: names, and that a saved model is read back as stock TensorFlow serves it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.base import ModelBuilder, assert_spread, run_stock
from tests.models.fixtures import Zoo


def test_names_are_folder_names_and_unique() -> None:
    from tests.models import zoo

    builders = [b for module in zoo._MODULES for b in module.BUILDERS]
    assert len({b.name for b in builders}) == len(builders)
    assert all(isinstance(b, ModelBuilder) and b.name.isidentifier() for b in builders)
    assert {b.name for b in builders if b.legacy} == set(__import__("tests.models.legacy", fromlist=["MODELS"]).MODELS)


@pytest.mark.parametrize("name", ["a_safe_sparse_composite", "e_vocab_file", "o_two_signatures"])
def test_outputs_are_what_the_saved_model_gives(zoo: Zoo, name: str) -> None:
    built = zoo(name)
    requests = {built.signature: built.inputs, **{k: v[0] for k, v in built.others.items()}}
    outputs = run_stock(built.path, requests)
    for key, value in built.outputs.items():
        np.testing.assert_array_equal(outputs[built.signature][key], value)
    assert set(outputs) == {built.signature, *built.others}


def test_constant_output_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"'m'.*'score' does not spread"):
        assert_spread("m", {"score": np.full((8, 1), 0.5, np.float32)})
