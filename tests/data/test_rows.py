"""Choosing rows gives the same request as building it from those rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tfctr.data import count_rows, take_rows

INFO = {
    "inputs": [],
    "features": [
        {"name": "user", "kind": "dense", "parts": {"values": "user"}},
        {"name": "tags", "kind": "ragged", "parts": {"values": "tags", "row_splits": "tags_1"}},
        {"name": "cats", "kind": "sparse", "parts": {"values": "c", "indices": "c_1", "dense_shape": "c_2"}},
    ],
}


def request(lists: list[list[int]]) -> dict[str, np.ndarray]:
    lengths = [len(row) for row in lists]
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    flat = np.array([v for row in lists for v in row], np.int64)
    rows = np.repeat(np.arange(len(lists)), lengths)
    columns = np.array([j for row in lists for j in range(len(row))], np.int64)
    return {
        "user": np.array([sum(row) for row in lists], np.float32),
        "tags": flat,
        "tags_1": splits,
        "c": flat,
        "c_1": np.stack([rows, columns], axis=1).astype(np.int64),
        "c_2": np.array([len(lists), 9], np.int64),
    }


@given(st.lists(st.lists(st.integers(-5, 5), max_size=4), min_size=1, max_size=6), st.data())
def test_taking_rows_equals_building_them(lists: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    taken = take_rows(request(lists), INFO, np.array(chosen, np.int64))
    expected = request([lists[i] for i in chosen])
    assert taken.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(taken[name].reshape(value.shape), value, err_msg=name)


def test_count_rows_reads_the_first_batched_feature() -> None:
    assert count_rows(request([[1], [], [2, 3]]), INFO) == 3
    assert count_rows({}, INFO) == 0


def test_values_that_go_with_others_follow_them() -> None:
    entries = [{"name": n, "domain": {"kind": "weights", "like": "r"} if n == "w" else {}} for n in ("r", "r_1", "w")]
    features = [
        {"name": "r", "kind": "ragged", "parts": {"values": "r", "row_splits": "r_1"}},
        {"name": "w", "kind": "dense", "parts": {"values": "w"}},
    ]
    info = {"inputs": entries, "features": features}
    arrays = {"r": np.array([7, 8, 9]), "r_1": np.array([0, 2, 3]), "w": np.array([0.1, 0.2, 0.3])}
    taken = take_rows(arrays, info, np.array([1, 0]))
    assert taken["r"].tolist() == [9, 7, 8]
    assert taken["w"].tolist() == [0.3, 0.1, 0.2]
    assert count_rows(arrays, info) == 2
