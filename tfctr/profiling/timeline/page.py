"""A profile as one self-contained HTML page, for a person who does not know the code."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Hashable
from typing import Any

import jinja2

from tfctr.bundle.summary import node_words
from tfctr.profiling.timeline import advice, grouping, machine_facts, page_data, story, words
from tfctr.profiling.timeline.analysis import Analysis, analyse
from tfctr.profiling.timeline.events import Timeline
from tfctr.profiling.timeline.grouping import Row, Share
from tfctr.profiling.timeline.roles import OVERHEAD, ROLE_WORDS, ROLES
from tfctr.version import __version__

_FOLDER = pathlib.Path(__file__).parent
NO_FEATURE = "no feature: dense part and the rest"
NO_PASS = "as the model had it"
LINKS_SHOWN = 20


def write_page(path: str | os.PathLike[str], timeline: Timeline, baseline: Timeline | None = None) -> None:
    """Writes the page of ``timeline``, with ``baseline`` before it, under a temporary name, then renames it."""
    file = pathlib.Path(path)
    temporary = file.with_name(f".{file.name}.tmp-{os.getpid()}")
    try:
        # Paths may have bytes that are no UTF-8.
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as out:
            out.write(render_page(timeline, baseline))
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def render_page(timeline: Timeline, baseline: Timeline | None = None) -> str:
    """The page; everything it needs is inside it."""
    facts = facts_of(timeline, baseline)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "time": words.time_words,
        "percent": words.percent_words,
        "number": words.number_words,
        "size": words.size_words,
        "node": node_words,
    }
    template = environment.from_string((_FOLDER / "page.html.j2").read_text(encoding="utf-8"))
    named = _named(facts)
    drawn = page_data.embed(page_data.picture(named))
    return template.render(
        a=facts.a,
        b=facts.baseline,
        named=named,
        warnings=_warnings(facts),
        slow=story.what_was_slow(facts.baseline or facts.a, facts.names[0]),
        changed=story.what_changed(facts.baseline, facts.a, facts.names[1]),
        dominates=story.dominates(facts.a),
        slower_engine=facts.slower_engine,
        advice=advice.by_command(advice.advise(facts)),
        tables=[_by_op(facts), _by_feature(facts), _by_pass(facts)],
        scale=max(one.step_ns for _, one in named),
        roles=[(role, ROLE_WORDS[role]) for role in ROLES],
        glance=glance(facts),
        paths=[(title, one, *_links(one)) for title, one in named],
        layers=[(title, _layers(one)) for title, one in named if _layers(one)],
        story=story,
        version=__version__,
        data=drawn,
        style=(_FOLDER / "page.css").read_text(encoding="utf-8"),
        script=(_FOLDER / "page.js").read_text(encoding="utf-8"),
    )


def facts_of(timeline: Timeline, baseline: Timeline | None) -> advice.Facts:
    """The analyses of both, with what the machine and the bundle tell."""
    return advice.Facts(
        a=analyse(timeline),
        baseline=analyse(baseline) if baseline is not None else None,
        tables_bytes=machine_facts.tables_bytes(timeline.path),
        cache_bytes=machine_facts.cache_bytes(),
        slower_engine=machine_facts.slower_engine(timeline.path, timeline.signature),
    )


def summary(timeline: Timeline, baseline: Timeline | None = None) -> dict[str, Any]:
    """The same in numbers, for ``--json``; times in nanoseconds, shares 0..1."""
    facts = facts_of(timeline, baseline)
    return {
        "slow": story.what_was_slow(facts.baseline or facts.a, facts.names[0]),
        "changed": story.what_changed(facts.baseline, facts.a, facts.names[1]),
        "dominates": story.dominates(facts.a),
        "warnings": _warnings(facts),
        "profile": _figures(facts.a),
        "baseline": _figures(facts.baseline) if facts.baseline else None,
        "advice": [dataclasses.asdict(one) for one in advice.advise(facts)],
    }


def _warnings(facts: advice.Facts) -> list[str]:
    both = [(a, name) for a, name in zip((facts.baseline, facts.a), facts.names, strict=True) if a is not None]
    waits = [a.timeline.waiting_threads for a, _ in both if a.timeline.waiting_threads is not None]
    told = story.wait_warning(max(waits, default=None))
    return [told] if told else [text for a, name in both for text in story.warnings(a, name)]


def _figures(a: Analysis) -> dict[str, Any]:
    return {
        "path": a.timeline.path,
        "form": a.timeline.form,
        "signature": a.timeline.signature,
        "rows": a.timeline.rows,
        "threads": a.timeline.threads,
        "complete": a.timeline.complete,
        "error": a.timeline.error,
        "steps": len(a.timeline.steps),
        "step_ns": a.step_ns,
        "untraced_ns": a.untraced_ns,
        "operations": a.ops,
        "by_role": {str(share.key): _share(share) for share in a.by_role},
        "by_op": {share.label: _share(share) for share in a.by_op},
        "by_feature": [{"features": _listed(share.key), **_share(share)} for share in a.by_feature],
        "by_pass": [{"pass": pass_words(share.key)[0], **_share(share)} for share in a.by_pass],
        "spread": dataclasses.asdict(a.spread) if a.spread else None,
        "overhead": dataclasses.asdict(a.overhead),
        "critical_path": {
            "total_ns": a.path.total_ns,
            "nodes": [{"node": link.event.name, "duration_ns": link.duration_ns} for link in a.path.links],
        },
        "transfers": [dataclasses.asdict(count) for count in a.timeline.transfers],
        "memory_peak_bytes": a.timeline.memory_peak_bytes,
    }


def _share(share: Share) -> dict[str, Any]:
    return {"time_ns": share.time_ns, "share": share.share, "operations": share.calls}


def _listed(key: Hashable) -> list[str]:
    return list(key) if isinstance(key, tuple) else [str(key)]


def _named(facts: advice.Facts) -> list[tuple[str, Analysis]]:
    if facts.baseline is None:
        return [(facts.names[1], facts.a)]
    return [(f"Before: {facts.names[0]}", facts.baseline), (f"After: {facts.names[1]}", facts.a)]


def _table(title: str, what: str, head: str, rows: list[Row]) -> dict[str, Any]:
    top, rest = grouping.rest_of(rows)
    return {"title": title, "what": what, "head": head, "rows": top, "rest": rest, "all": rows}


def _by_op(facts: advice.Facts) -> dict[str, Any]:
    rows = grouping.side_by_side(
        facts.baseline.by_op if facts.baseline else None, facts.a.by_op, lambda key: (_overhead_or(key), "")
    )
    return _table("By operation", "Kinds of TensorFlow operations, all nodes of a kind together.", "Operation", rows)


def _by_feature(facts: advice.Facts) -> dict[str, Any]:
    rows = grouping.by_feature(facts.baseline.by_feature if facts.baseline else None, facts.a.by_feature, NO_FEATURE)
    what = (
        "Work by the feature it is for. An operation that works for many features has a row of its own, as nobody "
        "knows how much of it is whose."
    )
    return _table("By feature", what, "Feature", rows)


def _by_pass(facts: advice.Facts) -> dict[str, Any]:
    rows = grouping.side_by_side(facts.baseline.by_pass if facts.baseline else None, facts.a.by_pass, pass_words)
    what = "Which pass of the conversion, and which rule of it, made the operation (tfctr passes explains them)."
    return _table("By pass", what, "Pass and rule", rows)


def pass_words(key: Hashable) -> tuple[str, str]:
    """("fuse_lookups, rule sparse", "")."""
    if not isinstance(key, tuple):
        return _overhead_or(key), ""
    name, rule = key
    return (f"{name}, rule {rule}" if rule and rule != name else name) or NO_PASS, ""


def _overhead_or(key: Hashable) -> str:
    return ROLE_WORDS[OVERHEAD] if key == OVERHEAD else str(key)


def glance(facts: advice.Facts) -> list[tuple[str, str, str]]:
    """Rows of the table "At a glance": what, before, after; before is "" without a baseline."""

    def row(what: str, tell: Any) -> tuple[str, str, str]:
        return what, tell(facts.baseline) if facts.baseline else "", tell(facts.a)

    return [
        row("a call, nothing recording", lambda x: words.time_words(x.untraced_ns)),
        row("a recorded step, mean of the middle half", lambda x: words.time_words(x.step_ns)),
        row("of it: embedding lookups", lambda x: _glance_role(x, "lookup")),
        row("of it: dense part", lambda x: _glance_role(x, "dense")),
        row("of it: executor and feed, no operation runs", lambda x: _glance_time(x, x.overhead.total_ns)),
        row("operations per call", lambda x: words.number_words(x.ops)),
        row("first to last lookup", _glance_spread),
        row("critical path", lambda x: words.time_words(x.path.total_ns) if x.drawn else "-"),
        row("tensors that cross between devices", _glance_transfers),
        row("memory of a step at its peak", lambda x: words.size_words(x.timeline.memory_peak_bytes)),
    ]


def _glance_role(a: Analysis, role: str) -> str:
    share = a.role(role)
    return f"{words.time_words(share.time_ns)} in {words.plural(share.calls, 'operation')}"


def _glance_time(a: Analysis, time_ns: float) -> str:
    return f"{words.time_words(time_ns)}, {words.percent_words(time_ns / a.step_ns)}" if a.step_ns else "-"


def _glance_spread(a: Analysis) -> str:
    if a.spread is None:
        return "none ran"
    return (
        f"{words.percent_words(a.spread.share)} of the step, {words.plural(a.spread.stretches, 'stretch', 'stretches')}"
    )


def _glance_transfers(a: Analysis) -> str:
    counts = a.timeline.transfers
    tensors = sum(count.transfers + count.strings for count in counts)
    return (
        f"{words.number_words(tensors)}, {words.size_words(sum(count.bytes for count in counts))}" if tensors else "0"
    )


def _links(a: Analysis) -> tuple[list[tuple[int, Any]], int, int]:
    """The longest links of the critical path in their order, with their places; how many others, how long these."""
    numbered = list(enumerate(a.path.links, start=1))
    longest = sorted(numbered, key=lambda one: -one[1].duration_ns)[:LINKS_SHOWN]
    shown = sorted(longest, key=lambda one: one[0])
    return shown, len(numbered) - len(shown), a.path.total_ns - sum(link.duration_ns for _, link in shown)


def _layers(a: Analysis) -> list[tuple[str, str, int]]:
    """Layers of engines in the drawn step, longest first: name, kind, nanoseconds."""
    if a.drawn is None:
        return []
    sums: dict[tuple[str, str], int] = {}
    for event in a.timeline.events:
        if event.kind == "layer" and event.step == a.drawn.index:
            sums[event.name, event.op] = sums.get((event.name, event.op), 0) + event.duration_ns
    return [(name, op, time) for (name, op), time in sorted(sums.items(), key=lambda one: -one[1])[: grouping.TOP]]
