"""Columns of the examples: bags, AUC, and the planted truth of the generator."""

from __future__ import annotations

import numpy as np
import pytest

from examples import click_data
from examples.schema import Bag, Feature, take


def test_bag_takes_rows_in_any_order() -> None:
    bag = Bag.of([[1, 2], [], [3], [4, 5, 6]], np.int64, [[0.1, 0.2], [], [0.3], [0.4, 0.5, 0.6]])
    taken = bag.take(np.array([3, 1, 0, 3]))
    assert taken.values.tolist() == [4, 5, 6, 1, 2, 4, 5, 6]
    assert taken.splits.tolist() == [0, 3, 3, 5, 8]
    assert taken.weights is not None
    np.testing.assert_allclose(taken.weights, [0.4, 0.5, 0.6, 0.1, 0.2, 0.4, 0.5, 0.6], rtol=1e-6)


def test_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="feature 'x': kind 'onehot' is not one of id, hashed"):
        Feature("x", "onehot", 3)


def test_generated_data_is_reproducible_and_learnable() -> None:
    first, again = click_data.generate(2000), click_data.generate(2000)
    np.testing.assert_array_equal(first.train_labels, again.train_labels)
    assert first.best_auc is not None
    assert first.best_auc > 0.8
    assert len(first.features) >= 24
    assert {f.kind for f in first.features} >= {"id", "hashed", "vocabulary", "bag", "weighted_bag", "sequence"}
    assert set(first.train) == {f.name for f in first.features}
    for f in first.features:
        if f.kind in ("id", "sequence", "bag", "weighted_bag"):
            column = first.test[f.name]
            values = column.values if isinstance(column, Bag) else np.asarray(column)
            assert 0 <= values.min() <= values.max() < f.rows, f.name
    assert len(take(first.test, np.array([0]))["user_tags"]) == 1
