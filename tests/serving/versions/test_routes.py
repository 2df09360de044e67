"""Labels, and traffic that is split by a field of the request."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.versions.fakes import answer, manager, states, write
from tfctr.errors import NotFoundError, UnavailableError, UsageError
from tfctr.serving.versions import Latest, Specific, Traffic
from tfctr.serving.versions.routes import Routes, position, shares


@pytest.fixture
def base(tmp_path):
    for number in (1, 2, 3):
        write(tmp_path, number, str(number))
    return tmp_path


def test_labels_name_versions_and_keep_them_loaded(base):
    made = manager(base, labels={"stable": 1, "next": 9})
    made.poll()
    assert answer(made) == "3" and answer(made, label="stable") == "1"
    with pytest.raises(NotFoundError, match="label 'next' stands for version 9, which is not there"):
        made.acquire("m", label="next")
    made.set_label("m", "stable", 3)
    made.poll()
    assert answer(made, label="stable") == "3" and states(made)[1] == "END"
    assert made.status("m")[0].labels == {"stable": 3, "next": 9}
    with pytest.raises(UnavailableError, match="version 1 is not available"):
        made.set_label("m", "stable", 1)
    made.set_label("m", "next", None)
    with pytest.raises(NotFoundError, match="no label 'next'; there is: stable"):
        made.acquire("m", label="next")
    with pytest.raises(NotFoundError):
        made.set_label("m", "next", None)
    for wrong in ("", "7"):
        with pytest.raises(UsageError, match="is no label"):
            made.set_label("m", wrong, 3)


def test_a_traffic_split_is_sticky_and_keeps_its_shares(base):
    made = manager(base, policy=Latest(1), labels={"canary": 2}, traffic=Traffic("user", {"canary": 1, "3": 3}))
    made.poll()

    def version(user):
        fields = []
        got = answer(made, route=lambda field: fields.append(field) or user)
        assert fields == ["user"]
        return got

    first = [version(user) for user in range(2000)]
    assert first == [version(user) for user in range(2000)]
    assert 0.21 < first.count("2") / len(first) < 0.29 and set(first) == {"2", "3"}
    assert answer(made) == answer(made, route=lambda field: None) == "3"  # without the field: the default
    assert answer(made, version=3, route=lambda field: 0) == "3"  # who names a version gets it


@given(st.integers(0, 2**64 - 1), st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_share_that_grows_keeps_what_it_had(value, small, more):
    slots = {1: None, 2: None}

    def of(weight):
        return shares(Traffic("f", {"1": weight, "2": 2.5 - weight}), {}, slots)

    before = Routes(shares=of(small), default=2, field="f").pick(lambda _: value)
    after = Routes(shares=of(small + more), default=2, field="f").pick(lambda _: value)
    assert before != 1 or after == 1


def test_shares_of_versions_that_are_not_loaded_go_to_the_default(base):
    made = manager(base, policy=Specific((3,)), traffic=Traffic("user", {"9": 1, "3": 1}))
    made.poll()
    assert {answer(made, route=lambda _, user=user: user) for user in range(100)} == {"3"}
    one = shares(Traffic("f", {"1": 1, "2": 1, "3": 2}), {}, {1: None, 3: None})
    assert one == ((0.25, 1), (0.5, -1), (1.0, 3))
    routes = Routes(shares=one, default=7, field="f")
    assert {routes.pick(lambda _, v=v: v) for v in range(50)} == {1, 7, 3}


def test_positions_are_spread_evenly():
    places = np.array([position(value) for value in range(10000)])
    assert places.min() >= 0 and places.max() < 1
    counts, _ = np.histogram(places, 10, (0, 1))
    assert counts.min() > 850 and counts.max() < 1150


@pytest.mark.parametrize(
    ("field", "weights"), [("", {"a": 1}), ("f", {}), ("f", {"a": 0}), ("f", {"a": -1}), ("f", {"a": float("nan")})]
)
def test_wrong_splits(field, weights):
    with pytest.raises(UsageError, match="traffic"):
        Traffic(field, weights)
