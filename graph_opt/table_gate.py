"""Runs a model over float32 and over narrow tables on the same inputs and lets the accuracy gate judge."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.describe import describe
from graph_opt.finish import finish, write_state
from graph_opt.gate import GateLimits, GateResult, judge, limits_for
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.recheck import feeds_of, inputs_of, outputs_of, packed_outputs_of
from graph_opt.sessions import ItemSession, what_happened
from graph_opt.view import GraphView
from tfctr.bundle.sample_inputs import generate
from tfctr.errors import InputError

GENERATED_ROWS = 1024
_TIMING_ROUNDS, _TIMING_WARM_UP = 15, 3


class CannotJudge(Exception):
    """The model does not run on the inputs that there are; the message is what it says."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateInputs:
    """What the gate judges on. inputs: signature -> arrays by input name. labels: signature -> [B]. told: where they
    come from and what that means, one line for people.
    """

    inputs: Mapping[str, Mapping[str, Any]]
    labels: Mapping[str, Any]
    told: str
    generated: bool


def limits_of(options: ConvertOptions) -> GateLimits:
    """The gate's limits for ``options.table_dtype``."""
    return limits_for(options.table_dtype, options.max_dp, options.max_bias, options.max_auc_delta)


def gate_inputs(described: Mapping[str, Any], names: tuple[str, ...], options: ConvertOptions) -> GateInputs:
    """The samples of ``options`` for the signatures ``names``, else generated inputs."""
    if options.read_samples is None:
        told = (
            f"generated inputs, {GENERATED_ROWS} rows of ids and numbers drawn at random: they say little about real "
            "requests, and AUC was not judged at all (give real rows with --samples)"
        )
        made = {name: generate(described[name], GENERATED_ROWS, options.seed) for name in names}
        return GateInputs(inputs=made, labels={}, told=told, generated=True)
    inputs = {name: inputs_of(described[name], options, name) for name in names}
    labels: dict[str, Any] = {}
    if options.read_sample_columns is not None:
        found = {name: options.read_sample_columns(described[name]).labels for name in names}
        labels = {name: value for name, value in found.items() if value is not None}
    without = "" if labels else f"; no labels (column {options.label!r}), so AUC was not judged"
    return GateInputs(
        inputs=inputs, labels=labels, told=f"the samples of {options.samples_path}{without}", generated=False
    )


def describe_item(item: GraphItem) -> dict[str, Any]:
    """Signature infos as in a manifest: what inputs mean is read off the graph before its lookups were fused."""
    if item.described is not None:
        return item.described
    specs = [spec for group in item.groups for spec, _ in group.lookups]
    return describe(item.unfused or item, (), specs, final=item)


@contextlib.contextmanager
def saved_state(item: GraphItem) -> Iterator[str | None]:
    """A checkpoint of the model's mutable state for as long as the block runs; None where there is none."""
    if not any(m.keys for m in item.mutable_state) or item.source_path is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "variables"
        write_state(item, str(item.source_path / "variables" / "variables"), str(prefix))
        yield str(prefix)


class TableGate:
    """Judges versions of one model by the outputs of the first (float32) one. Sessions live for one run each."""

    def __init__(
        self, item: GraphItem, inputs: GateInputs, limits: GateLimits, options: ConvertOptions, restore: str | None
    ) -> None:
        self._inputs, self._limits, self._options, self._restore = inputs, limits, options, restore
        self.runs = 0
        try:
            self._reference = self._outputs(item)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            happened = what_happened(str(getattr(error, "message", error)))
            raise CannotJudge(happened) from error
        check_label_output(self._reference, options)

    def judge(self, item: GraphItem) -> dict[str, GateResult]:
        """One result per optimised signature."""
        self.runs += 1
        outputs = self._outputs(item)
        return {
            name: judge_signature(self._reference[name], got, self._inputs, name, self._limits, self._options)
            for name, got in outputs.items()
        }

    def _outputs(self, item: GraphItem) -> dict[str, dict[str, Any]]:
        ready = item.copy()
        finish(ready)
        return {name: outputs_of(ready, name, self._inputs.inputs[name], self._restore) for name in item.optimise}


def judge_signature(
    want: Mapping[str, Any],
    got: Mapping[str, Any],
    inputs: GateInputs,
    name: str,
    limits: GateLimits,
    options: ConvertOptions,
) -> GateResult:
    """The gate over the outputs of one signature; its labels where they are given and belong to it."""
    output = options.label_output
    labels = inputs.labels.get(name) if output is None or output in want else None
    return judge(
        want, got, labels, limits, label_output=output if labels is not None else None, rows=rows_of(inputs, name)
    )


def check_label_output(outputs: Mapping[str, Mapping[str, Any]], options: ConvertOptions) -> None:
    """InputError where ``options.label_output`` is no output of any signature."""
    wanted = options.label_output
    known = sorted({name for found in outputs.values() for name in found})
    if wanted is not None and wanted not in known:
        raise InputError(f"labels of output {wanted!r}: the outputs are {', '.join(known)}")


def rows_of(inputs: GateInputs, name: str) -> int | None:
    """Rows that were run, where it is known."""
    if inputs.generated:
        return GENERATED_ROWS
    return len(inputs.labels[name]) if name in inputs.labels else None


def judge_converted(
    wide: GraphItem, narrow: GraphItem, described: Mapping[str, Any], options: ConvertOptions, restore: str | None
) -> tuple[list[dict[str, Any]], str]:
    """The last check of a conversion with narrow tables: each optimised signature and its packed form, over narrow
    tables, judged by the same graph over float32 tables. Both items are finished. Returns one JSON-able verdict per
    form, and what it was judged on.
    """
    inputs = gate_inputs(described, narrow.optimise, options)
    limits = limits_of(options)
    found = []
    for name in narrow.optimise:
        given = inputs.inputs[name]
        want = outputs_of(wide, name, given, restore)
        forms = {name: outputs_of(narrow, name, given, restore)}
        if name in narrow.packed:
            forms[narrow.packed[name]] = packed_outputs_of(narrow, name, described[name], given, restore)
        for form, got in forms.items():
            result = judge_signature(want, got, inputs, name, limits, options)
            found.append({"signature": form, **result.to_json()})
    return found, inputs.told


def op_times(before: GraphItem, after: GraphItem, inputs: GateInputs, restore: str | None) -> dict[str, Any]:
    """Median microseconds of the fused lookups in one run of the signature with the most of them, over float32 and
    over narrow tables, in turn and on one thread. A first figure; benchmarks/bench_table_dtype.py measures properly.
    """
    nodes = {name: _lookups_of(after, name) for name in after.optimise}
    name = max(nodes, key=lambda n: len(nodes[n]))
    with contextlib.ExitStack() as stack:
        sessions = []
        for item in (before, after):
            ready = item.copy()
            finish(ready)
            sessions.append((stack.enter_context(ItemSession(ready, restore=restore)), ready))
        times: list[list[float]] = [[], []]
        for number in range(-_TIMING_WARM_UP, _TIMING_ROUNDS):
            for which in (0, 1) if number % 2 else (1, 0):
                session, ready = sessions[which]
                taken = session.op_times_us(nodes[name], feeds_of(ready, name, inputs.inputs[name]))
                if number >= 0:
                    times[which].append(taken)
    fp32, narrow = (float(np.median(t)) for t in times)
    return {
        "signature": name,
        "lookups_us_fp32": round(fp32, 1),
        "lookups_us": round(narrow, 1),
        "ratio": round(fp32 / max(narrow, 1e-3), 2),
    }


def _lookups_of(item: GraphItem, name: str) -> list[str]:
    needed = GraphView(item.graph_def).ancestors(item.fetches(name))
    return [group.node for group in item.groups if group.node in needed]
