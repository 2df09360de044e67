"""Differences of two sources: against NumPy, whatever the order of rows and the number of slices."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.inspection.tables import contents, fill, make, save
from tfctr.cli.main import main
from tfctr.embedding.inspection.differences import compare
from tfctr.embedding.inspection.sources import open_source

ROWS = 70_000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, dict[str, Any]]:
    """Two checkpoints of a sliced table; what came, went and changed."""
    folder = tmp_path_factory.mktemp("pair")
    random = np.random.default_rng(7)
    keys = random.permutation(10**6)[: ROWS + 500]
    table = make(shards=3)
    fill(table, keys[:ROWS], seed=1, counters={-1: (1, 2, 3), -2: (4, 5, 6)})
    a = save(folder / "a", 10, users=table)
    before = contents(table)
    table.erase(keys[:300])
    again = make(shards=7)
    old = before | {"at": np.searchsorted(before["keys"], keys[300:ROWS])}
    values = before["values"][old["at"]].copy()
    values[:40] += np.float32(0.25)
    values[40, 3] = -values[40, 3]
    order = random.permutation(ROWS - 300)
    fill(
        again, keys[300:ROWS][order], values=values[order], frequency=before["frequency"][old["at"]][order],
        last_step=before["last_step"][old["at"]][order], last_time=before["last_time"][old["at"]][order],
    )  # fmt: skip
    slots = {"accumulator": before["slots/accumulator"][old["at"]]}
    tfctr.warm_start.from_numpy(
        again, keys[300:ROWS], values, slots=slots, frequency=before["frequency"][old["at"]]
    )  # steps and times of all rows are others now
    tfctr.warm_start.from_numpy(again, keys[ROWS:], np.ones((500, 4)))
    b = save(folder / "b", 10, users=again)
    told = {"added": set(keys[ROWS:].tolist()), "removed": set(keys[:300].tolist()), "largest_at": int(keys[340])}
    return a, b, told


def test_rows(pair):
    a, b, expected = pair
    found = compare(open_source(a), open_source(b))
    (users,) = found.tables
    assert (users.added, users.removed) == (500, 300)
    assert set(users.examples["added"]) <= expected["added"] and set(users.examples["removed"]) <= expected["removed"]
    columns = {one.name: one for one in users.columns}
    assert columns["values"].changed == 41
    assert columns["slots/accumulator"].changed == columns["frequency"].changed == 0
    assert columns["last_step"].changed > 0
    assert users.changed == columns["last_step"].changed or users.changed >= 41
    assert (users.counters_added, users.counters_removed) == (0, 2)
    assert found.differs


def test_largest_and_mean(pair):
    a, b, _ = pair
    one, two = (tf.train.load_checkpoint(path) for path in (a, b))
    keys, values = zip(*((r.get_tensor("users/keys"), r.get_tensor("users/values")) for r in (one, two)), strict=True)
    _, in_a, in_b = np.intersect1d(*keys, return_indices=True)
    apart = np.abs(values[0][in_a].astype(np.float64) - values[1][in_b])
    column = compare(open_source(a), open_source(b)).tables[0].columns[0]
    assert column.largest == apart.max()
    np.testing.assert_allclose(column.mean, apart.mean())
    assert column.largest_key == keys[0][in_a][apart.max(axis=1).argmax()]


def test_tolerance(pair):
    a, b, _ = pair
    for tolerance, changed in ((0.2, 40), (0.26, 0)):
        column = compare(open_source(a), open_source(b), tolerance=tolerance).tables[0].columns[0]
        assert changed <= column.changed <= changed + 1  # the one whose sign changed may be large


def test_the_other_way_round(pair):
    a, b, _ = pair
    one, two = (compare(open_source(x), open_source(y)).tables[0] for x, y in ((a, b), (b, a)))
    assert (one.added, one.removed, one.changed) == (two.removed, two.added, two.changed)
    assert [(c.changed, c.largest) for c in one.columns] == [(c.changed, c.largest) for c in two.columns]


def test_nothing_differs(pair, capsys):
    a, _, _ = pair
    assert not compare(open_source(a), open_source(a)).differs
    assert main(["ckpt", "diff", a, a]) == 0
    assert "no difference" in capsys.readouterr().out


def test_bits(tmp_path):
    """-0 and 0 are other bits; NaN is like itself."""
    for name, values in (("a", [[0.0, np.nan], [1.0, np.nan]]), ("b", [[-0.0, np.nan], [1.0, 2.0]])):
        write(tmp_path / name, np.arange(2), np.array(values, np.float32))
    (table,) = compare(open_source(tmp_path / "a"), open_source(tmp_path / "b")).tables
    assert (table.changed, table.columns[0].largest) == (2, np.inf)
    (table,) = compare(open_source(tmp_path / "a"), open_source(tmp_path / "b"), tolerance=1e-9).tables
    assert table.changed == 1


def write(prefix: Path, keys: np.ndarray, values: np.ndarray, **more: np.ndarray) -> None:
    from tfctr.core import library

    writer = library.native().CheckpointWriter(prefix)
    writer.add("t/keys", keys.astype(np.int64))
    writer.add("t/values", values)
    for name, array in more.items():
        writer.add(name.replace("__", "/"), array)
    writer.add_text("t/config", json.dumps({"format": 1, "rows": str(len(keys))}).encode())
    writer.finish()


def test_tables_and_variables_that_one_side_lacks(tmp_path, capsys):
    ones = np.ones((3, 2), np.float32)
    write(tmp_path / "a", np.arange(3), ones, t__slots__m=ones, w=ones, n=np.int64([1, 2**62]), only_a=np.ones(2))
    write(tmp_path / "b", np.arange(3), ones, w=ones * 2, n=np.int64([1, 2**62 + 1]), s=np.ones(2))
    assert main(["ckpt", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["tables"][0]["missing"] == [["slots/m", "a"]] and told["tables"][0]["differs"]
    variables = {one["name"]: one for one in told["variables"]}
    assert variables["only_a"]["only"] == "a" and variables["s"]["only"] == "b"
    assert (variables["w"]["changed"], variables["w"]["largest"], variables["w"]["mean"]) == (3, 1, 1)
    assert (variables["n"]["changed"], variables["n"]["largest"]) == (1, 1)
    assert main(["ckpt", "diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 3
    text = capsys.readouterr().out
    assert "only A has slots/m" in text and "1 of 1 tables and 4 of 4 variables differ" in text
    assert main(["ckpt", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--table", "x"]) == 2
    assert "no table 'x'; it has 't'" in capsys.readouterr().err


def test_tables_that_can_not_be_compared(tmp_path, capsys):
    one, two = make(dim=4), make(dim=5)
    a, b = save(tmp_path / "a", users=one), save(tmp_path / "b", users=two, more=make("more"))
    assert main(["ckpt", "diff", a, b]) == 3
    text = capsys.readouterr().out
    assert "rows can't be compared: dim 4 and 5" in text and "only B has this table" in text
    assert "options differ" in text and "default_value, dim" in text


def test_keys_that_come_twice(tmp_path, capsys):
    write(tmp_path / "a", np.array([1, 2, 1]), np.ones((3, 2), np.float32))
    assert main(["ckpt", "diff", str(tmp_path / "a"), str(tmp_path / "a")]) == 2
    assert "table 't': key 1 is there twice" in capsys.readouterr().err
