"""Generated inputs are legal for the signature they were generated for."""

from typing import Any

import numpy as np
import pytest

from tfctr.bundle.packing import ALIGNMENT, pack
from tfctr.bundle.sample_inputs import generate


def entry(name: str, dtype: str = "int64", shape: Any = (-1,), **domain: Any) -> dict[str, Any]:
    made = {"name": name, "dtype": dtype, "shape": None if shape is None else list(shape), "tensor": f"{name}:0"}
    return {**made, "domain": domain} if domain else made


def dense(name: str) -> dict[str, Any]:
    return {"name": name, "kind": "dense", "parts": {"values": name}}


def info(*inputs: dict[str, Any], features: Any = None) -> dict[str, Any]:
    return {"inputs": list(inputs), "features": features or [dense(e["name"]) for e in inputs]}


SPARSE = {"name": "f", "kind": "sparse", "parts": {"values": "f", "indices": "f_1", "dense_shape": "f_2"}}


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_sparse_features(rows: int) -> None:
    signature = info(
        entry("f", kind="ids", low=0, high=5), entry("f_1", shape=(-1, 2)), entry("f_2", shape=(2,)),
        entry("w", "float32", kind="weights", like="f"), features=[SPARSE, dense("w")],
    )  # fmt: skip
    made = generate(signature, rows, seed=3)
    assert list(made) == ["f", "f_1", "f_2", "w"]
    assert len(made["f"]) == len(made["f_1"]) == len(made["w"])
    assert made["f_2"][0] == rows
    if rows:
        counts = np.bincount(made["f_1"][:, 0], minlength=rows)
        assert counts.min() >= 1 and counts.max() <= 3
        assert (np.diff(made["f_1"][:, 0]) >= 0).all()
        assert made["f_1"][:, 1].max() < made["f_2"][1]
        assert made["f"].min() >= 0 and made["f"].max() < 5
        assert made["w"].min() > 0


def test_ragged_features() -> None:
    parts = {"values": "r", "row_splits": "r_1"}
    signature = info(
        entry("r", kind="ids", low=2, high=4),
        entry("r_1", "int32"),
        features=[{"name": "r", "kind": "ragged", "parts": parts}],
    )
    made = generate(signature, 5)
    assert made["r_1"].dtype == np.int32
    assert made["r_1"][0] == 0 and made["r_1"][-1] == len(made["r"]) and len(made["r_1"]) == 6
    assert set(made["r"]) <= {2, 3}


def test_dense_inputs_follow_shape_dtype_and_domain() -> None:
    signature = info(
        entry("one", shape=()), entry("x", "float32", (-1, 3), kind="float", low=4.0, high=5.0), entry("any",
        "float16", None),
        entry("flag", "bool", (-1, 1)), entry("small", "int8", (-1,), kind="ids", low=0, high=1 << 30), entry("seq",
        "int32", (-1, -1)),
        entry("half", "bfloat16", (-1,)),
    )  # fmt: skip
    made = generate(signature, 6)
    assert made["one"].shape == () and made["any"].shape == (6,)
    assert made["x"].shape == (6, 3) and made["x"].min() >= 4.0 and made["x"].max() <= 5.0
    assert made["flag"].dtype == bool and made["flag"].shape == (6, 1)
    assert made["small"].dtype == np.int8 and made["small"].min() >= 0
    assert made["seq"].shape[0] == 6 and made["seq"].ndim == 2
    assert made["half"].dtype.name == "bfloat16"


def test_keys_of_vocabularies() -> None:
    keys = ["a", {"b64": "/w=="}]
    signature = info(
        entry("s", "string", (-1,), kind="keys", keys=keys),
        entry("n", kind="keys", keys=[7, 9]),
        entry("t", "string", kind="text"),
    )
    made = generate(signature, 50)
    assert set(made["s"]) == {b"a", b"\xff"}
    assert set(made["n"]) == {7, 9}
    assert all(isinstance(t, bytes) for t in made["t"])


def test_serialised_examples() -> None:
    tf = pytest.importorskip("tensorflow")
    features = [
        {"key": "id", "dtype": "int64", "kind": "sparse", "shape": [], "domain": {"kind": "ids", "low": 0, "high": 3}},
        {"key": "x", "dtype": "float32", "kind": "dense", "shape": [2], "domain": None},
        {"key": "s", "dtype": "string", "kind": "ragged", "shape": [], "domain": {"kind": "keys", "keys": ["k"]}},
    ]
    made = generate(info(entry("examples", "string", (-1,), kind="examples", features=features)), 4)
    parsed = tf.train.Example.FromString(made["examples"][0])
    assert set(parsed.features.feature["id"].int64_list.value) <= {0, 1, 2}
    assert len(parsed.features.feature["x"].float_list.value) == 2
    assert set(parsed.features.feature["s"].bytes_list.value) == {b"k"}


def test_equal_seeds_give_equal_inputs() -> None:
    signature = info(entry("x", kind="ids", low=0, high=1 << 20))
    assert np.array_equal(generate(signature, 9, 1)["x"], generate(signature, 9, 1)["x"])
    assert not np.array_equal(generate(signature, 9, 1)["x"], generate(signature, 9, 2)["x"])


def test_packing_is_aligned_and_complete() -> None:
    arrays = [
        np.arange(3, dtype=np.int64),
        np.array([[b"a"], [b"b"]], dtype=object),
        np.float32([[1], [2]]),
        np.zeros((0, 2), np.int8),
    ]
    arena, shapes, strings = pack(arrays)
    assert shapes.tolist() == [1, 3, 2, 2, 1, 2, 2, 1, 2, 0, 2]
    assert len(arena) == 2 * ALIGNMENT
    assert arena[:24].view(np.int64).tolist() == [0, 1, 2]
    assert arena[ALIGNMENT : ALIGNMENT + 8].view(np.float32).tolist() == [1, 2]
    assert strings.tolist() == [b"a", b"b"]
