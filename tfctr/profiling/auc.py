"""Area under the ROC curve: how well scores order labelled rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.errors import InputError


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float | None:
    """The chance that a positive row (label > 0.5) scores above a negative one, ties counting half; both [B].

    None where only one kind of label is there. Scores that are NaN are an InputError.
    """
    positive = np.asarray(labels, np.float64).reshape(-1) > 0.5
    values = np.asarray(scores, np.float64).reshape(-1)
    if np.isnan(values).any():
        raise InputError("scores are NaN, so no AUC can be computed")
    count = int(positive.sum())
    if count in (0, len(positive)):
        return None
    _, place, ties = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place.reshape(-1)]
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))


def labelled_output(outputs: Mapping[str, Any], rows: int, wanted: str | None = None) -> str:
    """The output that ``rows`` labels belong to: the wanted one, else the only one with one number per row.

    Raises InputError: there is no such output, or several and none was named.
    """
    fits = [name for name, value in outputs.items() if _one_number_per_row(value, rows)]
    if wanted is None and len(fits) == 1:
        return fits[0]
    if wanted in fits:
        return str(wanted)
    there = ", ".join(fits) or "none"
    asked = f"output {wanted!r}" if wanted is not None else "--label NAME=OUTPUT names the output they belong to"
    raise InputError(f"{rows} labels: {asked}; outputs with one number per row: {there}")


def _one_number_per_row(value: Any, rows: int) -> bool:
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return isinstance(value, np.ndarray) and kind == "f" and value.size == rows
