"""How long it takes to find what changed in a table: N rows of DIM, some of them changed.

python -m benchmarks.bench_delta_rows [--rows 5000000] [--dim 16] [--changed 10000] [--repeats 5]

A checkpoint of an embedding variable (64K-row slices, as training writes them) against the hash file of the state
before, by rows and by last step, in turn; a static table the same way. Peak memory is that of this process beyond what
it had before the comparison, mapped pages of the served table not counted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SLICE = 65536


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--changed", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    from tfctr.core import library

    library.load()
    native = importlib.import_module("tfctr.core._native")
    with tempfile.TemporaryDirectory() as folder:
        run(native, Path(folder), args)


def run(native: Any, folder: Path, args: argparse.Namespace) -> None:
    random = np.random.default_rng(0)
    keys = np.unique(random.integers(-(2**62), 2**62, args.rows))
    random.shuffle(keys)
    values = random.normal(size=(len(keys), args.dim)).astype(np.float32)
    steps = np.full(len(keys), 50, np.int64)
    base = save(folder / "base", keys, values, steps, 100)
    native.build_hash_table_from_checkpoint(base, "users", folder / "users.hash", name="users")
    native.copy_tensor_to_table(base, "users/values", folder / "items.table", "items")
    changed = random.choice(len(keys), args.changed, replace=False)
    values[changed] += 1
    steps[changed] = 120
    order = random.permutation(len(keys))
    new = save(folder / "new", keys[order], values[order], steps[order], 130)
    static = save(folder / "static", keys, values, steps, 130)
    embedding = [{"kind": "embedding", "path": new, "key": "users"}]
    tensor = [{"kind": "tensor", "path": static, "key": "users/values", "first": 0, "stride": 1}]
    runs = {
        "embedding variable, by rows": ("hash", "users.hash", embedding, {}),
        "embedding variable, by last step": ("hash", "users.hash", embedding, {"base_step": 100, "trust": True}),
        "static table": ("table", "items.table", tensor, {}),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.repeats):
        for name, (kind, file, sources, how) in runs.items():
            before = anonymous()
            start, cpu = time.perf_counter(), time.process_time()
            found = native.diff_table(
                kind, folder / file, None, folder / "out.delta", sources, "float32", args.dim, **how
            )
            times[name].append(time.perf_counter() - start)
            assert found["changed"] == args.changed, found
            told = f"{times[name][-1] * 1000:.0f} ms, {(time.process_time() - cpu) * 1000:.0f} ms of CPU"
            print(f"{name}: {told}, {(anonymous() - before) / 1e6:+.0f} MB", flush=True)
    print(
        f"{len(keys):,} rows of {args.dim}, {args.changed:,} changed, {(folder / 'out.delta').stat().st_size:,} bytes"
    )
    for name, found in times.items():
        print(f"{name}: min {min(found) * 1000:.0f} ms, median {statistics.median(found) * 1000:.0f} ms")


def anonymous() -> int:
    """Bytes of this process that are no mapped file."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


def save(prefix: Path, keys: np.ndarray, values: np.ndarray, steps: np.ndarray, step: int) -> Path:
    """A checkpoint of the table ``users``."""
    import tensorflow as tf

    import tfctr

    table = tfctr.EmbeddingVariable(values.shape[1], "users", optimizer=tfctr.optimizers.SGD(0.1))
    with tempfile.TemporaryDirectory() as other:
        path = tf.train.Checkpoint(users=table).write(f"{other}/ckpt")
        config = json.loads(tf.train.load_checkpoint(path).get_tensor("users/config"))
    names, slices, tensors = ["users/config"], [""], [tf.constant(json.dumps({**config, "step": str(step)}))]
    for name, column in (("keys", keys), ("values", values), ("last_step", steps)):
        for at in range(0, len(keys), SLICE):
            piece = column[at : at + SLICE]
            names.append(f"users/{name}")
            rest = ":-" if column.ndim == 2 else ""
            slices.append(f"{' '.join(map(str, column.shape))} {at},{len(piece)}{rest}")
            tensors.append(tf.constant(piece))
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=slices, tensors=tensors)
    return prefix


if __name__ == "__main__":
    main()
