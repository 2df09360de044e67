"""Splitting real models: the zoo's, and the five reference models."""

from pathlib import Path

import numpy as np
import pytest

import tfctr
from examples.models import REFERENCE_MODELS, USER_FEATURES, repeat_users, requests
from graph_opt.split.refusals import REASONS
from tests.graph_opt.split.helpers import split
from tests.graph_opt.split.models import reference
from tests.models.fixtures import Zoo

MODELS = {
    "n_plain_mlp": ("x",),
    "a_safe_sparse": ("f1", "f2", "f7"),
    "a_safe_sparse_w": ("f1*", "f4*"),
    "a_safe_sparse_composite": ("f1", "f3"),
    "b_ragged": ("safe_*",),
    "c_keras_onehot": ("c1", "c2"),
    "d_keras_seq_pool": ("masked_*",),
    "e_keras_lookup": ("*lookup*",),
    "e_vocab_file_only": ("tags",),
    "f_input_layer_v1": ("city", "age", "tags", "clicked"),
    "i_deepctr_deepfm": ("C?", "I1"),
    "i_deepctr_din": ("user", "gender", "hist_*"),
    "i_deepctr_mmoe": ("C?",),
    "i_deepctr_multival_hash": ("user", "genres"),
    "j_din_tf": ("user", "history"),
    "k_hash_ids": ("fast", "mod32", "split"),
    "m_control_flow": ("outside",),
    "p_half_tables": ("values",),
}


@pytest.mark.parametrize("name", MODELS)
def test_real_models_give_the_same_scores(name: str, zoo: Zoo, tmp_path: Path) -> None:
    """Proven by the pass on several kinds of users; nothing may differ."""
    item = reference(zoo(name).path, tmp_path)
    after, outcome = split(item, *MODELS[name])
    if name == "m_control_flow":
        assert {r.reason for r in outcome.refused} == {REASONS["gain"]}
        return
    assert outcome.fired == len(item.optimise), outcome.refused
    for form in after.split.values():
        flops = form.details["flops"]
        assert flops["item_per_row"] < flops["before_per_row"]


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_reference_models_take_users_once(name: str, tmp_path: Path) -> None:
    """A saved bundle, in a session of its own: one user and several, against the plain form on repeated rows."""
    REFERENCE_MODELS[name](vocabulary=100).save(str(tmp_path / "model"))
    report = tfctr.convert(tmp_path / "model", tmp_path / "bundle", strict=True, user_features=USER_FEATURES[name])
    info = report.manifest["signatures"]["serving_default"]
    assert set(info["user"]["features"]) == set(info["split"]["user_features"]) and not info["split"]["item_side"]
    with tfctr.ServingSession(tmp_path / "bundle") as session:
        for users, row_to_user in ((1, None), (3, np.array([2, 0, 0, 1, 2]))):
            request = requests(name, 5, users=users, vocabulary=100)
            of_row = np.zeros(5, np.int64) if row_to_user is None else row_to_user
            given = request if row_to_user is None else {**request, "row_to_user": row_to_user}
            got = session.predict(given)
            want = session.predict(repeat_users(REFERENCE_MODELS[name].features, request, of_row))
            for output, value in want.items():
                np.testing.assert_allclose(got[output], value, 1e-5, 1e-6)
