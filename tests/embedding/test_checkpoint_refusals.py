"""What a restore refuses, by name, and what it may leave out. After every refusal the table is what it was."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.checkpoint_models import table_arrays
from tfctr.errors import UsageError

KEYS = np.array([5, -1, 2**63 - 1], np.int64)


def make(dim: int = 2, **options: Any) -> tfctr.EmbeddingVariable:
    options = {"optimizer": tfctr.optimizers.Adagrad(0.1), "seed": 1, "record_frequency": True, **options}
    options.setdefault("eviction", tfctr.StepEviction(100))
    return tfctr.EmbeddingVariable(dim, "items", **options)


def trained(**options: Any) -> tfctr.EmbeddingVariable:
    table = make(**options)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((table.lookup(KEYS, training=True) - 1) ** 2)
        table.apply_gradients(tape.gradient(loss, table.handle))
    return table


def write(table: Any, folder: Path) -> str:
    return tf.train.Checkpoint(table=table).write(str(folder / "ckpt"))


def read(prefix: str, table: Any) -> None:
    tf.train.Checkpoint(table=table).read(prefix).assert_existing_objects_matched()


def rewritten(prefix: str, folder: Path, change: Any) -> str:
    """The checkpoint with its tensors passed through `change` (a dict that it edits), written by stock TensorFlow."""
    reader = tf.train.load_checkpoint(prefix)
    tensors = {name: reader.get_tensor(name) for name, _ in tf.train.list_variables(prefix)}
    change(tensors)
    out = str(folder / "changed")
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=out,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
    )
    return out


def assert_refused(prefix: str, table: Any, error: type[Exception], *words: str) -> None:
    table.lookup([77], training=True)
    before = table_arrays(table)
    with pytest.raises(error) as raised:
        read(prefix, table)
    for word in (*words, "'items'"):
        assert word in str(raised.value), f"{word!r} is not in: {raised.value}"
    after = table_arrays(table)
    assert after.keys() == before.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_another_dim(tmp_path: Path) -> None:
    prefix = write(trained(), tmp_path)
    assert_refused(prefix, make(3), tf.errors.InvalidArgumentError, "table/values", "[3,2]", "[3,3]", prefix)


def test_another_slot_set(tmp_path: Path) -> None:
    prefix = write(trained(), tmp_path)
    table = make(optimizer=tfctr.optimizers.Adam(0.1))
    words = ("accumulator", "momentum, velocity", "slots=False")
    assert_refused(prefix, table, tf.errors.InvalidArgumentError, *words)
    with tfctr.checkpoint_options(slots=False):
        read(prefix, table)
    rows = table.export(slots=True)
    assert sorted(rows.keys) == sorted(KEYS)
    assert not rows.slots["momentum"].any()


def test_another_dtype(tmp_path: Path) -> None:
    def to_double(tensors: dict[str, Any]) -> None:
        tensors["table/values"] = tensors["table/values"].astype(np.float64)

    prefix = rewritten(write(trained(), tmp_path), tmp_path, to_double)
    assert_refused(prefix, make(), tf.errors.InvalidArgumentError, "table/values", "double", "float")


def test_other_keys(tmp_path: Path) -> None:
    prefix = write(trained(), tmp_path)
    table = make(key_dtype=tf.string)
    table.lookup(["a"], training=True)
    before = table.keys()
    with pytest.raises(tf.errors.InvalidArgumentError, match="'items'.* keys are int64, the variable's are string"):
        read(prefix, table)
    np.testing.assert_array_equal(table.keys(), before)
    narrow = make(key_dtype=tf.int32)
    read(prefix, narrow)
    assert narrow.size() == 3


def test_a_newer_format(tmp_path: Path) -> None:
    def newer(tensors: dict[str, Any]) -> None:
        tensors["table/config"] = tensors["table/config"].replace(b'"format": 1, "rows"', b'"format": 2, "rows"')

    prefix = rewritten(write(trained(), tmp_path), tmp_path, newer)
    assert_refused(prefix, make(), tf.errors.FailedPreconditionError, "format 2", "up to 1", "newer tfctr")


def test_tensors_that_do_not_fit_together(tmp_path: Path) -> None:
    prefix = write(trained(), tmp_path)

    def shorter(tensors: dict[str, Any]) -> None:
        tensors["table/slots/accumulator"] = tensors["table/slots/accumulator"][:2]

    def twice(tensors: dict[str, Any]) -> None:
        tensors["table/keys"] = tensors["table/keys"][[0, 1, 1]]

    def fewer(tensors: dict[str, Any]) -> None:
        tensors["table/keys"] = tensors["table/keys"][:2]

    def no_json(tensors: dict[str, Any]) -> None:
        tensors["table/config"] = b"{"

    for change, error, words in (
        (shorter, tf.errors.InvalidArgumentError, ("slots/accumulator", "[2,2]", "[3,2]")),
        (twice, tf.errors.DataLossError, ("table/keys", "3 keys, but 2 different")),
        (fewer, tf.errors.DataLossError, ("table/keys", "2 rows", "says 3")),
        (no_json, tf.errors.DataLossError, ("table/config", "format")),
    ):
        assert_refused(rewritten(prefix, tmp_path, change), make(), error, *words)


def test_stock_copies_of_a_checkpoint_restore(tmp_path: Path) -> None:
    """Tensors need not lie as our writer puts them: a stock tool may have written them in one piece."""
    table = trained()
    prefix = rewritten(write(table, tmp_path), tmp_path, lambda tensors: None)
    back = make(shards=2)
    read(prefix, back)
    for name, array in table_arrays(table).items():
        np.testing.assert_array_equal(table_arrays(back)[name], array)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    def another_name(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.startswith("table/") and "ATTRIBUTES" not in name]:
            tensors[name.replace("table/", "users/")] = tensors.pop(name)

    prefix = rewritten(write(trained(), tmp_path), tmp_path, another_name)
    assert_refused(prefix, make(), tf.errors.NotFoundError, "table/config", "it has 'users'")


def test_counters_of_another_kind(tmp_path: Path) -> None:
    bloom = tfctr.BloomAdmission(3, expected_keys=100)
    prefix = write(trained(admission=bloom), tmp_path)
    counting = make(admission=tfctr.CounterAdmission(3))
    assert_refused(prefix, counting, tf.errors.InvalidArgumentError, "Bloom", "counters=False")
    other = make(admission=tfctr.BloomAdmission(3, expected_keys=1000))
    assert_refused(prefix, other, tf.errors.InvalidArgumentError, "counters=False")
    with tfctr.checkpoint_options(counters=False):
        read(prefix, counting)
    assert counting.size() == 3
    assert counting.frequency(KEYS).tolist() == [3, 3, 3]  # what admits a key
    read(prefix, make())  # without admission no counts are needed


@pytest.mark.parametrize("kept", [0, 32, 514])
def test_a_bloom_filter_that_was_cut_short(tmp_path: Path, kept: int) -> None:
    """Its counts would be too small: 0 where it is empty."""
    options = {"admission": tfctr.BloomAdmission(3, expected_keys=50)}

    def cut(tensors: dict[str, Any]) -> None:
        assert len(tensors["table/bloom"]) == 515
        tensors["table/bloom"] = tensors["table/bloom"][:kept]

    prefix = rewritten(write(trained(**options), tmp_path), tmp_path, cut)
    assert_refused(prefix, make(**options), tf.errors.DataLossError, "table/bloom", f"{kept} bytes, expected 515")


def test_counters_go_on_counting_under_another_threshold(tmp_path: Path) -> None:
    table = make(admission=tfctr.CounterAdmission(5))
    table.lookup([1, 1, 2], training=True)
    prefix = write(table, tmp_path)
    stricter = make(admission=tfctr.CounterAdmission(2))
    read(prefix, stricter)
    assert (stricter.size(), stricter.counters()) == (0, 2)
    stricter.lookup([1], training=True)  # its count, 3, is judged now
    assert stricter.keys().tolist() == [1]
    blooming = make(admission=tfctr.BloomAdmission(3, expected_keys=1000))
    read(prefix, blooming)
    blooming.lookup([1, 2], training=True)
    assert blooming.keys().tolist() == [1]


def test_parts_that_are_left_out(tmp_path: Path) -> None:
    table = trained(admission=tfctr.CounterAdmission(2))
    table.lookup([9], training=True)
    with tfctr.checkpoint_options(slots=False, counters=False, steps=False):
        prefix = write(table, tmp_path)
    names = [name for name, _ in tf.train.list_variables(prefix)]
    assert [name for name in names if name.startswith("table/") and "ATTRIBUTES" not in name] == [
        "table/config",
        "table/keys",
        "table/values",
    ]
    reader = tf.train.load_checkpoint(prefix)
    assert json.loads(reader.get_tensor("table/config"))["left_out"] == ["slots", "counters", "steps"]
    back = make(admission=tfctr.CounterAdmission(2))
    read(prefix, back)  # what the save left out is not missed
    rows = back.export(slots=True)
    np.testing.assert_array_equal(rows.slots["accumulator"], np.full([3, 2], np.float32(0.1)))
    assert rows.frequency.tolist() == [2, 2, 2]
    assert rows.last_step.tolist() == [3, 3, 3]  # the step that was restored with them
    assert back.counters() == 0


def test_parts_that_are_not_restored(tmp_path: Path) -> None:
    table = trained(admission=tfctr.CounterAdmission(2))
    table.lookup([9], training=True)
    prefix = write(table, tmp_path)
    back = make(admission=tfctr.CounterAdmission(2))
    with tfctr.checkpoint_options(slots=False, counters=False, steps=False):
        read(prefix, back)
    rows = back.export(slots=True)
    np.testing.assert_array_equal(np.sort(rows.values, 0), np.sort(table.export().values, 0))
    assert np.unique(rows.slots["accumulator"]).tolist() == [np.float32(0.1)]
    assert (rows.frequency.tolist(), rows.last_step.tolist(), back.counters()) == ([2] * 3, [3] * 3, 0)


def test_a_policy_that_the_checkpoint_knows_nothing_of(tmp_path: Path) -> None:
    """What the new options need and the checkpoint lacks is as if the rows were inserted at the restore."""
    table = tfctr.EmbeddingVariable(2, "items", optimizer=tfctr.optimizers.Adagrad(0.1))
    table.lookup(KEYS, training=True)
    table.step.assign(500)
    prefix = write(table, tmp_path)
    back = make(eviction=[tfctr.StepEviction(10), tfctr.TtlEviction(1.0)], clock=tfctr.ManualClock(4000))
    read(prefix, back)
    rows = back.export()
    assert rows.last_step.tolist() == [500] * 3
    assert rows.last_time_ms.tolist() == [4_000_000] * 3
    assert rows.frequency.tolist() == [1] * 3
    assert back.evict().rows == 0


def test_any_number_of_shards_and_slices(tmp_path: Path) -> None:
    table = make(1, shards=3)
    keys = np.arange(-100_000, 100_000)  # more than a slice
    values = np.arange(len(keys), dtype=np.float32)[:, None]
    tfctr.warm_start.from_numpy(table, keys, values, slots={"accumulator": values + 1})
    prefix = write(table, tmp_path)
    assert dict(tf.train.list_variables(prefix))["table/values"] == [200_000, 1]
    stored = tf.train.load_checkpoint(prefix).get_tensor("table/keys")
    np.testing.assert_array_equal(np.sort(stored), keys)
    for shards in (1, 2, 16, 100):
        back = make(1, shards=shards)
        read(prefix, back)
        arrays = table_arrays(back)
        np.testing.assert_array_equal(arrays["keys"], keys)
        np.testing.assert_array_equal(arrays["values"], values)
        np.testing.assert_array_equal(arrays["accumulator"], values + 1)


def test_an_empty_table(tmp_path: Path) -> None:
    prefix = write(make(admission=tfctr.CounterAdmission(3)), tmp_path)
    back = trained()
    read(prefix, back)
    assert back.size() == 0
    back = make(admission=tfctr.CounterAdmission(3))
    read(prefix, back)
    assert (back.size(), back.counters()) == (0, 0)


def test_a_restore_past_max_bytes(tmp_path: Path) -> None:
    table = make(16)
    tfctr.warm_start.from_numpy(table, np.arange(300_000), np.ones([300_000, 16], np.float32))
    prefix = write(table, tmp_path)
    small = make(16, max_bytes=8 << 20)
    assert_refused(prefix, small, tf.errors.ResourceExhaustedError, str(8 << 20))


def test_tf_train_checkpoint_in_a_tf1_graph_is_refused(tmp_path: Path) -> None:
    """It would run no restore op of a registered saver: the table would stay empty, silently."""
    prefix = write(trained(), tmp_path)
    with tf.Graph().as_default(), tf.compat.v1.Session():
        checkpoint = tf.train.Checkpoint(table=make())
        with pytest.raises(UsageError, match=r"compat\.v1\.train\.Saver"):
            checkpoint.read(prefix)


def test_a_saved_model_for_serving_without_slots(tmp_path: Path) -> None:
    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = trained(admission=tfctr.CounterAdmission(2))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def __call__(self, ids: tf.Tensor) -> tf.Tensor:
            return self.table.lookup(ids)

    model = Model()
    path = str(tmp_path / "model")
    with tfctr.checkpoint_options(slots=False, counters=False, steps=False):
        tf.saved_model.save(model, path)
    names = [name for name, _ in tf.train.list_variables(f"{path}/variables/variables")]
    assert [name for name in names if "ATTRIBUTES" not in name and name.startswith("table/")] == [
        "table/config",
        "table/keys",
        "table/values",
    ]
    loaded = tf.saved_model.load(path)
    expected = model(KEYS).numpy()
    np.testing.assert_array_equal(loaded(KEYS), expected)
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        (given,), (output,) = signature.inputs.values(), signature.outputs.values()
        np.testing.assert_array_equal(session.run(output.name, {given.name: KEYS}), expected)
