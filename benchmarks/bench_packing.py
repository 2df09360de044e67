"""Fixed cost of a request: packing a dict of arrays, and a whole call through a graph that does next to nothing.

Run: python -m benchmarks.bench_packing [--json FILE] [--features 40] [--rows 1,32,256] [--rounds 300]

F sparse features of 1-3 ids per row are 3F int64 arrays. The graph reads one of them. Contestants take turns: packing
alone, a packed call, the same graph fed tensor by tensor from C++, and a stock Session callable.

Then packing alone of 100 inputs [B] of int64, 70 of them the user's, for 500 candidates: all given at 500 rows, the
user's given once to a split form, and given once but repeated by the packer.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--features", type=int, default=40)
    parser.add_argument("--rows", default="1,32,256")
    parser.add_argument("--rounds", type=int, default=300)
    args = parser.parse_args()
    figures: dict[str, Any] = {"features": args.features, "rows": {}}
    with tempfile.TemporaryDirectory() as scratch:
        model, packed = pathlib.Path(scratch) / "model", pathlib.Path(scratch) / "packed"
        _save(model, args.features, packed=False)
        _save(packed, args.features, packed=True)
        for rows in (int(n) for n in args.rows.split(",")):
            figures["rows"][rows] = _measure(model, packed, args.features, rows, args.rounds)
    figures["users"] = _measure_users(args.rounds)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def _names(features: int) -> list[str]:
    return sorted(f"f{k}/{role}" for k in range(features) for role in ("values", "indices", "dense_shape"))


def _save(path: pathlib.Path, features: int, *, packed: bool) -> None:
    """A graph that doubles one feature's values, taking its inputs packed or one by one."""
    import tensorflow as tf

    from tfctr.core import library

    v1, ops = tf.compat.v1, library.load()
    shape = {"values": [None], "indices": [None, 2], "dense_shape": [2]}
    names = _names(features)
    with tf.Graph().as_default(), v1.Session() as session:
        if packed:
            inputs = {"arena": v1.placeholder(tf.uint8, [None]), "shapes": v1.placeholder(tf.int64, [None])}
            strings = tf.constant([], tf.string, shape=[0])
            first = ops.tfctr_unpack(
                inputs["arena"],
                inputs["shapes"],
                strings,
                layout=[tf.int64] * len(names),
                emit=[names.index("f0/values")],
                Tout=[tf.int64],
            )[0]
        else:
            inputs = {name: v1.placeholder(tf.int64, shape[name.split("/")[1]]) for name in names}
            first = inputs["f0/values"]
        signature = v1.saved_model.predict_signature_def(inputs, {"doubled": first * 2})
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()


def _request(features: int, rows: int) -> Arrays:
    random = np.random.default_rng(0)
    request: Arrays = {}
    for k in range(features):
        counts = random.integers(1, 4, rows)
        row = np.repeat(np.arange(rows), counts)
        column = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        request[f"f{k}/values"] = random.integers(0, 100_000, len(row))
        request[f"f{k}/indices"] = np.ascontiguousarray(np.stack([row, column], 1))
        request[f"f{k}/dense_shape"] = np.array([rows, counts.max()])
    return request


def _measure(model: pathlib.Path, packed: pathlib.Path, features: int, rows: int, rounds: int) -> dict[str, Any]:
    import tensorflow as tf

    import tfctr
    from tfctr.core import library
    from tfctr.profiling.paired import measure_paired
    from tfctr.serving import feature_map

    request = _request(features, rows)
    native, v1 = library.native(), tf.compat.v1
    with tfctr.ServingSession(model) as session, tf.Graph().as_default(), v1.Session() as stock:
        signature = v1.saved_model.load(stock, ["serve"], str(model)).signature_def["serving_default"]
        names = _names(features)
        call = stock.make_callable(signature.outputs["doubled"].name, [signature.inputs[n].name for n in names])
        with tfctr.ServingSession(packed) as small:
            # The description of the real inputs, with the packed model's tensors: what a bundle's session builds.
            plan = feature_map.describe(
                "benchmark",
                _info(session),
                (),
                {"arena": small.inputs[0].tensor, "shapes": small.inputs[1].tensor, "strings": None},
                small.outputs,
            )
            predictor = native.Predictor(small._model, plan)
            want = request["f0/values"] * 2
            for got in (predictor.predict(request), session.predict(request)):
                np.testing.assert_array_equal(got["doubled"], want)
            timings = measure_paired(
                {
                    "pack": lambda: predictor.pack(request),
                    "packed call": lambda: predictor.predict(request),
                    "fed one by one in C++": lambda: session.predict(request),
                    "stock Session callable": lambda: call(*[request[n] for n in names]),
                },
                rounds=rounds,
            )
    for name, timing in timings.items():
        print(
            f"{3 * features} arrays, {rows:4d} rows  {name:24s} min {timing.min_ms * 1e3:8.1f} us"
            f"  median {timing.median_ms * 1e3:8.1f}  p99 {timing.p99_ms * 1e3:8.1f}",
            flush=True,
        )
    return {name: timing.as_dict() for name, timing in timings.items()}


def _measure_users(rounds: int, inputs: int = 100, users: int = 70, candidates: int = 500) -> dict[str, Any]:
    from tfctr.core import library
    from tfctr.profiling.paired import measure_paired

    names = [f"feature_{k:03d}" for k in range(inputs)]
    parts = [{"name": n, "tensor": f"{n}:0", "dtype": 9, "numpy": np.dtype(np.int64), "shape": [-1]} for n in names]
    once = list(range(users))
    form = {"parts": list(range(inputs + 1)), "tensors": [*names, ""], "once": once, "packed": None, "outputs": []}
    description = {"context": "benchmark", "parts": parts, "features": [], "packed": None, "outputs": []}
    declared = {"parts": once, "row_to_user": "row_to_user", "split": None}
    packer = library.native().Packer
    plain = packer(description)
    split = packer({**description, "users": {**declared, "split": form}})
    repeat = packer({**description, "users": declared})
    rows = np.arange(candidates)
    whole = dict.fromkeys(names, rows)
    given = {**whole, **dict.fromkeys(names[:users], rows[:1])}
    timings = measure_paired(
        {
            "all rows given": lambda: plain.pack(whole),
            "user once, split form": lambda: split.pack(given),
            "user once, repeated": lambda: repeat.pack(given),
        },
        rounds=rounds,
        warmup_rounds=50,
    )
    for name, timing in timings.items():
        print(
            f"pack {inputs} inputs, {users} of the user, {candidates} rows  {name:21s} "
            f"min {timing.min_ms * 1e3:6.1f} us  median {timing.median_ms * 1e3:6.1f}",
            flush=True,
        )
    return {name: timing.as_dict() for name, timing in timings.items()}


def _info(session: Any) -> Any:
    """Inputs, outputs and features of a session, as feature_map takes them."""
    from tfctr.serving.signature_info import SignatureInfo

    return SignatureInfo(session.inputs, session.outputs, session.features)


if __name__ == "__main__":
    main()
