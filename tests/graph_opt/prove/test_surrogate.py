"""Values of surrogate tables."""

import numpy as np
import pytest

from graph_opt.prove.surrogate import PartOf, row_values, scale_for_max_norm


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_rows_are_distinct_and_never_zero(dtype):
    values = row_values(np.arange(200), 8, dtype, seed=3).astype(np.float64)
    assert len({tuple(row) for row in values}) == 200
    assert (values != 0).all()
    assert (values < 0).any()
    assert np.abs(values).max() <= 2


def test_values_depend_on_table_row_and_column_only():
    rows = np.asarray([5, 10**9, 7])
    a, b = row_values(rows, 4, "float32", 1), row_values(rows[::-1], 4, "float32", 1)[::-1]
    np.testing.assert_array_equal(a, b)
    assert (a != row_values(rows, 4, "float32", 2)).any()


def test_norms_lie_on_both_sides_of_max_norm():
    norms = np.linalg.norm(row_values(np.arange(200), 16, "float32", 1, scale_for_max_norm(3.0, 16)), axis=1)
    assert 0.2 < (norms > 3.0).mean() < 0.8


def test_parts_take_their_rows_of_the_whole():
    rows = np.arange(20)
    assert PartOf(0, 1, 3).local(rows, 7).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert PartOf(0, 10, 1).local(rows, 5).tolist() == [0, 1, 2, 3, 4]
