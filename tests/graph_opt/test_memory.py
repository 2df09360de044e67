"""Table bytes never pass through Python or TensorFlow: converting takes next to no memory beside the process itself."""

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

TABLE_MB = 192
# What the conversion may add: graph work, proof sessions, the checker's sessions; none of it grows with the table.
LIMIT_MB = 150

_CONVERT = """
import sys
import tensorflow as tf
import graph_opt.conversion
def peak():
    return next(int(l.split()[1]) // 1024 for l in open("/proc/self/status") if l.startswith("VmHWM"))
before = peak()
graph_opt.conversion.convert(sys.argv[1], sys.argv[2])
print("PEAK", peak() - before)
"""


class Large(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.fill([TABLE_MB * 4096, 64], 0.5))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def call(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.nn.embedding_lookup(self.table, ids)}


@pytest.fixture
def large(tmp_path: Path) -> Path:
    module = Large()
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    return tmp_path / "model"


def test_converting_a_large_table_takes_little_memory(large: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CONVERT, str(large), str(tmp_path / "bundle")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    added = int(run.stdout.split("PEAK")[1])
    assert (tmp_path / "bundle" / "saved_model.pb").is_file()
    assert added < LIMIT_MB, f"{added} MB for a table of {TABLE_MB} MB"
