"""Memory and load time: many sessions on one bundle, and converting a model with a table larger than the budget.

Run: python -m benchmarks.bench_memory [--json FILE] [--table-gb 4]

Each measurement runs in a process of its own. Floors: four more sessions on a bundle of 1 GB of tables and a
1M-string vocabulary, after 100 calls each, take at most 5 % of the tables' bytes as anonymous memory; converting a
model with a 4 GB table peaks at most 1 GB above the process after import; loading that bundle takes under 1 s.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.memory import memory_mb, reset_peak

FEATURES, ROWS, WIDTH = 40, 400_000, 16  # 40 x 400k x 16 x 4 B = 1.02 GB
VOCABULARY = 1_000_000


def save_session_model(folder: str) -> None:
    """40 lookups over 1 GB of tables, one of them behind a vocabulary of a million strings."""
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = [tf.Variable(tf.random.normal([ROWS, WIDTH], seed=i), name=f"t{i}") for i in range(FEATURES)]
            keys = tf.strings.as_string(tf.range(VOCABULARY, dtype=tf.int64))
            initializer = tf.lookup.KeyValueTensorInitializer(keys, tf.range(VOCABULARY, dtype=tf.int64) % ROWS)
            self.vocabulary = tf.lookup.StaticHashTable(initializer, 0)
            self.dense = tf.Variable(tf.random.normal([FEATURES * WIDTH, 1], stddev=0.05, seed=99))

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, FEATURES - 1], tf.int64, name="ids"),
                tf.TensorSpec([None], tf.string, name="word"),
            ]
        )
        def serve(self, ids: Any, word: Any) -> dict[str, Any]:
            rows = [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(self.tables[:-1])]
            rows.append(tf.nn.embedding_lookup(self.tables[-1], self.vocabulary.lookup(word)))
            return {"score": tf.sigmoid(tf.concat(rows, 1) @ self.dense)}

    model = Model()
    tf.saved_model.save(model, folder, signatures={"serving_default": model.serve})


def save_large_model(folder: str, table_gb: float) -> None:
    """One table of ``table_gb`` GB, read by one id per row."""
    import tensorflow as tf

    rows = int(table_gb * 2**30 / (WIDTH * 4))

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(tf.random.uniform([rows, WIDTH]), name="large")
            self.dense = tf.Variable(tf.random.normal([WIDTH, 1]))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
        def serve(self, ids: Any) -> dict[str, Any]:
            return {"score": tf.nn.embedding_lookup(self.table, ids) @ self.dense}

    model = Model()
    tf.saved_model.save(model, folder, signatures={"serving_default": model.serve})


def measure_sessions(bundle: str) -> dict[str, float]:
    """Anonymous memory that four more sessions cost, each after 100 calls."""
    import numpy as np

    import tfctr

    rng = np.random.default_rng(0)

    def session() -> Any:
        made = tfctr.ServingSession(bundle)
        for _ in range(100):
            made.predict(
                {
                    "ids": rng.integers(0, ROWS, (256, FEATURES - 1)),
                    "word": rng.integers(0, VOCABULARY, 256).astype(bytes).astype(object),
                }
            )
        return made

    kept = [session()]
    before = memory_mb()
    kept += [session() for _ in range(4)]
    after = memory_mb()
    for made in kept:
        made.close()
    tables = FEATURES * ROWS * WIDTH * 4 / 2**20
    anonymous = after["RssAnon"] - before["RssAnon"]
    return {
        "tables_mb": tables,
        "extra_rss_anon_mb": anonymous,
        "share": anonymous / tables,
        "rss_file_mb": after["RssFile"],
    }


def measure_convert(saved_model: str, bundle: str) -> dict[str, float]:
    """Peak memory of a conversion above the process after import, and its time."""
    import tfctr

    tfctr.convert  # noqa: B018 - the lazy import belongs to "after import"
    import graph_opt  # noqa: F401

    reset_peak()
    before = memory_mb()
    begin = time.perf_counter()
    tfctr.convert(saved_model, bundle)
    elapsed = time.perf_counter() - begin
    return {"convert_s": elapsed, "peak_above_import_mb": memory_mb()["VmHWM"] - before["VmRSS"]}


def measure_load(bundle: str) -> dict[str, float]:
    """Seconds from a path to the first answer-ready session, TensorFlow already imported."""
    import tfctr

    tfctr.ServingSession  # noqa: B018
    import tensorflow as tf  # noqa: F401

    begin = time.perf_counter()
    session = tfctr.ServingSession(bundle)
    elapsed = time.perf_counter() - begin
    session.close()
    return {"load_s": elapsed}


STEPS = {
    "save_session_model": save_session_model,
    "save_large_model": lambda folder, size: save_large_model(folder, float(size)),
    "measure_sessions": measure_sessions,
    "measure_convert": measure_convert,
    "measure_load": measure_load,
}


def in_process(step: str, *args: str) -> Any:
    """Runs one step of ``STEPS`` in a fresh process; its result comes back as JSON on the last line."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_memory", "--step", step, *args],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--table-gb", default="4", help="size of the large table (default: 4)")
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        print(json.dumps(STEPS[args.step[0]](*args.step[1:])))  # type: ignore[operator]
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        in_process("save_session_model", str(folder / "sessions"))
        figures["sessions"] = in_process("measure_convert", str(folder / "sessions"), str(folder / "sessions.bundle"))
        figures["sessions"] |= in_process("measure_sessions", str(folder / "sessions.bundle"))
        in_process("save_large_model", str(folder / "large"), args.table_gb)
        figures["large"] = in_process("measure_convert", str(folder / "large"), str(folder / "large.bundle"))
        figures["large"] |= in_process("measure_load", str(folder / "large.bundle"))
    print(json.dumps(figures, indent=2))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
