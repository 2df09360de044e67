"""The towers that engines are made from in tests and benchmarks."""

import numpy as np
import pytest

from examples.models.towers import LOGIT_STD, dense_tower
from export.tower_session import TowerSession
from tests.export.towers import TOWERS, tower, tower_inputs


@pytest.mark.parametrize("name", TOWERS)
def test_outputs_spread(name):
    feeds = tower_inputs(name, rows=1000, seed=5)
    with TowerSession(tower(name)) as session:
        outputs = session.run(feeds)
        one_row = session.run({field: array[:1] for field, array in feeds.items()})
    assert list(outputs) == [one.name for one in tower(name).outputs]
    for output, values in outputs.items():
        assert values.shape == (1000, 1) and values.dtype == np.float32
        assert np.std(np.log(values / (1 - values))) == pytest.approx(LOGIT_STD, rel=0.15)
        np.testing.assert_allclose(one_row[output], values[:1], atol=1e-5)


def test_seeds_decide_weights():
    """Node names may differ from call to call; numbers may not."""
    feeds = tower_inputs("mmoe", rows=8)
    found = []
    for seed in (0, 0, 1):
        with TowerSession(dense_tower("mmoe", seed)) as session:
            found.append(session.run(feeds)["click"])
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 0.01


def test_graph_as_it_is():
    """Without grappler the numbers are the same within rounding."""
    feeds = tower_inputs("trf", rows=16)
    with TowerSession(tower("trf")) as served, TowerSession(tower("trf"), optimise=False) as plain:
        np.testing.assert_allclose(served.run(feeds)["click"], plain.run(feeds)["click"], atol=1e-5)
        (nodes,) = plain.fetch([tower("trf").outputs[0].tensor], feeds)
    assert nodes.shape == (16, 1)
