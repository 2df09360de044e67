"""What servers of TensorFlow models are known to do wrong over time and while they load, tried on a small model."""

import os
import threading
from pathlib import Path

import pytest
import tensorflow as tf

import tfctr
from tests.serving.test_bundle_session import Model, request_
from tests.serving.versions.fakes import FakeClock, FakeLoader, in_thread, write
from tfctr.serving import model_folder
from tfctr.serving.executors import anonymous_bytes
from tfctr.serving.versions import ModelManager, ModelSpec


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    module = Model()
    tf.saved_model.save(module, str(folder / "model"), signatures=module.serve)
    tfctr.convert(str(folder / "model"), str(folder / "bundle"))
    return folder / "bundle"


def niceness(name):
    """Of every thread of this process whose name begins so."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            text = (task / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        called, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if called.startswith(name):
            found.append(int(fields[16]))
    return found


def test_requests_leave_no_state_behind(bundle):
    """deeprec case 22 (#1018); Triton #6038: unseen ids and another shape in each request, and nothing that grows."""

    def ask(group, first, count):
        for k in range(first, first + count):
            words = [[f"unseen {k} {j}"] for j in range(1 + k % 37)]
            group.predict(request_(len(words), k) | {"words": words})

    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=2, batching=tfctr.BatchingOptions())) as group:
        ask(group, 0, 400)
        before, shared = anonymous_bytes(), group.describe()["shared"]
        ask(group, 400, 800)
        assert anonymous_bytes() < before + 8_000_000  # 10 KB of each request would be as much
        assert group.describe()["shared"] == shared
        assert group.version.describe()["queue"]["waiting"] == 0


def test_a_load_is_not_on_the_threads_that_serve(bundle, monkeypatch):
    """TF Serving #881, #910, #996, #1866: restore ran in the pool of inference. Here on a thread of its own, nicer."""
    seen = []
    real = model_folder.load_model

    def load(*arguments, **options):
        done = threading.Event()

        def watch():
            while not done.is_set():
                seen.append((max(niceness("")), niceness("tfctr_run_")))

        watching = in_thread(watch)
        try:
            return real(*arguments, **options)
        finally:
            done.set()
            watching.join()

    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=2)) as serving:
        monkeypatch.setattr("tfctr.serving.executors.load_model", load)
        with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=2)):
            serving.predict(request_(3))
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        assert max(highest for highest, _ in seen) == max(usual, 10)
        assert all(nice == [usual] * len(nice) and len(nice) >= 2 for _, nice in seen)


def test_requests_are_answered_while_another_model_loads(tmp_path):
    """TF Serving #1866: a load that does not end holds no request of another model, nor of its own."""
    loader, inside, done = FakeLoader(), [], []
    specs = [ModelSpec(name=name, base_path=tmp_path / name) for name in ("a", "b")]
    write(tmp_path / "a", 1, "a1"), write(tmp_path / "b", 1, "b1")
    made = ModelManager(specs, FakeClock(), loader=loader, start=False)
    made.poll()

    def during(number):
        inside.append(number)
        for name in ("a", "b"):
            with made.acquire(name) as lease:
                done.append(lease.version.text)

    loader.during = during
    write(tmp_path / "b", 2, "b2")
    loading = in_thread(lambda: (made.poll(), made.poll()))
    loading.join(30)
    assert not loading.is_alive() and inside == [2] and done == ["a1", "b1"]
    with made.acquire("b") as lease:
        assert lease.version.text == "b2"


def test_a_reload_is_warm(bundle, tmp_path):
    """Triton #7762, #8117, #5757, #5042; the same model loaded again has run before it answers."""
    options = tfctr.GroupOptions(executors=2)
    with ModelManager([ModelSpec(name="m", base_path=bundle, options=options)], FakeClock(), start=False) as made:
        made.poll()
        made.reload("m")
        with made.acquire("m") as lease:
            told = lease.version.describe()
        assert told["warm_up"]["executors"] == 2 and told["warm_up"]["requests"] > 0
