"""Arrival processes."""

import numpy as np
import pytest

from tfctr.errors import UsageError
from tfctr.loadtest.schedule import Arrivals


def test_poisson_arrivals_have_the_rate_and_exponential_gaps():
    """Triton #8251: queues show under real arrivals, not in a closed loop."""
    moments = Arrivals("poisson", seed=1).schedule(1000, 20)
    gaps = np.diff(moments) / 1e9
    assert moments.dtype == np.int64 and (gaps >= 0).all() and moments[-1] < 20e9
    assert len(moments) == pytest.approx(20_000, rel=0.03)
    # Of an exponential law: standard deviation = mean, and e^-1 of the gaps are longer than the mean.
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)
    assert (gaps > gaps.mean()).mean() == pytest.approx(np.exp(-1), abs=0.02)


def test_equal_seeds_give_equal_moments_and_others_do_not():
    assert np.array_equal(Arrivals(seed=3).schedule(50, 5), Arrivals(seed=3).schedule(50, 5))
    assert not np.array_equal(Arrivals(seed=3).schedule(50, 5)[:20], Arrivals(seed=4).schedule(50, 5)[:20])


def test_bursts_come_together_at_the_same_mean_rate():
    """Triton #8251."""
    moments = Arrivals("bursts", burst_size=20, seed=1).schedule(1000, 20)
    _, sizes = np.unique(moments, return_counts=True)
    assert (sizes % 20 == 0).all()
    assert len(moments) == pytest.approx(20_000, rel=0.12)


def test_uniform_arrivals_have_equal_gaps():
    assert Arrivals("uniform").schedule(4, 1).tolist() == [0, 250_000_000, 500_000_000, 750_000_000]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Arrivals("regular"), "arrivals 'regular': expected one of poisson, bursts, uniform"),
        (lambda: Arrivals("bursts", burst_size=0), "a burst of 0 requests"),
        (lambda: Arrivals().schedule(0, 1), "expected two positive numbers"),
        (lambda: Arrivals().schedule(float("nan"), 1), "expected two positive numbers"),
        (lambda: Arrivals().schedule(10, float("inf")), "expected two positive numbers"),
        (lambda: Arrivals().schedule(1e9, 1e9), "more than 20000000 requests"),
    ],
)
def test_what_is_no_schedule_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
