"""What the reference models know about a user and a candidate item, and random requests of it.

Shape letters: U users, B candidate rows, N values of a feature over all its rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

HISTORY = 20  # positions of a click history; shorter ones end in zeros
_MAX_TAGS = 3

Request = dict[str, npt.NDArray[np.generic]]


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of a model.

    kind: "id" int64 [rows]; "tags" (one to three ids a row) as the parts of a SparseTensor, ``<name>_indices``
    int64 [N, 2], ``<name>_values`` int64 [N] and ``<name>_shape`` int64 [2]; "history" int64 [rows, HISTORY], 0 where
    there was no click; "dense" float32 [rows, ``size``].
    user: the same for all candidates of a request. size: rows of its table at most (0: the model's whole vocabulary),
    columns of a dense feature. table: the feature whose table it shares; "": its own.
    """

    name: str
    kind: str
    user: bool
    size: int = 0
    table: str = ""

    def rows(self, vocabulary: int) -> int:
        """Rows of the feature's table in a model of this vocabulary."""
        return min(self.size, vocabulary) if self.size else vocabulary

    def specs(self) -> dict[str, tf.TensorSpec]:
        """The signature inputs that carry the feature, by name."""
        shapes: dict[str, dict[str, tuple[list[int | None], tf.DType]]] = {
            "id": {self.name: ([None], tf.int64)},
            "tags": {
                f"{self.name}_indices": ([None, 2], tf.int64),
                f"{self.name}_values": ([None], tf.int64),
                f"{self.name}_shape": ([2], tf.int64),
            },
            "history": {self.name: ([None, HISTORY], tf.int64)},
            "dense": {self.name: ([None, self.size], tf.float32)},
        }
        return {name: tf.TensorSpec(shape, dtype, name) for name, (shape, dtype) in shapes[self.kind].items()}

    def draw(self, rows: int, vocabulary: int, random: np.random.Generator) -> Request:
        """Random values of ``rows`` rows, by input name; ids lie inside the table."""
        if self.kind == "dense":
            return {self.name: random.normal(size=(rows, self.size)).astype(np.float32)}
        if self.kind == "id":
            return {self.name: random.integers(0, self.rows(vocabulary), rows)}
        if self.kind == "history":
            clicks = random.integers(1, self.rows(vocabulary), (rows, HISTORY))
            lengths = random.integers(0, HISTORY + 1, (rows, 1))
            return {self.name: np.where(np.arange(HISTORY) < lengths, clicks, 0)}
        lengths = random.integers(1, _MAX_TAGS + 1, rows)
        row = np.repeat(np.arange(rows), lengths)
        column = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return {
            f"{self.name}_indices": np.stack([row, column], 1).astype(np.int64),
            f"{self.name}_values": random.integers(0, self.rows(vocabulary), len(row)),
            f"{self.name}_shape": np.array([rows, _MAX_TAGS], np.int64),
        }


USER = {
    feature.name: feature
    for feature in (
        Feature("user_id", "id", True),
        Feature("age", "id", True, 10),
        Feature("gender", "id", True, 3),
        Feature("city", "id", True, 300),
        Feature("device", "id", True, 50),
        Feature("user_tags", "tags", True, 500),
        Feature("user_history", "history", True, table="item_id"),
        Feature("user_history_category", "history", True, 200, table="category"),
        Feature("user_dense", "dense", True, 4),
    )
}
ITEM = {
    feature.name: feature
    for feature in (
        Feature("item_id", "id", False),
        Feature("category", "id", False, 200),
        Feature("brand", "id", False, 400),
        Feature("shop", "id", False),
        Feature("item_dense", "dense", False, 9),
    )
}


def pick(*names: str) -> tuple[Feature, ...]:
    """Features by name."""
    return tuple((USER | ITEM)[name] for name in names)


def draw(
    features: Sequence[Feature], rows: int, seed: int = 0, *, users: int | None = None, vocabulary: int = 1000
) -> Request:
    """One request over ``features``: item features have ``rows`` rows, user features ``users`` rows (None: ``rows``
    too).
    """
    random = np.random.default_rng(seed)
    found: Request = {}
    for feature in features:
        count = users if feature.user and users is not None else rows
        found |= feature.draw(count, vocabulary, random)
    return found


def repeat_users(
    features: Sequence[Feature], request: Mapping[str, npt.NDArray[np.generic]], row_to_user: npt.NDArray[np.int64]
) -> Request:
    """The request that a client without a split form sends: row b has the user features of ``row_to_user[b]``.

    row_to_user: int64 [B]; user features of ``request`` have U rows.
    """
    found = dict(request)
    for feature in features:
        if not feature.user:
            continue
        if feature.kind != "tags":
            found[feature.name] = request[feature.name][row_to_user]
            continue
        indices, values = request[f"{feature.name}_indices"], request[f"{feature.name}_values"]
        starts = np.searchsorted(indices[:, 0], np.arange(request[f"{feature.name}_shape"][0] + 1))
        places = [np.arange(starts[u], starts[u + 1]) for u in row_to_user]
        taken = np.concatenate([np.zeros(0, np.int64), *places]).astype(np.int64)
        row = np.repeat(np.arange(len(row_to_user)), [len(p) for p in places])
        found[f"{feature.name}_indices"] = np.stack([row, indices[taken, 1]], 1).astype(np.int64)
        found[f"{feature.name}_values"] = values[taken]
        shape = np.array([len(row_to_user), request[f"{feature.name}_shape"][1]], np.int64)
        found[f"{feature.name}_shape"] = shape
    return found
