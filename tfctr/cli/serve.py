"""``tfctr serve``: models behind TF Serving's and KServe's protocols."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfctr.cli import common
from tfctr.errors import UsageError

if TYPE_CHECKING:
    from tfctr.serving.server.config import ServerConfig
    from tfctr.serving.server.server import Server

HELP = "serve models over gRPC and HTTP (TF Serving's and KServe's protocols)"
DESCRIPTION = """Serves SavedModels and bundles. MODEL_DIR is one, or a folder of versions: of MODEL_DIR/1,
MODEL_DIR/2, ... the newest is served, and a newer one takes over as soon as it is complete. The model is called as its
folder is.

  tfctr serve models/ranker                              the model `ranker`, on this machine only
  tfctr serve models/ranker models/other --executors 4   two models, four requests of each at the same time
  tfctr serve --config serve.json                        everything else: labels, traffic split, limits, TLS
  tfctr serve --model_config_file models.config          the file that TF Serving takes

It prints one line once everything serves. Then, from the same machine:

  curl -d '{"instances": [{"user_id": 7}]}' http://127.0.0.1:8501/v1/models/ranker:predict    TF Serving's REST
  curl http://127.0.0.1:8501/v2/models/ranker                                                 KServe
  curl http://127.0.0.1:8501/metrics                                                          Prometheus
  tfctr admin status                                                                          versions and labels
  tfctr loadtest grpc://127.0.0.1:8500/ranker                                                 how fast it is

gRPC clients of both protocols use port 8500, HTTP ones 8501; `tfctr admin` uses 8502. All are on 127.0.0.1 unless
--host says otherwise. SIGTERM or Ctrl-C: requests inside are answered, then it ends; a second one ends it at once.
docs/server.md has the configuration file, docs/monitoring.md the metrics."""

EPILOG = """exit codes of serve: 0 stopped by a signal, every request inside was answered; 1 some were cut off after
--drain-seconds, or no model could be loaded; 2 a wrong option or file, or a port that is taken"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EPILOG
    )
    parser.add_argument("model_dirs", metavar="MODEL_DIR", nargs="*", help="SavedModel, bundle, or folder of versions")
    parser.add_argument("--config", metavar="FILE", help="JSON file; an unknown key is an error (docs/server.md)")
    parser.add_argument(
        "--model_config_file", "--model-config-file", metavar="FILE", help="TF Serving's file of models (protobuf text)"
    )
    parser.add_argument("--check-config", action="store_true", help="print what would be served as JSON, and end")
    parser.add_argument("--json", action="store_true", help="print the line of endpoints as JSON")
    _add_models(parser.add_argument_group("models (over those of a file)"))
    _add_ports(parser.add_argument_group("ports"))
    _add_rest(parser.add_argument_group("limits, logs, metrics"))
    parser.set_defaults(run=run)


def _add_models(group: Any) -> None:
    add = group.add_argument
    add("--name", metavar="NAME", help="name of the model, where one MODEL_DIR is given (default: the folder's)")
    add(
        "--executors",
        type=int,
        metavar="N",
        help="requests that run at the same time (default: one for each CPU, 16 at most)",
    )
    add("--intra-op-threads", type=common.threads, metavar="N", help="threads of one request's kernels (default: 1)")
    add("--cpu-sets", metavar="SETS", help='CPUs of each executor, such as "0-1;2-3" (default: not pinned)')
    add(
        "--routing",
        choices=("least_loaded", "round_robin"),
        help="which executor takes a request (default: least_loaded)",
    )
    add("--queue-limit", type=int, metavar="N", help="requests that may wait; the next is refused (default: 1000)")
    add("--batching", action="store_true", help="run small requests together (implied by the next two)")
    add("--max-batch-rows", type=int, metavar="N", help="rows of one run; larger requests are split (default: 1024)")
    add(
        "--max-delay-us",
        type=int,
        metavar="US",
        help="how long a request waits for others while some are in flight (default: 0)",
    )
    add(
        "--engine",
        choices=("openvino", "tensorrt", "tensorflow"),
        help="runs the dense tower, whatever the bundle says",
    )
    add("--no-fallback", action="store_true", help="a version whose engine does not run here is rejected")
    add(
        "--poll-seconds",
        type=float,
        metavar="S",
        help="how often folders are looked at for new versions (default: 2; 0: never)",
    )
    add(
        "--accept-changed-inputs",
        action="store_true",
        help="a version takes over although it does not take the requests of the one before (default: it is rejected)",
    )
    add(
        "--op-library",
        action="append",
        default=[],
        metavar="LIB.so",
        help="load this library of custom ops first (repeatable)",
    )


def _add_ports(group: Any) -> None:
    add = group.add_argument
    add("--host", metavar="ADDRESS", help="address of the gRPC and HTTP port (default: 127.0.0.1; 0.0.0.0: all)")
    add("--grpc-port", "--port", type=_port, metavar="PORT", help='default: 8500; 0: any free one; "off"')
    add("--http-port", "--rest_api_port", type=_port, metavar="PORT", help='default: 8501; 0: any free one; "off"')
    add("--admin-host", metavar="ADDRESS", help="other than loopback only with --admin-token-file (default: 127.0.0.1)")
    add("--admin-port", type=_port, metavar="PORT", help='default: 8502; 0: any free one; "off"')
    add("--tls-certificate", metavar="PEM", help="TLS on all ports; with --tls-key")
    add("--tls-key", metavar="PEM", help="its key, unencrypted")
    add("--tls-client-ca", metavar="PEM", help="clients must show a certificate that this signed")
    add("--token-file", metavar="FILE", help="requests need the bearer token that this file holds")
    add("--admin-token-file", metavar="FILE", help="changes of models need this one, on every port")


def _add_rest(group: Any) -> None:
    add = group.add_argument
    add(
        "--default-deadline-ms",
        type=float,
        metavar="MS",
        help="the most time that any request gets (default: no limit)",
    )
    add("--max-body-bytes", type=int, metavar="N", help="bytes of a request (default: 64 MiB)")
    add(
        "--max-total-body-bytes",
        type=int,
        metavar="N",
        help="bytes of all requests inside; a body over it is refused (default: 1 GiB)",
    )
    add("--max-rows", type=int, metavar="N", help="rows of a request (default: 100000)")
    add("--max-concurrent", type=int, metavar="N", help="requests inside each of gRPC and HTTP (default: 256)")
    add("--drain-seconds", type=float, metavar="S", help="how long SIGTERM waits for requests inside (default: 30)")
    add("--log-file", metavar="FILE", help="JSON lines (default: stderr)")
    add("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    add(
        "--log-requests",
        choices=("notable", "all"),
        help="requests that failed or were slow, or all (default: notable)",
    )
    add("--slow-ms", type=float, metavar="MS", help="a request that takes longer gets a line (default: none does)")
    add("--no-metrics", action="store_true", help="do not count requests")
    add("--profile-every", type=int, metavar="N", help="trace one request in N (default: none until `tfctr admin`)")
    add("--profile-folder", metavar="DIR", help="below which files of profiles go (default: a temporary folder)")
    add("--profile-max-mb", type=float, metavar="MB", help="the most that one model's take (default: 100)")


def run(args: argparse.Namespace) -> int:
    from tfctr.serving.server import check_packages, read_on_own_thread

    check_packages("tfctr serve")
    read_on_own_thread()
    from tfctr.serving.server import server

    config = configuration(args)
    if args.check_config:
        common.print_json(config.as_dict())
        return 0
    return server.serve(config, lambda one: announce(one, as_json=args.json))


def configuration(args: argparse.Namespace) -> ServerConfig:
    """The configuration that the options make, over the files that they name."""
    from tfctr.serving.server import config, model_config

    folders = [_folder(path) for path in args.model_dirs]
    models = model_config.read(Path(args.model_config_file)) if args.model_config_file else ()
    if args.name and (len(folders) != 1 or args.config or models):
        raise UsageError("--name: expected exactly one MODEL_DIR and no file of models beside it")
    made = config.build(
        file=Path(args.config) if args.config else None,
        overrides=overrides(args),
        model_dirs=folders,
        more_models=models,
        name=args.name,
    )
    return made


def overrides(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, by the keys of the configuration file."""
    tls = {"certificate": args.tls_certificate, "key": args.tls_key, "client_ca": args.tls_client_ca}
    _check_tls(tls)
    batching = {"max_batch_rows": args.max_batch_rows, "max_delay_us": args.max_delay_us}
    made = {
        "group": {
            "executors": args.executors,
            "intra_op_threads": args.intra_op_threads,
            "cpu_sets": None if args.cpu_sets is None else cpu_sets(args.cpu_sets),
            "routing": args.routing,
            "queue_limit": args.queue_limit,
            "engine": args.engine,
            "fallback": False if args.no_fallback else None,
        },
        "batching": batching,
        "server": {
            "host": args.host,
            "admin_host": args.admin_host,
            "default_deadline_ms": args.default_deadline_ms,
            "drain_seconds": args.drain_seconds,
        },
        "limits": {
            "max_body_bytes": args.max_body_bytes,
            "max_total_body_bytes": args.max_total_body_bytes,
            "max_rows": args.max_rows,
            "max_concurrent": args.max_concurrent,
        },
        "tls": tls,
        "tokens": {"serving_file": args.token_file, "admin_file": args.admin_token_file},
        "logs": {
            "file": args.log_file,
            "level": args.log_level,
            "requests": args.log_requests,
            "slow_ms": args.slow_ms,
        },
        "metrics": {"enabled": False if args.no_metrics else None},
        "profile": {
            "every": args.profile_every,
            "folder": args.profile_folder,
            "max_mb": args.profile_max_mb,
        },
        "poll_seconds": args.poll_seconds,
        "accept_changed_inputs": True if args.accept_changed_inputs else None,
    }
    given = {key: _given(value) for key, value in made.items()}
    given = {key: value for key, value in given.items() if value not in ({}, None)}
    if args.batching:
        given.setdefault("batching", {})
    for key in ("grpc_port", "http_port", "admin_port"):
        value = getattr(args, key)
        if value is not None:
            given.setdefault("server", {})[key] = None if value == _OFF else value
    if args.op_library:
        given["op_libraries"] = list(args.op_library)
    return given


def _check_tls(given: dict[str, str | None]) -> None:
    """A certificate and its key go together."""
    names = {"certificate": "--tls-certificate", "key": "--tls-key"}
    missing = [option for key, option in names.items() if not given[key]]
    came = [option for key, option in {**names, "client_ca": "--tls-client-ca"}.items() if given[key]]
    if came and missing:
        raise UsageError(f"{came[0]} goes with {' and '.join(missing)}: TLS needs a certificate and its key")


def _given(value: Any) -> Any:
    return {key: one for key, one in value.items() if one is not None} if isinstance(value, dict) else value


def announce(server: Server, *, as_json: bool) -> None:
    """The line that says that everything serves."""
    where = server.endpoints
    statuses = server.manager.statuses()
    serving = {
        one.name: [version.number for version in one.versions if version.state == "AVAILABLE"] for one in statuses
    }
    if as_json:
        line = json.dumps(
            {"ready": True, "models": serving, "grpc": where.grpc, "http": where.http, "admin": where.admin}
        )
    else:
        models = ", ".join(f"{name} ({_versions(numbers)})" for name, numbers in serving.items())
        places = [("gRPC", where.grpc), ("HTTP", where.http), ("admin", where.admin)]
        line = f"tfctr serves {models}: " + ", ".join(f"{name} {place}" for name, place in places if place)
    print(line, file=sys.stdout, flush=True)


def _versions(numbers: list[int]) -> str:
    if not numbers:
        return "NOT LOADED, see the log"
    return f"version{'s' if len(numbers) > 1 else ''} {', '.join(map(str, sorted(numbers)))}"


_OFF = -1


def _port(text: str) -> int:
    if text == "off":
        return _OFF
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f'{number} is not between 0 and 65535, nor "off"')
    return number


def cpu_sets(text: str) -> list[list[int]]:
    """ "0-1;2,5" -> [[0, 1], [2, 5]]."""
    made = []
    for part in text.split(";"):
        cpus: list[int] = []
        for piece in part.split(","):
            first, dash, last = piece.strip().partition("-")
            if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
                raise UsageError(f'--cpu-sets {text!r}: expected CPU numbers such as "0-1;2-3"')
            cpus.extend(range(int(first), int(last or first) + 1))
        made.append(cpus)
    return made


def _folder(path: str) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"{path}: no such folder; expected a SavedModel, a bundle, or a folder of versions of one")
    return folder
