"""Files that give user features once per user: request lines in .jsonl, user rows in .npz."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.serving.split_bundle import FEATURES, INPUTS
from tfctr.data import read_inputs
from tfctr.errors import InputError

INFO: dict[str, Any] = {
    "inputs": [{"name": n, "dtype": dtype, "shape": shape} for n, (dtype, shape, _) in INPUTS.items()],
    "features": FEATURES,
    "user": {
        "features": [f["name"] for f in FEATURES if f["name"] != "item"],
        "inputs": [n for n in INPUTS if n != "item"],
    },
    "split": None,
}
USER: dict[str, Any] = {"age": [1.5, 2.0], "city": "Oslo", "hist": [3, 4], "mood": 2, "tags": [7]}
OTHER: dict[str, Any] = {"age": [0.5, 0.0], "city": "Bern", "hist": [], "mood": 1, "tags": [8, 9]}


def lines(tmp_path: pathlib.Path, *rows: Any) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return str(file)


def requests(*more: Any) -> list[dict[str, Any]]:
    return [
        {"user": USER, "candidates": [{"item": [1, 2, 3]}, {"item": [4, 5, 6]}], "request_id": "a"},
        {"user": USER, "candidates": [], "request_id": "none"},
        {"user": OTHER, "candidates": [{"item": [7, 8, 9]}], "request_id": "b"},
        *more,
    ]


def test_users_come_once_where_the_model_takes_them_so(tmp_path: pathlib.Path) -> None:
    read = read_inputs(lines(tmp_path, *requests()), INFO, once=True)
    assert read.inputs["row_to_user"].tolist() == [0, 0, 1]
    assert read.inputs["age"].tolist() == [[1.5, 2.0], [0.5, 0.0]]
    assert read.inputs["hist"].tolist() == [3, 4]
    assert read.inputs["hist_1"].tolist() == [0, 2, 2]
    assert read.inputs["tags/indices"].tolist() == [[0, 0], [1, 0], [1, 1]]
    assert read.inputs["tags/dense_shape"].tolist()[0] == 2
    assert read.inputs["item"].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert read.request_ids is not None
    assert read.request_ids.tolist() == ["a", "a", "b"]


def test_users_are_repeated_for_whoever_takes_rows(tmp_path: pathlib.Path) -> None:
    read = read_inputs(lines(tmp_path, *requests()), INFO)
    assert "row_to_user" not in read.inputs
    assert read.inputs["city"].tolist() == [b"Oslo", b"Oslo", b"Bern"]
    assert read.inputs["hist_1"].tolist() == [0, 2, 4, 4]
    plain = read_inputs(lines(tmp_path, *requests()), {**INFO, "user": None}, once=True)
    assert "row_to_user" not in plain.inputs
    assert plain.inputs["mood"].tolist() == [2, 2, 1]


def test_a_user_feature_written_with_the_candidates_keeps_all_rows(tmp_path: pathlib.Path) -> None:
    user = {key: value for key, value in USER.items() if key != "mood"}
    line = {"user": user, "candidates": [{"item": [1, 2, 3], "mood": 5}, {"item": [4, 5, 6], "mood": 6}]}
    read = read_inputs(lines(tmp_path, line), INFO, once=True)
    assert "row_to_user" not in read.inputs
    assert read.inputs["mood"].tolist() == [5, 6]
    assert len(read.inputs["age"]) == 2


def test_labels_of_candidates(tmp_path: pathlib.Path) -> None:
    line = {"user": USER, "candidates": [{"item": [1, 2, 3], "label": 1}, {"item": [4, 5, 6], "label": 0}]}
    read = read_inputs(lines(tmp_path, line), INFO, once=True)
    assert read.labels is not None
    assert read.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*requests(), {"item": [1, 2, 3]}], "request 4 has no 'user'"),
        ([{"user": USER, "candidates": [{"item": [1, 2, 3]}]}, {"user": USER}], "request 2 has no 'candidates'"),
        ([{"user": [USER], "candidates": []}], "request 1: 'user' is a list, expected an object"),
        ([{"user": USER, "candidates": {}}], "request 1: 'candidates' is a dict, expected a list of objects"),
        ([{"user": USER, "candidates": [3]}], "request 1, candidate 1: expected an object, got int"),
        (
            [{"user": USER, "candidates": [{"item": [1, 2, 3], "city": "x"}]}],
            "candidate 1 has feature 'city', which its user",
        ),
        ([{"user": USER, "candidates": [{}]}], "request 1, candidate 1 lacks feature 'item'"),
        (
            [{"user": USER, "candidates": [{"item": [1, 2, 3]}]}, {"user": USER, "candidates": [{"item": [1, 2]}]}],
            r"'item': request 2, candidate 1 has shape \(2,\), request 1, candidate 1 has \(3,\)",
        ),
        ([{"user": {**USER, "hair": 1}, "candidates": [{"item": [1, 2, 3]}]}], "unknown feature 'hair'"),
        ([{"user": USER, "candidates": []}], "holds no candidate"),
    ],
)
def test_lines_that_do_not_fit_are_named(tmp_path: pathlib.Path, rows: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_inputs(lines(tmp_path, *rows), INFO, once=True)


def arrays(users: int, rows: int) -> dict[str, np.ndarray]:
    return {
        "age": np.arange(2.0 * users, dtype=np.float32).reshape(users, 2),
        "city": np.array([b"c%d" % k for k in range(users)], object),
        "hist": np.arange(users),
        "hist_1": np.arange(users + 1),
        "item": np.zeros((rows, 3), np.float32),
        "mood": np.arange(users),
        "tags/values": np.arange(users),
        "tags/indices": np.stack([np.arange(users), np.zeros(users, int)], 1),
        "tags/dense_shape": np.array([users, 1]),
    }


def test_npz_with_user_rows(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, **arrays(1, 4))
    assert len(read_inputs(str(file), INFO, once=True).inputs["mood"]) == 1
    assert read_inputs(str(file), INFO).inputs["mood"].tolist() == [0] * 4
    np.savez(file, **arrays(2, 4), row_to_user=[1, 0, 1, 1])
    assert read_inputs(str(file), INFO, once=True).inputs["row_to_user"].tolist() == [1, 0, 1, 1]
    read = read_inputs(str(file), INFO).inputs
    assert read["mood"].tolist() == [1, 0, 1, 1]
    assert read["hist"].tolist() == [1, 0, 1, 1]
    assert read["tags/dense_shape"].tolist() == [4, 1]
    assert "row_to_user" not in read


@pytest.mark.parametrize(
    ("users", "row_to_user", "message"),
    [
        (2, None, "user inputs have 2 rows and the others 4; expected as many, one row, or 'row_to_user'"),
        (2, [0, 1, 2, 0], "row_to_user: got 2, expected user rows from 0 to 1"),
        (2, [0, -1, 1, 0], "row_to_user: got -1"),
        (2, [0, 1], "row_to_user: got 2 numbers, expected one for each of the 4 rows"),
        (2, [0.0, 1.0, 0.0, 0.0], r"row_to_user: got float64 \[4\], expected int64"),
        (2, [[0, 1, 0, 0]], r"row_to_user: got int64 \[1, 4\]"),
    ],
)
def test_npz_user_rows_that_do_not_fit(tmp_path: pathlib.Path, users: int, row_to_user: Any, message: str) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, **arrays(users, 4), **({} if row_to_user is None else {"row_to_user": row_to_user}))
    with pytest.raises(InputError, match=message):
        read_inputs(str(file), INFO)
