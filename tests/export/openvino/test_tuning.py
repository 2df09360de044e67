"""``tune`` with times that are given: what is opened, measured and chosen. Nothing here looks at a clock."""

import json

import numpy as np
import pytest

from examples.models.towers import tower_inputs
from export.openvino import Tuned, tune
from export.openvino.measure import CANDIDATES, COMPARED, feeds_of, only_rows_are_open, users_of
from export.openvino.tensorflow_runner import TensorFlowRunner
from export.tower import Tower, TowerTensor
from export.tower_session import TowerSession
from tests.export.towers import tower


class Machine:
    """A machine whose times are ``times`` (name of a contestant -> ms); remembers what was opened and run."""

    def __init__(self, times):
        self.times, self.opened, self.closed, self.rows, self.seconds = times, [], 0, [], []

    def open(self, options):
        self.opened.append(options)
        return self

    def run(self, feeds):
        self.rows.append(len(next(iter(feeds.values()))))
        return {}

    def close(self):
        self.closed += 1

    def measure(self, calls, seconds):
        self.seconds.append(seconds)
        for call in calls.values():
            call()
        return {name: self.times(name) if name.count(" ") == 1 else 0.001 for name in calls}

    def tune(self, name="dlrm", **options):
        one = tower(name) if isinstance(name, str) else name
        return tune(one, "unused.onnx", measure=self.measure, open_runner=self.open, **options)


def attention(name):
    """Milliseconds where static variants are twice as fast and TensorFlow is in between."""
    what, rows = name.split()
    return (0.5 + int(rows) * 0.05) * {"dynamic": 1.0, "static": 0.5, "openvino": 0.6, "tensorflow": 0.8}[what]


def test_measures_variants_and_then_the_choice_beside_tensorflow():
    machine = Machine(attention)
    tuned = machine.tune(seconds=3.0)
    dynamic, static, chosen = machine.opened
    assert (dynamic.buckets, static.buckets) == ((), CANDIDATES)
    assert chosen.to_json() == tuned.options
    assert tuned.buckets == chosen.buckets != ()
    assert machine.closed == 3
    assert {rows for rows in machine.rows if rows not in (2, 3)} == {*CANDIDATES, *COMPARED}
    assert sum(machine.seconds) == pytest.approx(3.0)
    assert tuned.versus_tensorflow["faster"]
    assert tuned.versus_tensorflow["geometric_mean"] == pytest.approx(0.8 / 0.6, abs=1e-3)
    assert [row["rows"] for row in tuned.timing["variants"]] == list(CANDIDATES)
    assert "static variants of" in tuned.timing["note"]


def test_a_dynamic_variant_is_measured_after_another_size():
    """Requests of equal sizes are the exception; and short runs have their weights in the cache."""
    machine = Machine(attention)
    order = []
    measure = machine.measure

    def noted(calls, seconds):
        order.extend(calls)
        return measure(calls, seconds)

    machine.measure = noted
    machine.tune()
    for rows in CANDIDATES:
        assert order[order.index(f"dynamic {rows}") - 1] == f"size before dynamic {rows}"
    assert order[order.index("static 8") - 1] == "weights of static 8"
    assert "weights of static 512" not in order


def test_json_round_trip():
    tuned = Machine(attention).tune()
    assert Tuned.from_json(json.loads(json.dumps(tuned.to_json()))) == tuned


def test_tensorflow_is_faster():
    tuned = Machine(lambda name: 1.0 if name.startswith("tensorflow") else 1.02).tune()
    assert tuned.buckets == ()
    assert not tuned.versus_tensorflow["faster"]
    assert "not clearly faster" in tuned.versus_tensorflow["reason"]
    assert tuned.timing["note"].startswith("one dynamic variant")


def test_slower_at_one_size_is_enough():
    times = {"tensorflow 32": 1.4, "tensorflow 256": 1.4, "openvino 512": 1.1}
    tuned = Machine(lambda name: times.get(name, 1.0)).tune()
    assert tuned.versus_tensorflow["geometric_mean"] > 1.2
    assert not tuned.versus_tensorflow["faster"]
    assert "slower at 512 rows" in tuned.versus_tensorflow["reason"]


def test_variants_that_are_given():
    machine = Machine(attention)
    tuned = machine.tune(buckets=[256, 32, 32])
    assert tuned.buckets == (32, 256)
    assert len(machine.opened) == 1
    assert machine.opened[0].pad == {}
    assert tuned.timing["note"] == "variants were given"


def of_shapes(*shapes, side="item"):
    inputs = tuple(
        TowerTensor(name=f"x{k}", tensor=f"x{k}:0", source="", dtype="float32", shape=shape, side=side)
        for k, shape in enumerate(shapes)
    )
    return Tower(signature="s", graph_def=tower("dlrm").graph_def, inputs=inputs, outputs=())


def test_what_static_variants_need():
    assert only_rows_are_open(of_shapes((None, 4), (None, 3, 2)))
    assert not only_rows_are_open(of_shapes((None, 4), (None, None, 2)))
    assert not only_rows_are_open(of_shapes(()))


def test_users_of_a_split_form():
    split = of_shapes((None, 4), side="user")
    assert (users_of(split), users_of(of_shapes((None, 4)))) == (1, 0)
    assert {name: array.shape for name, array in feeds_of(split, 7).items()} == {"x0": (1, 4)}


def test_open_inner_sizes_get_no_static_variant(monkeypatch):
    machine = Machine(attention)
    open_tower = of_shapes((None, None, 8))
    monkeypatch.setattr("export.openvino.measure.TensorFlowRunner", lambda *_: _Reference(machine))
    tuned = machine.tune(open_tower)
    assert tuned.buckets == ()
    assert "other than the rows are open" in tuned.timing["note"]
    assert len(machine.opened) == 1


def test_a_tower_that_is_too_large_gets_no_static_variant(monkeypatch):
    machine = Machine(attention)
    monkeypatch.setattr("export.openvino.choose.MOST_BYTES", 2**20)
    tuned = machine.tune("dlrm")
    assert tuned.buckets == ()
    assert "MB of weights are too much" in tuned.timing["note"]
    assert len(machine.opened) == 1


class _Reference:
    def __init__(self, machine):
        self._machine = machine

    def __enter__(self):
        return self._machine

    def __exit__(self, *error):
        pass


@pytest.mark.parametrize("name", ["din", "mmoe"])
def test_the_reference_is_the_tower(name):
    """Several inputs, a bool one, several outputs: as a session of TensorFlow has it."""
    feeds = tower_inputs(name, 9, seed=3)
    with TensorFlowRunner(tower(name)) as runner, TowerSession(tower(name)) as session:
        got, want = runner.run(feeds), session.run(feeds)
    assert set(got) == set(want)
    for output, value in want.items():
        np.testing.assert_allclose(got[output], value, rtol=1e-5, atol=1e-6)
