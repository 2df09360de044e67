"""AUC by ranks, against counting pairs; and which output labels belong to."""

import numpy as np
import pytest

from tfctr.errors import InputError
from tfctr.profiling.auc import auc, labelled_output


def test_auc_counts_pairs_and_half_of_ties() -> None:
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 60), rng.integers(0, 9, 60).astype(np.float32)
    gap = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    assert auc(labels, scores) == pytest.approx(np.mean((gap > 0) + 0.5 * (gap == 0)))
    assert auc([1, 1], [0.2, 0.3]) is None
    with pytest.raises(InputError, match="NaN"):
        auc([0, 1], [0.2, np.nan])


def test_labels_belong_to_the_only_score_or_the_named_one() -> None:
    score, rows = np.zeros((3, 1), np.float32), np.zeros((3, 4), np.float32)
    assert labelled_output({"score": score, "vector": rows, "ids": np.arange(3)}, 3) == "score"
    assert labelled_output({"ctr": score, "cvr": score}, 3, "cvr") == "cvr"
    assert labelled_output({"ctr": score, "cvr": score}, 3) is None
    assert labelled_output({"vector": rows}, 3) is None
    with pytest.raises(InputError, match="of output 'x': .* are score"):
        labelled_output({"score": score}, 3, "x")
