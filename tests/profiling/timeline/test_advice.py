"""Each rule fires on what it is for, not beside it, and names a command that exists."""

from __future__ import annotations

import dataclasses
import shlex

import pytest

from tests.profiling.timeline import made
from tfctr.cli.main import build_parser
from tfctr.profiling.timeline import advice, machine_facts
from tfctr.profiling.timeline.advice import Advice, Facts, advise
from tfctr.profiling.timeline.analysis import analyse
from tfctr.profiling.timeline.events import Timeline, TransferCount


def facts(timeline: Timeline, **fields: object) -> Facts:
    return Facts(a=analyse(timeline), **fields)  # type: ignore[arg-type]


def step(*ops: tuple[str, int], form: str = "bundle", gap: int = 0, chained: bool = True, **fields: object) -> Facts:
    """One step of (operation, nanoseconds) in a row with idle ``gap`` ns behind each."""
    events, now, edges = [], 0, {}
    for k, (kind, length) in enumerate(ops):
        events.append(made.op(f"n{k}", kind, now, now + length))
        if k and chained:
            edges[f"n{k}"] = (f"n{k - 1}",)
        now += length + gap
    return facts(made.timeline(events, (0, now), form=form, edges=edges, **fields))


FUSED, MATMUL, ENGINE = ("TfctrFusedLookup", 60), ("MatMul", 60), ("TfctrDenseEngine", 60)
CASES = {
    "many_lookup_ops": (step(*[("ResourceGather", 5)] * 25, MATMUL, form="stock"), step(FUSED, MATMUL)),
    "lookups_left": (step(("ResourceGather", 30), MATMUL), step(FUSED, MATMUL)),
    "overhead_of_stock": (step(*[("Mul", 2)] * 9, form="stock", gap=3), step(*[("Mul", 9)] * 9, form="stock", gap=1)),
    "overhead_of_bundle": (step(FUSED, MATMUL, gap=90), step(FUSED, MATMUL, gap=5)),
    "dense_engine": (step(FUSED, MATMUL), step(FUSED, ENGINE)),
    "engine_precision": (step(FUSED, ENGINE), step(FUSED, MATMUL)),
    "user_split": (step(FUSED, MATMUL), step(FUSED, ("TfctrJoinUserRows", 3), MATMUL)),
    "strings": (step(("TfctrVocabFind", 40), FUSED), step(FUSED, MATMUL)),
    "large_tables": (
        dataclasses.replace(step(FUSED, MATMUL), tables_bytes=10**9, cache_bytes=32 * 2**20),
        dataclasses.replace(step(FUSED, MATMUL), tables_bytes=10**6, cache_bytes=32 * 2**20),
    ),
    "transfers": (
        step(FUSED, MATMUL, transfers=(TransferCount(source="CPU:0", target="GPU:0", transfers=7, bytes=4096),)),
        step(FUSED, MATMUL, transfers=(TransferCount(source="CPU:0", target="GPU:0", transfers=1, bytes=4096),)),
    ),
    "scattered": (
        step(*[("ResourceGather", 5), ("MatMul", 5)] * 5, form="stock", chained=False),
        step(*[("ResourceGather", 5)] * 5, *[("MatMul", 5)] * 5, form="stock", chained=False),
    ),
    "more_threads": (step(FUSED, MATMUL), step(FUSED, MATMUL, rows=4)),
    "no_lookups": (step(MATMUL), step(FUSED, MATMUL)),
}  # fmt: skip


@pytest.mark.parametrize("rule", advice.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_fires_on_its_case_only(rule: advice.Rule) -> None:
    yes, no = CASES[rule.__name__]
    found = rule(yes)
    assert isinstance(found, Advice) and found.rule == rule.__name__
    assert 0 < found.weight <= 1 and found.evidence.endswith(".") and found.then.endswith(".")
    assert rule(no) is None


@pytest.mark.parametrize("form", ["stock", "bundle"])
def test_every_command_parses(form: str) -> None:
    seen, parser = set(), build_parser()
    for case in (case for pair in CASES.values() for case in pair):
        path = "it's a model/1"
        timeline = dataclasses.replace(case.a.timeline, form=form, path=path)
        for one in advise(dataclasses.replace(case, a=dataclasses.replace(case.a, timeline=timeline))):
            words = shlex.split(one.command)
            assert words[0] == "tfctr"
            parser.parse_args(words[1:])
            seen.add(one.rule)
    assert len(seen) >= 8


def test_the_largest_comes_first_and_models_are_named() -> None:
    before, after = made.stock(30, path="/m/ranker"), made.bundle(30)
    both = Facts(a=analyse(after), baseline=analyse(before))
    found = advise(both)
    assert [one.weight for one in found] == sorted((one.weight for one in found), reverse=True)
    assert "/m/ranker" in next(one.command for one in found if one.rule == "dense_engine")
    assert next(one for one in advise(Facts(a=analyse(before)))).command == "tfctr convert /m/ranker /m/ranker_bundle"


def test_an_engine_that_was_measured_and_not_taken_is_not_advised() -> None:
    tower = step(FUSED, MATMUL)
    assert advice.dense_engine(tower) is not None
    assert advice.dense_engine(dataclasses.replace(tower, slower_engine="OpenVINO is not clearly faster: 0.4x")) is None


@pytest.mark.parametrize(("isa", "fires"), [("avx2", False), ("avx512_bf16", True), ("amx_bf16", True)])
def test_bf16_is_advised_where_the_cpu_has_it(isa: str, fires: bool) -> None:
    assert (advice.engine_precision(step(FUSED, ENGINE, machine={"isa": isa})) is not None) == fires


def test_an_empty_profile_has_no_advice() -> None:
    assert advise(facts(made.timeline([]))) == []


def test_caches_and_tables_of_nowhere(tmp_path) -> None:
    assert machine_facts.cache_bytes(tmp_path) is None
    for name, text in (("index0", "32K\n"), ("index3", "16M\n"), ("index4", "odd\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(text)
    assert machine_facts.cache_bytes(tmp_path) == 16 * 2**20
    assert machine_facts.tables_bytes(str(tmp_path)) is None


def test_tables_of_a_bundle_without_its_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"table": 100, "hash": 30, "overlay": 7, "vocab": 1000, "blob": 5000}
    files = [{"kind": kind, "bytes": size} for kind, size in sizes.items()]
    monkeypatch.setattr(machine_facts, "is_bundle", lambda path: True)
    monkeypatch.setattr(machine_facts, "read_manifest", lambda path: {"store": {"files": files}})
    assert machine_facts.tables_bytes("bundle/") == 137
