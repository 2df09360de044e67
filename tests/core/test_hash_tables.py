"""Hash files through the Python face: a NumPy reading of the documented bytes agrees, storage, checkpoints, faults."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfctr
from tfctr.core import library
from tfctr.errors import CorruptFileError

native = library.native()
INT64 = np.iinfo(np.int64)
MASK = 2**64 - 1
LINE = np.dtype(
    [("keys", "<i8", 7), ("first", "<u4"), ("count", "<u2"), ("overflow", "<u2")]
)  # docs/bundle_format.md, "Hash file"


def metadata(path: Path) -> dict[str, str]:
    """The metadata text of a container, unescaped by hand."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[-64 + 32 : -64 + 40], "little")
    lines = raw[-64 - size : -64].decode().splitlines()
    text = dict(line.split(" ", 1) for line in lines)
    return {k: bytes(v, "ascii").decode().replace("%20", " ").replace("%22", '"') for k, v in text.items()}


def read_by_hand(path: Path) -> tuple[dict[int, bytes], bytes]:
    """Key -> stored row, and the default row, from the bytes as the page describes them."""
    raw, told = path.read_bytes(), metadata(path)
    assert raw[-64:-56] == b"TFCTRHSH"
    stride, rows, lines = int(told["row_bytes"]), int(told["rows"]), int(told["lines"])
    index = np.frombuffer(raw, LINE, lines, int(told["index_offset"]))
    found, row, overflow = {}, 0, np.zeros(lines, np.uint16)
    for at, line in enumerate(index):
        assert line["first"] == row
        assert not line["keys"][line["count"] :].any()
        for key in line["keys"][: line["count"]].tolist():
            x = key_hash(key, int(told["salt"], 16))
            at_home = x * int(told["homes"]) >> 64
            assert at_home <= at
            overflow[at_home:at] |= 1 << (x & 15)
            found[key] = raw[row * stride : (row + 1) * stride]
            row += 1
    np.testing.assert_array_equal(index["overflow"], overflow)
    assert row == rows
    return found, raw[rows * stride : (rows + 1) * stride]


def key_hash(key: int, salt: int) -> int:
    x = (key & MASK) ^ salt
    x = x * 0x9E3779B97F4A7C15 & MASK
    x ^= x >> 32
    x = x * 0xD6E8FEB86659FD93 & MASK
    return x ^ x >> 29


def some_table(n: int, dim: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(INT64.min, INT64.max, n, np.int64))
    rng.shuffle(keys)
    return keys, rng.normal(size=(len(keys), dim)).astype(np.float32)


int64s = st.one_of(st.integers(INT64.min, INT64.max), st.integers(-3, 3), st.sampled_from([INT64.min, INT64.max]))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_key_is_found(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("hash") / "t"
    keys = data.draw(st.lists(int64s, unique=True, max_size=60))
    dim = data.draw(st.integers(1, 20))
    rows = np.arange(len(keys) * dim, dtype=np.float32).reshape(-1, dim)
    default = np.full(dim, -1, np.float32)
    info = native.build_hash_table(path, "t", np.array(keys, np.int64), rows, default)
    assert (info["rows"], info["dim"], info["row_bytes"]) == (len(keys), dim, -(-4 * dim // 16) * 16)
    table = native.HashTable(path)
    asked = np.array(keys + data.draw(st.lists(int64s, max_size=10)), np.int64)
    places = {key: i for i, key in enumerate(keys)}
    expected = np.array([rows[places[k]] if k in places else default for k in asked.tolist()]).reshape(-1, dim)
    np.testing.assert_array_equal(table.rows(asked), expected)
    numbers = table.find(asked)
    assert [n < len(keys) for n in numbers] == [k in places for k in asked.tolist()]
    assert sorted(numbers[: len(keys)].tolist()) == list(range(len(keys)))
    np.testing.assert_array_equal(table.keys(0, len(keys))[numbers[: len(keys)]], asked[: len(keys)])
    by_hand, default_row = read_by_hand(path)
    width = 4 * dim
    assert {k: np.frombuffer(r[:width], np.float32).tolist() for k, r in by_hand.items()} == {
        k: rows[i].tolist() for k, i in places.items()
    }
    assert default_row == default.tobytes().ljust(info["row_bytes"], b"\0")
    native.verify_file(path)


@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16", "int8"])
def test_storage(tmp_path, storage):
    keys, rows = some_table(1000, 17)
    rows[3], rows[4] = 0, 1e-40
    default = np.linspace(-1, 1, 17, dtype=np.float32)
    info = native.build_hash_table(tmp_path / "t", "t", keys, rows, default, storage=storage)
    table = native.HashTable(tmp_path / "t")
    if storage == "int8":
        scale = np.abs(rows).max(1, keepdims=True) / np.float32(127)
        scale[scale < np.finfo(np.float32).tiny] = 0
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = np.where(scale > 0, np.rint(rows / scale), 0).astype(np.float32) * scale
    else:
        expected = rows.astype({"bfloat16": ml_dtypes.bfloat16}.get(storage, storage)).astype(np.float32)
    np.testing.assert_array_equal(table.rows(keys), expected)
    assert info["max_abs_error"] == np.abs(expected.astype(np.float64) - rows).max()
    np.testing.assert_array_equal(table.values(len(keys), 1), table.rows([[~keys[0]]])[0])
    # Rows as they are stored make the same file.
    numbers = table.find(keys)
    stored = table.stored(0, len(keys))[numbers]
    again = native.build_hash_table(
        tmp_path / "again", "t", keys, stored, table.stored(len(keys), 1)[0], dim=17, storage=storage
    )
    assert again["fingerprint"] == info["fingerprint"]
    assert (tmp_path / "again").read_bytes() == (tmp_path / "t").read_bytes()


def test_rows_from_a_function_in_windows(tmp_path):
    keys, rows = some_table(5000, 5)
    asked = []

    def blocks(first, n):
        asked.append((first, n))
        return rows[first : first + n]

    told = []
    options = {"dim": 5, "metadata": {"step": 7, "config": "{}"}}
    one = native.build_hash_table(tmp_path / "a", "t", keys, rows, **options)
    native.build_hash_table(
        tmp_path / "b", "t", keys, blocks, window_bytes=60000, progress=lambda *p: told.append(p), **options
    )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    passes = -(-5001 * 32 // 60000)
    assert sum(n for _, n in asked) == passes * 5000
    assert told[-1] == (passes * 5000 * 20, passes * 5000 * 20)
    assert (one["step"], one["config"], one["source"]) == (7, "{}", None)


def test_what_a_function_raises_comes_out(tmp_path):
    def broken(first, n):
        raise KeyError("no such block")

    with pytest.raises(KeyError, match="no such block"):
        native.build_hash_table(tmp_path / "t", "t", [1], broken, dim=2)
    with pytest.raises(ValueError, match=r"rows from the function are float64 \(1, 2\), expected float32 \(1, 2\)"):
        native.build_hash_table(tmp_path / "t", "t", [1], lambda *_: np.zeros((1, 2)), dim=2)
    with pytest.raises(ZeroDivisionError):
        native.build_hash_table(tmp_path / "t", "t", [1], np.zeros((1, 2), np.float32), progress=lambda *_: 1 // 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("keys", "rows", "options", "message"),
    [
        ([1, 1], np.zeros((2, 2), np.float32), {}, r"table 't': key 1 is given twice \(rows 0 and 1\)"),
        ([1.5], np.zeros((1, 2), np.float32), {}, "keys are float64, expected whole numbers"),
        (np.array([1], np.uint64), np.zeros((1, 2), np.float32), {}, "keys are uint64"),
        ([True], np.zeros((1, 2), np.float32), {}, "keys are bool"),
        ([[1]], np.zeros((1, 2), np.float32), {}, "keys are of rank 2"),
        ([1], np.zeros((2, 2), np.float32), {}, r"rows are float32 \(2, 2\), expected float32 \(1, 2\)"),
        ([1], np.zeros((1, 2)), {}, "rows are float64"),
        ([1], np.zeros((1, 0), np.float32), {}, "dim is 0"),
        ([1], np.zeros((1, 2), np.float32), {"storage": "float64"}, "storage is 'float64'"),
        ([1], np.zeros((1, 2), np.float32), {"default_row": np.zeros(3, np.float32)}, "the default row's values are"),
        ([1], lambda *_: None, {}, "dim must be given"),
        ([1], np.full((1, 2), np.nan, np.float32), {"storage": "int8"}, "holds NaN, so it can't be stored as int8"),
        ([1], np.full((1, 2), 1e30, np.float32), {"storage": "float16"}, "too large, so it can't be stored"),
    ],
)
def test_refusals(tmp_path, keys, rows, options, message):
    with pytest.raises(ValueError, match=message):
        native.build_hash_table(tmp_path / "t", "t", keys, rows, **options)
    assert list(tmp_path.iterdir()) == []


def test_damage(tmp_path):
    path = tmp_path / "t"
    keys, rows = some_table(1000)
    info = native.build_hash_table(path, "t", keys, rows)
    good = path.read_bytes()
    offset = int(metadata(path)["index_offset"])

    def damaged(at: int) -> None:
        bad = bytearray(good)
        bad[at] ^= 4
        path.write_bytes(bad)

    damaged(5000)  # a row
    native.HashTable(path)
    with pytest.raises(native.CorruptFile, match="checksum of bytes 0 to"):
        native.HashTable(path).verify()
    damaged(offset + 640 + 56)  # a line's first row
    with pytest.raises(native.CorruptFile, match="checksum"):
        native.verify_file(path)
    damaged(offset + 60)  # the first line's count
    native.HashTable(path)
    damaged(offset + 56)  # the first line's row
    with pytest.raises(native.CorruptFile, match=r"does not count \d+ keys"):
        native.HashTable(path)
    for at in (info["file_bytes"] - 1, info["file_bytes"] - 64, info["file_bytes"] - 70):
        damaged(at)
        with pytest.raises(native.CorruptFile, match="t'"):
            native.HashTable(path)
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(native.CorruptFile):
        native.hash_info(path)


# Checkpoints.


def saved(tmp_path: Path, keys: np.ndarray, rows: np.ndarray, **options) -> str:
    """A checkpoint of an embedding variable with these rows; its prefix."""
    variable = tfctr.EmbeddingVariable(rows.shape[1], "user_id", **options)
    if len(keys):
        tfctr.warm_start.from_numpy(variable, keys, rows)
    return tf.train.Checkpoint(model=variable).write(str(tmp_path / "ckpt"))


def table_of(prefix: str) -> str:
    (config,) = [name for name, _ in tf.train.list_variables(prefix) if name.endswith("/config")]
    return config.removesuffix("/config")


@pytest.mark.parametrize("n", [0, 1, 2000])
def test_from_a_checkpoint(tmp_path, n):
    keys, rows = some_table(n, 4)
    prefix = saved(tmp_path, keys, rows, default_value=0.25, optimizer=tfctr.optimizers.Adagrad(0.1))
    name = table_of(prefix)
    told = []
    info = native.build_hash_table_from_checkpoint(
        prefix, name, tmp_path / "t", name="user id", progress=lambda *p: told.append(p)
    )
    assert (info["name"], info["source"], info["rows"], info["key_dtype"]) == ("user id", name, n, "int64")
    assert "optimizer" not in json.loads(info["config"])
    assert json.loads(info["config"])["dim"] == 4
    table = native.HashTable(tmp_path / "t")
    np.testing.assert_array_equal(table.rows(keys), rows)
    np.testing.assert_array_equal(table.rows([5, 6]), np.full((2, 4), 0.25, np.float32))
    table.verify()
    assert told[-1:] == [(n * 16, n * 16)] * bool(n)
    narrow = native.build_hash_table_from_checkpoint(prefix, name, tmp_path / "n", "float16")
    np.testing.assert_array_equal(
        native.HashTable(tmp_path / "n").rows(keys), rows.astype(np.float16).astype(np.float32)
    )
    assert narrow["storage"] == "float16"
    assert narrow["name"] == name


def test_a_sliced_checkpoint(tmp_path):
    """More rows than one slice holds; several windows read them again."""
    keys, rows = some_table(150_000, 2)
    prefix = saved(tmp_path, keys, rows)
    index = {entry["key"]: entry for entry in native.read_checkpoint_index(prefix)}
    assert len(index[f"{table_of(prefix)}/values"]["slices"]) > 1
    native.build_hash_table_from_checkpoint(prefix, table_of(prefix), tmp_path / "t")
    np.testing.assert_array_equal(native.HashTable(tmp_path / "t").rows(keys), rows)


def test_checkpoint_refusals(tmp_path):
    keys, rows = some_table(100, 4)
    rows[7, 2] = 1e30
    prefix = saved(tmp_path, keys, rows)
    name = table_of(prefix)
    out = tmp_path / "t"
    with pytest.raises(ValueError, match=rf"'nobody' of checkpoint '.*': there is no tensor .*; it has '{name}'"):
        native.build_hash_table_from_checkpoint(prefix, "nobody", out)
    with pytest.raises(ValueError, match="row .* too large, so it can't be stored as float16"):
        native.build_hash_table_from_checkpoint(prefix, name, out, "float16")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        native.build_hash_table_from_checkpoint(tmp_path / "nothing", name, out)
    entry = {e["key"]: e for e in native.read_checkpoint_index(prefix)}[f"{name}/values"]
    data = Path(entry["shard"])
    good = data.read_bytes()
    data.write_bytes(good[: entry["offset"] + 9] + b"\xff" + good[entry["offset"] + 10 :])
    with pytest.raises(native.CorruptFile, match="values"):
        native.build_hash_table_from_checkpoint(prefix, name, out)
    assert not out.exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


# tfctr.load_table of a single file (bundles: tests/bundle/test_tables.py).


def test_load_table(tmp_path):
    keys, rows = some_table(300)
    native.build_hash_table(tmp_path / "t.hash", "user", keys, rows, metadata={"step": 5, "key_dtype": "int64"})
    for huge_pages in (False, True):
        table = tfctr.load_table(tmp_path / "t.hash", huge_pages=huge_pages)
        assert (len(table), table.dim, table.name, table.info["step"]) == (len(keys), 3, "user", 5)
        np.testing.assert_array_equal(table.lookup(keys.reshape(2, -1)), rows.reshape(2, -1, 3))
        np.testing.assert_array_equal(table.lookup([]), np.zeros((0, 3), np.float32))
        assert table.lookup(int(keys[0])).shape == (3,)
        assert table.contains([keys[0], 17]).tolist() == [True, False]
        order = {key: i for i, key in enumerate(keys.tolist())}
        np.testing.assert_array_equal(table.rows(), rows[[order[k] for k in table.keys().tolist()]])
    assert "300 rows of 3 numbers, float32" in repr(table)
    with pytest.raises(tfctr.errors.InputError, match="keys are strings, expected whole numbers"):
        table.lookup(["a"])
    with pytest.raises(tfctr.errors.InputError, match="float64"):
        table.lookup([1.5])
    with pytest.raises(tfctr.errors.UsageError, match="no tables by name"):
        tfctr.load_table(tmp_path / "t.hash", "user")
    with pytest.raises(tfctr.errors.UsageError, match="cannot open"):
        tfctr.load_table(tmp_path / "nothing")
    with pytest.raises(tfctr.errors.UsageError, match="no tfctr bundle"):
        tfctr.load_table(tmp_path)
    (tmp_path / "t.hash").write_bytes(b"x" * 100)
    with pytest.raises(CorruptFileError, match="no footer"):
        tfctr.load_table(tmp_path / "t.hash")


def test_load_table_with_string_keys(tmp_path):
    words = ["a", b"b", "", "\u00fc", "x" * 1000]
    keys = native.fingerprint64(words)
    expected = tf.bitcast(tf.fingerprint(tf.constant(words)[:, None]), tf.int64).numpy()
    np.testing.assert_array_equal(keys, expected.reshape(-1))
    rows = np.arange(5, dtype=np.float32)[:, None]
    native.build_hash_table(tmp_path / "t", "words", keys, rows, metadata={"key_dtype": "string"})
    table = tfctr.load_table(tmp_path / "t")
    assert table.lookup([["a", "nobody"], ["x" * 1000, ""]]).reshape(-1).tolist() == [0, 0, 4, 2]
    assert table.contains(["a", "nobody"]).tolist() == [True, False]
    assert table.contains(table.keys()).all()
    with pytest.raises(tfctr.errors.InputError, match="keys are int32, expected strings"):
        table.lookup(np.array([1], np.int32))


def test_load_static_tables(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    native.write_table(tmp_path / "t", "static", rows)
    table = tfctr.load_table(tmp_path / "t")
    np.testing.assert_array_equal(table.lookup([[3], [0]]), rows[[[3], [0]]])
    np.testing.assert_array_equal(table.rows(), rows)
    assert table.contains([-1, 0, 3, 4]).tolist() == [False, True, True, False]
    with pytest.raises(tfctr.errors.InputError, match=r"row 4 is not in \[0, 4\)"):
        table.lookup([4])
    native.write_vocab(tmp_path / "v", "vocab", ["a"], [1])
    with pytest.raises(tfctr.errors.UsageError, match="a vocab file, expected a table or a hash file"):
        tfctr.load_table(tmp_path / "v")


def test_ctrl_c_stops_a_build(tmp_path):
    """In a process of its own: what it was writing is gone, too."""

    def rows(first, n):
        os.kill(os.getpid(), signal.SIGINT)
        return np.zeros((n, 2), np.float32)

    def build() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            native.build_hash_table(tmp_path / "t", "t", np.arange(10), rows, dim=2)
        except KeyboardInterrupt:
            os._exit(3)
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=build)
    child.start()
    child.join()
    assert child.exitcode == 3
    assert list(tmp_path.iterdir()) == []
