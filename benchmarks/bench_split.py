"""One user beside many candidates: the user/item split against the same bundle without it.

Run: python -m benchmarks.bench_split [--json FILE] [--rows 500] [--features 100] [--users 70] [--threads 1]
  [--rounds 60] [--folder DIR]

F features of one id each (int64 [B], Zipf 1.05 over 100,000 rows of width 16), U of them the user's, tower
1024-512-256-1, fp32. Contestants take turns in one process; each call goes from NumPy arrays to NumPy arrays:

  split             one user row, B candidates; the split form computes the user's part once
  unsplit           the same request to a bundle without the split; its packer repeats the user's rows, then one fused
                    gather reads both sides
  repeating client  the client repeats the user's 70 arrays itself, then calls the bundle without the split

Also: time of the dense tower (op times of traced runs, lookups left out) on both forms, against the ratio of their
floating point operations. --folder keeps model and bundles for the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.models import VOCABULARY, WIDTH, zipf_ids

HIDDEN = (1024, 512, 256)
WHOLE_FLOOR, CLIENT_FLOOR, TOWER_SHARE = 1.8, 2.2, 0.85
_TRACED_RUNS = 30
# Parts of the names of nodes that belong to lookups and inputs.
_NOT_TOWER = ("tfctr/lookup_", "/unpack", "/arena", "/shapes", "_SOURCE", "_SINK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--rows", type=int, default=500, help="candidates of a request")
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--users", type=int, default=70, help="how many of the features are the user's")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of each contestant")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--folder", metavar="DIR", help="where model and bundles are kept")
    args = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    with _folder(args.folder) as folder:
        figures = _measure(*_bundles(folder, args.features, args.users), args)
    print("\n".join(_lines(figures)), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


@contextlib.contextmanager
def _folder(kept: str | None) -> Iterator[pathlib.Path]:
    if kept is not None:
        pathlib.Path(kept).mkdir(parents=True, exist_ok=True)
        yield pathlib.Path(kept)
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield pathlib.Path(scratch)


def save_ranker(folder: str, features: int, hidden: Sequence[int] = HIDDEN, vocabulary: int = VOCABULARY) -> None:
    """Saves a ranker over ``features`` inputs ``f0``, ``f1``... (int64 [B]) with a table each, and a dense tower."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    module = tf.Module()
    sizes = [features * WIDTH, *hidden, 1]
    module.tables = [
        tf.Variable(rng.random((vocabulary, WIDTH), np.float32) - np.float32(0.5), name=f"emb_f{k}")
        for k in range(features)
    ]
    module.kernels = [
        tf.Variable(rng.normal(0, (2 / a) ** 0.5, (a, b)).astype(np.float32), name=f"kernel{k}")
        for k, (a, b) in enumerate(itertools.pairwise(sizes))
    ]
    module.biases = [tf.Variable(tf.random.stateless_normal([b], (1, b)) * 0.1, name=f"bias{b}") for b in sizes[1:]]

    def score(**ids: tf.Tensor) -> dict[str, tf.Tensor]:
        x = tf.concat([tf.gather(module.tables[k], ids[f"f{k}"]) for k in range(features)], axis=1)
        for kernel, bias in zip(module.kernels[:-1], module.biases[:-1], strict=True):
            x = tf.nn.relu(x @ kernel + bias)
        return {"score": tf.sigmoid(x @ module.kernels[-1] + module.biases[-1])}

    specs = {f"f{k}": tf.TensorSpec([None], tf.int64, f"f{k}") for k in range(features)}
    module.serve = tf.function(score, input_signature=None)
    tf.saved_model.save(module, folder, signatures=module.serve.get_concrete_function(**specs))


def _bundles(folder: pathlib.Path, features: int, users: int) -> tuple[str, str, dict[str, Any]]:
    import tfctr

    model, split, unsplit = (str(folder / name) for name in ("model", "split.bundle", "unsplit.bundle"))
    if not pathlib.Path(model).exists():
        save_ranker(model, features)
    if not pathlib.Path(unsplit).exists():
        tfctr.convert(model, unsplit)
    report = tfctr.convert(model, split, force=True, user_features=tuple(f"f{k}" for k in range(users)))
    entry = report.manifest["signatures"]["serving_default"]["split"]
    if entry is None:
        raise SystemExit("the model was not split: " + json.dumps(report.manifest["passes"])[:2000])
    return split, unsplit, entry


def _measure(split: str, unsplit: str, entry: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    import tfctr
    from tfctr.profiling.paired import measure_paired, ratio

    rng = np.random.default_rng(1)
    once = {f"f{k}": zipf_ids(rng, 1) for k in range(args.users)}
    items = {f"f{k}": zipf_ids(rng, args.rows) for k in range(args.users, args.features)}

    def repeated() -> dict[str, np.ndarray]:
        return {name: np.repeat(value, args.rows, axis=0) for name, value in once.items()} | items

    names = tuple(once)
    with (
        tfctr.ServingSession(split, intra_op_threads=args.threads) as fast,
        tfctr.ServingSession(unsplit, intra_op_threads=args.threads, user_features=names) as slow,
    ):
        want, got = slow.predict(repeated())["score"], fast.predict(once | items)["score"]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        timings = measure_paired(
            {
                "split": lambda: fast.predict(once | items),
                "unsplit": lambda: slow.predict(once | items),
                "repeating client": lambda: slow.predict(repeated()),
            },
            rounds=args.rounds,
        )
        towers = _towers(
            {"split": lambda: fast.run_traced(once | items), "unsplit": lambda: slow.run_traced(once | items)}
        )
    flops = entry["flops"]
    after = flops["item_per_row"] + flops["user_per_row"] / args.rows
    return {
        "rows": args.rows,
        "threads": args.threads,
        "worst_difference": float(np.abs(got - want).max()),
        "timings": {name: timing.as_dict() for name, timing in timings.items()},
        "whole_call": ratio(timings["unsplit"], timings["split"]),
        "against_client": ratio(timings["repeating client"], timings["split"]),
        "tower_us": towers,
        "tower_ratio": towers["unsplit"] / towers["split"],
        "flop_ratio": flops["before_per_row"] / after,
    }


def _towers(traced: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median microseconds of the operations that are no lookup and no unpacking, in turns."""
    from tfctr.profiling.stock import op_times_us

    found: dict[str, list[float]] = {name: [] for name in traced}
    for _ in range(_TRACED_RUNS):
        for name, run in traced.items():
            times = op_times_us(run()[1])
            found[name].append(sum(us for node, us in times.items() if not any(part in node for part in _NOT_TOWER)))
    return {name: float(np.median(values)) for name, values in found.items()}


def _lines(figures: dict[str, Any]) -> list[str]:
    whole, client = figures["whole_call"]["median"], figures["against_client"]["median"]
    tower, flops = figures["tower_ratio"], figures["flop_ratio"]

    def verdict(value: float, floor: float) -> str:
        return f"floor {floor:.2f}x: {'held' if value >= floor else 'MISSED'}"

    return [
        *(
            f"{name:>17}: {t['median_ms']:.2f} ms median, {t['min_ms']:.2f} min"
            for name, t in figures["timings"].items()
        ),
        f"whole call {whole:.2f}x ({verdict(whole, WHOLE_FLOOR)}), against a repeating client {client:.2f}x "
        f"({verdict(client, CLIENT_FLOOR)})",
        f"tower {tower:.2f}x of {flops:.2f}x fewer operations ({verdict(tower, flops * TOWER_SHARE)}); "
        f"largest difference of a score {figures['worst_difference']:.1e}",
    ]


if __name__ == "__main__":
    main()
