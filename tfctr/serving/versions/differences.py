"""What clients of one version would miss in another: said in the log when it takes over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def of_requests(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Why requests that were made for ``old`` may fail in ``new``; "" where none should.

    Args:
      old, new: signatures by name (``ServedVersion.signatures``).
    """
    told = []
    for name, before in sorted(old.items()):
        after = new.get(name)
        if after is None:
            told.append(f"signature {name!r} is gone")
            continue
        takes = {one.name: one.dtype for one in before.inputs}, {one.name: one.dtype for one in after.inputs}
        gives = [{one.name for one in outputs} for outputs in (before.outputs, after.outputs)]
        parts = [
            _named("inputs are gone", takes[0].keys() - takes[1].keys()),
            _named("inputs are new", takes[1].keys() - takes[0].keys()),
            *(
                f"input {one!r} is {takes[1][one]}, was {takes[0][one]}"
                for one in sorted(takes[0].keys() & takes[1].keys())
                if takes[0][one] != takes[1][one]
            ),
            _named("outputs are gone", gives[0] - gives[1]),
        ]
        if any(parts):
            told.append(f"signature {name!r}: {', '.join(part for part in parts if part)}")
    return "; ".join(told)


def _named(words: str, names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
    return f"{words} ({shown})" if names else ""
