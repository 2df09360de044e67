"""Ragged features and outputs of two levels: read from .jsonl, rows chosen, written to both kinds of files."""

import io
import json
import pathlib

import numpy as np
import tensorflow as tf

from tfctr.data import read_inputs, take_rows
from tfctr.data.output_files import flatten_outputs, write_lines

PARTS = {"values": "r/values", "row_splits": "r/row_splits", "row_splits_1": "r/row_splits_1"}
INFO = {
    "inputs": [{"name": part, "dtype": "int64", "shape": [-1]} for part in PARTS.values()],
    "features": [{"name": "r", "kind": "ragged", "parts": PARTS}],
}
ROWS: list[list[list[int]]] = [[[1, 2], [], [3]], [], [[4]]]


def parts_of(rows: list[list[list[int]]]) -> dict[str, np.ndarray]:
    ragged = tf.ragged.constant(rows, tf.int64, ragged_rank=2)
    return {
        "r/values": ragged.flat_values.numpy(),
        "r/row_splits": ragged.row_splits.numpy(),
        "r/row_splits_1": ragged.values.row_splits.numpy(),
    }


def assert_parts(got: dict[str, np.ndarray], rows: list[list[list[int]]]) -> None:
    expected = parts_of(rows)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def test_lists_of_lists_are_read_and_chosen(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"r": row}) + "\n" for row in ROWS))
    read = read_inputs(str(file), INFO).inputs
    assert_parts(read, ROWS)
    assert_parts(take_rows(read, INFO, np.array([2, 0, 0])), [ROWS[2], ROWS[0], ROWS[0]])


def test_outputs_of_two_levels_are_written() -> None:
    value = tf.compat.v1.ragged.constant_value(ROWS, np.int64, ragged_rank=2)
    assert_parts(flatten_outputs({"r": value}), ROWS)
    lines = io.StringIO()
    write_lines(lines, {"r": value})
    assert [json.loads(line)["r"] for line in lines.getvalue().splitlines()] == ROWS
