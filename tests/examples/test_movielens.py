"""MovieLens in both file layouts: the same ratings give the same columns, and a broken file is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples import movielens
from examples.schema import Bag
from tfctr.errors import UsageError

USERS = ((1, 24, "M", "technician", "85711"), (2, 53, "F", "other", "94043"), (3, 23, "M", "writer", "V5A2B"))
ITEMS = ((1, "Toy Story", 1995, ("Animation", "Comedy")), (2, "Été à Paris", 1996, ()), (5, "Heat", 1995, ("Action",)))
GENRES = ("unknown", "Action", "Animation", "Comedy")


def _ratings() -> list[tuple[int, int, int, int]]:
    rng = np.random.default_rng(0)
    times = rng.permutation(50) * 1000 + 881_250_949
    return [(int(rng.integers(1, 4)), int(rng.choice([1, 2, 5])), int(rng.integers(1, 6)), int(t)) for t in times]


def _grouplens(folder: Path) -> Path:
    folder.mkdir()
    (folder / "u.data").write_text("".join("\t".join(map(str, r)) + "\n" for r in _ratings()))
    (folder / "u.user").write_text("".join("|".join(map(str, u)) + "\n" for u in USERS))
    (folder / "u.genre").write_text("".join(f"{g}|{k}\n" for k, g in enumerate(GENRES)) + "\n")
    lines = [
        "|".join([str(k), f"{t} ({y})", f"01-Jan-{y}", "", "http://x", *("01"[g in named] for g in GENRES)]) + "\n"
        for k, t, y, named in ITEMS
    ]
    (folder / "u.item").write_text("".join(lines), encoding="latin-1")
    return folder


def _recbole(folder: Path) -> Path:
    folder.mkdir()

    def write(suffix: str, header: str, rows: list[tuple[object, ...]]) -> None:
        lines = [header, *("\t".join(map(str, row)) for row in rows)]
        (folder / f"ml.{suffix}").write_text("\n".join(lines) + "\n", encoding="utf-8")

    write("inter", "user_id:token\titem_id:token\trating:float\ttimestamp:float", _ratings())
    write("user", "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token", list(USERS))
    items: list[tuple[object, ...]] = [(k, t, y, " ".join(named)) for k, t, y, named in ITEMS]
    write("item", "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq", items)
    return folder


def test_both_layouts_give_the_same_columns(tmp_path: Path) -> None:
    one, other = movielens.load(_grouplens(tmp_path / "g")), movielens.load(_recbole(tmp_path / "r"))
    assert one.features == other.features
    np.testing.assert_array_equal(one.train_labels, other.train_labels)
    assert len(one.test_labels) == 5
    for name, column in one.train.items():
        match = other.train[name]
        for part in ("values", "splits", "weights") if isinstance(column, Bag) else ("",):
            left, right = (getattr(c, part) if part else c for c in (column, match))
            np.testing.assert_array_equal(left, right, err_msg=name)


def test_test_rows_are_the_latest_and_histories_look_back(tmp_path: Path) -> None:
    data = movielens.load(_recbole(tmp_path / "r"))
    ordered = sorted(_ratings(), key=lambda r: r[3])
    np.testing.assert_array_equal(data.test["user_id"], [r[0] for r in ordered[45:]])
    np.testing.assert_array_equal(data.test_labels, [float(r[2] >= 4) for r in ordered[45:]])
    user = ordered[45][0]
    liked = [r[1] for r in ordered[:45] if r[0] == user and r[2] >= 4][-movielens.HISTORY :][::-1]
    history = np.asarray(data.test["liked_items"])[0]
    assert history[history > 0].tolist() == liked


def test_bad_folders_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        movielens.load(tmp_path / "none")
    with pytest.raises(UsageError, match=r"no MovieLens-100k here; expected u\.data"):
        movielens.load(tmp_path)
    folder = _grouplens(tmp_path / "g")
    (folder / "u.user").write_text("1|24|M\n")
    with pytest.raises(UsageError, match=r"u\.user, line 1: 3 fields, expected 5"):
        movielens.load(folder)
    (folder / "u.user").write_text("1|24|M|writer|1\n")
    with pytest.raises(UsageError, match="user 2 is rated but not described"):
        movielens.load(folder)
    (folder / "u.data").write_text("1\tone\t3\t4\n")
    with pytest.raises(UsageError, match="invalid literal"):
        movielens.load(folder)
