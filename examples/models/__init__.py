"""Reference models, to import or to copy.

:class:`SparseRanker` (the benchmarks' baseline), :func:`deepfm` (on Keras), and five models in one shape:

    model = REFERENCE_MODELS["din"](vocabulary=100_000, width=16)
    model.save("din")
    inputs = requests("din", rows=500, users=1, vocabulary=100_000)  # one user, 500 candidates
"""

from __future__ import annotations

from examples.models.features import HISTORY, Feature, Request, draw, repeat_users
from examples.models.keras_deepfm import deepfm
from examples.models.reference import DIN, DLRM, DeepFM, MMoE, ReferenceModel, WideAndDeep
from examples.models.sparse_ranker import SparseRanker

REFERENCE_MODELS: dict[str, type[ReferenceModel]] = {
    "wide_and_deep": WideAndDeep,
    "deepfm": DeepFM,
    "dlrm": DLRM,
    "din": DIN,
    "mmoe": MMoE,
}

# The features that are the same for all candidates of a request, by model.
USER_FEATURES: dict[str, tuple[str, ...]] = {
    name: tuple(f.name for f in model.features if f.user) for name, model in REFERENCE_MODELS.items()
}


def requests(model_name: str, rows: int, seed: int = 0, *, users: int | None = None, vocabulary: int = 1000) -> Request:
    """A random request for a reference model: arrays by input name.

    rows: B, candidate rows. users: rows of the user features; None: B, as the model itself takes them.
    vocabulary: as the model was built with. Equal seeds give equal requests.
    """
    return draw(REFERENCE_MODELS[model_name].features, rows, seed, users=users, vocabulary=vocabulary)


__all__ = [
    "DIN",
    "DLRM",
    "HISTORY",
    "REFERENCE_MODELS",
    "USER_FEATURES",
    "DeepFM",
    "Feature",
    "MMoE",
    "ReferenceModel",
    "Request",
    "SparseRanker",
    "WideAndDeep",
    "deepfm",
    "repeat_users",
    "requests",
]
