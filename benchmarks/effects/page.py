"""``report.html``: the effects as bars with their spread, on one page that needs nothing else."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence

from benchmarks.effects.rows import MEASURED, Report, Row
from benchmarks.effects.settings import CONTEXTS, Setting

_TEMPLATE = pathlib.Path(__file__).with_name("page.html.j2")
WIDTH, LEAST_SPAN = 420, 1.1
_MARGIN = 1.04


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """x: of the bar's left end, in pixels; whisker from x_low to x_high."""

    x: float
    width: float
    x_low: float
    x_high: float


@dataclasses.dataclass(frozen=True)
class Line:
    setting: Setting
    row: Row
    bar: Bar | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """One model in one context. zero: where the ratio 1 lies. ticks: (pixel, text)."""

    model: str
    context: str
    lines: tuple[Line, ...]
    zero: float
    ticks: tuple[tuple[float, str], ...]


def report_page(report: Report, settings: Sequence[Setting]) -> str:
    """The page as HTML."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    charts = [_chart(report, settings, model, context) for model in report.models for context in CONTEXTS]
    verdicts = [row.verdict for row in report.rows if row.verdict]
    return template.render(
        report=report,
        charts=charts,
        settings=settings,
        contexts=CONTEXTS,
        counts={kind: verdicts.count(kind) for kind in ("gain", "equal", "loss")},
        width=WIDTH,
    )


def _chart(report: Report, settings: Sequence[Setting], model: str, context: str) -> Chart:
    found = [(s, row) for s in settings for row in report.of(s.name, context) if row.model == model]
    measured = [row for _, row in found if row.status == MEASURED]
    low = min([1 / LEAST_SPAN, *(row.low for row in measured)]) / _MARGIN
    high = max([LEAST_SPAN, *(row.high for row in measured)]) * _MARGIN

    def pixel(ratio: float) -> float:
        """Ratios are drawn on a logarithmic scale: twice as fast is as long as twice as slow."""
        return WIDTH * math.log(ratio / low) / math.log(high / low)

    def bar(row: Row) -> Bar | None:
        if row.status != MEASURED:
            return None
        ends = sorted((pixel(1), pixel(row.ratio)))
        return Bar(x=ends[0], width=ends[1] - ends[0], x_low=pixel(row.low), x_high=pixel(row.high))

    lines = tuple(Line(setting, row, bar(row)) for setting, row in found)
    ticks = tuple((pixel(value), f"{value:g}x") for value in _ticks(low, high))
    return Chart(model=model, context=context, lines=lines, zero=pixel(1), ticks=ticks)


def _ticks(low: float, high: float) -> list[float]:
    """A few round ratios between ``low`` and ``high``, 1 among them, that do not write over each other."""
    found = [1.0]
    for value in (0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20):
        apart = min(abs(math.log(value / other)) for other in found) / math.log(high / low)
        if low < value < high and apart > 0.09:
            found.append(value)
    return sorted(found)
