"""Bundles whose tower an engine runs, converted from a small ranker, and what tests do to them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import saved_model_pb2

import tfctr
from export.dense_pass import DenseOptions
from export.tensorrt import library as tensorrt_library
from tests.engines.fake_builder import fake_library
from tests.engines.fake_cuda import FakeDriver
from tests.export.dense import rankers
from tfctr.bundle import manifest as manifests
from tfctr.bundle import naming
from tfctr.engines import tensorrt_cuda

NAME = "serving_default"
VERSION = "1.7.1.116"
ATOL = 1e-5


def save(folder: Path) -> Path:
    return rankers.save(folder)


def convert(model: Path, out: Path, dense: str, **more: Any) -> Path:
    options = DenseOptions(dense=dense, cache_dir="off", buckets=(8,), required=True, **more)
    tfctr.convert(model, out, dense=options, user_features=["user"])
    return out


def convert_for_gpu(model: Path, out: Path) -> Path:
    """Plans that the fakes of tests.engines build and run; the FP16 step and its gate are the real ones."""
    made = fake_library(FakeDriver(), VERSION)
    known = tensorrt_library.Library(made, "tensorrt_rtx", VERSION, ("sm86", "sm89"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export.dense.tensorrt.load", lambda: known)
        patch.setattr(tensorrt_library, "load", lambda: known)
        return convert(model, out, "tensorrt", targets=("sm89",))


def request(rows: int, users: int | None = None, seed: int = 3) -> dict[str, np.ndarray]:
    """users: rows of the user's input; None: as many as there are others."""
    given = rankers.request(rows, seed)
    return given if users is None else {**given, "user": given["user"][:users]}


def edited(bundle: Path, out: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """A copy whose manifest ``edit`` has changed."""
    shutil.copytree(bundle, out)
    manifest = json.loads((out / naming.MANIFEST).read_bytes())
    edit(manifest)
    (out / naming.MANIFEST).write_bytes(manifests.dump(manifest))
    return out


def with_nodes(bundle: Path, out: Path, edit: Callable[[node_def_pb2.NodeDef], None]) -> Path:
    """A copy whose engine nodes ``edit`` has changed."""
    shutil.copytree(bundle, out)
    path = out / naming.MODEL
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    nodes = [node for graph in model.meta_graphs for node in graph.graph_def.node if node.op == "TfctrDenseEngine"]
    assert nodes
    for node in nodes:
        edit(node)
    path.write_bytes(model.SerializeToString())
    manifest = json.loads((out / naming.MANIFEST).read_bytes())
    manifest["model"] |= {"bytes": path.stat().st_size, "sha256": manifests.file_hash(path)}
    (out / naming.MANIFEST).write_bytes(manifests.dump(manifest))
    return out


def engine_file(bundle: Path, role: str = "onnx") -> Path:
    """The file of the plain form with this role."""
    manifest = json.loads((bundle / naming.MANIFEST).read_bytes())
    (index,) = [one["index"] for one in manifest["signatures"][NAME]["dense"]["files"] if one["role"] == role]
    return bundle / manifest["store"]["files"][index]["file"]


def without_package(patch: pytest.MonkeyPatch, *names: str) -> None:
    """A machine on which these packages are not installed."""
    real = importlib.util.find_spec
    patch.setattr(
        importlib.util, "find_spec", lambda name, package=None: None if name in names else real(name, package)
    )


def with_gpu(patch: pytest.MonkeyPatch, capability: tuple[int, int] = (8, 9)) -> Any:
    """A machine with a GPU and tensorrt_rtx, both fakes; returns the module."""
    driver = FakeDriver(capability)
    trt = fake_library(driver, VERSION)
    patch.setattr(tensorrt_cuda, "open_library", lambda: driver)
    patch.setitem(sys.modules, "tensorrt_rtx", trt)
    tensorrt_cuda.driver.cache_clear()
    tensorrt_cuda.gpu.cache_clear()
    return trt


def same(got: dict[str, np.ndarray], want: dict[str, np.ndarray], atol: float = ATOL) -> None:
    """Outputs of two sessions."""
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == want[name].dtype
        np.testing.assert_allclose(got[name], want[name], atol=atol, rtol=ATOL)
