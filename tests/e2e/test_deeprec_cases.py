"""Faults that a fused-embedding system is known to have had (DeepRec's list: cases 29, 31 and 37), one test each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.testing import apply
from graph_opt.verify import verify
from tests.graph_opt.graphs import safe_sparse
from tests.models.base import run_stock
from tests.models.fixtures import Zoo

ROWS = 20


class Trailing(tf.Module):
    """Plain and safe lookups of one feature, without and with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = tf.Variable(np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.int64, "indices"),
            tf.TensorSpec([None], tf.int64, "ids"),
            tf.TensorSpec([2], tf.int64, "shape"),
            tf.TensorSpec([None], tf.float32, "weights"),
        ]
    )
    def serve(self, indices: Any, ids: Any, shape: Any, weights: Any) -> dict[str, tf.Tensor]:
        sparse, weighted = tf.SparseTensor(indices, ids, shape), tf.SparseTensor(indices, weights, shape)
        found = {}
        for combiner in ("sum", "mean", "sqrtn"):
            found[f"plain_{combiner}"] = tf.nn.embedding_lookup_sparse(self.emb, sparse, None, combiner=combiner)
            found[f"plain_weighted_{combiner}"] = tf.nn.embedding_lookup_sparse(
                self.emb, sparse, weighted, combiner=combiner
            )
            found[f"safe_{combiner}"] = tf.nn.safe_embedding_lookup_sparse(self.emb, sparse, None, combiner=combiner)
            found[f"safe_weighted_{combiner}"] = tf.nn.safe_embedding_lookup_sparse(
                self.emb, sparse, weighted, combiner=combiner
            )
        return found


def test_case_29_trailing_empty_rows_and_zero_weights(tmp_path: Path) -> None:
    """Safe lookups keep the dense shape, plain ones stop at the last row as stock does; zero weights are no NaN."""
    module = Trailing()
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.serve)
    tfctr.convert(tmp_path / "model", tmp_path / "bundle", strict=True, require_fused=("*",))
    inputs = {
        "indices": np.array([[0, 0], [2, 0], [2, 1], [3, 0]]),  # rows 1, 4 and 5 are empty
        "ids": np.array([3, 5, 19, 7]),
        "shape": np.array([6, 2]),
        "weights": np.float32([0.0, 0.0, 0.0, 2.0]),  # row 0 and row 2 weigh nothing
    }
    want = run_stock(tmp_path / "model", {"serving_default": inputs})["serving_default"]
    with tfctr.ServingSession(tmp_path / "bundle") as session:
        got = session.predict(inputs)
    assert got["safe_mean"].shape == (6, 4)
    assert got["plain_mean"].shape == (4, 4)
    assert not got["safe_weighted_mean"][0].any()
    for name, value in want.items():
        assert got[name].shape == value.shape, name
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["n_plain_mlp", "m_control_flow"])
def test_case_31_models_without_lookups_and_with_control_flow(zoo: Zoo, tmp_path: Path, name: str) -> None:
    model = zoo(name)
    report = tfctr.convert(model.path, tmp_path / "bundle", strict=True)
    assert all(p["status"] == "ok" for p in report.manifest["passes"])
    with tfctr.ServingSession(tmp_path / "bundle") as session:
        got = session.predict(model.inputs)
    for output, value in model.outputs.items():
        np.testing.assert_allclose(got[output], value, rtol=1e-5, atol=1e-6)


def test_case_31_names_mean_nothing(tmp_path: Path) -> None:
    """The same graph under meaningless node names gives as many fused lookups."""
    item = safe_sparse(tmp_path, ("a", "b"))
    new = {node.name: f"n{k}" for k, node in enumerate(item.graph_def.node)}
    for node in item.graph_def.node:
        node.name = new[node.name]
        for k, source in enumerate(node.input):
            mark, (name, _, port) = "^" * source.startswith("^"), source.lstrip("^").partition(":")
            node.input[k] = mark + new[name] + (f":{port}" if port else "")
    for signature in item.signatures.values():
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            name, _, port = info.name.partition(":")
            info.name = f"{new[name]}:{port or 0}"
    item.tables = {new[name]: index for name, index in item.tables.items()}
    item.store_node = new[item.store_node]
    verify(item)
    _, outcome = apply(fuse_lookups, item)
    assert outcome.fired == 2


def test_case_37_every_instruction_set_gives_the_same_bits(zoo: Zoo, tmp_path: Path) -> None:
    """On a CPU without AVX-512 (dispatch forced by TFCTR_ISA) the bundle runs, and no bit depends on the kernels."""
    from tfctr.core import library

    order = ["baseline", "avx2", "avx512"]
    here = order[: order.index(library.native().detected_isa()) + 1]
    model = zoo("a_safe_sparse_w")
    tfctr.convert(model.path, tmp_path / "bundle", strict=True)
    results = {}
    for isa in here:
        out = tmp_path / f"{isa}.npz"
        command = [sys.executable, "-m", "tfctr.cli.main", "predict", str(tmp_path / "bundle")]
        command += ["--inputs", str(model.path / "inputs.npz"), "--output", str(out)]
        done = subprocess.run(
            command, env={**os.environ, "TFCTR_ISA": isa}, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        results[isa] = np.load(out)["score"]
        np.testing.assert_allclose(results[isa], model.outputs["score"], rtol=1e-5, atol=1e-6)
    for isa in here[1:]:
        np.testing.assert_array_equal(results[isa], results["baseline"])
