"""The exported tower against TensorFlow: ONNX Runtime in fp32 must give the same numbers, row by row.

Equal means: floats within ``ATOL`` + ``RTOL`` |reference| (NaN where the reference has NaN), everything else equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from export.feeds import Sizes, random_feeds
from export.onnx.runtime import OnnxSession
from export.reasons import CannotExport, first_line
from export.tower import Tower
from export.tower_session import TowerSession, sizes_differ

ATOL = RTOL = 1e-5
# (sizes, standard deviation of the random inputs). More than one scale: outputs of a wide one may all be 0 or 1.
TRIALS = (
    (Sizes(rows=1, user_rows=1, inner=3), 1.0),
    (Sizes(rows=7, user_rows=3, inner=5), 0.2),
    (Sizes(rows=64, user_rows=3, inner=4), 1.0),
)
Feeds = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """max_difference: the largest |a - b| of any float output. outputs: the same by output name. rows: batch sizes
    compared. samples: how many of them were given and not drawn.
    """

    max_difference: float
    outputs: dict[str, float]
    rows: tuple[int, ...]
    samples: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, with the tolerance."""
        return {**dataclasses.asdict(self), "rows": list(self.rows), "atol": ATOL, "rtol": RTOL}


def judge(tower: Tower, model: onnx.ModelProto, *, samples: Sequence[Feeds] = (), threads: int = 1) -> Verdict:
    """Compares ``model`` with the tower at three batch sizes of random inputs, and on ``samples`` (arrays by input).

    Raises CannotExport: other numbers (output, batch size and the largest difference are named), outputs that are NaN
    throughout, rows that depend on each other (an engine may fill a batch up), or a model that does not run.
    """
    distinct = sizes_differ(tower)
    trials = [
        random_feeds(tower, dataclasses.replace(sizes, distinct=distinct), seed=k, scale=scale)
        for k, (sizes, scale) in enumerate(TRIALS)
    ]
    trials += [dict(one) for one in samples]
    try:
        session = OnnxSession(model, threads=threads)
    except Exception as error:  # of ONNX Runtime's own kind
        raise CannotExport(f"ONNX Runtime refuses it: {first_line(error)}") from error
    worst = dict.fromkeys((one.name for one in tower.outputs), 0.0)
    with TowerSession(tower, threads=threads) as reference:
        last: dict[str, np.ndarray] = {}
        for feeds in trials:
            last = _reference(reference, feeds)
            try:
                got = session.run({name: feeds[name] for name in session.input_names})
            except Exception as error:  # of ONNX Runtime's own kind
                raise CannotExport(f"ONNX Runtime fails at {_rows(tower, feeds)} rows: {first_line(error)}") from error
            for name, value in last.items():
                found = _compare(name, got[name], value, f"ONNX Runtime at {_rows(tower, feeds)} rows")
                worst[name] = max(worst[name], found)
        for name, value in last.items():
            if value.dtype.kind == "f" and value.size and not np.isfinite(value).any():
                raise CannotExport(f"its output {name} is not finite in TensorFlow either, so nothing can be compared")
        _check_rows(tower, reference, dataclasses.replace(TRIALS[-1][0], distinct=distinct))
    rows = tuple(_rows(tower, feeds) for feeds in trials)
    return Verdict(max_difference=max(worst.values()), outputs=worst, rows=rows, samples=len(samples))


def _reference(reference: TowerSession, feeds: Feeds) -> dict[str, np.ndarray]:
    try:
        return reference.run(feeds)
    except Exception as error:  # TensorFlow's errors have no common base with the rest
        raise CannotExport(f"it can't be run with random inputs: {first_line(error)}") from error


def _compare(name: str, got: np.ndarray, value: np.ndarray, what: str) -> float:
    if got.shape != value.shape or got.dtype != value.dtype:
        raise CannotExport(
            f"{what}: output {name} is {got.dtype}{list(got.shape)}, in TensorFlow {value.dtype}{list(value.shape)}"
        )
    if value.dtype.kind != "f":
        different = int((got != value).sum())
        if different:
            raise CannotExport(
                f"{what}: {different} of {value.size} elements of output {name} differ from TensorFlow's"
            )
        return 0.0
    same = (np.isnan(got) & np.isnan(value)) | (got == value)  # infinities too
    with np.errstate(invalid="ignore"):  # infinities of one sign are the same
        difference = np.where(same, 0.0, np.abs(got.astype(np.float64) - value))
    bad = ~(same | (difference <= ATOL + RTOL * np.abs(value.astype(np.float64))))
    if bad.any():
        nans = int((np.isnan(got) != np.isnan(value)).sum())
        by = f"{nans} are NaN on one side only" if nans else f"by up to {np.max(difference[bad]):.3g}"
        raise CannotExport(f"{what}: {int(bad.sum())} of {value.size} numbers of output {name} differ, {by}")
    return float(np.max(difference, initial=0.0))


def _check_rows(tower: Tower, reference: TowerSession, sizes: Sizes) -> None:
    """Row k must depend on row k of the inputs (and its user's) alone."""
    feeds = random_feeds(tower, sizes, seed=len(TRIALS))
    whole = _reference(reference, feeds)
    to_user = next((feeds[one.name] for one in tower.inputs if one.side == "row_to_user"), None)
    # Every other row, from the last; in a split tower those of one user.
    chosen = np.arange(sizes.rows)[::-2] if to_user is None else np.flatnonzero(to_user == 0)[::-1]
    fewer = {}
    for one in tower.inputs:
        array = feeds[one.name]
        if one.shape and one.shape[0] is None:
            array = array[:1] if one.side == "user" else array[chosen]
        fewer[one.name] = array
    for name, value in _reference(reference, fewer).items():
        if whole[name].shape[:1] != (sizes.rows,):
            raise CannotExport(f"its output {name} has shape {list(whole[name].shape)} for {sizes.rows} rows")
        try:
            _compare(name, value, whole[name][chosen], "other rows in the batch")
        except CannotExport as error:
            raise CannotExport(f"its rows depend on each other ({error})") from error


def _rows(tower: Tower, feeds: Feeds) -> int:
    for one in tower.inputs:
        if one.side != "user" and one.shape and one.shape[0] is None:
            return len(feeds[one.name])
    return 0
