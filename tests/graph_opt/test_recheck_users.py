"""The final comparison of split forms: its cases, and that a split form that gives other numbers is found."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.finish import finish
from graph_opt.item import GraphItem, SplitForm
from graph_opt.options import ConvertOptions
from graph_opt.passes.pack_inputs import pack_inputs
from graph_opt.recheck import compare_items
from graph_opt.recheck_users import user_cases
from graph_opt.signature_info import signature_info
from graph_opt.testing import graph_item
from tests.graph_opt.graphs import placeholder

FORM = SplitForm(
    signature="serving_default__split",
    row_to_user="row_to_user",
    user_inputs=("age", "city"),
    user_features=("age", "city"),
)
USER = {"features": ["age", "city"], "inputs": ["age", "city"]}


def item_with_split(work_dir: Path, factor: float, packed: bool) -> tuple[GraphItem, GraphItem]:
    """(reference, item): age * item + city, whose split form multiplies by ``factor`` more."""

    def build(_: Any) -> dict[str, tf.Tensor]:
        age, city = placeholder(tf.float32, [None], "age"), placeholder(tf.int64, [None], "city")
        item = placeholder(tf.float32, [None], "item")
        return {"score": age * item + tf.cast(city, tf.float32)}

    reference = graph_item(build, tables={}, work_dir=work_dir / "reference")
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(reference.graph_def, name="")
        tensors = {name: graph.get_tensor_by_name(f"{name}:0") for name in ("age", "city", "item")}
        place = placeholder(tf.int64, [None], "row_to_user")
        score = tf.gather(tensors["age"], place) * tensors["item"] * factor
        score = tf.identity(score + tf.cast(tf.gather(tensors["city"], place), tf.float32), "split_score")
        signature = tf.compat.v1.saved_model.predict_signature_def(tensors | {"row_to_user": place}, {"score": score})
    item = reference.copy()
    item.graph_def.CopyFrom(graph.as_graph_def())
    (name,) = item.optimise
    form = dataclasses.replace(FORM, signature=f"{name}__split")
    item.signatures[form.signature] = signature
    item.split[name] = form
    if packed:
        pack_inputs(item, ConvertOptions())
    finish(reference)
    finish(item)
    return reference, item


def info_of(item: GraphItem) -> dict[str, Any]:
    (name,) = item.optimise
    return signature_info(item.signatures[name]) | {"user": USER}


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize(("factor", "equal"), [(1.0, True), (1.001, False)])
def test_a_split_form_that_gives_other_numbers_is_found(
    tmp_path: Path, factor: float, equal: bool, samples: bool
) -> None:
    reference, item = item_with_split(tmp_path, factor, packed=True)
    (name,) = item.optimise
    arrays = {
        "age": np.array([1, 2, 1, 2, 3], np.float32),
        "city": np.array([4, 5, 4, 5, 6]),
        "item": np.arange(5, dtype=np.float32) + 1,
    }
    options = ConvertOptions(read_samples=(lambda _: arrays) if samples else None)
    found = compare_items(reference, item, {name: info_of(item)}, options, None, lambda *_: None)
    verdicts = {entry.signature: entry.ok for entry in found}
    assert verdicts == {
        name: True,
        f"{name}__packed": True,
        f"{name}__split": equal,
        f"{name}__split__packed": equal,
    }


def test_a_split_form_that_fails_is_a_difference(tmp_path: Path) -> None:
    reference, item = item_with_split(tmp_path, 1.0, packed=False)
    (name,) = item.optimise
    for node in item.graph_def.node:
        if node.op == "GatherV2":
            node.input[1] = "out_of_reach"
    far = item.graph_def.node.add(name="out_of_reach", op="Const")
    far.attr["dtype"].type = tf.int64.as_datatype_enum
    far.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([99], tf.int64))
    found = compare_items(reference, item, {name: info_of(item)}, ConvertOptions(), None, lambda *_: None)
    (split,) = [entry for entry in found if entry.signature == f"{name}__split"]
    assert not split.ok
    assert "raises: indices[0] = 99 is not in" in split.reason


@pytest.mark.parametrize("rows", [1, 2, 32])
def test_generated_cases_have_several_users_and_one(tmp_path: Path, rows: int) -> None:
    _, item = item_with_split(tmp_path, 1.0, packed=False)
    cases = user_cases(info_of(item), FORM, ConvertOptions(sample_rows=rows), None)
    assert [len(case.split["age"]) for case in cases] == sorted({min(3, rows), 1}, reverse=True)
    for case in cases:
        place = case.split["row_to_user"]
        assert len(place) == len(case.split["item"]) == rows
        assert place.max() == len(case.split["age"]) - 1
        np.testing.assert_array_equal(case.repeated["age"], case.split["age"][place])
    if rows == 32:
        assert (np.diff(cases[0].split["row_to_user"]) < 0).any()


def test_samples_give_their_own_users(tmp_path: Path) -> None:
    _, item = item_with_split(tmp_path, 1.0, packed=False)
    arrays = {"age": np.float32([1, 2, 1]), "city": np.array([7, 8, 7]), "item": np.float32([5, 6, 7])}
    several, one = user_cases(info_of(item), FORM, ConvertOptions(), arrays)
    assert several.split["age"].tolist() == [1, 2]
    assert several.split["row_to_user"].tolist() == [0, 1, 0]
    assert several.repeated["age"].tolist() == [1, 2, 1]
    assert one.split["age"].tolist() == [1]
    assert one.split["item"].tolist() == [5, 7]
    assert one.repeated["age"].tolist() == [1, 1]
    none = {name: value[:0] for name, value in arrays.items()}
    assert user_cases(info_of(item), FORM, ConvertOptions(), none) == []
