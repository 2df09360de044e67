"""Delta checkpoints that are damaged, mixed up, interrupted, or made by two: refused by name, nothing live changed."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.delta_tables import assert_same, contents, make, manager_of, train
from tfctr.embedding import delta_checkpoint, delta_manifest, saver_v1
from tfctr.errors import CorruptFileError, UsageError


class Run:
    """Four saves of a table and a dense variable, with what they held."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.random = folder, np.random.default_rng(seed)
        self.model = self.new()
        self.manager = tfctr.DeltaCheckpointManager(self.model, folder, max_delta_rows=1e9)
        self.states: dict[str, Any] = {}
        for _ in range(4):
            self.go_on()
            self.save()
        self.manager.close()

    @staticmethod
    def new(value: float = 0.0) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(table=make(admission=tfctr.CounterAdmission(2)), dense=tf.Variable([value] * 3))

    def go_on(self) -> None:
        train(self.model.table, self.random.integers(0, 100, 200))
        self.model.table.erase(self.random.integers(0, 100, 5))
        self.model.dense.assign_add([1.0] * 3)

    def save(self) -> None:
        expected = contents(self.model.table), self.model.dense.numpy()
        self.states[self.manager.save().name] = expected

    def assert_restores(self, folder: Path, name: str | None = None) -> str:
        """Restores from the folder; returns which save that was."""
        back = self.new()
        manager = tfctr.DeltaCheckpointManager(back, folder)
        manager.restore(name).assert_consumed()
        restored = name or Path(manager.latest_checkpoint or "").name
        assert_same(back.table, self.states[restored][0])
        np.testing.assert_array_equal(back.dense, self.states[restored][1])
        return restored

    def assert_refuses(self, words: str, name: str | None = None) -> None:
        """The manager refuses before anything changes; a plain read, without its list, takes all of a table or none."""
        live = self.new(7.0)
        train(live.table, [1, 1, 2])
        before = contents(live.table)
        with pytest.raises(CorruptFileError, match=words):
            tfctr.DeltaCheckpointManager(live, self.folder).restore(name)
        assert_same(live.table, before)
        np.testing.assert_array_equal(live.dense, [7.0] * 3)
        wanted = name or "ckpt-4"
        try:
            tf.train.Checkpoint(table=live.table).read(str(self.folder / wanted)).expect_partial()
        except (tf.errors.OpError, ValueError, IndexError):
            assert_same(live.table, before)
        else:  # what is damaged is of another variable, in a save that the dense ones don't come from
            assert wanted not in words
            assert_same(live.table, self.states[wanted][0])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def files(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}.*"))


def test_a_gap(run: Run) -> None:
    for path in files(run.folder, "ckpt-2"):
        path.unlink()
    run.assert_refuses(r"ckpt-2\.\S+: missing, but save 'ckpt-2' needs it")
    run.assert_restores(run.folder, "ckpt-1")
    with pytest.raises(
        tf.errors.NotFoundError, match=r"'\S+ckpt-3': it is a delta on checkpoint 'ckpt-2', save \w+, which can't be"
    ):
        tf.train.Checkpoint(table=make(admission=tfctr.CounterAdmission(2))).read(str(run.folder / "ckpt-4"))


def test_deltas_in_the_wrong_order(run: Run) -> None:
    for path in files(run.folder, "ckpt-2"):
        other = path.with_name(path.name.replace("ckpt-2", "ckpt-3"))
        swap = path.with_name("swap")
        path.rename(swap)
        other.rename(path)
        swap.rename(other)
    run.assert_refuses("ckpt-[23]")
    with pytest.raises(tf.errors.FailedPreconditionError, match="'ckpt-3', save .* a delta fits the very save"):
        tf.train.Checkpoint(table=make(admission=tfctr.CounterAdmission(2))).read(str(run.folder / "ckpt-4"))


@pytest.mark.parametrize("which", ["ckpt-1", "ckpt-3", "ckpt-4"])
def test_a_base_or_a_delta_of_another_run(run: Run, tmp_path: Path, which: str) -> None:
    other = Run(tmp_path / "other", seed=1)
    for path in files(run.folder, which):
        path.unlink()
    for path in files(other.folder, which):
        shutil.copy(path, run.folder)
    run.assert_refuses(rf"{which}\S+: (not the index that save '{which}'|it has \d+ bytes)")


def test_a_plain_checkpoint_is_no_base(run: Run) -> None:
    tf.train.Checkpoint(table=run.model.table, dense=run.model.dense).write(str(run.folder / "ckpt-1"))
    run.assert_refuses("ckpt-1", "ckpt-2")
    with pytest.raises(tf.errors.FailedPreconditionError, match="a checkpoint without a save's name"):
        tf.train.Checkpoint(table=make(admission=tfctr.CounterAdmission(2))).read(str(run.folder / "ckpt-2"))


@pytest.mark.parametrize("which", ["ckpt-1", "ckpt-3", "ckpt-4"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_files_that_were_cut_short(run: Run, which: str, kept: float) -> None:
    for path in files(run.folder, which):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * kept)])
        run.assert_refuses(rf"{path.name}: it has \d+ bytes, save '{which}' wrote {len(whole)}")
        path.write_bytes(whole)
    run.assert_restores(run.folder)


def test_missing_shard_files(run: Run) -> None:
    for which in ("ckpt-1", "ckpt-4"):
        path = sorted(run.folder.glob(f"{which}.data-*"))[0]
        whole = path.read_bytes()
        path.unlink()
        run.assert_refuses(f"{path.name}: missing")
        path.write_bytes(whole)
    run.assert_restores(run.folder)


def test_every_flipped_bit_is_noticed(run: Run) -> None:
    random = np.random.default_rng(5)
    for which in ("ckpt-1", "ckpt-2", "ckpt-4"):
        for path in files(run.folder, which):
            whole = path.read_bytes()
            for at in random.integers(0, len(whole), 6).tolist():
                damaged = bytearray(whole)
                damaged[at] ^= 1 << int(random.integers(0, 8))
                path.write_bytes(damaged)
                live = run.new(7.0)
                with pytest.raises(CorruptFileError, match=which):
                    tfctr.DeltaCheckpointManager(live, run.folder).restore()
                assert live.table.size() == 0 and live.dense.numpy()[0] == 7.0
            path.write_bytes(whole)
    run.assert_restores(run.folder)


def test_a_damaged_list(run: Run) -> None:
    path = run.folder / delta_manifest.FILE_NAME
    whole = path.read_bytes()
    told = json.loads(whole)
    told["saves"] = told["saves"][:-1]
    missing = json.loads(whole)
    del missing["saves"][1]
    missing["sha256"] = delta_manifest._digest(missing["saves"])
    for text, words in [
        (whole[: len(whole) // 2], "not a list of delta checkpoints"),
        (whole.replace(b'"number": 3', b'"number": 5'), "checksum"),
        (json.dumps(told).encode(), "checksum"),
        (b'{"format": 99}', "format 99"),
        (b"[]", "format None"),
        (json.dumps(missing).encode(), "'ckpt-3' is a delta on save .*, which is not in the list"),
    ]:
        path.write_bytes(text)
        with pytest.raises(CorruptFileError, match=words):
            tfctr.DeltaCheckpointManager(run.new(), run.folder).restore()
    path.write_bytes(whole)
    run.assert_restores(run.folder)


def test_another_table_does_not_take_a_chain(run: Run) -> None:
    live = tf.train.Checkpoint(
        table=make(admission=tfctr.CounterAdmission(2), optimizer=None), dense=tf.Variable([0.0] * 3)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="optimizer slots accumulator, the variable has none"):
        tfctr.DeltaCheckpointManager(live, run.folder).restore()
    strings = tf.train.Checkpoint(table=tfctr.EmbeddingVariable(4, "items", key_dtype=tf.string))
    with pytest.raises(tf.errors.InvalidArgumentError, match="keys are int64, the variable's are string"):
        strings.read(str(run.folder / "ckpt-4"))


def test_a_tf1_saver_follows_the_chain_or_refuses(tmp_path: Path) -> None:
    v1 = tf.compat.v1
    table = make()
    manager = tfctr.DeltaCheckpointManager(tf.train.Checkpoint(items=table), tmp_path)
    for ids in ([1, 2, 3], [3, 4]):
        train(table, ids)
        manager.save()
    expected = table.lookup([1, 2, 3, 4]).numpy()
    for builder in (saver_v1.StreamingSaverBuilder(), None):
        with tf.Graph().as_default(), v1.Session() as session:
            rows = make(shards=3).lookup(tf.constant([1, 2, 3, 4], tf.int64))
            saver = v1.train.Saver(v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS), builder=builder)
            if builder is None:  # it reads tensors, not tables
                with pytest.raises(tf.errors.InvalidArgumentError, match="no whole table of format 1; a delta is"):
                    saver.restore(session, manager.latest_checkpoint)
            else:
                saver.restore(session, manager.latest_checkpoint)
                np.testing.assert_array_equal(session.run(rows), expected)


def test_two_managers_of_one_directory(tmp_path: Path) -> None:
    first, second = make(), make()
    train(first, [1])
    train(second, [2])
    a, b = manager_of(first, tmp_path), manager_of(second, tmp_path)
    a.save()
    with pytest.raises(UsageError, match=rf"another DeltaCheckpointManager saves into it \(process {os.getpid()}\)"):
        b.save()
    b.restore()  # reading is for everybody
    assert_same(second, contents(first))
    a.close()
    assert b.save().is_delta
    b.close()
    with pytest.raises(UsageError, match="its last save is ckpt-2, not the one"):
        a.save()
    third = manager_of(first, tmp_path)
    del a, b
    assert not third.save().is_delta  # its table is no copy of the last save
    assert_restored(tmp_path, first)


def assert_restored(folder: Path, table: Any) -> None:
    back = make(shards=3)
    manager_of(back, folder).restore().assert_consumed()
    assert_same(back, contents(table))


def test_a_full_disk_costs_no_change(tmp_path: Path) -> None:
    table = make()
    train(table, range(3000))
    manager = manager_of(table, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for kind in ("full", "delta"):
        train(table, range(0, 3000, 2))
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            with pytest.raises((tf.errors.OpError, OSError)):
                manager.save()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert len(list(tmp_path.glob("ckpt-*.index"))) == (0 if kind == "full" else 1)
        save = manager.save()
        assert save.is_delta == (kind == "delta")
        assert_restored(tmp_path, table)
    signal.signal(signal.SIGXFSZ, handler)
    assert save.tables[0].rows == 1500


def test_an_interrupt_after_the_save_was_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make()
    manager = manager_of(table, tmp_path)
    train(table, [1])
    manager.save()
    with monkeypatch.context() as patch:
        patch.setattr(delta_checkpoint.DeltaCheckpointManager, "_point_at", _interrupt)
        train(table, [2])
        with pytest.raises(KeyboardInterrupt):
            manager.save()
    assert_restored(tmp_path, table)
    train(table, [3])
    assert manager.save().tables[0].rows == 1
    assert_restored(tmp_path, table)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_killed_at_every_point_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies on the disk before each step of it is what a process that is killed there leaves."""
    run = Run(tmp_path / "run")
    run.manager = tfctr.DeltaCheckpointManager(run.model, run.folder, max_deltas=4, keep=1, max_delta_rows=1e9)
    run.manager.restore()
    left: list[Path] = []

    def before(module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def keep_then_go_on(*args: Any, **options: Any) -> Any:
            left.append(tmp_path / f"left{len(left)}")
            shutil.copytree(run.folder, left[-1])
            return real(*args, **options)

        monkeypatch.setattr(module, name, keep_then_go_on)

    before(tf.train.Checkpoint, "write")
    for module, name in [(delta_manifest, "sync"), (os, "replace"), (os, "fsync"), (Path, "unlink")]:
        before(module, name)
    for _ in range(3):  # a delta, then a full save that ends the old chain, then a delta on it
        run.go_on()
        run.save()
    monkeypatch.undo()
    assert [save.is_delta for save in run.manager.saves] == [False, True]
    assert len(left) > 40
    found = {run.assert_restores(folder) for folder in left[::2]}
    assert found == {"ckpt-4", "ckpt-5", "ckpt-6", "ckpt-7"}
    for folder in left[1::6]:  # the next process goes on
        back = run.new()
        manager = tfctr.DeltaCheckpointManager(back, folder, max_delta_rows=1e9)
        manager.restore()
        train(back.table, [5, 5, 1000])
        save = manager.save()
        assert save.is_delta
        again = run.new()
        tfctr.DeltaCheckpointManager(again, folder).restore()
        assert_same(again.table, contents(back.table))
        names = {path.name.split(".")[0] for path in folder.glob("ckpt-*")}
        assert names == {save.name for save in manager.saves}
        manager.close()


def test_half_of_what_is_being_written_is_never_restored(tmp_path: Path) -> None:
    """Copies of the folder while the table is written; each restores the save before, or this one."""
    folder = tmp_path / "run"
    table = make(optimizer=None)
    manager = manager_of(table, folder)
    tfctr.warm_start.from_numpy(table, np.arange(300_000), np.ones([300_000, 4], np.float32))
    manager.save()
    copies: list[Path] = []
    done = threading.Event()

    def copy() -> None:
        over = False
        while not over:  # the last one begins when the save is done
            over = done.wait(0.005)
            copies.append(tmp_path / f"copy{len(copies)}")
            with contextlib.suppress(shutil.Error):  # the temporary folder is gone by now
                shutil.copytree(folder, copies[-1], copy_function=_copy_what_is_there)

    tfctr.warm_start.from_numpy(table, np.arange(60_000), np.full([60_000, 4], 2, np.float32))
    thread = threading.Thread(target=copy)
    thread.start()
    assert manager.save().is_delta
    done.set()
    thread.join()
    restored = 0
    for copied in [*copies[: -1 : max(1, len(copies) // 8)], copies[-1]]:
        back = make(optimizer=None)
        try:
            manager_of(back, copied).restore()
        except CorruptFileError:  # the list was copied after the files that it names were made
            assert back.size() == 0
            continue
        restored += 1
        assert back.lookup([5, 100_000]).numpy()[:, 0].tolist() in ([1.0, 1.0], [2.0, 1.0])
    assert restored > 0


def _copy_what_is_there(source: str, target: str) -> None:
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        return  # renamed meanwhile


KILLED = """
import sys
import numpy as np
import tfctr
from tests.embedding import delta_tables as t
table = t.make(optimizer=None)
manager = t.manager_of(table, sys.argv[1], max_deltas=5, keep=1, max_delta_rows=1e9)
for i in range(1, 10000):
    ids = np.arange(i % 7, 100_000, 7)
    tfctr.warm_start.from_numpy(table, ids, np.full([len(ids), 4], i, np.float32))
    print("saved", manager.save().number, i, flush=True)
"""


def test_killed_while_saving(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(9):
        line = child.stdout.readline()
        assert line, child.stderr and child.stderr.read()
    time.sleep(float(np.random.default_rng().uniform(0, 0.1)))
    child.send_signal(signal.SIGKILL)
    lines = [line, *child.stdout.read().splitlines()]
    child.wait()
    number = int(lines[-1].split()[1])
    table = make(optimizer=None)
    manager = manager_of(table, tmp_path)
    manager.restore().assert_consumed()
    assert manager.saves[-1].number in (number, number + 1)
    last = manager.saves[-1].number  # save n came after write n, and a full one is number 6k + 1
    values = table.lookup(np.arange(7), training=False).numpy()[:, 0]
    expected = [max(i for i in range(1, last + 1) if i % 7 == key) for key in range(7)]
    np.testing.assert_array_equal(values, expected)
    train(table, [3])
    assert manager.save().is_delta
    assert_restored_as(tmp_path, table)


def assert_restored_as(folder: Path, table: Any) -> None:
    back = make(shards=2, optimizer=None)
    manager_of(back, folder).restore()
    assert_same(back, contents(table))
