"""The last check of a conversion's dense forms: each is run, its engine included, beside the form that it stands for.

An fp32 engine must give the plain form's outputs within 1e-5 + 1e-5 |b|; one of less precision is judged by the
accuracy gate that it passed. A form whose provider does not run on this machine is run by its fallback.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from graph_opt.gate import judge
from graph_opt.item import DenseForm, GraphItem, SplitForm, output_names, output_tensors
from graph_opt.options import ConvertOptions
from graph_opt.parity import OutputParity, compare_all
from graph_opt.recheck import feeds_of, inputs_of, packed_feeds
from graph_opt.recheck_users import split_feeds, user_cases
from graph_opt.sessions import ItemSession, what_happened
from graph_opt.signature_info import signature_info
from graph_opt.table_gate import gate_inputs
from tfctr.bundle.sample_inputs import generate

DENSE_ATOL = 1e-5
# Batches besides the samples: alone, and a size that no variant is made for.
_MORE_ROWS = (1, 37)

Inputs = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseVerdicts:
    """outputs: one per output of every fp32 form and of its packed form. gates: JSON-able verdicts of the others."""

    outputs: list[OutputParity]
    gates: list[dict[str, Any]]

    @property
    def different(self) -> str:
        """What is wrong, one line; "" where nothing is."""
        for one in self.outputs:
            if not one.ok:
                return f"signature {one.signature!r}, output {one.output!r}: the engine's form {one.reason}"
        for gate in self.gates:
            if not gate["passed"]:
                return f"signature {gate['signature']!r}: the accuracy gate of the engine's form {gate['text']}"
        return ""


def check_dense(
    item: GraphItem, described: Mapping[str, Any], options: ConvertOptions, restore: str | None
) -> DenseVerdicts:
    """See the module docstring. ``item`` is finished; it is not changed. described: signature -> its info."""
    found = DenseVerdicts(outputs=[], gates=[])
    if not item.dense:
        return found
    ready = by_check_provider(item)
    with _Sessions(ready, restore) as sessions:
        for form, dense in item.dense.items():
            if not dense.check_provider:
                continue  # nothing on this machine runs it; its entry says so
            _Form(ready, form, dense, described, options, sessions).run(found)
    return found


def enter_verdicts(described: Mapping[str, Any], item: GraphItem, verdicts: DenseVerdicts) -> None:
    """Puts what was found into the ``dense`` entries of ``described``."""
    for form, dense in item.dense.items():
        entry = dense_of(described, item, form)
        if entry is None:
            continue
        names = {dense.signature, item.packed.get(dense.signature, dense.signature)}
        outputs = [one for one in verdicts.outputs if one.signature in names]
        gates = [one for one in verdicts.gates if one["signature"] in names]
        entry["check"] = {
            "provider": dense.check_provider,
            "forms": sorted(names),
            "max_difference": max((one.max_abs for one in outputs), default=None),
            "max_dp": max((one["max_dp"] for one in gates), default=None),
        }


def dense_of(described: Mapping[str, Any], item: GraphItem, form: str) -> dict[str, Any] | None:
    """The ``dense`` entry of a signature or split form."""
    name = next((n for n, split in item.split.items() if split.signature == form), None)
    info = described[form] if name is None else described[name]["split"]
    entry: dict[str, Any] | None = info["dense"]
    return entry


def enter_dense(described: Mapping[str, Any], item: GraphItem, entries: Mapping[str, Any]) -> None:
    """Gives every optimised signature (and its ``split``) its ``dense`` entry, with the packed form's name.

    entries: of the pass, by form; a form without one gets None.
    """
    for name in item.optimise:
        places = [(name, described[name])]
        if name in item.split and described[name].get("split"):
            places.append((item.split[name].signature, described[name]["split"]))
        for form, info in places:
            entry = entries.get(form)
            packed = item.packed.get(item.dense[form].signature) if form in item.dense else None
            info["dense"] = None if entry is None else {**entry, "packed": packed}


def by_check_provider(item: GraphItem) -> GraphItem:
    """A copy whose engines are those of the check: of a provider that runs on this machine."""
    ready = item.copy()
    nodes = {node.name: node for node in ready.graph_def.node}
    for dense in item.dense.values():
        if dense.check_provider in ("", dense.provider):
            continue
        for node in nodes.values():
            if node.name == dense.node or node.name.endswith(f"/{dense.node}"):  # the packed form's copy
                node.attr["provider"].s = dense.check_provider.encode()
                node.attr["precision"].s = dense.check_precision.encode()
                node.attr["options"].s = b"{}"  # those there are belong to the other provider
    return ready


class _Sessions:
    """One session for everything, or a fresh one per form where the model has states that a run changes."""

    def __init__(self, item: GraphItem, restore: str | None) -> None:
        self._item, self._restore = item, restore
        self._stack = contextlib.ExitStack()
        self._shared: ItemSession | None = None

    def __enter__(self) -> _Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def session(self) -> Iterator[ItemSession]:
        if self._item.mutable_state:
            with ItemSession(self._item, restore=self._restore) as one:
                yield one
            return
        if self._shared is None:
            self._shared = self._stack.enter_context(ItemSession(self._item, restore=self._restore))
        yield self._shared


class _Form:
    """The comparison of one dense form (and its packed form) with the form that it stands beside."""

    def __init__(
        self,
        item: GraphItem,
        form: str,
        dense: DenseForm,
        described: Mapping[str, Any],
        options: ConvertOptions,
        sessions: _Sessions,
    ) -> None:
        self._item, self._form, self._dense, self._options, self._sessions = item, form, dense, options, sessions
        self._split: SplitForm | None = next((s for s in item.split.values() if s.signature == form), None)
        self._name = next((n for n, s in item.split.items() if s.signature == form), form)
        self._info, self._described = described[self._name], described
        self._labels: Any = None

    def run(self, found: DenseVerdicts) -> None:
        cases = self._cases()
        names = output_names(self._item, self._name)
        want = self._outputs(self._form, cases, packed=False)
        forms = [(self._dense.signature, False)]
        if self._dense.signature in self._item.packed:
            forms.append((self._item.packed[self._dense.signature], True))
        for signature, packed in forms:
            try:
                got = self._outputs(signature, cases, packed=packed)
            except tf.errors.OpError as error:
                reason = f"raises: {what_happened(str(error.message))}"
                found.outputs.append(OutputParity(signature=signature, output="", ok=False, reason=reason))
                continue
            if self._dense.limits is None:
                by_case = [compare_all(signature, names, g, w, DENSE_ATOL) for g, w in zip(got, want, strict=True)]
                found.outputs.extend(max(one, key=_badness) for one in zip(*by_case, strict=True))
            else:
                found.gates.append(self._gate(signature, names, got[0], want[0]))

    def _cases(self) -> list[Inputs]:
        """Inputs of the form: samples first, then other batch sizes. Under a gate only what the gate judges on."""
        given = gate_inputs(self._described, (self._name,), self._options)
        if self._dense.limits is not None:
            self._labels = given.labels.get(self._name)
        first = given.inputs[self._name] if self._dense.limits is not None else self._inputs()
        if self._split is None:
            more = [generate(self._info, rows, self._options.seed) for rows in _MORE_ROWS]
            return [first] if self._dense.limits is not None or self._options.read_samples else [first, *more]
        cases = user_cases(
            self._info, self._split, self._options, None if self._options.read_samples is None else dict(first)
        )
        return [case.split for case in cases]

    def _inputs(self) -> Inputs:
        return inputs_of(self._info, self._options, self._name)

    def _outputs(self, signature: str, cases: Sequence[Inputs], *, packed: bool) -> list[list[Any]]:
        tensors = output_tensors(self._item, signature)
        with self._sessions.session() as session:
            return [session.run(tensors, dict(self._feeds(case, packed=packed))) for case in cases]

    def _feeds(self, case: Inputs, *, packed: bool) -> Mapping[str, Any]:
        if packed:
            name = self._dense.signature
            info = self._info if self._split is None else signature_info(self._item.signatures[name])
            return packed_feeds(self._item, name, info, case)
        if self._split is None:
            return feeds_of(self._item, self._name, case)
        return split_feeds(self._item, self._form)(dict(case))

    def _gate(self, signature: str, names: Sequence[str], got: Sequence[Any], want: Sequence[Any]) -> dict[str, Any]:
        assert self._dense.limits is not None
        output = self._options.label_output if self._options.label_output in names else None
        labels = self._labels if self._split is None or self._options.read_samples else None
        result = judge(
            dict(zip(names, want, strict=True)),
            dict(zip(names, got, strict=True)),
            labels,
            self._dense.limits,
            label_output=output if labels is not None else None,
        )
        return {"signature": signature, **result.to_json()}


def _badness(one: OutputParity) -> tuple[bool, float]:
    return not one.ok, one.worst


__all__ = ["DENSE_ATOL", "DenseVerdicts", "by_check_provider", "check_dense", "enter_dense", "enter_verdicts"]
