"""The one ordered list of passes, and the driver that runs them.

``DEFAULT_PASSES``: up to the reference graph (stock ops over the store's tables and vocabularies), then the rewrites
that are proven against it. A pass that raises, or leaves a graph that ``verify`` rejects, is undone and reported.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.passes.compress_tables import compress_tables
from graph_opt.passes.drop_unused_files import drop_unused_files
from graph_opt.passes.externalise_embeddings import externalise_embeddings
from graph_opt.passes.externalise_tables import externalise_tables
from graph_opt.passes.externalise_vocabularies import externalise_vocabularies
from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.passes.lookups_first import lookups_first
from graph_opt.passes.merge_transfers import merge_transfers
from graph_opt.passes.normalise import normalise
from graph_opt.passes.pack_inputs import pack_inputs
from graph_opt.passes.place_devices import place_devices
from graph_opt.passes.prune_training import prune_training
from graph_opt.passes.split_user_item import split_user_item
from graph_opt.report import Pass, PassReport
from graph_opt.verify import verify
from tfctr.bundle.naming import RULE_ATTR
from tfctr.errors import StrictRefusal, TfctrError, UsageError

REFERENCE_PASSES = (
    Pass(
        name="prune_training",
        run=prune_training,
        does="removes optimizer slots, save/restore and everything else that no signature needs",
        order_reason="first: later passes judge a variable by its uses, and training's uses are not serving's",
    ),
    Pass(
        name="externalise_tables",
        run=externalise_tables,
        does="variables become table files shared by all sessions, or small constants",
        order_reason="after prune_training; before all that looks for tables. Needed for a bundle: it has no variables",
        can_disable=False,
    ),
    Pass(
        name="externalise_embeddings",
        run=externalise_embeddings,
        does="embedding variables become hash files shared by all sessions",
        order_reason="after prune_training; before fuse_lookups. Needed for a bundle: it has no embedding variables",
        can_disable=False,
    ),
    Pass(
        name="externalise_vocabularies",
        run=externalise_vocabularies,
        does="static hash tables become vocabulary files shared by all sessions",
        order_reason="after prune_training (sees serving's uses only); before fuse_lookups, which takes them in",
    ),
    Pass(
        name="normalise",
        run=normalise,
        does="removes identities and control edges that say nothing",
        order_reason="after the externalise passes, which tell constant reads from others. Ends the reference graph",
    ),
)
LOOKUP_PASSES = (
    Pass(
        name="fuse_lookups",
        run=fuse_lookups,
        does="embedding lookups become fused ops, each proven on surrogate tables",
        order_reason="after normalise: dead waits would keep the old lookups alive",
    ),
    Pass(
        name="compress_tables",
        run=compress_tables,
        does="stores the tables of fused lookups as fp16, bf16 or int8 where the accuracy gate passes (--table-dtype)",
        order_reason="after fuse_lookups: only fused lookups read such tables; before the passes that copy lookups",
    ),
)
# The user's own passes run here: on fused lookups, before the graph gets other forms beside it.
FORM_PASSES = (
    Pass(
        name="split_user_item",
        run=split_user_item,
        does="adds a form of each signature that takes user features once per user (--user-features)",
        order_reason="after the lookups are fused: parts them as wholes; before what places and packs forms",
    ),
    Pass(
        name="lookups_first",
        run=lookups_first,
        does="makes the dense tower wait for the embedding lookups, so that nothing of it starts before them",
        order_reason="after the passes that make lookups and forms; before place_devices, which parts the same sides",
    ),
    Pass(
        name="place_devices",
        run=place_devices,
        does="puts lookups, strings and inputs on one device and the dense tower on another (--device-map)",
        order_reason="after lookups_first; before merge_transfers, which packs what crosses between the devices",
    ),
    Pass(
        name="merge_transfers",
        run=merge_transfers,
        does="packs all that crosses between the devices into one tensor each way (--device-map)",
        order_reason="after place_devices; before pack_inputs, which copies the packing with everything else",
    ),
)
# The passes that take the dense tower out of TensorFlow (``ConvertOptions.dense_passes``) run here.
LAST_PASSES = (
    Pass(
        name="drop_unused_files",
        run=drop_unused_files,
        does="drops table files that only unfused lookups read (parts of tables that were merged)",
        order_reason="after fuse_lookups, which leaves them; before pack_inputs, which copies the numbers of files",
    ),
    Pass(
        name="pack_inputs",
        run=pack_inputs,
        does="adds a packed form of each signature, fed by three tensors however many inputs it has",
        order_reason="last: it duplicates what the passes before made",
    ),
)
DEFAULT_PASSES = REFERENCE_PASSES + LOOKUP_PASSES + FORM_PASSES + LAST_PASSES

# progress(stage, done, total): total 0 where it is not known.
Progress = Callable[[str, int, int], None]


def check_names(options: ConvertOptions) -> None:
    """UsageError where ``options.disable`` names no pass, or one that can't be left out."""
    known = {p.name: p for p in all_passes(options)}
    for name in options.disable:
        if name not in known:
            raise UsageError(f"there is no pass {name!r}; the passes are: {', '.join(known)}")
        if not known[name].can_disable:
            raise UsageError(f"the pass {name!r} can't be disabled: {known[name].order_reason}")


def all_passes(options: ConvertOptions) -> tuple[Pass, ...]:
    """Default passes with the user's own ones after those that fuse lookups, and those of the dense tower."""
    return REFERENCE_PASSES + LOOKUP_PASSES + tuple(options.extra_passes) + FORM_PASSES + last_passes(options)


def last_passes(options: ConvertOptions) -> tuple[Pass, ...]:
    """Those that a refresh runs again: of the dense tower, and those after them."""
    return tuple(options.dense_passes) + LAST_PASSES


def run_passes(
    item: GraphItem, passes: Sequence[Pass], options: ConvertOptions, progress: Progress = lambda *_: None
) -> list[PassReport]:
    """Runs ``passes`` over ``item`` in order. StrictRefusal where ``options.strict`` and one failed or a proof did."""
    reports = []
    for number, one in enumerate(passes):
        progress("passes", number, len(passes))
        reports.append(run_pass(item, one, options))
    progress("passes", len(passes), len(passes))
    return reports


def run_pass(item: GraphItem, one: Pass, options: ConvertOptions) -> PassReport:
    """Runs one pass; see ``run_passes``."""
    before = len(item.graph_def.node)
    if one.name in options.disable:
        return PassReport(name=one.name, status="disabled", nodes_before=before, nodes_after=before)
    saved = item.copy()
    start = time.perf_counter()
    try:
        outcome = one.run(item, options)
        if options.verify_passes:
            verify(item)
        _mark_new(item, saved, one.name)
    except Exception as error:  # of any kind: the pass is undone and reported, the model is converted without it
        if not one.can_disable or _is_users(error):
            raise
        if options.strict:
            raise StrictRefusal(f"pass {one.name} failed: {error}") from error
        _restore(item, saved)
        return PassReport(
            name=one.name,
            status="failed",
            nodes_before=before,
            nodes_after=before,
            elapsed_ms=_ms(start),
            error=f"{type(error).__name__}: {error}",
        )
    failed = [r for r in outcome.refused if r.proof_failed]
    if failed and options.strict:
        raise StrictRefusal(f"{one.name}: {failed[0].what}: {failed[0].reason}")
    return PassReport(
        name=one.name,
        status="ok",
        fired=outcome.fired,
        refused=outcome.refused,
        notes=outcome.notes,
        details=outcome.details,
        rewrites=outcome.rewrites,
        nodes_before=before,
        nodes_after=len(item.graph_def.node),
        elapsed_ms=_ms(start),
    )


def _mark_new(item: GraphItem, saved: GraphItem, name: str) -> None:
    """Leaves the pass's name on the nodes that it made, unless it did so itself. Copies of the model's own nodes in
    other forms of a signature (``scope/NODE``) are still the model's.
    """
    before = {node.name: node.op for node in saved.graph_def.node}
    for node in item.graph_def.node:
        if node.name not in before and RULE_ATTR not in node.attr and not _is_copy(node.name, node.op, before):
            node.attr[RULE_ATTR].s = name.encode()


def _is_copy(name: str, op: str, before: dict[str, str]) -> bool:
    while "/" in name:
        name = name.partition("/")[2]
        if before.get(name) == op:
            return True
    return False


def _is_users(error: Exception) -> bool:
    """Errors about the model or the machine, which no later pass can mend."""
    from graph_opt.verify import BrokenGraph

    return (isinstance(error, TfctrError) and not isinstance(error, BrokenGraph)) or isinstance(error, OSError)


def _restore(item: GraphItem, saved: GraphItem) -> None:
    for field in dataclasses.fields(saved):
        setattr(item, field.name, getattr(saved, field.name))


def _ms(start: float) -> float:
    return round((time.perf_counter() - start) * 1000, 3)
