"""``tfctr admin``: what a running server serves, and changing it."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tfctr.cli import admin_profile, common
from tfctr.errors import InputError, NotFoundError, TfctrError, UnavailableError, UsageError, VersionRefusedError

HELP = "models of a running server: status, load, unload, reload, rollback, label, profile"
DESCRIPTION = """Talks to the admin port of `tfctr serve` (8502, on the same machine).

  tfctr admin status                         every model, its versions and labels
  tfctr admin status ranker --json
  tfctr admin load ranker 7                  load version 7 beside those that serve, until it is unloaded (without a
                                             number: what the configuration wants)
  tfctr admin load ranker 8 --accept-changed-inputs   although requests of the version that serves do not fit it
  tfctr admin reload ranker                  load what serves anew from its folder, then swap
  tfctr admin rollback ranker                back to the version that served before (or to the one that is named)
  tfctr admin unload ranker 6                requests inside are finished first; its labels go with it
  tfctr admin label ranker 7 canary          requests for label `canary` go to version 7, which is loaded
  tfctr admin label ranker none canary       the label is taken away
  tfctr admin profile ranker --every 1000    trace one request in 1000 (--off, --status; docs/profiling.md)
  tfctr admin profile ranker --seconds 2     record the whole process for TensorBoard

A change returns when it is done: a load once the version is loaded, proven and warm. Where it fails, what served before
serves on, and the reason is printed."""

EPILOG = """exit codes of admin: 0 done, and for status: everything asked for serves; 1 the server could not do it, or
does not answer; 2 no such model or version, or the server refused the token; 6 status: a model does not serve"""

VERBS = ("status", "load", "unload", "reload", "rollback", "label", "profile")
NOT_READY = 6
_TOKEN = "TFCTR_ADMIN_TOKEN"
_MOST_BYTES = 64 << 20


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "admin", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EPILOG
    )
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help="|".join(VERBS))
    parser.add_argument("model", metavar="MODEL", nargs="?", help="name of the model (status: all without it)")
    parser.add_argument("version", metavar="VERSION", nargs="?", help="number of the version; for label also `none`")
    parser.add_argument("label", metavar="LABEL", nargs="?", help="of label: stable, canary, or any name")
    parser.add_argument(
        "--url", default="http://127.0.0.1:8502", metavar="URL", help="admin port (default: %(default)s)"
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help=f"holds the server's admin token (default: the variable {_TOKEN})"
    )
    parser.add_argument("--ca", metavar="PEM", help="certificate of the authority that signed the server's, for https")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="how long a change may take (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the server's answer as JSON")
    parser.add_argument(
        "--accept-changed-inputs",
        action="store_true",
        help="load, reload: the version takes over although requests of the one that serves do not fit it",
    )
    admin_profile.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    path, body = request_of(args)
    answer = _ask(args, path, body)
    models = answer.get("models", [answer])
    if args.json:
        common.print_json(answer)
    elif args.verb == "profile":
        admin_profile.show(answer)
    else:
        show(models)
    if args.verb == "status" and not all(serves(one) for one in models):
        return NOT_READY
    return 0


def request_of(args: argparse.Namespace) -> tuple[str, dict[str, Any] | None]:
    """Path and body of the request; UsageError where the words do not fit together."""
    verb = args.verb
    if verb != "profile" and not admin_profile.none_given(args):
        raise UsageError(f"tfctr admin {verb}: takes none of the options of profile")
    name = "" if args.model is None else urllib.parse.quote(args.model, safe="")
    if verb == "status":
        if args.version is not None:
            raise UsageError("tfctr admin status MODEL: takes no version; it tells of all")
        return (f"/v1/models/{name}" if name else "/v1/status"), None
    if not name:
        raise UsageError(f"tfctr admin {verb}: expected a model; `tfctr admin status` lists them")
    if verb == "profile":
        return f"/v1/models/{name}:profile", admin_profile.body_of(args)
    version = _number(args.version, verb)
    if args.accept_changed_inputs and verb not in ("load", "reload"):
        raise UsageError(f"tfctr admin {verb}: --accept-changed-inputs goes with load and reload")
    if verb == "label":
        if args.version is None or args.label is None:
            raise UsageError("expected tfctr admin label MODEL VERSION LABEL, such as: label ranker 7 canary")
        return f"/v1/models/{name}:label", {"label": args.label, "version": version}
    if args.label is not None:
        raise UsageError(f"tfctr admin {verb} MODEL [VERSION]: {args.label!r} is one word too many")
    body: dict[str, Any] = {} if version is None else {"version": version}
    if args.accept_changed_inputs:
        body["accept_changed_inputs"] = True
    return f"/v1/models/{name}:{verb}", body


def serves(model: dict[str, Any]) -> bool:
    """Whether a model of the server's answer has a version that serves."""
    return any(one["state"] == "AVAILABLE" for one in model["versions"])


def show(models: list[dict[str, Any]]) -> None:
    """One table over all models; reasons of what failed below it."""
    table = common.table(
        "", *("model", "version", "state", "since", "labels", "executors"), right=("version", "executors")
    )
    notes = []
    for model in models:
        if model.get("error"):
            notes.append(f"{model['name']}: {model['error']}")
        for label, number in sorted((model.get("labels_unloaded") or {}).items()):
            notes.append(
                f"{model['name']}: label {label!r} went with version {number}: its requests are refused until "
                f"`tfctr admin load {model['name']} {number}`, or until it is given to another version"
            )
        if not model["versions"]:
            table.add_row(model["name"], "-", "NONE", "", "", "")
        for one in sorted(model["versions"], key=lambda version: version["number"]):
            labels = [label for label, number in model["labels"].items() if number == one["number"]]
            if one["number"] == model.get("default"):
                labels.append("(default)")
            if one.get("pinned"):
                labels.append("(by hand)")
            executors = (one.get("describe") or {}).get("executors")
            count = len(executors) if isinstance(executors, list) else executors
            cells = [str(one["number"]), one["state"], _since(one.get("loaded_at")), " ".join(labels)]
            table.add_row(model["name"], *cells, "" if count is None else str(count))
            if one.get("error"):
                notes.append(f"{model['name']} {one['number']}: {one['error']}")
    console = common.results()
    console.print(table)
    for note in notes:
        console.print(note, markup=False, soft_wrap=True)


def _since(unix: float | None) -> str:
    if not unix:
        return ""
    return datetime.datetime.fromtimestamp(unix).astimezone().isoformat(sep=" ", timespec="seconds")


def _number(text: str | None, verb: str) -> int | None:
    if text is None or verb == "label" and text == "none":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise UsageError(f"version {text!r}: expected a whole number")
    return int(text)


def _ask(args: argparse.Namespace, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """The server's JSON; errors as tfctr's own."""
    scheme = urllib.parse.urlsplit(args.url).scheme
    if scheme not in ("http", "https"):
        raise UsageError(f"--url {args.url!r}: expected http://HOST:PORT or https://HOST:PORT")
    request = urllib.request.Request(
        args.url.rstrip("/") + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json", **_authorization(args.token_file)},
        method="GET" if body is None else "POST",
    )
    # No proxy: the admin port is this machine's, and the token is for nobody else.
    handlers: list[Any] = [urllib.request.ProxyHandler({})]
    if scheme == "https":
        handlers.append(urllib.request.HTTPSHandler(context=_tls(args.ca)))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=args.timeout) as response:
            answer = json.loads(response.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        raise _error(error, args.url) from error
    except (OSError, ValueError) as error:  # ValueError: what answers is no tfctr server
        reason = getattr(error, "reason", None) or error
        hint = _hint(scheme, reason)
        raise UnavailableError(f"{args.url}: no answer from a tfctr server's admin port: {reason}{hint}") from error
    if not isinstance(answer, dict) or not answer.keys() & {"models", "versions", "profile"}:
        raise UnavailableError(f"{args.url}: what answers there is not the admin port of tfctr serve")
    return answer


def _hint(scheme: str, reason: object) -> str:
    """What may help against an error of the connection; "" where nothing is known."""
    if scheme == "http" and isinstance(reason, ConnectionResetError):  # http.client.RemoteDisconnected is one
        return "; where the server has TLS: --url https://..., with --ca"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return "; --ca names the certificate to trust"
    if isinstance(reason, ConnectionRefusedError):
        return "; --url says where it is"
    return ""


def _authorization(token_file: str | None) -> dict[str, str]:
    if token_file:
        try:
            token = Path(token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{token_file}: token file can't be read: {error}") from error
    else:
        token = os.environ.get(_TOKEN, "")
    if token and not (token.isascii() and token.isprintable()):
        raise UsageError(f"{token_file or _TOKEN}: a token is printable ASCII")
    return {"authorization": f"Bearer {token}"} if token else {}


def _tls(ca: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{ca}: expected PEM certificates: {error}") from error


def _error(error: urllib.error.HTTPError, url: str) -> TfctrError:
    text = error.read(1 << 20).decode("utf-8", "replace")
    try:
        message = str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        message = f"{url}: HTTP {error.code} {error.reason}"
    if error.code == 404:
        return NotFoundError(message)
    if error.code in (401, 403):
        return UsageError(f"{message} (--token-file, or the variable {_TOKEN})")
    if error.code == 412:
        return VersionRefusedError(message)
    if 400 <= error.code < 500 and error.code != 429:
        return InputError(message)
    return UnavailableError(message)
