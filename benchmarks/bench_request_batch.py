"""Cost of a batch before it runs: looking at a request, several requests as one, and what the step record adds to a
fused lookup.

Run: python -m benchmarks.bench_request_batch [--json FILE] [--features 40] [--rows 8] [--requests 8] [--rounds 300]

Requests of ragged features (0 to 3 ids a row), stacked in C++ (microseconds of one Concat and of one Inspect); then 40
lookups of a hash file, 3 of 4 keys known, with and without a record, turn by turn in pairs.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
from typing import Any

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--features", type=int, default=40)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=300)
    args = parser.parse_args()
    figures: dict[str, Any] = {"stacking": _stacking(args.features, args.rows, args.requests)}
    figures["record"] = {rows: _record(args.features, rows, args.rounds) for rows in (1, 512)}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def _stacking(features: int, rows: int, requests: int) -> dict[str, float]:
    from tfctr.core import library

    library.load()
    parts, described = [], []
    for k in range(features):
        described.append({"name": f"f{k}", "kind": "ragged", "values": 2 * k, "row_splits": [2 * k + 1]})
        for role in ("values", "row_splits"):
            name = f"f{k}/{role}"
            parts.append({"name": name, "tensor": name, "dtype": 9, "numpy": np.dtype(np.int64), "shape": [-1]})
    plan = library.native().Packer(
        {"context": "benchmark", "parts": parts, "features": described, "packed": None, "outputs": []}
    )
    random = np.random.default_rng(0)
    packed = []
    for _ in range(requests):
        request = {}
        for k in range(features):
            splits = np.cumsum([0, *random.integers(0, 4, rows)])
            request |= {f"f{k}/values": random.integers(0, 1000, splits[-1]), f"f{k}/row_splits": splits}
        packed.append(plan.pack(request))
    stack = library.native().Batcher(plan)
    stack.time_concat(packed, 1000)
    concat = sorted(stack.time_concat(packed, 100) * 1e6 for _ in range(50))
    inspect = sorted(stack.time_inspect(packed[0], 100) * 1e6 for _ in range(50))
    figures = {
        "concat_us": concat[len(concat) // 2],
        "concat_min_us": concat[0],
        "inspect_us": inspect[len(inspect) // 2],
    }
    print(
        f"{requests} requests of {rows} rows x {features} ragged features: concat {figures['concat_us']:.1f} us "
        f"(min {figures['concat_min_us']:.1f}), inspect {figures['inspect_us']:.2f} us each",
        flush=True,
    )
    return figures


def _record(features: int, rows: int, rounds: int) -> dict[str, Any]:
    import tensorflow as tf

    from graph_opt.lookup_spec import LookupSpec, OutputSpec, Placement, Step, spec_text
    from tfctr.core import library
    from tfctr.profiling.paired import measure_paired

    ops, native = library.load(), library.native()
    random = np.random.default_rng(0)
    keys = np.unique(random.integers(0, 2**60, 100_000))
    with tempfile.TemporaryDirectory() as scratch:
        file = f"{scratch}/table.hash"
        native.build_hash_table(file, "table", keys, np.ones((len(keys), 16), np.float32), np.zeros(16, np.float32))
        store = ops.TfctrStore(container="", shared_name=f"bench_request_batch_{rows}")
        ops.TfctrStoreOpen(store=store, filenames=[file], kinds=["hash"], fingerprints=[""])
    ids = [
        tf.constant(np.where(random.random(rows) < 0.75, random.choice(keys, rows), random.integers(0, 2**60, rows)))
        for _ in range(features)
    ]
    lookups = [
        (
            LookupSpec(
                name=f"f{k}", table=0, table_rows=0, table_width=16, table_dtype="float32", ids=f"ids{k}",
                form="dense", steps=(Step("find"),),
            ),
            Placement(0, 16 * k),
        )
        for k in range(features)
    ]  # fmt: skip
    output = OutputSpec(form="rows", columns=16 * features, dtype="float32")
    spec = spec_text(lookups, [output], {f"ids{k}": f"arg:{k}" for k in range(features)}, ())
    empty = (np.zeros(0, np.uint8), np.zeros(0, np.int64), tf.constant([], tf.string))

    @tf.function
    def chain() -> Any:
        """Ten times, so that one call's own cost hardly counts."""
        made = []
        for _ in range(10):
            with tf.control_dependencies(made):
                made += ops.TfctrFusedLookup(
                    store=store, arena=empty[0], shapes=empty[1], strings=empty[2], args=ids, spec=spec, layout=[],
                    Tout=[tf.float32],
                )  # fmt: skip
        return made[-1]

    def with_record() -> None:
        with record:
            run()

    run = chain.get_concrete_function()
    record = native.StepRecord()
    with record:
        run()
    seen = record.read()
    if not seen["tables"]:  # tf.function runs ops on other threads than the caller's
        return _record_eager(ops, store, empty, ids, spec, rounds, rows)
    timings = measure_paired({"without": run, "with": with_record}, rounds=rounds)
    return _report(timings, rows, 10)


def _record_eager(ops: Any, store: Any, empty: Any, ids: Any, spec: str, rounds: int, rows: int) -> dict[str, Any]:
    import tensorflow as tf

    from tfctr.core import library
    from tfctr.profiling.paired import measure_paired

    record = library.native().StepRecord()

    def run() -> None:
        for _ in range(10):
            ops.TfctrFusedLookup(
                store=store, arena=empty[0], shapes=empty[1], strings=empty[2], args=ids, spec=spec, layout=[],
                Tout=[tf.float32],
            )  # fmt: skip

    def with_record() -> None:
        with record:
            run()

    return _report(measure_paired({"without": run, "with": with_record}, rounds=rounds), rows, 10)


def _report(timings: Any, rows: int, runs: int) -> dict[str, Any]:
    without, with_it = timings["without"], timings["with"]
    ratio = with_it.median_ms / without.median_ms
    print(
        f"fused lookup, {rows:4d} rows: {without.median_ms * 1e3 / runs:8.2f} us a run without a record, "
        f"{with_it.median_ms * 1e3 / runs:8.2f} with one, ratio {ratio:.4f} "
        f"(min {with_it.min_ms / without.min_ms:.4f})",
        flush=True,
    )
    return {"without": without.as_dict(), "with": with_it.as_dict(), "ratio": ratio}


if __name__ == "__main__":
    main()
