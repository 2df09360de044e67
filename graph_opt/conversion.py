"""``convert``: SavedModel in, proven bundle out. ``analyse``: what a SavedModel holds, without writing anything."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from graph_opt import pipeline
from graph_opt.assemble import bundle_manifest, saved_model_bytes
from graph_opt.counts import disk_needed, op_count, pruned
from graph_opt.dense_check import check_dense, enter_dense, enter_verdicts
from graph_opt.describe import boundary, describe, feature_names
from graph_opt.finish import finish, write_state
from graph_opt.hash_files import HASH, file_bytes, lookup_files
from graph_opt.item import GraphItem, StoreFile
from graph_opt.lookup_spec import LookupSpec
from graph_opt.narrowing import widened
from graph_opt.option_checks import check_options
from graph_opt.options import ConvertOptions
from graph_opt.parity import OutputParity
from graph_opt.passes.fuse_lookups import spec_details
from graph_opt.recheck import compare_items, split_against_plain
from graph_opt.recognise import find_lookups
from graph_opt.renewal.record import Recorder
from graph_opt.report import PassReport
from graph_opt.saved_model import SavedModelSource, inline, load
from graph_opt.split.details import split_entries
from graph_opt.split.features import check_patterns
from graph_opt.store_files import item_size
from graph_opt.table_gate import judge_converted
from graph_opt.timing import measure
from graph_opt.view import GraphView
from tfctr.bundle import naming
from tfctr.bundle.writer import BundleWriter, check_target
from tfctr.core import library
from tfctr.errors import EngineDiffersError, OutputsDifferError, StrictRefusal, UsageError

TABLES = "compress_tables"
JUDGED = (
    "outputs: the converted graph over float32 tables against the unfused graph, within 1e-6 + 1e-5 |b|; gate: the "
    "converted graph over the tables as they are stored against the same over float32 tables, by the accuracy gate; "
    "gate_split: split forms over the tables as they are stored against the plain form over them, 1e-5 + 1e-5 |b|"
)
Progress = Callable[[str, int, int], None]
Note = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class ConvertReport:
    """What a conversion did. manifest: as written into the bundle. path: the bundle. notes: what was chosen or stated
    on the way.
    """

    path: Path
    manifest: dict[str, Any]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The manifest with ``path`` and ``notes``: what ``tfctr convert --json`` prints."""
        return {"path": str(self.path), "notes": list(self.notes), **self.manifest}


def convert(
    in_path: str | Path,
    out_path: str | Path,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
    **fields: Any,
) -> ConvertReport:
    """Converts the SavedModel at ``in_path`` into a bundle at ``out_path``.

    options: see :class:`ConvertOptions`; ``fields`` override single ones (``convert(a, b, force=True)``). progress is
    called with (stage, done, total), note with one line for people when it comes up (the version chosen, the disk
    needed); the report has the notes too. Nothing is at ``out_path`` unless the outputs agree.

    Raises UsageError (paths, tags, signatures, unknown ops, disk), CorruptFileError (the model's variables),
    OutputsDifferError (the converted graph gives other numbers), StrictRefusal (``strict``, ``require_fused``).
    """
    options = dataclasses.replace(options or ConvertOptions(), **fields)
    quiet = (progress or (lambda *_: None), note or (lambda _: None))
    return _prepared(in_path, out_path, options, *quiet).run()


def convert_different(in_path: str | Path, out_path: str | Path, options: ConvertOptions) -> ConvertReport:
    """Converts a model whose outputs will differ: the manifest's parity says so. For ``tfctr bisect``, which writes the
    wrong model down.
    """
    conversion = _prepared(in_path, out_path, options, lambda *_: None, lambda _: None)
    conversion.keep_different = True
    return conversion.run()


def _prepared(
    in_path: str | Path, out_path: str | Path, options: ConvertOptions, progress: Progress, note: Note
) -> Conversion:
    check_options(options)
    library.load_op_libraries([str(p) for p in options.op_libraries])
    library.check_isa()  # every lookup would fail its proof
    pipeline.check_names(options)
    source = load(in_path, options.tags)
    if source.is_bundle:
        raise UsageError(f"{source.path}: is a tfctr bundle already; convert the SavedModel that it was made from")
    check_target(Path(out_path), source.path, force=options.force)
    return Conversion(source, Path(out_path), options, progress, note)


class Conversion:
    """One conversion; ``run`` does it. A refresh (``graph_opt.renewal``) has other passes and the same checks.

    with_drift: see ``compare_items``.
    """

    with_drift = True

    def __init__(
        self, source: SavedModelSource, out: Path, options: ConvertOptions, progress: Progress, tell: Note
    ) -> None:
        self.source, self.out, self.options, self.progress, self.tell = source, out, options, progress, tell
        self.keep_different = False
        self.notes: list[str] = []
        self.timing: dict[str, Any] = {}
        self.gate: dict[str, Any] = {}
        self.record = b""  # what a refresh needs
        if source.note:
            self.note(source.note)
        self.bundle_id = uuid.uuid4().hex
        self.start = time.perf_counter()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.tell(text)

    def run(self) -> ConvertReport:
        self.progress("read the model", 0, 1)
        item, needed = self._read()
        item.store_name = f"tfctr/{self.bundle_id}"
        self.progress("read the model", 1, 1)
        with BundleWriter(self.out, self.source.path, force=self.options.force, progress=self.note) as writer:
            if self.options.table_dtype != "fp32":
                needed += needed * 3 // 4  # narrow tables beside the float32 ones
            writer.require_space(needed)
            manifest = self._make(item, needed, writer)
            writer.write_manifest(manifest)
            self.progress("write the bundle", 0, 1)
            path = writer.commit()
            self.progress("write the bundle", 1, 1)
        return ConvertReport(path, manifest, tuple(self.notes))

    def _make(self, item: GraphItem, needed: int, writer: BundleWriter) -> dict[str, Any]:
        """Everything but the manifest, in the writer's folder; returns the manifest."""
        item.work_dir = writer.store_folder
        item.on_copied = self._copy_progress(needed)
        reference, reports, before = self._passes(item)
        described = self._describe(reference, item, reports)
        self._require_fused(described)
        parity = self._compare(reference, item, described, writer)
        self._write(writer, item, reference)
        manifest = bundle_manifest(
            self.source,
            item,
            writer.folder,
            self.bundle_id,
            described,
            reports,
            parity,
            ops=(before, op_count(item)),
        )
        manifest["parity"] |= self.gate
        manifest["timing"] = self.timing
        self._amend(manifest)
        manifest["elapsed_ms"] = round((time.perf_counter() - self.start) * 1000, 1)
        return manifest

    def _read(self) -> tuple[GraphItem, int]:
        """The model's flat graph, and the bytes that the bundle needs."""
        item = inline(self.source, self.options.signatures)
        check_patterns(item, self.options)
        return item, disk_needed(item, self.source)

    def _amend(self, manifest: dict[str, Any]) -> None:
        """What else the manifest says."""

    def _copy_progress(self, total: int) -> Callable[[int], None]:
        copied = 0

        def copy(size: int) -> None:
            nonlocal copied
            copied += size
            self.progress("copy tables", copied, max(copied, total))

        return copy

    def _passes(self, item: GraphItem) -> tuple[GraphItem, list[PassReport], int]:
        passes = pipeline.all_passes(self.options)
        split, last = len(pipeline.REFERENCE_PASSES), len(passes) - len(pipeline.last_passes(self.options))
        before = op_count(pruned(item))
        reports = pipeline.run_passes(item, passes[:split], self.options, self.progress)
        reference = item.copy()
        recorder = Recorder(self.source, reference, self.options)
        recorder.mark(item)
        reports += pipeline.run_passes(item, passes[split:last], self.options, self.progress)
        self.record = recorder.record(item, reports, before)
        reports += pipeline.run_passes(item, passes[last:], self.options, self.progress)
        return reference, reports, before

    def _describe(self, reference: GraphItem, item: GraphItem, reports: Sequence[PassReport]) -> dict[str, Any]:
        lookups = [entry for r in reports for entry in r.details.get("lookups", ())]
        fused = any(r.name == "fuse_lookups" and r.status == "ok" for r in reports)
        specs = [spec for group in item.groups for spec, _ in group.lookups] if fused else recognised(reference)[1]
        narrow = {t["index"]: t["storage"] for r in reports if r.name == TABLES for t in r.details.get("tables", ())}
        lookups = [{**e, "storage": narrow.get(e["table"])} if e["status"] == "fused" else e for e in lookups]
        described = describe(reference, lookups, specs, final=item)
        for name in item.optimise:
            described[name]["packed"] = item.packed.get(name)
            described[name]["boundary"] = boundary(item, described[name]["lookups"])
            described[name] |= split_entries(item, name, reports)
        enter_dense(described, item, {k: v for r in reports for k, v in r.details.get("dense", {}).items()})
        return described

    def _require_fused(self, described: dict[str, Any]) -> None:
        for pattern in self.options.require_fused:
            found = [
                entry
                for info in described.values()
                for entry in info["lookups"]
                if any(fnmatch.fnmatchcase(entry[key], pattern) for key in ("feature", "name", "table_name"))
            ]
            if not found:
                raise StrictRefusal(f"--require-fused {pattern}: no lookup has such a name")
            left = [entry for entry in found if entry["status"] != "fused"]
            if left:
                raise StrictRefusal(f"--require-fused {pattern}: {left[0]['name']} was left: {left[0]['reason']}")

    def _compare(
        self, reference: GraphItem, item: GraphItem, described: dict[str, Any], writer: BundleWriter
    ) -> list[OutputParity]:
        wide = widened(item)
        finish(reference)
        finish(item)
        state = writer.folder / "variables"
        if item.restore_op:
            state.mkdir()
            write_state(item, str(self.source.checkpoint), str(state / "variables"))
        restore = str(state / "variables") if item.restore_op else None
        try:
            if wide is not None:
                finish(wide)
            found = compare_items(
                reference, wide or item, described, self.options, restore, self.progress, drift=self.with_drift
            )
        except tf.errors.OpError as error:
            if not self.keep_different:
                raise
            found = [OutputParity(signature=item.optimise[0], output="", ok=False, reason=f"raises: {error.message}")]
        different = [p for p in found if not p.ok]
        if different and not self.keep_different:
            first = different[0]
            raise OutputsDifferError(
                f"signature {first.signature!r}, output {first.output!r}: the converted graph {first.reason}; "
                "nothing was written"
            )
        if wide is not None:
            self._judge_tables(wide, item, described, restore)
        found += self._compare_dense(item, described, restore)
        if self.options.report_path is not None and item.optimise:
            self.timing = measure(reference, item, described, self.options, restore)
        return found

    def _compare_dense(self, item: GraphItem, described: dict[str, Any], restore: str | None) -> list[OutputParity]:
        """Forms with an engine against the forms that they stand beside."""
        verdicts = check_dense(item, described, self.options, restore)
        if verdicts.different and not self.keep_different:
            raise EngineDiffersError(f"{verdicts.different}; nothing was written")
        enter_verdicts(described, item, verdicts)
        if verdicts.gates:
            self.gate["dense_gate"] = verdicts.gates
        return verdicts.outputs

    def _judge_tables(self, wide: GraphItem, item: GraphItem, described: dict[str, Any], restore: str | None) -> None:
        """What narrow tables change is judged by the accuracy gate; all else was compared over float32 tables."""
        verdicts, told = judge_converted(wide, item, described, self.options, restore)
        split = split_against_plain(item, described, self.options, restore)
        self.gate = {
            "gate": verdicts,
            "judged": JUDGED,
            "gate_inputs": told,
            "gate_split": [dataclasses.asdict(p) for p in split],
        }
        different = [p for p in split if not p.ok]
        if different and not self.keep_different:
            first = different[0]
            raise OutputsDifferError(
                f"signature {first.signature!r}, output {first.output!r}: over {self.options.table_dtype} tables the "
                f"split form {first.reason} against the plain one; nothing was written"
            )
        failed = [v for v in verdicts if not v["passed"]]
        if failed and not self.keep_different:
            raise OutputsDifferError(
                f"signature {failed[0]['signature']!r}: over {self.options.table_dtype} tables the accuracy gate "
                f"{failed[0]['text']}; nothing was written"
            )

    def _write(self, writer: BundleWriter, item: GraphItem, reference: GraphItem) -> None:
        kept = {file.path for file in item.files}
        for path in writer.store_folder.iterdir():  # of the reference graph, and of passes that were undone
            if path not in kept:
                path.unlink()
        writer.copy_tree(self.source.path / "assets", "assets")
        writer.copy_tree(self.source.path / "assets.extra", "assets.extra")
        writer.write(naming.MODEL, saved_model_bytes(self.source, item))
        writer.write(naming.REFRESH, self.record)


def analyse(path: str | Path, tags: Sequence[str] | None = None) -> dict[str, Any]:
    """What a plain SavedModel holds: ``path``, ``source``, ``tags``, ``signatures`` and ``store`` as in a manifest;
    nothing is proven or written, and no table is read. Lookups have the status "found" (recognised) or "left".
    """
    library.load()
    source = load(path, tags)
    item = inline(source)
    item.store_name = "tfctr/analysis"
    reports = pipeline.run_passes(item, pipeline.REFERENCE_PASSES, ConvertOptions(verify_passes=False))
    notes = [r.reason for report in reports if report.name == "externalise_embeddings" for r in report.refused]
    lookups, specs = recognised(item)
    described = describe(item, lookups, specs)
    for info in described.values():
        info["boundary"] = boundary(item, info["lookups"])
    files = [
        {
            "index": k,
            "kind": f.kind,
            "file": "",
            "name": f.name,
            "dtype": f.dtype,
            "shape": list(f.shape),
            "bytes": _size(f),
        }
        for k, f in enumerate(item.files)
    ]
    return {
        "path": str(source.path),
        "source": {"path": str(source.path), "tags": list(source.tags)},
        "tags": list(source.tags),
        "notes": [source.note, *notes] if source.note else notes,
        "store": {"files": files},
        "signatures": described,
        "mutable_state": [dataclasses.asdict(m) for m in item.mutable_state],
    }


def recognised(item: GraphItem) -> tuple[list[dict[str, Any]], list[LookupSpec]]:
    """Lookups of a reference graph as manifest entries (status "found" or "left") and as specs; nothing is proven."""
    view = GraphView(item.graph_def)
    tables = lookup_files(item, view)
    candidates, refusals = find_lookups(view, item.fetches(), tables, inputs=feature_names(item, view))
    lookups: list[dict[str, Any]] = [
        {
            **spec_details(c.spec, item.files),
            "status": "found",
            "reason": "not converted",
            "table_name": item.files[c.spec.table].name if 0 <= c.spec.table < len(item.files) else "",
            "node": c.gather,
            "output": c.output,
        }
        for c in candidates
    ]
    lookups += [
        {"name": r.name or r.gather, "status": "left", "reason": r.reason, "table_name": r.table, "node": r.gather}
        for r in refusals
    ]
    return lookups, [c.spec for c in candidates]


def _size(file: StoreFile) -> int:
    if file.kind == HASH:
        return file_bytes(file.shape)
    return math.prod(file.shape) * item_size(file.dtype) if file.kind == "table" else file.bytes


__all__ = ["ConvertReport", "analyse", "convert"]
