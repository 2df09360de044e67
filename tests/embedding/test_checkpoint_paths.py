"""Every way to save and load a table, in a new process: predictions and contents are what they were."""

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.saved_model import loader_impl

from tests.embedding import checkpoint_models as models
from tfctr.embedding import ops

WAYS = {
    "checkpoint": "scorer",
    "manager": "scorer",
    "saved_model": "scorer",
    "saved_model_twice": "scorer",
    "saved_model_v1_loader": "scorer",
    "again": "scorer",
    "export": "keras",
    "export_v1_loader": "keras",
    "weights_h5": "keras",
    "keras": "keras",
    "v1_saver_plain": "v1_saver",
    "v1_saver_streamed": "v1_saver",
    "v1_streamed_plain": "v1_streamed",
    "v1_streamed_streamed": "v1_streamed",
}


def run_in_new_process(repo_root: Path, function: str, *arguments: str) -> None:
    code = f"from tests.embedding import checkpoint_models as m; m.{function}(*{arguments!r})"
    subprocess.run([sys.executable, "-c", code], cwd=repo_root, check=True, timeout=600)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """(what was saved, what the new processes found, the folder)."""
    folder = tmp_path_factory.mktemp("paths")
    saved = models.save_all(folder)
    run_in_new_process(repo_root, "load_and_write", str(folder))
    run_in_new_process(repo_root, "load_again_and_write", str(folder))
    found = {**np.load(folder / "found.npz"), **np.load(folder / "again.npz")}
    return saved, found, folder


@pytest.mark.parametrize("way", list(WAYS))
def test_predictions_are_equal_in_a_new_process(results: Any, way: str) -> None:
    saved, found, _ = results
    expected = saved[WAYS[way]]
    assert np.ptp(expected) > 0.01, "rows must matter"
    np.testing.assert_array_equal(found[way].ravel(), expected.ravel())


def test_contents_are_equal_in_a_new_process(results: Any) -> None:
    saved, found, _ = results
    names = [name for name in saved if name.startswith("users/")]
    assert len(names) == 6
    for name in names:
        np.testing.assert_array_equal(found[name], saved[name], err_msg=name)
    assert saved["users/counters"] == 1


def test_tf1_savers_bring_rows_and_counters_back(results: Any) -> None:
    _, found, _ = results
    for way in ("v1_saver_plain", "v1_saver_streamed", "v1_streamed_plain", "v1_streamed_streamed"):
        assert found[f"{way}_rows"].tolist() == [5, 0]


def test_checkpoints_list_keys_values_and_slots(results: Any) -> None:
    saved, _, folder = results
    listed = dict(tf.train.list_variables(str(folder / "ckpt")))
    assert listed["model/users/keys"] == [5]
    assert listed["model/users/values"] == [5, models.DIM]
    assert listed["model/users/slots/accumulator"] == [5, models.DIM]
    reader = tf.train.load_checkpoint(str(folder / "ckpt"))
    keys = reader.get_tensor("model/users/keys")
    order = np.argsort(keys)
    np.testing.assert_array_equal(keys[order], saved["users/keys"])
    np.testing.assert_array_equal(reader.get_tensor("model/users/values")[order], saved["users/values"])
    v1 = dict(tf.train.list_variables(str(folder / "v1_saver" / "model")))
    assert v1 == dict(tf.train.list_variables(str(folder / "v1_streamed" / "model")))
    assert {"users/keys", "users/values", "users/slots/accumulator", "users/config"} <= set(v1)


def test_tables_of_several_devices_are_one_checkpoint(results: Any) -> None:
    _, found, folder = results
    before, after = found["devices"]
    assert np.unique(before).tolist() == [1.0, 2.0]
    np.testing.assert_array_equal(after, before)
    assert {"table0/keys", "table1/keys"} <= set(dict(tf.train.list_variables(str(folder / "devices"))))


def test_nothing_lies_beside_the_bundle(results: Any) -> None:
    _, _, folder = results
    assert sorted(path.name for path in (folder / "manager").iterdir()) == [
        "checkpoint",
        *(f"ckpt-{i}.{part}" for i in (2, 3) for part in ("data-00000-of-00002", "data-00001-of-00002", "index")),
    ]
    assert len(list((folder / "saved_model" / "variables").iterdir())) == 3


def test_a_saved_model_has_its_tables_before_the_restore(results: Any) -> None:
    """The handle op makes the table: whatever loads the graph finds it, with all of its configuration."""
    _, _, folder = results
    v1 = tf.compat.v1
    graph_def = loader_impl.parse_saved_model(str(folder / "saved_model")).meta_graphs[0].graph_def
    with tf.Graph().as_default() as graph, v1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        handles = [op.outputs[0] for op in graph.get_operations() if op.type == "TfctrEvHandle"]
        configs = {handle.op.get_attr("config"): handle for handle in handles}
        told = {json.loads(config)["name"]: json.loads(config) for config in configs}
        assert set(told) == {"users", "words"}
        assert told["users"]["dim"] == models.DIM
        assert told["users"]["optimizer"]["kind"] == "adagrad"
        assert [session.run(ops.size(handle).rows) for handle in handles] == [0] * len(handles)


def test_versions_of_a_model_lie_side_by_side(tmp_path: Path) -> None:
    """A server loads a new version beside the old one: tables of one name, each with its own rows."""
    scorer = models.Scorer()
    scorer.train(1)
    scores = []
    for version in ("1", "2"):
        tf.saved_model.save(scorer, str(tmp_path / version))
        scores.append(scorer(models.IDS).numpy())
        scorer.train(3)
    assert (scores[0] != scores[1]).any()
    old, new = (tf.saved_model.load(str(tmp_path / version)) for version in ("1", "2"))
    np.testing.assert_array_equal(old(models.IDS), scores[0])
    np.testing.assert_array_equal(new(models.IDS), scores[1])
    del old
    gc.collect()
    np.testing.assert_array_equal(new(models.IDS), scores[1])
    assert scorer.users.size() > 0 and (scorer(models.IDS).numpy() != scores[1]).any()
