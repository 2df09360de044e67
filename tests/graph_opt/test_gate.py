"""The accuracy gate: what passes, what fails and what it says."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from graph_opt.gate import DEFAULT_LIMITS, GateLimits, judge, limits_for
from tfctr.errors import InputError, UsageError
from tfctr.profiling.auc import auc

LIMITS = GateLimits(max_dp=1e-3, max_bias=1e-4, max_auc_delta=1e-4)
LOOSE = GateLimits(max_dp=1.0, max_bias=1.0, max_auc_delta=1.0)
floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
scores = npst.arrays(np.float32, st.integers(1, 40), elements=st.floats(0, 1, width=32))


def one(result):
    (verdict,) = result.outputs
    return verdict


@given(npst.arrays(np.float32, npst.array_shapes(max_dims=3), elements=floats))
@settings(deadline=None)
def test_a_model_always_passes_against_itself(values):
    result = judge({"y": values}, {"y": values.copy()}, None, GateLimits(max_dp=0, max_bias=0, max_auc_delta=0))
    assert result.passed and not result.failed
    assert one(result).max_dp == one(result).bias == 0


@given(scores, st.floats(-0.01, 0.01), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_probabilities_are_judged_by_their_own_differences(want, shift, seed):
    rng = np.random.default_rng(seed)
    got = (want + np.float32(shift) * rng.random(len(want)).astype(np.float32)).astype(np.float32)
    result = judge({"p": want}, {"p": got}, None, LIMITS)
    verdict = one(result)
    difference = got.astype(np.float64) - want.astype(np.float64)
    assert verdict.read_as == "probability"
    assert verdict.max_dp == np.abs(difference).max()
    assert verdict.bias == pytest.approx(difference.mean(), abs=1e-15)
    assert result.passed == (verdict.max_dp <= LIMITS.max_dp and abs(verdict.bias) <= LIMITS.max_bias)


@given(npst.arrays(np.float32, st.integers(2, 40), elements=st.floats(-80, 80, width=32)), st.floats(-1, 1))
@settings(deadline=None)
def test_logits_are_judged_by_their_sigmoids(want, shift):
    want = np.append(want, np.float32(3.0))  # outside [0, 1]
    got = want + np.float32(shift)

    def sigmoid(x):
        return 1 / (1 + np.exp(-x.astype(np.float64)))

    verdict = one(judge({"z": want}, {"z": got}, None, LOOSE))
    assert verdict.read_as == "logit"
    assert verdict.max_dp == pytest.approx(np.abs(sigmoid(got) - sigmoid(want)).max(), abs=1e-12)


@given(scores, st.data())
@settings(deadline=None)
def test_a_value_that_is_lost_fails_whatever_the_limits(want, data):
    place = data.draw(st.integers(0, len(want) - 1))
    got = want.copy()
    got[place] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    result = judge({"p": want}, {"p": got}, None, LOOSE)
    assert not result.passed
    assert result.failed == (f"output 'p': 1 of {len(want)} values are NaN or infinite where the reference is finite",)


def test_what_the_reference_has_as_nan_must_be_nan():
    want = np.array([0.5, np.nan, np.inf], np.float32)
    assert judge({"p": want}, {"p": want.copy()}, None, LIMITS).passed
    result = judge({"p": want}, {"p": np.array([0.5, 0.1, -np.inf], np.float32)}, None, LOOSE)
    assert "2 of 3 values differ where the reference is NaN or infinite" in result.failed[0]


@given(scores, scores, st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_auc_is_that_of_the_profiler(want, other, seed):
    got = np.resize(other, want.shape)
    labels = np.random.default_rng(seed).integers(0, 2, len(want))
    verdict = one(judge({"p": want}, {"p": got}, labels, LOOSE))
    before, after = auc(labels, want), auc(labels, got)
    if before is None:
        assert verdict.auc_delta is None and verdict.auc_reason == "the labels are all of one class"
    else:
        assert verdict.auc_reference == before and verdict.auc_delta == after - before


@given(scores, st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None)
def test_wider_limits_never_turn_a_pass_into_a_failure(want, narrow, wide):
    low, high = sorted((narrow, wide))
    got = np.clip(want + np.float32(0.01), 0, 1)
    small, large = (GateLimits(max_dp=v, max_bias=v, max_auc_delta=v) for v in (low, high))
    if judge({"p": want}, {"p": got}, None, small).passed:
        assert judge({"p": want}, {"p": got}, None, large).passed


def test_each_limit_fails_by_itself_and_is_named():
    rng = np.random.default_rng(0)
    want = np.sort(rng.uniform(0.2, 0.8, 1000)).astype(np.float32)
    labels = (np.arange(1000) >= 500).astype(int)
    far = want.copy()
    far[3] += 0.01
    assert [f.split(" is over")[0] for f in judge({"p": want}, {"p": far}, None, LIMITS).failed] == [
        "output 'p': max |dp| 0.01"
    ]
    moved = want + np.float32(5e-4)
    assert judge({"p": want}, {"p": moved}, None, LIMITS).failed == ("output 'p': mean bias +0.0005 is over 0.0001",)
    swapped = want.copy()
    swapped[450:550] = want[450:550][::-1]
    wide = GateLimits(max_dp=1, max_bias=1, max_auc_delta=1e-4)
    (reason,) = judge({"p": want}, {"p": swapped}, labels, wide).failed
    assert reason.startswith("output 'p': AUC changes by -0.01")


def test_integers_and_strings_must_be_equal():
    want = {"ids": np.array([1, 2, 3]), "names": np.array([b"a", b"b"], object)}
    assert judge(want, dict(want), None, LIMITS).passed
    result = judge(want, {"ids": np.array([1, 2, 4]), "names": np.array([b"a", b"c"], object)}, None, LOOSE)
    assert result.failed == ("output 'ids': 1 of 3 values differ", "output 'names': 1 of 2 values differ")


def test_outputs_that_are_missing_new_or_of_another_form_fail():
    p = np.array([0.5], np.float32)
    assert judge({"p": p}, {}, None, LOOSE).failed == ("output 'p': the candidate lacks it",)
    assert judge({"p": p}, {"p": p, "q": p}, None, LOOSE).failed == ("output 'q': only the candidate has it",)
    assert judge({"p": p}, {"p": p[:, None]}, None, LOOSE).failed == ("output 'p': shape [1, 1], expected [1]",)
    assert judge({"p": p}, {"p": p.astype(int)}, None, LOOSE).failed == ("output 'p': dtype int64, expected float32",)


def test_nothing_to_judge_is_no_pass():
    empty = np.zeros((0, 1), np.float32)
    assert judge({"p": empty}, {"p": empty}, None, LOOSE).failed == ("there are no values to judge",)
    assert not judge({}, {}, None, LOOSE).passed


def test_labels_belong_to_one_output():
    p, z, names = (
        np.array([0.1, 0.9], np.float32),
        np.array([[-3.0], [3.0]], np.float32),
        np.array([b"a", b"b"], object),
    )
    labels = [0, 1]
    both = {"p": p, "z": z, "names": names}
    unclear = judge(both, both, labels, LIMITS)
    assert [o.auc_reason for o in unclear.outputs] == ["2 labels belong to no one output"] * 2 + [""]
    named = judge(both, both, labels, LIMITS, label_output="z")
    assert named.outputs[1].auc_delta == 0 and named.outputs[0].auc_reason == "the labels are those of output 'z'"
    with pytest.raises(InputError, match="labels of output 'x'"):
        judge(both, both, labels, LIMITS, label_output="x")
    assert one(judge({"p": p}, {"p": p}, [1, 1], LIMITS)).auc_reason == "the labels are all of one class"
    assert one(judge({"p": p}, {"p": p}, None, LIMITS)).auc_reason == "no labels"


def test_bfloat16_and_half_outputs_are_floats():
    for dtype in (ml_dtypes.bfloat16, np.float16):
        want = np.array([0.25, 0.5], dtype)
        assert one(judge({"p": want}, {"p": want}, None, LIMITS)).read_as == "probability"
        assert not judge({"p": want}, {"p": np.array([0.25, 0.75], dtype)}, None, LIMITS).passed


def test_the_text_says_what_was_found_and_how_it_was_read():
    want, labels = np.array([[-1.0], [2.0], [0.5]], np.float32), [0, 1, 0]
    passed = judge({"score": want}, {"score": want}, labels, LIMITS)
    assert passed.text == (
        "passed on 3 rows: max |dp| 0 (limit 0.001), mean bias +0 (limit 0.0001), AUC +0 (limit 0.0001); "
        "read as logits: score"
    )
    assert "AUC not judged (no labels)" in judge({"score": want}, {"score": want}, None, LIMITS).text
    failed = judge({"score": want}, {"score": want + 1}, None, LIMITS, rows=7)
    assert failed.text.startswith("failed on 7 rows: output 'score': max |dp| 0.")
    told = json.loads(json.dumps(failed.to_json()))
    assert told["passed"] is False and told["outputs"][0]["read_as"] == "logit" and told["limits"]["max_dp"] == 1e-3


def test_limits_have_defaults_per_dtype_and_are_checked():
    assert DEFAULT_LIMITS["fp16"] == DEFAULT_LIMITS["bf16"] == LIMITS
    assert limits_for("int8") == GateLimits(max_dp=5e-3, max_bias=1e-3, max_auc_delta=1e-4)
    assert limits_for("fp16", max_bias=0.5) == GateLimits(max_dp=1e-3, max_bias=0.5, max_auc_delta=1e-4)
    with pytest.raises(UsageError, match="'fp8'; known: fp16, bf16, int8"):
        limits_for("fp8")
    for wrong in (-1e-9, math.nan, math.inf):
        with pytest.raises(UsageError, match="max_dp .*: expected a number of 0 or more"):
            limits_for("fp16", max_dp=wrong)
