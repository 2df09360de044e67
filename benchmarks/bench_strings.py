"""String features: hashed or looked up in a vocabulary, whole predict call and op time, against stock TensorFlow.

Run: python -m benchmarks.bench_strings [--json FILE] [--models hash,vocabulary] [--arrays bytes,str,S,U]
  [--features 40] [--rows 256] [--rounds 60] [--threads 1]

F string features of one value per row: hashed into 100,000 buckets, or looked up in a vocabulary of 10,000 strings of
8 to 16 bytes (popularity Zipf 1.05, 2 % unknown); tables of width 16, tower 256-128-1. Contestants take turns in one
process: a dict of NumPy arrays in (object arrays of bytes or of str, fixed-width ``S16`` or ``U16``), NumPy arrays
out. Stock is the faster of the Session callable and tf.function, default grappler. Op time: RunMetadata, the fused op
against the sum of stock's ops from strings to the concatenated rows, in turn. Floors: whole call 2.5x (hash) and 3.5x
(vocabulary), op time 2x and 3x.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import tempfile
from typing import Any

import numpy as np

WIDTH, BUCKETS, VOCABULARY, UNKNOWN = 16, 100_000, 10_000, 0.02
FLOORS = {"hash": (2.5, 2.0), "vocabulary": (3.5, 3.0)}  # whole call, op time
Arrays = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--models", default="hash,vocabulary")
    parser.add_argument("--arrays", default="bytes,str,S,U", help="kinds of NumPy arrays")
    parser.add_argument("--features", type=int, default=40)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of each contestant")
    args = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    figures: dict[str, Any] = {"features": args.features, "rows": args.rows, "threads": args.threads}
    words = vocabularies(args.features)
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            figures[name] = _measure(pathlib.Path(scratch), name, words, args)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def vocabularies(features: int, size: int = VOCABULARY) -> list[list[bytes]]:
    """Per feature ``size`` different strings of 8 to 16 bytes."""
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)
    found = []
    for k in range(features):
        drawn = letters[rng.integers(0, len(letters), (size + size // 50, 16))]
        lengths = rng.integers(8, 17, len(drawn))
        texts = dict.fromkeys(row[:n].tobytes() for row, n in zip(drawn, lengths, strict=True))
        found.append(list(itertools.islice(texts, size)))
        assert len(found[k]) == size
    return found


def requests(words: list[list[bytes]], rows: int, seed: int = 1) -> Arrays:
    """One request: ``fK`` object [B] of bytes, Zipf over the vocabulary; 2 % are strings that it does not hold."""
    from benchmarks.models import zipf_ids

    rng = np.random.default_rng(seed)
    found = {}
    for k, known in enumerate(words):
        drawn = [known[i] for i in zipf_ids(rng, rows, len(known))]
        unknown = rng.random(rows) < UNKNOWN
        found[f"f{k}"] = np.array(
            [b"new" + text[:10] if new else text for text, new in zip(drawn, unknown, strict=True)], object
        )
    return found


def as_kind(arrays: Arrays, kind: str) -> Arrays:
    """The same strings as object arrays of ``bytes`` or ``str``, or as fixed-width ``S`` or ``U`` arrays."""
    if kind == "bytes":
        return arrays
    if kind == "S":
        return {name: array.astype("S16") for name, array in arrays.items()}
    texts = {name: np.array([t.decode() for t in array], object) for name, array in arrays.items()}
    return texts if kind == "str" else {name: array.astype("U16") for name, array in texts.items()}


def _save(folder: str, kind: str, words: list[list[bytes]]) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(2)
    rows = BUCKETS if kind == "hash" else len(words[0]) + 1
    module = tf.Module()
    module.tables = [
        tf.Variable(rng.random((rows, WIDTH), np.float32) - np.float32(0.5), name=f"emb_f{k}")
        for k in range(len(words))
    ]
    sizes = [len(words) * WIDTH, 256, 128, 1]
    module.kernels = [
        tf.Variable((rng.random((a, b), np.float32) - np.float32(0.5)) * np.float32((24 / a) ** 0.5))
        for a, b in itertools.pairwise(sizes)
    ]
    if kind == "vocabulary":
        module.vocabularies = [
            tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(tf.constant(known), tf.range(1, len(known) + 1, dtype=tf.int64)), 0
            )
            for known in words
        ]

    def serve(**x: tf.Tensor) -> dict[str, tf.Tensor]:
        found = []
        with tf.name_scope("emb"):
            for k, table in enumerate(module.tables):
                text = x[f"f{k}"]
                hashed = kind == "hash"
                ids = tf.strings.to_hash_bucket_fast(text, BUCKETS) if hashed else module.vocabularies[k].lookup(text)
                found.append(tf.nn.embedding_lookup(table, ids))
            h = tf.concat(found, 1)
        for k, kernel in enumerate(module.kernels):
            h = tf.matmul(h, kernel) if k == len(module.kernels) - 1 else tf.nn.relu(tf.matmul(h, kernel))
        return {"score": h}

    specs = {f"f{k}": tf.TensorSpec([None], tf.string, f"f{k}") for k in range(len(words))}
    function = tf.function(serve, autograph=False).get_concrete_function(**specs)
    tf.saved_model.save(module, folder, signatures={"serving_default": function})


def _measure(scratch: pathlib.Path, name: str, words: list[list[bytes]], args: argparse.Namespace) -> dict[str, Any]:
    import graph_opt
    import tfctr
    from tfctr.profiling.stock import StockFunction, StockSession

    model, bundle = str(scratch / "model"), str(scratch / "bundle")
    _save(model, name, words)
    lookups = tfctr.convert(model, bundle).as_dict()["signatures"]["serving_default"]["lookups"]
    kinds = {step.split(":")[0] for entry in lookups for step in entry.get("steps", ())}
    if {e["status"] for e in lookups} != {"fused"} or kinds != {"hash_fast" if name == "hash" else "vocab"}:
        raise SystemExit(f"{name}: not all lookups were fused with their strings: {lookups[:2]}")
    info = graph_opt.analyse(model)["signatures"]["serving_default"]
    session, function = StockSession(model, info, threads=args.threads), StockFunction(model, info, "serving_default")
    inputs, figure = requests(words, args.rows), {}
    with tfctr.ServingSession(bundle, intra_op_threads=args.threads) as served:
        want = session.predict(inputs)["score"]
        for kind in args.arrays.split(","):
            arrays = as_kind(inputs, kind)
            np.testing.assert_allclose(served.predict(arrays)["score"], want, rtol=1e-5, atol=1e-6)
            figure[kind] = _whole_call(name, kind, served, session, function, arrays, args.rounds)
        figure["op_time"] = _op_time(name, served, session, inputs, args.rounds)
    session.close()
    return figure


def _whole_call(name: str, kind: str, served: Any, session: Any, function: Any, arrays: Arrays, rounds: int) -> Any:
    from tfctr.profiling.paired import measure_paired, ratio

    timings = measure_paired(
        {
            "tfctr": lambda: served.predict(arrays),
            "stock Session": lambda: session.predict(arrays),
            "stock tf.function": lambda: function.predict(arrays),
        },
        rounds=rounds,
    )
    best = min((timings[n] for n in ("stock Session", "stock tf.function")), key=lambda t: t.median_ms)
    speedup, ours = ratio(best, timings["tfctr"]), timings["tfctr"]
    print(
        f"{name:>10} {kind:>5}: {best.name} {best.min_ms:.2f} / {best.median_ms:.2f} / {best.p99_ms:.2f} ms, "
        f"tfctr {ours.min_ms:.2f} / {ours.median_ms:.2f} / {ours.p99_ms:.2f} ms (min / median / p99), "
        f"{speedup['min']:.1f}x min, {speedup['median']:.1f}x median{_verdict(speedup['median'], FLOORS[name][0])}",
        flush=True,
    )
    return {"timings": {n: t.as_dict() for n, t in timings.items()}, "fastest_stock": best.name, "speedup": speedup}


def _op_time(name: str, served: Any, session: Any, inputs: Arrays, rounds: int) -> dict[str, Any]:
    from tfctr.profiling.stock import op_times_us

    samples: dict[str, list[float]] = {"tfctr": [], "stock": []}
    for r in range(-5, rounds):
        ours = sum(t for n, t in op_times_us(served.run_traced(inputs)[1]).items() if "/tfctr/" in f"/{n}")
        stock = sum(t for n, t in session.op_times_us(inputs).items() if "/emb/" in f"/{n}")
        if r >= 0:
            samples["tfctr"].append(ours)
            samples["stock"].append(stock)
    times = {who: np.array(taken) for who, taken in samples.items()}
    speedup = float(np.median(times["stock"] / times["tfctr"]))
    print(
        f"{name:>10} op time: stock {np.median(times['stock']):.0f} us, tfctr {np.median(times['tfctr']):.0f} us, "
        f"{speedup:.1f}x{_verdict(speedup, FLOORS[name][1])}",
        flush=True,
    )
    return {
        **{
            who: {"min_us": t.min(), "median_us": float(np.median(t)), "p99_us": float(np.percentile(t, 99))}
            for who, t in times.items()
        },
        "speedup": speedup,
    }


def _verdict(ratio: float, floor: float) -> str:
    return f" (floor {floor}x: {'held' if ratio >= floor else 'MISSED'})"


if __name__ == "__main__":
    main()
