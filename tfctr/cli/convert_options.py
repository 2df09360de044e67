"""Options that say how a model is converted: those of ``tfctr convert``, which ``tfctr bisect`` takes as well."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfctr.cli import common
from tfctr.cli.cache import size
from tfctr.errors import UsageError

if TYPE_CHECKING:
    from export.dense.options import DenseOptions
    from graph_opt.options import ConvertOptions

AUTO = "auto"
OFF = "off"
TABLE_DTYPES = ("fp32", "fp16", "bf16", "int8")

_USER_HELP = """What is the same for all candidates of a request is computed once per user, not once per candidate.
A request may then give user features with one row (or one row per user, and row_to_user).

  --user-features 'user_*,history'                  by name; * and ? are wildcards
  --user-features auto --samples clicks.npz \\
      --request-column session_id                   those that don't vary within a request"""
_DEVICE_HELP = """Lookups and all that only they need go to one device, the dense part to another; strings and tables
never leave the CPU, and what crosses does so as one tensor.

  --device-map sparse=/CPU:0,dense=/GPU:0"""
_TABLE_HELP = """Fused tables in half the bytes, or about a third. They stay fp32 where the outputs on the samples (else
on generated inputs) move by more than the limits.

  --table-dtype fp16 --samples clicks.npz --max-dp 0.002"""

_DENSE_HELP = """The dense tower (all between the lookups and the outputs) runs in an engine, in a form of its own
beside the plain one. It must give the same numbers (fp32), or pass the accuracy gate (bf16, fp16).

  --dense openvino --precision bf16 --samples clicks.npz --label click
  --dense tensorrt --target sm80,sm89 --samples clicks.npz"""
DENSE = ("auto", "tensorflow", "openvino", "tensorrt")
PRECISIONS = ("fp32", "bf16", "fp16")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options; :func:`options_of` reads them."""
    parser.add_argument(
        "--disable",
        action="append",
        default=[],
        metavar="PASS",
        help="leave out one pass (repeatable; `tfctr passes` lists them)",
    )
    _add_user_features(parser.add_argument_group("once per user", _USER_HELP))
    _add_placement(parser.add_argument_group("devices", _DEVICE_HELP))
    _add_tables(parser.add_argument_group("smaller tables", _TABLE_HELP))


def _add_user_features(group: Any) -> None:
    group.add_argument(
        "--user-features",
        action="append",
        default=[],
        metavar="A,B*",
        help="features (or inputs) with one row per user, separated by commas (repeatable); 'auto' finds them from "
        "--samples",
    )
    group.add_argument(
        "--user-features-from-samples",
        action="store_true",
        help="the same as --user-features auto: features that don't vary over the rows of a request",
    )
    group.add_argument(
        "--request-column",
        default="",
        metavar="NAME",
        help="column of --samples whose value is equal in the rows of one request (default: request_id where the "
        "file has it, else the whole file is one request). It is no input unless the signature has one of that name",
    )


def _add_placement(group: Any) -> None:
    group.add_argument(
        "--device-map",
        action="append",
        default=[],
        metavar="PART=DEVICE",
        help="devices of the parts 'sparse' and 'dense', separated by commas (default: no device is set)",
    )
    group.add_argument(
        "--force-placement", action="store_true", help="replace devices that the model sets by those of --device-map"
    )


def _add_tables(group: Any) -> None:
    group.add_argument(
        "--table-dtype",
        choices=TABLE_DTYPES,
        default="fp32",
        help="how fused tables are stored; int8 has one scale per row (default: fp32, as they are)",
    )
    limits = (
        ("--max-dp", "largest |difference| of an output (default: 1e-3; int8, fp16 engine 5e-3; bf16 engine 2e-2)"),
        ("--max-bias", "largest difference of an output's mean (default: 1e-4; int8 and engines: 1e-3)"),
        ("--max-auc-delta", "largest change of AUC, either way, where the samples have labels (default: 1e-4)"),
    )
    for name, text in limits:
        group.add_argument(name, type=limit, default=None, metavar="X", help=text)


def add_dense(
    parser: argparse.ArgumentParser, default: str = "auto, the fastest that runs on this machine; tensorflow: none"
) -> None:
    """Adds the options of the dense tower; :func:`dense_of` reads them. default: of --dense, in words."""
    group = parser.add_argument_group("dense tower", _DENSE_HELP)
    group.add_argument(
        "--dense",
        choices=DENSE,
        default=None,
        help=f"what runs it (default: {default})",
    )
    group.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=None,
        help="what it computes in (default: fp32, for tensorrt fp16); fp32 where the accuracy gate does not pass",
    )
    group.add_argument(
        "--clamp", type=clamp, default=None, metavar="X|off", help="how far embeddings reach in fp16 (default: 10)"
    )
    group.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="SM,SM",
        help="GPUs that TensorRT plans are built for, as sm80,sm89 (default: all that the library builds here)",
    )
    group.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="where exports and compiled engines are kept (default: see `tfctr cache`; off: nowhere)",
    )
    group.add_argument(
        "--cache-limit",
        type=size,
        default=None,
        metavar="SIZE",
        help="beyond it, what was not used for longest leaves that folder: 500MB, 5GB (default: 2GB)",
    )
    group.add_argument(
        "--dense-required", action="store_true", help="exit 4 and write nothing where a tower stays on TensorFlow"
    )


def dense_of(args: argparse.Namespace, default: str | None = None) -> DenseOptions:
    """DenseOptions of the parsed arguments, checked. default: without --dense; None: that of ``tfctr.convert``.
    UsageError names the flag.
    """
    from export.dense.options import DenseOptions, check_dense
    from tfctr import converting

    fields: dict[str, Any] = {"dense": args.dense or default or converting.DEFAULT_DENSE, "precision": args.precision}
    if args.clamp is not None:
        fields["clamp"] = None if args.clamp == OFF else args.clamp
    if args.cache_limit is not None:
        fields["cache_limit_bytes"] = args.cache_limit
    targets = tuple(name.strip() for text in args.target for name in text.split(",") if name.strip())
    if args.target and not targets:
        raise UsageError(f"--target {','.join(args.target)!r}: names no GPU; expected such as sm80,sm89")
    options = DenseOptions(
        **fields,
        targets=targets,
        max_dp=args.max_dp,
        max_bias=args.max_bias,
        max_auc_delta=args.max_auc_delta,
        cache_dir=args.cache_dir,
        required=args.dense_required,
    )
    check_dense(options)
    return options


def clamp(text: str) -> float | str:
    """Type of --clamp: a number above 0, or "off"."""
    if text == OFF:
        return OFF
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither off nor a number above 0, such as 10")
    return number


def limit(text: str) -> float:
    """Type of the gate's limits: a number of 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more, such as 1e-3")
    return number


def options_of(args: argparse.Namespace, **more: Any) -> ConvertOptions:
    """ConvertOptions of the parsed arguments; ``more`` are further fields. UsageError names the flag."""
    from graph_opt.option_checks import check_options
    from graph_opt.options import ConvertOptions

    names, auto = _user_features(args.user_features)
    options = ConvertOptions(
        tags=common.split_tags(args.tags),
        disable=tuple(args.disable),
        op_libraries=tuple(args.op_library),
        user_features=names,
        user_features_from_samples=auto or args.user_features_from_samples,
        request_column=args.request_column,
        device_map=_device_map(args.device_map),
        force_placement=args.force_placement,
        table_dtype=args.table_dtype,
    )
    if _limits_tables(args):
        options = dataclasses.replace(
            options, max_dp=args.max_dp, max_bias=args.max_bias, max_auc_delta=args.max_auc_delta
        )
    options = dataclasses.replace(options, **more)
    check_options(options)
    return options


def _limits_tables(args: argparse.Namespace) -> bool:
    """Whether the gate's limits are meant for tables, and not only for an engine of less than fp32."""
    narrow_engine = (args.precision or ("fp16" if args.dense == "tensorrt" else "fp32")) != "fp32"
    return args.table_dtype != "fp32" or not narrow_engine


def _user_features(given: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Names (patterns) in order, without repeats, and whether ``auto`` is among them."""
    names = [name.strip() for text in given for name in text.split(",")]
    if "" in names:
        text = next(t for t in given if "" in [n.strip() for n in t.split(",")])
        raise UsageError(f"--user-features {text!r}: an empty name; expected names or patterns, such as user_id,hist_*")
    return tuple(dict.fromkeys(n for n in names if n != AUTO)), AUTO in names


def _device_map(given: Sequence[str]) -> dict[str, str]:
    devices: dict[str, str] = {}
    for text in given:
        for pair in text.split(","):
            part, equals, device = (word.strip() for word in pair.partition("="))
            if not (part and equals and device):
                raise UsageError(f"--device-map {text!r}: expected PART=DEVICE, such as sparse=/CPU:0,dense=/GPU:0")
            if devices.get(part, device) != device:
                raise UsageError(f"--device-map {text!r}: {part} is given twice, {devices[part]} and {device}")
            devices[part] = device
    return devices
