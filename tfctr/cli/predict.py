"""``tfctr predict``: run a SavedModel or bundle on a file of inputs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tfctr.cli import common

HELP = "run a SavedModel or bundle on inputs and print or write its outputs"
DESCRIPTION = """Runs one signature of a SavedModel or bundle. Prints one JSON object per row, or writes .npz or .jsonl.
Where the inputs have a column request_id it comes back with the outputs; where they have labels the AUC is told.
User features may be given once per user: .npz with user inputs of one row (or of U rows and row_to_user) beside N
rows of the others, .jsonl with one request per line: {"user": {...}, "candidates": [{...}, ...]}.

  tfctr predict model/ --inputs rows.jsonl
  tfctr predict bundle/ --inputs rows.npz --output scores.npz"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "predict", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", metavar="PATH", help="SavedModel or bundle")
    common.add_inputs_option(parser)
    parser.add_argument("--output", metavar="FILE", help="write .npz or .jsonl here instead of printing")
    parser.add_argument(
        "--rows",
        type=common.count,
        default=4,
        metavar="N",
        help="rows to generate when no inputs are given (default: 4)",
    )
    parser.add_argument("--threads", type=common.threads, default=1, metavar="N", help="intra-op threads (default: 1)")
    common.add_user_features_option(parser)
    common.add_engine_options(parser)
    common.add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from tfctr.data import InputFile, write_outputs
    from tfctr.data.output_files import write_lines

    model = common.open_model(args, args.path)
    signature = model.signature(args.signature)
    label, scored = common.split_label(args.label)
    users = common.names(args.user_features)
    with model.serve(signature, args.threads, users, **common.engine_of(args)) as session:
        if args.inputs:
            read = model.read_inputs(args.inputs, signature, label, session, once=True)
        else:
            read = InputFile(model.generate(signature, args.rows))
        outputs = session.predict(read.inputs)
    if not args.inputs:  # said last: an error is one line
        common.remarks().print(f"no --inputs: {args.rows} generated rows")
    if read.labels is not None:
        _tell_auc(read.labels, outputs, scored)
    if read.request_ids is not None and "request_id" not in outputs:
        outputs = {"request_id": np.asarray(read.request_ids), **outputs}
    if args.output:
        write_outputs(args.output, outputs)
        common.remarks().print(f"wrote {args.output}")
    else:
        write_lines(sys.stdout, outputs)
    return 0


def _tell_auc(labels: Any, outputs: Any, wanted: str | None) -> None:
    from tfctr.profiling.auc import auc, labelled_output

    name = labelled_output(outputs, len(labels), wanted)
    if name is None:
        common.remarks().print(f"{len(labels)} labels, no AUC: --label NAME=OUTPUT says which output they belong to")
        return
    value = auc(labels, outputs[name])
    told = "all labels are equal, so there is no AUC" if value is None else f"AUC {value:.4f}"
    common.remarks().print(f"{name} against {len(labels)} labels: {told}", markup=False)
