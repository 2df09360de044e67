"""A version that `tfctr apply-delta` writes beside the one that serves is taken as any other."""

import shutil

import numpy as np

import tfctr
from tests.bundle.deltas import delta_models as models
from tests.serving.versions.fakes import FakeClock, errors
from tfctr.serving.versions import ModelManager, ModelSpec


def check(made, number, expected):
    """The version that answers, and its rows."""
    given = models.inputs(number)
    with made.acquire("m") as lease:
        assert lease.version.number == number
        outputs, _ = lease.version.signature("serving_default").predict(given)
    default = np.full(models.DIM, models.DEFAULT, np.float32)
    for name, key, rows in (("items", "item", expected.rows["items"]), ("users", "user", expected.rows["users"])):
        np.testing.assert_array_equal(outputs[name], np.stack([rows.get(int(k), default) for k in given[key]]))


def test_a_delta_becomes_the_next_version(base, tmp_path):
    shutil.copytree(base.bundle, tmp_path / "1")
    with ModelManager([ModelSpec(name="m", base_path=tmp_path)], FakeClock(), start=False) as made:
        made.poll()
        check(made, 1, base.expected[0])
        for number, delta in enumerate(base.deltas, 2):
            tfctr.apply_delta(tmp_path / str(number - 1), [delta], tmp_path / str(number))
            made.poll()
            assert errors(made) == {}
            check(made, number, base.expected[number - 1])
        assert {number for _, number in made.loaded()} == {4}
    linked = [path for path in (tmp_path / "4/assets/tfctr").iterdir() if path.stat().st_nlink == 4]
    assert linked, "the tables of version 1, not copies"
