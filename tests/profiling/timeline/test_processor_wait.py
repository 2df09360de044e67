"""What the kernel tells about threads that waited for a processor."""

from __future__ import annotations

from tfctr.profiling.timeline import processor_wait
from tfctr.profiling.timeline.processor_wait import ProcessorWait, waited_ns


def test_the_waits_of_all_threads_are_summed(tmp_path) -> None:
    assert waited_ns(tmp_path) is None
    for thread, text in (("11", "900 40 3\n"), ("12", "100 2 1\n"), ("13", "")):  # 13 ends while it is read
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    assert waited_ns(tmp_path) == 42


def test_waits_are_threads_on_average(monkeypatch) -> None:
    waits, clock = iter([10, 310]), iter([1_000, 2_000])
    monkeypatch.setattr(processor_wait, "waited_ns", lambda: next(waits))
    monkeypatch.setattr(processor_wait.time, "perf_counter_ns", lambda: next(clock))
    with ProcessorWait() as wait:
        pass
    assert wait.threads == 0.3


def test_a_system_that_tells_nothing_is_no_idle_one(monkeypatch) -> None:
    monkeypatch.setattr(processor_wait, "waited_ns", lambda: None)
    with ProcessorWait() as wait:
        pass
    assert wait.threads is None
