"""Versions on disk and versions that answer: what is loaded, refused, exchanged, drained and taken back."""

import shutil
import threading
import time

import pytest

from tests.serving.versions.fakes import FakeClock, FakeLoader, answer, errors, in_thread, manager, states, write
from tfctr.errors import NotFoundError, TfctrError, UnavailableError, UsageError
from tfctr.serving.versions import All, Latest, ModelManager, ModelSpec, Specific


def test_the_highest_version_is_served_and_followed(tmp_path):
    loader, clock = FakeLoader(), FakeClock(50.0)
    write(tmp_path, 1, "one"), write(tmp_path, 2, "two")
    made = manager(tmp_path, loader, clock)
    assert not made.ready()
    with pytest.raises(UnavailableError, match="was not looked at yet"):
        made.acquire("m")
    made.poll()
    assert made.ready() and answer(made) == "two" and states(made) == {1: "START", 2: "AVAILABLE"}
    assert made.status("m")[0].versions[1].loaded_at == 50.0
    write(tmp_path, 10, "ten")
    made.poll()
    assert answer(made) == "two"  # its folder may still be written to
    made.poll()
    assert answer(made) == "ten" and states(made)[2] == "END"
    assert loader.made[0].closed and not loader.made[1].closed


def test_loads_before_it_unloads(tmp_path):
    """Triton #2076: a poll that unloads first loses requests."""
    loader = FakeLoader()
    write(tmp_path, 1, "one")
    made = manager(tmp_path, loader)
    made.poll()
    seen = []
    loader.during = lambda number: seen.append((number, answer(made), loader.made[0].closed))
    write(tmp_path, 2, "two")
    made.poll(), made.poll()
    assert seen == [(2, "one", False)] and answer(made) == "two"


@pytest.mark.parametrize(
    ("policy", "loaded", "default"),
    [(Latest(2), {2, 3}, "3"), (All(), {1, 2, 3}, "3"), (Specific((1, 2)), {1, 2}, "2"), (Specific((2, 9)), {2}, "2")],
)
def test_policies(tmp_path, policy, loaded, default):
    for number in (1, 2, 3):
        write(tmp_path, number, str(number))
    made = manager(tmp_path, policy=policy)
    made.poll()
    assert {n for _, n in made.loaded()} == loaded and answer(made) == default
    assert answer(made, version=2) == "2"


def test_a_path_without_version_folder_is_version_1(tmp_path):
    write(tmp_path, None, "only")
    made = manager(tmp_path)
    made.poll()
    assert answer(made) == answer(made, version=1) == "only"


def test_a_broken_version_is_refused_with_its_reason_and_tried_again_when_it_changes(tmp_path):
    """deeprec case 26: an invalid model is picked up in the middle of an update."""
    loader = FakeLoader()
    write(tmp_path, 1, "one")
    made = manager(tmp_path, loader)
    made.poll()
    write(tmp_path, 2, "broken")
    for _ in range(5):
        made.poll()
    assert answer(made) == "one" and states(made) == {1: "AVAILABLE", 2: "END"}
    assert "is broken" in errors(made)[2] and loader.tried == [1, 2]  # once
    assert made.load_failures() == {"m": 1}
    with pytest.raises(UnavailableError, match=r"version 2 is not available \(END: .*is broken"):
        made.acquire("m", 2)
    write(tmp_path, 2, "two, whole")
    made.poll()
    assert answer(made) == "one"  # changed, but perhaps not for the last time
    made.poll()
    assert answer(made) == "two, whole" and errors(made) == {}


def test_a_broken_version_at_the_start_leaves_the_one_before(tmp_path):
    write(tmp_path, 1, "one"), write(tmp_path, 2, "broken"), (tmp_path / "3").mkdir()
    made = manager(tmp_path)
    made.poll()
    assert answer(made) == "one" and set(errors(made)) == {2, 3} and "no saved_model.pb" in errors(made)[3]


def test_a_version_that_grows_is_not_loaded_before_it_is_whole(tmp_path):
    loader = FakeLoader()
    write(tmp_path, 1, "one")
    made = manager(tmp_path, loader)
    made.poll()
    for size in range(1, 5):
        write(tmp_path, 2, "x" * size)
        made.poll()
    assert loader.tried == [1]
    made.poll()
    assert answer(made) == "xxxx" and loader.tried == [1, 2]


def test_a_folder_that_changes_while_it_is_loaded_is_refused(tmp_path):
    """Half of one model and half of another would answer."""
    loader = FakeLoader()
    write(tmp_path, 1, "one"), write(tmp_path, 2, "two")
    loader.during = lambda number: write(tmp_path, 2, "two, second half") if number == 2 else None
    made = manager(tmp_path, loader)
    made.poll()
    assert answer(made) == "one" and "was written to while it was loaded" in errors(made)[2]
    assert loader.made[0].text == "two" and loader.made[0].closed
    loader.during = None
    made.poll(), made.poll()
    assert answer(made) == "two, second half"


def test_a_version_that_is_replaced_in_place(tmp_path):
    write(tmp_path, None, "first")
    loader = FakeLoader()
    made = manager(tmp_path, loader)
    made.poll()
    write(tmp_path, None, "broken in place")
    made.poll(), made.poll(), made.poll()
    assert answer(made) == "first" and states(made) == {1: "AVAILABLE"} and "broken in place" in errors(made)[1]
    assert loader.tried == [1, 1]
    write(tmp_path, None, "second")
    made.poll(), made.poll()
    assert answer(made) == "second" and errors(made) == {} and loader.made[0].closed


def test_a_folder_that_vanishes_leaves_what_serves(tmp_path):
    base = tmp_path / "models"
    write(base, 1, "one")
    made = manager(base)
    made.poll()
    shutil.rmtree(base)
    made.poll()
    assert answer(made) == "one" and "can't be read" in made.status("m")[0].error
    base.mkdir()
    made.poll()
    assert answer(made) == "one" and "holds no version" in made.status("m")[0].error
    write(base, 2, "two")
    made.poll(), made.poll()
    assert answer(made) == "two" and made.status("m")[0].error == ""


def test_an_old_version_is_unloaded_when_its_last_request_is_done(tmp_path):
    loader = FakeLoader()
    write(tmp_path, 1, "one")
    made = ModelManager(
        [ModelSpec(name="m", base_path=tmp_path, drain_seconds=60)], FakeClock(), loader=loader, start=False
    )
    made.poll()
    lease = made.acquire("m")
    write(tmp_path, 2, "two")
    made.poll()
    swap = in_thread(made.poll)
    while states(made)[1] != "UNLOADING":
        swap.join(0.01)
    assert answer(made) == "two" and not loader.made[0].closed and lease.version.text == "one"
    lease.release()
    swap.join()
    assert loader.made[0].closed and loader.made[0].drained == 60 and states(made)[1] == "END"
    lease.release()  # nothing happens
    assert answer(made) == "two"


def test_a_request_that_never_ends_is_given_up(tmp_path):
    loader = FakeLoader()
    write(tmp_path, 1, "one")
    made = manager(tmp_path, loader)
    made.poll()
    lease = made.acquire("m")
    assert not made.close(0.01)
    assert loader.made[0].drained == 0.0
    lease.release()
    with pytest.raises(UnavailableError):
        made.acquire("m")
    with pytest.raises(UnavailableError, match="going down"):
        made.load("m")


def test_unload_and_load_by_hand(tmp_path):
    write(tmp_path, 1, "one"), write(tmp_path, 2, "two")
    made = manager(tmp_path)
    made.poll()
    made.load("m", 1)
    assert answer(made, version=1) == "one" and answer(made) == "two"
    made.poll()
    assert answer(made, version=1) == "one"  # stays, beside what the policy wants
    made.unload("m")
    made.poll(), made.poll()
    assert not made.ready() and states(made) == {1: "END", 2: "END"}
    with pytest.raises(UnavailableError, match="'m' is not available"):
        made.acquire("m")
    made.load("m")
    assert answer(made) == "two"
    with pytest.raises(NotFoundError, match="no version 7 in .*; there is: 1, 2"):
        made.load("m", 7)
    with pytest.raises(UnavailableError, match="version 1 is not available"):
        made.unload("m", 1)
    write(tmp_path, 3, "broken")
    with pytest.raises(TfctrError, match="version 3 was not loaded: .*is broken"):
        made.load("m")
    assert answer(made) == "two"


def test_reload_makes_it_anew(tmp_path):
    loader = FakeLoader()
    write(tmp_path, 1, "one")
    made = manager(tmp_path, loader)
    made.poll()
    made.reload("m")
    assert loader.tried == [1, 1] and loader.made[0].closed and not loader.made[1].closed
    write(tmp_path, 1, "broken")
    with pytest.raises(TfctrError, match="is broken"):
        made.reload("m")
    assert answer(made) == "one" and not loader.made[1].closed


def test_rollback(tmp_path):
    loader = FakeLoader()
    for number in (1, 2, 3):
        write(tmp_path, number, str(number))
    made = manager(tmp_path, loader)
    made.poll()
    made.rollback("m")
    made.poll(), made.poll()
    assert answer(made) == "2" and states(made)[3] == "END"
    made.rollback("m", 1)
    made.poll()
    assert answer(made) == "1"
    with pytest.raises(NotFoundError, match="no version before 1"):
        made.rollback("m")
    write(tmp_path, 4, "4")
    made.poll(), made.poll()
    assert answer(made) == "4"  # new: nobody has rolled back from it
    made.rollback("m", 3)
    assert answer(made) == "3"
    made.load("m")
    assert answer(made) == "4"


def test_a_rollback_to_a_loaded_version_exchanges_a_pointer(tmp_path):
    loader = FakeLoader()
    write(tmp_path, 1, "one"), write(tmp_path, 2, "two")
    made = manager(tmp_path, loader, policy=Latest(2))
    made.poll()
    made.rollback("m")
    assert answer(made) == "one" and sorted(loader.tried) == [1, 2]


def test_a_rollback_goes_to_what_served_not_to_a_number_that_never_did(tmp_path):
    write(tmp_path, 1, "one"), write(tmp_path, 3, "three")
    made = manager(tmp_path)
    made.poll()
    write(tmp_path, 4, "broken, and overtaken before it was tried"), write(tmp_path, 5, "five")
    made.poll(), made.poll()
    assert answer(made) == "five" and states(made)[4] == "START"
    made.rollback("m")
    assert answer(made) == "three"
    made.rollback("m")  # none below served: the next lower number
    assert answer(made) == "one"


@pytest.mark.parametrize("step", [-5 * 365 * 86400.0, 86400.0])
def test_a_clock_that_steps_changes_what_is_told_and_nothing_else(tmp_path, step):
    """The time of day jumps, back by years or forward by a day, while a version serves, and again before a rollback."""
    loader, clock = FakeLoader(), FakeClock(1e9)
    write(tmp_path, 1, "one")
    made = manager(tmp_path, loader, clock)
    made.poll()
    clock.now += step
    made.poll(), made.poll()
    assert answer(made) == "one" and loader.tried == [1] and not loader.made[0].closed
    write(tmp_path, 2, "two")
    made.poll(), made.poll()
    assert answer(made) == "two" and states(made)[1] == "END"
    assert made.status("m")[0].versions[1].loaded_at == 1e9 + step
    clock.now -= 2 * step
    made.rollback("m")
    made.poll(), made.poll()
    assert answer(made) == "one" and loader.tried == [1, 2, 1]


def test_a_rollback_that_fails_changes_nothing(tmp_path):
    write(tmp_path, 1, "one"), write(tmp_path, 2, "two")
    made = manager(tmp_path)
    made.poll()
    write(tmp_path, 1, "broken")
    with pytest.raises(TfctrError, match="version 1 was not loaded"):
        made.rollback("m", 1)
    made.poll()
    assert answer(made) == "two" and states(made) == {1: "END", 2: "AVAILABLE"}


def test_names_that_are_not_there(tmp_path):
    write(tmp_path, 1, "one")
    made = manager(tmp_path)
    made.poll()
    for call in (made.acquire, made.status, made.load, made.unload, made.reload, made.rollback):
        with pytest.raises(NotFoundError, match="no model 'x' is served here; there is: m"):
            call("x")
    with pytest.raises(NotFoundError, match="no version 9; there is: 1"):
        made.acquire("m", 9)
    with pytest.raises(NotFoundError, match="no label 'canary'; there is: none"):
        made.acquire("m", label="canary")


def test_options_that_are_wrong(tmp_path):
    spec = ModelSpec(name="m", base_path=tmp_path)
    with pytest.raises(UsageError, match="twice"):
        ModelManager([spec, spec], start=False)
    for wrong in (
        lambda: ModelSpec(name="", base_path=tmp_path),
        lambda: ModelSpec(name="m", base_path=tmp_path, poll_seconds=-1),
        lambda: ModelSpec(name="m", base_path=tmp_path, labels={"5": 5}),
        lambda: Latest(0),
        lambda: Specific(()),
    ):
        with pytest.raises(UsageError):
            wrong()


def test_temporary_and_foreign_names_are_no_versions(tmp_path):
    write(tmp_path, 1, "one")
    for name in (".2.tfctr-tmp-17", "3.tmp", "-4", "latest", "\u0665"):
        write(tmp_path, name, "no")
    (tmp_path / "6").write_text("a file")
    made = manager(tmp_path)
    made.poll(), made.poll()
    assert states(made) == {1: "AVAILABLE"}


def test_many_threads_while_versions_change(tmp_path):
    """deeprec case 20: no request fails, and each has one whole version, however they meet the exchange."""
    write(tmp_path, 1, "1")
    made = manager(tmp_path)
    made.poll()
    stop, failed, done = threading.Event(), [], [0] * 4

    def ask(k):
        while not stop.is_set():
            try:
                with made.acquire("m") as lease:
                    assert lease.version.text == str(lease.version.number)
                    done[k] += 1
            except Exception as error:
                failed.append(error)

    threads = [in_thread(lambda k=k: ask(k)) for k in range(4)]
    while min(done) == 0 and not failed:  # a thread may get its first turn late
        time.sleep(0.001)
    for number in range(2, 40):
        write(tmp_path, number, str(number))
        made.load("m")
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == [] and answer(made) == "39"


def test_the_thread_follows_the_folder(tmp_path):
    class Clock(FakeClock):
        def wait(self, event, seconds):
            waited.append(seconds)
            return event.wait(0.001)

    waited = []
    write(tmp_path, 1, "one")
    spec = ModelSpec(name="m", base_path=tmp_path, poll_seconds=7)
    with ModelManager([spec], Clock(), loader=FakeLoader()) as made:
        assert made.wait(120) and answer(made) == "one"
        write(tmp_path, 2, "two")
        while answer(made) == "one":
            pass
    assert set(waited) == {7}
