"""What a load does so that other threads of the process run meanwhile."""

import sys
import threading

from tfctr.bundle import sample_inputs
from tfctr.serving import turns


class Clock:
    def __init__(self):
        self.now, self.naps = 100.0, 0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.naps += 1


def test_a_turn_is_given_after_each_half_millisecond(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(turns, "time", clock)
    monkeypatch.setattr(turns, "_mine", threading.local())
    turns.give()
    assert clock.naps == 1
    for _ in range(100):
        clock.now += 0.0001
        turns.give()
    assert 15 <= clock.naps <= 21


def test_loads_change_threads_often_and_put_it_back():
    before = sys.getswitchinterval()
    with turns.short_switches(), turns.short_switches():
        assert sys.getswitchinterval() <= 0.0005001
    assert sys.getswitchinterval() == before


def test_turns_are_given_between_the_inputs_of_a_generated_request():
    inputs = [{"name": f"x{k}", "dtype": "int64", "shape": [-1]} for k in range(5)]
    given = []
    made = sample_inputs.generate({"inputs": inputs, "features": []}, 3, between=lambda: given.append(1))
    assert len(made) == len(given) == 5
