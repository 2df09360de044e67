"""Finding the users of a request, and taking rows of some features only."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tfctr.bundle.rows import find_users, rows_of, take_rows
from tfctr.bundle.sample_inputs import generate

FEATURES = [
    {"name": "d", "kind": "dense", "parts": {"values": "d"}},
    {"name": "i", "kind": "dense", "parts": {"values": "i"}},
    {"name": "r", "kind": "ragged", "parts": {"values": "r", "row_splits": "r_1", "row_splits_1": "r_2"}},
    {"name": "s", "kind": "sparse", "parts": {"values": "s", "indices": "s_1", "dense_shape": "s_2"}},
    {"name": "t", "kind": "dense", "parts": {"values": "t"}},
    {"name": "w", "kind": "dense", "parts": {"values": "w"}},
]


def entry(name: str, dtype: str, *shape: int, **domain: Any) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape), "tensor": f"{name}:0", "domain": domain}


INFO: dict[str, Any] = {
    "inputs": [
        entry("d", "float32", -1, 2),
        entry("i", "int64", -1),
        entry("r", "int64", -1),
        entry("r_1", "int64", -1),
        entry("r_2", "int64", -1),
        entry("s", "int64", -1),
        entry("s_1", "int64", -1, 2),
        entry("s_2", "int64", 2),
        entry("t", "string", -1),
        entry("w", "float32", -1, kind="weights", like="s"),
    ],
    "features": FEATURES,
    "user": {
        "features": ["d", "r", "s", "t", "w"],
        "inputs": ["d", "r", "r_1", "r_2", "s", "s_1", "s_2", "t", "w"],
    },
}
USERS = INFO["user"]["inputs"]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(0, 4), max_size=8), st.integers(0, 9))
def test_users_are_found_again_in_repeated_rows(users: int, extra: list[int], seed: int) -> None:
    row_to_user = np.random.default_rng(seed).permutation([*range(users), *(k % users for k in extra)])
    once = generate(INFO, len(row_to_user), seed, users)
    assert rows_of(once, INFO, USERS) == users
    assert rows_of(once, INFO, ["i"]) == len(once["i"]) == len(row_to_user)
    assert len(once["w"]) == len(once["s"])
    whole = take_rows(once, INFO, row_to_user, USERS)
    assert rows_of(whole, INFO, USERS) == len(row_to_user)
    assert whole["i"] is once["i"]
    firsts, found = find_users(whole, INFO, USERS)
    # Two users may be alike by chance; equal rows belong together in any case.
    assert len(firsts) <= users
    assert (np.diff(firsts) > 0).all()
    again = take_rows(take_rows(whole, INFO, firsts, USERS), INFO, found, USERS)
    for name, value in whole.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_rows_that_differ_in_one_place_are_two_users() -> None:
    once = generate(INFO, 2, 3, 1)
    whole = take_rows(once, INFO, np.zeros(2, int), USERS)
    assert len(find_users(whole, INFO, USERS)[0]) == 1
    for name in ("d", "r", "s", "t"):
        other = {key: np.array(value) for key, value in whole.items()}
        other[name][-1] = other[name][-1] + (b"x" if name == "t" else 1)
        assert find_users(other, INFO, USERS)[1].tolist() == [0, 1], name


def test_no_rows() -> None:
    empty = generate(INFO, 0)
    firsts, found = find_users(empty, INFO, USERS)
    assert len(firsts) == len(found) == 0
