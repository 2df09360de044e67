"""Paired timing runs every contestant equally often and in turn."""

import numpy as np

from tfctr.profiling.paired import Timing, measure_paired, ratio


def test_contestants_take_turns() -> None:
    order: list[str] = []
    timings = measure_paired(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=4, warmup_rounds=1
    )
    assert order == ["a", "b", "a", "b", "b", "a", "a", "b", "b", "a"]
    assert [len(t.samples_ms) for t in timings.values()] == [4, 4]


def test_a_budget_ends_early_but_not_before_five_rounds() -> None:
    timings = measure_paired({"a": lambda: None}, rounds=50, warmup_rounds=0, budget_s=0.0)
    assert len(timings["a"].samples_ms) == 5


def test_ratio_is_slow_over_fast() -> None:
    slow, fast = Timing("s", np.array([4.0, 6.0, 8.0])), Timing("f", np.array([2.0, 2.0, 2.0]))
    found = ratio(slow, fast)
    assert (found["min"], found["median"], found["paired_median"]) == (2.0, 3.0, 3.0)
    assert fast.as_dict()["rounds"] == 3
