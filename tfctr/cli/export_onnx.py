"""``tfctr export-onnx``: the dense tower of a model as an ONNX file."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfctr.cli import common

HELP = "write the dense tower of a SavedModel as an ONNX file"
DESCRIPTION = """Cuts the dense tower out of one signature (what lies between the embedding lookups and the outputs),
translates it to ONNX (fp32, opset 18), checks it, and compares it with TensorFlow in ONNX Runtime at three
batch sizes. Embeddings, dense inputs and masks become inputs of the file, named after features; rows are the
open dimension N. Equal models give equal bytes. Of a bundle whose dense tower was exported at its conversion, the
file in it is written.

With --user-features the tower is that of the split form: user inputs have U rows, and row_to_user [N] says which
user row each row belongs to.

  tfctr export-onnx model/ tower.onnx
  tfctr export-onnx model/ tower.onnx --user-features 'user_*' --json"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "export-onnx", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", metavar="PATH", help="SavedModel, or bundle with an exported tower")
    parser.add_argument("out", metavar="OUT.onnx", help="the file to write")
    parser.add_argument(
        "--user-features",
        default="",
        metavar="A,B*",
        help="features (shell patterns) that are the same for all candidates of a request: export the split form",
    )
    parser.add_argument("--force", action="store_true", help="replace OUT.onnx where it exists")
    parser.add_argument("--json", action="store_true", help="print what was exported as JSON")
    common.add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import tfctr  # noqa: F401 - checks TensorFlow's version and loads the op library
    from export.standalone import check_file, export_model, write_model
    from graph_opt.saved_model import find
    from tfctr.bundle.reader import is_bundle
    from tfctr.core.library import load_op_libraries

    check_file(Path(args.out), force=args.force)
    load_op_libraries(args.op_library)
    folder, _ = find(args.path)
    if is_bundle(folder):
        return _copy(args)
    made = export_model(
        args.path,
        args.signature,
        scratch=Path(args.out).absolute().parent,
        tags=common.split_tags(args.tags),
        user_features=common.names(args.user_features),
    )
    size = write_model(made.model, args.out, force=args.force)
    told = {"path": str(args.out), "bytes": size, **made.as_dict()}
    if args.json:
        common.print_json(told)
        return 0
    if made.note:
        common.remarks().print(made.note, markup=False)
    _print(told)
    return 0


def _copy(args: argparse.Namespace) -> int:
    from export.standalone import tower_of_bundle, write_model
    from tfctr.errors import UsageError

    model = common.open_model(args, args.path)
    if args.user_features:
        raise UsageError(f"{model.path}: --user-features is for SavedModels; the forms of a bundle are fixed")
    name = model.signature(args.signature)
    tower = tower_of_bundle(Path(model.path), dict(model.manifest), name)
    size = write_model(tower, args.out, force=args.force)
    told = {
        "path": str(args.out),
        "bytes": size,
        "signature": name,
        "inputs": [_entry(one) for one in tower.graph.input],
        "outputs": [_entry(one) for one in tower.graph.output],
        "onnx": {"opset": tower.opset_import[0].version, "nodes": len(tower.graph.node)},
        "difference": None,
    }
    if args.json:
        common.print_json(told)
    else:
        _print(told)
    return 0


def _entry(info: Any) -> dict[str, Any]:
    import onnx

    kind = info.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return {"name": info.name, "dtype": dtype, "shape": [d.dim_value or None for d in kind.shape.dim]}


def _print(told: dict[str, Any]) -> None:
    console = common.results()
    tensors = common.table(f"{told['path']} ({told['signature']})", "", "name", "dtype", "shape", "side", "columns")
    for kind in ("inputs", "outputs"):
        for entry in told[kind]:
            tensors.add_row(
                kind[:-1],
                entry["name"],
                entry["dtype"],
                _shape(entry),
                entry.get("side", ""),
                _columns(entry.get("columns", ())),
            )
    console.print(tensors)
    difference = told["difference"]
    lines = [f"{told['onnx']['nodes']} nodes, opset {told['onnx']['opset']}, {told['bytes']:,} bytes"]
    if difference:
        rows = ", ".join(str(n) for n in difference["rows"])
        lines.append(
            f"max |difference| from TensorFlow at {rows} rows: {difference['max_difference']:.2g} "
            f"(limit {difference['atol']:g} + {difference['rtol']:g} |b|)"
        )
    else:
        lines.append("compared with TensorFlow when the bundle was made")
    lines += [f"left outside: {line}" for line in told.get("left_outside", ())]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _shape(entry: dict[str, Any]) -> str:
    rows = "U" if entry.get("side") == "user" else "N"
    sizes = [str(size) if size is not None else rows if k == 0 else "?" for k, size in enumerate(entry["shape"])]
    return f"[{', '.join(sizes)}]"


def _columns(columns: Iterable[dict[str, Any]]) -> str:
    found = [f"{c['feature']} {c['start']}:{c['stop']}" for c in columns]
    return ", ".join(found) if len(found) > 1 else ""
