"""What a delta of 10k rows costs a table of 5M rows: a new version on disk, and new tables in a running session.

Run: python -m benchmarks.bench_deltas [--json FILE] [--rows 5000000] [--dim 16] [--changed 10000] [--rounds 9]
  [--folder DIR]

A model with one embedding variable and one static table is converted; then its hash file is replaced by one with
--rows keys. Each delta has --changed rows of it (half of them new keys) and a tenth of that of removed keys. In turn,
in one process, after a round that is not counted:

  disk, first    bundle -> version with one overlay (`apply_delta`, everything synced)
  disk, next     version k -> version k + 1 of a chain: the overlay of before is merged
  memory, next   `ServingSession.apply_deltas` along the same chain

Beside it: bytes on disk that are not hard links, growth of the process by the session's overlays, and the times of
`predict` calls of one row in another thread, with and without deltas being applied.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import shutil
import statistics
import tempfile
import threading
import time
from typing import Any

import numpy as np

FLOOR_MS = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--changed", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", help="where to work (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        figures = _measure(pathlib.Path(scratch), args)
    for name in ("disk_first_ms", "disk_next_ms", "memory_next_ms"):
        low, median, high = figures[name]
        verdict = "holds" if median <= FLOOR_MS else "MISSED"
        print(
            f"{name:<16} min {low:7.1f}  median {median:7.1f}  max {high:7.1f} ms   floor {FLOOR_MS:.0f} ms: {verdict}"
        )
    for name in ("delta_bytes", "disk_first_bytes", "disk_last_bytes", "session_grows_bytes", "table_bytes"):
        print(f"{name:<20} {figures[name] / 1e6:10.2f} MB")
    for name in ("predict_alone_us", "predict_meanwhile_us"):
        print(f"{name:<20} median {figures[name][0]:.0f}  p99 {figures[name][1]:.0f}  max {figures[name][2]:.0f}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def _measure(folder: pathlib.Path, args: argparse.Namespace) -> dict[str, Any]:
    import tfctr

    bundle, keys = _bundle(folder, args)
    deltas = _deltas(folder, bundle, keys, args)
    first, following, memory = [], [], []
    sizes: list[int] = []
    before = bundle
    session = tfctr.ServingSession(bundle)
    start = _resident()
    for number, delta in enumerate(deltas):
        out = folder / f"first{number}"
        first.append(_timed(lambda out=out: tfctr.apply_delta(bundle, deltas[0], out)))
        shutil.rmtree(out)
        version = folder / f"version{number}"
        following.append(_timed(lambda v=version, b=before, d=delta: tfctr.apply_delta(b, d, v)))
        sizes.append(_own_bytes(version))
        before = version
        memory.append(_timed(lambda d=delta: session.apply_deltas(d)))
    gc.collect()
    grown = _resident() - start
    alone, meanwhile = _latency(bundle, deltas)
    return {
        "rows": args.rows,
        "dim": args.dim,
        "changed": args.changed,
        "rounds": len(deltas) - 1,
        "disk_first_ms": _spread(first[1:]),
        "disk_next_ms": _spread(following[1:]),
        "memory_next_ms": _spread(memory[1:]),
        "delta_bytes": sum(p.stat().st_size for p in deltas[0].rglob("*") if p.is_file()),
        "disk_first_bytes": sizes[0],
        "disk_last_bytes": sizes[-1],
        "session_grows_bytes": grown,
        "table_bytes": max(p.stat().st_size for p in bundle.rglob("*.hash")),
        "predict_alone_us": alone,
        "predict_meanwhile_us": meanwhile,
    }


def _bundle(folder: pathlib.Path, args: argparse.Namespace) -> tuple[pathlib.Path, np.ndarray]:
    """A converted model whose hash file has --rows keys."""
    import tensorflow as tf

    import tfctr
    from tfctr.bundle import manifest as manifests
    from tfctr.bundle import naming
    from tfctr.bundle.deltas.graph import over_files
    from tfctr.core import library

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users = tfctr.EmbeddingVariable(args.dim, "users", optimizer=tfctr.optimizers.SGD(0.1))
            self.users.lookup(tf.range(100, dtype=tf.int64), training=True)
            self.items = tf.Variable(tf.random.normal([1000, args.dim]), name="items")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, n) for n in ("user", "item")])
        def serve(self, user: tf.Tensor, item: tf.Tensor) -> dict[str, tf.Tensor]:
            product = tfctr.embedding_lookup(self.users, user) * tf.gather(self.items, item)
            return {"score": tf.reduce_sum(product, 1)}

    model = Model()
    tf.saved_model.save(model, str(folder / "model"), signatures=model.serve)
    bundle = folder / "bundle"
    tfctr.convert(folder / "model", bundle, dense="tensorflow")
    content = manifests.read(bundle)
    entry = next(e for e in content["store"]["files"] if e["kind"] == "hash")
    path = bundle / entry["file"]
    random = np.random.default_rng(1)
    keys = np.unique(random.integers(-(2**63), 2**63 - 1, args.rows + args.rows // 100, dtype=np.int64))[: args.rows]
    random.shuffle(keys)
    rows = random.standard_normal((len(keys), args.dim), np.float32)
    path.unlink()
    library.native().build_hash_table(path, entry["name"], keys, rows)
    info = library.native().file_info(path)
    entry |= {key: info[name] for key, name in (("bytes", "file_bytes"), ("fingerprint", "fingerprint"))}
    entry["shape"] = list(info["shape"])
    graph = bundle / naming.MODEL
    store = content["store"]
    graph.write_bytes(over_files(graph.read_bytes(), store["files"], store["shared_name"], str(graph)))
    content["model"] |= {"bytes": graph.stat().st_size, "sha256": manifests.file_hash(graph)}
    (bundle / naming.MANIFEST).write_bytes(manifests.dump(content))
    os.sync()
    return bundle, keys


def _deltas(
    folder: pathlib.Path, bundle: pathlib.Path, keys: np.ndarray, args: argparse.Namespace
) -> list[pathlib.Path]:
    """A chain of --rounds + 1 deltas."""
    from tfctr.bundle import manifest as manifests
    from tfctr.bundle.deltas.delta_writer import DeltaWriter
    from tfctr.bundle.deltas.identity import version_of
    from tfctr.core import library

    content = manifests.read(bundle)
    entry = next(e for e in content["store"]["files"] if e["kind"] == "hash")
    version, made = version_of(content, str(bundle)), []
    random = np.random.default_rng(2)
    for number in range(args.rounds + 1):
        picked = random.choice(keys, args.changed // 2 + args.changed // 10, replace=False)
        fresh = random.integers(-(2**63), 2**63 - 1, args.changed - args.changed // 2, dtype=np.int64)
        given = np.unique(np.concatenate([picked[: args.changed // 2], fresh]))
        removed = np.setdiff1d(picked[args.changed // 2 :], given)
        rows = random.standard_normal((len(given), args.dim), np.float32)
        with DeltaWriter(folder / f"delta{number}", version) as writer:
            path = writer.table_path(entry["index"], entry["name"])
            library.native().write_delta_file(
                path, entry["name"], given, rows, removed, hashed=True, dtype="float32", width=args.dim
            )
            writer.add_table(
                index=entry["index"], kind="hash", name=entry["name"], rows=len(given), removed=len(removed)
            )
            delta = writer.commit({"kind": "generated"})
        version = version.followed_by(delta.entry())
        made.append(delta.path)
    return made


def _latency(bundle: pathlib.Path, deltas: list[pathlib.Path]) -> tuple[list[float], list[float]]:
    """Microseconds of calls of one row: alone, and while all deltas are applied one after the other."""
    import tfctr

    request = {"user": np.array([1], np.int64), "item": np.array([2], np.int64)}
    found = []
    for applied in ([], deltas):
        with tfctr.ServingSession(bundle) as session:
            for _ in range(200):
                session.predict(request)
            times: list[float] = []
            done = threading.Event()

            def ask(session: Any = session, times: list[float] = times, done: threading.Event = done) -> None:
                while not done.is_set():
                    begin = time.perf_counter()
                    session.predict(request)
                    times.append((time.perf_counter() - begin) * 1e6)

            thread = threading.Thread(target=ask)
            thread.start()
            for delta in applied:
                session.apply_deltas(delta)
            if not applied:
                time.sleep(0.5)
            done.set()
            thread.join()
        found.append([statistics.median(times), float(np.percentile(times, 99)), max(times)])
    return found[0], found[1]


def _timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def _spread(times: list[float]) -> list[float]:
    return [min(times), statistics.median(times), max(times)]


def _own_bytes(folder: pathlib.Path) -> int:
    """Of files that have no other name."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and p.stat().st_nlink == 1)


def _resident() -> int:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
