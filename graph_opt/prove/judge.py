"""The verdict on one spec: runs its probes on both sides and says what differs first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from graph_opt.prove.arena import Arena, Entry, Result
from graph_opt.prove.compare import bits_equal, difference, must_be_bit_equal
from graph_opt.prove.probes import Probe

# Errors that say something about the data fed. Any other error means that a side does not work at all.
_DATA_ERRORS = frozenset({"InvalidArgumentError", "OutOfRangeError"})


@dataclasses.dataclass(frozen=True)
class Verdict:
    """``reason``: "" when every probe agreed. ``probes``: how many were run. ``bit_equal``: all outputs to the last
    bit.
    """

    reason: str
    probes: int
    bit_equal: bool


def judge(arena: Arena, number: int, entry: Entry, probes: Sequence[Probe]) -> Verdict:
    """Runs ``probes`` until one differs. A spec whose original never gives a value other than zero is not proven."""
    exact = must_be_bit_equal(entry.spec, entry.ops)
    bit_equal, telling = True, False
    for count, probe in enumerate(probes, 1):
        original, fused = arena.original(number, probe.feeds), arena.fused(number, probe.feeds)
        reason = _error_difference(probe, original, fused)
        if not reason and original.value is not None and fused.value is not None:
            reason = difference(original.value, fused.value, entry.spec.table_dtype, exact)
            bit_equal = bit_equal and (exact or bits_equal(original.value, fused.value))
            telling = telling or bool(np.any(np.asarray(original.value, np.float64) != 0))
        if reason:
            return Verdict(f"on probe '{probe.label}': {reason}", count, False)
    if not telling:
        return Verdict("no probe gave a value other than zero, so nothing is proven", len(probes), False)
    return Verdict("", len(probes), bit_equal)


def _error_difference(probe: Probe, original: Result, fused: Result) -> str:
    for side, result in (("original", original), ("fused lookup", fused)):
        if result.error and result.error not in _DATA_ERRORS:
            return f"the {side} does not run: {result.error}: {_short(result.message)}"
    if original.error and fused.value is not None and fused.value.size == 0 and probe.no_rows:
        return ""  # some stock graphs can't run an empty batch; an empty result harms nobody
    if original.error and not fused.error:
        return f"the original raises ({_short(original.message)}), the fused lookup gives values"
    if fused.error and not original.error:
        return f"the fused lookup raises ({_short(fused.message)}), the original gives values"
    return ""


def _short(message: str) -> str:
    return message if len(message) <= 160 else message[:157] + "..."
