"""What the command line and the report say of the dense tower, and which manifests are refused for it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.bundle.test_manifest import content, write
from tfctr.bundle import dense_summary
from tfctr.bundle import manifest as manifests
from tfctr.bundle.reader import open_bundle
from tfctr.errors import CorruptFileError

FILE = {"role": "onnx", "file": "dense_0_tower.onnx", "index": 3, "bytes": 4000}
ENTRY: dict[str, Any] = {
    "provider": "openvino",
    "precision": "fp32",
    "form": "s__dense",
    "packed": "s__dense__packed",
    "fallback": "tensorflow",
    "fallback_precision": "fp32",
    "engine": {"name": "openvino", "version": "2026.4.1-22982-abc"},
    "files": [FILE],
    "inputs": [],
    "outputs": [],
    "reason": "asked for",
    "parity": {"max_difference": 2e-7},
    "check": {"max_difference": 3e-7},
    "cache": {"tower": "hit", "engine": "miss"},
    "steps": [{"what": "FP32", "gate": None}],
    "isa": "avx2",
    **{key: [] for key in ("buckets", "targets", "islands", "notes")},
    "key": {"tower": "3f9c", "engine": "77aa"},
    "left_outside": [f"PartitionedCall/node_{k}: control flow" for k in range(6)],
    "versus_tensorflow": {"rows": [{"rows": 32, "tensorflow_ms": 2.0, "openvino_ms": 1.0, "ratio": 2.0}]},
}
STAYS = {**ENTRY, "provider": "tensorflow", "form": None, "packed": None, "reason": "weight w has 1 NaN"}


def told(entry: dict[str, Any] | None, split: dict[str, Any] | None = None) -> list[str]:
    info = {"dense": entry, "split": {"signature": "s__split", "dense": split} if split else None}
    return list(dense_summary.lines({"signatures": {"s": info}}))


def test_an_engine() -> None:
    first, *others = told(ENTRY)
    assert first == (
        "dense tower (s): openvino 2026.4.1, fp32; equal to TensorFlow: max |difference| 3e-07 (limit 1e-5 + 1e-5 |b|)"
    )
    assert "  asked for (2.00x at 32 rows of TensorFlow's speed here); elsewhere: tensorflow, fp32" in others
    assert "  left outside: node_0: control flow" in others and "  left outside: 2 more (see the report)" in others
    assert others[-1] == "  1 file, 4.0 KB; tower from the cache, engine made and kept"


def test_a_tower_that_stays() -> None:
    assert told(STAYS)[0] == "dense tower (s): stays on TensorFlow: weight w has 1 NaN"
    assert told(None) == []
    assert told(None, STAYS)[0].startswith("dense tower (s__split): ")


def test_a_gate_with_its_steps() -> None:
    gate = {"text": "passed on 8 rows", "limits": {}}
    steps = [{"what": "FP16", "gate": {"text": "failed on 8 rows: x"}}, {"what": "2 more FP32 islands", "gate": gate}]
    lines = told({**ENTRY, "precision": "fp16", "accuracy": gate, "steps": steps, "notes": ["no plan for sm75"]})
    assert lines[0].endswith(", fp16; accuracy gate passed on 8 rows")
    assert lines[2:5] == [
        "  FP16: failed on 8 rows: x",
        "  2 more FP32 islands: passed on 8 rows",
        "  no plan for sm75",
    ]


def test_an_engine_that_did_not_run_where_it_was_converted() -> None:
    """What the fallback computed is never told as the engine's."""
    plan = {**ENTRY, "provider": "tensorrt", "engine": {"name": "tensorrt_rtx", "version": "1.7"}, "parity": {}}
    by_openvino = {**plan, "check": {"provider": "openvino", "max_difference": 3e-7}}
    said = told(by_openvino)[0]
    assert "tensorrt_rtx 1.7, fp32; not compared, as it was not run here; openvino, its fallback: equal to " in said
    gate = {"text": "passed on 8 rows", "limits": {}}
    said = told({**by_openvino, "precision": "fp16", "accuracy": gate})[0]
    assert said.endswith("accuracy gate passed on 8 rows; judged in NumPy, tensorrt was not run here")
    assert told({**plan, "check": {"provider": ""}})[0].endswith("; not compared: not run here")
    on_gpu = told({**plan, "precision": "fp16", "accuracy": gate, "check": {"provider": "tensorrt", "max_dp": 1e-3}})[0]
    assert on_gpu.endswith("accuracy gate passed on 8 rows")


def test_not_compared() -> None:
    assert "; not compared" in told({**ENTRY, "parity": {}, "check": {}})[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"provider": None}, "dense: the field 'provider' is missing or not a str"),
        ({"files": [{**FILE, "index": "3"}]}, "dense: files: the field 'index' is missing or not a int"),
        ({"form": 3}, "dense: the field 'form' is not the name of a signature"),
        ({"files": {}}, "dense: the field 'files' is missing or not a list"),
        ({"isa": None}, "dense: the field 'isa' is missing or not a str"),
        ({"engine": "openvino"}, "dense: the field 'engine' is missing or not a dict"),
        ({"steps": [5]}, "dense: steps: the field 'what' is missing or not a str"),
        ({"buckets": ["8"]}, "dense: buckets: the field 'rows' is missing or not a int"),
        ({"targets": [89]}, "dense: targets: an entry that is not a str"),
        ({"accuracy": {"passed": True}}, "dense: accuracy: the field 'text' is missing or not a str"),
        ({"check": 3}, "dense: check: the field 'check' is missing or not a dict"),
    ],
)
@pytest.mark.parametrize("of_split", [False, True])
def test_damaged_entries(tmp_path: Path, change: dict[str, Any], said: str, of_split: bool) -> None:
    entry = {**copy.deepcopy(ENTRY), **change}
    flops = {"before_per_row": 2, "user_per_row": 1, "item_per_row": 1}
    names = {"signature": "s__split", "packed": None, "row_to_user": "r", "user_inputs": [], "user_features": []}
    split = {**names, "item_side": [], "broadcasts": [], "flops": flops, "boundary": [], "dense": entry}
    lists: dict[str, Any] = {key: [] for key in ("inputs", "outputs", "features", "lookups", "boundary")}
    info = {**lists, "split": split} if of_split else {**lists, "dense": entry}
    with pytest.raises(CorruptFileError, match=said):
        open_bundle(write(tmp_path, manifests.dump(content(signatures={"s": info}))))
