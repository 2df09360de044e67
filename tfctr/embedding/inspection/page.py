"""A source and its tables as one self-contained HTML page: histograms as inline SVG, nothing loaded from elsewhere."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2

from tfctr.bundle.summary import count_words, size_words
from tfctr.embedding.inspection.histogram import Bar, age_words, duration_words
from tfctr.embedding.inspection.report import Report
from tfctr.embedding.inspection.sources import Source
from tfctr.embedding.inspection.words import facts, kept_words, percent, share, slot_words, time_words
from tfctr.version import __version__

_TEMPLATE = pathlib.Path(__file__).with_name("page.html.j2")


def render(source: Source, reports: Sequence[Report]) -> str:
    """The page. Of tables without a report it has their line in the first table only."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "size_words": size_words,
        "count_words": count_words,
        "time_words": time_words,
        "duration_words": duration_words,
        "kept_words": kept_words,
    }
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        source=source,
        reports=reports,
        version=__version__,
        facts=facts,
        charts=charts,
        share=share,
        slot_words=slot_words,
        rows=sum(table.rows for table in source.tables.values()),
        bytes=sum(table.bytes for table in source.tables.values()),
    )


def charts(report: Report) -> list[dict[str, Any]]:
    """The histograms of a table: title, what the bars are of, bars with their place in the drawing."""
    told = report.statistics
    listed: list[tuple[str, str, Sequence[Bar], Any]] = []
    if told.frequency is not None:
        listed.append(("How often keys came", "occurrences in training", told.frequency.bars(), Bar.words))
    if told.age_steps is not None:
        at = f"steps since the last update, at step {told.now.step:,}"
        listed.append(("Age in steps", at, told.age_steps.bars(), Bar.words))
    if told.age_time is not None:
        at = f"time since the last update, at {time_words(told.now.time_ms)}"
        listed.append(("Age in time", at, told.age_time.bars(), age_words))
    listed.append(("Length of rows", "Euclidean norm of the value", told.norms.bars(), Bar.words))
    drawn = [_chart(title, "rows", what, bars, words) for title, what, bars, words in listed if bars]
    if told.counters is not None and told.counter_rows:
        what = "occurrences counted so far"
        drawn.append(_chart("Keys without a row", "keys", what, told.counters.bars(), Bar.words))
    return drawn


_ROW, _LABEL, _WIDTH, _COUNT = 20, 150, 240, 120  # pixels: height of a bar, widths of label, longest bar and count


def _chart(title: str, unit: str, what: str, bars: Sequence[Bar], words: Any) -> dict[str, Any]:
    most = max(bar.count for bar in bars) or 1
    total = sum(bar.count for bar in bars)
    drawn = [
        {
            "y": number * _ROW,
            "width": max(1.5, bar.count / most * _WIDTH) if bar.count else 0,
            "words": words(bar),
            "count": f"{bar.count:,}",
            "share": percent(bar.count, total),
        }
        for number, bar in enumerate(bars)
    ]
    return {
        "title": title,
        "what": what,
        "unit": unit,
        "bars": drawn,
        "row": _ROW,
        "label": _LABEL,
        "width": _LABEL + _WIDTH + _COUNT,
        "height": len(bars) * _ROW + 4,
    }
