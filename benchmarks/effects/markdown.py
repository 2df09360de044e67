"""``report.md``, and the table of the README, which is the first of the report."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from benchmarks.effects.rows import FAILED, GAIN, LOSS, MEASURED, Figures, Report, Row
from benchmarks.effects.settings import ASKED_FOR, CONTEXTS, ON_BY_DEFAULT, Setting

BEGIN, END = "<!-- effects: written by `make bench-report` -->", "<!-- end of effects -->"
_HEAD = """# Effects of every pass, engine and setting

Written by `make bench-report`; [report.html](report.html) shows the same as bars. Numbers are "without / with": above 1
the setting is faster, below 1 slower. **Alone**: the setting against a bundle with every pass off that can be off
but `prune_training`, which all others need. **Among all**: everything that fits together against all but the setting.
Sides run in turn in one process, each timed call after an untimed one; the ratio is the median over the rounds, in
brackets its quartiles. A gain or loss is one by more than 3 % in which three quarters of the rounds agree.
"""


def name_of(setting: Setting) -> str:
    return f"`{setting.what}`" + (f" `{setting.variant}`" if setting.variant else "")


def effect_table(report: Report, settings: Sequence[Setting]) -> str:
    """One row per setting over all models, between the markers of the README."""
    lines = [
        BEGIN,
        "| pass or setting | by default | alone | among all | loses on | in one sentence |",
        "|---|---|---|---|---|---|",
    ]
    for setting in settings:
        if any(report.of(setting.name, context) for context in CONTEXTS):
            cells = [_range(report.of(setting.name, context)) for context in CONTEXTS]
            told = [setting.by_default, *cells, _losers(report, setting), setting.says]
            lines.append(f"| {name_of(setting)} | {' | '.join(told)} |")
    return "\n".join([*lines, END])


def _range(rows: Sequence[Row]) -> str:
    ratios = [row.ratio for row in rows if row.status == MEASURED]
    if not ratios:
        told = list(dict.fromkeys(row.status for row in rows))
        return ", ".join(told) or "not run"
    low, high = min(ratios), max(ratios)
    text = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    return text if len(ratios) == len(rows) else f"{text} ({len(ratios)} of {len(rows)} models)"


def _losers(report: Report, setting: Setting) -> str:
    found = []
    for context in CONTEXTS:
        names = [row.model for row in report.of(setting.name, context) if row.verdict == LOSS]
        if names:
            found.append(f"{', '.join(names)} ({context})")
    return "; ".join(found) or "none"


def report_markdown(report: Report, settings: Sequence[Setting]) -> str:
    """The whole file."""
    parts = [_HEAD, _conditions(report), "## In one table", effect_table(report, settings)]
    parts += _verdicts(report, settings)
    for model in report.models:
        parts.append(f"## {model}")
        for context in CONTEXTS:
            parts.append(f"### {model}, {context}\n\n" + _model_table(report, settings, model, context))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _conditions(report: Report) -> str:
    return "\n".join(f"- {key}: {value}" for key, value in report.conditions.items())


def _verdicts(report: Report, settings: Sequence[Setting]) -> list[str]:
    losses = [row for row in report.rows if row.verdict == LOSS]
    gains = [row for row in report.rows if row.verdict == GAIN]
    measured = sum(row.status == MEASURED for row in report.rows)
    equal = measured - len(losses) - len(gains)
    text = f"Of {measured} comparisons {len(gains)} are gains, {len(losses)} losses, {equal} equal within the spread."
    defaults = {setting.name: setting.by_default for setting in settings}
    lines = [
        f"- {row.model}, {row.setting}, {row.context}: {_ratio(row)}; {_default_words(defaults[row.setting])}"
        for row in losses
    ]
    parts = ["## Losses", text, *(["\n".join(lines)] if lines else [])]
    if report.failed:
        parts += ["## Failed", "\n".join(f"- {r.model}, {r.setting}, {r.context}: {r.reason}" for r in report.failed)]
    return parts


def _default_words(by_default: str) -> str:
    return {ON_BY_DEFAULT: "**on by default**", ASKED_FOR: "off unless asked for"}.get(by_default, "no setting")


def _ratio(row: Row) -> str:
    return f"{row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]"


def _model_table(report: Report, settings: Sequence[Setting], model: str, context: str) -> str:
    lines = [
        "| pass or setting | p50 ms, without / with | p99 ms | ratio [quartiles] | | ops | transfers | tables MB "
        "| RSS MB | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for setting in settings:
        for row in report.of(setting.name, context):
            if row.model == model:
                lines.append(_line(setting, row))
    return "\n".join(lines)


def _line(setting: Setting, row: Row) -> str:
    reason = row.reason.replace("|", "\\|").replace("\n", " ")
    if row.on is None or row.off is None:
        status = f"**{row.status}**" if row.status == FAILED else row.status
        return f"| {name_of(setting)} | | | | {status} | | | | | {reason} |"
    verdict = {GAIN: "gain", LOSS: "**loss**"}.get(row.verdict, "")
    cells = [
        _both(row.off.p50_ms, row.on.p50_ms, "{:.2f}"),
        _both(row.off.p99_ms, row.on.p99_ms, "{:.2f}"),
        _ratio(row),
        verdict,
        _both(row.off.ops, row.on.ops, "{}"),
        _both(_crossed(row.off), _crossed(row.on), "{}"),
        _both(row.off.table_bytes / 1e6, row.on.table_bytes / 1e6, "{:.1f}"),
        _both(row.off.rss_mb, row.on.rss_mb, "{:.0f}"),
        reason,
    ]
    return f"| {name_of(setting)} | {' | '.join(cells)} |"


def _crossed(side: Figures) -> str:
    return f"{side.transfers} ({side.transfer_bytes:,} B)" if side.transfers else "0"


def _both(off: object, on: object, form: str) -> str:
    return f"{form.format(off)} / {form.format(on)}"


def put_table(readme: pathlib.Path, table: str) -> None:
    """Replaces what stands between the markers in ``readme``. ValueError where they are missing."""
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme}: the markers {BEGIN} and {END} are missing")
    readme.write_text(before + table + after, encoding="utf-8")
