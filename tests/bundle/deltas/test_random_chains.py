"""Random chains of deltas over few keys, one by one or several at once, compacted in between: a dictionary of rows is
what comes out, on disk and in memory.
"""

import shutil
import tempfile
from pathlib import Path

import hypothesis
import numpy as np
from hypothesis import strategies as st

import tfctr
from tests.bundle.deltas import delta_models as models

POOL = [int(key) for key in models.KEYS[:4]] + [-(2**63), 2**63 - 1, 0, -1, 17, 2**40]
STEP = st.fixed_dictionaries(
    {
        "items": st.sets(st.integers(0, models.ITEMS - 1), max_size=3),
        "given": st.sets(st.sampled_from(POOL), max_size=4),
        "removed": st.sets(st.sampled_from(POOL), max_size=4),
        "cut": st.booleans(),  # the deltas so far become a version
        "compact": st.booleans(),
    }
)


@hypothesis.given(st.lists(STEP, min_size=1, max_size=5), st.integers(0, 2**32))
@hypothesis.settings(
    max_examples=12, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_any_chain(base, steps, seed):
    random = np.random.default_rng(seed)

    def rows(keys):
        return {key: random.normal(size=models.DIM).astype(np.float32) for key in sorted(keys)}

    folder = Path(tempfile.mkdtemp())
    try:
        expected, served, waiting = base.expected[0], base.bundle, []
        with tfctr.ServingSession(base.bundle) as session:
            for number, step in enumerate(steps):
                changes = {
                    "items": (rows(step["items"]), []),
                    "users": (rows(step["given"]), sorted(step["removed"] - step["given"])),
                }
                expected = expected.after(changes)
                delta = models.write_delta(folder / f"d{number}", base.bundle, session.version, changes)
                session.apply_deltas(delta.path)
                waiting.append(delta.path)
                if step["cut"] or number == len(steps) - 1:
                    served = tfctr.apply_delta(served, waiting, folder / f"v{number}").path
                    waiting = []
                if step["compact"] and not waiting:
                    served = tfctr.compact(served, folder / f"c{number}").path
            expected.check(served)
            with tfctr.ServingSession(served) as other:
                assert other.version.hash == session.version.hash
                given = models.inputs(2) | {"user": np.array([*POOL, 5, 6, 7, 8, 9, 10], np.int64)}
                one, two = session.predict(given), other.predict(given)
                for name in one:
                    np.testing.assert_array_equal(one[name], two[name])
    finally:
        shutil.rmtree(folder)
