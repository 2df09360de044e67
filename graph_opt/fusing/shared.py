"""What lookups of one fused op have in common and the kernel does once (``tfctr/core/lookup/shared_work.cc``), for the
report; and blocks of columns that are the same altogether, which become one output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

from graph_opt.fusing.levels import Member
from graph_opt.fusing.plan import Block
from graph_opt.lookup_spec import CopySpec, LookupSpec

_DEAR_STEPS = frozenset({"hash_fast", "hash_strong", "fingerprint", "vocab", "vocab_oov", "find"})


@dataclasses.dataclass(frozen=True)
class SharedWork:
    """Positions in a group's lookups.

    copied: lookup -> the earlier one that it equals, whose result is copied. ids: lookup -> the first one of those that
    read the same ids through the same dear steps (hash, vocabulary, keys of the same table); these are resolved once.
    """

    copied: Mapping[int, int]
    ids: Mapping[int, int]


def find_shared_work(lookups: Sequence[LookupSpec]) -> SharedWork:
    """What the kernel finds when it reads the specs, by the same rules."""
    copied: dict[int, int] = {}
    ids: dict[int, int] = {}
    firsts: dict[LookupSpec, int] = {}
    pipelines: dict[Hashable, list[int]] = {}
    for k, spec in enumerate(lookups):
        dear = any(s.kind in _DEAR_STEPS for s in spec.steps)
        if dear or spec.combiner != "none":
            first = firsts.setdefault(dataclasses.replace(spec, name=""), k)
            if first != k:
                copied[k] = first
                continue
        if dear and _is_fast(spec):
            table = (spec.table, _prunes_last(spec)) if spec.hashed else None
            pipelines.setdefault((spec.ids, _resolved_steps(spec), table), []).append(k)
    for users in pipelines.values():
        if len(users) > 1:
            ids |= dict.fromkeys(users, users[0])
    return SharedWork(copied, ids)


def _resolved_steps(spec: LookupSpec) -> tuple:
    """The steps before rows are found, without a last one that drops negative ids: that is done later."""
    steps = spec.steps[:-1] if spec.hashed else spec.steps
    return steps[:-1] if _prunes_last(spec) else steps


def _prunes_last(spec: LookupSpec) -> bool:
    steps = spec.steps[:-1] if spec.hashed else spec.steps
    return bool(steps) and steps[-1].kind == "prune_negative"


def _is_fast(spec: LookupSpec) -> bool:
    divides = spec.combiner in ("mean", "sqrtn") and (spec.accumulation != "segment" or spec.denominator != "count")
    prunes = any(s.kind in ("prune_negative", "prune_equal") for s in _resolved_steps(spec))
    return not (spec.weights or spec.mask or spec.mask_value is not None or divides or prunes)


def first_of_each(blocks: Sequence[Block]) -> list[int]:
    """For every block the number of the first one with the same columns: its own, where it is the first."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(_content(block), k) for k, block in enumerate(blocks)]


def _content(block: Block) -> Hashable:
    def plain(part: Member | CopySpec) -> LookupSpec | CopySpec:
        return dataclasses.replace(part.spec if isinstance(part, Member) else part, name="")

    return tuple(plain(part) for part in block.parts)
