"""A tower against the model that it was cut from: the same numbers from the same boundary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from export.attempt import Attempt, attempt_export
from export.cut import cut_tower
from export.tower import Tower
from export.tower_session import TowerSession
from graph_opt.finish import finish
from graph_opt.item import GraphItem
from graph_opt.sessions import ItemSession
from graph_opt.testing import SIGNATURE


def assert_of_the_model(item: GraphItem, tower: Tower, *requests: Mapping[str, Any]) -> None:
    """Runs the model on each request (by input name), feeds what it has at the boundary to the tower, compares."""
    ready = item.copy()
    finish(ready)
    inputs = ready.signatures[tower.signature].inputs
    sources = [one.source for one in (*tower.inputs, *tower.outputs)]
    with ItemSession(ready) as model, TowerSession(tower) as session:
        for request in requests:
            values = model.run(sources, {inputs[name].name: value for name, value in request.items()})
            for one, value in zip((*tower.inputs, *tower.outputs), values, strict=True):
                assert value.dtype.name == one.dtype, one
                assert len(value.shape) == len(one.shape), (one, value.shape)
                assert all(a is None or a == b for a, b in zip(one.shape, value.shape, strict=True)), (one, value.shape)
            given = len(tower.inputs)
            got = session.run({one.name: v for one, v in zip(tower.inputs, values[:given], strict=True)})
            for one, value in zip(tower.outputs, values[given:], strict=True):
                np.testing.assert_allclose(got[one.name], value, rtol=1e-5, atol=1e-6, err_msg=one.name)


def cut_and_compare(item: GraphItem, *requests: Mapping[str, Any], signature: str = SIGNATURE) -> Tower:
    """Cuts one form, which must leave the item alone, and compares the tower with the model."""
    before = item.graph_def.SerializeToString(deterministic=True)
    tower = cut_tower(item, signature)
    assert item.graph_def.SerializeToString(deterministic=True) == before
    assert not any(node.op.startswith("Tfctr") or node.device for node in tower.graph_def.node)
    assert_of_the_model(item, tower, *requests)
    return tower


def exported(item: GraphItem, signature: str = SIGNATURE) -> Attempt:
    """The attempt, which must succeed."""
    attempt = attempt_export(item, signature)
    assert attempt.reason == "" and attempt.verdict is not None
    return attempt


def inputs_of(tower: Tower) -> dict[str, tuple[str, tuple[int | None, ...], str]]:
    """name -> (dtype, shape, side)."""
    return {one.name: (one.dtype, one.shape, one.side) for one in tower.inputs}
