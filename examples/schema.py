"""What a click data set is: features with their kind, columns of values, labels.

Kinds of features (R rows of a column, T positions of a sequence):

  id            int64 [R] in [0, rows)
  hashed        bytes [R], hashed into ``rows`` buckets inside the model
  vocabulary    bytes [R], looked up in ``vocabulary`` inside the model (absent values share one row)
  integers      int64 [R], looked up in ``vocabulary`` inside the model
  buckets       float32 [R], bucketized at ``boundaries`` inside the model
  sequence      int64 [R, T], 0 is padding, in [0, rows)
  bag           Bag of int64 ids in [0, rows), a different number in every row
  weighted_bag  Bag with weights
  hashed_bag    Bag of bytes, hashed into ``rows`` buckets inside the model
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

KINDS = ("id", "hashed", "vocabulary", "integers", "buckets", "sequence", "bag", "weighted_bag", "hashed_bag")
BAGS = ("bag", "weighted_bag", "hashed_bag")


@dataclasses.dataclass(frozen=True)
class Feature:
    """One sparse feature. ``table``: features with the same table name share one table (rows and width agree)."""

    name: str
    kind: str
    rows: int = 0
    width: int = 8
    vocabulary: tuple[str, ...] | tuple[int, ...] = ()
    boundaries: tuple[float, ...] = ()
    combiner: str = "mean"
    table: str | None = None
    wide: bool = False  # also in the linear part

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"feature {self.name!r}: kind {self.kind!r} is not one of {', '.join(KINDS)}")

    @property
    def table_rows(self) -> int:
        """Rows of the feature's table: out-of-vocabulary and bucket rows included."""
        if self.kind in ("vocabulary", "integers"):
            return len(self.vocabulary) + 1
        return len(self.boundaries) + 1 if self.kind == "buckets" else self.rows


@dataclasses.dataclass(frozen=True)
class Bag:
    """A multi-valued column: ``values`` [N], ``splits`` int64 [R + 1], ``weights`` float32 [N] or None."""

    values: np.ndarray
    splits: np.ndarray
    weights: np.ndarray | None = None

    @classmethod
    def of(cls, rows: Sequence[Sequence[object]], dtype: type, weights: Sequence[Sequence[float]] | None = None) -> Bag:
        """From lists of lists."""
        splits = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        values = np.array([v for row in rows for v in row], dtype)
        flat = None if weights is None else np.array([w for row in weights for w in row], np.float32)
        return cls(values, splits, flat)

    def __len__(self) -> int:
        return len(self.splits) - 1

    def take(self, rows: np.ndarray) -> Bag:
        """The rows named by ``rows`` int64 [M], in that order."""
        lengths = np.diff(self.splits)[rows]
        splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        where = np.arange(splits[-1]) - np.repeat(splits[:-1], lengths) + np.repeat(self.splits[rows], lengths)
        return Bag(self.values[where], splits, None if self.weights is None else self.weights[where])


Columns = dict[str, "np.ndarray | Bag"]


def take(columns: Columns, rows: np.ndarray) -> Columns:
    """The named rows of every column."""
    return {k: v.take(rows) if isinstance(v, Bag) else v[rows] for k, v in columns.items()}


@dataclasses.dataclass(frozen=True)
class ClickData:
    """A data set: features, train and test columns with labels float32 [R] (1 = click)."""

    name: str
    features: tuple[Feature, ...]
    train: Columns
    train_labels: np.ndarray
    test: Columns
    test_labels: np.ndarray
    crosses: tuple[tuple[str, str], ...] = ()  # pairs of features whose combination enters the linear part
    best_auc: float | None = None  # AUC of the planted probabilities: no model can be better, on average

    def only(self, names: Collection[str]) -> ClickData:
        """The same rows with these features alone, and the crosses between them."""
        return dataclasses.replace(
            self,
            features=tuple(f for f in self.features if f.name in names),
            crosses=tuple(pair for pair in self.crosses if set(pair) <= set(names)),
            train={k: v for k, v in self.train.items() if k in names},
            test={k: v for k, v in self.test.items() if k in names},
        )
