"""Requests of one signature as one: what is stacked equals, byte for byte, what packing the concatenation gives;
cutting is its inverse; and which requests never share a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.request_kinds import Constant, Dense, Kind, Ragged, Sparse
from tests.core.test_packer import numpy_dtype, part
from tfctr.core import library
from tfctr.errors import InputError

DTYPES = ["float32", "int64", "bool", "string", "int8", "float16", "int32"]


def packer(parts, features=(), users=None, outputs=()):
    return library.native().Packer(
        {
            "context": "model 'm'",
            "parts": list(parts),
            "features": list(features),
            "packed": None,
            "outputs": list(outputs),
            "users": users,
        }
    )


def batcher(made):
    return library.native().Batcher(made)


def output(name, dtype, shape=None, of=None, kind="dense", role="values"):
    return {
        "name": name,
        "tensor": f"{name}:0",
        "numpy": numpy_dtype(dtype),
        "shape": shape,
        "of": of or name,
        "kind": kind,
        "role": role,
    }


def assert_same(got, want):
    assert got.shapes.tolist() == want.shapes.tolist()
    assert got.arena.tobytes() == want.arena.tobytes()
    assert got.strings.tolist() == want.strings.tolist()
    assert (got.split, got.repeated) == (want.split, want.repeated)


@st.composite
def kinds(draw, least=1):
    """Inputs of a signature, at least one of them with rows."""
    made: list[Kind] = []
    for k in range(draw(st.integers(least, 4))):
        name, dtype = f"f{k}", draw(st.sampled_from(DTYPES))
        kind = draw(st.sampled_from(["dense", "dense", "ragged", "sparse"]))
        if kind == "dense":
            made.append(Dense(name, dtype, draw(st.lists(st.integers(0, 3), max_size=2)), draw(st.booleans())))
        elif kind == "ragged":
            splits = draw(st.sampled_from(["int32", "int64"]))
            made.append(Ragged(name, dtype, draw(st.integers(1, 3)), splits, weights=draw(st.booleans())))
        else:
            made.append(Sparse(name, dtype, draw(st.integers(2, 3))))
    if draw(st.booleans()):
        made.append(Constant("k", draw(st.sampled_from([2.5, b"word"])), []))
    return made


def described(made: list[Kind], users=None):
    parts = [dict(p) for kind in made for p in kind.parts]
    number = {p["name"]: k for k, p in enumerate(parts)}
    for p in parts:
        p["like"] = number.get(p.pop("like_name", None))
    features, first = [], 0
    for kind in made:
        feature = kind.numbered(first)
        features += [feature] if feature else []
        first += len(kind.parts)
    return packer(parts, features, users)


def request_of(made: list[Kind], rows: list[Any]) -> dict[str, Any]:
    return {key: value for kind, own in zip(made, rows, strict=True) for key, value in kind.request(own).items()}


def join_all(made: list[Kind], rows: list[list[Any]]) -> list[Any]:
    return [kind.join([own[k] for own in rows]) for k, kind in enumerate(made)]


def joined(made: list[Kind], rows: list[list[Any]]) -> dict[str, Any]:
    return request_of(made, join_all(made, rows))


@settings(max_examples=100, deadline=None)
@given(st.data(), kinds(), st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_a_batch_is_what_packing_the_concatenation_gives(data, made, sizes):
    """Merlin #906 (Triton): batching of variable-length lists."""
    plan = described(made)
    stack = batcher(plan)
    rows = [[kind.rows(data.draw, size) for kind in made] for size in sizes]
    packed = [plan.pack(request_of(made, own)) for own in rows]
    assert [stack.inspect(one)["rows"] for one in packed] == sizes
    assert all(stack.fits(packed[0], one) for one in packed)
    whole = plan.pack(joined(made, rows))
    got = stack.concat(packed)
    assert_same(got, whole)
    assert stack.inspect(got)["rows"] == sum(sizes)
    # Cut at the same places: the requests again, but for the sizes of sparse ones that only the largest had.
    at, cuts = 0, []
    for size in sizes:
        cuts.append(stack.slice(got, at, size))
        at += size
    if not any(isinstance(kind, Sparse) for kind in made):
        for cut, one in zip(cuts, packed, strict=True):
            assert_same(cut, one)
    assert_same(stack.concat(cuts), whole)


def split_plan():
    """Users: a dense, a ragged and a sparse input once per user; items: a dense one."""
    user = [Dense("u", "float32", [2]), Ragged("h", "int64", 2, "int32", weights=True), Sparse("s", "string", 2)]
    made = [*user, Dense("item", "int64", [])]
    names = [p["name"] for kind in made for p in kind.parts]
    once = [k for k, name in enumerate(names) if name != "item"]
    users = {
        "parts": once,
        "row_to_user": "row_to_user",
        "split": {
            "once": once,
            "parts": [*range(len(names)), len(names)],
            "tensors": [f"{n}:0" for n in [*names, "row_to_user"]],
            "packed": None,
            "outputs": [],
        },
    }
    return made, described(made, users)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=4))
def test_user_rows_stack_by_users_and_row_to_user_goes_on(data, sizes):
    made, plan = split_plan()
    stack = batcher(plan)
    rows, maps, packed = [], [], []
    for users, more in sizes:
        to_user = np.array(data.draw(st.permutations([*range(users), *([0] * more)])), np.int64)
        own = [kind.rows(data.draw, users) for kind in made[:-1]] + [made[-1].rows(data.draw, users + more)]
        rows.append(own)
        maps.append(to_user)
        packed.append(plan.pack(request_of(made, own) | {"row_to_user": to_user}))
    assert all(one.split for one in packed)
    infos = [stack.inspect(one) for one in packed]
    assert [(info["users"], info["rows"]) for info in infos] == [(u, u + m) for u, m in sizes]
    offsets = np.cumsum([0, *(u for u, _ in sizes)])
    whole = joined(made, rows)
    whole["row_to_user"] = np.concatenate([m + o for m, o in zip(maps, offsets, strict=False)])
    got = stack.concat(packed)
    assert_same(got, plan.pack(whole))
    at, cuts = 0, []
    for users, more in sizes:
        cuts.append(stack.slice(got, at, users + more))
        at += users + more
    assert_same(stack.concat(cuts), got)
    # Row by row: each has its one user.
    total = sum(u + m for u, m in sizes)
    single = [stack.slice(got, k, 1) for k in range(total)]
    assert all(stack.inspect(one)["users"] == 1 for one in single)


def test_one_user_beside_many_candidates_stacks_with_others():
    made, plan = split_plan()
    stack = batcher(plan)
    one = {"u": [[1.0, 2.0]], "h": [[[7, 8], []]], "h_weights": [1.0, 2.0], "s": [[b"a"]], "item": [1, 2, 3]}
    other = {"u": [[3.0, 4.0]], "h": [[[9]]], "h_weights": [3.0], "s": [[b"b", b"c"]], "item": [4, 5]}
    got = stack.concat([plan.pack(one), plan.pack(other)])
    both = {
        "u": [[1.0, 2.0], [3.0, 4.0]],
        "h": [[[7, 8], []], [[9]]],
        "h_weights": [1.0, 2.0, 3.0],
        "s": [[b"a"], [b"b", b"c"]],
        "item": [1, 2, 3, 4, 5],
        "row_to_user": [0, 0, 0, 1, 1],
    }
    assert_same(got, plan.pack(both))
    assert made  # the same signature as above


def test_requests_of_two_forms_do_not_fit():
    made, plan = split_plan()
    stack = batcher(plan)
    base = {"u": [[1.0, 2.0]], "h": [[[7]]], "h_weights": [1.0], "s": [[b"a"]]}
    plain, split = plan.pack(base | {"item": [1]}), plan.pack(base | {"item": [1, 2]})
    assert (plain.split, split.split) == (False, True)
    assert not stack.fits(plain, split)
    with pytest.raises(ValueError, match="do not go together"):
        stack.concat([plain, split])
    assert made


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("x", np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)),
        ("x", np.zeros((2, 3), np.float32), np.zeros(2, np.float32)),
        ("k", np.float32(1), np.float32(2)),
        ("t", b"a", b"b"),
        ("fixed", np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)),
    ],
)
def test_what_differs_between_requests_keeps_them_apart(name, one, other):
    plan = packer(
        [
            part("row", "int64", [-1]),
            part("x", "float32", None),
            part("k", "float32", []),
            part("t", "string", []),
            part("fixed", "float32", [1, 2]),
        ]
    )
    stack = batcher(plan)
    base = {"row": [1, 2], "x": np.zeros((2, 3), np.float32), "k": 1.0, "t": b"a", "fixed": [[0.0, 0.0]]}
    a, b = plan.pack(base | {name: one}), plan.pack(base | {name: other})
    assert stack.fits(a, plan.pack(base | {name: one}))
    assert not stack.fits(a, b)


RAGGED = [part("r/values", "int64", [-1]), part("r/row_splits", "int64", [-1])]
RAGGED_FEATURE = {"name": "r", "kind": "ragged", "values": 0, "row_splits": [1]}
SPARSE = [part("s/values", "int64", [-1]), part("s/indices", "int64", [-1, 2]), part("s/dense_shape", "int64", [2])]
SPARSE_FEATURE = {"name": "s", "kind": "sparse", "values": 0, "indices": 1, "dense_shape": 2}


@pytest.mark.parametrize("splits", [[0, 5, 3], [1, 3], [0, -1, 3]])
def test_row_splits_that_do_not_rise_are_refused(splits):
    plan = packer(RAGGED, [RAGGED_FEATURE])
    with pytest.raises(InputError, match="feature 'r': got row_splits .* do not rise from 0 to the 3 values"):
        plan.pack({"r/values": [1, 2, 3], "r/row_splits": splits})


@pytest.mark.parametrize(
    ("indices", "shape"),
    [
        ([[2, 0]], [2, 1]),
        ([[-1, 0]], [2, 1]),
        ([[2**62, 0]], [2, 1]),
        ([[0, 0]], [2**62, 1]),
        ([[0, 0]], [-1, 1]),
        ([[0, 0]], [1, -1]),
        ([[0, 0]], [2**62 + 1, 2**62 + 1]),
    ],
)
def test_sparse_rows_out_of_range_never_share_a_batch(indices, shape):
    plan = packer(SPARSE, [SPARSE_FEATURE])
    stack = batcher(plan)
    request = plan.pack({"s/values": [1], "s/indices": indices, "s/dense_shape": shape})
    assert stack.inspect(request)["rows"] == -1
    assert not stack.fits(request, request)


def test_different_numbers_of_rows_run_alone():
    plan = packer([part("a", "int64", [-1]), part("b", "int64", [-1])])
    info = batcher(plan).inspect(plan.pack({"a": [1], "b": [1, 2]}))
    assert info["rows"] == -1
    assert "another number of rows" in info["why"]


@pytest.mark.parametrize(
    ("parts", "outputs", "why"),
    [
        ([part("k", "float32", [])], [], "no input has a dimension"),
        ([part("k", "float32", [4, 2])], [], "no input has a dimension"),
        ([part("a", "int64", [-1])], [output("mean", "float32", [])], "output 'mean'"),
        ([part("a", "int64", [-1])], [output("ten", "float32", [10])], "output 'ten'"),
        ([part("a", "int64", [-1])], [output("c/x", "float32", None, "c", "composite")], "output 'c/x'"),
    ],
)
def test_signatures_that_cannot_be_stacked_say_why(parts, outputs, why):
    with pytest.raises(ValueError, match=why):
        batcher(packer(parts, outputs=outputs))


def test_slice_refuses_rows_that_are_not_there():
    plan = packer([part("a", "int64", [-1])])
    request = plan.pack({"a": [1, 2, 3]})
    for first, rows in ((-1, 1), (0, 4), (3, 1), (2, 2**62)):
        with pytest.raises(ValueError, match="rows"):
            batcher(plan).slice(request, first, rows)


def test_unsorted_sparse_indices_are_cut_by_row():
    plan = packer(SPARSE, [SPARSE_FEATURE])
    stack = batcher(plan)
    request = plan.pack({"s/values": [1, 2, 3], "s/indices": [[2, 0], [0, 1], [2, 1]], "s/dense_shape": [3, 2]})
    want = plan.pack({"s/values": [1, 3], "s/indices": [[0, 0], [0, 1]], "s/dense_shape": [1, 2]})
    assert_same(stack.slice(request, 2, 1), want)


OUTPUTS = [
    output("score", "float32", [-1, 2]),
    output("word", "string", None),
    output("r/values", "int64", [-1], "r", "ragged"),
    output("r/row_splits", "int64", [-1], "r", "ragged", "row_splits"),
    output("r/row_splits_1", "int64", [-1], "r", "ragged", "row_splits_1"),
    output("s/indices", "int64", [-1, 2], "s", "sparse", "indices"),
    output("s/values", "float32", [-1], "s", "sparse"),
    output("s/dense_shape", "int64", [2], "s", "sparse", "dense_shape"),
]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_outputs_are_split_by_rows_and_joined_again(data, sizes):
    stack = batcher(packer([part("a", "int64", [-1])], outputs=OUTPUTS))
    score, word = Dense("score", "float32", [2]), Dense("word", "string", [])
    ragged, sparse = Ragged("r", "int64", 2, "int64"), Sparse("s", "float32", 2)
    made = [score, word, ragged, sparse]
    rows = [[kind.rows(data.draw, size) for kind in made] for size in sizes]

    def flat(own, width=None):
        indices, values, inner, count = own[3]
        nested = own[2][0]
        shape = np.array([count, width or inner[0]], np.int64)
        splits = [one.numpy() for one in nested.nested_row_splits]
        return [own[0], own[1], nested.flat_values.numpy(), *splits, indices, values, shape]

    whole = flat(join_all(made, rows))
    width = int(whole[-1][1])
    got = stack.split_outputs(whole, sizes)
    for mine, own in zip(got, rows, strict=True):
        for a, b in zip(mine, flat(own, width), strict=True):
            assert a.shape == b.shape
            assert a.tolist() == b.tolist()
    for a, b in zip(stack.join_outputs(got), whole, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tolist() == b.tolist()


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (0, np.zeros((2, 2), np.float32)),
        (0, np.array(0, np.float32)),
        (3, np.array([0, 9, 1, 1])),
        (4, np.array([0, 7])),
        (5, np.array([[3, 0]])),
        (7, np.array([2, 1])),
    ],
)
def test_outputs_that_do_not_fit_the_rows_are_refused(number, value):
    stack = batcher(packer([part("a", "int64", [-1])], outputs=OUTPUTS))
    words = np.array([b"a", b"b", b"c"], object)
    good = [
        np.zeros((3, 2), np.float32), words, np.array([5]), np.array([0, 1, 1, 1]), np.array([0, 1]),
        np.array([[0, 0]]), np.array([1], np.float32), np.array([3, 1]),
    ]  # fmt: skip
    assert len(stack.split_outputs(good, [1, 2])) == 2
    good[number] = value
    with pytest.raises(ValueError, match="output '"):
        stack.split_outputs(good, [1, 2])


def test_row_splits_of_int32_that_would_overflow_are_refused():
    parts = [part("r/values", "int64", [-1, 0]), part("r/row_splits", "int32", [-1])]
    plan = packer(parts, [RAGGED_FEATURE])
    request = plan.pack({"r/values": np.zeros((2**30, 0), np.int64), "r/row_splits": np.array([0, 2**30], np.int32)})
    stack = batcher(plan)
    assert stack.inspect(request)["rows"] == 1
    with pytest.raises(ValueError, match="int32"):
        stack.concat([request, request])
