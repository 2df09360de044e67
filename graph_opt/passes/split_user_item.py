"""Adds a form ``S__split`` to each optimised signature ``S``: user features come once per user, the rest per item row.

What depends on the user alone is computed on U rows and repeated by ``row_to_user`` as late as that is equivalent,
above all behind the first dense layer, whose product is taken apart by rows of its weights. ``S`` stays as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from graph_opt.item import GraphItem, SplitForm
from graph_opt.options import ConvertOptions
from graph_opt.recognise.facts import Facts
from graph_opt.report import PassOutcome, Refused
from graph_opt.rows.analysis import RowFacts
from graph_opt.rows.feeds import Feeds, feed_kinds
from graph_opt.split.details import notes, split_details
from graph_opt.split.features import check_patterns, from_samples, matching
from graph_opt.split.item_side import OnItemSide, found_beforehand
from graph_opt.split.proof import prove
from graph_opt.split.refusals import REASONS, graph_reason, has_lookups
from graph_opt.split.splitter import SUFFIX, Splitter, Written
from graph_opt.split.weights import Taken
from graph_opt.split.worlds import CannotTell
from graph_opt.view import GraphView, node_of

OPTIONS = (
    "--user-features A,B*: features that are the same for all candidates of a request; without them nothing is done",
    "--user-features auto: finds them in --samples: those that don't vary within a request",
    "--request-column NAME: tells the requests of --samples apart",
)
EXAMPLE = """\
before  S:        70 user inputs [B], 30 item inputs [B] -> lookups [B, 1600] -> MatMul [B, 1024] -> Relu
after   S__split: 70 user inputs [U] -> lookups [U, 1120] -> MatMul [U, 1024]  \\
                  30 item inputs [B] -> lookups [B,  480] -> MatMul [B, 1024] -> TfctrAddUserRows(row_to_user) + Relu
"""


def split_user_item(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring. ``details["split"]``: signature -> its ``split`` entry; ``details["user"]``: signature
    -> the user features and inputs, there also where it was refused.

    Raises UsageError where a pattern matches no feature, or samples can't tell.
    """
    if not options.user_features and not options.user_features_from_samples:
        return PassOutcome()
    check_patterns(item, options)
    refused: list[Refused] = []
    said: list[str] = []
    details: dict[str, Any] = {"split": {}, "user": {}}
    fired = 0
    rewrites: dict[str, None] = {}
    taken: Taken = {}
    for name in item.optimise:
        if name in item.split:
            continue  # it has one already
        attempt = _Attempt(item, name, options, taken)
        details["user"][name] = attempt.declared()
        rewrites |= dict.fromkeys(sorted(attempt.user))
        outcome = attempt.run()
        if isinstance(outcome, Refused):
            refused.append(outcome)
            continue
        fired += 1
        taken = attempt.taken
        form = item.split[name]
        details["split"][name] = form.details
        said += notes(name, form.user_features, form.details)
    return PassOutcome(
        fired=fired, refused=tuple(refused), notes=tuple(said), details=details, rewrites=tuple(rewrites)
    )


class _Attempt:
    """The split of one signature. taken: parts of weights that other signatures' forms have."""

    def __init__(self, item: GraphItem, name: str, options: ConvertOptions, taken: Taken) -> None:
        self.taken = taken
        self.item = item
        self.name = name
        self.options = options
        facts = Facts(GraphView(item.graph_def))
        self.feeds: Feeds = feed_kinds(item, name, facts)
        if options.user_features_from_samples:
            self.user = from_samples(item, name, self.feeds, options)
        else:
            self.user = matching(self.feeds, options.user_features)
        self.user = frozenset(f for f in self.user if self._moves(f))
        self.rows = RowFacts(facts.view, facts, self.feeds.kinds, item.fetches(name), item.groups)

    def declared(self) -> dict[str, Any]:
        return {"features": sorted(self.user), "inputs": self._inputs(self.user)}

    def run(self) -> Refused | None:
        """Adds the form to the item, or says why not."""
        reason = self._early_reason()
        if reason is not None:
            return self._refused(reason)
        item_side = found_beforehand(self.rows, self.item.groups, self.user)
        user = frozenset(f for f in self.user if self.options.wants(f)) - {e.feature for e in item_side}
        while user:
            trial = self.item.copy()
            try:
                written = self._write(trial, user)
            except OnItemSide as found:
                item_side.append(found)
                user -= {found.feature}
                self._forget(trial)
                continue
            except CannotTell as error:
                self._forget(trial)
                return self._refused(REASONS["shape"].format(what=error))
            return self._finish(trial, written, user, item_side)
        left = "; ".join(f"{e.feature}: {e.op} {e.node}: {e.reason}" for e in item_side)
        return self._refused(REASONS["left"].format(features=left))

    def _early_reason(self) -> str | None:
        if not self.user:
            return REASONS["none"]
        if f"{self.name}{SUFFIX}" in self.item.signatures:
            return REASONS["taken"].format(name=self.name + SUFFIX)
        reason = graph_reason(self.item, self.name, self.rows, self.feeds)
        if reason is not None:
            return reason
        moving = {f for f in self.feeds.inputs if self._moves(f)}
        if moving <= self.user:
            return REASONS["all"]
        return None

    def _moves(self, feature: str) -> bool:
        """Whether a feature has rows at all: a scalar input is the same for the whole request."""
        inputs = self.feeds.inputs[feature]
        return any(self.feeds.kinds[self.feeds.tensors[name]].name != "shared" for name in inputs)

    def _write(self, trial: GraphItem, user: frozenset[str]) -> Written:
        facts = Facts(GraphView(trial.graph_def))
        rows = RowFacts(facts.view, facts, self.feeds.kinds, trial.fetches(self.name), trial.groups)
        writer = Splitter(
            trial,
            self.name,
            facts,
            rows,
            self.feeds,
            user,
            prefix=_scope(facts.view, self.name),
            custom=_on_cpu(self.options.device_map.get("dense", "")),
            limit_bytes=self.options.dense_limit_bytes,
            taken=self.taken,
        )
        return writer.run()

    def _finish(
        self, trial: GraphItem, written: Written, user: frozenset[str], item_side: Sequence[OnItemSide]
    ) -> Refused | None:
        signature = f"{self.name}{SUFFIX}"
        trial.signatures[signature] = written.signature
        trial.groups += written.groups
        _prune_form(trial, written)
        details = split_details(trial, self.name, written, item_side)
        flops = details["flops"]
        saves = flops["item_per_row"] < flops["before_per_row"]
        looks_up = any(entry["side"] == "user" for entry in details["boundary"])
        if not saves and not looks_up:
            self._forget(trial)
            return self._refused(self._no_gain(trial))
        trial.split[self.name] = SplitForm(
            signature=signature,
            row_to_user=written.row_to_user,
            user_inputs=tuple(self._inputs(user)),
            user_features=tuple(sorted(user)),
            details=details,
        )
        verdict = prove(trial, self.name, self.feeds, user, self.options)
        if not verdict.ok:
            self._forget(trial)
            return self._refused(REASONS["proof"].format(what=verdict.reason), proof_failed=verdict.different)
        kept = {node.name for node in trial.graph_def.node}
        self.taken = {key: tensor for key, tensor in written.taken.items() if node_of(tensor) in kept}
        for field in dataclasses.fields(GraphItem):
            setattr(self.item, field.name, getattr(trial, field.name))
        return None

    def _no_gain(self, trial: GraphItem) -> str:
        if not has_lookups(GraphView(trial.graph_def), trial, self.name):
            return REASONS["dense"]
        return REASONS["gain"]

    def _forget(self, trial: GraphItem) -> None:
        """Removes the files that a given-up attempt wrote."""
        for file in trial.files[len(self.item.files) :]:
            if file.path is not None:
                file.path.unlink(missing_ok=True)

    def _inputs(self, features: frozenset[str]) -> list[str]:
        return sorted(name for feature in features for name in self.feeds.inputs[feature])

    def _refused(self, reason: str, proof_failed: bool = False) -> Refused:
        return Refused(what=f"signature {self.name}", reason=reason, proof_failed=proof_failed)


def _prune_form(trial: GraphItem, written: Written) -> None:
    """Removes new nodes that nothing reads (shapes of one side that were not needed in the end)."""
    view = GraphView(trial.graph_def)
    needed = view.ancestors([*trial.keep(), *trial.tables, *([trial.store_node] if trial.store_node else [])])
    prefix = written.worlds.build.prefix
    view.remove([node.name for node in view if node.name.startswith(prefix) and node.name not in needed])
    kept = {node.name for node in view}
    trial.groups = [g for g in trial.groups if g.node in kept]


def _scope(view: GraphView, signature: str) -> str:
    """A scope of its own for the split form of ``signature``, whose name may hold any character."""
    base = "".join(c if c.isalnum() or c in "_.-" else "_" for c in signature if c.isascii())
    base = (base if base[:1].isalnum() else f"s{base}") + SUFFIX
    taken = {node.name.split("/", 1)[0] for node in view}
    scope, number = base, 0
    while scope in taken:
        number += 1
        scope = f"{base}_{number}"
    return f"{scope}/"


def _on_cpu(device: str) -> bool:
    return not device or "CPU" in device.upper()
