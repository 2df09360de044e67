"""MovieLens-100k as ids and labels (a rating of 4 or 5 is a click), the last tenth by time being the test set."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from benchmarks.quality.churn import Clicks
from examples import movielens

FEATURES = ("user", "item", "zip", "profile", "year")


def load(folder: Path) -> Clicks:
    """The five features as int64 ids: user, item, zip code, gender and occupation, year of the film."""
    ratings = movielens.read(folder)
    users = [ratings.users[k] for k in ratings.user.tolist()]
    columns = [
        ratings.user,
        ratings.item,
        np.array([zlib.crc32(u[3].encode()) for u in users]),
        np.array([zlib.crc32(f"{u[1]} {u[2]}".encode()) for u in users]),
        np.array([int(ratings.items[k][1]) for k in ratings.item.tolist()]),
    ]
    labels = (ratings.rating >= movielens.LIKED).astype(np.float32)
    unknown = np.full(len(labels), np.nan)
    return Clicks(np.stack(columns, 1).astype(np.int64), labels, unknown, test=len(labels) // 10)
