"""Table and vocabulary files through the Python face of the storage library."""

import errno
import os
import resource
import struct
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.vocab_bytes import as_earlier_format, crc32c
from tests.fresh import in_fresh_process, private_bytes
from tfctr.core import library
from tfctr.errors import VersionError

native = library.native()
PAGE = 4096
FOOTER = 64
INT64 = np.iinfo(np.int64)


def stored_array(path: Path) -> np.ndarray:
    """What the file holds, read as docs/bundle_format.md says: the array lies at byte 0."""
    info = native.file_info(path)
    dtype = np.dtype(ml_dtypes.bfloat16) if info["dtype"] == "bfloat16" else np.dtype(info["dtype"])
    return np.frombuffer(path.read_bytes()[: info["bytes"]], dtype).reshape(info["shape"])


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (7, 3), (2, 3, 4), (1025,)])
@pytest.mark.parametrize(
    "dtype", ["float32", "float16", ml_dtypes.bfloat16, "float64", "int32", "int64", "uint8", "int8", "bool"]
)
def test_table_round_trip(tmp_path, dtype, shape):
    array = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    info = native.write_table(tmp_path / "t", "emb", array)
    assert info == native.file_info(tmp_path / "t")
    assert (info["kind"], info["name"], info["shape"]) == ("table", "emb", shape)
    assert info["dtype"] == np.dtype(dtype).name
    assert info["bytes"] == array.nbytes
    assert info["checksums"] is True
    assert info["file_bytes"] == (tmp_path / "t").stat().st_size
    np.testing.assert_array_equal(stored_array(tmp_path / "t"), array)
    native.verify_file(tmp_path / "t")
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_table_layout_byte_by_byte(tmp_path):
    """The file is what docs/bundle_format.md says."""
    array = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    info = native.write_table(tmp_path / "t", "a b", array)
    raw = (tmp_path / "t").read_bytes()
    assert raw[:12000] == array.tobytes()
    padded = 3 * PAGE
    assert raw[12000:padded] == bytes(padded - 12000)
    footer = struct.unpack("<8sIIQQQQIIII", raw[-FOOTER:])
    magic, version, flags, data_bytes, checksums, metadata_bytes, fingerprint, block_bytes, *_ = footer
    assert (magic, version, flags, data_bytes, checksums) == (b"TFCTRTAB", 1, 1, 12000, 1)
    assert block_bytes == 8 << 20
    assert f"{fingerprint:016x}" == info["fingerprint"]
    metadata = raw[padded + 4 : padded + 4 + metadata_bytes]
    assert metadata == b"dtype float32\nkind table\nname a%20b\nshape 1000,3\n"
    assert len(raw) == padded + 4 + metadata_bytes + FOOTER
    mask = native.masked_crc32c(array.tobytes())
    (stored,) = struct.unpack("<I", raw[padded : padded + 4])
    assert ((stored >> 15 | stored << 17) + 0xA282EAD8) & 0xFFFFFFFF == mask


def test_odd_memory_orders_are_written_in_c_order(tmp_path):
    array = np.arange(24, dtype=np.float64).reshape(4, 6)
    for i, odd in enumerate([array[:, ::2], np.asfortranarray(array), array.astype(">f8"), array[::-1]]):
        native.write_table(tmp_path / str(i), "t", odd)
        np.testing.assert_array_equal(stored_array(tmp_path / str(i)), odd)


def test_fingerprint_depends_on_values_and_name(tmp_path):
    array = np.zeros(10, np.float32)
    first = native.write_table(tmp_path / "a", "t", array)["fingerprint"]
    assert native.write_table(tmp_path / "b", "t", array)["fingerprint"] == first
    assert native.write_table(tmp_path / "c", "u", array)["fingerprint"] != first
    array[3] = 1
    assert native.write_table(tmp_path / "d", "t", array)["fingerprint"] != first


@pytest.mark.parametrize("bad", [np.zeros(2, np.complex64), np.array(["x"]), np.array([object()])])
def test_table_dtype_that_cannot_be_stored(tmp_path, bad):
    with pytest.raises(ValueError, match=f"table 'emb': a table file cannot hold dtype {bad.dtype.name}"):
        native.write_table(tmp_path / "t", "emb", bad)
    assert not list(tmp_path.iterdir())


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone") as error:
        native.file_info(tmp_path / "gone")
    assert error.value.errno == errno.ENOENT
    with pytest.raises(FileNotFoundError):
        native.write_table(tmp_path / "no" / "t", "t", np.zeros(1))
    with pytest.raises(ValueError, match="not a regular file"):
        native.file_info(tmp_path)
    (tmp_path / "text").write_text("x" * 1000)
    with pytest.raises(native.CorruptFile, match=r"text.*no footer"):
        native.file_info(tmp_path / "text")


def test_damage_is_found(tmp_path):
    path = tmp_path / "t"
    native.write_table(path, "t", np.zeros(5000, np.int64))
    good = path.read_bytes()
    path.write_bytes(good[:-100])
    with pytest.raises(native.CorruptFile):
        native.file_info(path)
    damaged = bytearray(good)
    damaged[777] = 1
    path.write_bytes(damaged)
    native.file_info(path)  # opening reads no data
    with pytest.raises(native.CorruptFile, match="bytes 0 to 39999"):
        native.verify_file(path)


def test_full_disk_is_an_os_error_and_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # SIGXFSZ is ignored by Python
    try:
        with pytest.raises(OSError, match=r"cannot write.*File too large") as error:
            native.write_table(tmp_path / "t", "t", np.zeros(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_surrogate_of_four_gigabytes(tmp_path):
    path = tmp_path / "s"
    rows = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    info = native.write_surrogate_table(path, "s", "float32", [1 << 24, 64], np.array([0, 9, (1 << 24) - 1]), rows)
    assert native.file_info(path) == info
    assert path.stat().st_blocks * 512 < 1 << 20  # holes: nothing of the 4 GB was written
    assert info["bytes"] == 4 << 30
    assert (info["checksums"], info["surrogate"]) == (False, True)
    assert os.stat(path).st_blocks * 512 < 1 << 20
    mapped = np.memmap(path, np.float32, "r", shape=(1 << 24, 64))
    np.testing.assert_array_equal(mapped[[0, 9, -1]], rows)
    assert not mapped[10:1000].any()
    with pytest.raises(ValueError, match="without checksums"):
        native.verify_file(path)


def test_surrogate_arguments(tmp_path):
    rows = np.ones((1, 2), ml_dtypes.bfloat16)
    write = native.write_surrogate_table
    assert write(tmp_path / "s", "s", ml_dtypes.bfloat16, [4, 2], [3], rows)["dtype"] == "bfloat16"
    np.testing.assert_array_equal(stored_array(tmp_path / "s")[3], rows[0])
    with pytest.raises(ValueError, match=r"row 4 is not in \[0, 4\)"):
        write(tmp_path / "s", "s", "bfloat16", [4, 2], [4], rows)
    with pytest.raises(ValueError, match="rows are bfloat16, expected float32"):
        write(tmp_path / "s", "s", "float32", [4, 2], [3], rows)
    with pytest.raises(ValueError, match="1 row ids of width 3, but 2 values"):
        write(tmp_path / "s", "s", "bfloat16", [4, 3], [3], rows)


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(st.binary(max_size=40), unique=True, max_size=80), others=st.lists(st.binary(max_size=3), max_size=20)
)
def test_string_vocabulary(tmp_path_factory, keys, others):
    path = tmp_path_factory.mktemp("vocab") / "v"
    values = np.arange(len(keys), dtype=np.int64) * 7 - 3
    info = native.write_vocab(path, "v", keys, values)
    assert (info["kind"], info["dtype"], info["shape"]) == ("vocab", "string", (len(keys),))
    expected = dict(zip(keys, values.tolist(), strict=True))
    asked = keys + others
    assert native.vocab_find(path, asked, -99).tolist() == [expected.get(k, -99) for k in asked]
    assert native.vocab_sample_keys(path, 10**9) == keys
    native.verify_file(path)


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(st.integers(INT64.min, INT64.max), unique=True, max_size=80),
    others=st.lists(st.integers(INT64.min, INT64.min + 5), max_size=20),
)
def test_int64_vocabulary(tmp_path_factory, keys, others):
    path = tmp_path_factory.mktemp("vocab") / "v"
    values = np.arange(len(keys), dtype=np.int64)[::-1]
    info = native.write_vocab(path, "v", np.array(keys, np.int64), values)
    assert (info["dtype"], info["shape"]) == ("int64", (len(keys),))
    expected = dict(zip(keys, values.tolist(), strict=True))
    asked = np.array([*keys, *others, INT64.min, INT64.max, 0], np.int64)
    assert native.vocab_find(path, asked, -99).tolist() == [expected.get(k, -99) for k in asked.tolist()]
    assert native.vocab_sample_keys(path, 10**9).tolist() == keys


def test_vocabulary_keys_as_python_gives_them(tmp_path):
    path = tmp_path / "v"
    for keys in (["é", b"b"], np.array([b"a", b"b"], object), np.array(["a", "b"]), [1, 2], np.array([1, 2], np.int32)):
        native.write_vocab(path, "v", keys, [5, 6])
        assert native.vocab_find(path, keys).tolist() == [5, 6]
    native.write_vocab(path, "v", ["é"], [5])
    assert native.vocab_find(path, ["é".encode(), b"x"]).tolist() == [5, -1]


def test_vocabulary_errors(tmp_path):
    path = tmp_path / "v"
    with pytest.raises(ValueError, match=r"vocabulary 'city': key 'x' is given twice \(entries 0 and 2\)"):
        native.write_vocab(path, "city", [b"x", b"y", b"x"], [0, 1, 2])
    with pytest.raises(ValueError, match="key 4 is given twice"):
        native.write_vocab(path, "city", [4, 4], [0, 1])
    with pytest.raises(ValueError, match="2 keys but 1 values"):
        native.write_vocab(path, "city", [b"x", b"y"], [0])
    with pytest.raises(ValueError, match="key 1 is a float, expected bytes or str"):
        native.write_vocab(path, "city", [b"x", 1.5], [0, 1])
    with pytest.raises(ValueError, match="keys: expected a one-dimensional array of int64, got uint64"):
        native.write_vocab(path, "city", np.array([1], np.uint64), [0])
    assert not list(tmp_path.iterdir())
    native.write_vocab(path, "city", [b"x"], [0])
    with pytest.raises(ValueError, match="'city' has string keys, the keys given are int64"):
        native.vocab_find(path, [1])
    native.write_table(tmp_path / "t", "t", np.zeros(1))
    with pytest.raises(ValueError, match="is a table file, expected a vocabulary file"):
        native.vocab_find(tmp_path / "t", [b"x"])


def test_files_of_other_formats_say_convert_again(tmp_path):
    path = tmp_path / "v"
    native.write_vocab(path, "city", [b"x", b"y"], [0, 1])
    whole = path.read_bytes()
    as_earlier_format(path)
    for read in (native.file_info, lambda p: native.vocab_find(p, [b"x"])):
        with pytest.raises(VersionError, match=r"/v' has string keys in slots.*reads buckets: convert the model again"):
            read(path)
    footer = bytearray(whole[-FOOTER:])
    footer[8] = 2
    footer[-4:] = struct.pack("<I", crc32c(footer[:-4]))
    path.write_bytes(whole[:-FOOTER] + footer)
    with pytest.raises(VersionError, match="/v' has format version 2, this build reads version 1: convert the model"):
        native.file_info(path)


def test_sampled_keys_are_spread(tmp_path):
    keys = [b"k%d" % i for i in range(100)]
    native.write_vocab(tmp_path / "v", "v", keys, np.arange(100))
    assert native.vocab_sample_keys(tmp_path / "v", 4) == [b"k0", b"k25", b"k50", b"k75"]
    assert native.vocab_sample_keys(tmp_path / "v", 0) == []


def million_strings(path: Path) -> tuple[int, float]:
    """Memory and CPU seconds that opening a vocabulary of a million strings takes."""
    keys = [b"https://example.com/item/%d" % i for i in range(1_000_000)]
    native.write_vocab(path, "v", keys, np.arange(len(keys)))
    some = keys[:: len(keys) // 1000]
    before = private_bytes()
    begin = time.thread_time()  # not wall time: this thread may get no turn for seconds
    native.file_info(path)
    opened_s = time.thread_time() - begin
    found = native.vocab_find(path, some)
    grown = private_bytes() - before
    np.testing.assert_array_equal(found, np.arange(0, len(keys), len(keys) // 1000))
    return grown, opened_s


def test_million_strings_open_at_once_without_memory(tmp_path):
    grown, opened_s = in_fresh_process(million_strings, tmp_path / "v")
    assert grown < 4 << 20
    assert opened_s < 1  # building an index would take longer; the benchmark measures it


def test_store_forgets_files_that_nobody_uses(tmp_path):
    native.write_vocab(tmp_path / "v", "v", [b"x"], [0])
    native.vocab_find(tmp_path / "v", [b"x"])
    assert str(tmp_path / "v") not in [f["path"] for f in native.store_stats()["files"]]
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
