"""Decisions from times: no engine, no clock."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.openvino.choose import (
    LEAST_GAIN,
    LOSES_AT_MOST,
    MOST_VARIANTS,
    WORKLOAD,
    Times,
    choose_options,
    compare,
    gain,
    most_variants,
)
from export.openvino.measure import CANDIDATES, candidates
from export.openvino.options import EngineOptions


def linear(start, per_row, rows=CANDIDATES):
    return {n: start + per_row * n for n in rows}


def test_static_variants_that_gain_nothing_are_left_out():
    times = Times(dynamic_ms=linear(0.3, 0.02), static_ms=linear(0.3, 0.0199))
    assert choose_options(times) == EngineOptions()
    assert gain(times, EngineOptions()) == 1.0


def test_variants_that_are_much_faster_are_taken():
    """As in towers with attention: half the time of the dynamic variant at every size."""
    times = Times(dynamic_ms=linear(0.6, 0.07), static_ms=linear(0.3, 0.035))
    options = choose_options(times)
    assert options.buckets and len(options.buckets) <= MOST_VARIANTS
    assert gain(times, options) > 1.3
    assert all(times.of(rows, options) <= LOSES_AT_MOST * times.dynamic(rows) for rows in WORKLOAD)


def test_a_variant_that_pays_at_one_size_alone():
    """One row is slower than eight (a vector times a matrix): one row is filled up."""
    times = Times(dynamic_ms={1: 1.2, 8: 1.0, 64: 3.0}, static_ms={1: 1.19, 8: 0.7, 64: 3.0})
    options = choose_options(times)
    assert options.buckets == (8,)
    assert options.pad == {8: 1}
    assert [piece.bucket for piece in options.pieces(1)] == [8]


def test_filling_up_starts_where_it_pays():
    """64 rows cost 2 ms, n rows of the dynamic variant 0.05 ms each: from 42 rows (3 % more than equal) on."""
    times = Times(dynamic_ms={1: 0.05, 64: 3.2, 512: 25.6}, static_ms={64: 2.0})
    options = choose_options(times)
    assert options.pad == {64: 42}


def test_copying_counts():
    times = Times(dynamic_ms={1: 0.05, 64: 3.2, 512: 25.6}, static_ms={64: 2.0}, copy_ms=0.01)
    assert choose_options(times).pad[64] > 42


def test_pieces_where_small_runs_are_the_fastest_per_row():
    """As where a layer's activations fit a cache at 64 rows and not at 512."""
    static = {64: 2.7, 256: 12.0, 512: 26.0}
    times = Times(dynamic_ms={1: 0.2, 64: 3.2, 256: 13.8, 512: 30.0}, static_ms=static)
    options = choose_options(times)
    assert options.chunk == 64
    assert times.of(512, options) == pytest.approx(8 * 2.7)


def test_no_batch_size_pays_for_the_others():
    """Pieces of 64 rows gain 3 % at 64 k rows, but the row of 64 k + 1 that is left costs a whole start."""
    times = Times(dynamic_ms={1: 1.1, 64: 4.6, 512: 35.6}, static_ms={64: 4.2})
    options = choose_options(times)
    assert times.of(65, options) <= LOSES_AT_MOST * times.dynamic(65)


def test_times_between_the_measured_ones():
    times = Times(dynamic_ms={8: 1.0, 16: 2.0, 32: 3.0}, static_ms={})
    assert [times.dynamic(rows) for rows in (4, 8, 12, 24, 64)] == pytest.approx([0.5, 1.0, 1.5, 2.5, 5.0])


def test_one_measured_size():
    assert Times(dynamic_ms={32: 2.0}, static_ms={}).dynamic(64) == 4.0


@pytest.mark.parametrize(
    ("megabytes", "most", "tried"), [(8, 5, CANDIDATES), (100, 2, CANDIDATES), (200, 1, (8, 64, 256))]
)
def test_large_towers_have_few_variants(megabytes, most, tried):
    """Each holds the weights once more; while they are measured all of them do."""
    assert most_variants(megabytes << 20) == most
    assert candidates(megabytes << 20) == tried
    times = Times(dynamic_ms=linear(0.6, 0.07), static_ms=linear(0.3, 0.035))
    assert len(choose_options(times, most=most).buckets) == min(most, len(choose_options(times).buckets))


def test_users_stand_in_the_options():
    times = Times(dynamic_ms=linear(0.6, 0.07), static_ms=linear(0.3, 0.035))
    assert choose_options(times, users=1).to_json()["users"] == 1
    assert "users" not in choose_options(times).to_json()


positive = st.floats(0.01, 100.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(positive, positive), min_size=len(CANDIDATES), max_size=len(CANDIDATES)))
def test_any_times(measured):
    """Whatever noise measures: valid options that are expected to lose nowhere, and to gain on the whole."""
    dynamic = {rows: d for rows, (d, _) in zip(CANDIDATES, measured, strict=True)}
    static = {rows: s for rows, (_, s) in zip(CANDIDATES, measured, strict=True)}
    times = Times(dynamic_ms=dynamic, static_ms=static)
    options = choose_options(times)
    assert len(options.buckets) <= MOST_VARIANTS
    assert gain(times, options) >= (LEAST_GAIN ** len(options.buckets)) * (1 - 1e-9)
    assert all(times.of(rows, options) <= LOSES_AT_MOST * times.dynamic(rows) * (1 + 1e-9) for rows in WORKLOAD)


@pytest.mark.parametrize(
    ("ratios", "faster", "words"),
    [
        ((1.5, 1.2, 1.1), True, "1.26x as fast"),
        ((1.3, 1.1, 0.96), True, "0.96x at 512"),
        ((1.4, 1.3, 0.94), False, "slower at 512 rows"),
        ((1.04, 1.04, 1.04), False, "not clearly faster: 1.04x"),
        ((0.7, 0.6, 0.5), False, "not clearly faster: 0.59x"),
        ((1.06, 1.06, 1.04), True, "1.05x as fast"),
    ],
)
def test_openvino_or_tensorflow(ratios, faster, words):
    rows = (32, 256, 512)
    found = compare(dict(zip(rows, ratios, strict=True)), dict.fromkeys(rows, 1.0))
    assert found["faster"] is faster
    assert words in found["reason"]
    assert found["least"] == min(ratios)
    assert found["geometric_mean"] == pytest.approx(math.prod(ratios) ** (1 / 3), abs=1e-4)
    assert [row["rows"] for row in found["rows"]] == list(rows)
