"""Frozen embedding variables in service: hash files against the live table and against static tables; overlays.

Run: python -m benchmarks.bench_serving_table [--quick] [--rows 1000000,10000000] [--dims 16,64] [--rounds 60]
     [--batch 100000] [--threads 1] [--clock wall|cpu] [--whole 40x256] [--no-whole] [--json FILE]

Two parts, contestants in turn in one process, each on its own batch of a ring, page cache warm:
  lookup  one op over one table, uniform and Zipf 1.05 ids that all have a row: TfctrEvLookup on the table it was frozen
          from, TfctrFusedLookup on the hash file (mapped, and copied to huge pages), on the same with an overlay of 1 %
          of the rows, and on a static table of the same rows, without and with such an overlay
  whole   ServingSession.predict of a model of F features of 1-3 Zipf ids (100,000 rows x 16, mean, tower 256-128-1)
          with embedding variables, against the same model with static tables
Floors: the mapped hash file at least 1.0 times the live table; whole call at most 1.1 times the static one; an overlay
of 1 % at most 5 % slower.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import tempfile
from typing import Any

import numpy as np

from benchmarks.embedding_duel import CLOCKS, Run, duel, machine, now, ratio, times_line, use_clock, write_json
from benchmarks.embedding_keys import BATCH, keys_of, lookup_rows
from benchmarks.embedding_tables import EvTable, configure

RING, ZIPF, OVERLAID = 16, 1.05, 100  # every so many rows are in the overlay


class ServedLookup:
    """One TfctrFusedLookup over one file of a store. ``run(ids) -> seconds``."""

    def __init__(self, file: pathlib.Path, rows: int, dim: int, hashed: bool, overlay: pathlib.Path | None, huge: bool):
        import tensorflow as tf

        from graph_opt.lookup_spec import LookupSpec, OutputSpec, Placement, Step, spec_text
        from tfctr.core import library

        ops, native = library.load(), library.native()
        spec = LookupSpec(
            name="f",
            table=0,
            table_rows=0 if hashed else rows,
            table_width=dim,
            table_dtype="float32",
            form="dense",
            ids="ids:0",
            steps=(Step("find"),) if hashed else (),
        )
        output = OutputSpec(form="like", columns=dim, dtype="float32")
        text = spec_text([(spec, Placement(0, 0))], [output], {"ids:0": "arg:0"})
        self._store = store = ops.TfctrStore(container="", shared_name=f"{file} {overlay} {huge}")
        before = native.table_memory()
        native.set_table_memory("huge_pages" if huge else "mapped")
        ops.TfctrStoreOpen(store=store, filenames=[str(file)], kinds=["hash" if hashed else "table"], fingerprints=[""])
        if overlay is not None:
            ops.TfctrStoreOverlay(
                store=store, indices=tf.constant([0], tf.int64), filenames=tf.constant([str(overlay)])
            )
        native.set_table_memory(before)
        nothing = {
            "arena": tf.zeros([0], tf.uint8),
            "shapes": tf.zeros([0], tf.int64),
            "strings": tf.zeros([0], "string"),
        }

        @tf.function(autograph=False)
        def lookup(ids: Any) -> Any:
            return ops.TfctrFusedLookup(
                store=store, args=[ids], spec=text, layout=[], Tout=[tf.float32], **nothing
            )[0]  # fmt: skip

        self._lookup = lookup

    def run(self, ids: Any) -> float:
        begin = now()
        self._lookup(ids)
        return now() - begin

    def values(self, ids: Any) -> np.ndarray:
        return self._lookup(ids).numpy()


def write_files(ev: EvTable, rows: int, dim: int, folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """The hash file and the static table of a live table's rows, and an overlay of 1 % of them for each."""
    import tensorflow as tf

    from tfctr.core import library

    native = library.native()
    values = np.concatenate(
        [ev.values(tf.constant(keys_of(np.arange(b, min(rows, b + 100_000))))) for b in range(0, rows, 100_000)]
    )
    keys = keys_of(np.arange(rows))
    files = {name: folder / name for name in ("hash", "static", "hash.overlay", "static.overlay")}
    native.build_hash_table(str(files["hash"]), "t", keys, values, np.zeros(dim, np.float32))
    native.write_table(str(files["static"]), "t", values)
    changed = np.arange(0, rows, OVERLAID)
    for name in ("hash", "static"):
        hashed = name == "hash"
        delta, overlay = str(folder / f"{name}.delta"), str(files[f"{name}.overlay"])
        native.write_delta_file(
            delta, "t", keys[changed] if hashed else changed, values[changed], np.zeros(0, np.int64),
            hashed=hashed, dtype="float32", width=dim, table_rows=0 if hashed else rows,
        )  # fmt: skip
        native.build_overlay(overlay, str(files[name]), None, [delta])
    return files


def measure_lookup(rows: int, dim: int, batch: int, rounds: int, folder: pathlib.Path) -> list[dict[str, Any]]:
    """One size of table: every contestant, both popularities."""
    import tensorflow as tf

    live = EvTable(rows, dim)
    files = write_files(live, rows, dim, folder)
    served = {
        "hash": ServedLookup(files["hash"], rows, dim, True, None, False),
        "hash huge": ServedLookup(files["hash"], rows, dim, True, None, True),
        "hash overlay": ServedLookup(files["hash"], rows, dim, True, files["hash.overlay"], False),
        "static": ServedLookup(files["static"], rows, dim, False, None, False),
        "static overlay": ServedLookup(files["static"], rows, dim, False, files["static.overlay"], False),
    }
    points = []
    for popularity, exponent in (("uniform", None), ("zipf", ZIPF)):
        drawn = lookup_rows(rows, exponent, RING, batch)
        keys = [live.batch(r) for r in drawn]
        numbers = [tf.constant(r) for r in drawn]
        want = live.values(keys[0])
        runs: dict[str, Run] = {"live": lambda k, keys=keys: live.run(keys[k])}
        for name, table in served.items():
            ids = keys if name.startswith("hash") else numbers
            if not np.array_equal(table.values(ids[0]), want):
                raise AssertionError(f"{name} gives other rows")
            runs[name] = lambda k, table=table, ids=ids: table.run(ids[k])
        found = duel(runs, rounds, warmup=RING, batches=RING)
        point: dict[str, Any] = {"rows": rows, "dim": dim, "popularity": popularity, "batch": batch}
        point |= {name: times.as_dict() for name, times in found.items()}
        point["live_over_hash"] = ratio(found["live"], found["hash"])
        point["hash_over_huge"] = ratio(found["hash"], found["hash huge"])
        point["hash_over_static"] = ratio(found["hash"], found["static"])
        point["hash_overlay_over_none"] = ratio(found["hash overlay"], found["hash"])
        point["static_overlay_over_none"] = ratio(found["static overlay"], found["static"])
        points.append(point)
        for name, times in found.items():
            print(times_line(f"{rows / 1e6:g}M x {dim} {popularity}", name, times, batch / 1e6))
        for name in (n for n in point if "_over_" in n):
            print(f"{'':<26}{name:<26} " + " ".join(f"{k} {v:.3f}" for k, v in point[name].items()), flush=True)
    return points


def save_models(features: int, folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """The baseline model, and the same with embedding variables of the same rows."""
    import tensorflow as tf

    import tfctr
    from benchmarks.models import VOCABULARY, WIDTH

    class Ranker(tf.Module):
        def __init__(self, tables: list[Any], lookup: Any):
            super().__init__()
            self.tables, self._lookup = tables, lookup
            random = np.random.default_rng(5)
            shapes = [(features * WIDTH, 256), (256, 128), (128, 1)]
            self.kernels = [tf.Variable(random.normal(0, s[0] ** -0.5, s).astype(np.float32)) for s in shapes]

        def serve(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
            ids = [tf.SparseTensor(x[f"f{k}_indices"], x[f"f{k}_values"], x[f"f{k}_shape"]) for k in range(features)]
            hidden = tf.concat([self._lookup(t, i) for t, i in zip(self.tables, ids, strict=True)], 1)
            for kernel in self.kernels[:-1]:
                hidden = tf.nn.relu(hidden @ kernel)
            return {"score": tf.sigmoid(hidden @ self.kernels[-1])}

    inputs: dict[str, Any] = {}
    for k in range(features):
        inputs[f"f{k}_indices"] = tf.TensorSpec([None, 2], tf.int64, f"f{k}_indices")
        inputs[f"f{k}_values"] = tf.TensorSpec([None], tf.int64, f"f{k}_values")
        inputs[f"f{k}_shape"] = tf.TensorSpec([2], tf.int64, f"f{k}_shape")
    evs = [tfctr.EmbeddingVariable(WIDTH, f"t{k}", initializer=tfctr.Uniform(-0.05, 0.05)) for k in range(features)]
    every = tf.range(VOCABULARY, dtype=tf.int64)
    statics = [tf.Variable(tfctr.embedding_lookup(ev, every, training=True)) for ev in evs]
    models = {
        "ev": Ranker(evs, lambda t, i: tfctr.embedding_lookup_sparse(t, i, combiner="mean")),
        "static": Ranker(statics, lambda t, i: tf.nn.safe_embedding_lookup_sparse([t], i, combiner="mean")),
    }
    for name, model in models.items():
        serve = tf.function(model.serve).get_concrete_function(**inputs)
        tf.saved_model.save(model, str(folder / name), {"serving_default": serve})
    return {name: folder / name for name in models}


def measure_whole(features: int, batch: int, rounds: int, folder: pathlib.Path) -> dict[str, Any]:
    """A whole predict call, both models."""
    import tfctr
    from benchmarks.models import baseline_inputs

    requests = [baseline_inputs(features, batch, seed) for seed in range(RING)]
    with contextlib.ExitStack() as stack:
        runs: dict[str, Run] = {}
        scores = {}
        for name, model in save_models(features, folder).items():
            tfctr.convert(model, folder / f"{name}.bundle")
            session = stack.enter_context(tfctr.ServingSession(folder / f"{name}.bundle"))
            scores[name] = session.predict(requests[0])["score"]

            def call(k: int, session: Any = session) -> float:
                begin = now()
                session.predict(requests[k])
                return now() - begin

            runs[name] = call
        np.testing.assert_allclose(scores["ev"], scores["static"], rtol=1e-5)
        found = duel(runs, rounds, warmup=RING, batches=RING)
    point = {"features": features, "batch": batch, **{name: t.as_dict() for name, t in found.items()}}
    point["ev_over_static"] = ratio(found["ev"], found["static"])
    for name, times in found.items():
        print(times_line(f"whole {features} x {batch}", name, times, batch / 1e6))
    print(f"{'':<26}{'ev_over_static':<26} " + " ".join(f"{k} {v:.3f}" for k, v in point["ev_over_static"].items()))
    return point


def main(argv: list[str] | None = None) -> int:
    """Measures, prints tables, writes JSON on request. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1000000,10000000")
    parser.add_argument("--dims", default="16,64")
    parser.add_argument("--batch", type=int, default=BATCH, help="ids of a lookup")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of every contestant")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of the process; for a busy machine")
    parser.add_argument("--whole", default="40x256", help="features x rows of the request")
    parser.add_argument("--no-whole", action="store_true")
    parser.add_argument("--quick", action="store_true", help="100,000 rows, few rounds: does it run?")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args(argv)
    configure(args.threads)
    use_clock(args.clock)
    sizes = [100_000] if args.quick else [int(n) for n in args.rows.split(",")]
    dims = [16] if args.quick else [int(n) for n in args.dims.split(",")]
    features, batch = (4, 32) if args.quick else map(int, args.whole.split("x"))
    rounds = 5 if args.quick else args.rounds
    figures: dict[str, Any] = {"machine": machine(), "threads": args.threads, "lookup": []}
    print(f"{args.batch:,} ids a call, {args.threads} thread(s), {figures['machine']}; min / median / p99", flush=True)
    for rows in sizes:
        for dim in dims:
            with tempfile.TemporaryDirectory() as folder:
                figures["lookup"] += measure_lookup(rows, dim, args.batch, rounds, pathlib.Path(folder))
    if not args.no_whole:
        with tempfile.TemporaryDirectory() as folder:
            figures["whole"] = measure_whole(features, batch, rounds, pathlib.Path(folder))
    write_json(args.json, figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
