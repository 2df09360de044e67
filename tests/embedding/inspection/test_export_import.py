"""Export and import: the same tensors to the bit, and tables that restore by every way."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.inspection.tables import assert_equal, fill, make, save, tensors
from tfctr.cli.main import main
from tfctr.embedding import checkpoint

ROWS = 70_000


def run(*argv: object, code: int = 0) -> None:
    assert main(["ckpt", *map(str, argv)]) == code


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, tfctr.EmbeddingVariable]]:
    """A sliced table with everything, one with a Bloom filter and slots per row, one with string keys, an empty one."""
    folder = tmp_path_factory.mktemp("saved")
    random = np.random.default_rng(1)
    tables = {
        "users": make(),
        "items": make("items", 3, admission=tfctr.BloomAdmission(2, 1000), optimizer=tfctr.optimizers.LazyAdam(0.1)),
        "words": make("words", 2, key_dtype=tf.string, admission=None, eviction=None, optimizer=None),
        "empty": make("empty"),
    }
    fill(tables["users"], random.permutation(10**6)[:ROWS], counters={-k: (1, k, k) for k in range(1, 500)})
    fill(tables["items"], np.array([2**63 - 1, -(2**63), 0]))
    tables["items"].lookup(np.arange(50, 90), training=True)
    tfctr.warm_start.from_numpy(tables["words"], ["ä", "b"], np.array([[1.5, -0.0], [1e-45, 3e38]], np.float32))
    return save(folder / "ckpt", 1234, **tables), tables


@pytest.mark.parametrize("fmt", ["npz", "parquet"])
def test_round_trip_is_exact(saved, tmp_path, fmt):
    prefix, tables = saved
    run("export", prefix, tmp_path / "out", "--format", fmt)
    run("import", tmp_path / "out", tmp_path / "again")
    before, after = tensors(prefix), tensors(str(tmp_path / "again"))
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name], name)
        assert np.asarray(array).dtype == np.asarray(after[name]).dtype
    fresh = {
        "users": make(),
        "items": make("items", 3, admission=tfctr.BloomAdmission(2, 1000), optimizer=tfctr.optimizers.LazyAdam(0.1)),
        "words": make("words", 2, key_dtype=tf.string, admission=None, eviction=None, optimizer=None),
        "empty": make("empty"),
    }
    status = tf.train.Checkpoint(**fresh).read(str(tmp_path / "again"))
    status.assert_consumed()
    for name, table in fresh.items():
        assert_equal(table, tables[name])
        assert int(table.step) == 1234
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.data-00000-of-00001", "again.index", "out"]


def test_parquet_is_what_a_warm_start_reads(saved, tmp_path):
    prefix, tables = saved
    run("export", prefix, tmp_path / "users.parquet", "--table", "users")
    table = make()
    slots = {"accumulator": "slots/accumulator"}
    tfctr.warm_start.from_parquet(table, tmp_path / "users.parquet", slots=slots, frequency="frequency")
    mine, theirs = table.export(slots=True), tables["users"].export(slots=True)
    one, two = np.argsort(mine.keys), np.argsort(theirs.keys)
    np.testing.assert_array_equal(mine.values[one], theirs.values[two])
    np.testing.assert_array_equal(mine.slots["accumulator"][one], theirs.slots["accumulator"][two])
    np.testing.assert_array_equal(mine.frequency[one], theirs.frequency[two])


def test_numpy_reads_what_is_written(saved, tmp_path):
    prefix, tables = saved
    run("export", prefix, tmp_path / "items.npz", "--table", "items")
    with np.load(tmp_path / "items.npz") as arrays:
        assert set(arrays) >= {"table", "config", "keys", "values", "slots/momentum", "slots/correction1", "bloom"}
        rows = tables["items"].export()
        np.testing.assert_array_equal(np.sort(arrays["keys"]), np.sort(rows.keys))
        assert json.loads(str(arrays["config"]))["table"]["dim"] == 3
    run("export", prefix, tmp_path / "again.npz", "--table", "items")
    assert (tmp_path / "items.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()


def test_plain_arrays_become_a_table(tmp_path, capsys):
    """Without slots or counts, of other dtypes, in Fortran order: what somebody else's pipeline writes."""
    keys, values = np.array([5, -7, 9], np.int32), np.asfortranarray(np.arange(6.0).reshape(3, 2))
    np.savez_compressed(tmp_path / "users.npz", keys=keys, values=values, comment=np.array("x"))
    run("import", tmp_path / "users.npz", tmp_path / "ckpt")
    assert "users: 3 rows x 2, keys, values; not taken: comment" in capsys.readouterr().out
    for options in ({"optimizer": None, "admission": None, "eviction": None}, {}):  # slots are not missed
        table = make(dim=2, **options)
        tf.train.Checkpoint(users=table).read(str(tmp_path / "ckpt")).assert_existing_objects_matched()
        np.testing.assert_array_equal(table.lookup([9, -7, 5, 4]), [[4, 5], [2, 3], [0, 1], [0, 0]])
    table = make(dim=2)
    checkpoint.restore_tables(str(tmp_path / "ckpt"), {"users": table})
    assert table.size() == 3


def test_columns_by_name(tmp_path):
    """Many files of one table, single columns of numbers, string keys, steps and times."""
    for part in range(3):
        ids = pa.array([f"w{part}", f"v{part}"])
        columns = {
            "word": ids,
            "f0": [1.0, 2.0],
            "f1": [3.0, 4.0],
            "acc": [[1.0, 1.0]] * 2,
            "n": pa.array([3, 4], pa.int32()),
        }
        pa.parquet.write_table(pa.table(columns | {"seen": [7, 8 + part]}), tmp_path / f"part-{part}.parquet")
    files = sorted(tmp_path.glob("part-*.parquet"))
    columns = ["keys=word", "values=f0,f1", "slots/accumulator=acc", "frequency=n", "last_step=seen"]
    run("import", *files, tmp_path / "ckpt", "--name", "model/words", *(f"--column={one}" for one in columns))
    table = make("words", 2, key_dtype=tf.string, eviction=tfctr.StepEviction(5))
    model = tf.Module()
    model.words = table
    tf.train.Checkpoint(model=model).read(str(tmp_path / "ckpt")).assert_consumed()
    np.testing.assert_array_equal(table.lookup(["v2", "w0"]), [[2, 4], [1, 3]])
    assert int(table.step) == 10 and table.frequency(["v1"]).tolist() == [4]
    assert sorted(table.export().last_step) == [7, 7, 7, 8, 9, 10]


def test_options_of_another_table(saved, tmp_path):
    prefix, _ = saved
    np.savez(tmp_path / "new.npz", keys=[1, 2], values=np.ones((2, 4), np.float32))
    run("import", tmp_path / "new.npz", tmp_path / "ckpt", "--like", prefix, "--like-table", "users", "--step", 77)
    told = json.loads(tensors(str(tmp_path / "ckpt"))["new/config"])
    assert told["table"] == json.loads(tensors(prefix)["users/config"])["table"]
    assert told["step"] == "77" and told["left_out"] == ["slots", "counters", "steps"]
    np.savez(tmp_path / "wide.npz", keys=[1, 2], values=np.ones((2, 5), np.float32))
    run("import", tmp_path / "wide.npz", tmp_path / "c", "--like", prefix, "--like-table", "users", code=2)


def test_a_static_table_becomes_one(tmp_path):
    prefix = tf.train.Checkpoint(table=tf.Variable(np.arange(8.0).reshape(4, 2), dtype=tf.float16)).write(
        str(tmp_path / "c")
    )
    run("export", prefix, tmp_path / "t.npz", "--table", "table")
    run("import", tmp_path / "t.npz", tmp_path / "ev")
    table = make("table", 2)
    tf.train.Checkpoint(table=table).read(str(tmp_path / "ev")).assert_existing_objects_matched()
    np.testing.assert_array_equal(table.lookup([3, 0, 4]), [[6, 7], [0, 1], [0, 0]])


def test_root_of_a_checkpoint(tmp_path):
    table = make()
    fill(table, np.arange(5))
    prefix = str(tf.train.Checkpoint(root=table).write(str(tmp_path / "ckpt")))
    run("export", prefix, tmp_path / "t.npz")
    run("import", tmp_path / "t.npz", tmp_path / "again")
    again = make()
    tf.train.Checkpoint(root=again).read(str(tmp_path / "again")).assert_consumed()
    assert_equal(again, table)


def arrays(**changed: object) -> dict[str, np.ndarray]:
    good = {"keys": np.arange(3), "values": np.ones((3, 2), np.float32), "slots/acc": np.ones((3, 1), np.float32)}
    given = good | {"frequency": np.ones(3, np.int64)} | changed
    return {name: np.asarray(array) for name, array in given.items() if array is not None}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"keys": None}, "no array 'keys' for keys; it has values,"),
        ({"values": None}, "no array 'values' for values"),
        ({"keys": [1, 2, 1]}, "table 't': key 1 is there 2 times (rows 0, 2), expected keys once; 1 keys come more"),
        ({"keys": [1.0, 2.0, 3.0]}, "column 'keys' is float64 [3], expected whole numbers [n], or strings"),
        ({"keys": [[1], [2], [3]]}, "column 'keys' is int64 [3, 1], expected [n]"),
        ({"keys": np.array([1, 2, 2**63], np.uint64)}, "column 'keys' holds 9223372036854775808, expected int64"),
        ({"keys": ["a", "b", "a"]}, "a fingerprint of two equal strings is there 2 times (rows 0, 2)"),
        ({"values": np.ones((2, 2))}, "column 'values' is float64 [2, 2], expected [3, width]: a row for each key"),
        ({"values": np.ones(3)}, "column 'values' is float64 [3], expected [3, width]"),
        ({"values": np.full((3, 2), "x")}, "column 'values' is <U1 [3, 2], expected numbers [n, width]"),
        ({"values": np.ones((3, 2), complex)}, "column 'values' is complex128 [3, 2], expected numbers"),
        ({"values": np.ones((3, 0))}, "column 'values' is float64 [3, 0], expected numbers"),
        ({"values": [[1, 2], [np.nan, 1], [1, 1]]}, "values holds nan in row 1, column 0, expected finite numbers"),
        ({"values": [[1, 2], [1, 1e300], [1, 1]]}, "values holds inf in row 1, column 1, expected finite numbers"),
        ({"slots/acc": np.full((3, 1), np.inf)}, "slots/acc holds inf in row 0"),
        ({"slots/acc": np.ones((4, 1))}, "column 'slots/acc' is float64 [4, 1], expected [3, width]"),
        ({"frequency": [1.0, 2.0, 3.0]}, "column 'frequency' is float64 [3], expected whole numbers [n]"),
        ({"frequency": [1, -2, 3]}, "frequency holds -2, expected counts"),
        ({"frequency": [1, 2]}, "column 'frequency' is int64 [2], expected [3]"),
        ({"counters/keys": [9]}, "counters need counters/keys and counters/counts"),
        ({"counters/keys": [9], "counters/counts": [1, 2]}, "counters/counts is int64 [2], expected int64 [1]"),
        ({"counters/keys": [9, 9], "counters/counts": [1, 2]}, "counters/keys holds a key more than once"),
        ({"counters/keys": [8, 9], "counters/counts": [1, -2]}, "counters/counts holds -2, expected counts"),
        ({"bloom": [1, 2]}, "bloom is int64 [2], expected uint8 [bytes]"),
        ({"config": "{}"}, "does not say the format"),
        ({"config": "[" * 5000}, "does not say the format"),
        ({"config": '{"format": 9}'}, "of format 9, written by a newer tfctr"),
        ({"config": '{"format": 1, "table": {"dim": 7}}'}, "values are 2 wide, its configuration says 7"),
        ({"table": "a b"}, "name is 'a b', expected a name of letters"),
        ({"step": [1, 2]}, "array 'step' is int64 [2], expected a whole number"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(tmp_path, capsys, changed, told):
    np.savez(tmp_path / "t.npz", **arrays(**changed))
    run("import", tmp_path / "t.npz", tmp_path / "ckpt", code=2)
    error = capsys.readouterr().err
    assert told in error and "t.npz" in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"value": [[1.0], [2.0]]}, "has no column 'key', expected one of value"),
        ({"key": [1, 2]}, "has no column 'value', expected one of key"),
        ({"key": [1, None], "value": [[1.0], [2.0]]}, "column 'key' holds 1 nulls, expected none"),
        ({"key": [1, 2], "value": [[1.0], [2.0, 3.0]]}, "column 'value' holds lists of 1 to 2 numbers"),
        ({"key": [1, 2], "value": ["a", "b"]}, "column 'value' is string, expected numbers or lists"),
        ({"key": [1.5, 2], "value": [[1.0], [2.0]]}, "column 'key' is float64 [2], expected whole numbers"),
        ({"key": [2, 2], "value": [[1.0], [2.0]]}, "key 2 is there 2 times"),
        ({"key": [1, 2], "value": [[1.0], [float("nan")]]}, "values holds nan in row 1"),
    ],
)
def test_parquet_that_does_not_fit(tmp_path, capsys, columns, told):
    pa.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    run("import", tmp_path / "t.parquet", tmp_path / "ckpt", code=2)
    error = capsys.readouterr().err
    assert told in error and "t.parquet" in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_damaged_files(saved, tmp_path, capsys):
    prefix, _ = saved
    run("export", prefix, tmp_path / "t.npz", "--table", "items")
    run("export", prefix, tmp_path / "t.parquet", "--table", "items")
    for name, told in (("t.npz", "no .npz file, or cut short"), ("t.parquet", "no Parquet file, or damaged")):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / f"cut-{name}").write_bytes(whole[: len(whole) // 2])
        capsys.readouterr()
        run("import", tmp_path / f"cut-{name}", tmp_path / "ckpt", code=2)
        assert told in capsys.readouterr().err
    with zipfile.ZipFile(tmp_path / "t.npz") as archive:
        info = archive.getinfo("values.npy")
    flipped = bytearray((tmp_path / "t.npz").read_bytes())
    flipped[info.header_offset + 30 + len("values.npy") + len(info.extra) + 150] ^= 4
    (tmp_path / "flipped.npz").write_bytes(flipped)
    run("import", tmp_path / "flipped.npz", tmp_path / "ckpt", code=2)
    assert "flipped.npz: array 'values' is damaged" in capsys.readouterr().err
    assert not list(tmp_path.glob("ckpt*")) and not list(tmp_path.glob(".ckpt*"))


def test_flipped_bits_of_an_archive(tmp_path):
    """Anywhere in it: refused, or what is read is what was there."""
    from tfctr.embedding.inspection import npz_files

    for write, name in ((np.savez, "plain"), (np.savez_compressed, "packed")):
        write(tmp_path / name, **arrays())
        whole = (tmp_path / f"{name}.npz").read_bytes()
        for at in range(0, len(whole), 7):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << (at % 8)
            (tmp_path / "flipped.npz").write_bytes(flipped)
            try:
                columns, _, _ = npz_files.read(tmp_path / "flipped.npz")
                found = {key: np.concatenate(list(column.blocks(100))) for key, column in columns.items()}
            except (tfctr.errors.CorruptFileError, tfctr.errors.InputError):
                continue
            for key in found.keys() & arrays().keys():
                np.testing.assert_array_equal(found[key], arrays()[key], f"{name}, byte {at}")


def test_what_is_not_overwritten(saved, tmp_path, capsys):
    prefix, _ = saved
    np.savez(tmp_path / "t.npz", **arrays())
    (tmp_path / "ckpt.index").write_text("")
    cases = [
        (["import", tmp_path / "t.npz", tmp_path / "ckpt"], "ckpt.index: exists already; nothing is overwritten"),
        (["import", tmp_path / "t.npz", tmp_path], "a folder, expected the prefix of a checkpoint"),
        (["import", tmp_path / "t.npz", tmp_path / "no" / "ckpt"], "there is no folder"),
        (["import", tmp_path / "t.csv", tmp_path / "c"], "t.csv: no such file"),
        (["import", prefix + ".index", tmp_path / "c"], "expected a file whose name ends with .npz or .parquet"),
        (["import", tmp_path / "t.npz", tmp_path / "t.npz", tmp_path / "c"], "'t' is the name of two tables"),
        (["import", tmp_path / "t.npz", tmp_path / "t.npz", tmp_path / "c", "--name", "x"], "a table is one .npz file"),
        (["import", tmp_path / "t.npz", tmp_path / "c", "--name", "a b"], "--name: embedding variable: name is 'a b'"),
        (["import", tmp_path / "t.npz", tmp_path / "c", "--column", "id"], "--column 'id': expected TENSOR=COLUMN"),
        (["import", tmp_path / "t.npz", tmp_path / "c", "--column", "id=x"], "--column id=...: expected keys, values"),
        (["import", tmp_path / "t.npz", tmp_path / "c", "--column", "keys=x"], "no array 'x' for keys"),
        (["import", tmp_path / "t.npz", tmp_path / "c", "--like", prefix], "choose one with --like-table"),
        (["export", prefix, tmp_path / "t.npz", "--table", "users"], "t.npz: exists already"),
        (["export", prefix, tmp_path / "x.npz"], "has 4 tables: choose one with --table, or give a folder"),
        (["export", prefix, tmp_path / "x.npz", "--table", "none"], "no table 'none'; it has 'empty', 'items',"),
        (["export", prefix, tmp_path / "x.npz", "--table", "users", "--format", "parquet"], "expected another ending"),
        (["export", prefix, tmp_path / "x.npz", "--table", "users/step"], "'users/step' is int64 [], expected floats"),
        (["export", prefix, tmp_path / "no" / "x.npz", "--table", "users"], "there is no folder"),
    ]  # fmt: skip
    for argv, told in cases:
        capsys.readouterr()
        run(*argv, code=2)
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1, (argv, error)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt.index", "t.npz"]


def test_a_damaged_checkpoint_is_not_exported(tmp_path, capsys):
    table = make()
    fill(table, np.arange(1000))
    prefix = Path(save(tmp_path / "ckpt", users=table))
    data = prefix.with_name("ckpt.data-00000-of-00002")
    flipped = bytearray(data.read_bytes())
    flipped[9000] ^= 1
    data.write_bytes(flipped)
    for name in ("t.npz", "t.parquet"):
        run("export", prefix, tmp_path / name, code=2)
        assert "its checksum is wrong" in capsys.readouterr().err
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [
        ".data-00000-of-00002",
        ".data-00001-of-00002",
        ".index",
    ]


def test_a_rename_that_fails_leaves_nothing(tmp_path, monkeypatch):
    np.savez(tmp_path / "t.npz", **arrays())
    rename = os.rename

    def failing(source: Path, target: str) -> None:
        if str(target).endswith(".index"):
            raise OSError(28, "No space left on device", str(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    run("import", tmp_path / "t.npz", tmp_path / "ckpt", code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]


def test_killed_while_importing(saved, tmp_path):
    """What it left is no checkpoint, and goes with the next import."""
    prefix, _ = saved
    run("export", prefix, tmp_path / "users.npz", "--table", "users")
    program = (
        "import os, signal, sys\n"
        "import tfctr\n"
        "from tfctr.cli.main import main\n"
        "from tfctr.embedding.inspection import importing\n"
        "importing._put_in_place = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(sys.argv[1:])\n"
    )
    argv = [sys.executable, "-c", program, "ckpt", "import", str(tmp_path / "users.npz"), str(tmp_path / "ckpt")]
    done = subprocess.run(
        argv, capture_output=True, timeout=600, check=False, env=os.environ | {"PYTHONPATH": os.getcwd()}
    )
    assert done.returncode == -9, done.stderr
    (left,) = tmp_path.glob(".ckpt*")
    assert not list(tmp_path.glob("ckpt*")) and (left / "part.index").is_file()
    run("import", tmp_path / "users.npz", tmp_path / "ckpt")
    assert not left.exists() and len(list(tmp_path.glob("ckpt*"))) == 2
