"""Dry runs of policies on a checkpoint give the numbers of the live table."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfctr
from tests.embedding.inspection.tables import fill, make, save
from tfctr.core import library
from tfctr.embedding.inspection import policies
from tfctr.embedding.inspection.sources import Table, open_source
from tfctr.embedding.inspection.statistics import Now
from tfctr.errors import UsageError

NOW_MS = 5_000_000  # what the table's clock shows

_PROTECTION = st.fixed_dictionaries(
    {"min_rows": st.integers(0, 12), "protected_keys": st.lists(st.integers(-3, 30), max_size=4).map(tuple)}
)
_POLICIES = st.one_of(
    st.builds(lambda n, p: tfctr.StepEviction(n, **p), st.integers(0, 60), _PROTECTION),
    st.builds(lambda n, p: tfctr.TtlEviction(n, **p), st.sampled_from([0, 0.0005, 0.25, 1, 2000.5]), _PROTECTION),
    st.builds(lambda x, p: tfctr.L2Eviction(x, **p), st.sampled_from([0.5, 1.0, 2.0, 1e30]), _PROTECTION),
    st.builds(
        lambda n, o, p: tfctr.CapacityEviction(n + p["min_rows"], o, **p),
        st.integers(1, 20), st.sampled_from(["lru", "lfu"]), _PROTECTION,
    ),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    eviction=st.lists(_POLICIES, min_size=1, max_size=3).map(tuple),
    rows=st.integers(0, 40),
    counted=st.integers(0, 15),
    seed=st.integers(0, 2**16),
    step=st.sampled_from([0, 5, 50, 10_000, 2**62]),
)
def test_numbers_are_those_of_the_live_table(tmp_path_factory, eviction, rows, counted, seed, step):
    """Few distinct steps, times, norms and counts: ties are the rule."""
    random = np.random.default_rng(seed)
    table = make(eviction=eviction, record_frequency=True)
    keys = random.permutation(60)[: rows + counted] - 5
    moments = [(int(random.integers(1, 4)), int(random.integers(0, 60)), int(NOW_MS - random.integers(0, 3000)))
               for _ in range(counted)]  # fmt: skip
    counters = dict(zip(keys[rows:].tolist(), moments, strict=True))
    fill(
        table,
        keys[:rows],
        values=np.repeat(random.integers(0, 4, (rows, 1)) / 2, 4, 1),
        frequency=random.integers(1, 5, rows),
        last_step=random.choice([0, 3, 4, 49, 50, 51], rows),
        last_time=NOW_MS - random.choice([0, 1, 250, 251, 999, 1001, 4_000_000], rows),
        counters=counters,
    )
    saved = open_source(save(tmp_path_factory.mktemp("dry") / "ckpt", users=table)).table("users")
    live = table.evict(dry_run=True, step=step)
    told = policies.dry_run(saved, policies.rules_of(saved), now=Now(step, NOW_MS))
    assert (told.rows, told.counters, told.bytes) == (live.rows, live.counters, live.bytes)
    assert [(one.rows, one.counters, one.bytes) for one in told.policies] == [
        (one.rows, one.counters, one.bytes) for one in live.policies
    ]
    # Which rows: those that a real run takes.
    before = set(table.keys().tolist())
    table.evict(step=step)
    run = policies.dry_run(saved, policies.rules_of(saved), now=Now(step, NOW_MS), examples=1000)
    assert {key for one in run.policies for key in one.examples} == before - set(table.keys().tolist())
    assert run.left == table.size()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Rows 0 to 9 with frequency 1 to 10, last used at step 0 to 9; two counted keys."""
    table = make(record_frequency=True)
    steps = np.arange(10)
    fill(
        table, steps, values=np.ones((10, 4)) * steps[:, None], frequency=steps + 1, last_step=steps,
        last_time=steps * 1000, counters={100: (1, 5, 0), 101: (7, 5, 0)},
    )  # fmt: skip
    return open_source(save(tmp_path_factory.mktemp("saved") / "ckpt", 10, users=table)).table("users")


def test_policies_by_words(saved):
    for text, took in {
        "step:4": [0, 1, 2, 3, 4, 5],
        "step:4,min_rows=8": [0, 1],
        "ttl:4991.5": [0, 1, 2, 3, 4, 5, 6, 7, 8],
        "l2:6": [0, 1, 2],
        "capacity:7": [0, 1, 2],
        "capacity:7:lfu": [0, 1, 2],
    }.items():
        rule = policies.rule_of(text)
        assert list(policies.dry_run(saved, [rule], examples=100).policies[0].examples) == took, text
        assert policies.rule_of(rule.words()) == rule


@pytest.mark.parametrize(
    "text",
    ["", "step", "step:", "step:-1", "step:x", "step:1:lru", "ttl:-1", "ttl:nan", "l2:inf", "capacity:0",
     "capacity:5:mru", "capacity:5,min_rows=6", "size:1", "step:1,rows=2"],
)  # fmt: skip
def test_no_policy(text):
    with pytest.raises(UsageError, match="expected step:STEPS"):
        policies.rule_of(text)


def test_admissions(saved):
    lines = policies.admission_lines(saved, [1, 5, 11])
    assert [(line.rows, line.refused, line.admitted) for line in lines] == [(10, 0, 2), (6, 4, 1), (0, 10, 0)]
    live = make(record_frequency=True)
    size = live.bytes()
    assert lines[0].memory is not None and lines[0].memory > 0 and size >= 0
    assert lines[0].memory > lines[1].memory > lines[2].memory


def test_what_a_table_lacks(tmp_path):
    table = make(eviction=None, admission=None)
    fill(table, np.arange(3))
    saved = open_source(save(tmp_path / "ckpt", users=table)).table("users")
    for text, lacks in {"step:1": "last_step", "ttl:1": "last_time", "capacity:1:lfu": "frequency"}.items():
        with pytest.raises(UsageError, match=f"users.*keeps no {lacks}.*{text}"):
            policies.dry_run(saved, [policies.rule_of(text)])
    with pytest.raises(UsageError, match="keeps no frequency"):
        policies.admission_lines(saved, [2])
    assert policies.dry_run(saved, [policies.rule_of("l2:1e30")]).rows == 3


def test_a_step_that_is_not_known(tmp_path):
    """As a saver in a graph writes it."""
    table = make()
    fill(table, np.arange(3))
    library.load().tfctr_ev_save(
        prefix=str(tmp_path / "c"), step=tf.constant([-1], tf.int64), handles=[table.handle], names=["t"]
    )
    saved = open_source(tmp_path / "c").table("t")
    assert saved.step is None
    with pytest.raises(UsageError, match="does not know its step: give --step"):
        policies.dry_run(saved, policies.rules_of(saved))
    assert policies.dry_run(saved, policies.rules_of(saved), now=Now(50_000, None)).rows == 3
