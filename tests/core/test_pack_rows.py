"""TfctrPackRows against NumPy: layout, padding, users behind rows, and every error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfctr.core import library

OPS = library.load()
DTYPES = (np.bool_, np.int8, np.float16, np.float32, np.int32, np.int64, np.float64, np.complex128)


def pack(tensors: list[np.ndarray], columns: list[int], by_rows: int, names: tuple[str, ...] = ()) -> np.ndarray:
    made = OPS.tfctr_pack_rows(
        tensors=[tf.constant(t) for t in tensors], columns=columns, by_rows=by_rows, names=list(names)
    )  # fmt: skip
    return made.numpy()


def row_words(tensor: np.ndarray) -> np.ndarray:
    """uint32 [rows, words]: the bytes of each row, filled up with zeros."""
    rows = len(tensor)
    width = int(np.prod(tensor.shape[1:], dtype=int)) * tensor.dtype.itemsize
    raw = np.frombuffer(np.ascontiguousarray(tensor).tobytes(), np.uint8).reshape(rows, width)
    return np.pad(raw, ((0, 0), (0, -width % 4))).view(np.uint32).reshape(rows, -(-width // 4))


def reference(tensors: list[np.ndarray], by_rows: int) -> np.ndarray:
    rows = len(tensors[0])
    flat = np.concatenate([row_words(t).reshape(-1) for t in tensors[:by_rows]])
    if rows and by_rows < len(tensors):
        users = np.concatenate([row_words(t) for t in tensors[by_rows:]], 1).reshape(-1)
        flat = np.concatenate([flat, users, np.zeros(-len(users) % rows, np.uint32)])
    if rows == 0:
        return np.zeros((sum(row_words(np.zeros((1, *t.shape[1:]), t.dtype)).size for t in tensors[:by_rows]), 0))
    return flat.reshape(-1, rows)


@st.composite
def cases(draw: Any) -> tuple[list[np.ndarray], int]:
    rows, users = draw(st.integers(0, 9)), draw(st.integers(0, 5))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    found = []
    by_rows = draw(st.integers(1, 4))
    for number in range(by_rows + draw(st.integers(0, 3))):
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        shape = [rows if number < by_rows else users, *draw(st.lists(st.integers(1, 4), max_size=2))]
        raw = rng.bytes(int(np.prod(shape, dtype=int)) * dtype.itemsize)
        odd = np.frombuffer(raw, np.uint8) % 2  # a bool is 0 or 1
        found.append((odd.view(dtype) if dtype.kind == "b" else np.frombuffer(raw, dtype)).reshape(shape))
    return found, by_rows


@settings(max_examples=150, deadline=None)
@given(cases())
def test_layout(case: tuple[list[np.ndarray], int]) -> None:
    tensors, by_rows = case
    columns = [int(np.prod(t.shape[1:], dtype=int)) for t in tensors]
    got = pack(tensors, columns, by_rows)
    want = reference(tensors, by_rows)
    assert got.dtype == np.float32
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 4), st.integers(1, 2), st.integers(0, 1 << 16))
def test_open_tensors_count_as_rows_of_positions(
    case: tuple[list[np.ndarray], int], positions: int, count: int, seed: int
) -> None:
    """[B, T, c] is laid out as [B * T, c]."""
    tensors, by_rows = case
    rng, rows = np.random.default_rng(seed), len(tensors[0])
    opened = [rng.normal(size=(rows, positions, 3)).astype(np.float16 if k else np.float32) for k in range(count)]
    every = [*tensors[:by_rows], *opened, *tensors[by_rows:]]
    columns = [int(np.prod(t.shape[1:], dtype=int)) for t in every]
    columns[by_rows : by_rows + count] = [3] * count
    made = OPS.tfctr_pack_rows(
        tensors=[tf.constant(t) for t in every], columns=columns, by_rows=by_rows + count, open=count, names=[]
    ).numpy()
    closed = reference(tensors, by_rows)
    middle = [row_words(t.reshape(rows * positions, 3)) for t in opened]
    begin = reference(tensors[:by_rows], by_rows).shape[0]
    words = np.concatenate([w.reshape(-1) for w in middle])
    assert made.shape[0] == closed.shape[0] + sum(w.shape[1] for w in middle) * positions
    flat = made.reshape(-1)
    assert flat[begin * rows : begin * rows + words.size].tobytes() == words.tobytes()
    assert flat[begin * rows + words.size :].tobytes() == closed.reshape(-1)[begin * rows :].tobytes()


def test_positions_that_disagree_are_an_error() -> None:
    opened = [tf.ones([2, 3, 4]), tf.ones([2, 5, 4])]
    with pytest.raises(tf.errors.InvalidArgumentError, match="a has 3 positions, b has 5"):
        OPS.tfctr_pack_rows(tensors=opened, columns=[4, 4], by_rows=2, open=2, names=["a", "b"])


def test_static_shape() -> None:
    with tf.Graph().as_default():
        x, y = (tf.compat.v1.placeholder(t, [None, 3]) for t in (tf.float16, tf.int64))
        assert OPS.tfctr_pack_rows(tensors=[x, y], columns=[3, 3], by_rows=2).shape.as_list() == [2 + 6, None]
        assert OPS.tfctr_pack_rows(tensors=[x, y], columns=[3, 3], by_rows=1).shape.as_list() == [None, None]


@pytest.mark.parametrize(
    ("shapes", "columns", "by_rows", "said"),
    [
        ([(3, 2), (4, 2)], [2, 2], 2, "b has 4 rows, a has 3; what crosses"),
        ([(3, 2), (4, 2), (5, 2)], [2, 2, 2], 1, "c has 5 rows, b has 4"),
        ([(3, 2)], [3], 1, r"a has shape \[3,2\], expected rows of 3 elements"),
        ([()], [1], 1, "rank at least 1|expected rows"),
        ([(3, 2)], [2, 2], 1, "one entry per tensor"),
        ([(3, 2)], [2], 2, "by_rows"),
        ([(3, 2)], [0], 1, "can't be packed"),
    ],
)
def test_errors(shapes: list[tuple[int, ...]], columns: list[int], by_rows: int, said: str) -> None:
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=said):
        pack([np.ones(s, np.float32) for s in shapes], columns, by_rows, ("a", "b", "c"))
