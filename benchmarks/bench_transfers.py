"""What crosses between the sparse and the dense device in one call, and what a call costs, for five CTR models.

Run: python -m benchmarks.bench_transfers [--json FILE] [--rows 512] [--users 0] [--rounds 100]

The devices are two logical CPU devices, so a transfer costs next to nothing here: tensors and bytes are what this
measures, the milliseconds only say what packing and unpacking cost on top. One device: no device map. Placed: with
lookups_first and place_devices. Merged: with merge_transfers too. Transfers are read off the partition graphs of a run
with default grappler; times are of whole calls, from NumPy to NumPy, on our executor with one thread, in turns.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
from typing import Any

import numpy as np

CONTESTANTS: dict[str, dict[str, Any]] = {
    "one device": {"disable": ("lookups_first",)},
    "placed": {"device_map": {"sparse": "/CPU:0", "dense": "/CPU:1"}, "disable": ("merge_transfers",)},
    "merged": {"device_map": {"sparse": "/CPU:0", "dense": "/CPU:1"}},
}
VOCABULARY, WIDTH, HIDDEN = 100_000, 16, (256, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--models", default="", help="names, comma-separated; default: all five")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--users", type=int, default=0, help="users of a request in the split form; 0: the plain form")
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    from examples.models import REFERENCE_MODELS

    names = args.models.split(",") if args.models else list(REFERENCE_MODELS)
    figures: dict[str, Any] = {"rows": args.rows, "users": args.users, "models": {}}
    print("| model | | to dense: tensors / bytes | waits | back: tensors / bytes | ms min / median / p99 |")
    print("|---|---|---|---|---|---|")
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            figures["models"][name] = _measure(name, pathlib.Path(scratch), args)
        for contestant, row in figures["models"][name].items():
            print(_line(name, contestant, row), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def _line(name: str, contestant: str, row: dict[str, Any]) -> str:
    there, back, time = row["to_dense"], row["back"], row["ms"]
    return (
        f"| {name} | {contestant} | {there['transfers']} / {there['bytes']:,} | {there['waits']} | "
        f"{back['transfers']} / {back['bytes']:,} | "
        f"{time['min_ms']:.2f} / {time['median_ms']:.2f} / {time['p99_ms']:.2f} |"
    )


def _measure(name: str, folder: pathlib.Path, args: argparse.Namespace) -> dict[str, Any]:
    """Figures by contestant."""
    import contextlib

    import tfctr
    from examples.models import REFERENCE_MODELS, USER_FEATURES
    from tfctr.profiling.paired import measure_paired
    from tfctr.serving.executor_config import ExecutorOptions, executor_setups

    REFERENCE_MODELS[name](VOCABULARY, WIDTH, HIDDEN).save(str(folder / "model"))
    users = USER_FEATURES[name] if args.users else ()
    setup = executor_setups(ExecutorOptions(dense_device_type="CPU"))[0]
    request = _request(name, args)
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        calls = {}
        for contestant, options in CONTESTANTS.items():
            report = tfctr.convert(folder / "model", folder / contestant, user_features=users, **options)
            found[contestant] = _count(report.path, report.manifest, request, args)
            session = stack.enter_context(tfctr.ServingSession(report.path, **setup.arguments()))
            calls[contestant] = lambda s=session: s.predict(request)  # type: ignore[misc]
        for contestant, timing in measure_paired(calls, args.rounds).items():
            found[contestant]["ms"] = timing.as_dict()
    return found


def _request(name: str, args: argparse.Namespace) -> dict[str, np.ndarray]:
    from examples.models import requests

    request = requests(name, args.rows, 1, users=args.users or None, vocabulary=VOCABULARY)
    if args.users > 1:
        request["row_to_user"] = np.arange(args.rows) % args.users
    return dict(request)


def _count(path: pathlib.Path, manifest: Any, request: dict[str, np.ndarray], args: argparse.Namespace) -> Any:
    """Transfers of one call, from the partition graphs."""
    import dataclasses

    import tensorflow as tf

    from tfctr.profiling.transfers import Count, count_transfers

    v1, signature = tf.compat.v1, "serving_default"
    if args.users:
        split = manifest["signatures"][signature]["split"]
        signature = split["signature"]
        whose = np.arange(args.rows) % args.users
        request = {**request, split["row_to_user"]: whose}
    metadata = v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
    config = v1.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        info = v1.saved_model.loader.load(session, ["serve"], str(path)).signature_def[signature]
        feeds = {info.inputs[key].name: value for key, value in request.items()}
        session.run([t.name for t in info.outputs.values()], feeds, options, metadata)
    counts = count_transfers(metadata)
    ends = {"to_dense": ("CPU:0", "CPU:1"), "back": ("CPU:1", "CPU:0")}
    return {key: dataclasses.asdict(counts.get(end, Count())) for key, end in ends.items()}


if __name__ == "__main__":
    main()
