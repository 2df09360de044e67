"""Finding embedding lookups by what they compute.

``find_lookups`` walks the reference graph once (``engine``), giving every tensor a meaning (``values``) by small handlers per op type
(``handlers/``), then describes every row gather as a lookup spec (``readings``, ``search``) or says why it stays (``reasons``). What it
finds is a hypothesis: the prover runs original and fused side by side before anything is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from graph_opt.candidates import Candidate, Refusal
from graph_opt.recognise import handlers as _handlers  # noqa: F401 - registers the handlers
from graph_opt.recognise.engine import Walk
from graph_opt.recognise.facts import Facts
from graph_opt.recognise.left import other_readers
from graph_opt.recognise.scope import Scope
from graph_opt.recognise.search import Search
from graph_opt.view import GraphView


def find_lookups(
    view: GraphView,
    fetches: Iterable[str],
    tables: Mapping[str, Any],
    *,
    inputs: Mapping[str, str] | None = None,
    facts: Facts | None = None,
) -> tuple[list[Candidate], list[Refusal]]:
    """Every lookup on the way to ``fetches`` (graph tensors), as a candidate or a refusal, in topological order.

    tables: TfctrTable node name -> its store file (``name`` is used in refusals). inputs: graph tensor -> signature input name,
    for the lookups' names (default: the placeholder's name). facts: static facts of ``view`` where the caller has them.
    The graph is not changed.
    """
    facts = facts or Facts(view)
    fetches = list(fetches)
    walk = Walk(view, facts, tables)
    walk.run()
    scope = Scope(view, facts, fetches)
    candidates, refusals = Search(walk, scope, tables, dict(inputs or {})).run()
    return candidates, [*refusals, *other_readers(walk, scope, tables)]


__all__ = ["find_lookups"]
