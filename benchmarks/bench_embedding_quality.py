"""What policies and collisions cost: AUC and rows of one model over dynamic tables (with, without policies) and hashed.

Run: python -m benchmarks.bench_embedding_quality [--quick] [--seeds 20] [--only churn,movielens] [--data DIR]
     [--json FILE]

churn: generated clicks whose truth is known (benchmarks/quality/churn.py): 600,000 examples in one pass, item cohorts
that live 3 of 20 windows, a one-off id of no effect in 30 % of the examples, the last 5 % being the test set.
movielens: MovieLens-100k, 3 epochs, the last tenth by time being the test set (left out where DIR has none).
A factorisation machine is trained per seed with every kind of table; differences are paired by seed, with 95 %
intervals. "hashed as X" has, table by table, the bytes of X: index, rows, slots and counters.
Floors (churn): AUC(step eviction) and AUC(admission) minus AUC(no policy) have intervals above -0.0005, at half the
rows or fewer; hashing's interval against the table of equal bytes lies below 0. MovieLens: dynamic above hashed.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.embedding_duel import machine, write_json
from benchmarks.embedding_tables import configure
from benchmarks.quality import churn
from benchmarks.quality.churn import Clicks

MARGIN, FEWER = -0.0005, 0.5
DATA = pathlib.Path("../shared/data/ml-100k")
# Two-sided 97.5 % points of Student's t, by degrees of freedom, for the numbers of seeds that one runs.
T975 = {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 19: 2.093, 29: 2.045, 39: 2.023}
BASE = "no policy"


def policies(steps: int) -> dict[str, dict[str, Any]]:
    """Options of the dynamic tables by name, for a training of so many steps."""
    import tfctr

    step = {"eviction": tfctr.StepEviction(steps // 4), "evict_every_steps": max(1, steps // 40)}
    bloom = tfctr.BloomAdmission(2, expected_keys=200_000, false_positive_rate=0.01)
    return {
        BASE: {},
        "step eviction": step,
        "admission (counter)": {"admission": tfctr.CounterAdmission(2)},
        "admission (Bloom)": {"admission": bloom},
        "counter and step": {"admission": tfctr.CounterAdmission(2), **step},
    }


HASHED_AS = (BASE, "step eviction")


def run_seed(clicks: Clicks, seed: int, epochs: int) -> dict[str, Any]:
    """Every kind of table on one data set with one seed."""
    from benchmarks.quality.ranker import BATCH, DynamicTables, HashedTables, train

    features = clicks.ids.shape[1]
    found = {}
    for name, options in policies(clicks.train // BATCH * epochs).items():
        make = _maker(DynamicTables, features, seed, options)
        found[name] = train(clicks, make, seed, epochs)
    for name in HASHED_AS:
        sizes = found[name].bytes_by_table
        found[f"hashed as {name}"] = train(clicks, lambda step, sizes=sizes: HashedTables(sizes, seed), seed, epochs)
    return found


def _maker(kind: Any, features: int, seed: int, options: dict[str, Any]) -> Callable[[Any], Any]:
    return lambda step: kind(features, seed, step, **options)


def interval(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean, and the 95 % interval of the mean."""
    n = len(differences)
    if n < 2:
        return float(differences.mean()), float("-inf"), float("inf")
    t = T975[max(d for d in T975 if d <= n - 1)]  # of fewer degrees of freedom where n - 1 is not listed: wider
    half = t * differences.std(ddof=1) / np.sqrt(n)
    return float(differences.mean()), float(differences.mean() - half), float(differences.mean() + half)


def table(runs: list[dict[str, Any]], bayes: list[float] | None) -> dict[str, Any]:
    """Means over seeds and paired differences, printed; hashed tables differ from the table whose bytes they have."""
    found: dict[str, Any] = {}
    print(f"{'tables':<28}{'AUC':>9}{'minus':>24}{'mean':>10}{'95 % interval':>23}{'rows':>10}{'MB':>8}")
    if bayes:
        print(f"{'truth (Bayes)':<28}{np.mean(bayes):>9.5f}")
    for name in runs[0]:
        other = name.removeprefix("hashed as ") if name.startswith("hashed") else BASE
        mean, low, high = interval(np.array([r[name].auc - r[other].auc for r in runs]))
        rows = float(np.mean([r[name].rows for r in runs]))
        megabytes = float(np.mean([r[name].bytes for r in runs])) / 2**20
        found[name] = {
            "auc": float(np.mean([r[name].auc for r in runs])),
            "against": other,
            "difference": mean,
            "low": low,
            "high": high,
            "rows": rows,
            "rows_share": rows / float(np.mean([r[BASE].rows for r in runs])),
            "megabytes": megabytes,
        }
        line = f"{name:<28}{found[name]['auc']:>9.5f}"
        if name != BASE:
            line += f"{other:>24}{mean:>+10.5f}  [{low:+.5f}, {high:+.5f}]"
        else:
            line += " " * 57
        print(f"{line}{rows:>10,.0f}{megabytes:>8.2f}", flush=True)
    if bayes:
        found["truth"] = {"auc": float(np.mean(bayes))}
    return found


def judge_churn(found: dict[str, Any]) -> dict[str, bool]:
    """The floors of the generated data, printed."""
    held = {}
    for name in ("step eviction", "admission (counter)", "admission (Bloom)"):
        entry = found[name]
        held[name] = entry["low"] >= MARGIN and entry["rows_share"] <= FEWER
        print(
            f"{name}: lower bound {entry['low']:+.5f} (floor {MARGIN}), {1 - entry['rows_share']:.0%} fewer rows "
            f"(floor {FEWER:.0%}): {'held' if held[name] else 'MISSED'}"
        )
    for name in (f"hashed as {other}" for other in HASHED_AS):
        held[name] = found[name]["high"] < 0
        print(f"{name}: upper bound {found[name]['high']:+.5f} (floor below 0): {'held' if held[name] else 'MISSED'}")
    return held


def run_churn(seeds: int, examples: int) -> dict[str, Any]:
    """The generated data, another data set for every seed."""
    from benchmarks.quality.ranker import auc

    runs, bayes = [], []
    for seed in range(seeds):
        clicks = churn.generate(seed, examples)
        truth = auc(clicks.labels[clicks.train :], clicks.probabilities[clicks.train :])
        assert truth is not None
        bayes.append(truth)
        runs.append(run_seed(clicks, seed, epochs=1))
        _progress("churn", seed, seeds, runs[-1])
    print(f"\nGenerated churn data, {examples:,} examples, {seeds} paired seeds")
    found = table(runs, bayes)
    return {"table": found, "held": judge_churn(found)}


def run_movielens(folder: pathlib.Path, seeds: int) -> dict[str, Any]:
    """MovieLens-100k; seeds are those of initial values and order."""
    from benchmarks.quality import movielens

    clicks = movielens.load(folder)
    runs = []
    for seed in range(seeds):
        runs.append(run_seed(clicks, seed, epochs=3))
        _progress("MovieLens", seed, seeds, runs[-1])
    print(f"\nMovieLens-100k, {seeds} seeds")
    found = table(runs, None)
    above = {name: found[name]["high"] < 0 for name in found if name.startswith("hashed")}
    for name, held in above.items():
        print(f"{name}: upper bound {found[name]['high']:+.5f} (floor below 0): {'held' if held else 'MISSED'}")
    return {"table": found, "held": above}


def _progress(what: str, seed: int, seeds: int, run: dict[str, Any]) -> None:
    print(f"{what} {seed + 1} of {seeds}: " + ", ".join(f"{n} {t.auc:.5f}" for n, t in run.items()), flush=True)


def main(argv: list[str] | None = None) -> int:
    """Trains everything, prints tables, writes JSON on request. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="churn,movielens")
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="folder of MovieLens-100k")
    parser.add_argument("--quick", action="store_true", help="2 seeds, 60,000 examples: does it run?")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args(argv)
    seeds, examples = (2, 60_000) if args.quick else (args.seeds, churn.EXAMPLES)
    configure(threads=1)
    figures: dict[str, Any] = {"machine": machine(), "seeds": seeds}
    if "churn" in args.only:
        figures["churn"] = run_churn(seeds, examples)
    if "movielens" in args.only:
        if args.data.is_dir():
            figures["movielens"] = run_movielens(args.data, seeds)
        else:
            print(f"MovieLens: left out, there is no {args.data}")
    write_json(args.json, figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
