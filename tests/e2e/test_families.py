"""Every family of models, from SavedModel to equal numbers: converted, served, and loaded by stock loaders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.e2e.families import FAMILIES
from tests.models.base import BuiltModel, run_stock
from tests.models.zoo import MODELS
from tfctr.data.output_files import flatten_outputs
from tfctr.profiling.compare import compare_outputs


def assert_equal(got: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    found = compare_outputs(flatten_outputs(got), expected)
    assert all(d.ok for d in found), [d for d in found if not d.ok]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_family(name: str, zoo_model: Any, tmp_path: Path) -> None:
    model: BuiltModel = zoo_model(name)
    report = tfctr.convert(str(model.path), str(tmp_path / "bundle"), strict=True).as_dict()
    lookups = [entry for signature in report["signatures"].values() for entry in signature["lookups"]]
    left = [entry for entry in lookups if entry["status"] != "fused"]
    expected = FAMILIES[name]
    assert len(lookups) - len(left) == expected.fused, lookups
    assert len(left) == len(expected.left), left
    for reason in expected.left:
        assert any(re.search(reason, entry["reason"]) for entry in left), (reason, left)
    requests = {model.signature: (model.inputs, model.outputs), **model.others}
    for signature, (inputs, outputs) in requests.items():
        with tfctr.ServingSession(str(tmp_path / "bundle"), signature=signature) as session:
            assert_equal(session.predict(inputs), outputs)
    stock = run_stock(tmp_path / "bundle", {signature: inputs for signature, (inputs, _) in requests.items()})
    for signature, (_, outputs) in requests.items():
        assert_equal(stock[signature], outputs)
    assert set(tf.saved_model.load(str(tmp_path / "bundle")).signatures) >= set(requests)
