"""Options that contradict each other or can't be meant: found before any work, named as the command line calls them.

What needs the model to be judged (features that it does not have, devices that do not exist) is judged by the passes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping

from graph_opt.options import ConvertOptions
from graph_opt.placement.devices import device_map
from tfctr.errors import UsageError

TABLE_DTYPES = ("fp32", "fp16", "bf16", "int8")
PLACES = ("sparse", "dense")
# /CPU:0, /device:GPU:1, /job:localhost/replica:0/task:0/device:CPU:0
_DEVICE = re.compile(r"(/job:\w+)?(/replica:\d+)?(/task:\d+)?/(device:)?[A-Za-z]\w*:\d+")
# What each limit of the accuracy gate bounds, by option field.
GATE_LIMITS = {
    "max_dp": "largest |difference| of a score",
    "max_bias": "difference of the mean score",
    "max_auc_delta": "loss of AUC",
}


def check_options(options: ConvertOptions) -> None:
    """UsageError, naming the option, what came and what was expected, where options do not fit together."""
    _check_user_features(options)
    _check_placement(options)
    _check_tables(options)


def flag(field: str) -> str:
    """The command line's name of an option field: ``max_dp`` -> ``--max-dp``."""
    return "--" + field.replace("_", "-")


def _check_user_features(options: ConvertOptions) -> None:
    for pattern in options.user_features:
        if not pattern.strip():
            raise UsageError("--user-features: an empty name; expected feature names or patterns such as 'user_*'")
    if options.user_features_from_samples:
        if options.user_features:
            raise UsageError(
                f"--user-features {','.join(options.user_features)}: names can't be given when the features are to be "
                "found from samples (auto); give one of the two"
            )
        if options.samples_path is None and options.read_samples is None:
            raise UsageError("--user-features auto: needs --samples FILE with the rows of some requests to look at")
    if options.request_column and options.samples_path is None and options.read_samples is None:
        raise UsageError(
            f"--request-column {options.request_column}: names a column of --samples FILE, which is missing"
        )
    if options.request_column and options.request_column == options.label and options.samples_path is not None:
        raise UsageError(f"--request-column {options.request_column}: is the column of labels too (--label)")
    if options.user_features or options.user_features_from_samples:
        _not_disabled(options, "--user-features", ("split_user_item",))


def _check_placement(options: ConvertOptions) -> None:
    if not isinstance(options.device_map, Mapping):
        raise UsageError(f"device_map: expected a mapping of {' and '.join(PLACES)} to devices")
    for place, device in options.device_map.items():
        if place not in PLACES:
            raise UsageError(f"--device-map {place}={device}: no part {place!r}; the parts are {' and '.join(PLACES)}")
        if not _DEVICE.fullmatch(str(device)):
            raise UsageError(f"--device-map {place}={device}: no device {str(device)!r}; expected one such as /CPU:0")
    device_map(options.device_map)
    if options.device_map:
        _not_disabled(options, "--device-map", ("place_devices",))
    elif options.force_placement:
        raise UsageError("--force-placement: says nothing without --device-map sparse=DEVICE,dense=DEVICE")


def _check_tables(options: ConvertOptions) -> None:
    if options.table_dtype not in TABLE_DTYPES:
        raise UsageError(f"--table-dtype {options.table_dtype}: expected {', '.join(TABLE_DTYPES)}")
    for field, what in GATE_LIMITS.items():
        limit = getattr(options, field)
        if limit is None:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not math.isfinite(limit) or limit < 0:
            raise UsageError(f"{flag(field)} {limit}: expected a number of 0 or more ({what})")
        if options.table_dtype == "fp32":
            raise UsageError(
                f"{flag(field)} {limit:g}: limits smaller tables and engines, and without --table-dtype or --precision "
                "both stay fp32"
            )
    if options.table_dtype != "fp32":
        _not_disabled(options, f"--table-dtype {options.table_dtype}", ("compress_tables", "fuse_lookups"))


def _not_disabled(options: ConvertOptions, wanted: str, passes: Collection[str]) -> None:
    for name in passes:
        if name in options.disable:
            raise UsageError(f"{wanted}: needs the pass {name}, which --disable {name} leaves out")
