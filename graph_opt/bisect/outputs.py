"""Finds the first pass after which outputs leave the tolerance, and what in it makes them."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from graph_opt.bisect.differences import Outcome, Raised, Tolerance, difference
from graph_opt.bisect.forms import PLAIN, Inputs, Original, compare_form, forms
from graph_opt.bisect.narrow import smallest
from graph_opt.bisect.report import Difference, Findings, Step
from graph_opt.bisect.reproduction import Case, write_reproduction
from graph_opt.bisect.suspects import first_wrong_tensor, lookups_of, narrowed_options
from graph_opt.bisect.walk import Note, Progress, Stage, Walk
from graph_opt.item import GraphItem
from graph_opt.option_checks import check_options
from graph_opt.options import ConvertOptions
from graph_opt.saved_model import load
from graph_opt.table_gate import limits_of
from tfctr.core import library
from tfctr.errors import InputError, UsageError

TABLES = "compress_tables"
_ROW_TESTS = 60


def bisect_outputs(
    path: str | Path,
    signature: str,
    inputs: Inputs,
    options: ConvertOptions,
    *,
    tolerance: Tolerance | None = None,
    out: Path | None = None,
    progress: Progress = lambda *_: None,
    note: Note = lambda _: None,
) -> Findings:
    """Compares the original with the model after each pass, in every form it has by then (plain, packed, split,
    dense).

    out: folder for the reproduction; None: none is written. Raises InputError where the original refuses the inputs,
    UsageError where it gives other outputs every time it runs.
    """
    check_options(options)
    library.load_op_libraries([str(p) for p in options.op_libraries])
    source = load(path, options.tags)
    if source.is_bundle:
        raise UsageError(f"{source.path}: is a bundle; bisect takes the SavedModel that it was made from")
    with tempfile.TemporaryDirectory(prefix="tfctr-bisect-") as folder:
        walk = Walk(source, signature, options, Path(folder))
        return _Search(walk, inputs, tolerance or Tolerance(), progress, note).run(out)


class _Search:
    def __init__(self, walk: Walk, inputs: Inputs, tolerance: Tolerance, progress: Progress, note: Note) -> None:
        self.walk, self.inputs, self.tolerance, self.progress, self.note = walk, inputs, tolerance, progress, note
        self.want = self._original()

    def run(self, out: Path | None) -> Findings:
        steps, stage, found, skipped = self._walk()
        findings = Findings(
            what="outputs",
            path=str(self.walk.source.path),
            signature=self.walk.signature,
            found=found is not None,
            steps=tuple(steps),
        )
        if stage is None or found is None:
            return findings
        self.note(f"outputs differ after {stage.one.name}: {found.reason}")
        culprit, notes = self._which(stage, skipped)
        if culprit != stage.one.name:
            return dataclasses.replace(findings, culprit=culprit, difference=found, notes=tuple(notes))
        options = self._narrow(stage)
        item = self.walk.again(stage, options)
        rows = self._rows(item, found)
        few = self.inputs.rows(rows) if rows else self.inputs
        shown = self._differs(item, few, found.form) or found
        if rows and shown.row is not None and shown.row < len(rows):
            shown = dataclasses.replace(shown, row=rows[shown.row])
        tensor = first_wrong_tensor(self.walk, stage.before, item, found.form, few)
        lookups = lookups_of(stage, item, options, tensor, self.walk, found.form, few)
        findings = dataclasses.replace(
            findings,
            culprit=culprit,
            difference=shown,
            rewrites=_names(stage, options),
            lookups=lookups,
            tensor=tensor,
            rows=tuple(rows),
            notes=tuple(notes),
        )
        if out is not None:
            self.progress("write the reproduction", 0, 0)
            case = Case(walk=self.walk, stage=stage, options=options, inputs=few, tolerance=self.tolerance)
            findings = write_reproduction(case, findings, out)
        return findings

    def _original(self) -> Outcome:
        want = self._run_original(self.inputs)
        if isinstance(want, Raised):
            raise InputError(
                f"{self.walk.source.path}: signature {self.walk.signature!r}: stock TensorFlow refuses the inputs: "
                f"{want.error}"
            )
        again, _ = difference(PLAIN, self._run_original(self.inputs), want, self.tolerance)
        if again is not None:
            raise UsageError(
                f"{self.walk.source.path}: gives other outputs when it runs again on the same inputs ({again.output}: "
                f"{again.reason}); nothing can be compared with a model that draws random numbers"
            )
        return want

    def _run_original(self, inputs: Inputs) -> Outcome:
        with Original(self.walk.source, self.walk.first, self.walk.signature) as original:
            return original.run(inputs)

    def _walk(self) -> tuple[list[Step], Stage | None, Difference | None, list[Stage]]:
        """Steps up to the first pass that differs, that pass, how, and the passes before it that could not be run."""
        steps: list[Step] = []
        skipped: list[Stage] = []
        for stage in self.walk.stages(self.progress):
            step = Step(name=stage.one.name, status="equal", fired=stage.report.fired)
            if stage.report.status != "ok":
                steps.append(dataclasses.replace(step, status=stage.report.status, note=stage.report.error))
                continue
            if stage.one.name == TABLES and stage.report.fired and self.tolerance.atol is None:
                self.tolerance = Tolerance(gate=limits_of(self.walk.options))
            if not stage.runnable:
                steps.append(dataclasses.replace(step, status="skipped", note="the graph can't run on its own yet"))
                skipped.append(stage)
                continue
            found, drift, compared = self._compare(stage.after)
            note = f"forms: {', '.join(compared)}" if len(compared) > 1 else ""
            status = "differs" if found else "equal"
            steps.append(dataclasses.replace(step, status=status, drift=drift, note=note))
            if found:
                return steps, stage, found, skipped
            skipped = []
        return steps, None, None, []

    def _compare(self, item: GraphItem) -> tuple[Difference | None, float, list[str]]:
        drift = 0.0
        labels = list(forms(item, self.walk.signature))
        for label in labels:
            found, gap = self._one_form(item, self.inputs, label, self.want)
            drift = max(drift, gap)
            if found is not None:
                return found, drift, labels
        return None, drift, labels

    def _one_form(self, item: GraphItem, inputs: Inputs, form: str, want: Outcome) -> tuple[Difference | None, float]:
        try:
            with self.walk.runner(item) as runner:
                return compare_form(runner, form, inputs, want, self.tolerance)[:2]
        except Exception as error:  # a graph that no session takes is a difference like another
            return difference(form, Raised(f"no session can be made: {error}"), want, self.tolerance)

    def _differs(self, item: GraphItem, inputs: Inputs, form: str) -> Difference | None:
        if form not in forms(item, self.walk.signature):
            return None
        want = self.want if inputs is self.inputs else self._run_original(inputs)
        return self._one_form(item, inputs, form, want)[0]

    def _which(self, stage: Stage, skipped: list[Stage]) -> tuple[str, list[str]]:
        """The pass to blame: where passes before could not be run on their own, each is left out in turn."""
        for one in (s.one for s in skipped if s.report.fired and s.one.can_disable):
            options = dataclasses.replace(self.walk.options, disable=(*self.walk.options.disable, one.name))
            last = next(s for s in self.walk.stages(self.progress, options) if s.one.name == stage.one.name)
            if last.runnable and self._compare(last.after)[0] is None:
                return one.name, [f"without {one.name} the outputs after {stage.one.name} are equal"]
        names = [s.one.name for s in skipped if s.report.fired and not s.one.can_disable]
        return stage.one.name, [f"{name} can't be run or left out on its own" for name in names]

    def _narrow(self, stage: Stage) -> ConvertOptions:
        """Options under which the pass does the fewest rewrites that still show the difference."""
        names = list(stage.report.rewrites)
        if len(names) < 2:
            return self.walk.options
        tried = 0

        def shows(chosen: list[str]) -> bool:
            nonlocal tried
            tried += 1
            self.progress(f"narrow {stage.one.name}", tried, 0)
            return (
                self._compare(self.walk.again(stage, narrowed_options(stage, self.walk.options, chosen)))[0] is not None
            )

        options = narrowed_options(stage, self.walk.options, smallest(names, shows))
        if self._compare(self.walk.again(stage, options))[0] is None:  # confirmed, or it is none of them alone
            return self.walk.options
        return options

    def _rows(self, item: GraphItem, found: Difference) -> list[int]:
        """The fewest rows of the inputs that still show the difference."""
        if self.inputs.count == 0:
            return []
        tried = 0

        def shows(rows: list[int]) -> bool:
            nonlocal tried
            tried += 1
            self.progress("fewer rows", tried, 0)
            return self._differs(item, self.inputs.rows(rows), found.form) is not None

        if found.row is not None and found.row < self.inputs.count and shows([found.row]):
            return [found.row]
        everything = list(range(self.inputs.count))
        return smallest(everything, shows, _ROW_TESTS) if shows(everything) else everything


def _names(stage: Stage, options: ConvertOptions) -> tuple[str, ...]:
    only = options.only_lookups if options.only_lookups is not None else options.only_rewrites
    return stage.report.rewrites if only is None else tuple(n for n in stage.report.rewrites if n in only)
