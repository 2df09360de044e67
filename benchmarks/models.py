"""The baseline model of the benchmarks and its inputs.

F features of 1 to 3 ids per row, ids Zipf-distributed (exponent 1.05) over 100,000 rows of width 16, averaged by
``tf.nn.safe_embedding_lookup_sparse``; dense tower 256-128-1.
"""

from __future__ import annotations

import functools

import numpy as np

VOCABULARY, WIDTH, ZIPF, MAX_IDS = 100_000, 16, 1.05, 3


def save_baseline(features: int, folder: str, vocabulary: int = VOCABULARY, width: int = WIDTH) -> None:
    """Saves the baseline with ``features`` features as a SavedModel."""
    from examples.models import SparseRanker

    SparseRanker(features, vocabulary, width).save(folder)


def baseline_inputs(features: int, batch: int, seed: int = 0, vocabulary: int = VOCABULARY) -> dict[str, np.ndarray]:
    """One request: ``fK_indices`` int64 [N, 2], ``fK_values`` int64 [N], ``fK_shape`` int64 [2] per feature K."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for k in range(features):
        lengths = rng.integers(1, MAX_IDS + 1, batch)
        rows = np.repeat(np.arange(batch), lengths)
        columns = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        found[f"f{k}_indices"] = np.stack([rows, columns], 1).astype(np.int64)
        found[f"f{k}_values"] = zipf_ids(rng, len(rows), vocabulary)
        found[f"f{k}_shape"] = np.array([batch, MAX_IDS], np.int64)
    return found


def ids_and_offsets(
    features: int, batch: int, seed: int = 0, vocabulary: int = VOCABULARY
) -> tuple[np.ndarray, np.ndarray]:
    """The same ids as ``baseline_inputs`` in the form of the bare loop and of EmbeddingBag.

    Returns ids int64 [F*N] (feature by feature) and offsets int64 [F*B + 1].
    """
    request = baseline_inputs(features, batch, seed, vocabulary)
    ids = np.concatenate([request[f"f{k}_values"] for k in range(features)])
    lengths = [np.bincount(request[f"f{k}_indices"][:, 0], minlength=batch) for k in range(features)]
    return ids, np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)


def zipf_ids(rng: np.random.Generator, count: int, vocabulary: int = VOCABULARY) -> np.ndarray:
    """``count`` int64 ids in [0, vocabulary), popularity k^-1.05, the popular ones scattered over the table."""
    ranks = np.searchsorted(_zipf_cdf(vocabulary), rng.random(count))
    # An affine map scatters neighbouring ranks (a table is rarely sorted by popularity); 7919 is prime.
    return np.minimum(ranks, vocabulary - 1) * 7919 % vocabulary


@functools.cache
def _zipf_cdf(vocabulary: int) -> np.ndarray:
    weights = np.arange(1, vocabulary + 1, dtype=np.float64) ** -ZIPF
    return np.cumsum(weights) / weights.sum()
