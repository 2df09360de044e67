"""The cases of test_deeprec_cases.py that save and restore: 2, 3, 7, 12, 14 and 16 to 20.

What must hold in a new process (2, 3, 7) is trained and saved once, restored by one other process, and compared by each
test.
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
from tests.embedding.reference_table import Adagrad, ReferenceTable

RATE = 0.1
STEPS = 50
ADMISSIONS = {
    "none": None,
    "counter": tfctr.CounterAdmission(3),
    "bloom": tfctr.BloomAdmission(3, expected_keys=60, false_positive_rate=0.1),
}
EVICTIONS = {"none": None, "step": tfctr.StepEviction(15), "l2": tfctr.L2Eviction(0.6)}
PAIRS = [(admission, eviction) for admission in ADMISSIONS for eviction in EVICTIONS]
DTYPES = ["int32", "int64", "string"]
DTYPE_IDS = np.array([5, -7, 11, 2**31 - 1, -(2**31)])
MANY = np.arange(-5000, 5001)


def table(dim: int = 2, **options: Any) -> tfctr.EmbeddingVariable:
    options.setdefault("optimizer", tfctr.optimizers.Adagrad(RATE))
    return tfctr.EmbeddingVariable(dim, **options)


def tables(shards: int) -> dict[str, tfctr.EmbeddingVariable]:
    """All tables of the cases that need another process. Restored ones have another number of shards."""
    made = {"many": table(shards=shards, seed=5)}
    for dtype in DTYPES:
        made[dtype] = table(shards=shards, seed=6, key_dtype=tf.as_dtype(dtype))
    for admission, eviction in PAIRS:
        made[f"{admission}_{eviction}"] = table(
            shards=shards,
            seed=7,
            admission=ADMISSIONS[admission],
            eviction=EVICTIONS[eviction],
            initializer=tfctr.Uniform(-0.8, 0.8),
            record_frequency=True,
        )
    return made


def of_dtype(dtype: str, ids: np.ndarray) -> np.ndarray:
    return ids.astype(str) if dtype == "string" else ids.astype(dtype)


def probe(step: int) -> np.ndarray:
    """The ids of one step of the pairs: a moving window, so that keys get old; some come once."""
    random = np.random.default_rng(step)
    return np.concatenate([step + random.integers(0, 10, 10), random.integers(-(2**63), 2**63 - 1, 3)])


def contents(variable: tfctr.EmbeddingVariable) -> dict[str, np.ndarray]:
    """Everything of a table, in the order of its keys."""
    rows = variable.export(slots=True)
    order = np.argsort(rows.keys)
    columns = {"keys": rows.keys, "values": rows.values, **rows.slots}
    for name in ("frequency", "last_step", "last_time_ms"):
        if getattr(rows, name) is not None:
            columns[name] = getattr(rows, name)
    return {name: column[order] for name, column in columns.items()}


def restore_and_dump(prefix: str, out: str) -> None:
    """What the other process does: restore, write all contents, then one more training lookup of every pair."""
    made = tables(shards=3)
    tf.train.Checkpoint(**made).read(prefix).assert_consumed()
    arrays = {f"{name}/{column}": array for name, each in made.items() for column, array in contents(each).items()}
    for dtype in DTYPES:
        arrays[f"{dtype}/rows"] = made[dtype].lookup(of_dtype(dtype, DTYPE_IDS)).numpy()
    for admission, eviction in PAIRS:
        variable = made[f"{admission}_{eviction}"]
        arrays[f"{admission}_{eviction}/step"] = variable.step.numpy()
        arrays[f"{admission}_{eviction}/rows"] = variable.lookup(probe(STEPS), training=True).numpy()
    np.savez(out, **arrays)


def gradients_of(step: int, ids: np.ndarray) -> np.ndarray:
    return np.random.default_rng(step + 1000).normal(size=(len(ids), 2)).astype(np.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, ReferenceTable], Any]:
    """Contents that were saved, the reference tables of the pairs, and what the other process found."""
    made = tables(shards=5)
    made["many"].lookup(MANY, training=True)
    made["many"].apply_gradients(tf.IndexedSlices(np.outer(MANY, [0.5, -1]).astype(np.float32), MANY))
    for dtype in DTYPES:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(made[dtype].lookup(of_dtype(dtype, DTYPE_IDS), training=True) ** 2)
        made[dtype].apply_gradients(tape.gradient(loss, made[dtype].handle))
    references = {}
    for admission, eviction in PAIRS:
        name = f"{admission}_{eviction}"
        variable = made[name]
        references[name] = reference = ReferenceTable(json.loads(variable.config), Adagrad())
        for step in range(STEPS):
            ids = probe(step)
            variable.lookup(ids, training=True)
            reference.lookup(ids.tolist(), step, training=True)
            variable.apply_gradients(tf.IndexedSlices(gradients_of(step, ids), ids))
            reference.apply(ids.tolist(), gradients_of(step, ids), RATE, step)
        if eviction != "none":
            assert variable.evict().rows == reference.evict(STEPS, 0).rows > 0
    folder = tmp_path_factory.mktemp("deeprec")
    prefix = tf.train.Checkpoint(**made).write(str(folder / "ckpt"))
    saved = {name: contents(each) for name, each in made.items()}
    for dtype in DTYPES:
        saved[dtype]["rows"] = made[dtype].lookup(of_dtype(dtype, DTYPE_IDS)).numpy()
    code = f"from {__name__} import restore_and_dump; restore_and_dump({prefix!r}, {str(folder / 'out.npz')!r})"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=300)
    return saved, references, np.load(folder / "out.npz")


def assert_restored(saved: dict[str, np.ndarray], found: Any, name: str) -> None:
    assert set(saved) <= {column.removeprefix(f"{name}/") for column in found.files if column.startswith(f"{name}/")}
    for column, array in saved.items():
        np.testing.assert_array_equal(found[f"{name}/{column}"], array, err_msg=f"{name}/{column}", strict=True)


def test_case_2_negative_keys_survive_a_save(trained: Any) -> None:
    saved, _, found = trained
    np.testing.assert_array_equal(saved["many"]["keys"], MANY)
    assert_restored(saved["many"], found, "many")


@pytest.mark.parametrize("dtype", DTYPES)
def test_case_3_every_key_dtype_saves_and_restores(dtype: str, trained: Any) -> None:
    saved, _, found = trained
    assert len(saved[dtype]["keys"]) == len(DTYPE_IDS)
    assert_restored(saved[dtype], found, dtype)


@pytest.mark.parametrize(("admission", "eviction"), PAIRS)
def test_case_7_admission_and_eviction_through_a_checkpoint(admission: str, eviction: str, trained: Any) -> None:
    saved, references, found = trained
    name = f"{admission}_{eviction}"
    reference = references[name]
    assert saved[name]["keys"].tolist() == sorted(reference.rows)
    np.testing.assert_array_equal(saved[name]["values"], [reference.rows[k].value for k in sorted(reference.rows)])
    assert_restored(saved[name], found, name)
    assert found[f"{name}/step"] == STEPS
    # Counters and filter cells were restored too: the same keys are admitted by the next lookup.
    if f"{name}/continued" not in references:
        references[f"{name}/continued"] = reference.lookup(probe(STEPS).tolist(), STEPS, training=True)
    np.testing.assert_array_equal(found[f"{name}/rows"], references[f"{name}/continued"])


def test_case_12_one_table_evicts_on_save_the_other_does_not(tmp_path: Path) -> None:
    def pair(evicting: str) -> dict[str, tfctr.EmbeddingVariable]:
        step = tf.Variable(0, dtype=tf.int64)
        policy = {"eviction": tfctr.StepEviction(5), "evict_on_save": True}
        return {name: table(step=step, **(policy if name == evicting else {})) for name in ("a", "b")}

    for evicting, kept in (("a", {"a": [2], "b": [1, 2]}), ("b", {"a": [1, 2], "b": [2]})):
        made = pair(evicting)
        for ids, now in (([1], 0), ([2], 8)):
            made["a"].step.assign(now)
            for variable in made.values():
                variable.lookup(ids, training=True)
        prefix = tf.train.Checkpoint(**made).write(str(tmp_path / evicting))
        other = "b" if evicting == "a" else "a"
        for reader in (evicting, other, ""):  # a policy is no part of what is saved
            back = pair(reader)
            tf.train.Checkpoint(**back).read(prefix).assert_consumed()
            assert {name: sorted(variable.keys().tolist()) for name, variable in back.items()} == kept


def test_case_14_value_and_slots_of_a_row_are_saved_together(tmp_path: Path) -> None:
    # Every update adds 1 to the accumulator and takes 1/sqrt(accumulator) off the value: each tells the other.
    variable = table(1, initializer=tfctr.Constant(0.0), optimizer=tfctr.optimizers.Adagrad(1.0))
    value, accumulator, of = np.float32(0), np.float32(0.1), {}
    for _ in range(20000):
        of[float(accumulator)] = float(value)
        accumulator += np.float32(1)
        value -= np.float32(1) / (np.sqrt(accumulator) + np.float32(1e-7))
    stop = threading.Event()

    def insert_and_update() -> None:
        start = 0
        while not stop.is_set() and start < 50 * len(of):
            ids = np.concatenate([np.arange(50), np.arange(start, start + 50)])  # 50 that get old, 50 new
            variable.lookup(ids, training=True)
            variable.apply_gradients(tf.IndexedSlices(np.ones([50, 1], np.float32), ids[:50]))
            start += 50

    worker = threading.Thread(target=insert_and_update)
    worker.start()
    checkpoint = tf.train.Checkpoint(table=variable)
    prefixes = []
    for number in range(12):
        before = variable.size()
        while worker.is_alive() and variable.size() == before:  # the worker may get its turn late
            stop.wait(0.001)
        prefixes.append(checkpoint.write(str(tmp_path / f"ckpt{number}")))
    stop.set()
    worker.join(20)
    sizes = []
    for prefix in prefixes:
        back = table(1, optimizer=tfctr.optimizers.Adagrad(1.0), shards=7)
        tf.train.Checkpoint(table=back).read(prefix)
        rows = contents(back)
        sizes.append(len(rows["keys"]))
        assert len(set(rows["keys"].tolist())) == len(rows["values"]) == len(rows["accumulator"]) == sizes[-1]
        for got, slot in zip(rows["values"][:, 0].tolist(), rows["accumulator"][:, 0].tolist(), strict=True):
            assert of[slot] == got
    assert sizes[0] < sizes[-1], "the table must grow while it is saved"


def test_case_16_any_part_restores_and_saves_again(tmp_path: Path) -> None:
    def three() -> dict[str, tfctr.EmbeddingVariable]:
        policies = {"admission": tfctr.CounterAdmission(2), "eviction": tfctr.StepEviction(100)}
        return {name: table(shards=shards, **policies) for name, shards in (("a", 1), ("b", 2), ("c", 7))}

    made = three()
    for offset, variable in enumerate(made.values()):
        variable.lookup(np.repeat(np.arange(offset, offset + 20), 2), training=True)
    whole = tf.train.Checkpoint(**made).write(str(tmp_path / "whole"))
    for part in (["a"], ["b", "c"], ["a", "c"]):
        back = three()
        tf.train.Checkpoint(**{name: back[name] for name in part}).read(whole).expect_partial()
        assert {name: variable.size() for name, variable in back.items()} == {
            name: 20 if name in part else 0 for name in back
        }
        again = tf.train.Checkpoint(**back).write(str(tmp_path / "again"))
        last = three()
        tf.train.Checkpoint(**last).read(again).assert_consumed()
        for name in part:
            np.testing.assert_equal(contents(last[name]), contents(made[name]))


def test_case_17_a_standard_reader_lists_the_table(tmp_path: Path) -> None:
    variable = table(4, record_frequency=True)
    variable.lookup([3, -9, 3], training=True)
    prefix = tf.train.Checkpoint(users=variable).write(str(tmp_path / "ckpt"))
    reader = tf.train.load_checkpoint(prefix)
    shapes = {key: shape for key, shape in reader.get_variable_to_shape_map().items() if "users" in key}
    (keys,) = [name for name in shapes if name.endswith("/keys")]
    (values,) = [name for name in shapes if name.endswith("/values")]
    (accumulator,) = [name for name in shapes if name.endswith("/slots/accumulator")]
    (frequency,) = [name for name in shapes if name.endswith("/frequency")]
    assert [shapes[name] for name in (keys, values, accumulator, frequency)] == [[2], [2, 4], [2, 4], [2]]
    by_key = dict(zip(reader.get_tensor(keys).tolist(), reader.get_tensor(frequency).tolist(), strict=True))
    assert by_key == {3: 2, -9: 1}
    for key, row in zip(reader.get_tensor(keys).tolist(), reader.get_tensor(values), strict=True):
        np.testing.assert_array_equal(row, variable.lookup([key]).numpy()[0])


def test_case_18_another_table_is_refused_by_name(tmp_path: Path) -> None:
    variable = table(4)
    variable.lookup([1, 2], training=True)
    prefix = tf.train.Checkpoint(users=variable).write(str(tmp_path / "ckpt"))
    for other, words in (
        (table(8, name="wider"), "(?s)wider.*(dim|8)"),
        (table(4, name="other_slots", optimizer=tfctr.optimizers.Adam(RATE)), "(?s)other_slots.*(slot|accumulator)"),
    ):
        other.lookup([9], training=True)
        with pytest.raises(Exception, match=words):
            tf.train.Checkpoint(users=other).read(prefix)
        assert other.keys().tolist() == [9]  # and what it had is still there


def test_case_19_an_empty_table_saves_and_restores(tmp_path: Path) -> None:
    prefix = tf.train.Checkpoint(users=table()).write(str(tmp_path / "ckpt"))
    full = table()
    full.lookup([1, 2, 3], training=True)
    tf.train.Checkpoint(users=full).read(prefix).assert_consumed()
    assert full.size() == 0
    np.testing.assert_array_equal(full.lookup([1, 2]).numpy(), np.zeros([2, 2]))
    full.lookup([1], training=True)
    assert full.size() == 1


def test_case_20_a_lookup_beside_a_restore_sees_the_old_or_the_new_table(tmp_path: Path) -> None:
    ids = np.arange(3000)
    prefixes = []
    for value in (1.0, 2.0):
        version = table(initializer=tfctr.Constant(value))
        version.lookup(ids, training=True)
        prefixes.append(tf.train.Checkpoint(users=version).write(str(tmp_path / f"ckpt{value}")))
    variable = table()
    checkpoint = tf.train.Checkpoint(users=variable)
    checkpoint.read(prefixes[0])
    stop = threading.Event()
    seen: set[float] = set()
    mixed: list[np.ndarray] = []

    def look() -> None:
        while not stop.is_set():
            values = np.unique(variable.lookup(ids).numpy())
            seen.update(values.tolist())
            if len(values) != 1:
                mixed.append(values)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    turn = 0
    while turn < 30 or (seen != {1.0, 2.0} and turn < 10_000):  # the threads may get their turn late
        checkpoint.read(prefixes[turn % 2])
        turn += 1
    stop.set()
    for thread in threads:
        thread.join(20)
    assert not mixed, mixed[0]
    assert seen == {1.0, 2.0}
