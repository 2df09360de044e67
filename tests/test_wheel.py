"""The wheel, installed into another environment, works away from the source tree.

That environment sees TensorFlow through a .pth file, so nothing is downloaded twice. The short form packages the
libraries `make build` has made; the long one compiles everything anew, as `pip install .` does.
"""

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

USE_IT = """
import contextlib, io, json, sys
import numpy as np
from pathlib import Path
import tfctr, graph_opt
from tfctr.cli.main import main

site, model, bundle, inputs = sys.argv[1:]
assert Path(tfctr.__file__).is_relative_to(site), tfctr.__file__
assert Path(graph_opt.__file__).is_relative_to(site), graph_opt.__file__
found = io.StringIO()
with contextlib.redirect_stdout(found):
    doctor = main(["doctor", "--json"])
library = next(f for f in json.loads(found.getvalue()) if f["name"] == "op library")
assert doctor == 0, found.getvalue()
assert library["note"].startswith(site), library
assert main(["convert", model, bundle, "--strict"]) == 0
from tfctr.engines import openvino_library
openvino_library.load()
assert openvino_library.LIBRARY.is_relative_to(site)
table = tfctr.EmbeddingVariable(4, optimizer=tfctr.optimizers.SGD(1.0))
rows = table.lookup([-1, 5], training=True)
import tensorflow as tf
table.apply_gradients(tf.IndexedSlices(tf.ones([1, 4]), tf.constant([5], tf.int64)))
assert (table.lookup([-1, 5]).numpy() == rows.numpy() - np.float32([[0], [1]])).all(), rows
saved = tf.train.Checkpoint(table=table).write("table")
assert dict(tf.train.list_variables(saved))["table/keys"] == [2]
ids = np.load(inputs)["ids"]
with tfctr.ServingSession(bundle) as session:
    print(json.dumps({"score": session.predict({"ids": ids})["score"].tolist()}))
"""


def run(*command, **options) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False, env=clean, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build_wheel(root: Path, out: Path, *settings: str) -> Path:
    options = [f"--config-settings={setting}" for setting in (f"build-dir={out / 'build'}", *settings)]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "pip", "wheel", *quiet, *options, "--wheel-dir", str(out), str(root)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1500, check=False, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (wheel,) = out.glob("tfctr-*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"tfctr/core/libtfctr_ops.so", "tfctr/core/libtfctr_openvino.so"} <= set(names)
    assert any(name.startswith("tfctr/core/_native.cpython-311") for name in names)
    assert "tfctr/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "graph_opt/pipeline.py" in names and "export/cut.py" in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tfctr", "graph_opt", "export"}
    assert [name for name in names if name.endswith((".cc", ".h", ".pyc"))] == []


def save_model(folder: Path) -> np.ndarray:
    """Saves a model of one mean lookup; returns its scores for `ids()`."""

    class Ranker(tf.Module):
        def __init__(self):
            rng = np.random.default_rng(7)
            self.table = tf.Variable(rng.normal(size=(50, 8)).astype(np.float32), name="table")
            self.weights = tf.Variable(rng.normal(size=(8, 1)).astype(np.float32), name="weights")

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64, name="ids")])
        def score(self, ids):
            rows = tf.reduce_mean(tf.nn.embedding_lookup(self.table, ids), axis=1)
            return {"score": tf.sigmoid(rows @ self.weights)[:, 0]}

    ranker = Ranker()
    tf.saved_model.save(ranker, str(folder), signatures={"serving_default": ranker.score})
    return ranker.score(tf.constant(ids()))["score"].numpy()


def ids() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 50, size=(16, 3))


def install_and_use(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", str(venv))
    site = venv / "lib" / "python3.11" / "site-packages"
    (site / "tensorflow_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    # --ignore-installed: pip sees the editable install of the tests through the .pth file, and must leave it alone.
    run(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", str(wheel))

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    expected = save_model(tmp_path / "model")
    np.savez(tmp_path / "inputs.npz", ids=ids())
    assert run(venv / "bin" / "tfctr", "--version", cwd=elsewhere).startswith("tfctr ")
    script = elsewhere / "use_it.py"
    script.write_text(textwrap.dedent(USE_IT))
    paths = (site, tmp_path / "model", tmp_path / "bundle", tmp_path / "inputs.npz")
    out = run(python, script.name, *map(str, paths), cwd=elsewhere)
    scores = json.loads(out.strip().splitlines()[-1])["score"]
    assert float(np.ptp(expected)) > 0.01
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


def test_wheel_elsewhere(repo_root, tmp_path):
    wheel = build_wheel(repo_root, tmp_path, f"cmake.define.TFCTR_PREBUILT={repo_root / 'tfctr' / 'core'}")
    check_contents(wheel)
    install_and_use(wheel, tmp_path)


@pytest.mark.long
def test_wheel_compiled_anew(repo_root, tmp_path):
    wheel = build_wheel(repo_root, tmp_path)
    check_contents(wheel)
    install_and_use(wheel, tmp_path)
