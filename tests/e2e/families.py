"""What a conversion must make of each model of the zoo: how many lookups are fused, and why the others are left.

``fused`` counts the lookups of all signatures; ``left`` holds one regular expression per lookup that stays as it was.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Expected:
    fused: int
    left: tuple[str, ...] = ()


FAMILIES: dict[str, Expected] = {
    "a_plain_sparse": Expected(6),
    "a_plain_sparse_w": Expected(3),
    "a_safe_sparse": Expected(12),
    "a_safe_sparse_composite": Expected(6),
    "a_safe_sparse_defid": Expected(3),
    "a_safe_sparse_defid_w": Expected(3),
    "a_safe_sparse_defid_zero": Expected(3),
    "a_safe_sparse_int32": Expected(3),
    "a_safe_sparse_maxnorm": Expected(3),
    "a_safe_sparse_maxnorm_w": Expected(3),
    "a_safe_sparse_one": Expected(1),
    "a_safe_sparse_w": Expected(9),
    "a_sparse_v1_ref": Expected(5),
    "a_sparse_v1_res": Expected(5),
    "b_ragged": Expected(6),
    "b_ragged_composite": Expected(6),
    "b_ragged_int32_splits": Expected(4),
    "b_ragged_w": Expected(2),
    "c_keras_float_ids": Expected(2),
    "c_keras_onehot": Expected(12),
    "c_tf_keras": Expected(6),
    "d_keras_seq_pool": Expected(5),
    "d_keras_seq_unpooled": Expected(2),
    "e_keras_lookup": Expected(7),
    "e_vocab_file": Expected(4),
    "e_vocab_file_only": Expected(4),
    "f_densefeatures_example": Expected(7),
    "f_input_layer_v1": Expected(11),
    "h_part_div_ref": Expected(2),
    "h_part_div_res_single": Expected(4),
    "h_part_mod_ref_single": Expected(4),
    "h_part_mod_res": Expected(2),
    "i_deepctr_deepfm": Expected(104),
    "i_deepctr_din": Expected(16),
    "i_deepctr_esmm": Expected(20),
    "i_deepctr_mmoe": Expected(24),
    "i_deepctr_multival_hash": Expected(8),
    "j_din_tf": Expected(3),
    "k_hash_ids": Expected(10),
    "k_two_stage": Expected(2, ("dtype is not float32",)),
    "l_fused_offsets": Expected(1),
    "m_control_flow": Expected(1, ("inside control flow", "inside control flow")),
    "m_mutable_table": Expected(1),
    "m_tied_softmax": Expected(1, ("read as a whole",)),
    "n_plain_mlp": Expected(0),
    "o_shared_ranked": Expected(3),
    "o_two_signatures": Expected(3),
    "o_zero_table": Expected(2),
    "p_bfloat16_tables": Expected(3),
    "p_half_tables": Expected(3),
}
