"""``refresh``: a bundle again, over the weights and tables of a newer export of the same model.

Nothing is recognised, fused or proven on surrogates again. What held because of a value is: lookups whose proof took a
vocabulary or a constant that changed, split forms, narrow tables (the accuracy gate), the dense engine (its gate), and
at the end every form against the reference graph over the new values, as in a conversion.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorflow.core.framework import graph_pb2

from graph_opt import pipeline
from graph_opt.conversion import TABLES, Conversion, ConvertReport, Note, Progress
from graph_opt.dense_check import enter_dense
from graph_opt.describe import describe
from graph_opt.item import GraphItem
from graph_opt.option_checks import check_options
from graph_opt.options import ConvertOptions
from graph_opt.passes.compress_tables import compress_tables
from graph_opt.renewal.rebuild import Changes, check_finite, check_readings, find_changes, rebuild, resize
from graph_opt.renewal.record import Record, names_of, read_record
from graph_opt.renewal.reprove import narrow_again, prove_lookups, prove_splits
from graph_opt.renewal.values import NewValues, describe_values, read_values
from graph_opt.renewal.weights import content_hash
from graph_opt.report import Pass, PassReport
from graph_opt.saved_model import SavedModelSource, load
from graph_opt.store_files import item_size
from tfctr.bundle.reader import Bundle, open_bundle
from tfctr.bundle.writer import check_target
from tfctr.core import library
from tfctr.errors import ConvertAnewError, UsageError

_NARROW = next(p for p in pipeline.LOOKUP_PASSES if p.run is compress_tables)


def refresh(
    bundle_path: str | Path,
    model_path: str | Path,
    out_path: str | Path,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
    **fields: Any,
) -> ConvertReport:
    """Writes the bundle at ``bundle_path`` again at ``out_path``, over the SavedModel at ``model_path``.

    options: those of a conversion that can be given anew (tags, samples_path, label, label_output, op_libraries, force,
    report_path, dense_passes); the others are the bundle's. Returns the report of the new bundle. Nothing is at
    ``out_path`` unless all that held still holds.

    Raises UsageError (no bundle, no SavedModel, paths, NaN), ConvertAnewError (another structure, or a rewrite that
    held because of a value and holds no more), OutputsDifferError, CorruptFileError.
    """
    options = dataclasses.replace(options or ConvertOptions(), **fields)
    check_options(options)
    quiet = (progress or (lambda *_: None), note or (lambda _: None))
    bundle, record = open_refreshable(bundle_path)
    library.load_op_libraries([str(p) for p in options.op_libraries])
    library.check_isa()
    source = load_new(model_path, options.tags or tuple(bundle.manifest["source"]["tags"]))
    _check_paths(bundle.path, Path(out_path), source, force=options.force)
    return Refresh(
        source, Path(out_path), with_old_options(options, record), *quiet, bundle=bundle, record=record
    ).run()


def open_refreshable(path: str | Path) -> tuple[Bundle, Record]:
    """The bundle and its record; ConvertAnewError where it has none that this tfctr reads, or can't be refreshed."""
    bundle = open_bundle(path)
    record = read_record(bundle.path)
    if record is None:
        raise ConvertAnewError(
            f"{path}: was made by tfctr {bundle.manifest['tfctr']}, which stored no record that this one can refresh "
            "from; convert the new model"
        )
    if record.unexplained:
        raise ConvertAnewError(
            f"{path}: {record.unexplained[0]}; what it took from the weights is not known; convert the new model"
        )
    return bundle, record


def load_new(path: str | Path, tags: Sequence[str]) -> SavedModelSource:
    source = load(path, tags)
    if source.is_bundle:
        raise UsageError(f"{source.path}: is a tfctr bundle; give the SavedModel with the new weights")
    return source


def _check_paths(bundle: Path, out: Path, source: SavedModelSource, *, force: bool) -> None:
    old, new = Path(os.path.realpath(bundle)), Path(os.path.realpath(out))
    if old == new:
        raise UsageError(f"{out}: is the bundle to refresh; choose another OUT (sessions may be serving from it)")
    if old in new.parents or new in old.parents:
        raise UsageError(f"{out}: one of OUT and the bundle {bundle} lies inside the other; choose another OUT")
    check_target(out, source.path, force=force)


def with_old_options(options: ConvertOptions, record: Record) -> ConvertOptions:
    """``options`` with those that are the bundle's own."""
    old = {name: tuple(v) if isinstance(v, list) else v for name, v in record.options.items()}
    limits = ("max_dp", "max_bias", "max_auc_delta")
    given = {name: getattr(options, name) for name in limits if getattr(options, name) is not None}
    return dataclasses.replace(options, **{**old, **given, "signatures": record.reference.optimise})


class Refresh(Conversion):
    """One refresh: the checks and the writing are those of a conversion."""

    with_drift = False  # the conversion has measured it

    def __init__(self, *arguments: Any, bundle: Bundle, record: Record) -> None:
        super().__init__(*arguments)
        self._bundle = bundle
        self._old = record
        self._told: dict[str, Any] = {}
        self._dropped: Mapping[str, str] = {}
        self._described_anew = False
        self._steps: dict[str, float] = {}

    def _read(self) -> tuple[GraphItem, int]:
        tables = sum(math.prod(f.shape) * item_size(f.dtype) for f in self._old.template.files if f.kind == "table")
        return GraphItem(graph_def=graph_pb2.GraphDef(), signatures={}), (64 << 20) + tables

    def _passes(self, item: GraphItem) -> tuple[GraphItem, list[PassReport], int]:
        old = self._old
        start = self._step("", time.perf_counter())
        values = self._values(item)
        start = self._step("values", start)
        check_finite(old, values)
        changes = find_changes(old, values)
        again = check_readings(old, changes)
        reference, template = rebuild(old, values, item, self.source.path, changes)
        start = self._step("graphs", start)
        proven = prove_lookups(old, reference, again, changes) if again else []
        splits, self._dropped = prove_splits(template, self.options)
        self._step("proofs", start)
        self._described_anew = bool(changes.vocabularies)
        if not self._described_anew:
            template.described = copy.deepcopy(self._bundle.manifest["signatures"])
        self._renew_record(values, changes)
        self._told = {
            **describe_values(values),
            "changed": {"weights": len(changes.weights), "vocabularies": len(changes.vocabularies)},
            "proven_again": [*proven, *splits],
        }
        for text in self._told["proven_again"]:
            self.note(text)
        for field in dataclasses.fields(template):
            setattr(item, field.name, getattr(template, field.name))
        return reference, self._last_passes(item), old.ops_before

    def _values(self, item: GraphItem) -> NewValues:
        """The new weights; their tables as files in the folder of ``item``."""
        return read_values(self._old, self.source, self._bundle, item, self.options)

    def _step(self, name: str, since: float) -> float:
        now = time.perf_counter()
        if name:
            self._steps[f"{name}_ms"] = round((now - since) * 1000, 1)
        return now

    def _last_passes(self, item: GraphItem) -> list[PassReport]:
        narrow: tuple[Pass, ...] = (_NARROW,) if self._old.narrow else ()
        options = narrow_again(self.options, self._old)
        passes = [*narrow, *pipeline.last_passes(self.options)]
        reports = []
        for number, one in enumerate(passes):
            self.progress("passes", number, len(passes))
            start = time.perf_counter()
            reports.append(pipeline.run_pass(item, one, options if one is _NARROW else self.options))
            self._step(one.name, start)
        self.progress("passes", len(passes), len(passes))
        return reports

    def _renew_record(self, values: NewValues, changes: Changes) -> None:
        """The record of the new bundle: what the old one's says of structure, with what is known of the new values."""
        old = self._old
        record = dataclasses.replace(
            old,
            key=values.key,
            assets=values.asset_hashes,
            reference=old.reference.copy(),
            template=old.template.copy(),
            hashes=old.hashes | {name: content_hash(values.weights[name]) for name in changes.weights},
        )
        count = len(values.files)
        for item in (record.reference, record.template):
            item.files[:count] = values.files
            item.mutable_state, item.variables = list(values.mutable_state), dict(values.variables)
            item.constants, item.assets = dict(values.constants), list(values.assets)
        record.names = self._names(record.reference)
        resize(record.template, changes.sizes)
        self.record = record.to_bytes()

    def _names(self, reference: GraphItem) -> dict[str, str]:
        return names_of(reference, self.source.checkpoint)

    def _describe(self, reference: GraphItem, item: GraphItem, reports: Sequence[PassReport]) -> dict[str, Any]:
        described: dict[str, Any] = copy.deepcopy(self._bundle.manifest["signatures"])
        if self._described_anew:
            self._domains(described, reference, item)
        narrow = {t["index"]: t["storage"] for r in reports if r.name == TABLES for t in r.details.get("tables", ())}
        for name in item.optimise:
            for entry in described[name]["lookups"]:
                if entry["status"] == "fused":
                    entry["storage"] = narrow.get(entry["table"])
            described[name]["packed"] = item.packed.get(name)
            if name in self._dropped:
                described[name]["split"] = None
        enter_dense(described, item, {k: v for r in reports for k, v in r.details.get("dense", {}).items()})
        return described

    def _domains(self, described: dict[str, Any], reference: GraphItem, item: GraphItem) -> None:
        """Which values make sense for inputs: sample keys of vocabularies are others now."""
        specs = [spec for group in item.groups for spec, _ in group.lookups]
        anew = describe(reference, (), specs, final=item)
        for name, info in described.items():
            for entry, new in zip(info["inputs"], anew.get(name, {"inputs": info["inputs"]})["inputs"], strict=True):
                if "domain" in new:
                    entry["domain"] = new["domain"]

    def _amend(self, manifest: dict[str, Any]) -> None:
        old = self._bundle.manifest
        fresh = {entry["name"]: entry for entry in manifest["passes"]}
        manifest["passes"] = [_merged(entry, fresh.pop(entry["name"], None)) for entry in old["passes"]]
        before = old.get("refreshed") or {}
        manifest["refreshed"] = {
            "from": {
                "path": str(self._bundle.path.resolve()),
                "bundle_id": old["bundle_id"],
                "created": old.get("created", ""),
                "source": old.get("source", {}),
            },
            "converted": before.get("converted", {"bundle_id": old["bundle_id"], "created": old.get("created", "")}),
            "generation": before.get("generation", 0) + 1,
            **self._told,
            "dropped": dict(self._dropped),
            "steps": self._steps,
        }


def _merged(old: dict[str, Any], new: dict[str, Any] | None) -> dict[str, Any]:
    """The entry of a pass in the new manifest: as it was, where it did not run again."""
    if new is None:
        return {**old, "reused": True}
    return new


__all__ = ["ConvertReport", "Refresh", "open_refreshable", "refresh"]
