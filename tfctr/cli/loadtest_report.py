"""What ``tfctr loadtest`` prints while it runs and at its end."""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
from typing import Any

from tfctr.cli import common
from tfctr.loadtest.page import milliseconds, name_of_run, render_page
from tfctr.loadtest.plan import Outcome, Plan
from tfctr.loadtest.runs import Run
from tfctr.loadtest.target import Target
from tfctr.version import __version__

_COLUMNS = ("p50", "p90", "p95", "p99", "p99.9")


class Progress:
    """Tells each run of a test with several as it ends."""

    def __init__(self, plan: Plan, quiet: bool) -> None:
        self._several = not quiet and (plan.search is not None or len(plan.rates) > 1)

    def __call__(self, run: Run, missed: str | None) -> None:
        if self._several:
            p99 = run.summary.percentiles_ms["p99"]
            verdict = f"missed: {missed}" if missed else "kept"
            common.remarks().print(
                f"{name_of_run({'rate': run.rate, 'clients': run.clients}):>10}  "
                f"{run.summary.answers_per_s:8.1f} answers/s  p99 {milliseconds(p99):>7} ms  {verdict}",
                markup=False,
            )


def result_of(args: argparse.Namespace, target: Target, plan: Plan, outcome: Outcome, traffic: str) -> dict[str, Any]:
    """The JSON of the test."""
    told = outcome.as_dict(plan.run.connections, target.transport == "process")
    for number, run in enumerate(outcome.runs):
        told["runs"][number]["missed"] = None if plan.budget is None else plan.budget.reason(run)
    best = None
    if outcome.found is not None and outcome.found.best is not None:
        best = told["runs"][outcome.runs.index(outcome.found.best)]
    return {
        "target": str(target),
        "protocol": target.protocol or None,
        "traffic": traffic,
        "arrivals": plan.arrivals.kind if plan.rates or plan.search else None,
        "p99_budget_ms": args.p99_ms,
        "when": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "version": __version__,
        **told,
        "best": best,
    }


def write(result: dict[str, Any], as_json: bool, html: str | None) -> None:
    if html:
        _write_page(pathlib.Path(html), result)
    if as_json:
        common.print_json(result)
        return
    _print(result)
    if html:
        common.remarks().print(f"wrote {html}", markup=False)


def _write_page(path: pathlib.Path, result: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(render_page(result), encoding="utf-8")
    partial.replace(path)


def _print(result: dict[str, Any]) -> None:
    console = common.results()
    numbers = ("answers/s", "rows/s", *(f"{c} ms" if c == "p50" else c for c in _COLUMNS), "failed", "batch", "cores")
    table = common.table(result["target"], "load", *numbers, right=numbers)
    shown = [result["best"]] if result["best"] is not None else result["runs"]
    for run in shown:
        summary = run["summary"]
        table.add_row(
            name_of_run(run),
            f"{summary['answers_per_s']:.1f}",
            f"{summary['rows_per_s']:.0f}",
            *(milliseconds(summary["percentiles_ms"][c]) for c in _COLUMNS),
            str(summary["failed"]),
            f"{run['batch']['rows']:.1f}" if "rows" in run["batch"] else "",
            f"{run['cpu']['cores']:.2f}",
        )
    console.print(table)
    console.print("batch: mean rows of a batch on the server; cores: that this generator used", style="dim")
    search = result["search"]
    if search is not None:
        console.print(_found(search, result["p99_budget_ms"]))
    for run in shown:
        if run["server"]:
            console.print("server's own timing, mean ms: " + _stages(run["server"]), markup=False)
        for code, count in run["summary"]["errors"].items():
            message = run["summary"]["messages"].get(code, "")
            console.print(f"{name_of_run(run)}: {count} {code}: {message}", markup=False)
        for warning in run["warnings"]:
            common.remarks().print(f"{name_of_run(run)}: {warning}", markup=False)


def _found(search: dict[str, Any], budget: float) -> str:
    if search["rate"] is None:
        return f"no rate keeps a p99 of {budget:g} ms: {search['missed'][-1]}"
    more = " (--max-rate: more may be possible)" if search["limited"] else ""
    return f"[bold]{search['rate']:.0f} requests/s[/] keep a p99 of {budget:g} ms{more}"


def _stages(server: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in server.items())
