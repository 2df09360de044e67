"""The effect table: it knows every pass and model, the committed report has them all, and the harness runs.

Case 39 of what DeepRec's users met: every pass has a measured number per model, with its spread.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from benchmarks import bench_report
from benchmarks.effects import markdown, settings
from benchmarks.effects.harness import Effort, run_model, steps_of
from benchmarks.effects.models import Shape, requests_of
from benchmarks.effects.page import report_page
from benchmarks.effects.rows import Figures, Report, Row
from benchmarks.effects.settings import ALONE, AMONG, CONTEXTS, ROWS, Build, Pair, Served, Setting
from examples.models import REFERENCE_MODELS
from tfctr.cli.passes import listed

TINY = Shape(vocabulary=60, width=4, hidden=(8,), rows=6, burst=2, burst_rows=3, steps=3)
ROW = re.compile(r"\| `(?P<what>[^|`]+)`(?: `(?P<variant>[^|`]+)`)? \|")


def test_every_pass_is_a_setting():
    chosen = settings.settings()
    assert {p.name for p in listed()} == {s.what for s in chosen if s.kind in ("pass", "engine")}
    names = [s.name for s in chosen]
    assert len(names) == len(set(names))
    fixed = {p.name for p in listed() if not p.can_disable}
    assert fixed == set(settings.ALWAYS)
    off = Build().arguments((), "off")
    assert set(off["disable"]) == {p.name for p in listed()} - fixed
    assert settings.OFF.passes == {"prune_training"}


@pytest.mark.parametrize("setting", settings.settings(), ids=lambda s: s.name)
def test_a_pair_differs_in_its_setting_only(setting: Setting):
    """What a pair changes beside the setting is told, and a missing pair has a reason."""
    for context in CONTEXTS:
        pair = setting.pair(context)
        if pair is None:
            assert setting.why_not
            continue
        assert pair.on != pair.off
        if setting.kind == "whole" or pair.off.build is None:
            continue
        assert pair.on.build is not None
        changed = pair.on.build.passes ^ pair.off.build.passes
        if setting.kind == "session":
            assert pair.on.build == pair.off.build
        else:
            assert changed == {setting.what} or pair.needs


def test_the_committed_report_has_every_pass_and_model(repo_root: Path):
    text = (repo_root / "benchmarks" / "report.md").read_text()
    for model in REFERENCE_MODELS:
        for context in CONTEXTS:
            _, found, rest = text.partition(f"### {model}, {context}\n")
            assert found, f"report.md has no table of {model}, {context}"
            table = re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0]
            there = {(m["what"], m["variant"] or "") for m in ROW.finditer(table)}
            assert {(s.what, s.variant) for s in settings.settings()} <= there
            assert {p.name for p in listed()} <= {what for what, _ in there}
            assert "**failed**" not in table


def test_what_loses_is_not_on_by_default(repo_root: Path):
    """A loss of a pass that is on by default, on one model both alone and among all, asks for a rule of `auto`."""
    text = (repo_root / "benchmarks" / "report.md").read_text()
    losses = re.search(r"^## Losses\n\n(Of \d+ comparisons.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert losses is not None
    on = re.findall(r"^- (\w+), (.+), (alone|among all): .*\*\*on by default\*\*$", losses[1], re.MULTILINE)
    both = {(model, what) for model, what, _ in on if sum((model, what) == one[:2] for one in on) > 1}
    assert not both


def test_the_readme_has_the_table_of_the_report(repo_root: Path):
    readme, report = ((repo_root / name).read_text() for name in ("README.md", "benchmarks/report.md"))
    table = readme[readme.index(markdown.BEGIN) : readme.index(markdown.END) + len(markdown.END)]
    assert table in report
    rows = [line for line in table.splitlines() if ROW.match(line)]
    assert len(rows) == len(settings.settings())
    assert all(line.rstrip(" |").endswith(".") for line in rows)  # each with its sentence
    assert "benchmarks/report.html" in readme


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Setting], list[Row], list[str]]:
    """A tiny DeepFM: settings that measure, that do nothing, that can't be run, and one that fails."""
    known = {s.name: s for s in settings.settings()}
    taken = ("externalise_vocabularies", "fuse_lookups", "merge_transfers (--device-map)", "batching")
    chosen = [dataclasses.replace(known[name], among=None, why_not="left out") for name in taken]
    broken = Pair(Served(build=Build(dense="abacus")), Served(build=Build()))
    chosen.append(Setting(what="broken", says="Fails.", alone=broken, why_not="left out"))
    chosen.append(known["dense_engine (--dense tensorrt)"])
    folder = tmp_path_factory.mktemp("effects")
    said: list[str] = []
    effort = Effort(rounds=3, seconds=5, warmup_rounds=1)
    rows, losses = run_model("deepfm", chosen, folder / "deepfm", folder / "cache", TINY, effort, said.append)
    assert set(losses) == {"first_loss", "last_loss"}
    assert len(said) <= steps_of(chosen)
    return chosen, rows, said


def test_the_harness_measures(measured: tuple[list[Setting], list[Row], list[str]]):
    chosen, rows, _ = measured
    assert len(rows) == 2 * len(chosen)
    alone = {row.setting: row for row in rows if row.context == ALONE}
    assert {row.status for row in rows if row.context == AMONG} == {"not run"}
    fused = alone["fuse_lookups"]
    assert fused.status == "measured" and fused.rounds == 3 and 0 < fused.low <= fused.ratio <= fused.high
    assert fused.on is not None and fused.off is not None
    assert fused.on.ops < fused.off.ops and fused.on.table_bytes > 0
    assert fused.on.transfers == fused.off.transfers == 0
    merged = alone["merge_transfers (--device-map)"]
    assert merged.on is not None and merged.off is not None
    assert 0 < merged.on.transfers < merged.off.transfers and merged.off.transfer_bytes > 0
    assert "needs place_devices" in merged.reason
    assert alone["batching"].status == "measured" and alone["batching"].request == "burst"


def test_what_was_not_measured_is_told(measured: tuple[list[Setting], list[Row], list[str]]):
    _, rows, _ = measured
    alone = {row.setting: row for row in rows if row.context == ALONE}
    assert alone["externalise_vocabularies"].status == "nothing to do"
    assert alone["broken"].status == "failed" and "abacus" in alone["broken"].reason
    tensorrt = alone["dense_engine (--dense tensorrt)"]
    assert tensorrt.status == "not run" and "GPU" in tensorrt.reason
    assert all(row.reason for row in rows if row.status != "measured")


def test_a_model_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    """Its error is in each of its rows, files are written, and the exit code is not 0."""

    def run(name: str, *_: object) -> tuple[list[Row], dict[str, float]]:
        if name == "din":
            raise RuntimeError("no such weights")
        return [_row(name, s.name, c, 1.2) for c in CONTEXTS for s in settings.settings()], {}

    monkeypatch.setattr(bench_report, "run_model", run)
    arguments = ["--models", "din,dlrm", "--out", str(tmp_path), "--json", str(tmp_path / "all.json")]
    assert bench_report.main(arguments) == 1
    assert "FAILED: din, everything, alone: RuntimeError: no such weights" in capsys.readouterr().out
    text = (tmp_path / "report.md").read_text()
    assert "no such weights" in text and "1.20 [1.10, 1.30]" in text
    page = (tmp_path / "report.html").read_text()
    assert page.count("no such weights") == 2 * len(settings.settings()) and "<rect" in page
    assert "http" not in page.replace("http://www.w3.org", "")  # it loads nothing
    assert not list(tmp_path.glob(".*.tmp"))


def test_an_unknown_model_is_named(capsys):
    assert bench_report.main(["--models", "dinn"]) == 2
    assert "no model 'dinn'; the models are wide_and_deep" in capsys.readouterr().err


def _row(model: str, setting: str, context: str, ratio: float, spread: float = 0.1) -> Row:
    side = Figures(p50_ms=1, p99_ms=2, ops=3, transfers=0, transfer_bytes=0, table_bytes=10, rss_mb=1)
    return Row(
        model=model, setting=setting, context=context, status="measured", request=ROWS, on=side, off=side,
        low=ratio - spread, ratio=ratio, high=ratio + spread, rounds=9,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ratio", "spread", "verdict"),
    [(0.9, 0.05, "loss"), (0.9, 0.2, "equal"), (0.98, 0.01, "equal"), (1.1, 0.05, "gain"), (1.1, 0.2, "equal")],
)
def test_a_loss_is_one_beyond_the_spread(ratio: float, spread: float, verdict: str):
    assert _row("din", "fuse_lookups", ALONE, ratio, spread).verdict == verdict


def test_losses_and_gains_alike_are_in_the_table():
    rows = [_row("din", "fuse_lookups", ALONE, 0.8), _row("dlrm", "fuse_lookups", ALONE, 2.0)]
    report = Report(conditions={"made": "now"}, models=("din", "dlrm"), rows=tuple(rows))
    table = markdown.effect_table(report, settings.settings())
    assert "| `fuse_lookups` | on | 0.80 to 2.00 | not run | din (alone) |" in table
    text = markdown.report_markdown(report, settings.settings())
    assert table in text and "- din, fuse_lookups, alone: 0.80 [0.70, 0.90]; **on by default**" in text
    page = report_page(report, settings.settings())
    assert 'class="loss"' in page and 'class="gain"' in page
    assert Report.from_json(report.to_json()) == report


def test_the_readme_needs_its_markers(tmp_path: Path):
    readme = tmp_path / "README.md"
    readme.write_text(f"a\n{markdown.BEGIN}\nold\n{markdown.END}\nb\n")
    markdown.put_table(readme, f"{markdown.BEGIN}\nnew\n{markdown.END}")
    assert readme.read_text() == f"a\n{markdown.BEGIN}\nnew\n{markdown.END}\nb\n"
    readme.write_text("nothing")
    with pytest.raises(ValueError, match="markers"):
        markdown.put_table(readme, "x")


def test_requests_are_of_the_kind_asked_for():
    one = requests_of("deepfm", settings.ONE_USER, TINY)[0]
    assert one["user_id"].shape == (1,) and one["item_id"].shape == (6,)
    assert len(requests_of("deepfm", settings.BURST, TINY)) % TINY.burst == 0
