"""Every kind of Keras save, loaded in a new process: the same predictions, and training goes on from there."""

import copy
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.keras.models import batches, ids_model, kept_model, rows_of, table

WITH_STEP = ["keras", "checkpoint", "checkpoint_root", "managed"]
READER = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np, tensorflow as tf
import tfctr, tfctr.keras
from tests.keras.models import batches, kept_model, table

WITH_STEP = sys.argv[1:]
told = {}
x, y = batches()

def note(name, model):
    ev = table(model)
    told[name] = {"scores": model.predict(x, verbose=0).tolist(), "rows": int(ev.size()),
                  "counts": ev.frequency(np.arange(-1, 60)).tolist(), "step": int(ev.step.numpy())}
    if name in WITH_STEP:
        assert int(model.optimizer.iterations.numpy()) == told[name]["step"], name
    if model.compiled:
        model.fit(*batches(keys=10), batch_size=16, shuffle=False, verbose=0)
        told[name]["after"] = model.predict(x, verbose=0).tolist()
        told[name]["rows after"] = int(ev.size())

note("keras", keras.saving.load_model("model.keras"))
model = kept_model()
model.load_weights("model.weights.h5")
model.compiled = False  # the file has no optimizer of a model that was not built by one
note("h5", model)
model = kept_model()
model.optimizer.build(model.trainable_variables)
status = tf.train.Checkpoint(model=model, optimizer=model.optimizer).read("checkpoint")
status.assert_existing_objects_matched().assert_consumed()
note("checkpoint", model)
model = kept_model()  # compiled, never trained: what Adam has not made yet waits for the first step
status = tf.train.Checkpoint(model).read("checkpoint_root").assert_existing_objects_matched()
note("checkpoint_root", model)
status.assert_existing_objects_matched().assert_consumed()
model = kept_model()
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "managed", max_to_keep=2)
assert manager.restore_or_initialize().endswith("ckpt-1")
note("managed", model)
assert manager.save().endswith("ckpt-2")
for name in ("export", "own_export", "saved_model"):
    loaded = tf.saved_model.load(name)
    run = loaded.signatures["serving_default"]
    key = list(run.structured_input_signature[1])[0]
    told[name] = {"scores": next(iter(run(**{key: tf.constant(x)}).values())).numpy().tolist()}
told["session"] = {"scores": tfctr.ServingSession("own_export").predict({"ids": x})["output_0"].tolist()}
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(folder, what the model said before and after one more epoch)."""
    folder = tmp_path_factory.mktemp("saved")
    model = kept_model()
    x, y = batches()
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    table(model).lookup([50], training=True)  # counted, not admitted
    table(model).lookup([-1, -1], training=True)
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(folder / "checkpoint"))
    tf.train.Checkpoint(model).write(str(folder / "checkpoint_root"))
    tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(folder / "managed"), max_to_keep=2).save()
    model.export(str(folder / "export"), verbose=False)
    tfctr.keras.export(model, folder / "own_export")
    tf.saved_model.save(model, str(folder / "saved_model"))
    ev = table(model)
    said = {
        "scores": model.predict(x, verbose=0),
        "rows": int(ev.size()),
        "counts": ev.frequency(np.arange(-1, 60)).tolist(),
        "step": int(ev.step.numpy()),
    }
    model.fit(*batches(keys=10), batch_size=16, shuffle=False, verbose=0)
    return folder, said | {"after": model.predict(x, verbose=0), "rows after": int(ev.size())}


@pytest.fixture(scope="module")
def read(written, repo_root):
    done = subprocess.run(
        [sys.executable, "-c", READER, *WITH_STEP],
        cwd=written[0],
        capture_output=True,
        text=True,
        timeout=600,
        env=dict(os.environ) | {"PYTHONPATH": str(repo_root)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", [*WITH_STEP, "h5", "export", "own_export", "saved_model", "session"])
def test_predictions_are_equal_in_a_new_process(written, read, kind):
    np.testing.assert_allclose(read[kind]["scores"], written[1]["scores"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [*WITH_STEP, "h5"])
def test_rows_counts_and_step_come_back(written, read, kind):
    for what in ("rows", "counts", "step"):
        assert read[kind][what] == written[1][what], what
    assert 1 in read[kind]["counts"]


@pytest.mark.parametrize("kind", WITH_STEP)
def test_training_goes_on_with_slots_step_and_ages(written, read, kind):
    assert read[kind]["rows after"] == written[1]["rows after"] < written[1]["rows"]
    np.testing.assert_allclose(read[kind]["after"], written[1]["after"], rtol=1e-4, atol=1e-6)


def test_a_loaded_model_has_a_table_of_its_own(written):
    model = keras.saving.load_model(written[0] / "model.keras")
    twin = keras.saving.load_model(written[0] / "model.keras")
    size = table(model).size()
    table(model).lookup([10**12, 10**12], training=True)
    assert (table(model).size(), table(twin).size()) == (size + 1, size)


def test_loading_replaces_what_the_table_held(written):
    model = kept_model()
    table(model).lookup([10**15] * 2, training=True)
    model.load_weights(written[0] / "model.weights.h5")
    assert 10**15 not in rows_of(table(model))
    assert table(model).size() == written[1]["rows"]


@pytest.mark.parametrize("name", ["export", "own_export"])
def test_a_conversion_takes_the_rows_along(written, tmp_path, name):
    tfctr.convert(written[0] / name, tmp_path / "bundle", strict=True, require_fused=["*"])
    with tfctr.ServingSession(tmp_path / "bundle") as session:
        (given,), (output,) = session.inputs, session.outputs
        got = session.predict({given.name: batches()[0]})[output.name]
    np.testing.assert_allclose(got, written[1]["scores"], rtol=1e-6, atol=1e-7)
    assert len(tfctr.load_table(tmp_path / "bundle", "items")) == written[1]["rows"]


def test_a_file_that_does_not_fit_changes_nothing(written):
    model = ids_model(admission=tfctr.CounterAdmission(2), optimizer=tfctr.optimizers.SGD(0.1))
    table(model).lookup([10**15] * 2, training=True)
    # Keras gathers what went wrong into a ValueError.
    with pytest.raises(ValueError, match="'items': the file has the optimizer slots momentum, velocity, the table has"):
        model.load_weights(written[0] / "model.weights.h5")
    assert set(rows_of(table(model))) == {10**15}
    assert int(table(model).step.numpy()) == 0


def test_a_copy_is_another_table_with_the_same_rows(written):
    model = keras.saving.load_model(written[0] / "model.keras")
    twin = copy.deepcopy(model)
    assert rows_of(table(twin)) == rows_of(table(model))
    table(twin).lookup([10**12, 10**12], training=True)
    assert table(twin).size() == table(model).size() + 1


def test_a_clone_is_empty(written):
    model = keras.saving.load_model(written[0] / "model.keras")
    clone = keras.models.clone_model(model)
    assert table(clone).size() == 0
    assert table(clone).config == table(model).config
