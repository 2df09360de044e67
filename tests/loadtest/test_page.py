"""The HTML page: self-contained, says what the figures say, and takes hostile texts."""

import re

import pytest

from tests.loadtest.fakes import FAILED, REQUESTS, FakeChannel, FakeClock, Inline
from tfctr.loadtest.channel import PLAIN_OK, Answer
from tfctr.loadtest.page import _COLOURS, milliseconds, nines, render_page
from tfctr.loadtest.plan import Outcome
from tfctr.loadtest.runs import OpenLoop, RunOptions
from tfctr.loadtest.schedule import Arrivals

OPTIONS = RunOptions(0.0, timing_every=0)


def run(rate, answer=lambda n: PLAIN_OK):
    clock = FakeClock()
    loop = OpenLoop(FakeChannel(clock, lambda n: 2 + n % 7, answer), REQUESTS, OPTIONS, clock, connect=Inline)
    return loop.run(Arrivals(seed=1).schedule(rate, 4), rate)


def result(*runs, **more):
    told = Outcome(list(runs)).as_dict(256, False)
    for one in told["runs"]:
        one["missed"] = None
    return {
        "target": "grpc://127.0.0.1:8500/<ranker>", "traffic": "generated", "when": "now", "version": "1",
        "p99_budget_ms": 30, "best": None, **told, **more,
    }  # fmt: skip


def test_the_page_is_whole_and_alone():
    page = render_page(result(run(20), run(60), run(120)))
    assert page.count("<svg") == 3  # by rate, by percentile, over time
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert "&lt;ranker&gt;" in page and "<ranker>" not in page
    for rate in ("20/s", "60/s", "120/s"):
        assert rate in page
    assert all(f'style="fill: {colour}">p' in page for colour in _COLOURS[:3])  # the legend
    assert "nan" not in re.sub(r"<[^>]+>", "", page).lower()


def test_one_run_has_no_curve_by_rate():
    assert render_page(result(run(50))).count("<svg") == 2


def test_errors_and_their_messages_are_on_the_page():
    page = render_page(result(run(50, lambda n: FAILED if n % 5 == 0 else Answer("OK"))))
    assert "UNAVAILABLE" in page and "gone" in page


def test_a_run_without_any_answer_has_a_page():
    assert "UNAVAILABLE" in render_page(result(run(50, lambda n: FAILED)))


@pytest.mark.parametrize(("percentile", "place"), [(0, 0), (90, 1), (99, 2), (99.9, 3)])
def test_the_tail_has_room(percentile, place):
    assert nines(percentile) == pytest.approx(place)


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.1234, "0.12"), (12.34, "12.3"), (1234.5, "1234")])
def test_milliseconds(value, text):
    assert milliseconds(value) == text
