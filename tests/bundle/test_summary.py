"""What the command line and the report say of the split, devices, transfers and smaller tables."""

import copy
from typing import Any

import pytest

from tfctr.bundle import summary
from tfctr.bundle.report_page import render_report

SPLIT = {
    "signature": "s__split",
    "packed": None,
    "row_to_user": "row_to_user",
    "user_inputs": ["user"],
    "user_features": ["user"],
    "item_side": [{"feature": "ctx", "op": "Cross", "node": "StatefulPartitionedCall/x", "reason": "mixes rows"}],
    "broadcasts": [
        {
            "tensor": "PartitionedCall/a:0",
            "moved_past": ["TfctrFusedLookup", "ConcatV2", "MatMul", "MatMul"],
            "at": "Relu StatefulPartitionedCall/StatefulPartitionedCall/tower/relu_1",
        }
    ],
    "flops": {"before_per_row": 1000, "user_per_row": 800, "item_per_row": 200},
    "boundary": [{"tensor": "x:0", "dtype": "float32", "shape": [-1, 4], "side": "user"}],
}
GATE = {"s": {"passed": True, "text": "passed on 8 rows: max |dp| 0.0002 (limit 0.001)"}}
TABLE = {
    "table": "emb",
    "shape": [100, 8],
    "bytes_before": 4000,
    "bytes_after": 2000,
    "max_abs_error": 1e-4,
    "storage": "float16",
}


def one_pass(name: str, details: dict[str, Any] | None = None, refused: tuple[tuple[str, str], ...] = ()) -> Any:
    return {
        "name": name,
        "status": "ok",
        "fired": 1,
        "refused": [{"what": w, "reason": r, "nodes": []} for w, r in refused],
        "nodes_before": 5,
        "nodes_after": 4,
        "elapsed_ms": 1.0,
        "reason": "",
        "error": "",
        "details": details or {},
    }


def manifest(passes: list[Any], **signature: Any) -> dict[str, Any]:
    return {
        "source": {"path": "model"},
        "bundle_id": "ab",
        "created": "now",
        "tfctr": "0",
        "tensorflow": "2.21",
        "store": {"files": []},
        "parity": {},
        "mutable_state": [],
        "passes": passes,
        "signatures": {"s": {"features": [{}, {}, {}], "lookups": [], "boundary": [], "inputs": [], **signature}},
    }


def everything() -> dict[str, Any]:
    transfers = [
        {
            "direction": "to the dense device",
            "signatures": ["s"],
            "stage": 0,
            "node": "pack",
            "packed": [{"tensor": "StatefulPartitionedCall/rows:0"}, {"tensor": "mask:0"}],
            "alone": [],
            "worked_out": ["size:0"],
            "apart": {"s__split/odd:0": "it is text"},
        },
        {
            "direction": "to the sparse device",
            "signatures": ["s"],
            "stage": 0,
            "node": "",
            "packed": [],
            "alone": ["score:0"],
            "worked_out": [],
            "apart": {},
        },
    ]
    placement = {
        "sparse": "/device:CPU:0",
        "dense": "/device:GPU:0",
        "nodes": {"sparse": 3, "dense": 7},
        "on_both": [],
        "kept": {"tower/x": "/device:CPU:0"},
        "control_flow": [],
        "no_kernel": {"u": "Unique"},
    }
    compress = {
        "dtype": "fp16",
        "judged_on": "8 rows of samples",
        "gate": GATE,
        "tables": [TABLE],
        "left": [{"table": "table tiny", "reason": "stays float32: accuracy gate: too far"}],
        "bytes_before": 4000,
        "bytes_after": 2000,
        "speed": {"lookups_us": 5.0, "lookups_us_fp32": 6.0},
    }
    passes = [
        one_pass("compress_tables", compress),
        one_pass("split_user_item"),
        one_pass("place_devices", {"placement": placement}),
        one_pass("merge_transfers", {"transfers": transfers}),
    ]
    return manifest(passes, split=SPLIT, user={"features": ["user", "ctx"], "inputs": ["user", "ctx"]})


def test_lines_say_what_was_done() -> None:
    text = "\n".join(summary.lines(everything()))
    assert "once per user (s): 2 of 3 features (user, ctx)" in text
    assert "1 k -> 200 operations per candidate, 800 per user: 80% less at 500 candidates" in text
    assert "repeated at tower/relu_1 (Relu), behind lookups, ConcatV2, MatMul" in text
    assert "ctx stays with the candidates: x (Cross): mixes rows" in text
    assert "3 operations on /device:CPU:0, 7 on /device:GPU:0" in text
    assert "s: 2 tensors to /device:GPU:0 per call, 1 back" in text
    assert "odd:0 crosses by itself: it is text" in text
    assert "1 stored as fp16, 4.0 KB -> 2.0 KB" in text
    assert "accuracy gate (s) passed on 8 rows" in text
    assert "tiny stays as it was: accuracy gate: too far" in text


def test_lines_say_why_not() -> None:
    passes = [
        one_pass("compress_tables", {"dtype": "int8"}, (("table emb", "is float16"),)),
        one_pass("split_user_item", refused=(("signature s", "control flow: While loop"),)),
        one_pass("place_devices", refused=(("placement", "sparse and dense are one device"),)),
    ]
    told = manifest(passes, split=None, user={"features": ["user"], "inputs": ["user"]})
    text = "\n".join(summary.lines(told))
    assert "once per user (s): nothing: control flow: While loop" in text
    assert "devices: nothing was placed: sparse and dense are one device" in text
    assert "none is stored as int8" in text
    assert "emb stays as it was: is float16" in text
    page = render_report(told)
    for words in ("Not split:", "control flow: While loop", "Nothing was placed:", "No table is stored as int8"):
        assert words in page


def test_what_was_not_asked_for_is_not_told() -> None:
    refused = (("placement", "no devices were given (--device-map sparse=DEVICE,dense=DEVICE)"),)
    told = manifest([one_pass("place_devices", refused=refused), one_pass("compress_tables")], split=None)
    assert list(summary.lines(told)) == []
    page = render_report(told)
    for words in ("Once per user", "<h2>Devices", "Smaller tables"):
        assert words not in page


def test_the_page_has_a_section_for_each() -> None:
    page = render_report(everything())
    for words in ("<h2>Once per user", "<h2>Devices", "<h2>Smaller tables", "80 % less", "size read off its shape"):
        assert words in page
    assert "StatefulPartitionedCall/StatefulPartitionedCall" not in page.split("What each pass did")[0]


def test_no_user_feature_found_in_samples() -> None:
    told = manifest([one_pass("split_user_item")], split=None, user={"features": [], "inputs": []})
    assert "no feature is the same for all rows" in next(iter(summary.lines(told)))
    assert "no feature is the same for all rows" in render_report(told)


def test_a_pass_that_failed() -> None:
    failed = {**one_pass("compress_tables"), "status": "failed", "error": "ValueError: no"}
    text = "\n".join(summary.lines(manifest([failed], split=None)))
    assert "every table stays as it was: ValueError: no" in text


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("StatefulPartitionedCall/StatefulPartitionedCall/dense/MatMul:0", "dense/MatMul:0"),
        ("serving_default__split/user/StatefulPartitionedCall_1/x", "x"),
        ("s__split/item/PartitionedCall/x", "x"),
        ("tower/user/x", "tower/user/x"),
        ("StatefulPartitionedCall/", "StatefulPartitionedCall/"),
        ("plain", "plain"),
    ],
)
def test_names_lose_the_scopes_of_exporting(name: str, short: str) -> None:
    assert summary.node_words(name) == short


def test_numbers_for_people() -> None:
    assert [summary.count_words(n) for n in (7, 950, 1000, 20_150, 204_352, 1_300_000, 5e9)] == [
        "7", "950", "1 k", "20.1 k", "204 k", "1.3 M", "5 G"
    ]  # fmt: skip
    assert [summary.size_words(n) for n in (512, 1400, 3_100_000)] == ["512 B", "1.4 KB", "3.1 MB"]


def test_the_manifest_is_not_changed() -> None:
    told = everything()
    before = copy.deepcopy(told)
    list(summary.lines(told))
    render_report(told)
    assert told == before
