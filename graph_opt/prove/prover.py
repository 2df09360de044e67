"""Proves candidates in rounds: all first readings together, then the next reading of those that failed, and so on."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tensorflow.core.framework import graph_pb2

from graph_opt.candidates import Candidate, Proof
from graph_opt.fused_node import infer_sources
from graph_opt.item import GraphItem
from graph_opt.lookup_spec import LookupSpec, Step
from graph_opt.prove.arena import Arena, Entry
from graph_opt.prove.cone import ConeError, extract_cone, fingerprint, needs_library
from graph_opt.prove.judge import judge
from graph_opt.prove.pools import CannotProbe
from graph_opt.prove.probes import Probe, Source, make_probes
from graph_opt.prove.surrogate import SurrogateSet
from graph_opt.prove.vocabularies import Vocabularies
from graph_opt.view import GraphView

# Specs per session: a session's first run of each fetch walks the whole graph, so very large ones cost more than they
# save.
_CHUNK = 40


def prove(item: GraphItem, candidate: Candidate) -> Proof:
    """Proves one candidate of the reference graph ``item``. See :func:`prove_all`."""
    return prove_all(item, [candidate])[0]


def prove_all(item: GraphItem, candidates: Sequence[Candidate]) -> list[Proof]:
    """Runs original and fused side by side for every candidate; a proof (or refusal) for each, in order.

    ``item``: the reference graph (tables are TfctrTable nodes, static vocabularies TfctrVocabFind); it is not changed.
    Readings of a candidate are tried in order until one holds. Surrogate files live in a temporary folder of
    ``item.work_dir`` (or the system's) and are deleted before this returns.
    """
    if not candidates:
        return []
    folder = Path(tempfile.mkdtemp(prefix=".surrogates-", dir=item.work_dir))
    try:
        return _Prover(item, folder).run(candidates)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclasses.dataclass
class _Job:
    """One reading of one candidate on its way to a verdict."""

    index: int
    entry: Entry
    probes: list[Probe]
    key: object


class _Prover:
    def __init__(self, item: GraphItem, folder: Path) -> None:
        self._item = item
        self._view = GraphView(item.graph_def)
        self._vocabularies = Vocabularies(item.files)
        self._surrogates = SurrogateSet(item, folder)
        self._proven_classes: set[object] = set()
        self._sources: dict[str, Source] = {}

    def run(self, candidates: Sequence[Candidate]) -> list[Proof]:
        self._infer(candidates)
        proofs: list[Proof | None] = [None] * len(candidates)
        failures: list[list[str]] = [[] for _ in candidates]
        for attempt in range(max(len(c.specs()) for c in candidates)):
            jobs = []
            for index, candidate in enumerate(candidates):
                if proofs[index] is None and attempt < len(candidate.specs()):
                    job = self._prepare(index, candidate, candidate.specs()[attempt], failures[index])
                    jobs += [job] if job else []
            for chunk in _chunks(jobs):
                self._prove_chunk(chunk, candidates, proofs, failures)
        return [
            proof or Proof(ok=False, candidate=c, reason=failed[0], tried=tuple(failed), bit_equal=False)
            for proof, c, failed in zip(proofs, candidates, failures, strict=True)
        ]

    def _infer(self, candidates: Sequence[Candidate]) -> None:
        tensors = list(dict.fromkeys(t for c in candidates for spec in c.specs() for t in spec.sources()))
        names = self._view.ancestors(tensors)
        part = graph_pb2.GraphDef(node=[n for n in self._view if n.name in names])
        part.versions.CopyFrom(self._view.graph_def.versions)
        if needs_library(part.node):
            part.library.CopyFrom(self._view.graph_def.library)
        for tensor, (dtype, shape) in infer_sources(part, tensors).items():
            self._sources[tensor] = Source(np.dtype(dtype.as_numpy_dtype), shape)

    def _prepare(self, index: int, candidate: Candidate, spec: LookupSpec, failures: list[str]) -> _Job | None:
        try:
            cone = extract_cone(self._view, candidate.output, spec.sources())
            if candidate.parts:
                spec = dataclasses.replace(spec, table=self._surrogates.merged(candidate.parts, candidate.strategy))
            sources = {t: self._sources[t] for t in spec.sources()}
            probes = make_probes(spec, sources, self._vocabularies, seed=index)
        except (ConeError, CannotProbe) as error:
            failures.append(str(error))
            return None
        entry = Entry(spec, cone, sources, frozenset(self._view.node(n).op for n in cone.nodes))
        return _Job(index, entry, probes, _class_key(self._view, entry))

    def _prove_chunk(
        self,
        jobs: Sequence[_Job],
        candidates: Sequence[Candidate],
        proofs: list[Proof | None],
        failures: list[list[str]],
    ) -> None:
        files = self._surrogates.write([(job.entry, job.probes) for job in jobs])
        with Arena(self._view, [job.entry for job in jobs], files) as arena:
            for number, job in enumerate(jobs):
                known = job.key in self._proven_classes
                probes = [p for p in job.probes if p.core] if known else job.probes
                verdict = judge(arena, number, job.entry, probes)
                if verdict.reason:
                    failures[job.index].append(verdict.reason)
                    continue
                self._proven_classes.add(job.key)
                proofs[job.index] = Proof(
                    ok=True,
                    candidate=candidates[job.index],
                    spec=_as_given(job.entry.spec, candidates[job.index]),
                    tried=tuple(failures[job.index]),
                    probes=verdict.probes,
                    bit_equal=verdict.bit_equal,
                )
        self._surrogates.remove()


def _as_given(spec: LookupSpec, candidate: Candidate) -> LookupSpec:
    """The proven spec as the candidate has it: a partitioned table has no index until it is merged."""
    return dataclasses.replace(spec, table=-1) if candidate.parts else spec


def _class_key(view: GraphView, entry: Entry) -> object:
    """Equal for specs that say the same about subgraphs that compute the same, whatever the number of table rows."""
    spec = entry.spec
    number = {tensor: f"s{k}" for k, tensor in enumerate(spec.sources())}
    parts = {p: number.get(getattr(spec, p)) for p in ("ids", "rows", "shape", "weights", "mask")}
    steps = tuple(Step(s.kind, tuple("rows" if a == str(spec.table_rows) else a for a in s.args)) for s in spec.steps)
    anonymous = dataclasses.replace(spec, name="", table=0, table_rows=0, steps=steps, **parts)  # type: ignore[arg-type]
    kinds = tuple((str(s.dtype), s.shape) for s in entry.sources.values())
    return anonymous, kinds, fingerprint(view, entry.cone, spec.table_rows)


def _chunks(jobs: Sequence[_Job]) -> Iterator[Sequence[_Job]]:
    for start in range(0, len(jobs), _CHUNK):
        yield jobs[start : start + _CHUNK]
