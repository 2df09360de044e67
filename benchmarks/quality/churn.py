"""Clicks of a catalogue that churns, with the true click probability of every example.

Time runs in ``WINDOWS`` equal windows. In each a cohort of items is born that lives ``LIFE`` windows; examples of a
window show items of the cohorts alive, popular ones more often. Every example also has a tag: with probability
``ONE_OFF`` an id that occurs once and has no effect, else one of a few publishers, which has one. Users stay. A third
of the test set (the last window) are items born in it: even a model that learnt all stays below the truth's AUC.

    logit = bias + user + item + publisher + user vector . item vector
"""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.embedding_keys import keys_of

EXAMPLES, WINDOWS, LIFE, ONE_OFF, TEST_SHARE = 600_000, 20, 3, 0.3, 0.05
USERS, COHORT, PUBLISHERS, FACTORS = 2_000, 150, 200, 4
FEATURES = ("user", "item", "tag")


@dataclasses.dataclass(frozen=True)
class Clicks:
    """Examples in order of time; ids are int64 [examples, features], the last ``test`` of them are the test set."""

    ids: np.ndarray
    labels: np.ndarray  # float32 [examples]
    probabilities: np.ndarray  # float64 [examples]: the truth; NaN where it is not known
    test: int

    @property
    def train(self) -> int:
        """Number of training examples."""
        return len(self.labels) - self.test


def generate(seed: int, examples: int = EXAMPLES) -> Clicks:
    """Equal seeds give equal data."""
    rng = np.random.default_rng(seed)
    window = np.arange(examples) * WINDOWS // examples
    cohorts = WINDOWS + LIFE - 1  # those born before the first window live into it
    item_effect, user_effect = rng.normal(0, 1.0, cohorts * COHORT), rng.normal(0, 0.8, USERS)
    publisher_effect = rng.normal(0, 0.5, PUBLISHERS)
    taste, kind = (rng.normal(0, 0.35, (n, FACTORS)) for n in (USERS, cohorts * COHORT))
    user = rng.integers(0, USERS, examples)
    popularity = np.arange(1, COHORT + 1) ** -0.7
    within = rng.choice(COHORT, examples, p=popularity / popularity.sum())
    item = (window + rng.integers(0, LIFE, examples)) * COHORT + within
    one_off = rng.random(examples) < ONE_OFF
    publisher = rng.integers(0, PUBLISHERS, examples)
    logit = -1.0 + user_effect[user] + item_effect[item] + (taste[user] * kind[item]).sum(1)
    logit += np.where(one_off, 0.0, publisher_effect[publisher])
    probabilities = 1 / (1 + np.exp(-logit))
    labels = (rng.random(examples) < probabilities).astype(np.float32)
    tag = np.where(one_off, PUBLISHERS + np.arange(examples), publisher)
    ids = np.stack([keys_of(user), keys_of(item), keys_of(tag)], 1)
    return Clicks(ids, labels, probabilities, test=int(examples * TEST_SHARE))
