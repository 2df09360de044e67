"""The command `tfctr`: argument parsing, one-line errors, exit codes. TensorFlow is imported by what needs it only.

A command is one module of this package, named in `COMMANDS`, with two functions:

  add_parser(subparsers) -> None    adds its parser; imports nothing heavy
  run(args) -> int                  does the work and returns the exit code; heavy imports go inside
"""

import argparse
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType, ModuleType

from tfctr.core import library
from tfctr.errors import TfctrError
from tfctr.version import __version__

COMMANDS = (
    "convert", "refresh", "delta", "apply-delta", "compact", "inspect", "verify", "predict", "bench", "bisect",
    "passes", "export-onnx", "ckpt", "cache", "doctor", "serve", "admin", "loadtest", "profile",
)  # fmt: skip

EXIT_CODES = """\
exit codes:
  0  ok
  1  internal error (please report it; --debug shows where)
  2  usage error or bad input: a path, tag, signature, feature or file that does not fit
  3  the outputs of two models differ (verify), or a difference was found (bisect, ckpt diff)
  4  strict refusal: --strict or --require-fused asked for what did not hold; nothing was written
  5  a bundle can't be refreshed (refresh, delta): the model's structure changed; nothing was written, convert it anew
  6  loadtest: more requests failed than --errors allows, or --p99-ms was not kept; admin status: a model does not serve
"""


def build_parser() -> argparse.ArgumentParser:
    """Builds the parser with all subcommands; `args.run` is the chosen command's function."""
    parser = argparse.ArgumentParser(
        prog="tfctr",
        description="Makes TensorFlow CTR SavedModels several times faster at serving, and proves that the numbers "
        "stay the same.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tfctr {__version__}")
    _add_debug(parser, default=False)
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"tfctr.cli.{name.replace('-', '_')}")
        module.add_parser(subparsers)
        _finish(subparsers.choices[name], module)
    return parser


def _finish(parser: argparse.ArgumentParser, module: ModuleType) -> None:
    """What every subcommand has: --debug, the exit codes, and `run`."""
    _add_debug(parser, default=argparse.SUPPRESS)
    parser.allow_abbrev = False
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"{parser.epilog}\n\n{EXIT_CODES}" if parser.epilog else EXIT_CODES
    parser.set_defaults(run=module.run)


def _add_debug(parser: argparse.ArgumentParser, default: object) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; errors become one line on stderr.

    Args:
      argv: the arguments after the command's name; default: this process's.
    """
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed its message, or the help
        return stop.code if isinstance(stop.code, int) else 0
    if not args.debug:
        # TensorFlow's C++ log would bury the one line an error gets (it reports a missing GPU as an error).
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        library.hide_import_log()
        logging.getLogger("tensorflow").setLevel(logging.ERROR)  # deprecation notes are for us, not for users
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("tfctr: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone (`| head`): nothing to tell it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if args.debug:
            traceback.print_exc()
        print(f"tfctr: error: {_one_line(error)}", file=sys.stderr)
        return _exit_code(error)


def _one_line(error: Exception) -> str:
    message = " ".join(str(error).split())
    if isinstance(error, TfctrError):
        return message
    if isinstance(error, OSError):
        return f"{error.strerror or message}: {error.filename}" if error.filename else message
    return f"internal error: {type(error).__name__}: {message} (--debug shows where)"


def _exit_code(error: Exception) -> int:
    if isinstance(error, TfctrError):
        return error.exit_code
    return 2 if isinstance(error, OSError) else 1


def entry() -> None:
    """The console script. SIGTERM and SIGHUP end it as Ctrl-C does: what was half-written is removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP; it stays so
            signal.signal(number, _stop)
    sys.exit(main())


def _stop(number: int, _: FrameType | None) -> None:
    print(f"tfctr: stopped by {signal.Signals(number).name}", file=sys.stderr)
    sys.exit(128 + number)


if __name__ == "__main__":
    entry()
