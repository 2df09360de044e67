"""Pools of raw ids and probes: what they must contain for a proof to mean something."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_opt.lookup_spec import Step
from graph_opt.prove.pools import CannotProbe, make_pool
from graph_opt.prove.probes import Source, make_probes
from graph_opt.prove.steps import Vocabulary
from tests.graph_opt.prove.specs import dense, spec

INT64, INT32, FLOAT, TEXT = (np.dtype(t) for t in (np.int64, np.int32, np.float32, object))


def pool(one, dtype=INT64, vocabularies=None):
    return make_pool(one, dtype, vocabularies or {}, np.random.default_rng(0))


def test_pool_of_plain_ids_has_the_edges():
    made = pool(spec())
    assert {0, 99} <= set(made.good[0].tolist())
    assert {-1, 100, np.iinfo(np.int64).min, np.iinfo(np.int64).max} <= set(made.bad[0].tolist())
    assert not len(made.dropped[0])


def test_pruned_negatives_are_good():
    made = pool(spec(steps=(Step("prune_negative"),)))
    assert {-1, np.iinfo(np.int64).min} <= set(made.good[0].tolist())
    assert min(made.bad[0]) == 100
    assert max(made.dropped[0]) == -1


def test_offset_is_inverted():
    made = pool(spec(steps=(Step("add", ("1000000",)),)))
    assert {-1000000, -1000000 + 99} <= set(made.good[0].tolist())
    assert {-1000001, -1000000 + 100} <= set(made.bad[0].tolist())


def test_mod_has_negative_and_large_ids():
    made = pool(spec(steps=(Step("mod", ("100",)),)))
    assert made.good[0].min() < -100
    assert made.good[0].max() > 1 << 40
    assert not len(made.bad[0])


def test_addcol_has_a_pool_per_column():
    made = pool(dense(steps=(Step("addcol", ("0", "50")),)))
    assert 99 in made.good[0]
    assert 99 in made.bad[1]
    assert -50 in made.good[1]
    drawn = made.draw([5, 2])
    assert all(v in made.good[0] for v in drawn[:, 0])
    assert all(v in made.good[1] for v in drawn[:, 1])


def test_vocabulary_keys_known_and_unknown():
    known = Vocabulary.of({b"key%d" % k: k for k in range(50)})
    made = pool(spec(steps=(Step("vocab", ("3", "0")),)), TEXT, {3: known})
    keys = [k for k in made.good[0].tolist() if k in known.sample]
    assert len(keys) > 10
    assert b"" in made.good[0].tolist()
    assert len(made.good[0]) > len(keys) + 5


def test_vocabulary_without_a_row_for_unknown_keys():
    made = pool(spec(steps=(Step("vocab", ("0", "-1")),)), TEXT, {0: Vocabulary.of({b"a": 0, b"b": 1})})
    assert set(made.good[0].tolist()) == {b"a", b"b"}
    assert b"" in made.bad[0].tolist()


def test_bucketize_stands_around_the_boundaries():
    made = pool(spec(steps=(Step("bucketize", ("0.1", "7")),)), FLOAT)
    values = made.good[0]
    edge = np.float32(0.1)
    assert {edge, np.nextafter(edge, np.float32(1)), np.nextafter(edge, np.float32(0))} <= set(values.tolist())
    assert np.isnan(values).any()


def test_ids_that_reach_nothing_are_refused():
    with pytest.raises(CannotProbe, match="reaches a row"):
        pool(spec(steps=(Step("add", ("1000",)), Step("mod", ("1",)), Step("add", ("100",)))))


def sources(one, ids=INT64, rank=2, length=None):
    found = {one.ids: Source(ids, (None, length) if one.form == "dense" and rank == 2 else (None,))}
    if one.rows:
        found[one.rows] = Source(INT64, (None, rank) if one.form == "sparse" else (None,))
    if one.shape:
        found[one.shape] = Source(INT64, (rank,) if one.form == "sparse" else ())
    if one.weights:
        found[one.weights] = Source(FLOAT, (None,) if one.form != "dense" else (None, length))
    if one.mask:
        found[one.mask] = Source(np.dtype(bool), (None, length))
    return found


def labels(probes):
    return [p.label for p in probes]


def test_sparse_probes_cover_the_traps():
    one = spec(steps=(Step("prune_negative"),), weights="w:0", prune_weights=True)
    probes = make_probes(one, sources(one), {}, seed=1)
    text = "\n".join(labels(probes))
    for wanted in (
        "empty first, middle and last", "all rows empty", "batch 0", "batch 1", "1 to 33 values", "one id repeated",
        "weights 0, negative and NaN", "unsorted rows", "every id pruned", "bad id 100", "bad id 9223372036854775807",
    ):  # fmt: skip
        assert wanted in text
    special = next(p for p in probes if p.label.startswith("weights 0"))
    assert np.isnan(special.feeds["w:0"]).any()
    assert (special.feeds["w:0"] < 0).any()
    core = [p for p in probes if p.core]
    assert 5 < len(core) < len(probes)


def test_sparse_rank_3():
    one = spec()
    for probe in make_probes(one, sources(one, rank=3), {}, seed=1):
        assert probe.feeds["indices:0"].shape[1:] == (3,)
        assert probe.feeds["shape:0"].shape == (3,)


def test_dense_probes_keep_to_the_static_shape():
    one = dense(combiner="mean", mask="m:0")
    for probe in make_probes(one, sources(one, length=5), {}, seed=1):
        assert probe.feeds["ids:0"].shape[1] == 5
        assert probe.feeds["m:0"].shape == probe.feeds["ids:0"].shape
    shapes = {p.feeds["ids:0"].shape for p in make_probes(one, sources(one), {}, seed=1)}
    assert {(7, 8), (7, 9), (7, 17), (0, 9), (1, 9), (7, 0)} <= shapes


def test_probes_are_the_same_for_the_same_seed():
    one = spec()
    for a, b in zip(make_probes(one, sources(one), {}, 7), make_probes(one, sources(one), {}, 7), strict=True):
        assert a.label == b.label
        for name in a.feeds:
            np.testing.assert_array_equal(a.feeds[name], b.feeds[name])


@settings(deadline=None, max_examples=25)
@given(
    form=st.sampled_from(["sparse", "ragged", "segments"]),
    dtype=st.sampled_from([INT64, INT32]),
    rows=st.integers(1, 1 << 30),
    weighted=st.booleans(),
    pruned=st.booleans(),
)
def test_probes_are_well_formed(form, dtype, rows, weighted, pruned):
    one = spec(
        form=form,
        table_rows=rows,
        shape="shape:0" if form == "sparse" else None,
        weights="w:0" if weighted else None,
        steps=(Step("prune_negative"),) if pruned else (),
    )
    for probe in make_probes(one, sources(one, ids=dtype), {}, seed=3):
        ids = probe.feeds["ids:0"]
        assert ids.dtype == dtype
        assert len(probe.rows) == 0 or (probe.rows.min() >= 0 and probe.rows.max() < rows)
        if weighted:
            assert probe.feeds["w:0"].shape == ids.shape
        if form == "ragged":
            assert probe.feeds["indices:0"][-1] == len(ids)
        else:
            assert len(probe.feeds["indices:0"]) == len(ids)


def test_steps_before_a_vocabulary_keep_its_keys():
    steps = (Step("prune_equal", ("",)), Step("vocab", ("0", "-1")), Step("prune_negative"))
    made = pool(dense(combiner="mean", steps=steps), TEXT, {0: Vocabulary.of({b"a": 0, b"b": 1})})
    assert {b"a", b"b", b""} <= set(made.good[0].tolist())
    assert b"" in made.dropped[0].tolist()
