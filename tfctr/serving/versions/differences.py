"""What requests of one version would miss in another: why the other does not take over by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tfctr.serving.signature_info import Input, Output


def of_requests(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Why requests that were made for ``old`` may fail in ``new``, or answers lack what their readers need; "" where
    none should. New signatures, new outputs and new inputs that may be left out are no difference.

    Args:
      old, new: signatures by name (``ServedVersion.signatures``).
    """
    told = []
    for name, before in sorted(old.items()):
        after = new.get(name)
        if after is None:
            told.append(f"signature {name!r} is gone")
            continue
        parts = [*_of_inputs(before, after), *_of_outputs(before.outputs, after.outputs)]
        if parts:
            told.append(f"signature {name!r}: {', '.join(parts)}")
    return "; ".join(told)


def _of_inputs(before: Any, after: Any) -> list[str]:
    takes, needs = {one.name: one for one in before.inputs}, {one.name: one for one in after.inputs}
    could_lack = before.optional_inputs - after.optional_inputs
    return [
        *_named("inputs are gone", takes.keys() - needs.keys()),
        *_named("inputs are new", needs.keys() - takes.keys() - after.optional_inputs),
        *_named("inputs may not be left out any more", could_lack & needs.keys()),
        *_changed("input", takes, needs),
    ]


def _of_outputs(before: Iterable[Output], after: Iterable[Output]) -> list[str]:
    gave, gives = {one.name: one for one in before}, {one.name: one for one in after}
    both = sorted(gave.keys() & gives.keys())
    kinds = [
        f"output {name!r} is {gives[name].kind}, was {gave[name].kind}"
        for name in both
        if gave[name].kind != gives[name].kind
    ]
    parts = [(name, role) for name in both if gave[name].kind == gives[name].kind for role in gave[name].parts]
    old, new = (
        {f"{name}/{role}" if len(of[name].parts) > 1 else name: of[name].parts.get(role) for name, role in parts}
        for of in (gave, gives)
    )
    return [*_named("outputs are gone", gave.keys() - gives.keys()), *kinds, *_changed("output", old, new)]


def _changed(what: str, old: Mapping[str, Input | None], new: Mapping[str, Input | None]) -> list[str]:
    """Tensors of another type, another number of dimensions, or another size where both have a fixed one."""
    told = []
    for name in sorted(old.keys() & new.keys()):
        was, now = old[name], new[name]
        if was is None or now is None or (was.dtype == now.dtype and _fits(was.shape, now.shape)):
            continue
        told.append(f"{what} {name!r} is {_words(now)}, was {_words(was)}")
    return told


def _fits(was: tuple[int, ...] | None, now: tuple[int, ...] | None) -> bool:
    if was is None or now is None:
        return True
    return len(was) == len(now) and all(a == b or a < 0 or b < 0 for a, b in zip(was, now, strict=True))


def _words(one: Input) -> str:
    if one.shape is None:
        return one.dtype
    return f"{one.dtype} [{', '.join('?' if size < 0 else str(size) for size in one.shape)}]"


def _named(words: str, names: Iterable[str]) -> list[str]:
    found = sorted(names)
    return [f"{words} ({', '.join(found[:8])}{', ...' if len(found) > 8 else ''})"] if found else []
