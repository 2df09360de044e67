"""The example of docs/passes_howto.md is code that runs, and its tests pass."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tfctr


@pytest.fixture(scope="module")
def example(repo_root):
    blocks = re.findall(r"```python\n(.*?)```", (repo_root / "docs" / "passes_howto.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(block, names)
    return names


@pytest.mark.parametrize("test", ["test_drops_unit_scales", "test_leaves_other_scales"])
def test_example(example, tmp_path, test):
    example[test](tmp_path)


def test_a_users_pass_runs_in_convert(example, tmp_path):
    class Scaled(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = tf.Variable(np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
        def serve(self, ids):
            return {"score": tf.reduce_sum(tf.gather(self.table, ids) * 1.0, 1)}

    model = Scaled()
    tf.saved_model.save(model, str(tmp_path / "in"), signatures=model.serve)
    report = tfctr.convert(tmp_path / "in", tmp_path / "out", extra_passes=[example["UNIT_SCALES"]])
    (mine,) = [p for p in report.manifest["passes"] if p["name"] == "drop_unit_scales"]
    assert (mine["status"], mine["fired"]) == ("ok", 1)
