"""MovieLens-100k as click data: a rating of 4 or 5 is a click, the last 10 % by time are the test set.

Reads GroupLens' files (u.data, u.user, u.item, u.genre) and RecBole's (NAME.inter, NAME.user, NAME.item). The
histories and counts of a row come from earlier ratings only.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from examples.schema import Bag, ClickData, Columns, Feature, take
from tfctr.errors import UsageError

HISTORY = 10
LIKED = 4.0
AGES = (18.0, 25.0, 35.0, 45.0, 50.0, 56.0)
YEARS = (1940.0, 1960.0, 1970.0, 1980.0, 1985.0, 1990.0, 1993.0, 1994.0, 1995.0, 1996.0, 1997.0)
COUNTS = (1.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
CROSSES = (("gender", "occupation"),)


@dataclasses.dataclass(frozen=True)
class Ratings:
    """The files in one form. Ids as they are; ratings in order of time (ties in file order)."""

    user: np.ndarray  # int64 [R]
    item: np.ndarray  # int64 [R]
    rating: np.ndarray  # float64 [R]
    time: np.ndarray  # int64 [R], seconds
    users: dict[int, tuple[float, str, str, str]]  # age, gender, occupation, zip
    items: dict[int, tuple[str, float, tuple[str, ...]]]  # title, year, genres


def load(folder: Path | str) -> ClickData:
    """The data set in ``folder``; UsageError where neither layout is there or a file does not parse."""
    ratings = read(Path(folder))
    columns, features = _columns(ratings)
    labels = (ratings.rating >= LIKED).astype(np.float32)
    rows = len(labels)
    split = rows - rows // 10
    return ClickData(
        name=f"MovieLens, {rows:,} ratings",
        features=features,
        train=take(columns, np.arange(split)),
        train_labels=labels[:split],
        test=take(columns, np.arange(split, rows)),
        test_labels=labels[split:],
        crosses=CROSSES,
    )


def read(folder: Path) -> Ratings:
    """Reads either layout."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    inters = sorted(folder.glob("*.inter"))
    try:
        if (folder / "u.data").is_file():
            return _read_grouplens(folder)
        if len(inters) == 1:
            return _read_recbole(inters[0])
    except ValueError as error:  # a word where a number should be
        raise UsageError(f"{folder}: {error}") from error
    raise UsageError(
        f"{folder}: no MovieLens-100k here; expected u.data, u.user and u.item (GroupLens) or one .inter (RecBole)"
    )


def _lines(
    path: Path, separator: str, fields: int, skip_header: bool = False, encoding: str = "utf-8"
) -> Iterator[list[str]]:
    """The fields of each line; UsageError with file and line number where there are fewer than ``fields``."""
    try:
        lines = path.read_text(encoding=encoding).split("\n")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not {encoding} text: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or (skip_header and number == 1):
            continue
        found = line.rstrip("\r").split(separator)
        if len(found) < fields:
            raise UsageError(f"{path}, line {number}: {len(found)} fields, expected {fields}")
        yield found


def _ratings(path: Path, rows: list[list[str]], users: dict, items: dict) -> Ratings:  # type: ignore[type-arg]
    if not rows:
        raise UsageError(f"{path}: no ratings")
    user, item = (np.array([int(r[k]) for r in rows]) for k in (0, 1))
    rating, time = np.array([float(r[2]) for r in rows]), np.array([int(float(r[3])) for r in rows])
    for known, ids, what in ((users, user, "user"), (items, item, "item")):
        if missing := sorted(set(ids.tolist()) - set(known)):
            raise UsageError(f"{path}: {what} {missing[0]} is rated but not described")
    order = np.argsort(time, kind="stable")
    return Ratings(user[order], item[order], rating[order], time[order], users, items)


def _read_grouplens(folder: Path) -> Ratings:
    genres = [f[0] for f in _lines(folder / "u.genre", "|", 2)]
    users = {int(f[0]): (float(f[1]), f[2], f[3], f[4]) for f in _lines(folder / "u.user", "|", 5)}
    items = {}
    for f in _lines(folder / "u.item", "|", 5 + len(genres), encoding="latin-1"):
        found = re.search(r"\((\d{4})\)\s*$", f[1])
        title = f[1][: found.start()] if found else f[1]
        named = tuple(g for g, flag in zip(genres, f[5:], strict=False) if flag == "1")
        items[int(f[0])] = (title, float(found[1]) if found else 0.0, named)
    path = folder / "u.data"
    return _ratings(path, list(_lines(path, "\t", 4)), users, items)


def _read_recbole(inter: Path) -> Ratings:
    users = {
        int(f[0]): (float(f[1]), f[2], f[3], f[4])
        for f in _lines(inter.with_suffix(".user"), "\t", 5, skip_header=True)
    }
    items = {}
    for f in _lines(inter.with_suffix(".item"), "\t", 4, skip_header=True):
        items[int(f[0])] = (f[1], float(f[2]) if f[2].isdigit() else 0.0, tuple(f[3].split()))
    return _ratings(inter, list(_lines(inter, "\t", 4, skip_header=True)), users, items)


def _columns(data: Ratings) -> tuple[Columns, tuple[Feature, ...]]:
    """Every column that the files can give, and its feature."""
    genres = sorted({g for _, _, named in data.items.values() for g in named})
    number = {g: k + 1 for k, g in enumerate(genres)}
    genre_ids = {k: [number[g] for g in named] for k, (_, _, named) in data.items.items()}
    users = [data.users[k] for k in data.user.tolist()]
    items = [data.items[k] for k in data.item.tolist()]
    item_rows, user_rows, genre_rows = max(data.items) + 1, max(data.users) + 1, len(genres) + 1
    columns: Columns = {
        "user_id": data.user,
        "item_id": data.item,
        "age": np.array([u[0] for u in users], np.float32),
        "gender": _text([u[1] for u in users]),
        "occupation": _text([u[2] for u in users]),
        "zip": _text([u[3] for u in users]),
        "zip_area": _text([u[3][:2] for u in users]),
        "year": np.array([i[1] for i in items], np.float32),
        "hour": data.time // 3600 % 24,
        "weekday": data.time // 86400 % 7,
        "genres": Bag.of([genre_ids[k] for k in data.item.tolist()], np.int64),
        "title_words": Bag.of([[w.lower().encode() for w in i[0].split()] for i in items], object),
    }
    columns |= _histories(data, genre_ids)
    features = (
        Feature("user_id", "id", user_rows, 16, wide=True),
        Feature("item_id", "id", item_rows, 16, table="item", wide=True),
        Feature("age", "buckets", width=4, boundaries=AGES),
        Feature("gender", "vocabulary", width=4, vocabulary=tuple(sorted({u[1] for u in data.users.values()}))),
        Feature(
            "occupation",
            "vocabulary",
            width=8,
            vocabulary=tuple(sorted({u[2] for u in data.users.values()})),
            wide=True,
        ),
        Feature("zip", "hashed", 500, 8),
        Feature("zip_area", "hashed", 120, 6),
        Feature("year", "buckets", width=6, boundaries=YEARS, wide=True),
        Feature("hour", "id", 24, 4),
        Feature("weekday", "id", 7, 4),
        Feature("genres", "bag", genre_rows, 8, table="genre", wide=True),
        Feature("title_words", "hashed_bag", 1500, 8),
        Feature("liked_genres", "weighted_bag", genre_rows, 8, combiner="mean", table="genre"),
        Feature("disliked_genres", "weighted_bag", genre_rows, 8, combiner="mean"),
        Feature("liked_items", "sequence", item_rows, 16, table="item"),
        Feature("disliked_items", "sequence", item_rows, 16, table="item"),
        Feature("user_ratings", "buckets", width=4, boundaries=COUNTS),
        Feature("item_ratings", "buckets", width=4, boundaries=COUNTS, wide=True),
    )
    return columns, features


def _text(values: list[str]) -> np.ndarray:
    return np.array([v.encode() for v in values], object)


def _histories(data: Ratings, genre_ids: dict[int, list[int]]) -> Columns:
    """What was known before each rating: the user's last liked and disliked items, their genres, and counts."""
    rows = len(data.user)
    recent = {True: np.zeros((rows, HISTORY), np.int64), False: np.zeros((rows, HISTORY), np.int64)}
    genres: dict[bool, list[dict[int, float]]] = {True: [], False: []}
    counts = np.zeros((2, rows), np.float32)
    items_of: dict[tuple[int, bool], collections.deque[int]] = collections.defaultdict(
        lambda: collections.deque(maxlen=HISTORY)
    )
    genres_of: dict[tuple[int, bool], dict[int, int]] = collections.defaultdict(dict)
    profiles: dict[tuple[int, bool], dict[int, float]] = {}  # the share of each of the six commonest genres
    seen: collections.Counter[tuple[str, int]] = collections.Counter()
    liked = (data.rating >= LIKED).tolist()
    for row, (user, item) in enumerate(zip(data.user.tolist(), data.item.tolist(), strict=True)):
        for which in (True, False):
            past = items_of[user, which]
            recent[which][row, : len(past)] = list(past)[::-1]  # the newest first
            genres[which].append(profiles.get((user, which), {}))
        counts[:, row] = seen["user", user], seen["item", item]
        items_of[user, liked[row]].append(item)
        taste = genres_of[user, liked[row]]
        for genre in genre_ids[item]:
            taste[genre] = taste.get(genre, 0) + 1
        top = sorted(taste.items(), key=lambda pair: -pair[1])[:6]
        total = sum(count for _, count in top)
        profiles[user, liked[row]] = {genre: count / total for genre, count in top}
        seen["user", user] += 1
        seen["item", item] += 1
    bags = {k: Bag.of([list(g) for g in v], np.int64, [list(g.values()) for g in v]) for k, v in genres.items()}
    return {
        "liked_genres": bags[True],
        "disliked_genres": bags[False],
        "liked_items": recent[True],
        "disliked_items": recent[False],
        "user_ratings": counts[0],
        "item_ratings": counts[1],
    }
