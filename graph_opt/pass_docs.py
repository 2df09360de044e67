"""docs/passes.md, from the code: ``tfctr passes --markdown`` writes it, a test fails where the file is stale.

A pass's module holds what is said of it beside ``Pass.does`` and ``Pass.order_reason``: its docstring; ``REASONS``, the
texts with which it refuses ({fields} are filled in); ``OPTIONS``, the flags that concern it, with what they do;
``EXAMPLE``, a graph before and after.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence

from graph_opt import pipeline
from graph_opt.report import Pass

_HEAD = """# Passes

<!-- Written by `tfctr passes --markdown`; change the pass modules, not this file. -->

A conversion runs these passes over the model's graph, in this order. A pass that raises or leaves an illegal graph is
undone and reported; what a pass leaves as it was, it reports with one of the reasons below (`{name}` stands for a name
or number). `tfctr convert --disable PASS` leaves one out; write your own: [passes_howto.md](passes_howto.md).

| | pass | what it does |
|---|---|---|
"""
_OWN = "| | *your own (`extra_passes`)* | run here, on fused lookups, before the graph gets other forms beside it |"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassDoc:
    """What a pass's module says about it. detail: its docstring as paragraphs."""

    detail: tuple[str, ...]
    options: tuple[str, ...]
    reasons: Mapping[str, str]
    example: str


def pass_doc(one: Pass) -> PassDoc:
    """Reads the module of ``one.run``."""
    module = sys.modules[one.run.__module__]
    paragraphs = [" ".join(part.split()) for part in (module.__doc__ or "").strip().split("\n\n")]
    return PassDoc(
        detail=tuple(p.replace("``", "`") for p in paragraphs if p),
        options=tuple(getattr(module, "OPTIONS", ())),
        reasons=getattr(module, "REASONS", {}),
        example=getattr(module, "EXAMPLE", ""),
    )


def passes_markdown(passes: Sequence[Pass] = pipeline.DEFAULT_PASSES) -> str:
    """The page. passes: all that there are, in order: the defaults, with those of the dense tower in their place."""
    own = len(pipeline.REFERENCE_PASSES) + len(pipeline.LOOKUP_PASSES)
    rows = [f"| {k} | [{p.name}](#{p.name}) | {_cell(p.does)} |" for k, p in enumerate(passes, 1)]
    rows.insert(own, _OWN)
    sections = [line for number, one in enumerate(passes, 1) for line in _section(number, one)]
    return _HEAD + "\n".join([*rows, "", *sections]).rstrip() + "\n"


def _section(number: int, one: Pass) -> list[str]:
    doc = pass_doc(one)
    lines = [f"## {one.name}", ""]
    for paragraph in doc.detail:
        lines += [*_wrap(paragraph), ""]
    lines += [*_wrap(f"**Why it is number {number}:** {one.order_reason}."), ""]
    lines += [f"**Can be disabled:** {'yes' if one.can_disable else 'no, a bundle can not be made without it'}.", ""]
    if doc.options:
        lines += ["**Options:**", "", *(line for text in doc.options for line in _item(_option(text))), ""]
    if doc.reasons:
        texts = dict.fromkeys(doc.reasons.values())
        lines += ["**Leaves things as they were because:**", ""]
        lines += [line for text in texts for line in _item(_fields(text))] + [""]
    if doc.example:
        lines += ["```", *doc.example.rstrip("\n").splitlines(), "```", ""]
    return lines


def _option(text: str) -> str:
    flag, colon, rest = text.partition(":")
    return f"`{flag}`{colon}{rest}"


def _fields(text: str) -> str:
    return re.sub(r"\{(\w+)[^}]*\}", r"`{\1}`", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _item(text: str) -> list[str]:
    first, *others = _wrap(text, 118)
    return [f"- {first}", *(f"  {line}" for line in others)]


def _wrap(text: str, width: int = 120) -> list[str]:
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line] if line else lines
