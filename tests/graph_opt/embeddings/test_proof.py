"""The proof of lowered lookups finds lowerings that are wrong, and says what it did."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import tfctr
from graph_opt.embeddings import proof
from graph_opt.embeddings.calls import EvLookup
from graph_opt.embeddings.lowering import lower
from tfctr.errors import UsageError

PLAIN = EvLookup(handle="h", dim=3, keys="k:0")
MEAN = dataclasses.replace(PLAIN, combiner="mean", splits="s:0")
WEIGHTED = dataclasses.replace(MEAN, combiner="sqrtn", weights="w:0", max_norm=0.5)


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    table = tfctr.EmbeddingVariable(
        3,
        "items",
        optimizer=tfctr.optimizers.Adam(),
        admission=tfctr.CounterAdmission(3),
        eviction=tfctr.StepEviction(9),
    )
    return json.loads(table.config)


def test_kinds_are_proven_once_each(config):
    again = dataclasses.replace(MEAN, keys="other:0", handle="other")
    told = proof.prove_lowering([(one, config) for one in (PLAIN, MEAN, again, WEIGHTED)])
    assert told["kinds"] == ["one row per key, dim 3", "mean, dim 3", "sqrtn, dim 3, weighted, max_norm 0.5"]
    assert 0 <= told["largest_difference"] <= proof.TOLERANCE


@pytest.mark.parametrize(
    ("lookup", "wrong"),
    [
        (MEAN, {"combiner": "sqrtn"}),
        (WEIGHTED, {"max_norm": 0.51}),
        (WEIGHTED, {"weights": None}),
        (dataclasses.replace(PLAIN, max_norm=1.0), {"max_norm": None}),
    ],
)
def test_a_wrong_lowering_ends_the_conversion(monkeypatch, config, lookup, wrong):
    def wrongly(view: Any, prefix: str, store: str, index: int, one: EvLookup) -> str:
        return lower(view, prefix, store, index, dataclasses.replace(one, **wrong))

    monkeypatch.setattr(proof, "lower", wrongly)
    with pytest.raises(UsageError, match=r"'items': its lookup \(.*dim 3.* gives other numbers as stock operations"):
        proof.prove_lowering([(lookup, config)])


def test_rows_of_another_table_are_found(monkeypatch, config):
    built = proof.add_built_hash
    monkeypatch.setattr(
        proof, "add_built_hash", lambda item, name, keys, rows, d: built(item, name, keys, rows[::-1], d)
    )
    with pytest.raises(UsageError, match="they differ by"):
        proof.prove_lowering([(PLAIN, config)])
