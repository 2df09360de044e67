"""A profile in a few sentences: what was slow, what changed."""

from __future__ import annotations

from tfctr.profiling.timeline.analysis import Analysis
from tfctr.profiling.timeline.grouping import Share
from tfctr.profiling.timeline.roles import DENSE, LOOKUP, OTHER, OVERHEAD, ROLE_WORDS, TRANSFER
from tfctr.profiling.timeline.words import list_words, number_words, percent_words, plural, time_words, times_words

WAITED = 0.25  # threads that wait for a processor, on average: from here on it is told
_FORMS = {"stock": "stock TensorFlow", "bundle": "the bundle"}


def form_words(form: str) -> str:
    return _FORMS.get(form, form)


def what_was_slow(a: Analysis, name: str) -> str:
    """Where the time of a call went, the largest parts first. name: of the recording."""
    if a.drawn is None:
        return f"Nothing was recorded of {name}: the profile has no complete step."
    parts = sorted((share for share in a.by_role if share.share >= 0.05), key=lambda share: -share.time_ns)
    told = [_part(a, share, number == 0) for number, share in enumerate(parts[:3])]
    rows = f" with {plural(a.timeline.rows, 'row')}" if a.timeline.rows else ""
    return f"In {name} a call{rows} takes {time_words(a.call_ns)}: {list_words(told)}."


def _part(a: Analysis, share: Share, first: bool) -> str:
    amount = percent_words(share.share) + (" of it" if first else "")
    if share.key == OVERHEAD:
        return (
            f"{amount} passes while no operation runs (feeding, fetching, and the executor's way "
            f"between {plural(a.ops, 'operation')})"
        )
    pieces = plural(share.calls, "operation")
    if share.key == LOOKUP:
        pieces += f" for {plural(len(a.features), 'feature')}" if a.features else ""
        if a.spread and a.spread.stretches > 1:
            pieces += f", in {a.spread.stretches} stretches over {percent_words(a.spread.share)} of the call"
    words = {
        LOOKUP: "embedding lookups",
        DENSE: "the dense part",
        TRANSFER: "transfers between devices",
        OTHER: "inputs and everything else",
    }
    return f"{amount} goes into {words[str(share.key)]} ({pieces})"


def what_changed(before: Analysis | None, after: Analysis, name: str) -> str:
    """The second sentence: both recordings against each other. name: of the one after."""
    if before is None:
        return (
            "There is nothing to compare with yet: tfctr profile BUNDLE --baseline MODEL records a model before and "
            "after conversion and draws both on one scale."
        )
    if before.drawn is None or after.drawn is None:
        return "The two can't be compared, because one of them has no complete step."
    ratio = times_words(before.call_ns, after.call_ns)
    told = [f"In {name} the same call takes {time_words(after.call_ns)}, {ratio}"]
    changes = [
        _ops_change(before, after),
        _lookups_change(before, after),
        _dense_change(before, after),
        _overhead_change(before, after),
    ]
    return ": ".join([*told, "; ".join([one for one in changes if one])]) + "."


def warnings(a: Analysis, name: str) -> list[str]:
    """What makes the numbers of a recording doubtful."""
    cost = a.recording_cost
    if cost is None or -0.4 < cost < 1:
        return []
    return [
        f"Recorded steps of {name} took {time_words(a.step_ns)}, the same calls with nothing recording "
        f"{time_words(a.call_ns)}. Recording alone costs less than that: something else kept this machine busy. Shares "
        "may be wrong; record again when it is idle."
    ]


def wait_warning(waited: float | None) -> str:
    """waited: ``Timeline.waiting_threads``. "" where it is small or unknown."""
    if waited is None or waited < WAITED:
        return ""
    return (
        f"While this was measured, {waited:.2g} threads of this process on average had work to do and no processor to "
        "run on: other work keeps this machine busy. Times are too long, above all those in which no operation runs; "
        "record again when it is idle."
    )


def _ops_change(before: Analysis, after: Analysis) -> str:
    return f"{plural(after.ops, 'operation')} run instead of {number_words(before.ops)}"


def _lookups_change(before: Analysis, after: Analysis) -> str:
    old, new = before.role(LOOKUP), after.role(LOOKUP)
    if not old.calls and not new.calls:
        return ""
    return (
        f"embedding lookups take {_of_call(after, new)} in {plural(new.calls, 'operation')} instead of "
        f"{_of_call(before, old)} in {number_words(old.calls)}"
    )


def _of_call(a: Analysis, share: Share) -> str:
    """Its share of a call that nobody records, so that parts and whole are of one kind."""
    return time_words(share.share * a.call_ns)


def _dense_change(before: Analysis, after: Analysis) -> str:
    """Where it is a tenth of the call before: the conversion may have given it to an engine."""
    old, new = before.role(DENSE), after.role(DENSE)
    if abs(old.share * before.call_ns - new.share * after.call_ns) < 0.1 * before.call_ns:
        return ""
    return (
        f"the dense part takes {_of_call(after, new)} in {plural(new.calls, 'operation')} instead of "
        f"{_of_call(before, old)} in {number_words(old.calls)}"
    )


def _overhead_change(before: Analysis, after: Analysis) -> str:
    old, new = _of_call(before, before.role(OVERHEAD)), _of_call(after, after.role(OVERHEAD))
    return f"executor and feed take {new} instead of {old}"


def dominates(a: Analysis) -> str:
    """One short line: what the largest part is now."""
    if a.drawn is None:
        return "nothing was recorded"
    top = max(a.by_role, key=lambda share: share.time_ns)
    return f"{ROLE_WORDS[str(top.key)]}, {percent_words(top.share)} of the step"


def path_words(a: Analysis) -> str:
    """What the critical path says about threads."""
    total, share = a.path.total_ns, a.path.total_ns / a.drawn.duration_ns if a.drawn and a.drawn.duration_ns else 0.0
    if len(a.path.links) == 1:
        return f"One operation alone takes {time_words(total)}, {percent_words(share)} of the drawn step."
    told = (
        f"{plural(len(a.path.links), 'operation')} that wait for each other take {time_words(total)}, "
        f"{percent_words(share)} of the drawn step: with any number of threads it can't take less"
    )
    busy = sum(one.time_ns for one in a.by_role if one.key != OVERHEAD)
    if busy and total < 0.6 * busy:
        return f"{told}. Other operations could run beside them."
    return f"{told}. Nearly all the work is one chain, so more threads between operations would gain little."


def spread_words(a: Analysis) -> str:
    """How the embedding work lies in the step."""
    if a.spread is None:
        return "No embedding lookup ran in this recording."
    s = a.spread
    lies = (
        f"{plural(s.ops, 'lookup operation')} (constants and the like apart) between {time_words(s.first_ns)} and "
        f"{time_words(s.last_ns)} of the step, {percent_words(s.share)} of it, in "
        f"{plural(s.stretches, 'stretch', 'stretches')}"
    )
    return f"{lies} with other work in between." if s.stretches > 1 else f"{lies}."
