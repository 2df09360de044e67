"""Runs the settings on one model: converts what they need, times contestants in turn, makes rows of it."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.effects.contestants import Builds, Contestant, open_contestant
from benchmarks.effects.models import Shape, requests_of, save_trained
from benchmarks.effects.rows import FAILED, MEASURED, NOT_RUN, NOTHING, Figures, Row
from benchmarks.effects.settings import CONTEXTS, Pair, Served, Setting
from tfctr.profiling.paired import Timing, measure_paired

# step(what): told before each piece of work.
Step = Callable[[str], None]
_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
_NO_CPU = "CPU seconds say nothing of threads and queues (--clock wall does)"
_TOLERANCE = {"fp32": 1e-4, "fp16": 2e-3, "bf16": 2e-2, "int8": 3e-2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effort:
    """rounds: of each group of contestants, fewer where ``seconds`` are used up first. clock: "wall", or "cpu": seconds
    of all threads of the process, which waiting for a busy core does not lengthen.
    """

    rounds: int = 100
    seconds: float = 10.0
    warmup_rounds: int = 4
    clock: str = "wall"


@dataclasses.dataclass(frozen=True)
class _Task:
    setting: Setting
    context: str
    pair: Pair


def run_model(
    name: str,
    settings: Sequence[Setting],
    folder: pathlib.Path,
    cache: pathlib.Path,
    shape: Shape,
    effort: Effort,
    step: Step = lambda _: None,
) -> tuple[list[Row], dict[str, float]]:
    """Rows of one reference model, in the order of ``settings``, and its training's losses.

    A setting that fails has its error in its row. folder: empty, for model and bundles.
    """  # fmt: skip
    step("train")
    builds = Builds(name, folder, cache)
    losses = save_trained(name, builds.model, shape)
    rows: dict[tuple[str, str], Row] = {}
    tasks = []
    for setting in settings:
        for context in CONTEXTS:
            pair = setting.pair(context)
            if pair is None:
                rows[setting.name, context] = _row(name, setting, context, NOT_RUN, setting.why_not)
                continue
            if setting.wall_only and effort.clock == "cpu":
                rows[setting.name, context] = _row(name, setting, context, NOT_RUN, _NO_CPU)
                continue
            found = _prepare(name, builds, _Task(setting, context, pair), step)
            if isinstance(found, Row):
                rows[setting.name, context] = found
            else:
                tasks.append(found)
    for context in CONTEXTS:
        for kind in dict.fromkeys(task.setting.request for task in tasks):
            group = [task for task in tasks if task.context == context and task.setting.request == kind]
            if group:
                step(f"time {context}, {kind}")
                rows |= _measure(name, builds, group, kind, shape, effort)
    return [rows[setting.name, context] for context in CONTEXTS for setting in settings], losses


def steps_of(settings: Sequence[Setting]) -> int:
    """How often ``run_model`` calls ``step`` at most."""
    pairs = [(s, c, p) for s in settings for c in CONTEXTS if (p := s.pair(c)) is not None]
    builds = {side.build for _, _, pair in pairs for side in (pair.on, pair.off)}
    return 1 + len(builds) + len({(s.request, context) for s, context, _ in pairs})


def _row(model: str, setting: Setting, context: str, status: str, reason: str) -> Row:
    return Row(
        model=model, setting=setting.name, context=context, status=status, reason=reason, request=setting.request
    )


def _error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _prepare(name: str, builds: Builds, task: _Task, step: Step) -> _Task | Row:
    """Converts both sides; a row where that fails, or where the setting does nothing to this model."""
    try:
        if not builds.has(task.pair.on.build):
            step(f"convert: {task.setting.name}, {task.context}")
        idle = builds(task.pair.on.build).idle(task.setting.passes)
        if idle is not None:
            return _row(name, task.setting, task.context, NOTHING, idle)
        if not builds.has(task.pair.off.build):
            step(f"convert: without {task.setting.name}")
        builds(task.pair.off.build)
    except Exception as error:  # of any kind: told in this row, the others go on
        return _row(name, task.setting, task.context, FAILED, _error(error))
    return task


def _measure(
    name: str, builds: Builds, group: Sequence[_Task], kind: str, shape: Shape, effort: Effort
) -> dict[tuple[str, str], Row]:
    """Times all contestants of ``group`` in turn, each right after an untimed call of its own: its caches are warm."""
    ring = requests_of(name, kind, shape)
    sides = list(dict.fromkeys(side for task in group for side in (task.pair.off, task.pair.on)))
    opened: dict[Served, Contestant] = {}
    failed: dict[Served, str] = {}
    with contextlib.ExitStack() as stack:
        for side in sides:
            try:
                opened[side] = open_contestant(stack, builds, side, kind, ring, shape)
            except Exception as error:  # of any kind: told in the rows that need it
                failed[side] = _error(error)
        calls = {str(number): opened[side].call for number, side in enumerate(sides) if side in opened}
        timed = {}
        if calls:
            timed = measure_paired(
                calls,
                effort.rounds,
                effort.warmup_rounds,
                budget_s=effort.seconds,
                clock=_CLOCKS[effort.clock],
                settle=True,
            )
    timings = {side: timed[str(number)] for number, side in enumerate(sides) if side in opened}
    return {
        (task.setting.name, task.context): _compared(name, task, opened, timings, failed) for task in group
    }  # fmt: skip


def _compared(
    name: str,
    task: _Task,
    opened: dict[Served, Contestant],
    timings: dict[Served, Timing],
    failed: dict[Served, str],
) -> Row:
    on, off = task.pair.on, task.pair.off
    for side in (on, off):
        if side in failed:
            return _row(name, task.setting, task.context, FAILED, failed[side])
    different = _difference(task, opened[on], opened[off])
    if different:
        return _row(name, task.setting, task.context, FAILED, different)
    ratios = timings[off].samples_ms / timings[on].samples_ms
    low, median, high = (float(x) for x in np.percentile(ratios, [25, 50, 75]))
    return dataclasses.replace(
        _row(name, task.setting, task.context, MEASURED, task.pair.needs),
        on=_figures(opened[on], timings[on]),
        off=_figures(opened[off], timings[off]),
        low=low,
        ratio=median,
        high=high,
        rounds=len(ratios),
    )


def _figures(one: Contestant, timing: Timing) -> Figures:
    return Figures(
        p50_ms=timing.median_ms,
        p99_ms=timing.p99_ms,
        ops=one.ops,
        transfers=one.transfers,
        transfer_bytes=one.transfer_bytes,
        table_bytes=one.table_bytes,
        rss_mb=one.rss_mb,
    )


def _difference(task: _Task, on: Contestant, off: Contestant) -> str:
    """Why the two sides do not compute the same; "" where they do."""
    dtypes = [side.build.table_dtype for side in (task.pair.on, task.pair.off) if side.build is not None]
    limit = max(_TOLERANCE[dtype] for dtype in dtypes)
    for output, value in off.outputs.items():
        worst = float(np.max(np.abs(np.asarray(on.outputs[output]) - np.asarray(value))))
        if not worst <= limit:
            return f"the output {output} differs by {worst:.2g} from the one without it (limit {limit:g})"
    return ""
