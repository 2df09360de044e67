"""``tfctr predict``: run a SavedModel or bundle on a file of inputs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tfctr.cli import common

HELP = "run a SavedModel or bundle on inputs and print or write its outputs"
DESCRIPTION = """Runs one signature of a SavedModel or bundle. Prints one JSON object per row, or writes .npz or .jsonl.

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
        "--rows", type=int, default=4, metavar="N", help="rows to generate when no inputs are given (default: 4)"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="intra-op threads (default: 1)")
    common.add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from tfctr.data import write_outputs
    from tfctr.data.output_files import write_lines

    model = common.open_model(args, args.path)
    signature = model.signature(args.signature)
    if args.inputs:
        inputs = model.read_inputs(args.inputs, signature).inputs
    else:
        inputs = model.generate(signature, args.rows)
        common.remarks().print(f"no --inputs: {args.rows} generated rows")
    with model.serve(signature, args.threads) as session:
        outputs = session.predict(inputs)
    if args.output:
        write_outputs(args.output, outputs)
        common.remarks().print(f"wrote {args.output}")
    else:
        write_lines(sys.stdout, outputs)
    return 0
