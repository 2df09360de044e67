"""How a batch of any size is run: pieces, filled up, or the dynamic variant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.openvino.options import EngineOptions, Piece
from tfctr.errors import UsageError

OPTIONS = EngineOptions(buckets=(8, 64), pad={8: 3, 64: 50}, chunk=64)


@pytest.mark.parametrize(
    ("rows", "pieces"),
    [
        (1, [Piece(0, 1, 0)]),
        (3, [Piece(0, 3, 8)]),
        (8, [Piece(0, 8, 8)]),
        (9, [Piece(0, 9, 0)]),
        (50, [Piece(0, 50, 64)]),
        (64, [Piece(0, 64, 64)]),
        (65, [Piece(0, 64, 64), Piece(64, 1, 0)]),
        (128, [Piece(0, 64, 64), Piece(64, 64, 64)]),
        (133, [Piece(0, 64, 64), Piece(64, 64, 64), Piece(128, 5, 8)]),
        (0, [Piece(0, 0, 0)]),
    ],
)
def test_pieces(rows, pieces):
    assert OPTIONS.pieces(rows) == pieces


def test_a_bucket_is_run_whole_and_not_in_pieces():
    options = EngineOptions(buckets=(64, 256), chunk=64)
    assert options.pieces(256) == [Piece(0, 256, 256)]
    assert [piece.rows for piece in options.pieces(257)] == [64, 64, 64, 64, 1]


def test_without_options_everything_is_dynamic():
    assert [EngineOptions().pieces(rows) for rows in (1, 700)] == [[Piece(0, 1, 0)], [Piece(0, 700, 0)]]


@st.composite
def any_options(draw):
    buckets = tuple(sorted(draw(st.sets(st.integers(1, 300), max_size=5))))
    pad = {bucket: draw(st.integers(1, bucket)) for bucket in buckets if draw(st.booleans())}
    chunk = draw(st.sampled_from((0, *buckets)))
    return EngineOptions(buckets=buckets, pad=pad, chunk=chunk, users=draw(st.integers(0, 1)))


@given(any_options(), st.integers(0, 1500))
def test_every_row_is_run_once_by_a_variant_that_holds_it(options, rows):
    first = 0
    for piece in options.pieces(rows):
        assert piece.first == first
        assert piece.bucket == 0 or (piece.bucket in options.buckets and piece.rows <= piece.bucket)
        first += piece.rows
    assert first == rows


@given(any_options())
def test_json(options):
    assert EngineOptions.from_json(options.to_json()) == options


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"buckets": (64, 8)}, "ascending"),
        ({"buckets": (8, 8)}, "ascending"),
        ({"buckets": (0,)}, "from 1"),
        ({"buckets": (8,), "chunk": 64}, "chunk 64"),
        ({"buckets": (8,), "pad": {64: 8}}, "pad 64"),
        ({"buckets": (8,), "pad": {8: 9}}, "pad 8"),
        ({"buckets": (8,), "pad": {8: 0}}, "pad 8"),
    ],
)
def test_wrong_options(wrong, words):
    with pytest.raises(UsageError, match=words):
        EngineOptions(**wrong)
