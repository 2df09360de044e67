"""Models whose tables are saved in one process and loaded in another: what test_checkpoint_paths.py compares.

`save_all` trains and saves by every way; `load_all`, in a new process, loads each and writes what the models then
predict. A reload in the process that saved could find the old table and prove nothing.
"""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfctr
from tfctr.core import library
from tfctr.embedding import checkpoint, ops, saver_v1

v1 = tf.compat.v1

IDS = np.array([[3, -1], [2**63 - 1, 7], [-(2**63), 3], [1000, 0]], np.int64)  # 1000 is never trained
DIM = 4
FOLDERS = {
    "checkpoint": "ckpt",
    "manager": "manager",
    "saved_model": "saved_model",
    "export": "export",
    "weights_h5": "model.weights.h5",
    "keras": "model.keras",
    "v1_saver": "v1_saver",
    "v1_streamed": "v1_streamed",
}


def options() -> dict[str, Any]:
    """Everything a table can keep: slots, frequency, counters, last steps."""
    return {
        "optimizer": tfctr.optimizers.Adagrad(0.1),
        "admission": tfctr.CounterAdmission(2),
        "eviction": tfctr.StepEviction(1000),
        "seed": 11,
    }


class Scorer(tf.Module):
    """Two tables, one with string keys, and a dense weight."""

    def __init__(self, shards: int = 16) -> None:
        super().__init__()
        self.users = tfctr.EmbeddingVariable(DIM, "users", shards=shards, **options())
        self.words = tfctr.EmbeddingVariable(2, "words", key_dtype=tf.string, shards=shards, **options())
        self.scale = tf.Variable(1.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64)])
    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        rows = self.users.lookup(ids)
        words = self.words.lookup(tf.strings.as_string(ids))
        return self.scale * (tf.reduce_sum(rows, [1, 2]) + tf.reduce_sum(words, [1, 2]))

    def train(self, steps: int = 4) -> None:
        """Some updates of all but the last row of IDS, and one count of its ids."""
        for step in range(steps):
            with tf.GradientTape() as tape:
                rows = self.users.lookup(IDS[:3], training=True)
                words = self.words.lookup(IDS[:3].astype(str), training=True)
                loss = tf.reduce_sum((rows - step - 1) ** 2) + tf.reduce_sum((words + 2) ** 2)
            grads = tape.gradient(loss, [self.users.handle, self.words.handle])
            for grad, table in zip(grads, (self.users, self.words), strict=True):
                table.apply_gradients(grad)
        self.users.lookup([1000], training=True)
        self.scale.assign(1.5)


def keras_model() -> Any:
    """A table layer and a dense part."""
    import keras

    ids = keras.Input([2], dtype="int64", name="ids")
    rows = tfctr.keras.Embedding(DIM, name="table", **options())(ids)
    score = keras.layers.Dense(1, name="dense")(keras.layers.Flatten()(rows))
    return keras.Model(ids, score)


def trained_keras_model() -> Any:
    """The model after two epochs."""
    import keras

    keras.utils.set_random_seed(5)
    model = keras_model()
    model.compile("adam", "mse")
    model.fit(IDS[:3], np.array([[1.0], [2.0], [3.0]]), epochs=2, batch_size=3, verbose=0)
    return model


def v1_graph() -> tuple[Any, Any, Any]:
    """(training op, output, variable) of a TF1 model in the current graph."""
    table = tfctr.EmbeddingVariable(DIM, "users", **options())
    scale = v1.get_variable("scale", initializer=1.0)
    rows = table.lookup(tf.constant(IDS[:3]), training=True)
    (gradient,) = tf.gradients(tf.reduce_sum((rows - 2) ** 2), [table.handle])
    step = v1.train.get_or_create_global_step()
    with tf.control_dependencies([table.apply_gradients(gradient)]):
        trained = tf.group(step.assign_add(1), scale.assign(2.5))
    return trained, scale * tf.reduce_sum(table.lookup(tf.constant(IDS)), [1, 2]), table


def table_arrays(table: Any) -> dict[str, np.ndarray]:
    """All of a table, in order of its keys."""
    rows = table.export(slots=True)
    order = np.argsort(rows.keys)
    columns = {"keys": rows.keys, "values": rows.values, **rows.slots}
    columns |= {"frequency": rows.frequency, "last_step": rows.last_step}
    return {name: column[order] for name, column in columns.items()} | {"counters": np.int64(table.counters())}


def save_all(folder: Path) -> dict[str, np.ndarray]:
    """Trains and saves by every way. Returns the predictions, by way, and contents of the table of `Scorer`."""
    scorer = Scorer()
    scorer.train()
    found = {"scorer": scorer(IDS).numpy()}
    found |= {f"users/{name}": array for name, array in table_arrays(scorer.users).items()}
    tf.train.Checkpoint(model=scorer).write(str(folder / "ckpt"))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=scorer), str(folder / "manager"), max_to_keep=2)
    for _ in range(3):
        manager.save()
    tf.saved_model.save(scorer, str(folder / "saved_model"))
    model = trained_keras_model()
    found["keras"] = model.predict(IDS, verbose=0)
    model.export(str(folder / "export"), verbose=False)
    model.save_weights(str(folder / "model.weights.h5"))
    model.save(str(folder / "model.keras"))
    for way, builder in (("v1_saver", None), ("v1_streamed", saver_v1.StreamingSaverBuilder())):
        with tf.Graph().as_default(), v1.Session() as session:
            trained, output, _ = v1_graph()
            saver = v1.train.Saver(builder=builder)
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(trained)
            found[way] = session.run(output)
            saver.save(session, str(folder / way / "model"))
    return found


def _run_v1_loader(path: Path) -> np.ndarray:
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.load(session, ["serve"], str(path))
        signature = meta_graph.signature_def["serving_default"]
        (given,), (output,) = signature.inputs.values(), signature.outputs.values()
        return session.run(output.name, {given.name: IDS})


def load_all(folder: Path) -> dict[str, np.ndarray]:
    """Loads what `save_all` saved, by every way."""
    import keras

    found = {}
    scorer = Scorer(shards=3)
    tf.train.Checkpoint(model=scorer).read(str(folder / "ckpt")).assert_consumed()
    found["checkpoint"] = scorer(IDS).numpy()
    found |= {f"users/{name}": array for name, array in table_arrays(scorer.users).items()}
    root = tf.train.Checkpoint()
    root.restore(tf.train.latest_checkpoint(str(folder / "manager")))
    root.model = Scorer(shards=1)  # after restore: deferred
    found["manager"] = root.model(IDS).numpy()
    loaded = tf.saved_model.load(str(folder / "saved_model"))
    found["saved_model"] = loaded(IDS).numpy()
    twice = tf.saved_model.load(str(folder / "saved_model"))
    found["saved_model_twice"] = twice(IDS).numpy()
    tf.saved_model.save(loaded, str(folder / "again"))
    found["saved_model_v1_loader"] = _run_v1_loader(folder / "saved_model")
    exported = tf.saved_model.load(str(folder / "export"))
    found["export"] = exported.serve(IDS).numpy()
    found["export_v1_loader"] = _run_v1_loader(folder / "export")
    model = keras_model()
    model.load_weights(str(folder / "model.weights.h5"))
    found["weights_h5"] = model.predict(IDS, verbose=0)
    found["keras"] = keras.models.load_model(str(folder / "model.keras")).predict(IDS, verbose=0)
    for way in ("v1_saver", "v1_streamed"):
        for reader, builder in (("plain", None), ("streamed", saver_v1.StreamingSaverBuilder())):
            with tf.Graph().as_default(), v1.Session() as session:
                _, output, table = v1_graph()
                v1.train.Saver(builder=builder).restore(session, str(folder / way / "model"))
                found[f"{way}_{reader}"] = session.run(output)
                found[f"{way}_{reader}_rows"] = np.array(session.run([table.size(), table.counters()]))
    return found


def load_and_write(folder: str) -> None:
    """What the new processes run."""
    np.savez(Path(folder) / "found.npz", **load_all(Path(folder)))


def load_again_and_write(folder: str) -> None:
    """Loads the SavedModel that was saved from a loaded one; saves and restores tables of two devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    loaded = tf.saved_model.load(str(Path(folder) / "again"))
    np.savez(Path(folder) / "again.npz", again=loaded(IDS).numpy(), devices=_two_devices(Path(folder)))


class TableOn(checkpoint.CheckpointedTable):
    """A table of a device, as those of parameter servers are: `EmbeddingVariable` puts local ones on CPU:0."""

    def __init__(self, device: str, value: float) -> None:
        super().__init__(device=device)
        self._config = tfctr.EmbeddingVariable(DIM, "plain").config
        assert self.handle.device.endswith(device)
        if value:
            nothing = tf.zeros([0], tf.int64)
            with tf.device(device):
                library.load().tfctr_ev_import(
                    handle=self.handle,
                    step=tf.constant(0, tf.int64),
                    keys=IDS[:, 0],
                    values=np.full([len(IDS), DIM], value, np.float32),
                    slots=[],
                    slot_names=[],
                    frequency=nothing,
                    last_step=nothing,
                    last_time=nothing,
                )

    def _create_resource(self) -> tf.Tensor:
        return ops.handle(self._config, shared_name=f"on{self._resource_device}{id(self)}")

    def rows(self) -> np.ndarray:
        with tf.device(self._resource_device):
            return ops.lookup([self.handle], [tf.constant(IDS[:, 0])], [ops.LookupSpec(DIM)])[0].numpy()


def _two_devices(folder: Path) -> np.ndarray:
    """Rows of two tables, as saved and as restored: [2, tables, rows, DIM]."""
    saved = {f"table{i}": TableOn(f"CPU:{i}", i + 1) for i in range(2)}
    restored = {f"table{i}": TableOn(f"CPU:{i}", 0) for i in range(2)}
    tf.train.Checkpoint(**saved).write(str(folder / "devices"))
    tf.train.Checkpoint(**restored).read(str(folder / "devices")).assert_existing_objects_matched()
    return np.array([[table.rows() for table in each.values()] for each in (saved, restored)])
