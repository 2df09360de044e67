"""Refitting an open engine over fakes: what is exchanged, what the probe finds, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.fake_tensorrt import make_plan
from tests.engines.test_tensorrt_engine import Rig
from tfctr.engines.tensorrt_refit import Probe, RefitError, refit

rng = np.random.default_rng(3)
WEIGHTS = {"w": rng.normal(size=(3, 2)).astype(np.float32), "b": np.array([5.0, -2.0], np.float32)}


def probe(width=3):
    x = rng.normal(size=(20, width)).astype(np.float32)
    return Probe({"x": x}, {"y": np.maximum(x @ WEIGHTS["w"] + WEIGHTS["b"], 0)})


def test_a_refit_exchanges_weights_and_gives_the_plan():
    rig = Rig(make_plan(rng, refittable=True))
    rig.check(20)
    new = refit(rig.engine, WEIGHTS, probe())
    again = Rig(new)
    x = rng.normal(size=(5, 3)).astype(np.float32)
    want = np.maximum(x @ WEIGHTS["w"] + WEIGHTS["b"], 0)
    np.testing.assert_allclose(again.engine.compute({"x": x})["y"], want, rtol=1e-6)
    np.testing.assert_allclose(rig.engine.compute({"x": x})["y"], want, rtol=1e-6)


def test_a_bias_that_a_refit_drops_is_found_by_the_probe():
    rig = Rig(make_plan(rng, refittable=True, loses=["b"]))
    with pytest.raises(
        RefitError, match="output 'y' differs by .* from the referee on the probe batch, allowed is 0.005"
    ):
        refit(rig.engine, WEIGHTS, probe())


@pytest.mark.parametrize(
    ("plan", "weights", "message"),
    [
        ({"refittable": False}, WEIGHTS, "was not built to be refitted"),
        ({}, {"w": WEIGHTS["w"]}, "the plan has weights that are not given: b"),
        ({}, {**WEIGHTS, "c": WEIGHTS["b"]}, "weights given that the plan does not exchange: c"),
        ({}, {**WEIGHTS, "b": np.zeros(3, np.float32)}, "weight 'b' has 3 numbers, the plan 2"),
        ({}, {**WEIGHTS, "b": np.array([np.nan, 0], np.float32)}, "weight 'b' is not finite"),
        ({"together": ["w", "b", "scale"]}, WEIGHTS, "TensorRT wants more weights: scale"),
        ({"fails": "refit"}, WEIGHTS, "does not refit the plan: error: Error Code 1: Myelin"),
    ],
)
def test_a_refit_that_can_not_be_is_refused(plan, weights, message):
    rig = Rig(make_plan(rng, **{"refittable": True, **plan}))
    with pytest.raises(RefitError, match=message):
        refit(rig.engine, weights, probe())
