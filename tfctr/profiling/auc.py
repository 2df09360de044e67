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


def labelled_output(outputs: Mapping[str, Any], rows: int, wanted: str | None = None) -> str | None:
    """The output that ``rows`` labels belong to: the wanted one, else the only one with one number per row, else None.

    Raises InputError: the wanted one is no output with one number per row.
    """
    fits = [name for name, value in outputs.items() if _one_number_per_row(value, rows)]
    if wanted is None:
        return fits[0] if len(fits) == 1 else None
    if wanted in fits:
        return wanted
    raise InputError(
        f"{rows} labels of output {wanted!r}: outputs with one number per row are {', '.join(fits) or 'none'}"
    )


def _one_number_per_row(value: Any, rows: int) -> bool:
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return isinstance(value, np.ndarray) and kind == "f" and value.size == rows
