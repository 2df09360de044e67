"""The end of Python while requests run: a process of its own."""

import subprocess
import sys

SCRIPT = """
import sys
import numpy as np
import tensorflow as tf
import tfctr

class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 40], tf.float32, name="x")])
    def serve(self, x):
        return {"y": tf.matmul(x, tf.ones([40, 400]))}

module = Model()
tf.saved_model.save(module, sys.argv[1], signatures={"serving_default": module.serve})
group = tfctr.SessionGroup(sys.argv[1], tfctr.GroupOptions(executors=2, queue_limit=10**6))
x = np.ones((2000, 40), np.float32)
futures = [group.predict_async({"x": x}) for _ in range(2000)]
print("left", sum(not one.done() for one in futures), flush=True)
"""


def test_python_ends_with_requests_in_flight(tmp_path, repo_root):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "model")],
        cwd=repo_root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split("left ")[1]) > 100  # else nothing was shown
