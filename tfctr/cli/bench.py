"""``tfctr bench``: how much faster a bundle is than the SavedModel it was made from."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tfctr.cli import common
from tfctr.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tfctr.serving import ServingSession

    Arrays = dict[str, np.ndarray]

REPEATED = "tfctr, user rows repeated"

HELP = "time a bundle against its original, paired, in one process"
DESCRIPTION = """Times whole predict calls (dict of NumPy arrays in, NumPy arrays out) of a bundle and of the original
SavedModel under stock TensorFlow (Session callable and tf.function, default grappler), in turn, in one process.
With --user-rows, user features have that many rows beside the batch; stock TensorFlow, which can't take them so, gets
them repeated for every row, as does a second run of the bundle. Where an engine runs the dense tower, it is named.

  tfctr bench bundle/ --baseline model/ --batch 32,256 --threads 1
  tfctr bench bundle/ --baseline model/ --batch 500 --user-rows 1"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", metavar="BUNDLE", help="bundle (or SavedModel) to time")
    parser.add_argument("--baseline", required=True, metavar="SAVED_MODEL", help="the original to compare with")
    common.add_inputs_option(parser)
    parser.add_argument("--batch", default="32,256", metavar="N,N", help="rows per call (default: 32,256)")
    parser.add_argument(
        "--threads", type=common.threads, default=1, metavar="N", help="intra-op threads of each side (default: 1)"
    )
    parser.add_argument(
        "--rounds", type=common.count, default=100, metavar="N", help="measured rounds per batch size (default: 100)"
    )
    parser.add_argument(
        "--user-rows",
        type=common.count,
        metavar="N",
        help="rows of the user features in each call, such as 1 (default: as many as the batch)",
    )
    common.add_user_features_option(parser)
    common.add_engine_options(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    common.add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    batches = _batches(args.batch)
    if args.rounds < 5 or args.threads < 1:
        raise UsageError("--rounds must be at least 5 and --threads at least 1")
    _limit_threads(args.threads)
    ours = common.open_model(args, args.path)
    stock = common.open_model(args, args.baseline)
    signature = ours.signature(args.signature)
    figures = measure(ours, stock, signature, batches, args)
    if args.json:
        told = {"signature": signature, "threads": args.threads, "user_rows": args.user_rows, "batches": figures}
        common.print_json(told)
    else:
        _print(figures)
    return 0


def _batches(text: str) -> list[int]:
    try:
        batches = [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(f"--batch {text!r}: expected numbers separated by commas, such as 32,256") from None
    if min(batches) < 1 or max(batches) > common.MAX_COUNT:
        raise UsageError(f"--batch {text!r}: a batch has 1 to {common.MAX_COUNT} rows")
    return batches


def _limit_threads(threads: int) -> None:
    """tf.function uses the process's pools; they can be sized only before TensorFlow's first op."""
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        common.remarks().print(
            "TensorFlow already runs in this process: the tf.function baseline keeps its thread pools"
        )


def measure(
    ours: common.Model, stock: common.Model, signature: str, batches: list[int], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Per batch size: timings by contestant, the ratio to the faster stock way, op times."""
    from tfctr.profiling.paired import measure_paired, ratio
    from tfctr.profiling.stock import StockSession

    info = stock.info(signature)
    session = StockSession(stock.path, info, stock.tags, args.threads)
    served = ours.serve(signature, args.threads, common.names(args.user_features), **common.engine_of(args))
    figures = []
    try:
        if args.user_rows:
            _check_user_rows(served, args.user_rows, batches)
        function = _stock_function(stock, info, signature)
        for batch in batches:
            inputs = _inputs(stock, signature, batch, args.inputs, common.split_label(args.label)[0], served)
            once = None
            if args.user_rows:
                once, inputs = _with_user_rows(inputs, common.with_users(info, served), args.user_rows)
            calls = _calls(served, session, function, inputs, once)
            timings = measure_paired(calls, rounds=args.rounds)
            best = min((t for name, t in timings.items() if name.startswith("stock")), key=lambda t: t.median_ms)
            figure = {
                "batch": batch,
                "timings": {name: timing.as_dict() for name, timing in timings.items()},
                "fastest_stock": best.name,
                "speedup": ratio(best, timings["tfctr"]),
                "op_time_us": _op_times(served, session, inputs, once),
                "dense": served.describe()["dense"],
            }
            if once is not None:
                figure["speedup_over_repeated"] = ratio(timings[REPEATED], timings["tfctr"])
                figure["user_route"] = _route(served)
            figures.append(figure)
    finally:
        session.close()
        served.close()
    return figures


def _check_user_rows(served: ServingSession, user_rows: int, batches: list[int]) -> None:
    if not served.user_inputs:
        raise UsageError(
            f"--user-rows {user_rows}: {served.path} declares no user features; name them with --user-features A,B*"
        )
    if user_rows > min(batches):
        raise UsageError(f"--user-rows {user_rows}: more than the {min(batches)} rows of a batch")


def _with_user_rows(inputs: Arrays, info: Mapping[str, Any], user_rows: int) -> tuple[Arrays, Arrays]:
    """(inputs with the first ``user_rows`` rows of user inputs, the same with them repeated for every row)."""
    import numpy as np

    from tfctr.bundle.rows import count_rows, take_rows

    users = info["user"]["inputs"]
    row_to_user = np.arange(count_rows(inputs, info)) % user_rows
    once = take_rows(inputs, info, np.arange(user_rows), users)
    repeated = take_rows(once, info, row_to_user, users)
    return once if user_rows == 1 else once | {info["split"]["row_to_user"]: row_to_user}, repeated


def _route(served: ServingSession) -> str:
    told = served.describe()
    counts = told["requests"]
    if not counts["split"]:
        return "user rows repeated in C++: the bundle has no split form"
    return "split form, some user rows repeated in C++" if counts["repeated"] else "split form"


def _stock_function(stock: common.Model, info: Mapping[str, Any], signature: str) -> Any:
    """The tf.function way, where the SavedModel offers it (some TF1 signatures with sparse inputs do not)."""
    from tfctr.profiling.stock import StockFunction

    try:
        return StockFunction(stock.path, info, signature, stock.tags)
    except (UsageError, ValueError) as e:
        common.remarks().print(f"no tf.function baseline: {e}")
        return None


def _inputs(
    model: common.Model, signature: str, batch: int, file: str | None, label: str, served: ServingSession
) -> Arrays:
    if file is None:
        return model.generate(signature, batch)
    import numpy as np

    from tfctr.data import count_rows, take_rows

    arrays = model.read_inputs(file, signature, label, served).inputs
    rows = count_rows(arrays, model.info(signature))
    if rows == 0:
        raise UsageError(f"{file}: holds no row to repeat to a batch of {batch}")
    return take_rows(arrays, model.info(signature), np.arange(batch) % rows)


def _calls(
    served: ServingSession, session: Any, function: Any, inputs: Arrays, once: Arrays | None
) -> dict[str, Callable[[], object]]:
    calls: dict[str, Callable[[], object]] = {
        "tfctr": lambda: served.predict(inputs if once is None else once),
        "stock Session": lambda: session.predict(inputs),
    }
    if once is not None:
        calls[REPEATED] = lambda: served.predict(inputs)
    if function is not None:
        calls["stock tf.function"] = lambda: function.predict(inputs)
    return calls


def _op_times(
    served: ServingSession, session: Any, inputs: Arrays, once: Arrays | None, repeats: int = 4
) -> dict[str, float]:
    """Sum of op times of one call, best of ``repeats`` traced calls."""
    from tfctr.profiling.stock import op_times_us

    ours = inputs if once is None else once
    times = {
        "tfctr": min(sum(op_times_us(served.run_traced(ours)[1]).values()) for _ in range(repeats)),
        "stock Session": min(sum(session.op_times_us(inputs).values()) for _ in range(repeats)),
    }
    if once is not None:
        times[REPEATED] = min(sum(op_times_us(served.run_traced(inputs)[1]).values()) for _ in range(repeats))
    return times


def _print(figures: list[dict[str, Any]]) -> None:
    numbers = ("rows", "min ms", "median ms", "p99 ms", "op time ms")
    table = common.table(
        "Whole predict call", "rows", "model", "min ms", "median ms", "p99 ms", "op time ms", right=numbers
    )
    for figure in figures:
        for name, t in figure["timings"].items():
            op_time = figure["op_time_us"].get(name)
            table.add_row(
                str(figure["batch"]),
                name,
                f"{t['min_ms']:.3f}",
                f"{t['median_ms']:.3f}",
                f"{t['p99_ms']:.3f}",
                "" if op_time is None else f"{op_time / 1e3:.3f}",
            )
    console = common.results()
    console.print(table)
    tower = common.tower_line(figures[0]["dense"])
    if tower:
        console.print(tower, markup=False)
    if any("user_route" in figure for figure in figures):
        console.print("stock TensorFlow and the repeated run get the user rows repeated for every row of the batch")
    for figure in figures:
        s = figure["speedup"]
        console.print(
            f"{figure['batch']} rows: [bold]{s['median']:.1f}x[/] as fast as {figure['fastest_stock']} by median "
            f"(min {s['min']:.1f}x, p99 {s['p99']:.1f}x)"
        )
        if "user_route" in figure:
            again = figure["speedup_over_repeated"]
            console.print(
                f"  {figure['user_route']}; {again['median']:.1f}x as fast as the bundle with user rows "
                f"repeated by the client (min {again['min']:.1f}x, p99 {again['p99']:.1f}x)"
            )
