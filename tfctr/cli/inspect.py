"""``tfctr inspect``: what a SavedModel or bundle holds."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import rich.console

from tfctr.cli import common
from tfctr.errors import UsageError

HELP = "show signatures, features, tables and lookups of a SavedModel or bundle"
DESCRIPTION = """Shows the signatures (inputs, outputs, and which inputs are the parts of one feature), the tables
with rows, width and bytes, each embedding lookup (fused, or left and why), and the tensors at which
the dense part begins. Of a bundle also what is computed once per user, where operations are placed and
what crosses between devices, how tables are stored with the numbers of their accuracy gate, and what runs the
dense tower; and of a version made from deltas, which it is and what lies in overlays.

  tfctr inspect model/
  tfctr inspect bundle/ --verify"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "inspect", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", metavar="PATH", help="SavedModel or bundle")
    parser.add_argument(
        "--verify", action="store_true", help="check every checksum of a bundle's files (reads all bytes)"
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")
    common.add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from tfctr.bundle.summary import version_lines

    model = common.open_model(args, args.path)
    if args.verify and not model.is_bundle:
        raise UsageError(f"{args.path}: --verify checks a bundle's files; this is a plain SavedModel")
    names = [model.signature(args.signature)] if args.signature else list(model.manifest["signatures"])
    if args.verify:
        from tfctr.bundle.reader import verify_files

        verify_files(
            model.path, dict(model.manifest), lambda name: common.remarks().print(f"checking {name}", markup=False)
        )
    if args.json:
        shown = dict(model.manifest) | {"signatures": {name: model.info(name) for name in names}}
        common.print_json(shown | ({"verified": True} if args.verify else {}))
        return 0
    console = common.results()
    kind = "tfctr bundle" if model.is_bundle else "SavedModel"
    console.print(f"[bold]{kind}[/] {model.path}", highlight=False)
    _print_refreshed(console, model.manifest)
    for line in version_lines(model.manifest):
        console.print(line, markup=False)
    for name in names:
        _print_signature(console, name, model.info(name))
    _print_placement(console, model.manifest)
    _print_tables(console, model.manifest)
    _print_files(console, model.manifest)
    if args.verify:
        console.print("all checksums are right")
    return 0


def _print_refreshed(console: rich.console.Console, manifest: Mapping[str, Any]) -> None:
    told = manifest.get("refreshed")
    if told:
        count, converted = told["generation"], told["converted"]["created"]
        times = f"{count} time{'' if count == 1 else 's'}"
        console.print(
            f"refreshed {times} since its conversion of {converted}, last from {told['from']['path']}", markup=False
        )


def _shape(shape: Any) -> str:
    if shape is None:
        return "any"
    return "[" + ", ".join("?" if n is None or n < 0 else str(n) for n in shape) + "]"


def _print_signature(console: rich.console.Console, name: str, info: Mapping[str, Any]) -> None:
    console.print()
    part_of = {
        part: f"{f['name']} ({f['kind']}: {role})"
        for f in info["features"]
        if f["kind"] != "dense"
        for role, part in f["parts"].items()
    }
    inputs = common.table(f"Signature {name}: inputs", "input", "dtype", "shape", "part of feature")
    for entry in info["inputs"]:
        inputs.add_row(entry["name"], entry["dtype"], _shape(entry["shape"]), part_of.get(entry["name"], ""))
    console.print(inputs)
    outputs = common.table("Outputs", "output", "dtype", "shape")
    for entry in info["outputs"]:
        outputs.add_row(entry["name"], entry["dtype"], _shape(entry["shape"]))
    console.print(outputs)
    _print_split(console, name, info)
    _print_dense(console, name, info)
    if info["lookups"]:
        _print_lookups(console, info["lookups"])
    if info["boundary"]:
        boundary = common.table("The dense part begins at", "tensor", "dtype", "shape")
        for entry in info["boundary"]:
            boundary.add_row(entry["tensor"], entry["dtype"], _shape(entry["shape"]))
        console.print(boundary)


def _print_split(console: rich.console.Console, name: str, info: Mapping[str, Any]) -> None:
    from tfctr.bundle import summary

    split = info.get("split")
    user = info.get("user")
    if user is None:
        return
    (told,) = summary.splits({"signatures": {name: info}, "passes": ()})
    console.print(f"Once per user: {', '.join(told.features) or 'no feature'}", markup=False)
    if split is None:
        console.print("  no form of its own: rows of users are repeated before the call", markup=False)
        return
    console.print(
        f"  signature {told.form}, input {told.row_to_user}: {summary.count_words(told.before)} -> "
        f"{summary.count_words(told.item)} operations per candidate, {summary.count_words(told.user)} per user",
        markup=False,
    )
    for at, past in told.broadcasts:
        console.print(f"  repeated at {at}, behind {past}", markup=False)
    for feature, why in told.item_side:
        console.print(f"  {feature} stays with the candidates: {why}", markup=False)
    boundary = common.table("The two sides meet at", "tensor", "side", "dtype", "shape")
    for entry in split["boundary"]:
        boundary.add_row(entry["tensor"], entry["side"], entry["dtype"], _shape(entry["shape"]))
    console.print(boundary)


def _print_dense(console: rich.console.Console, name: str, info: Mapping[str, Any]) -> None:
    from tfctr.bundle import dense_summary
    from tfctr.bundle.summary import size_words

    for tower in dense_summary.towers({"signatures": {name: info}}):
        entry = tower.entry
        if not tower.engine:
            console.print(f"Dense tower of {tower.form}: TensorFlow: {tower.reason}", markup=False)
            continue
        console.print(f"Dense tower of {tower.form}: {tower.engine}, {tower.precision}: {tower.parity}", markup=False)
        packed = f", packed {entry['packed']}" if entry.get("packed") else ""
        where = f"where {entry['provider']} does not run: {tower.fallback}"
        lines = [f"signature {entry['form']}{packed}", f"{where}; converted on a CPU with {entry['isa']}"]
        if entry["buckets"]:
            lines.append(f"batch sizes of their own: {', '.join(str(one['rows']) for one in entry['buckets'])}")
        if entry["targets"]:
            lines.append(f"plans for {', '.join(entry['targets'])}")
        lines += [f"key of the compile cache: {part} {key}" for part, key in entry["key"].items() if key]
        lines += [f"{node} stays fp32: {why}" for node, why in tower.islands]
        lines += [f"left outside: {line}" for line in tower.left_outside]
        for line in lines:
            console.print(f"  {line}", markup=False, soft_wrap=True)
        files = common.table("Its files", "role", "file", "size", right=("size",))
        for file in entry["files"]:
            files.add_row(file["role"], file["file"], size_words(file["bytes"]))
        console.print(files)


def _print_placement(console: rich.console.Console, manifest: Mapping[str, Any]) -> None:
    from tfctr.bundle import summary

    placed = summary.placement(manifest)
    if placed is None:
        return
    console.print()
    if not placed.done:
        console.print(f"Devices: nothing was placed: {placed.reason}", markup=False)
        return
    console.print(f"Devices: {placed.sparse_ops} operations on {placed.sparse}, {placed.dense_ops} on {placed.dense}")
    for node, device in placed.kept:
        console.print(f"  {node} keeps the model's own device {device}", markup=False)
    for node, op in placed.elsewhere:
        console.print(f"  {op} {node} has no kernel for {placed.dense}", markup=False)
    table = common.table(
        "What crosses per call", "signature", "to", "tensors", "packed", "by itself", right=("tensors",)
    )
    for entry in summary.transfers(manifest):
        alone = "; ".join(f"{tensor}: {why}" for tensor, why in entry.apart)
        table.add_row(", ".join(entry.signatures), entry.to, str(entry.crossings), ", ".join(entry.packed), alone)
    console.print(table)


def _print_tables(console: rich.console.Console, manifest: Mapping[str, Any]) -> None:
    from tfctr.bundle import summary

    smaller = summary.tables(manifest)
    if smaller is None:
        return
    console.print()
    if smaller.tables:
        numbers = ("before", "now", "largest error")
        title = f"Tables stored as {smaller.dtype}"
        table = common.table(title, "table", "rows x width", "before", "now", "largest error", right=numbers)
        for entry in smaller.tables:
            size = " x ".join(map(str, entry["shape"]))
            before, now = (summary.size_words(entry[key]) for key in ("bytes_before", "bytes_after"))
            table.add_row(entry["table"], size, before, now, f"{entry['max_abs_error']:.2e}")
        console.print(table)
    for name, _, text in smaller.gates:
        console.print(f"accuracy gate, {name}: {text}", markup=False)
    if smaller.judged_on:
        console.print(f"judged on {smaller.judged_on}", markup=False)
    for name, why in smaller.left:
        console.print(f"{name} stays as it was: {why}", markup=False)


def _print_lookups(console: rich.console.Console, lookups: list[Mapping[str, Any]]) -> None:
    from tfctr.bundle.report_page import combiner_words, step_words

    table = common.table(
        "Lookups", "feature", "table", "rows x width", "ids", "result", "status", right=("rows x width",)
    )
    for entry in lookups:
        size = f"{entry['table_rows']} x {entry['table_width']}" if entry.get("table_rows") is not None else ""
        ids = ", ".join([entry["form"], *(step_words(step) for step in entry["steps"])]) if entry.get("form") else ""
        result = combiner_words(entry) if entry.get("form") else ""
        status = entry["status"] + (f": {entry['reason']}" if entry.get("reason") else "")
        feature = entry.get("feature", entry["name"])
        table.add_row(*(str(cell) for cell in (feature, entry["table_name"], size, ids, result, status)))
    console.print(table)


def _print_files(console: rich.console.Console, manifest: Mapping[str, Any]) -> None:
    from tfctr.bundle.summary import size_words

    files = manifest.get("store", {}).get("files", [])
    if not files:
        return
    console.print()
    table = common.table(
        "Tables, vocabularies and engines' files", "name", "kind", "dtype", "shape", "size", right=("size",)
    )
    for entry in files:
        narrow = entry.get("stands_for")
        dtype = f"{narrow['dtype']} as {entry['storage']}" if narrow else entry["dtype"]
        shape = _shape((narrow or entry)["shape"])
        table.add_row(entry["name"], entry["kind"], dtype, shape, size_words(entry["bytes"]))
    console.print(table)
