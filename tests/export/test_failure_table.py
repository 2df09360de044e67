"""What is known to go wrong on the way from a tower to an engine, and the tests that show that it does not here.

One entry per failure that was seen when TensorFlow, tf2onnx, ONNX Runtime, OpenVINO and TensorRT-RTX were tried:
what happened, and the tests (file::function below ``tests/``). Failures of the way that have no other test have one at
the end of this file.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from examples.models.towers import tower_inputs
from export.onnx.runtime import OnnxSession
from export.openvino.tuning import engine_spec
from export.tower_session import TowerSession
from tests.export.onnx.exports import exported
from tests.export.towers import TOWERS, tower
from tfctr.engines.native import open_engine
from tfctr.engines.spec import EngineSpec
from tfctr.errors import UsageError

TESTS = Path(__file__).resolve().parents[1]
HERE = "export/test_failure_table.py"

# From TensorFlow to ONNX.
EXPORT = {
    "1 Keras' exact GELU is Erfc, which tf2onnx passes through under a name that ONNX does not have": (
        "export/onnx/test_handlers.py::test_erfc_passes_through_tf2onnx_unknown",
        "export/onnx/test_handlers.py::test_erfc_becomes_erf",
        "export/onnx/test_handlers.py::test_erfc_numbers",
    ),
    "2 tf.where becomes arithmetic, which makes NaN of a mask of -2^32 in FP16": (
        "export/onnx/test_handlers.py::test_select_is_arithmetic_in_tf2onnx",
        "export/onnx/test_handlers.py::test_masks_in_half_precision",
        "export/onnx/test_handlers.py::test_select_of_what_is_not_finite",
        "export/fp16/test_convert.py::test_weights_are_clipped_and_counted",
    ),
    "3 An einsum is taken apart into shape arithmetic": (
        "export/onnx/test_fold_shapes.py::test_shape_arithmetic_goes",
        "export/onnx/test_fold_shapes.py::test_positions_of_any_number",
    ),
    "4 Squeeze with empty axes: nothing in ONNX Runtime, everything in OpenVINO": (
        "export/onnx/test_empty_axes.py::test_openvino_cannot_import_them",
        "export/onnx/test_empty_axes.py::test_openvino_imports_the_others",
        "export/onnx/test_empty_axes.py::test_chains_and_outputs",
    ),
    "5 A folded shape that holds a -1 already gets a second one": (
        "export/onnx/test_fold_shapes.py::test_folding_the_input_would_give_two_open_axes",
        "export/onnx/test_fold_shapes.py::test_targets",
    ),
    "6 A Dense of rank 3 computes its shapes; ones_like leaves a ConstantOfShape": (
        "export/onnx/test_fold_shapes.py::test_shape_arithmetic_goes",
        "export/onnx/test_fills.py::test_ones_like_in_din",
    ),
    "7 Outputs are called Identity:0, rows unk__12": (
        "export/onnx/test_naming.py::test_interface",
        "export/onnx/test_naming.py::test_awkward_outputs",
    ),
    "8 Two exports of one model differ": (
        "export/onnx/test_naming.py::test_tf2onnx_gives_other_bytes_each_time",
        "export/onnx/test_naming.py::test_same_bytes",
        "export/onnx/test_naming.py::test_same_bytes_in_other_processes",
    ),
    "9 A variable is not an initializer: batch norms are folded in part": (
        "export/onnx/test_weights.py::test_a_variable_is_no_initializer",
        "export/onnx/test_naming.py::test_other_weights_same_structure",
    ),
    "10 Dice's 1e-8 is 0 in FP16 unless its root is folded in FP32": (
        "export/onnx/test_weights.py::test_epsilon_is_folded_in_fp32",
        "export/onnx/test_weights.py::test_tiny_variance_survives",
        "export/onnx/test_weights.py::test_prelu_is_relu_neg_relu_mul",
        "export/fp16/test_islands.py::test_epsilon_of_an_unfolded_root",
    ),
    "Identity nodes, float64 and integers between the inputs and the outputs": (
        "export/onnx/test_naming.py::test_no_identity_is_left",
        "export/test_cut.py::test_double_precision_throughout",
        "export/test_cut.py::test_masks_of_ids",
    ),
}

# FP16.
HALF = {
    "ONNX Runtime drops casts on the CPU, so it can't judge FP16": (
        "export/fp16/test_half_eval.py::test_onnxruntime_is_no_judge",
        "export/fp16/test_half_eval.py::test_matrix_products_accumulate_in_fp32",
    ),
    "The five towers in FP16: up to 4e-3": ("export/fp16/test_narrow.py::test_five_towers",),
    "A tower that is trained: its AUC": ("export/fp16/test_trained.py::test_auc_of_a_trained_tower",),
    "A conversion that is not sorted is refused by onnx.checker": (
        "export/fp16/test_convert.py::test_unsorted_graph_is_sorted",
        "export/fp16/test_convert.py::test_any_graph_converts",
    ),
    "A conversion with a type clash is an invalid model": (
        "export/fp16/test_convert.py::test_any_graph_converts",
        "export/fp16/test_convert.py::test_types_that_do_not_fit",
    ),
    "Casts that cost: a plain MLP needs two": ("export/fp16/test_convert.py::test_plain_mlp_has_two_casts",),
    "Layer norm statistics overflow: the output is 0, and nothing says so": (
        "export/fp16/test_islands.py::test_layer_norm_statistics",
        "export/fp16/test_islands.py::test_layer_norm_in_other_words",
        "export/tensorrt/test_build.py::test_warnings_are_kept",
    ),
    "Mask constants": (
        "export/fp16/test_islands.py::test_mask_by_select",
        "export/fp16/test_islands.py::test_mask_by_where",
        "export/fp16/test_islands.py::test_mask_that_is_added",
        "export/fp16/test_islands.py::test_mask_tensor",
        "export/fp16/test_islands.py::test_infinite_mask_value",
    ),
    "Exp beyond 11.09, Pow": ("export/fp16/test_islands.py::test_powers",),
    "The sigmoid of the output": ("export/fp16/test_islands.py::test_outputs_that_are_products_of_sigmoids",),
    "The clamp changes answers: the reference must clamp too": (
        "export/fp16/test_narrow.py::test_clamp_is_in_the_reference_and_reported",
        "export/fp16/test_narrow.py::test_no_clamp",
    ),
    "The clamp is for embeddings, never for masks and ids": (
        "export/fp16/test_convert.py::test_clamp_is_for_embeddings_only",
        "export/fp16/test_narrow.py::test_masks_are_not_clamped",
    ),
    "The clamp does not bound a cross net": (
        "export/fp16/test_narrow.py::test_cross_net_over_inputs_at_the_clamp",
        "export/fp16/test_narrow.py::test_calibration_adds_islands",
        "export/fp16/test_narrow.py::test_always_overflows_ends_in_fp32",
    ),
}

# TensorRT-RTX, as far as it goes without a GPU.
TENSORRT = {
    "Strongly typed plans of all towers, for every target, dynamic rows": (
        "export/tensorrt/test_build.py::test_five_towers",
        "export/tensorrt/test_build.py::test_every_target",
        "export/tensorrt/test_build.py::test_users_and_rows",
    ),
    "REFIT fails without a CUDA driver, and spoils the process": (
        "export/tensorrt/test_build.py::test_refit_without_a_gpu_leaves_this_process_alone",
    ),
    "A failed build returns null and logs": (
        "export/tensorrt/test_build.py::test_every_null_is_an_error_with_the_last_messages",
        "export/tensorrt/test_build.py::test_what_the_library_refuses_is_quoted",
    ),
    "No SM90, no SM100; CURRENT and NONE are no targets": (
        "export/tensorrt/test_library.py::test_data_centre_targets_need_tensorrt",
        "export/tensorrt/test_library.py::test_unknown_target_lists_the_known",
    ),
    "FP32 matrix products are not for SM75": (
        "export/tensorrt/test_build.py::test_fp32_matrix_products_are_not_for_turing",
    ),
    "Two profiles": ("export/tensorrt/test_build.py::test_two_profiles",),
    "Plans are not reproducible, so a key never holds one": (
        "export/tensorrt/test_build.py::test_recipe_holds_all_but_the_model",
    ),
    "Names of nodes are in the plan: they must not depend on the export": (
        "export/onnx/test_naming.py::test_nodes_are_named_by_position_and_kept_for_people",
    ),
    "A plan can't be read without a GPU: CUDA's words": (
        "engines/test_tensorrt_engine.py::test_a_machine_without_a_gpu_says_so_in_cudas_words",
        "engines/test_tensorrt_engine.py::test_a_driver_that_is_too_old_is_named",
        "engines/test_tensorrt_engine.py::test_what_is_no_plan_is_told_so",
    ),
    "A refit may drop a bias": (
        "engines/test_tensorrt_refit.py::test_a_bias_that_a_refit_drops_is_found_by_the_probe",
        "gpu/test_refit.py::test_biases_of_matrix_products_are_kept",
    ),
}

# Engines on the CPU.
CPU = {
    "OpenVINO takes bf16 by itself where the CPU has it": (
        f"{HERE}::test_precision_is_never_left_to_the_engine",
        "core/test_dense_engine.py::test_precisions",
        "serving/test_dense.py::test_bf16_falls_back_where_the_cpu_has_none",
    ),
    "bf16 moves all scores one way": ("export/dense/test_choice.py::test_bf16_that_fails_the_gate_is_fp32",),
    "Inputs may come in another order: they are bound by name": (f"{HERE}::test_inputs_and_outputs_are_bound_by_name",),
    "A thread pool that spins slows down all others": (
        f"{HERE}::test_onnxruntime_does_not_spin",
        f"{HERE}::test_no_thread_of_an_engine_is_busy_after_a_run",
    ),
    "Threads that nobody counted": ("serving/test_dense.py::test_threads_are_the_sessions",),
    "The first run of a batch size compiles kernels": (
        "serving/test_dense.py::test_engines_are_warm_before_the_first_request",
    ),
    "A dynamic variant takes up to twice the time of a static one": (
        "export/openvino/test_choose.py::test_variants_that_are_much_faster_are_taken",
        "export/openvino/test_tuning.py::test_measures_variants_and_then_the_choice_beside_tensorflow",
        "export/openvino/test_native_options.py::test_pieces",
    ),
    "No engine is clearly faster at 256 rows in fp32": (
        "export/openvino/test_choose.py::test_openvino_or_tensorflow",
        "export/openvino/test_tuning.py::test_tensorflow_is_faster",
        "export/dense/test_choice.py::test_auto_takes_what_is_faster",
    ),
    "A batch that is filled up: rows must not depend on each other": (
        "export/test_referee.py::test_rows_that_depend_on_each_other",
    ),
    "Intra-op pools are the process's in TensorFlow: one thread may be two": (
        "export/openvino/test_tuning.py::test_the_reference_is_the_tower",
    ),
    "A compiled model of other weights, another version or CPU": (
        "core/test_dense_engine.py::test_blobs_that_do_not_fit_are_compiled_anew",
        "core/test_dense_engine.py::test_blobs_make_the_same_engine",
    ),
    "Compiled engines of old versions pile up; new weights find none": (
        "export/cache/test_store.py::test_other_keys",
        "export/cache/test_damage.py::test_another_format_under_our_name",
    ),
}


def test_every_row_of_the_export_has_an_entry():
    assert [int(key.split()[0]) for key in EXPORT if key[0].isdigit()] == list(range(1, 11))


@pytest.mark.parametrize(
    ("failure", "tests"), [entry for table in (EXPORT, HALF, TENSORRT, CPU) for entry in table.items()]
)
def test_tests_are_there(failure, tests):
    for one in tests:
        file, name = one.split("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{failure}: {one}"


def test_precision_is_never_left_to_the_engine(tmp_path):
    """It has no default; what the engine computes in is read back from it."""
    assert inspect.signature(EngineSpec).parameters["precision"].default is inspect.Parameter.empty
    with pytest.raises(UsageError, match="fp32, bf16"):
        dataclasses.replace(spec_of("dlrm", tmp_path), precision="")
    with open_engine(spec_of("dlrm", tmp_path)) as engine:
        assert engine.describe()["precision"] == "fp32"
        feeds = tower_inputs("dlrm", 33)
        with TowerSession(tower("dlrm")) as session:
            np.testing.assert_allclose(engine.run(feeds)["click"], session.run(feeds)["click"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["din", "mmoe"])
def test_inputs_and_outputs_are_bound_by_name(name, tmp_path):
    """The model's order turned round, the spec's as it was: three inputs of din, two outputs of mmoe."""
    spec = spec_of(name, tmp_path)
    model = onnx.load(str(spec.files[0].path))
    for kind in (model.graph.input, model.graph.output):
        turned = list(reversed(kind))
        del kind[:]
        kind.extend(turned)
    onnx.save(model, str(spec.files[0].path))
    feeds = tower_inputs(name, 17)
    with open_engine(spec) as engine, TowerSession(tower(name)) as session:
        got, want = engine.run(feeds), session.run(feeds)
    assert set(got) == set(want)
    for output, value in want.items():
        np.testing.assert_allclose(got[output], value, rtol=1e-5, atol=1e-6, err_msg=output)


def test_onnxruntime_does_not_spin(monkeypatch):
    asked = []
    made = onnxruntime.InferenceSession

    def session(model, options, **more):
        asked.append(options)
        return made(model, options, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    OnnxSession(exported("dcn").model, threads=2)
    for kind in ("intra_op", "inter_op"):
        assert asked[0].get_session_config_entry(f"session.{kind}.allow_spinning") == "0"
    assert (asked[0].intra_op_num_threads, asked[0].inter_op_num_threads) == (2, 1)


def test_no_thread_of_an_engine_is_busy_after_a_run(tmp_path):
    """CPU time of all threads that came with the engine, while nothing is asked of it."""
    before = set(threads())
    with open_engine(spec_of("din", tmp_path)) as engine:
        engine.run(tower_inputs("din", 32))
        own = [thread for thread in threads() if thread not in before]
        start = sum(map(cpu_ticks, own))
        time.sleep(0.3)
        used_s = (sum(map(cpu_ticks, own)) - start) / os.sysconf("SC_CLK_TCK")
    assert used_s < 0.15


def threads():
    return os.listdir("/proc/self/task")


def cpu_ticks(thread):
    """User and system time of a thread, in clock ticks; 0 where it has ended."""
    try:
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def spec_of(name, folder):
    assert name in TOWERS
    path = folder / f"{name}.onnx"
    onnx.save(exported(name).model, str(path))
    return engine_spec(tower(name), path, "fp32", 1, {})
