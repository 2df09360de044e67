"""What a pass is, and what it says about its run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph_opt.item import GraphItem
    from graph_opt.options import ConvertOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused:
    """Something a pass left as it was. what: for people (a lookup, variable or table); reason: one line; nodes: graph
    nodes it is about.

    proof_failed: the rewrite was tried and did not give the same numbers (strict mode raises); False for documented
    limits.
    """

    what: str
    reason: str
    nodes: tuple[str, ...] = ()
    proof_failed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassOutcome:
    """What a pass function returns. fired: number of rewrites. notes: lines for the report. details: JSON-able data
    for the manifest. rewrites: names of rewrites that can be done one without the other (a table, a feature): a pass
    that has several does only those for which ``options.wants(name)``, so that ``tfctr bisect`` can tell them apart.
    """

    fired: int = 0
    refused: tuple[Refused, ...] = ()
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    rewrites: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pass:
    """One entry of the pass list.

    run: changes the GraphItem it is given; raising leaves the model as it was before the pass. does: what it does, one
    line.
    order_reason: why it stands where it stands. can_disable: False for a pass that a bundle can't be made without; its
    failure ends the conversion.
    """

    name: str
    run: Callable[[GraphItem, ConvertOptions], PassOutcome]
    does: str
    order_reason: str = ""
    can_disable: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassReport:
    """One line of the conversion's report. status: "ok", "disabled" or "failed" (``error`` says why; the graph is as
    before).
    """

    name: str
    status: str
    fired: int = 0
    refused: tuple[Refused, ...] = ()
    notes: tuple[str, ...] = ()
    nodes_before: int = 0
    nodes_after: int = 0
    elapsed_ms: float = 0.0
    error: str = ""
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    rewrites: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
