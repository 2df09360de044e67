"""Tags of nodes: features of a lookup's way, of what depends on one input alone, passes and rules."""

from __future__ import annotations

from typing import Any

from tensorflow.core.framework import node_def_pb2

from tfctr.bundle.naming import RULE_ATTR
from tfctr.profiling.timeline.events import Tags
from tfctr.profiling.timeline.provenance import Provenance
from tfctr.profiling.timeline.run_metadata import RunGraph

INFO: dict[str, Any] = {
    "inputs": [
        {"name": "age", "tensor": "age:0"},
        {"name": "user", "tensor": "user:0"},
        {"name": "user_again", "tensor": "user:0"},
        {"name": "word", "tensor": "word:0"},
    ],
    "features": [
        {"name": "age", "kind": "dense", "parts": {"values": "age"}},
        {"name": "user", "kind": "dense", "parts": {"values": "user"}},
        {"name": "word", "kind": "dense", "parts": {"values": "word"}},
    ],
    "lookups": [{"name": "user", "feature": "user", "table_name": "users", "node": "gather", "output": "squeeze:0"}],
    "packed": "serving default__packed",
}
FILES = [{"index": 0, "name": "users"}, {"index": 1, "name": "words"}]
SPEC = b"""tfctr-lookup 1
output 0 form=rows columns=8 dtype=float32
lookup name=user table=0 form=dense combiner=none output=0 column=0 ids=in:1
lookup name=word table=1 form=ragged combiner=mean output=0 column=4 ids=in:2
copy name=age source=in:0 width=1 output=0 column=8
"""


def node(name: str, op: str, *inputs: str, mark: str = "") -> node_def_pb2.NodeDef:
    made = node_def_pb2.NodeDef(name=name, op=op, input=inputs)
    if mark:
        made.attr[RULE_ATTR].s = mark.encode()
    return made


def tags(*nodes: node_def_pb2.NodeDef, info: dict[str, Any] = INFO, fed: dict[str, str] | None = None) -> Any:
    graph = RunGraph({n.name: n for n in nodes}, fed or {}, {}, {}, (), None)
    return Provenance(info, FILES).tags(graph)


def test_a_stock_graph() -> None:
    found = tags(
        node("_arg_user_0_0", "_Arg"),
        node("_arg_age_0_1", "_Arg"),
        node("table", "VarHandleOp"),
        node("cast", "Cast", "_arg_user_0_0"),
        node("gather", "ResourceGather", "table", "cast"),
        node("squeeze", "Squeeze", "gather"),
        node("log", "Log", "_arg_age_0_1"),
        node("concat", "ConcatV2", "squeeze", "log"),
        node("dense", "MatMul", "concat"),
        node("late", "Neg", "squeeze"),
        fed={"_arg_user_0_0": "user", "_arg_age_0_1": "age"},
    )
    lookup = Tags(features=("user",), tables=("users",))
    assert {found[n] for n in ("cast", "gather", "squeeze", "table", "_arg_user_0_0")} == {lookup}
    assert found["log"] == found["_arg_age_0_1"] == Tags(features=("age",))
    assert found["late"] == Tags(features=("user",))  # behind the lookup, but of this feature alone
    assert "concat" not in found and "dense" not in found


def test_a_packed_bundle() -> None:
    scope = "serving_default__packed"
    unpack = node(f"{scope}/unpack", "TfctrUnpack", "arena")
    unpack.attr["emit"].list.i.extend([0, 2])
    fused = node(
        f"{scope}/a/tfctr/lookup_0", "TfctrFusedLookup", "store", "arena", f"{scope}/hash", mark="fuse_lookups"
    )
    fused.attr["spec"].s = SPEC
    found = tags(
        node("arena", "_Arg"),
        unpack,
        fused,
        node(f"{scope}/log", "Log", f"{scope}/unpack"),
        node(f"{scope}/length", "StringLength", f"{scope}/unpack:1"),
        node(f"{scope}/hash", "StringToHashBucketFast", f"{scope}/unpack:1"),
        node("store", "TfctrStore"),
        node(f"{scope}/concat", "ConcatV2", f"{scope}/log", f"{scope}/length"),
    )
    assert found[fused.name] == Tags(
        features=("user", "word"),
        pass_name="fuse_lookups",
        rule="2 lookups in one op: dense, ragged mean",
        tables=("users", "words"),
    )
    assert found["store"] == Tags(features=("user", "word"), tables=("users", "words"))
    assert found[f"{scope}/hash"] == Tags(features=("word",), tables=("words",))  # before the lookup, of one feature
    assert found[unpack.name].pass_name == "pack_inputs"
    assert found[unpack.name].rule == "2 inputs out of the packed request"
    assert found[f"{scope}/log"].features == ("age",)
    assert found[f"{scope}/length"].features == ("word",)  # number 2: the tensor of two inputs is fed once
    assert f"{scope}/concat" not in found


def test_a_lookup_that_was_left_is_found_in_every_form() -> None:
    found = tags(
        node("serving_default__packed/gather", "GatherV2", "serving_default__packed/unpack"),
        node("serving_default__packed/squeeze", "Squeeze", "serving_default__packed/gather"),
        info={**INFO, "packed": "serving default__packed"},
    )
    assert found["serving_default__packed/squeeze"] == Tags(features=("user",), tables=("users",))
    assert found["serving_default__packed/gather"] == Tags(features=("user",), tables=("users",))


def test_marks_give_pass_and_rule() -> None:
    found = tags(
        node("a", "Mul", mark="split_user_item:on user rows"),
        node("b", "Cast", mark="normalise"),
        node("c", "TfctrTable"),  # of a bundle that carries no marks
        node("d", "Add"),
    )
    assert (found["a"].pass_name, found["a"].rule) == ("split_user_item", "on user rows")
    assert (found["b"].pass_name, found["b"].rule) == ("normalise", "")
    assert (found["c"].pass_name, found["c"].rule) == ("externalise_tables", "variable to table file")
    assert "d" not in found


def test_loops_end() -> None:
    found = tags(
        node("enter", "Enter", "_arg_age_0_0"),
        node("_arg_age_0_0", "_Arg"),
        node("merge", "Merge", "enter", "next"),
        node("next", "NextIteration", "merge"),
        fed={"_arg_age_0_0": "age"},
    )
    assert found["enter"].features == ("age",)
