"""Reading checkpoint indexes and copying tensors out of them: types, shards, partitions, damage, memory."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

from tests.core.checkpoint_bytes import write_index
from tests.core.test_storage import stored_array
from tests.fresh import in_fresh_process
from tfctr.core import library

native = library.native()
RNG = np.random.default_rng(11)


def save(prefix: Path, tensors: dict[str, np.ndarray], slices: list[str] | None = None) -> str:
    names, values = list(tensors), list(tensors.values())
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=names, shape_and_slices=slices or [""] * len(names), tensors=values
    )
    return str(prefix)


def merge(prefixes: list[str], out: Path) -> str:
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=str(out), delete_old_dirs=False)
    return str(out)


def save_parts(prefix: Path, name: str, array: np.ndarray, cuts: list[tuple[int, int]], shards: int = 1) -> str:
    """Saves rows [start, stop) of `array` as parts of one variable, in the order given, over several shards."""
    rest = " ".join(str(d) for d in array.shape)
    tail = ":-" * (array.ndim - 1)
    prefixes = []
    for shard in range(shards):
        mine = cuts[shard::shards]
        prefixes.append(str(prefix.parent / f"part{shard}"))
        tf.raw_ops.SaveV2(
            prefix=prefixes[-1],
            tensor_names=[name] * len(mine),
            shape_and_slices=[f"{rest} {start},{stop - start}{tail}" for start, stop in mine],
            tensors=[array[start:stop] for start, stop in mine],
        )
    return merge(prefixes, prefix)


def entries_of(prefix: str) -> dict[str, dict]:
    return {e["key"]: e for e in native.read_checkpoint_index(prefix)}


@pytest.fixture
def two_shards(tmp_path) -> tuple[str, dict[str, np.ndarray]]:
    tensors = {
        "emb/a": RNG.normal(size=(500, 8)).astype(np.float32),
        "emb/b": RNG.normal(size=(40, 4)).astype(ml_dtypes.bfloat16),
        "counts": RNG.integers(-9, 9, 30),
        "scalar": np.float64(2.5),
        "flags": np.array([True, False]),
        "empty": np.zeros((0, 7), np.float16),
    }
    names = list(tensors)
    first = save(tmp_path / "x", {n: tensors[n] for n in names[::2]})
    second = save(tmp_path / "y", {n: tensors[n] for n in names[1::2]})
    return merge([first, second], tmp_path / "ckpt"), tensors


def test_index_of_several_shards(two_shards):
    prefix, tensors = two_shards
    entries = entries_of(prefix)
    assert list(entries) == sorted(tensors)
    for name, array in tensors.items():
        entry = entries[name]
        assert (entry["dtype"], entry["shape"]) == (array.dtype.name, array.shape)
        assert entry["size"] == entry["bytes"] == array.nbytes
        assert entry["slices"] == []
        raw = Path(entry["shard"]).read_bytes()[entry["offset"] :][: entry["size"]]
        assert raw == array.tobytes()
        assert entry["crc32c"] == native.masked_crc32c(raw)
    assert len({e["shard"] for e in entries.values()}) == 2


def test_copy_and_read_whole_tensors(two_shards, tmp_path):
    prefix, tensors = two_shards
    for name, array in tensors.items():
        seen: list[int] = []
        info = native.copy_tensor_to_table(prefix, name, tmp_path / "t", f"table of {name}", seen.append)
        assert (info["name"], info["shape"], sum(seen)) == (f"table of {name}", array.shape, array.nbytes)
        np.testing.assert_array_equal(stored_array(tmp_path / "t"), array)
        native.verify_file(tmp_path / "t")
        read = native.read_tensor(prefix, name)
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array)


def test_object_checkpoint_of_keras_style_variables(tmp_path):
    model = tf.Module()
    model.table = tf.Variable(RNG.normal(size=(10, 3)).astype(np.float32))
    prefix = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    entries = entries_of(prefix)
    key = "model/table/.ATTRIBUTES/VARIABLE_VALUE"
    assert entries["_CHECKPOINTABLE_OBJECT_GRAPH"]["dtype"] == "string"
    native.copy_tensor_to_table(prefix, key, tmp_path / "t", "t")
    np.testing.assert_array_equal(stored_array(tmp_path / "t"), model.table.numpy())
    with pytest.raises(ValueError, match="'_CHECKPOINTABLE_OBJECT_GRAPH' is string, which a table file cannot hold"):
        native.copy_tensor_to_table(prefix, "_CHECKPOINTABLE_OBJECT_GRAPH", tmp_path / "u", "u")
    graph = native.read_tensor(prefix, "_CHECKPOINTABLE_OBJECT_GRAPH")
    assert graph.shape == ()
    assert isinstance(graph.item(), bytes)
    strings = np.array([[b"a", b""], [b"\0\xff", b"x" * 1000]], object)
    np.testing.assert_array_equal(native.read_tensor(save(tmp_path / "s", {"s": strings}), "s"), strings)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_partitioned_variable_is_merged_in_row_order(tmp_path, shards):
    array = RNG.normal(size=(100, 4, 2)).astype(np.float32)
    cuts = [(60, 100), (0, 33), (33, 34), (34, 60)]
    prefix = save_parts(tmp_path / "ckpt", "emb", array, cuts, shards)
    (entry,) = native.read_checkpoint_index(prefix)
    assert (entry["key"], entry["shape"], entry["bytes"]) == ("emb", array.shape, array.nbytes)
    assert [s["start"][0] for s in entry["slices"]] == [0, 33, 34, 60]
    assert [s["length"] for s in entry["slices"]] == [(33, 4, 2), (1, 4, 2), (26, 4, 2), (40, 4, 2)]
    assert len({s["shard"] for s in entry["slices"]}) == shards
    native.copy_tensor_to_table(prefix, "emb", tmp_path / "t", "emb")
    np.testing.assert_array_equal(stored_array(tmp_path / "t"), array)
    np.testing.assert_array_equal(native.read_tensor(prefix, "emb"), array)


def test_partition_that_cannot_be_merged(tmp_path):
    array = RNG.normal(size=(6, 4)).astype(np.float32)
    prefix = save(tmp_path / "wide", {"emb": array[:, :2]}, ["6 4 -:0,2"])
    with pytest.raises(ValueError, match="'emb' is partitioned along axis 1; only partitions along axis 0"):
        native.copy_tensor_to_table(prefix, "emb", tmp_path / "t", "t")
    prefix = save_parts(tmp_path / "gap", "emb", array, [(0, 2), (4, 6)])
    with pytest.raises(native.CorruptFile, match="'emb': the partition's rows from 2 to 4 are missing"):
        native.copy_tensor_to_table(prefix, "emb", tmp_path / "t", "t")
    prefix = save_parts(tmp_path / "short", "emb", array, [(0, 2), (2, 5)])
    with pytest.raises(native.CorruptFile, match="rows from 5 to 6 are missing"):
        native.copy_tensor_to_table(prefix, "emb", tmp_path / "t", "t")
    assert not (tmp_path / "t").exists()


def test_missing_things_are_named(two_shards, tmp_path):
    prefix, _ = two_shards
    with pytest.raises(ValueError, match=r"has no tensor 'emb/c'; it has 6: 'counts', 'emb/a', "):
        native.copy_tensor_to_table(prefix, "emb/c", tmp_path / "t", "t")
    with pytest.raises(ValueError, match="has no tensor 'emb/c'"):
        native.read_tensor(prefix, "emb/c")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*nowhere"):
        native.read_checkpoint_index(tmp_path / "nowhere")
    shard = Path(entries_of(prefix)["emb/a"]["shard"])
    shard.rename(shard.with_suffix(".away"))
    with pytest.raises(FileNotFoundError, match=f"tensor '.*': checkpoint shard '{shard}'"):
        native.read_checkpoint_index(prefix)


def test_damaged_data_names_tensor_and_shard(two_shards, tmp_path):
    prefix, _ = two_shards
    entry = entries_of(prefix)["emb/a"]
    shard = Path(entry["shard"])
    good = shard.read_bytes()
    bad = bytearray(good)
    bad[entry["offset"] + 1000] ^= 4
    shard.write_bytes(bad)
    with pytest.raises(native.CorruptFile, match=f"tensor 'emb/a' in '{shard}': the checkpoint is damaged"):
        native.copy_tensor_to_table(prefix, "emb/a", tmp_path / "t", "t")
    with pytest.raises(native.CorruptFile, match="tensor 'emb/a'"):
        native.read_tensor(prefix, "emb/a")
    shard.write_bytes(good[: entry["offset"] + 100])
    with pytest.raises(native.CorruptFile, match=r"tensor '.*shard '.*' is truncated"):
        native.copy_tensor_to_table(prefix, "emb/a", tmp_path / "t", "t")
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith((".", "t"))} == set()


def test_damaged_partition_is_noticed(tmp_path):
    array = RNG.normal(size=(100, 4)).astype(np.float32)
    prefix = save_parts(tmp_path / "ckpt", "emb", array, [(0, 50), (50, 100)], 2)
    (entry,) = native.read_checkpoint_index(prefix)
    part = entry["slices"][1]
    bad = bytearray(Path(part["shard"]).read_bytes())
    bad[part["offset"]] ^= 1
    Path(part["shard"]).write_bytes(bad)
    with pytest.raises(native.CorruptFile, match=f"tensor 'emb' in '{part['shard']}'"):
        native.copy_tensor_to_table(prefix, "emb", tmp_path / "t", "t")


def test_no_damage_to_the_index_goes_unnoticed(two_shards, tmp_path):
    """Any byte changed, any length cut off: an error or (bytes no reader looks at) the same entries, never fewer."""
    prefix, _ = two_shards
    path = Path(prefix + ".index")
    good = path.read_bytes()
    entries = native.read_checkpoint_index(prefix)
    unnoticed = 0
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        path.write_bytes(bad)
        try:
            assert native.read_checkpoint_index(prefix) == entries
            unnoticed += 1
        except (native.CorruptFile, ValueError, FileNotFoundError):
            pass
    assert unnoticed < 60  # padding of the footer, and the empty meta index block
    for size in range(0, len(good), 7):
        path.write_bytes(good[:size])
        with pytest.raises(native.CorruptFile, match="index"):
            native.read_checkpoint_index(prefix)


def header(**fields) -> bytes:
    return tensor_bundle_pb2.BundleHeaderProto(num_shards=1, **fields).SerializeToString()


def entry(shape: list[int], **fields) -> bytes:
    proto = tensor_bundle_pb2.BundleEntryProto(dtype=1, **fields)
    proto.shape.CopyFrom(tf.TensorShape(shape).as_proto())
    return proto.SerializeToString()


def test_big_endian_checkpoint_is_refused(tmp_path):
    write_index(tmp_path / "ckpt.index", {b"": header(endianness=1), b"w": entry([1], size=4)})
    with pytest.raises(ValueError, match=f"'{tmp_path / 'ckpt'}' is big-endian"):
        native.read_checkpoint_index(tmp_path / "ckpt")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"\xff\xff", "entry of 'w' does not parse"),
        (entry([1], size=4, shard_id=1), "entry of 'w' is not valid"),
        (entry([1], size=4, offset=-1), "entry of 'w' is not valid"),
        (entry([2], size=4), "'w' has 4 bytes, not those of its shape"),
        (entry([1], size=4, offset=1 << 62), "tensor 'w'.*truncated"),
    ],
)
def test_index_entries_that_make_no_sense(tmp_path, value, message):
    write_index(tmp_path / "ckpt.index", {b"": header(), b"w": value})
    (tmp_path / "ckpt.data-00000-of-00001").write_bytes(bytes(16))
    with pytest.raises(native.CorruptFile, match=message):
        native.read_checkpoint_index(tmp_path / "ckpt")


def test_index_without_header_is_refused(tmp_path):
    write_index(tmp_path / "ckpt.index", {b"w": entry([1], size=4)})
    with pytest.raises(native.CorruptFile, match="no header"):
        native.read_checkpoint_index(tmp_path / "ckpt")


def test_what_progress_raises_stops_the_copy_and_leaves_nothing(tmp_path):
    prefix = save(tmp_path / "ckpt", {"emb": np.zeros((9 << 20,), np.uint8)})
    calls = []

    def progress(block_bytes: int) -> None:
        calls.append(block_bytes)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        native.copy_tensor_to_table(prefix, "emb", tmp_path / "t", "t", progress)
    assert calls == [8 << 20]
    assert not [p for p in tmp_path.iterdir() if not p.name.startswith("ckpt")]


def _peak_rss_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM in /proc/self/status")


def copied(checkpoint: Path, table: Path) -> tuple[int, int]:
    """Bytes copied of tensor 'w', and what the peak of this process's memory grew by."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _peak_rss_bytes()
    info = native.copy_tensor_to_table(checkpoint, "w", table, "w")
    return info["bytes"], _peak_rss_bytes() - before


def test_copying_takes_bounded_memory(tmp_path):
    size = 256 << 20
    shard = tmp_path / "ckpt.data-00000-of-00001"
    with shard.open("wb") as file:
        file.truncate(size)
    crc = native.masked_crc32c(np.memmap(shard, np.uint8, "r"))
    write_index(tmp_path / "ckpt.index", {b"": header(), b"w": entry([size // 256, 64], size=size, crc32c=crc)})
    copied_bytes, grown = in_fresh_process(copied, tmp_path / "ckpt", tmp_path / "t")
    assert copied_bytes == size
    assert grown < 32 << 20
