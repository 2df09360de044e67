"""Finds the pass that makes the call slower: every step against the one before, in turn, in one process.

A step counts as slower where the whole 95 % interval of the median of its paired ratios lies above what the same graph
shows against itself (a second session of the first step), and above 2 %.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from graph_opt.bisect.forms import PLAIN, Inputs, Original, forms, users
from graph_opt.bisect.narrow import smallest
from graph_opt.bisect.report import Findings, Step
from graph_opt.bisect.suspects import FUSE, narrowed_options
from graph_opt.bisect.walk import Note, Progress, Stage, Walk
from graph_opt.item import GraphItem
from graph_opt.option_checks import check_options
from graph_opt.options import ConvertOptions
from graph_opt.saved_model import load
from tfctr.core import library
from tfctr.errors import UsageError

Call = Callable[[], object]
_WARM_UP = 5
_LEAST = 0.02  # a change below this is not worth a name
_RESAMPLES = 400
_TWIN, _ORIGINAL = "the first step again", "original"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratio:
    """Time of one contestant over another's: median of the paired ratios with its 95 % interval (bootstrap)."""

    median: float
    low: float
    high: float

    def slower(self, noise: float) -> bool:
        return self.low > 1.0 + max(_LEAST, noise)

    def faster(self, noise: float) -> bool:
        return self.high < 1.0 - max(_LEAST, noise)


def bisect_speed(
    path: str | Path,
    signature: str,
    inputs: Inputs,
    options: ConvertOptions,
    *,
    rounds: int = 60,
    progress: Progress = lambda *_: None,
    note: Note = lambda _: None,
) -> Findings:
    """Times the call after each pass and names the pass that makes it slower the most, if one does beyond the noise.

    One thread, TensorFlow's optimisers on, ``Session.run`` from Python; the packed form from the pass on that makes it,
    the split form where several rows of the inputs have one user. The original is the SavedModel under stock
    TensorFlow.
    """
    check_options(options)
    library.load_op_libraries([str(p) for p in options.op_libraries])
    source = load(path, options.tags)
    if source.is_bundle:
        raise UsageError(f"{source.path}: is a bundle; bisect takes the SavedModel that it was made from")
    with tempfile.TemporaryDirectory(prefix="tfctr-bisect-") as folder:
        walk = Walk(source, signature, options, Path(folder))
        return _Timing(walk, inputs, rounds, progress, note).run()


class _Timing:
    def __init__(self, walk: Walk, inputs: Inputs, rounds: int, progress: Progress, note: Note) -> None:
        self.walk, self.inputs, self.rounds, self.progress, self.note = walk, inputs, rounds, progress, note

    def run(self) -> Findings:
        stages = list(self.walk.stages(self.progress))
        timed = [s for s in stages if s.report.status == "ok" and s.runnable and (s.report.fired or s is stages[-1])]
        first = next((s for s in stages if s.runnable), stages[-1])
        timed = [first, *(s for s in timed if s is not first)]
        with contextlib.ExitStack() as stack:
            calls = self._calls(stack, timed)
            times = self._measure(calls)
        noise = _noise(times)
        steps, worst = self._steps(stages, timed, times, noise)
        findings = Findings(
            what="speed",
            path=str(self.walk.source.path),
            signature=self.walk.signature,
            found=worst is not None,
            steps=steps,
            notes=(f"a graph against itself: {noise:.1%}", _whole(times, timed)),
        )
        if worst is None:
            return findings
        self.note(f"slower after {worst.one.name}")
        chosen = self._narrow(worst, noise)
        lookups = self._lookups(worst, chosen)
        return dataclasses.replace(findings, culprit=worst.one.name, rewrites=tuple(chosen), lookups=lookups)

    def _calls(self, stack: contextlib.ExitStack, timed: list[Stage]) -> dict[str, Call]:
        original = stack.enter_context(Original(self.walk.source, self.walk.first, self.walk.signature, optimised=True))
        calls: dict[str, Call] = {_ORIGINAL: original.call(self.inputs)}
        for stage in timed:
            calls[stage.one.name] = self._call(stack, stage.after)
        calls[_TWIN] = self._call(stack, timed[0].after)
        return calls

    def _call(self, stack: contextlib.ExitStack, item: GraphItem) -> Call:
        runner = stack.enter_context(self.walk.runner(item, optimised=True))
        return runner.call(self._form(item), self.inputs)

    def _form(self, item: GraphItem) -> str:
        """The form that serves these inputs: split where several rows have one user, dense and packed as it has."""
        known = forms(item, self.walk.signature)
        split = item.split.get(self.walk.signature)
        if split is not None and 2 * len(users(self.inputs, split.user_inputs)[0]) <= self.inputs.count:
            return next(one for one in ("split dense packed", "split dense", "split packed", "split") if one in known)
        return next(one for one in ("dense packed", "dense", "packed", PLAIN) if one in known)

    def _measure(self, calls: Mapping[str, Call]) -> dict[str, npt.NDArray[np.float64]]:
        """Milliseconds per round; the contestants take turns, in an order that turns as well."""
        names = list(calls)
        for _ in range(_WARM_UP):
            for name in names:
                calls[name]()
        times: dict[str, list[float]] = {name: [] for name in names}
        collecting = gc.isenabled()
        gc.disable()
        try:
            for number in range(self.rounds):
                turn = number % len(names)
                for name in names[turn:] + names[:turn]:
                    begin = time.perf_counter()
                    calls[name]()
                    times[name].append((time.perf_counter() - begin) * 1e3)
                self.progress("time the steps", number + 1, self.rounds)
        finally:
            if collecting:
                gc.enable()
        return {name: np.asarray(taken) for name, taken in times.items()}

    def _steps(
        self, stages: list[Stage], timed: list[Stage], times: Mapping[str, npt.NDArray[np.float64]], noise: float
    ) -> tuple[tuple[Step, ...], Stage | None]:
        steps = []
        worst: tuple[float, Stage] | None = None
        before = _ORIGINAL
        for stage in stages:
            step = Step(name=stage.one.name, status="equal", fired=stage.report.fired)
            if stage not in timed:
                why = stage.report.status if stage.report.status != "ok" else "skipped"
                note = stage.report.error or ("" if why != "skipped" else "changes nothing that can be timed")
                steps.append(dataclasses.replace(step, status=why, note=note))
                continue
            found = paired_ratio(times[stage.one.name], times[before])
            slower = found.slower(noise)
            status = "slower" if slower else "faster" if found.faster(noise) else "equal"
            against = "against the original" if before == _ORIGINAL else ""
            steps.append(
                dataclasses.replace(
                    step,
                    status=status,
                    note=against,
                    ratio=found.median,
                    low=found.low,
                    high=found.high,
                    median_ms=float(np.median(times[stage.one.name])),
                )
            )
            if slower and before != _ORIGINAL and (worst is None or found.median > worst[0]):
                worst = found.median, stage
            before = stage.one.name
        return tuple(steps), None if worst is None else worst[1]

    def _narrow(self, stage: Stage, noise: float) -> list[str]:
        """The fewest of the pass's rewrites that make it slower; [] where it has one only."""
        names = list(stage.report.rewrites)
        if len(names) < 2:
            return []

        def shows(chosen: list[str]) -> bool:
            options = narrowed_options(stage, self.walk.options, chosen)
            with contextlib.ExitStack() as stack:
                before = self._call(stack, stage.before)
                after = self._call(stack, self.walk.again(stage, options))
                times = self._measure({"before": before, "after": after})
            return paired_ratio(times["after"], times["before"]).slower(noise)

        return smallest(names, shows, 40)

    def _lookups(self, stage: Stage, chosen: list[str]) -> tuple[str, ...]:
        if stage.one.name != FUSE or not chosen:
            return ()
        options: ConvertOptions = narrowed_options(stage, self.walk.options, chosen)
        item = self.walk.again(stage, options)
        return tuple(dict.fromkeys(spec.name for group in item.groups for spec, _ in group.lookups))


def paired_ratio(after: npt.NDArray[np.float64], before: npt.NDArray[np.float64]) -> Ratio:
    """Median of ``after / before`` round by round, and the interval that 95 % of resamples of the rounds give."""
    logs = np.log(after / before)
    random = np.random.default_rng(0)
    picks = random.integers(0, len(logs), (_RESAMPLES, len(logs)))
    low, high = np.percentile(np.median(logs[picks], axis=1), [2.5, 97.5])
    return Ratio(median=float(np.exp(np.median(logs))), low=float(np.exp(low)), high=float(np.exp(high)))


def _noise(times: Mapping[str, npt.NDArray[np.float64]]) -> float:
    """How far the same graph in two sessions seems to differ; how much rounds scatter is in the intervals already."""
    first = next(name for name in times if name not in (_ORIGINAL, _TWIN))
    return abs(paired_ratio(times[_TWIN], times[first]).median - 1.0)


def _whole(times: Mapping[str, npt.NDArray[np.float64]], timed: list[Stage]) -> str:
    found = paired_ratio(times[timed[-1].one.name], times[_ORIGINAL])
    low, high = 1.0 / found.high, 1.0 / found.low
    return f"converted, all in all: {1.0 / found.median:.2f}x as fast as the original ({low:.2f} to {high:.2f})"
