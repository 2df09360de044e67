"""What an operator asks for happens, or is refused with the reason; labels never point at what was unloaded."""

import pytest

from tests.serving.versions.fakes import FakeLoader, answer, errors, manager, states, write
from tfctr.errors import NotFoundError, TfctrError, UnavailableError
from tfctr.serving.server.tfs_metadata import version_status
from tfctr.serving.versions import Specific, Traffic


@pytest.fixture
def base(tmp_path):
    for number in (1, 2, 3):
        write(tmp_path, number, str(number))
    return tmp_path


def pinned(made):
    return {one.number for one in made.status("m")[0].versions if one.pinned}


@pytest.mark.parametrize("change", ["load", "reload"])
def test_a_version_that_the_policy_does_not_want_is_loaded_and_stays(base, change):
    made = manager(base)
    made.poll()
    getattr(made, change)("m", 1)
    assert answer(made, version=1) == "1" and answer(made) == "3" and pinned(made) == {1}
    made.poll(), made.poll()
    assert states(made)[1] == "AVAILABLE"
    made.unload("m", 1)
    made.poll()
    assert states(made)[1] == "END" and pinned(made) == set()


def test_a_reload_of_what_the_policy_wants_does_not_pin_it(base):
    loader = FakeLoader()
    made = manager(base, loader)
    made.poll()
    made.reload("m", 3)
    assert loader.tried == [3, 3] and pinned(made) == set()
    write(base, 4, "4")
    made.poll(), made.poll()
    assert states(made)[3] == "END"


def test_a_reload_of_one_version_leaves_the_others_as_they_were_set(base):
    made = manager(base)
    made.poll()
    made.rollback("m")
    made.reload("m", 2)
    made.poll()
    assert answer(made) == "2" and states(made)[3] == "END"
    made.reload("m")
    assert answer(made) == "3"


def test_a_reload_that_fails_says_so(base):
    write(base, 1, "broken")
    made = manager(base)
    made.poll()
    with pytest.raises(TfctrError, match="version 1 was not loaded: .*is broken"):
        made.reload("m", 1)
    assert answer(made) == "3" and "is broken" in errors(made)[1]


def test_a_policy_that_wants_nothing_of_what_is_there(base):
    made = manager(base, policy=Specific((8, 9)))
    made.poll()
    for change in (made.load, made.reload):
        with pytest.raises(NotFoundError, match=r"nothing was loaded: .* holds no version 8, 9, .*; there is: 1, 2, 3"):
            change("m")
    with pytest.raises(UnavailableError, match="holds no version 8, 9"):
        made.acquire("m")
    made.load("m", 2)
    assert answer(made) == "2"


def test_labels_go_with_an_unloaded_version_and_come_back_with_it(base):
    made = manager(base, labels={"stable": 1, "canary": 3})
    made.poll()
    told = made.unload("m", 1)
    assert told.labels == {"canary": 3} and told.labels_unloaded == {"stable": 1}
    with pytest.raises(UnavailableError, match="label 'stable' stands for version 1, which was unloaded by hand"):
        made.acquire("m", label="stable")
    with pytest.raises(UnavailableError, match="label 'stable' stands for version 1, which was unloaded by hand"):
        version_status(made, "m", None, "stable")
    made.poll()
    assert states(made)[1] == "END"
    told = made.load("m", 1)
    assert told.labels == {"canary": 3, "stable": 1} and told.labels_unloaded == {}
    assert answer(made, label="stable") == "1"
    made.unload("m")
    assert made.status("m")[0].labels == {}
    assert made.load("m").labels == {"canary": 3, "stable": 1} and answer(made, label="stable") == "1"


def test_a_label_that_is_set_anew_does_not_come_back(base):
    made = manager(base, labels={"stable": 1})
    made.poll()
    made.unload("m", 1)
    assert made.set_label("m", "stable", 3).labels_unloaded == {}
    assert made.load("m", 1).labels == {"stable": 3}
    made.unload("m", 3)
    assert made.set_label("m", "stable", None).labels_unloaded == {}
    with pytest.raises(NotFoundError, match="no label 'stable'"):
        made.acquire("m", label="stable")


def test_labels_of_what_was_rolled_back_from(base):
    made = manager(base, labels={"canary": 3, "stable": 2})
    made.poll()
    told = made.rollback("m")
    assert told.default == 2 and told.labels == {"stable": 2} and told.labels_unloaded == {"canary": 3}
    with pytest.raises(UnavailableError, match="label 'canary' stands for version 3"):
        made.acquire("m", label="canary")
    assert made.load("m").labels == {"canary": 3, "stable": 2} and answer(made, label="canary") == "3"


def test_the_traffic_of_an_unloaded_label_goes_to_the_default(base):
    made = manager(base, labels={"canary": 1}, traffic=Traffic("user", {"canary": 1, "3": 1}))
    made.poll()
    assert {answer(made, route=lambda _, k=k: k) for k in range(50)} == {"1", "3"}
    made.unload("m", 1)
    assert {answer(made, route=lambda _, k=k: k) for k in range(50)} == {"3"}


def test_a_label_that_stands_for_nothing_is_named_in_the_error(base):
    write(base, 2, "broken")
    made = manager(base, labels={"next": 9, "bad": 2})
    made.poll()
    with pytest.raises(NotFoundError, match="label 'next' stands for version 9, which is not there; there is: 3"):
        made.acquire("m", label="next")
    with pytest.raises(
        UnavailableError, match=r"label 'bad' stands for version 2, which is not available \(END: .*broken"
    ):
        made.acquire("m", label="bad")
