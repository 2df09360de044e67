"""Checkpoints that are damaged, cut short, interrupted or out of space; restores beside lookups."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr

ROWS = 5000


def make(dim: int = 8) -> tfctr.EmbeddingVariable:
    return tfctr.EmbeddingVariable(dim, "items", optimizer=tfctr.optimizers.Adagrad(0.1), seed=1)


def fill(table: tfctr.EmbeddingVariable, rows: int, value: float) -> None:
    shape = [rows, table.dim]
    tfctr.warm_start.from_numpy(
        table, np.arange(rows), np.full(shape, value, np.float32), slots={"accumulator": np.full(shape, value + 1)}
    )


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, tfctr.EmbeddingVariable]:
    """(prefix, table) of a checkpoint whose data is random, so that no change goes unseen."""
    table = make()
    random = np.random.default_rng(0)
    tfctr.warm_start.from_numpy(table, random.permutation(ROWS), random.normal(size=[ROWS, 8]).astype(np.float32))
    return Path(tf.train.Checkpoint(table=table).write(str(tmp_path / "ckpt"))), table


def assert_whole(table: tfctr.EmbeddingVariable, expected: dict[str, np.ndarray]) -> None:
    for name, array in contents(table).items():
        np.testing.assert_array_equal(array, expected[name])


def contents(table: tfctr.EmbeddingVariable) -> dict[str, np.ndarray]:
    rows = table.export(slots=True)
    order = np.argsort(rows.keys)
    return {"keys": rows.keys[order], "values": rows.values[order], "accumulator": rows.slots["accumulator"][order]}


def assert_restore_fails(prefix: Path, *errors: type[Exception]) -> None:
    """The restore fails, and leaves the table as it was."""
    table = make()
    fill(table, 10, 3.0)
    before = contents(table)
    with pytest.raises(errors):
        tf.train.Checkpoint(table=table).read(str(prefix)).assert_existing_objects_matched()
    assert_whole(table, before)


def data_file_of_table(prefix: Path) -> Path:
    return max(prefix.parent.glob("ckpt.data-*"), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_a_data_file_that_was_cut_short(saved: Any, kept: float) -> None:
    prefix, _ = saved
    path = data_file_of_table(prefix)
    os.truncate(path, int(path.stat().st_size * kept))
    assert_restore_fails(prefix, tf.errors.DataLossError, tf.errors.OutOfRangeError)


def test_every_flipped_bit_is_noticed(saved: Any) -> None:
    prefix, _ = saved
    path = data_file_of_table(prefix)
    whole = path.read_bytes()
    for at in np.random.default_rng(1).integers(0, len(whole), 12).tolist():
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        assert_restore_fails(prefix, tf.errors.DataLossError)
    path.write_bytes(whole)
    tf.train.Checkpoint(table=make()).read(str(prefix)).assert_consumed()


def test_a_damaged_or_missing_index(saved: Any) -> None:
    prefix, _ = saved
    index = prefix.with_name("ckpt.index")
    whole = index.read_bytes()
    index.write_bytes(whole[: len(whole) // 2])
    assert_restore_fails(prefix, tf.errors.OpError)
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 4
    index.write_bytes(damaged)
    assert_restore_fails(prefix, tf.errors.OpError)
    index.unlink()
    assert_restore_fails(prefix, tf.errors.NotFoundError)


def test_a_full_disk_leaves_nothing_behind_and_the_next_save_works(tmp_path: Path) -> None:
    table = make(64)
    fill(table, ROWS, 2.0)
    checkpoint = tf.train.Checkpoint(table=table)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
        with pytest.raises(tf.errors.OpError, match="embedding variable 'items'|File too large|TfctrEvSave") as raised:
            checkpoint.write(str(tmp_path / "ckpt"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert isinstance(raised.value, tf.errors.ResourceExhaustedError | tf.errors.OutOfRangeError)
    assert list(tmp_path.iterdir()) == []
    prefix = checkpoint.write(str(tmp_path / "ckpt"))
    back = make(64)
    tf.train.Checkpoint(table=back).read(prefix).assert_consumed()
    assert_whole(back, contents(table))


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    table = make()
    with pytest.raises(tf.errors.OpError):
        tf.train.Checkpoint(table=table).write(str(tmp_path / "file" / "ckpt"))
    tf.train.Checkpoint(table=table).write(str(tmp_path / "ckpt"))


KILLED_SAVER = """
import sys
import tensorflow as tf
from tests.embedding.test_checkpoint_faults import fill, make
table = make(64)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(table=table), sys.argv[1], max_to_keep=3)
fill(table, 1000, 1.0)
manager.save()
fill(table, 600_000, 2.0)
print("saving", flush=True)
manager.save()
print("saved", flush=True)
"""


def _kill_while_saving(folder: Path, repo_root: Path) -> bool:
    """Whether the signal came before the save was done."""
    command = [sys.executable, "-c", KILLED_SAVER, str(folder)]
    with subprocess.Popen(command, cwd=repo_root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saving\n"
        while process.poll() is None and not list(folder.glob("*.tempstate*")):
            time.sleep(0.001)
        process.kill()
        return process.stdout.read() == "" and bool(list(folder.glob("*.tempstate*")))


def test_killed_while_saving_the_last_whole_checkpoint_is_found(tmp_path: Path, repo_root: Path) -> None:
    attempts = (tmp_path / str(k) for k in range(20))  # on a busy machine the signal may come too late
    tmp_path = next(folder for folder in attempts if _kill_while_saving(folder, repo_root))
    table = make(64)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(table=table), str(tmp_path), max_to_keep=3)
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-1")
    assert table.size() == 1000
    np.testing.assert_array_equal(table.lookup([0, 999]).numpy(), np.ones([2, 64], np.float32))
    assert manager.save() == str(tmp_path / "ckpt-2")  # the name that the killed process was writing
    assert not list(tmp_path.glob("*.tempstate*"))
    back = make(64)
    tf.train.Checkpoint(table=back).read(str(tmp_path / "ckpt-2")).expect_partial()
    assert back.size() == 1000


def test_lookups_beside_restores_see_the_old_or_the_new_rows(tmp_path: Path) -> None:
    table = make(16)
    checkpoint = tf.train.Checkpoint(table=table)
    prefixes = []
    for value in (1.0, 2.0):
        fill(table, 20_000, value)
        prefixes.append(checkpoint.write(str(tmp_path / f"ckpt{value}")))
    ids = tf.constant(np.random.default_rng(0).integers(0, 20_000, 4000))
    wrong: list[Any] = []
    seen: set[float] = set()
    stop = threading.Event()

    def look_up() -> None:
        while not stop.is_set():
            values = np.unique(table.lookup(ids).numpy())
            seen.update(values.tolist())
            if len(values) != 1:
                wrong.append(values)

    threads = [threading.Thread(target=look_up) for _ in range(2)]
    for thread in threads:
        thread.start()
    round_ = 0
    while round_ < 20 or (seen != {1.0, 2.0} and round_ < 10_000):  # the threads may get their turn late
        checkpoint.read(prefixes[round_ % 2])
        round_ += 1
    stop.set()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert seen == {1.0, 2.0}


def test_saves_beside_training_hold_whole_rows(tmp_path: Path) -> None:
    """Updates move every number of a row by the same step: a torn row would differ within itself."""
    table = tfctr.EmbeddingVariable(32, "items", optimizer=tfctr.optimizers.SGD(1.0), initializer=tfctr.Constant(0.0))
    table.lookup(np.arange(2000), training=True)
    stop = threading.Event()

    def train() -> None:
        start = 2000
        while not stop.is_set():
            table.apply_gradients(tf.IndexedSlices(np.ones([2000, 32], np.float32), np.arange(2000)))
            table.lookup(np.arange(start, start + 200), training=True)
            start += 200

    thread = threading.Thread(target=train)
    thread.start()
    checkpoint = tf.train.Checkpoint(table=table)
    prefixes = [checkpoint.write(str(tmp_path / f"ckpt{i}")) for i in range(5)]
    stop.set()
    thread.join(30)
    for prefix in prefixes:
        reader = tf.train.load_checkpoint(prefix)
        values, keys = reader.get_tensor("table/values"), reader.get_tensor("table/keys")
        assert len(np.unique(keys)) == len(keys) >= 2000
        np.testing.assert_array_equal(values, np.repeat(values[:, :1], 32, axis=1))


def test_contents_come_back_to_the_bit(saved: Any) -> None:
    prefix, table = saved
    back = make()
    tf.train.Checkpoint(table=back).read(str(prefix)).assert_consumed()
    assert_whole(back, contents(table))
