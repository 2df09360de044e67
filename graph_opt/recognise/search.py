"""Choosing, for every row gather, the furthest tensor down that the spec language describes; or saying why not."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from graph_opt.candidates import Candidate, Refusal
from graph_opt.lookup_spec import LookupSpec
from graph_opt.recognise import reasons
from graph_opt.recognise.engine import Walk
from graph_opt.recognise.readings import TABLE_DTYPES, TableFacts, readings
from graph_opt.recognise.scope import Scope
from graph_opt.recognise.values import Found, PerValue
from graph_opt.view import node_of

_MAX_ALTERNATIVES = 4


class Search:
    """Candidates and refusals of one walked graph."""

    def __init__(
        self,
        walk: Walk,
        scope: Scope,
        files: Mapping[str, object],
        inputs: Mapping[str, str],
        avoid: Collection[str] = (),
    ) -> None:
        self._walk = walk
        self._scope = scope
        self._files = files
        self._names = inputs
        self._avoid = avoid

    def run(self) -> tuple[list[Candidate], list[Refusal]]:
        candidates: list[Candidate] = []
        refusals: list[Refusal] = []
        absorbed: set[str] = set()
        for gathers in self._gathers():
            if absorbed.issuperset(gathers):
                continue
            result = self._decide(gathers)
            absorbed.update(gathers)
            if isinstance(result, Candidate):
                candidates.append(result)
            else:
                refusals.append(result)
        return candidates, refusals

    def _gathers(self) -> list[tuple[str, ...]]:
        """Gather nodes in topological order, those of one partitioned table together."""
        whole: dict[str, tuple[str, ...]] = {}
        for states in self._walk.found.values():
            for state in states:
                for gather in state.gathers:
                    if len(state.gathers) >= len(whole.get(gather, ())):
                        whole[gather] = state.gathers
        ordered = [n.name for n in self._walk.view.topological() if n.name in whole and self._scope.reaches(n.name)]
        return list(dict.fromkeys(whole[name] for name in ordered))

    def _decide(self, gathers: tuple[str, ...]) -> Candidate | Refusal:
        first = gathers[0]
        reason = next((r for g in gathers if (r := self._scope.why_not(g)) is not None), None)
        states = [s for s in self._walk.found.get(first, ()) if s.gathers == gathers]
        table = self._table(states[0]) if states else None
        if reason is None and (table is None or not states):
            reason = self._table_reason(states[0]) if states else reasons.PARTS_DIFFER
        name = self._name(states[-1]) if states else first
        if reason is None:
            assert table is not None
            for state in reversed([s for s in states if s.tensor not in self._avoid]):
                candidate, problem = self._candidate(state, table, name)
                if candidate is not None:
                    return candidate
                reason = reason if problem is None else problem
        tables = [getattr(self._files.get(t), "name", t) for t in (states[0].tables if states else ())]
        return Refusal(
            gather=first, reason=reason or reasons.NOT_IN_LANGUAGE, nodes=gathers, name=name, table=", ".join(tables)
        )

    def _candidate(self, state: Found, table: TableFacts, name: str) -> tuple[Candidate | None, str | None]:
        """The candidate whose output is ``state``'s tensor, or None and the reason where there is one to report."""
        if self._walk.dtype(state.tensor) != table.dtype:
            return None, None
        good: list[LookupSpec] = []
        private: list[LookupSpec] = []
        problem: str | None = None
        unclosed: LookupSpec | None = None
        nodes: frozenset[str] = frozenset()
        for spec in readings(self._walk, state, table, name):
            cone = self._scope.cone(state.tensor, spec.sources())
            if cone is None:
                unclosed = unclosed or spec
            if cone is None or spec in good:
                continue
            if self._scope.used_outside(state.trace[:-1], cone):
                problem = problem or reasons.USED_INSIDE
                continue
            if self._scope.depends_on(spec.sources(), state.gathers):
                continue  # weights computed from the rows themselves (attention)
            good.append(spec)
            if self._transforms_are_private(state, spec, cone):
                private.append(spec)
                if len(private) == 1:
                    nodes = cone
        if not private:
            if problem is None and unclosed is not None:
                problem = self._scope.why_open(state.tensor, unclosed.sources())
            return None, problem
        best = private[0]
        others = [s for s in dict.fromkeys([*private[1:], *good]) if s != best]
        output = state.tensor
        parts = state.tables if len(state.tables) > 1 else ()
        candidate = Candidate(
            spec=best, output=output, nodes=nodes, gather=state.gather, alternatives=tuple(others[:_MAX_ALTERNATIVES]),
            parts=parts, strategy=(state.strategy or "") if parts else "",
        )  # fmt: skip
        return candidate, None

    def _transforms_are_private(self, state: Found, spec: LookupSpec, cone: frozenset[str]) -> bool:
        """True when nothing else uses the results of the id steps that the spec takes in."""
        cuts = state.ids.cuts if isinstance(state.ids, PerValue) else ()
        before = max((c.steps for c in cuts if c.tensor == spec.ids), default=0)
        inside = [c.tensor for c in cuts if node_of(c.tensor) in cone and c.steps > before]
        return not self._scope.used_outside(inside, cone)

    def _table(self, state: Found) -> TableFacts | None:
        shapes = [self._walk.table_shape(t) for t in state.tables]
        dtypes = {self._walk.dtype(f"{t}:0") for t in state.tables}
        if any(s is None or len(s) != 2 or None in s for s in shapes) or len(dtypes) != 1:
            return None
        dtype = dtypes.pop()
        if dtype not in TABLE_DTYPES or len({s[1] for s in shapes if s}) != 1:
            return None
        rows = sum(int(s[0] or 0) for s in shapes if s)
        index = -1 if len(state.tables) > 1 else self._index(state.tables[0])
        return TableFacts(index, rows, int(shapes[0][1] or 0), dtype)  # type: ignore[index]

    def _index(self, table: str) -> int:
        node = self._walk.view.node(table)
        return node.attr["index"].i if "index" in node.attr else list(self._files).index(table)

    def _table_reason(self, state: Found) -> str:
        shapes = [self._walk.table_shape(t) for t in state.tables]
        if any(self._walk.dtype(f"{t}:0") not in TABLE_DTYPES for t in state.tables):
            return reasons.TABLE_DTYPE
        return reasons.TABLE_RANK if any(s is None or len(s) != 2 for s in shapes) else reasons.PARTS_DIFFER

    def _name(self, state: Found) -> str:
        """The one input that the ids come from, else the gather node."""
        chain = state.ids if isinstance(state.ids, PerValue) else state.ids.of
        origins = self._scope.origins(chain.base) if chain is not None else []
        return self._names.get(origins[0], plain_name(origins[0])) if len(origins) == 1 else state.gather


def plain_name(tensor: str) -> str:
    """A feature's name from its origin ("serving_default_user:0" -> "user", "=user" -> "user")."""
    return tensor[1:] if tensor.startswith("=") else node_of(tensor).removeprefix("serving_default_")
