"""``tfctr loadtest``: how a server, or a model in this process, answers under load."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from tfctr.cli import common
from tfctr.errors import UsageError

if TYPE_CHECKING:
    from tfctr.loadtest.plan import Outcome, Plan
    from tfctr.loadtest.runs import Run
    from tfctr.loadtest.target import Target

HELP = "send load to a server (or a model in this process) and tell latency, throughput and errors"
DESCRIPTION = """Sends prediction requests and tells how they were answered. TARGET is one of

  grpc://HOST:PORT/MODEL                        TensorFlow Serving's gRPC; with --protocol kserve, KServe's
  http://HOST:PORT/v1/models/MODEL              TensorFlow Serving's REST (also /versions/N, /labels/L)
  http://HOST:PORT/v2/models/MODEL              KServe's REST
  FOLDER                                        a bundle or SavedModel, in this process

Open loop (--rate): requests come when they are due, however slow the answers are, and a request's latency runs from
that moment. Closed loop (--clients): each client sends the next request after its answer. --find-rate looks for the
highest rate at which --p99-ms holds, and confirms it. Requests are serialised before the run.

  tfctr loadtest grpc://127.0.0.1:8500/ranker --bundle models/ranker --rate 200
  tfctr loadtest http://127.0.0.1:8501/v2/models/ranker --rate 50,100,200 --html load.html
  tfctr loadtest grpc://127.0.0.1:8500/ranker --find-rate --p99-ms 30
  tfctr loadtest models/ranker --clients 4"""
EPILOG = "Exits with 6 where more requests failed than --errors allows, --p99-ms was not kept, or no rate was found."
MISSED = 6


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "loadtest", help=HELP, description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("target", metavar="TARGET", help="address of a model on a server, or a folder")
    parser.add_argument(
        "--protocol", choices=("tfs", "kserve"), help="where the address does not say it (default: tfs)"
    )
    parser.add_argument("--allow-remote", action="store_true", help="send load to another machine than this one")
    _add_load(parser.add_argument_group("load"))
    _add_requests(parser.add_argument_group("requests"))
    _add_connection(parser.add_argument_group("connection"))
    _add_process(parser.add_argument_group("a model in this process"))
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with the latency curve here")
    common.add_model_options(parser)
    parser.set_defaults(run=run)


def _add_load(group: Any) -> None:
    group.add_argument("--rate", metavar="R,R", help="open loop: requests per second; several are run in turn")
    group.add_argument("--clients", type=common.count, default=1, metavar="N", help="closed loop (default: 1)")
    group.add_argument("--find-rate", action="store_true", help="find the highest rate that keeps --p99-ms")
    group.add_argument("--p99-ms", type=float, metavar="MS", help="latency budget")
    group.add_argument(
        "--errors", type=float, default=0.0, metavar="SHARE", help="share of requests that may fail (default: 0)"
    )
    group.add_argument("--duration", type=float, default=10.0, metavar="S", help="seconds of a run (default: 10)")
    group.add_argument(
        "--warmup", type=float, default=1.0, metavar="S", help="seconds before, sent but not counted (default: 1)"
    )
    group.add_argument(
        "--arrivals", choices=("poisson", "bursts", "uniform"), default="poisson", help="open loop (default: poisson)"
    )
    group.add_argument(
        "--burst-size", type=common.count, default=10, metavar="N", help="requests at the same moment (default: 10)"
    )
    group.add_argument("--start-rate", type=float, default=50.0, metavar="R", help="of --find-rate (default: 50)")
    group.add_argument("--max-rate", type=float, default=100_000.0, metavar="R", help="of --find-rate")
    group.add_argument(
        "--precision", type=float, default=0.04, metavar="SHARE", help="of --find-rate, last step (default: 0.04)"
    )
    group.add_argument(
        "--min-requests",
        type=common.count,
        default=400,
        metavar="N",
        help="of --find-rate: a run is made longer until so many are due (default: 400)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of arrivals and generated requests")


def _add_requests(group: Any) -> None:
    common.add_inputs_option(group)
    group.add_argument(
        "--bundle",
        metavar="FOLDER",
        help="bundle or SavedModel that is served there: generated ids are then those of its tables; else the server's "
        "metadata says what inputs there are",
    )
    group.add_argument("--rows", default="100", metavar="N", help="of a request; 1-8: from 1 to 8 (default: 100)")
    group.add_argument("--user-rows", type=common.count, metavar="N", help="of user features, such as 1 (default: all)")
    group.add_argument(
        "--requests", type=common.count, default=64, metavar="N", help="different ones, sent in turn (default: 64)"
    )
    group.add_argument(
        "--zipf",
        type=float,
        default=1.05,
        metavar="S",
        help="exponent of ids' popularity; 0: all alike (default: 1.05)",
    )
    group.add_argument(
        "--unseen", type=float, default=0.0, metavar="SHARE", help="of ids that no request had before (default: 0)"
    )
    group.add_argument(
        "--unseen-inputs", default="", metavar="A,B*", help="inputs that get them, where any id is legal"
    )
    group.add_argument(
        "--id-limit",
        type=common.count,
        default=1000,
        metavar="N",
        help="without --bundle: ids are below this (default: 1000)",
    )
    group.add_argument(
        "--encoding", choices=("binary", "json"), default="binary", help="of KServe over HTTP (default: binary)"
    )
    group.add_argument("--gzip", action="store_true", help="compress bodies")


def _add_connection(group: Any) -> None:
    group.add_argument(
        "--connections", type=common.count, default=256, metavar="N", help="requests in flight at most (default: 256)"
    )
    group.add_argument("--timeout", type=float, default=30.0, metavar="S", help="of a request (default: 30)")
    group.add_argument("--deadline-ms", type=float, metavar="MS", help="sent as x-tfctr-deadline-ms")
    group.add_argument(
        "--header", action="append", default=[], metavar="NAME: VALUE", help="HTTP header or gRPC metadata (repeatable)"
    )
    group.add_argument("--token-file", metavar="FILE", help="sent as a bearer token")
    group.add_argument("--ca", metavar="FILE", help="certificate that signed the server's (TLS)")
    group.add_argument(
        "--metrics", metavar="URL", help="the server's metrics, for batch sizes (default: where they are)"
    )
    group.add_argument(
        "--timing-every",
        type=int,
        default=20,
        metavar="N",
        help="ask one request of N for the server's own timing; 0: none (default: 20)",
    )


def _add_process(group: Any) -> None:
    group.add_argument("--threads", type=common.threads, default=1, metavar="N", help="intra-op threads (default: 1)")
    common.add_engine_options(group)


def run(args: argparse.Namespace) -> int:
    from tfctr.cli import loadtest_report
    from tfctr.loadtest.plan import carry_out
    from tfctr.loadtest.target import check_is_local, parse_target

    target = parse_target(args.target, args.protocol)
    check_is_local(target, args.allow_remote)
    if target.transport != "process":
        from tfctr.serving.server import check_packages

        check_packages(f"tfctr loadtest {target.transport}://...")
    plan = _plan(args)
    with contextlib.ExitStack() as stack:
        ready = _prepare(args, target, stack)
        told = loadtest_report.Progress(plan, quiet=args.json)
        try:
            outcome = carry_out(ready.channel, ready.requests, plan, told, ready.read_batches)
        except UsageError as error:
            raise UsageError(f"{error}{_advice(args, target, str(error))}") from error
    result = loadtest_report.result_of(args, target, plan, outcome, ready.traffic)
    loadtest_report.write(result, args.json, args.html)
    return MISSED if _missed(plan, outcome) else 0


def _advice(args: argparse.Namespace, target: Target, message: str) -> str:
    """What to do about a generated id that is in no row of a table."""
    found = re.search(r"is not in \[0, (\d+)\)", message)
    if not found or args.inputs or args.bundle or target.transport == "process" or int(found[1]) >= args.id_limit:
        return ""
    return (
        f"; generated ids are below --id-limit {args.id_limit}: give --id-limit {found[1]}, --bundle with the model "
        "that is served, or --inputs with requests of your own"
    )


def _missed(plan: Plan, outcome: Outcome) -> bool:
    if outcome.found is not None:
        return outcome.found.rate is None
    return any(_run_missed(plan, run) for run in outcome.runs)


def _run_missed(plan: Plan, run: Run) -> bool:
    from tfctr.loadtest.search import Budget

    budget = plan.budget or Budget(p99_ms=1e12, errors=0.0, least_share=0.0)
    return not budget.kept(run)


def _plan(args: argparse.Namespace) -> Plan:
    from tfctr.loadtest.plan import Plan
    from tfctr.loadtest.runs import RunOptions
    from tfctr.loadtest.schedule import Arrivals
    from tfctr.loadtest.search import Budget, SearchOptions

    if args.find_rate and args.rate:
        raise UsageError("--find-rate looks for the rate itself; --start-rate says where")
    if args.find_rate and args.p99_ms is None:
        raise UsageError("--find-rate needs the latency to keep: --p99-ms 30")
    if not (0 <= args.warmup < math.inf and 0 < args.duration < math.inf and 0 <= args.errors <= 1):
        raise UsageError("--warmup and --duration are seconds, --errors a share from 0 to 1")
    budget = Budget(args.p99_ms if args.p99_ms is not None else 1e12, args.errors, 0.95 if args.find_rate else 0.0)
    search = None
    if args.find_rate:
        search = SearchOptions(start=args.start_rate, highest=args.max_rate, precision=args.precision)
    return Plan(
        rates=_rates(args.rate),
        clients=args.clients,
        duration_s=args.duration,
        arrivals=Arrivals(args.arrivals, args.burst_size, args.seed),
        run=RunOptions(args.warmup, args.connections, args.timing_every),
        budget=budget,
        search=search,
        least_requests=args.min_requests if args.find_rate else 0,
    )


def _rates(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        rates = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"--rate {text!r}: expected numbers separated by commas, such as 50,100") from None
    if not all(0 < rate < math.inf for rate in rates):
        raise UsageError(f"--rate {text!r}: rates are positive")
    return rates


@dataclasses.dataclass(frozen=True)
class _Ready:
    channel: Any
    requests: Any
    traffic: str
    read_batches: Any


def _prepare(args: argparse.Namespace, target: Target, stack: contextlib.ExitStack) -> _Ready:
    from tfctr.loadtest import bodies, connecting, model_info, traffic

    headers = _headers(args)
    secrets = connecting.Secrets.of(args.ca)
    options = traffic.TrafficOptions(
        count=args.requests,
        rows=_rows(args.rows),
        zipf=args.zipf,
        unseen=args.unseen,
        unseen_inputs=common.names(args.unseen_inputs),
        user_rows=args.user_rows,
        seed=args.seed,
    )
    model = None
    if target.transport == "process" or args.bundle:
        model = common.open_model(args, target.path or args.bundle)
        signature = model.signature(args.signature)
        info = model.info(signature)
    else:
        signature = args.signature or "serving_default"
        info = model_info.ask(target, signature, headers, args.id_limit, secrets.root_certificates, secrets.tls)
    if args.inputs:
        from tfctr.data import read_inputs

        arrays = read_inputs(args.inputs, info, common.split_label(args.label)[0]).inputs
        found = traffic.of_file(arrays, info, options, args.inputs)
        source = f"rows of {args.inputs}"
    else:
        found = traffic.generated(info, options)
        source = f"generated requests, Zipf {args.zipf:g}" if args.zipf else "generated requests, all ids alike"
    if target.transport == "process":
        assert model is not None
        served = model.serve(signature, args.threads, **common.engine_of(args))
        channel: Any = connecting.in_process(served)
    else:
        channel = connecting.open_channel(target, headers, args.timeout, secrets, args.gzip)
    stack.callback(channel.close)
    requests = bodies.prepare(target, signature, found, headers=headers, encoding=args.encoding, compress=args.gzip)
    size = "" if target.transport == "process" else f" ({len(requests[0].body):,} bytes the first)"
    words = f"{len(requests)} different requests of {args.rows} rows{size}: {source}"
    if args.unseen:
        words += f", {args.unseen:g} of the ids new in every request"
    reader = connecting.batch_reader(target, args.metrics, headers, secrets.tls)
    return _Ready(channel, requests, words, reader)


def _rows(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    try:
        return int(least), int(most or least)
    except ValueError:
        raise UsageError(f"--rows {text!r}: expected a number, or two as 1-8") from None


def _headers(args: argparse.Namespace) -> list[tuple[str, str]]:
    found = []
    for text in args.header:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or "\r" in text or "\n" in text:
            raise UsageError(f"--header {text!r}: expected NAME: VALUE")
        found.append((name.strip(), value.strip()))
    if args.token_file:
        try:
            with open(args.token_file, encoding="utf-8") as file:
                found.append(("Authorization", f"Bearer {file.read().strip()}"))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{args.token_file}: no readable token: {error}") from error
    if args.deadline_ms is not None:
        found.append(("x-tfctr-deadline-ms", f"{args.deadline_ms:g}"))
    return found
