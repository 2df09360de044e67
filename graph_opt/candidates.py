"""What the recogniser hands to the prover, and what the prover hands to the fusing pass.

``recognise`` produces :class:`Candidate` and :class:`Refusal`; ``prove`` turns a candidate into a :class:`Proof`;
``passes/fuse_lookups`` replaces the proven ones and reports the others.
"""

from __future__ import annotations

import dataclasses

from graph_opt.lookup_spec import LookupSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A lookup that the recogniser believes to have found in the reference graph.

    spec: the best guess of what the subgraph computes.
    output: the graph tensor ("node:0") that the fused lookup would replace.
    nodes: interior node names (between ``spec.sources()`` and ``output``, the producer of ``output`` included).
    gather: the node that reads the table; names the lookup in reports.
    alternatives: other readings, tried in this order when ``spec`` fails its proof. They may differ from ``spec`` in
    their
        sources (e.g. fewer id steps inside the op); all of them describe the same ``output``.
    parts, strategy: for a partitioned table, its TfctrTable nodes in order and "div" or "mod"; the specs then have
    table -1
        and the row count of the whole table. The fusing pass merges the parts' files once the candidate is proven.
    """

    spec: LookupSpec
    output: str
    nodes: frozenset[str]
    gather: str
    alternatives: tuple[LookupSpec, ...] = ()
    parts: tuple[str, ...] = ()
    strategy: str = ""

    def specs(self) -> tuple[LookupSpec, ...]:
        """All readings, best first."""
        return (self.spec, *self.alternatives)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """A lookup that is left as it is, and why.

    gather: the node that reads the table. reason: one line for people. nodes: the nodes the reason is about.
    name: the feature, where it is known. table: name of the table, where it is known.
    proof_failed: True when the prover refused it (strict mode raises), False for a documented limit.
    """

    gather: str
    reason: str
    nodes: tuple[str, ...] = ()
    name: str = ""
    table: str = ""
    proof_failed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """Outcome of proving one candidate by execution.

    ok: fused and original agreed on every probe. spec: the reading that was proven (None when refused).
    reason: why not, "" when ok. tried: one line per reading that failed, in order. probes: number of probes run.
    bit_equal: every output was equal bit for bit (always so for gathers and SparseSegment reductions).
    """

    ok: bool
    candidate: Candidate
    spec: LookupSpec | None = None
    reason: str = ""
    tried: tuple[str, ...] = ()
    probes: int = 0
    bit_equal: bool = True
