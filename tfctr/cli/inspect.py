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
the dense part begins.

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
    for name in names:
        _print_signature(console, name, model.info(name))
    _print_files(console, model.manifest)
    if args.verify:
        console.print("all checksums are right")
    return 0


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
    if info["lookups"]:
        _print_lookups(console, info["lookups"])
    if info["boundary"]:
        boundary = common.table("The dense part begins at", "tensor", "dtype", "shape")
        for entry in info["boundary"]:
            boundary.add_row(entry["tensor"], entry["dtype"], _shape(entry["shape"]))
        console.print(boundary)


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
    from tfctr.bundle.report_page import size_words

    files = manifest.get("store", {}).get("files", [])
    if not files:
        return
    console.print()
    table = common.table("Tables and vocabularies", "name", "kind", "dtype", "shape", "size", right=("size",))
    for entry in files:
        table.add_row(entry["name"], entry["kind"], entry["dtype"], _shape(entry["shape"]), size_words(entry["bytes"]))
    console.print(table)
