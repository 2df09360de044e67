"""Every reason to leave a static table, a variable or a signature as it is, outside the recogniser and the prover."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.options import ConvertOptions
from graph_opt.passes.externalise_vocabularies import externalise_vocabularies
from graph_opt.passes.pack_inputs import pack_inputs
from graph_opt.pipeline import REFERENCE_PASSES, run_passes
from graph_opt.saved_model import load_inlined

v1, raw = tf.compat.v1, tf.raw_ops
Signatures = dict[str, tuple[dict[str, Any], dict[str, Any]]]


def save(path: Path, build: Callable[[], tuple[Signatures, Any]]) -> Path:
    """A TF1 SavedModel of ``build() -> (signature -> (inputs, outputs), init op)``."""
    with tf.Graph().as_default(), v1.Session() as session:
        signatures, main_op = build()
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(path))
        made = {name: v1.saved_model.predict_signature_def(*parts) for name, parts in signatures.items()}
        builder.add_meta_graph_and_variables(session, ["serve"], made, main_op=main_op)
        builder.save()
    return path


def words() -> Any:
    return v1.placeholder(tf.string, [None], "words")


def handle(value: tf.DType = tf.int64) -> Any:
    return raw.HashTableV2(key_dtype=tf.string, value_dtype=value, shared_name="vocabulary")


def fill(table: Any, keys: tuple[str, ...] = ("a", "b")) -> Any:
    return raw.InitializeTableV2(table_handle=table, keys=list(keys), values=np.arange(len(keys)))


def find(table: Any) -> Signatures:
    ids = raw.LookupTableFindV2(table_handle=table, keys=words(), default_value=np.int64(-1))
    return {"serving_default": ({"words": v1.get_default_graph().get_tensor_by_name("words:0")}, {"ids": ids})}


def exported() -> tuple[Signatures, Any]:
    table = handle()
    found = find(table)
    keys, _ = raw.LookupTableExportV2(table_handle=table, Tkeys=tf.string, Tvalues=tf.int64)
    found["serving_default"][1]["keys"] = keys
    return found, fill(table)


def filled_twice() -> tuple[Signatures, Any]:
    table = handle()
    return find(table), tf.group(fill(table), fill(table))


def never_filled() -> tuple[Signatures, Any]:
    return find(handle()), None


def filled_by_serving() -> tuple[Signatures, Any]:
    table = handle()
    with tf.control_dependencies([fill(table)]):
        return find(table), None


def filled_from_a_lost_file() -> tuple[Signatures, Any]:
    table = handle()
    return find(table), raw.InitializeTableFromTextFileV2(
        table_handle=table, filename="/no/such/vocabulary.txt", key_index=-2, value_index=-1
    )


def of_floats() -> tuple[Signatures, Any]:
    table = handle(tf.float32)
    found = raw.LookupTableFindV2(table_handle=table, keys=words(), default_value=np.float32(0))
    inputs = {"words": v1.get_default_graph().get_tensor_by_name("words:0")}
    init = raw.InitializeTableV2(table_handle=table, keys=["a"], values=np.float32([1]))
    return {"serving_default": (inputs, {"values": found})}, init


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (exported, "used by LookupTableExportV2"),
        (filled_twice, "it has 2 initialisers"),
        (never_filled, "nothing initialises it"),
        (filled_by_serving, "serving itself fills it"),
        (filled_from_a_lost_file, "its initialiser can't be run on its own: .*no/such"),
        (of_floats, "maps string to float32"),
    ],
)
def test_a_static_table_stays(tmp_path: Path, build: Callable[[], tuple[Signatures, Any]], reason: str) -> None:
    item = load_inlined(save(tmp_path / "model", build))
    item.work_dir = tmp_path
    outcome = externalise_vocabularies(item, ConvertOptions())
    assert outcome.fired == 0
    (refused,) = outcome.refused
    assert refused.nodes
    assert re.search(f"stays a hash table: {reason}", refused.reason), refused.reason
    assert "\n" not in refused.reason


def test_a_variable_of_strings_stays(tmp_path: Path) -> None:
    def build() -> tuple[Signatures, Any]:
        names = v1.get_variable("names", initializer=np.array(["x", "y"], object), use_resource=True, dtype=tf.string)
        ids = v1.placeholder(tf.int64, [None], "ids")
        return {"serving_default": ({"ids": ids}, {"name": tf.gather(names, ids)})}, None

    item = load_inlined(save(tmp_path / "model", build))
    item.work_dir = tmp_path
    reports = run_passes(item, REFERENCE_PASSES, ConvertOptions(strict=True))
    (refused,) = next(r for r in reports if r.name == "externalise_tables").refused
    assert refused.reason == "stays a variable: its dtype string is never frozen"
    assert [m.kind for m in item.mutable_state] == ["variable"]


def test_signatures_that_are_not_packed(tmp_path: Path) -> None:
    def build() -> tuple[Signatures, Any]:
        x = {name: v1.placeholder(tf.float32, [None], name) for name in "abc"}
        total = x["a"] + x["b"] + x["c"]
        inner = {**x, "a": tf.identity(x["a"], "inner")}
        again = inner["a"] + x["b"] + x["c"]
        return {"s": (x, {"y": total}), "s__packed": (x, {"y": total}), "t": (inner, {"y": again})}, None

    item = load_inlined(save(tmp_path / "model", build))
    reasons = {r.what: r.reason for r in pack_inputs(item, ConvertOptions()).refused}
    assert reasons == {
        "signature s": "the model has a signature s__packed of its own",
        "signature t": "input inner:0 is not a placeholder",
    }
