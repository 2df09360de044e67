"""Proofs: what holds is proven, what does not is refused with the probe and the first difference."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.candidates import Candidate
from graph_opt.lookup_spec import Step
from graph_opt.prove import prove, prove_all
from graph_opt.prove.probes import make_probes
from graph_opt.testing import graph_item
from tests.graph_opt.graphs import ROWS, WIDTH, one_hot_gather, output_of, placeholder, safe_sparse, sparse_input, table
from tests.graph_opt.prove.specs import dense, spec


def candidate(item, one, output, *others):
    return Candidate(
        spec=one, output=output_of(item, output), nodes=frozenset(), gather="gather", alternatives=others
    )  # fmt: skip


def safe_spec(name="a", **changes):
    plain = {
        "name": name, "ids": f"{name}_ids:0", "rows": f"{name}_indices:0", "shape": f"{name}_shape:0",
        "steps": (Step("prune_negative"),),
    }  # fmt: skip
    return spec(**{**plain, **changes})


@pytest.fixture(scope="module")
def safe_mean(tmp_path_factory):
    return safe_sparse(tmp_path_factory.mktemp("safe"))


@pytest.fixture(scope="module")
def gather(tmp_path_factory):
    return one_hot_gather(tmp_path_factory.mktemp("gather"))


def gather_spec(**changes):
    return dense(**{"name": "ids", **changes})


def test_a_right_spec_is_proven_to_the_bit(safe_mean):
    proof = prove(safe_mean, candidate(safe_mean, safe_spec(), "a"))
    assert proof.ok, proof.reason
    assert proof.bit_equal
    assert proof.probes > 15


def test_an_all_zero_table_does_not_hide_a_wrong_rule(tmp_path):
    item = safe_sparse(tmp_path, values=np.zeros((ROWS, WIDTH), np.float32))
    proof = prove(item, candidate(item, safe_spec(combiner="sum"), "a"))
    assert not proof.ok
    assert "values differ, first at" in proof.reason
    assert prove(item, candidate(item, safe_spec(), "a")).ok


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"combiner": "sqrtn"}, "values differ"),
        ({"empty": "nan"}, "empty first, middle and last rows.*values differ"),
        ({"fill_id": 0}, "values differ"),
        ({"steps": ()}, "fused lookup raises"),
        ({"accumulation": "sequential"}, "values differ"),
        ({"sort_rows": False}, "unsorted rows.*fused lookup raises"),
        ({"max_norm": 0.5}, "values differ"),
        ({"steps": (Step("prune_negative"), Step("add", ("1",)))}, "."),
        ({"denominator": "eps", "denominator_eps": 1e-3}, "values differ"),
    ],
)
def test_every_wrong_field_is_refused(safe_mean, changes, reason):
    proof = prove(safe_mean, candidate(safe_mean, safe_spec(**changes), "a"))
    assert not proof.ok
    assert proof.spec is None
    assert re.search(reason, proof.reason), proof.reason


def test_plain_gather(gather):
    proof = prove(gather, candidate(gather, gather_spec(), "rows"))
    assert proof.ok, proof.reason
    assert proof.bit_equal


def test_meanings_of_a_negative_id_are_told_apart(gather, tmp_path):
    wrapped = gather_spec(steps=(Step("wrap_negative", (str(ROWS),)),))
    proof = prove(gather, candidate(gather, wrapped, "rows"))
    assert "the original raises" in proof.reason
    keras = one_hot_gather(tmp_path, wrap=True)
    assert prove(keras, candidate(keras, wrapped, "rows")).ok
    assert "fused lookup raises" in prove(keras, candidate(keras, gather_spec(), "rows")).reason


def test_relu_after_the_gather_is_seen(tmp_path):
    def build(tables):
        return {"rows": tf.nn.relu(tf.gather(tables["emb"], placeholder(tf.int64, [None], "ids")))}

    item = graph_item(build, tables={"emb": np.abs(table())}, work_dir=tmp_path)
    assert "values differ" in prove(item, candidate(item, gather_spec(), "rows")).reason


def test_rows_taken_from_the_middle_of_a_huge_table(tmp_path):
    # 40 GB on paper: the surrogate is a sparse file.
    item = one_hot_gather(tmp_path)
    big = dataclasses.replace(item.files[0], shape=(10**10, 1))
    item.files[0] = big
    node = next(n for n in item.graph_def.node if n.op == "TfctrTable")
    node.attr["shape"].shape.dim[0].size, node.attr["shape"].shape.dim[1].size = big.shape
    proof = prove(item, candidate(item, gather_spec(table_rows=10**10, table_width=1), "rows"))
    assert proof.ok, proof.reason


def test_alternatives_are_tried_in_order(gather):
    wrong, right = gather_spec(steps=(Step("mod", ("7",)),)), gather_spec()
    proof = prove(gather, candidate(gather, wrong, "rows", gather_spec(steps=(Step("add", ("1",)),)), right))
    assert proof.ok
    assert proof.spec == right
    assert len(proof.tried) == 2


def test_what_else_the_subgraph_reads_is_the_reason(tmp_path):
    def build(tables):
        scale = placeholder(tf.float32, [], "scale")
        return {"rows": scale * tf.gather(tables["emb"], placeholder(tf.int64, [None], "ids"))}

    item = graph_item(build, tables={"emb": table()}, work_dir=tmp_path)
    assert prove(item, candidate(item, gather_spec(), "rows")).reason == "depends on input 'scale' as well"


def test_a_spec_that_reaches_no_row_proves_nothing(gather):
    nowhere = gather_spec(steps=(Step("mod", ("1",)), Step("add", (str(ROWS),))))
    assert "no id was found" in prove(gather, candidate(gather, nowhere, "rows")).reason


def test_equal_lookups_get_the_short_set(tmp_path):
    names = ("a", "b", "c")
    item = safe_sparse(tmp_path, names)
    proofs = prove_all(item, [candidate(item, safe_spec(n, table=k), n) for k, n in enumerate(names)])
    assert all(p.ok for p in proofs), [p.reason for p in proofs]
    assert proofs[1].probes == proofs[2].probes < proofs[0].probes
    assert proofs[1].probes >= 5


def test_a_failed_first_of_its_class_does_not_shorten_the_others(tmp_path):
    names = ("a", "b")
    item = safe_sparse(tmp_path, names)
    wrong, right = safe_spec("a", combiner="sum"), safe_spec("b", table=1)
    proofs = prove_all(item, [candidate(item, wrong, "a"), candidate(item, right, "b")])
    assert not proofs[0].ok
    assert proofs[1].probes > 15


def test_swapped_tables_of_one_shape_are_refused(tmp_path):
    item = safe_sparse(tmp_path, ("a", "b"))
    assert "values differ" in prove(item, candidate(item, safe_spec("a", table=1), "a")).reason


def test_surrogates_are_gone_afterwards(safe_mean):
    before = sorted(p.name for p in safe_mean.work_dir.iterdir())
    prove(safe_mean, candidate(safe_mean, safe_spec(combiner="sum"), "a"))
    assert sorted(p.name for p in safe_mean.work_dir.iterdir()) == before


def test_the_item_is_not_changed(safe_mean):
    before = safe_mean.graph_def.SerializeToString(deterministic=True)
    prove(safe_mean, candidate(safe_mean, safe_spec(), "a"))
    assert safe_mean.graph_def.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_partitioned_tables(tmp_path, strategy):
    parts = [34, 33, 33]

    def build(tables):
        return {
            "rows": tf.compat.v1.nn.embedding_lookup(
                [tables[f"p{k}"] for k in range(3)],
                placeholder(tf.int64, [None], "ids"),
                partition_strategy=strategy,
            )
        }

    item = graph_item(build, tables={f"p{k}": table(n, seed=k) for k, n in enumerate(parts)}, work_dir=tmp_path)
    nodes = tuple(item.tables)
    one = Candidate(
        spec=gather_spec(table=-1), output=output_of(item, "rows"), nodes=frozenset(), gather="gather",
        parts=nodes, strategy=strategy,
    )  # fmt: skip
    proof = prove(item, one)
    assert proof.ok, proof.reason
    assert proof.spec.table == -1
    other = "mod" if strategy == "div" else "div"
    assert not prove(item, dataclasses.replace(one, strategy=other)).ok


def test_weights_and_masks(tmp_path):
    def build(tables):
        ids = sparse_input("a")
        weights = tf.SparseTensor(ids.indices, placeholder(tf.float32, [None], "w"), ids.dense_shape)
        dense_ids = placeholder(tf.int64, [None, None], "d")
        kept = tf.cast(tf.not_equal(dense_ids, 0), tf.float32)[..., None]
        total = tf.reduce_sum(tf.gather(tables["emb"], dense_ids) * kept, 1)
        return {
            "weighted": tf.nn.safe_embedding_lookup_sparse(tables["emb"], ids, weights, combiner="mean"),
            "masked": total / tf.maximum(tf.reduce_sum(kept, 1), 1.0),
        }

    item = graph_item(build, tables={"emb": table()}, work_dir=tmp_path)
    weighted = safe_spec(weights="w:0", prune_weights=True, accumulation="sequential", denominator="no_nan")
    masked = dense(
        ids="d:0", combiner="mean", accumulation="sequential", mask_value="0", denominator="max1", empty="natural"
    )
    for one, name in ((weighted, "weighted"), (masked, "masked")):
        proof = prove(item, candidate(item, one, name))
        assert proof.ok, proof.reason
    unpruned = dataclasses.replace(weighted, prune_weights=False)
    assert not prove(item, candidate(item, unpruned, "weighted")).ok
    unmasked = dataclasses.replace(masked, mask_value=None)
    assert not prove(item, candidate(item, unmasked, "masked")).ok


def test_strings_through_a_vocabulary(tmp_path):
    def build(tables):
        rows = tables.find("words", placeholder(tf.string, [None], "ids"), default=7)
        return {"rows": tf.gather(tables["emb"], rows)}

    words = {f"word{k}": k for k in range(50)}
    item = graph_item(build, tables={"emb": table()}, vocabularies={"words": words}, work_dir=tmp_path)
    proof = prove(item, candidate(item, gather_spec(steps=(Step("vocab", ("1", "7")),)), "rows"))
    assert proof.ok, proof.reason
    proof = prove(item, candidate(item, gather_spec(steps=(Step("vocab", ("1", "8")),)), "rows"))
    assert "values differ" in proof.reason


def test_parts_read_in_two_orders(tmp_path):
    def build(tables):
        ids = placeholder(tf.int64, [None], "ids")
        parts = [tables["p0"], tables["p1"]]
        return {
            s: tf.compat.v1.nn.embedding_lookup(parts, ids, partition_strategy=s) for s in ("div", "mod")
        }  # fmt: skip

    item = graph_item(build, tables={"p0": table(50), "p1": table(50, seed=1)}, work_dir=tmp_path)
    found = [
        Candidate(
            spec=gather_spec(table=-1), output=output_of(item, strategy), nodes=frozenset(), gather="gather",
            parts=tuple(item.tables), strategy=strategy,
        )
        for strategy in ("div", "mod")
    ]  # fmt: skip
    proofs = prove_all(item, found)
    assert proofs[0].ok
    assert "more than one order" in proofs[1].reason


def test_a_spec_with_fields_its_form_has_not(gather):
    assert "reads no rows" in prove(gather, candidate(gather, gather_spec(rows="ids:0"), "rows")).reason


def test_probes_that_tell_nothing_prove_nothing(safe_mean, monkeypatch):
    def only_empty(*args, **kwargs):
        return [p for p in make_probes(*args, **kwargs) if p.label == "all rows empty"]

    monkeypatch.setattr("graph_opt.prove.prover.make_probes", only_empty)
    proof = prove(safe_mean, candidate(safe_mean, safe_spec(combiner="sum"), "a"))
    assert proof.reason == "no probe gave a value other than zero, so nothing is proven"


def test_a_stateless_call_runs_with_its_library(tmp_path):
    @tf.function
    def looked_up(rows, ids):
        return tf.gather(rows, ids)

    def build(tables):
        return {"rows": looked_up(tables["emb"], placeholder(tf.int64, [None], "ids"))}

    item = graph_item(build, tables={"emb": table()}, work_dir=tmp_path)
    assert prove(item, candidate(item, gather_spec(), "rows")).ok


def test_an_empty_batch_that_stock_can_not_run_is_forgiven(tmp_path):
    def build(tables):
        rows = tf.gather(tables["emb"], placeholder(tf.int64, [None], "ids"))
        return {"rows": tf.reshape(tf.reshape(rows, [tf.size(rows) // WIDTH, -1]), [-1, WIDTH])}

    item = graph_item(build, tables={"emb": table()}, work_dir=tmp_path)
    proof = prove(item, candidate(item, gather_spec(), "rows"))
    assert proof.ok, proof.reason


def test_nothing_to_prove(safe_mean):
    assert prove_all(safe_mean, []) == []
