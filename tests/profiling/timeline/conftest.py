"""Models that are recorded: 200 features, as saved and as a bundle; made once per run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

FEATURES, VOCABULARY, ROWS = 200, 50, 16


@pytest.fixture(scope="session")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """f0, f1...: int64 [B], each looked up in a table of its own; score [B, 1]."""
    import tensorflow as tf

    class Wide(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            random = np.random.default_rng(0)
            self.tables = [
                tf.Variable(random.random((VOCABULARY, 4), np.float32), name=f"table_{k}") for k in range(FEATURES)
            ]
            self.kernel = tf.Variable(random.random((4 * FEATURES, 1), np.float32))

        def score(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
            parts = [tf.gather(table, x[f"f{k}"]) for k, table in enumerate(self.tables)]
            return {"score": tf.nn.relu(tf.concat(parts, 1)) @ self.kernel}

    model = Wide()
    specs = {f"f{k}": tf.TensorSpec([None], tf.int64, f"f{k}") for k in range(FEATURES)}
    folder = tmp_path_factory.mktemp("wide") / "model"
    tf.saved_model.save(model, str(folder), signatures=tf.function(model.score).get_concrete_function(**specs))
    return folder


@pytest.fixture(scope="session")
def wide_bundle(wide_model: Path) -> Path:
    import tfctr

    out = wide_model.with_name("bundle")
    tfctr.convert(wide_model, out)
    return out


@pytest.fixture(scope="session")
def wide_inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {f"f{k}": random.integers(0, VOCABULARY, ROWS) for k in range(FEATURES)}
