"""Hash files and bundles as sources: statistics, differences with the checkpoint, export."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.inspection.tables import fill, make, save
from tfctr.cli.main import main
from tfctr.core import library
from tfctr.embedding.inspection import differences, statistics
from tfctr.embedding.inspection.sources import open_source

ROWS = 3000


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, tfctr.EmbeddingVariable]:
    table = make(record_frequency=True)
    keys = np.random.default_rng(2).permutation(10**6)[:ROWS]
    fill(table, keys, values=np.random.default_rng(2).normal(size=(ROWS, 4)))
    return save(tmp_path_factory.mktemp("frozen") / "ckpt", 50, users=table), table


def freeze(prefix: str, path: Path, storage: str = "float32") -> str:
    library.native().build_hash_table_from_checkpoint(prefix, "users", path, storage)
    return str(path)


@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16", "int8"])
def test_a_hash_file_is_its_checkpoint(saved, tmp_path, storage, capsys):
    prefix, table = saved
    path = freeze(prefix, tmp_path / "users.hash", storage)
    frozen = open_source(path).table("users")
    assert (frozen.rows, frozen.dim, frozen.storage, frozen.step) == (ROWS, 4, storage, 50)
    told = statistics.collect(frozen)
    norms = np.sqrt((table.export().values.astype(np.float64) ** 2).sum(1))
    np.testing.assert_allclose([told.norms.least, told.norms.most], [norms.min(), norms.max()], rtol=0.05)
    assert told.top_by == "norm" and told.frequency is None and told.memory is None
    found = differences.compare(open_source(prefix), open_source(path), tolerance=0.05)
    assert not found.differs and "frequency, last_step, last_time, slots/accumulator not compared" in found.remarks[0]
    exact = differences.compare(open_source(path), open_source(prefix)).tables[0]
    assert bool(exact.changed) == (storage != "float32") and exact.columns[0].largest < 0.05
    assert main(["ckpt", "diff", prefix, path, "--tolerance", "0.05"]) == 0
    text = (main(["ckpt", "inspect", path]), capsys.readouterr().out)[1]
    assert re.search(r"users +3,000 +4 +int64 ", text)


def test_a_hash_file_to_a_checkpoint(saved, tmp_path):
    prefix, table = saved
    path = freeze(prefix, tmp_path / "users.hash")
    for name in ("users.npz", "users.parquet"):
        assert main(["ckpt", "export", path, str(tmp_path / name)]) == 0
        out = str(tmp_path / f"from-{name}")
        assert main(["ckpt", "import", str(tmp_path / name), out]) == 0
        again = make(record_frequency=True)
        tf.train.Checkpoint(users=again).read(out).assert_existing_objects_matched()
        keys = table.keys()
        np.testing.assert_array_equal(again.lookup(keys), table.lookup(keys))
        assert again.size() == ROWS


def test_an_overlay_goes_before_its_file(saved, tmp_path):
    from tfctr.embedding.inspection.frozen import _hash_table

    prefix, table = saved
    base, native = freeze(prefix, tmp_path / "users.hash"), library.native()
    keys = np.sort(table.keys())
    changed, removed = np.concatenate([keys[:5], [-7]]), keys[10:14]
    rows = np.full((6, 4), 2.0, np.float32)
    native.write_delta_file(tmp_path / "d", "users", changed, rows, removed, hashed=True, dtype="float32", width=4)
    native.build_overlay(tmp_path / "o", base, None, [str(tmp_path / "d")])
    one, two = _hash_table("users", base, None), _hash_table("users", base, str(tmp_path / "o"))
    assert two.rows == ROWS + 1 - 4
    found = differences.compare_tables(one, two)
    assert (found.added, found.removed, found.changed) == (1, 4, 5)
    assert found.examples["added"] == [-7] and found.examples["removed"] == removed.tolist()
    rows = {
        int(k): v
        for b in zip(two.columns["keys"].blocks(100), two.columns["values"].blocks(100), strict=True)
        for k, v in zip(*b, strict=True)
    }
    assert len(rows) == two.rows
    np.testing.assert_array_equal(rows[-7], [2, 2, 2, 2])
    np.testing.assert_array_equal(rows[int(keys[20])], table.lookup(keys[20]))


def test_damage(saved, tmp_path, capsys):
    prefix, _ = saved
    path = Path(freeze(prefix, tmp_path / "users.hash"))
    whole = path.read_bytes()
    path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    assert main(["ckpt", "inspect", str(path), "--json"]) == 2
    assert str(path) in capsys.readouterr().err
    path.write_bytes(whole[: len(whole) // 2])
    assert main(["ckpt", "inspect", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and "expected a checkpoint, a SavedModel, a bundle or a hash file" in error
    static = tmp_path / "t.table"
    native = library.native()
    native.write_table(static, "t", np.ones((3, 2), np.float32))
    assert main(["ckpt", "inspect", str(static)]) == 2
    assert "a table file, expected a checkpoint" in capsys.readouterr().err


def test_empty_and_one_key(tmp_path, capsys):
    for n in (0, 1):
        table = make()
        fill(table, np.arange(n))
        prefix = save(tmp_path / f"ckpt{n}", users=table)
        path = freeze(prefix, tmp_path / f"{n}.hash")
        capsys.readouterr()
        assert main(["ckpt", "inspect", path, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["tables"][0]["rows"] == n
        assert main(["ckpt", "diff", prefix, path]) == 0


def test_versions_of_a_bundle(base, tmp_path, capsys):
    """A converted model and versions of it with deltas: frozen and static tables, overlays included."""
    assert main(["ckpt", "inspect", str(base.bundle)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"bundle {base.bundle}\n") and re.search(r"users +40 +8 +int64 ", text)
    assert re.search(r"items +float32 +\[60, 8\] +1.9 KB", text)
    tfctr.apply_delta(base.bundle, base.deltas[:2], tmp_path / "v2")
    old, new = (version.rows for version in (base.expected[0], base.expected[2]))
    users = open_source(tmp_path / "v2").table("users")
    assert users.rows == len(new["users"]) and len(users.saves) == 2
    found = differences.compare(open_source(base.bundle), open_source(tmp_path / "v2"))
    (table,) = found.tables
    kept = old["users"].keys() & new["users"].keys()
    assert (table.added, table.removed) == (len(new["users"]) - len(kept), len(old["users"]) - len(kept))
    assert table.changed == sum(not np.array_equal(old["users"][key], new["users"][key]) for key in kept)
    variables = {one.name: one.changed for one in found.variables}
    for name in ("items", "whole"):
        assert variables[name] == sum(not np.array_equal(old[name][key], new[name][key]) for key in old[name])
    assert main(["ckpt", "export", str(tmp_path / "v2"), str(tmp_path / "items.npz"), "--table", "items"]) == 0
    with np.load(tmp_path / "items.npz") as arrays:
        np.testing.assert_array_equal(arrays["values"], np.stack([new["items"][key] for key in range(60)]))
    # The model that the bundle was made from.
    model = base.bundle.parent / "model"
    capsys.readouterr()
    assert main(["ckpt", "diff", str(model), str(base.bundle)]) == 0
    assert "variables are not compared: one side is a bundle" in capsys.readouterr().out
    assert main(["ckpt", "diff", str(model), str(tmp_path / "v2"), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["tables"][0]["changed"] == table.changed
