"""Delta checkpoints: a full save and its deltas are what a full save would have been, bit for bit, in any shards.

Case 15 of our study of DeepRec: its issues 999 and 983.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.delta_tables import assert_same, contents, live, make, manager_of, train
from tfctr.errors import UsageError

OPTIMIZERS = {
    "none": None,
    "sgd": tfctr.optimizers.SGD(0.1),
    "adagrad": tfctr.optimizers.Adagrad(0.1),
    "row_wise": tfctr.optimizers.RowWiseAdagrad(0.1),
    "adam": tfctr.optimizers.Adam(0.1),
    "adamw": tfctr.optimizers.AdamW(0.1),
    "ftrl": tfctr.optimizers.Ftrl(0.1),
    "lazy_adam": tfctr.optimizers.LazyAdam(0.1),
    "adagrad_decay": tfctr.optimizers.AdagradDecay(0.1, accumulator_decay_steps=3, accumulator_decay_rate=0.5),
}
ADMISSIONS = {
    "all": None,
    "counter": tfctr.CounterAdmission(3),
    "bloom": tfctr.BloomAdmission(3, expected_keys=200, false_positive_rate=0.01),
    "bloom_reset": tfctr.BloomAdmission(2, expected_keys=100, false_positive_rate=0.01, reset_every_steps=4),
}
EVICTIONS = {
    "none": None,
    "step": tfctr.StepEviction(3),
    "lfu": tfctr.CapacityEviction(25, "lfu"),
    "several": [tfctr.TtlEviction(20.0), tfctr.L2Eviction(0.02), tfctr.CapacityEviction(30)],
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_base_and_deltas_are_the_full_save(tmp_path: Path, optimizer: str) -> None:
    seed = sorted(OPTIMIZERS).index(optimizer)
    options: dict[str, Any] = {
        "optimizer": OPTIMIZERS[optimizer],
        "admission": [*ADMISSIONS.values()][seed % 4],
        "eviction": [*EVICTIONS.values()][seed % 3],
        "record_frequency": True,
    }
    kinds = []
    for i, (_, save, expected) in enumerate(live(tmp_path, 7, seed, **options)):
        kinds.append(save.is_delta)
        back = make(shards=[1, 2, 3, 7][i % 4], **options)
        manager_of(back, tmp_path).restore().assert_consumed()
        assert_same(back, expected)
    assert kinds == [False] + [True] * 6


@pytest.mark.parametrize("admission", ADMISSIONS)
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_every_admission_with_every_eviction(tmp_path: Path, admission: str, eviction: str) -> None:
    options: dict[str, Any] = {"admission": ADMISSIONS[admission], "eviction": EVICTIONS[eviction]}
    options["evict_on_save"] = eviction != "none"
    everything = []
    for manager, save, expected in live(tmp_path, 6, len(admission) * len(eviction), **options):
        everything.append((save, expected))
        full = tf.train.Checkpoint(table=manager._checkpoint.table).write(str(tmp_path / "full" / save.name))
        from_full, from_deltas = make(shards=2, **options), make(shards=3, **options)
        tf.train.Checkpoint(table=from_full).read(full).assert_consumed()
        tf.train.Checkpoint(table=from_deltas).read(manager.latest_checkpoint).assert_consumed()
        assert_same(from_deltas, contents(from_full))
    for shards, (save, expected) in zip((1, 2, 3, 7, 16, 1), everything, strict=True):  # any of them, later too
        back = make(shards=shards, **options)
        manager_of(back, tmp_path).restore(save.name).assert_consumed()
        assert_same(back, expected)


def test_a_delta_holds_what_changed_alone(tmp_path: Path) -> None:
    table = make()
    manager = manager_of(table, tmp_path)
    train(table, np.arange(1000))
    assert not manager.save().is_delta
    train(table, [5, 6, 5, 2000])
    table.erase([7, 8, 123456])
    (told,) = manager.save().tables
    assert (told.delta, told.rows, told.removed, told.table_rows) == (True, 3, 2, 999)
    (told,) = manager.save().tables
    assert (told.delta, told.rows, told.removed) == (True, 0, 0)
    table.erase([5])
    train(table, [5])  # back, and new
    (told,) = manager.save().tables
    assert (told.delta, told.rows, told.removed) == (True, 1, 0)
    save = manager.save(full=True)
    assert not save.is_delta and save.why == "full=True" and save.tables[0].rows == 999
    assert manager.save().is_delta


def test_tables_that_do_not_remember_changes_are_whole_and_it_is_said(tmp_path: Path) -> None:
    tables = tf.train.Checkpoint(a=make(), b=make(record_changes=False), dense=tf.Variable([1.0, 2.0]))
    manager = tfctr.DeltaCheckpointManager(tables, tmp_path)
    for i in range(3):
        train(tables.a, [i])
        train(tables.b, [i, i + 1])
        tables.dense.assign_add([1.0, 1.0])
        save = manager.save()
    by_name = {table.name.split("/")[0]: table for table in save.tables}
    assert by_name["a"].delta and not by_name["b"].delta and "record_changes=True" in by_name["b"].why
    back = tf.train.Checkpoint(a=make(3), b=make(2, record_changes=False), dense=tf.Variable([0.0, 0.0]))
    tfctr.DeltaCheckpointManager(back, tmp_path).restore().assert_consumed()
    assert_same(back.a, contents(tables.a))
    assert_same(back.b, contents(tables.b))
    np.testing.assert_array_equal(back.dense, [4.0, 5.0])


def test_a_restored_table_goes_on_with_deltas_and_a_replaced_one_does_not(tmp_path: Path) -> None:
    table = make()
    with manager_of(table, tmp_path) as manager:
        train(table, range(50))
        manager.save()
        train(table, range(10))
        manager.save()
    back = make(shards=3)
    with manager_of(back, tmp_path) as manager:
        manager.restore()
        train(back, [3, 100])
        save = manager.save()
        assert save.is_delta and save.tables[0].rows == 2
        tf.train.Checkpoint(table=back).read(str(tmp_path / "ckpt-1"))  # an older state
        save = manager.save()
        assert not save.is_delta and "replaced" in save.tables[0].why
        train(back, [1])
        assert manager.save().tables[0].rows == 1
    again = make(shards=7)
    manager_of(again, tmp_path).restore()
    assert_same(again, contents(back))


def test_a_table_that_was_restored_as_another_is_whole(tmp_path: Path) -> None:
    tables = tf.train.Checkpoint(a=make(), b=make())
    with tfctr.DeltaCheckpointManager(tables, tmp_path) as manager:
        train(tables.a, range(30))
        train(tables.b, range(100, 140))
        manager.save()
        tf.train.Checkpoint(a=tables.b).read(manager.latest_checkpoint).expect_partial()  # a's rows
        train(tables.b, [7])
        a, b = manager.save().tables
        assert a.delta and not b.delta
    back = tf.train.Checkpoint(a=make(), b=make())
    tfctr.DeltaCheckpointManager(back, tmp_path).restore()
    assert_same(back.b, contents(tables.b))


def test_without_parts_a_restored_table_is_another_one(tmp_path: Path) -> None:
    table = make(admission=tfctr.CounterAdmission(2))
    with manager_of(table, tmp_path) as manager:
        train(table, [1, 1, 2])
        manager.save()
    with manager_of(table, tmp_path) as manager:
        with tfctr.checkpoint_options(slots=False):
            manager.restore()
        assert not manager.save().is_delta
        with pytest.raises(UsageError, match="checkpoint_options"), tfctr.checkpoint_options(counters=False):
            manager.save()
        manager.restore()
        assert manager.save().is_delta


def test_full_saves_come_when_they_are_due_and_old_chains_go(tmp_path: Path) -> None:
    table = make()
    manager = manager_of(table, tmp_path, max_deltas=2, keep=2)
    kinds, states = [], {}
    for i in range(10):
        train(table, [i])
        save = manager.save()
        kinds.append("d" if save.is_delta else "F")
        states[save.name] = contents(table)
        for kept in manager.saves:  # nothing that is kept lacks what it builds upon
            back = make(shards=2)
            manager_of(back, tmp_path).restore(kept.name)
            assert_same(back, states[kept.name])
    assert "".join(kinds) == "FddFddFddF"
    assert [save.name for save in manager.saves] == ["ckpt-7", "ckpt-8", "ckpt-9", "ckpt-10"]
    assert {path.name.split(".")[0] for path in tmp_path.glob("ckpt-*")} == {save.name for save in manager.saves}
    assert tf.train.latest_checkpoint(str(tmp_path)) == manager.latest_checkpoint == str(tmp_path / "ckpt-10")
    many = manager_of(make(), tmp_path / "many", max_delta_rows=0.5)
    done = []
    for _ in range(4):
        train(many._checkpoint.table, range(20))
        done.append(many.save())
    assert [save.is_delta for save in done] == [False, True, False, True]
    assert "max_delta_rows" in done[2].why


def test_much_that_changed_is_saved_whole_in_the_chain(tmp_path: Path) -> None:
    tables = tf.train.Checkpoint(large=make(), small=make())
    manager = tfctr.DeltaCheckpointManager(tables, tmp_path, max_delta_rows=1e9)
    ids = np.arange(80_000)
    train(tables.large, ids)
    train(tables.small, [1])
    manager.save()
    train(tables.large, ids)  # 16 bytes for each: more than 1 MB and a sixteenth of the table
    train(tables.small, [1, 2])
    save = manager.save()
    large, small = save.tables
    assert not large.delta and "so much changed" in large.why and small.delta and save.is_delta
    train(tables.large, [5])
    tables.large.erase(ids[: len(ids) // 2])  # more than the log holds
    train(tables.large, [-5])
    save = manager.save()
    assert not save.tables[0].delta
    train(tables.large, [6])
    assert manager.save().tables[0].rows == 1
    back = tf.train.Checkpoint(large=make(3), small=make(1))
    tfctr.DeltaCheckpointManager(back, tmp_path).restore()
    assert_same(back.large, contents(tables.large))
    assert_same(back.small, contents(tables.small))


def test_training_goes_on_during_saves_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    table = make(admission=tfctr.CounterAdmission(2), eviction=tfctr.StepEviction(40), evict_every_steps=7)
    manager = manager_of(table, tmp_path, max_deltas=1000, max_delta_rows=1e9)
    stop = threading.Event()
    errors: list[Exception] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                train(table, random.zipf(1.3, 300) % 2000)
                if random.random() < 0.1:
                    table.erase(random.integers(0, 2000, 20))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    saves = [manager.save() for _ in range(12)]
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    saves.append(manager.save())  # what happened beside the last one is in this one
    assert all(save.is_delta for save in saves[1:])
    back = make(shards=3, admission=tfctr.CounterAdmission(2), eviction=tfctr.StepEviction(40))
    manager_of(back, tmp_path).restore().assert_consumed()
    assert_same(back, contents(table))


def test_tables_at_their_limit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"eviction": tfctr.CapacityEviction(10**6, "lfu"), "admission": tfctr.CounterAdmission(2)}
    table = make(max_bytes=1_000_000, **options)
    manager = manager_of(table, tmp_path, max_delta_rows=1e9)
    random = np.random.default_rng(0)
    saves = []
    for _ in range(8):
        for _ in range(5):
            train(table, np.repeat(random.integers(0, 100_000, 600), 2))
        saves.append(manager.save())
    assert table.size() < 8 * 5 * 600 * 0.7  # rows went to make room
    assert sum(save.is_delta for save in saves) >= 4 and sum(save.tables[0].removed for save in saves) > 100
    for shards in (1, 5, 7):
        back = make(shards=shards, **options)
        manager_of(back, tmp_path).restore().assert_consumed()
        assert_same(back, contents(table))


def test_counts_one_by_one_go_into_a_bloom_filter_once(tmp_path: Path) -> None:
    table = make(admission=tfctr.CounterAdmission(100))
    manager = manager_of(table, tmp_path)
    for times in (3, 4, 5):
        table.lookup([7] * times, training=True)
        table.lookup([8], training=True)
        manager.save()
        table.erase([8])
    back = make(admission=tfctr.BloomAdmission(100, expected_keys=1000, false_positive_rate=0.001))
    manager_of(back, tmp_path).restore()
    np.testing.assert_array_equal(back.frequency([7, 8, 9]), [12, 1, 0])


def test_a_variable_without_the_option_restores_deltas(tmp_path: Path) -> None:
    table = make()
    manager = manager_of(table, tmp_path)
    for i in range(3):
        train(table, [i, 1])
        manager.save()
    back = make(record_changes=False, record_last_step=True)
    manager_of(back, tmp_path).restore().assert_consumed()
    found = contents(back)
    np.testing.assert_array_equal(found.pop("last_step"), [int(table.step)] * 3)
    expected = contents(table)
    for name, part in found.items():
        np.testing.assert_array_equal(part, expected[name])


def test_stock_readers_list_what_a_delta_holds(tmp_path: Path) -> None:
    table = make(admission=tfctr.CounterAdmission(2))
    manager = manager_of(table, tmp_path)
    train(table, [1, 1, 2, 2])
    manager.save()
    train(table, [2, 3])
    table.erase([1])
    prefix = tmp_path / manager.save().name
    reader = tf.train.load_checkpoint(str(prefix))
    np.testing.assert_array_equal(reader.get_tensor("table/keys"), [2])
    np.testing.assert_array_equal(reader.get_tensor("table/removed"), [1])
    np.testing.assert_array_equal(reader.get_tensor("table/counters/keys"), [3])
    assert reader.get_variable_to_shape_map()["table/slots/accumulator"] == [1, 4]
    told = json.loads(reader.get_tensor("table/config"))
    assert told["format"] == 2 and told["previous"]["name"] == "ckpt-1" and told["table"]["dim"] == 4


def test_every_write_that_changes_a_row_stamps_its_last_step(tmp_path: Path) -> None:
    step = tf.Variable(0, dtype=tf.int64)
    table = make(record_last_step=True, step=step)
    train(table, [1, 2, 3])
    step.assign(5)
    train(table, [1])  # an update
    step.assign(6)
    table.lookup([2], training=True)  # changes no value
    tfctr.warm_start.from_numpy(table, [3, 4], np.ones([2, 4], np.float32))
    rows = table.export()
    assert dict(zip(rows.keys.tolist(), rows.last_step.tolist(), strict=True)) == {1: 5, 2: 0, 3: 6, 4: 6}
    manager = manager_of(table, tmp_path)
    manager.save()
    back = make(record_last_step=True, step=step)
    manager_of(back, tmp_path).restore()
    assert_same(back, contents(table))


PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
import tfctr
from tests.embedding import delta_tables as t
table = t.make(shards=7, admission=tfctr.CounterAdmission(2))
manager = t.manager_of(table, sys.argv[1])
manager.restore().assert_consumed()
np.savez(sys.argv[2], **t.contents(table))
t.train(table, [500, 500, 1])
print(manager.save().is_delta)
"""


def test_restore_in_a_new_process(tmp_path: Path) -> None:
    table = make(admission=tfctr.CounterAdmission(2))
    with manager_of(table, tmp_path / "ckpt") as manager:
        for i in range(4):
            train(table, [i, i, i + 1, 100])
            manager.save()
            table.erase([i])
        manager.save()
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "ckpt", tmp_path / "found.npz"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["True"]
    with np.load(tmp_path / "found.npz") as found:
        for name, part in contents(table).items():
            np.testing.assert_array_equal(found[name], part)


def test_keras_models_and_objects_that_are_made_later(tmp_path: Path) -> None:
    import keras

    def model() -> Any:
        keras.utils.set_random_seed(2)
        ids = keras.Input([2], dtype="int64")
        rows = tfctr.keras.Embedding(4, name="ids", optimizer=tfctr.optimizers.Adagrad(0.1), record_changes=True)(ids)
        made = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
        made.compile("adam", "mse")
        return made

    ids, labels = np.arange(20).reshape(10, 2), np.ones([10, 1])
    first = model()
    first.fit(ids, labels, verbose=0)
    manager = tfctr.DeltaCheckpointManager(tf.train.Checkpoint(model=first, optimizer=first.optimizer), tmp_path)
    assert not manager.save().is_delta
    first.fit(ids[:2], labels[:2], verbose=0)
    save = manager.save()
    assert save.is_delta and [table.rows for table in save.tables] == [4]
    second = model()
    checkpoint = tf.train.Checkpoint(model=second, optimizer=second.optimizer)
    tfctr.DeltaCheckpointManager(checkpoint, tmp_path).restore()
    np.testing.assert_array_equal(second.predict(ids, verbose=0), first.predict(ids, verbose=0))
    later = tf.train.Checkpoint()
    tfctr.DeltaCheckpointManager(later, tmp_path).restore()
    later.model = model()  # a deferred restore follows the chain too
    np.testing.assert_array_equal(later.model.predict(ids, verbose=0), first.predict(ids, verbose=0))


def test_bad_arguments(tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"max_deltas": -1}, "max_deltas is -1"),
        ({"keep": 0}, "keep is 0"),
        ({"max_delta_rows": float("nan")}, "max_delta_rows"),
        ({"name": "a/b"}, "name is 'a/b'"),
    ]
    for options, words in bad:
        with pytest.raises(UsageError, match=words):
            manager_of(make(), tmp_path, **options)
    with pytest.raises(UsageError, match="a folder of this machine"):
        manager_of(make(), "gs://bucket/ckpt")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"a tf\.train\.Checkpoint"):
        tfctr.DeltaCheckpointManager(make(), tmp_path)  # type: ignore[arg-type]
    manager = manager_of(make(), tmp_path / "empty")
    assert manager.restore() is None and manager.latest_checkpoint is None and manager.saves == ()
    with pytest.raises(UsageError, match="there is no save 'ckpt-9'"):
        manager.restore("ckpt-9")
    tf.train.Checkpoint(table=make()).write(str(tmp_path / "others" / "ckpt-1"))
    with pytest.raises(UsageError, match="holds other checkpoints"):
        manager_of(make(), tmp_path / "others")
    with tf.Graph().as_default(), pytest.raises(UsageError, match="eager"):
        manager.save()
