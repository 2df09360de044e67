"""``tfctr verify``: compare a bundle with the SavedModel it was made from."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfctr.cli import common
from tfctr.errors import InputError, UsageError

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray]

USERS = 3  # of generated inputs
USER_ROWS = "user rows once"
USER_ATOL = 1e-5  # the split adds a row's products in another order, and so does an engine

HELP = "compare a bundle's outputs with the original's, loaded by stock TensorFlow"
DESCRIPTION = """Runs the original with stock TensorFlow (variables loaded, default grappler) and the converted model
on the same inputs, and compares every output: |a-b| <= 1e-6 + 1e-5 |b| for floats, equality for
everything else. Where the bundle declares user features it is also run with user rows given once, within
|a-b| <= 1e-5 + 1e-5 |b|, and so is one whose dense tower an engine runs in fp32 (--engine takes another one). A bundle
with smaller tables (convert --table-dtype), or an engine of less than fp32, is judged by the accuracy gate, with the
limits that it was converted with. Exit code 0: equal, or the gate passes; 3: they differ. The original may need the
memory of all its tables.

  tfctr verify model/ bundle/ --inputs rows.npz"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "verify", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("original", metavar="IN", help="the original SavedModel")
    parser.add_argument("bundle", metavar="OUT", help="the converted bundle")
    common.add_inputs_option(parser)
    parser.add_argument(
        "--rows",
        type=common.count,
        default=64,
        metavar="N",
        help="rows to generate when no inputs are given (default: 64)",
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    common.add_engine_options(parser)
    common.add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from tfctr.data.output_files import flatten_outputs
    from tfctr.profiling.auc import auc, labelled_output
    from tfctr.profiling.compare import ATOL, compare_outputs

    original = common.open_model(args, args.original)
    bundle = common.open_model(args, args.bundle)
    names = [bundle.signature(args.signature)] if args.signature else list(bundle.manifest["signatures"])
    missing = [name for name in names if name not in original.manifest["signatures"]]
    if missing:
        raise UsageError(
            f"{args.original} has no signature {missing[0]!r} that {args.bundle} has; are they of one model?"
        )
    label, scored = common.split_label(args.label)
    found: list[dict[str, Any]] = []
    aucs: list[dict[str, Any]] = []
    gates: list[dict[str, Any]] = []
    towers: list[dict[str, Any]] = []
    for name in names:
        with bundle.serve(name, **common.engine_of(args)) as session:
            info = common.with_users(original.info(name), session)
            read = original.read_inputs(args.inputs, name, label, session) if args.inputs else None
            once, inputs = _request(info, read.inputs if read else None, args.rows)
            expected = _stock_outputs(original, name, info, inputs)
            got = flatten_outputs(session.predict(inputs))
            tower = {"signature": name, **session.describe()["dense"]}
            towers.append(tower)
            atol = ATOL if tower["running"] == "tensorflow" else USER_ATOL
            found += [_entry(name, "rows", d) for d in compare_outputs(got, expected, atol)]
            if once is not None:
                outputs = flatten_outputs(session.predict(once))
                found += [_entry(name, USER_ROWS, d) for d in compare_outputs(outputs, expected, USER_ATOL)]
        limits = _gate_limits(bundle.manifest, tower)
        if limits is not None:
            forms = {"rows": got} | ({USER_ROWS: outputs} if once is not None else {})
            gates += [
                {"signature": name, "form": form, **_judge(expected, values, read and read.labels, limits, scored)}
                for form, values in forms.items()
            ]
        if read and read.labels is not None:
            output = labelled_output(expected, len(read.labels), scored)
            if output is None:
                continue
            scores = {"original": auc(read.labels, expected[output]), "converted": auc(read.labels, got[output])}
            aucs.append({"signature": name, "output": output, **scores})
    equal = all(entry["ok"] for entry in found)
    if args.json:
        more = ({"auc": aucs} if aucs else {}) | ({"gate": gates} if gates else {}) | {"dense": towers}
        common.print_json({"equal": equal, "outputs": found} | more)
    else:
        _print(found, equal, bool(gates), [one for one in towers if one["running"] != "tensorflow"])
        _print_gates(gates, bundle.manifest["precision"], towers)
        for entry in aucs:
            told = [f"{side} {_auc_text(entry[side])}" for side in ("original", "converted")]
            common.results().print(f"AUC of {entry['output']}: {', '.join(told)}", markup=False)
    return 0 if equal or (gates and all(entry["passed"] for entry in gates)) else 3


def _print_gates(gates: list[dict[str, Any]], tables: str, towers: list[dict[str, Any]]) -> None:
    """tables: the precision of the bundle's tables; towers: what `run` notes of each signature's."""
    halves = [one for one in towers if one["precision"] != "fp32"]
    towers_in = {one["signature"]: f", tower {one['precision']}" for one in halves}
    for entry in gates:
        form = "" if entry["form"] == "rows" else f", {entry['form']}"
        precision = tables + towers_in.get(entry["signature"], "")
        line = f"accuracy gate ({precision}), {entry['signature']}{form}: {entry['text']}"
        common.results().print(line, markup=False)


def _gate_limits(manifest: Mapping[str, Any], tower: Mapping[str, Any]) -> Any:
    """The limits of the accuracy gates that the bundle passed: of its tables, of its engine (judged over these tables),
    their sum where both have some; None where its tables are as the model's and its tower is fp32.
    """
    from graph_opt.gate import GateLimits

    given = [gate["limits"] for gate in (manifest.get("parity") or {}).get("gate") or ()][:1]
    if tower["precision"] != "fp32":
        entry = manifest["signatures"][tower["signature"]].get("dense") or {}
        given += [entry["accuracy"]["limits"]] if entry.get("accuracy") else []
    limits = [GateLimits(**one) for one in given]
    return sum(limits[1:], limits[0]) if limits else None


def _judge(expected: Arrays, got: Arrays, labels: Any, limits: Any, scored: str | None) -> dict[str, Any]:
    from graph_opt.gate import judge

    return judge(expected, got, labels, limits, label_output=scored if labels is not None else None).to_json()


def _entry(signature: str, form: str, difference: Any) -> dict[str, Any]:
    return {"signature": signature, "form": form, "ok": difference.ok, **dataclasses.asdict(difference)}


def _request(info: Mapping[str, Any], given: Arrays | None, rows: int) -> tuple[Arrays | None, Arrays]:
    """(the request with user rows once, None without user features; the same with all inputs at B rows)."""
    import numpy as np

    from tfctr.bundle.rows import find_users, take_rows
    from tfctr.bundle.sample_inputs import generate

    users = (info.get("user") or {}).get("inputs", ())
    if not users:
        return None, generate(info, rows) if given is None else given
    name = info["split"]["row_to_user"]
    if given is None:
        count = min(USERS, rows)
        row_to_user = np.arange(rows) % count
        once = generate(info, rows, user_rows=count)
        return {**once, name: row_to_user}, take_rows(once, info, row_to_user, users)
    firsts, row_to_user = find_users(given, info, users)
    if not len(firsts):
        return None, given
    return {**take_rows(given, info, firsts, users), name: row_to_user}, given


def _stock_outputs(original: common.Model, name: str, info: Mapping[str, Any], inputs: Arrays) -> Any:
    import tensorflow as tf

    from tfctr.profiling.stock import StockSession

    stock = StockSession(original.path, info, original.tags, threads=None)
    try:
        return stock.predict(inputs)
    except tf.errors.InvalidArgumentError as error:
        raise InputError(
            f"{original.path}: signature {name!r}: stock TensorFlow refuses the inputs: {error}"
        ) from error
    finally:
        stock.close()


def _print(found: list[dict[str, Any]], equal: bool, gated: bool, towers: list[dict[str, Any]]) -> None:
    table = common.table(
        "Outputs",
        "signature",
        "output",
        "shape",
        "largest difference",
        "scaled",
        "",
        right=("largest difference", "scaled"),
    )
    for entry in found:
        verdict = "[green]equal[/]" if entry["ok"] else f"[red]{entry['reason'] or 'differs'}[/]"
        shape = "x".join(str(n) for n in entry["shape"]) or "scalar"
        signature = entry["signature"] + ("" if entry["form"] == "rows" else f", {entry['form']}")
        table.add_row(signature, entry["output"], shape, f"{entry['max_abs']:.2e}", f"{entry['worst']:.3f}", verdict)
    console = common.results()
    console.print(table)
    wider = [USER_ROWS] if any(entry["form"] == USER_ROWS for entry in found) else []
    wider += ["an engine"] if towers else []
    within = "equal within |a-b| <= 1e-6 + 1e-5 |b|" + (f" (1e-5 + 1e-5 |b| with {' and '.join(wider)})" * bool(wider))
    for tower in towers:
        console.print(f"dense tower ({tower['signature']}): {tower['running']}, {tower['precision']}", markup=False)
    if equal or not gated:
        console.print(within if equal else "the models DIFFER (scaled above 1)")


def _auc_text(value: float | None) -> str:
    return "none (all labels are equal)" if value is None else f"{value:.4f}"
