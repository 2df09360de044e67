"""The result of a load test as one self-contained HTML page, for a person who does not know the code."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

_TEMPLATE = pathlib.Path(__file__).with_name("page.html.j2")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 300, 62, 40, 14, 28
_COLOURS = ("#2563a8", "#b45309", "#16794a", "#8b3fa0", "#b3261e", "#0f766e", "#6b7280", "#a16207")

Series = tuple[str, list[tuple[float, float]]]


def render_page(result: Mapping[str, Any]) -> str:
    """The page for the JSON of ``tfctr loadtest --json``; everything it needs is inside it."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["ms"] = milliseconds
    environment.filters["load"] = name_of_run
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    runs = result["runs"]
    return template.render(
        r=result,
        runs=runs,
        by_percentile=chart(_tails(runs), _tail_ticks(), "share of requests answered sooner", "ms", log_y=True),
        by_rate=_rate_chart(runs, result.get("p99_budget_ms")),
        over_time=_time_chart(runs),
    )


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def name_of_run(run: Mapping[str, Any]) -> str:
    return f"{run['clients']} clients" if run["rate"] is None else f"{run['rate']:.4g}/s"


def _tails(runs: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Latency by percentile; x is the number of nines, so that the tail has room."""
    chosen = (
        list(runs) if len(runs) <= len(_COLOURS) else [run for run in runs if not run["given_up"]][-len(_COLOURS) :]
    )
    found = []
    for run in chosen:
        points = [(nines(q), value) for q, value in run["summary"]["curve_ms"] if q < 100 and value > 0]
        if points:
            found.append((name_of_run(run), points))
    return found


def nines(percentile: float) -> float:
    """0 at 0 %, 1 at 90 %, 2 at 99 %, 3 at 99.9 %."""
    return -math.log10(1 - percentile / 100)


def _tail_ticks() -> list[tuple[float, str]]:
    return [(nines(q), f"{q:g}%") for q in (0.0, 50.0, 90.0, 95.0, 99.0, 99.9, 99.99)]


def _rate_chart(runs: Sequence[Mapping[str, Any]], budget: float | None) -> str | None:
    """p50 and p99 against the rate, where there are several rates."""
    rated = sorted((run for run in runs if run["rate"] is not None and not run["given_up"]), key=lambda r: r["rate"])
    if len({run["rate"] for run in rated}) < 2:
        return None
    series: list[Series] = []
    for name in ("p50", "p95", "p99"):
        points = [(run["rate"], run["summary"]["percentiles_ms"][name]) for run in rated]
        series.append((name, [(rate, value) for rate, value in points if value]))
    return chart(series, None, "requests/s", "ms", log_y=True, line=budget)


def _time_chart(runs: Sequence[Mapping[str, Any]]) -> str | None:
    points = runs[-1]["summary"]["over_time"] if runs else []
    if len(points) < 3:
        return None
    series = [(name, [(p["second"], p[f"{name}_ms"]) for p in points]) for name in ("p50", "p99")]
    return chart(series, None, f"second of the last run ({name_of_run(runs[-1])})", "ms", log_y=False)


def chart(
    series: Sequence[Series],
    x_ticks: Sequence[tuple[float, str]] | None,
    x_name: str,
    y_name: str,
    *,
    log_y: bool,
    line: float | None = None,
) -> str:
    """An SVG of lines. line: a horizontal one across, for a limit."""
    points = [p for _, some in series for p in some]
    if not points:
        return ""
    xs = [x for x, _ in points] + [x for x, _ in x_ticks or () if x <= max(p[0] for p in points)]
    ys = [y for _, y in points] + ([line] if line else [])
    x_axis = _Axis(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT, False)
    y_axis = _Axis(min(ys) if log_y else 0.0, max(ys), _HEIGHT - _BOTTOM, _TOP, log_y)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">']
    for value, label in y_axis.ticks():
        y = y_axis.place(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for value, label in x_ticks if x_ticks is not None else x_axis.ticks():
        if x_axis.low <= value <= x_axis.high:
            x = x_axis.place(value)
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 4}" text-anchor="middle" class="axis">{x_name}</text>')
    parts.append(f'<text x="4" y="{_TOP + 4}" class="axis">{y_name}</text>')
    if line:
        y = y_axis.place(line)
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for number, (name, some) in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in some)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in some:
            dot = f'<circle cx="{x_axis.place(x):.1f}" cy="{y_axis.place(y):.1f}" r="2.6" fill="{colour}">'
            parts.append(f"{dot}<title>{name}: {milliseconds(y)} ms</title></circle>")
        y = _TOP + 14 + 16 * number
        parts.append(f'<path d="M{_LEFT + 10} {y - 4}h16" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{_LEFT + 32}" y="{y}" style="fill: {colour}">{name}</text>')
    return "".join([*parts, "</svg>"])


class _Axis:
    def __init__(self, low: float, high: float, start: float, end: float, log: bool) -> None:
        if log:
            self.low, self.high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high) + 1e-9)
        else:
            self.low, self.high = low, high if high > low else low + 1
        self._start, self._end, self._log = start, end, log

    def place(self, value: float) -> float:
        if self._log:
            share = math.log10(value / self.low) / math.log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[tuple[float, str]]:
        if self._log:
            decades = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            return [(10.0**k, f"{10.0**k:g}") for k in decades]
        step = 10 ** math.floor(math.log10(self.high - self.low))
        step = next(step * k for k in (0.2, 0.5, 1, 2, 5) if (self.high - self.low) / (step * k) <= 7)
        first = math.ceil(self.low / step)
        return [(k * step, f"{k * step:g}") for k in range(first, math.floor(self.high / step + 1e-9) + 1)]
