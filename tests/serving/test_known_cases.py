"""What users of DeepRec, TF Serving and Triton report of serving, and the test that shows it does not happen here.

DeepRec's cases are numbered as in our study of it (deltas have tests of their own); the others by their issues.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = "tests/serving"
CASES, GROUP, NATIVE = f"{HERE}/test_serving_cases.py", f"{HERE}/test_session_group.py", f"{HERE}/test_group_native.py"
MANAGER, REAL = f"{HERE}/versions/test_manager.py", f"{HERE}/versions/test_real_versions.py"
MEMORY, SERVER = f"{HERE}/versions/test_memory.py", f"{HERE}/server"
LIFE, DISPATCHER = f"{HERE}/test_group_native_life.py", "tfctr/core/serving/dispatcher_test.cc"

DEEPREC = {
    "20 a restore that is half done is served": (
        f"{MANAGER}::test_many_threads_while_versions_change",
        f"{REAL}::test_each_answer_is_old_or_new_while_versions_change",
    ),
    "21 memory grows with each version": (
        f"{REAL}::test_memory_comes_back",
        f"{REAL}::test_memory_after_30_reloads_is_that_after_5",
    ),
    "22 slower with every request": (f"{CASES}::test_requests_leave_no_state_behind",),
    "23 stages hang at the end, or change a dtype": (
        f"{CASES}::test_what_is_inside_at_the_end_is_answered",
        "tests/e2e/test_families.py::test_family",
    ),
    "24 one session is warm, the others are not": (
        f"{GROUP}::test_every_executor_is_warm",
        f"{GROUP}::test_recorded_requests_warm_every_executor",
        f"{REAL}::test_first_calls_after_a_swap_are_warm",
    ),
    "25 which session runs what; one that fails": (
        f"{GROUP}::test_round_robin_gives_every_executor_the_same",
        f"{NATIVE}::test_round_robin",
        f"{GROUP}::test_answers_are_those_of_a_session_to_the_bit",
        f"{GROUP}::test_requests_of_many_threads_run_together",
        f"{NATIVE}::test_executor_that_breaks_lives_on",
        "tfctr/core/serving/dispatcher_runs_test.cc::TestExecutorThatThrows",
    ),
    "26 an invalid version is picked up; answers of two versions": (
        f"{MANAGER}::test_a_broken_version_is_refused_with_its_reason_and_tried_again_when_it_changes",
        f"{REAL}::test_a_half_written_bundle_dropped_in_place",
        f"{REAL}::test_each_answer_is_old_or_new_while_versions_change",
    ),
}
TF_SERVING = {
    "#1989 #1950 20 % CPU and a tail of 100 ms with 167 sparse features": (
        f"{CASES}::test_a_request_of_167_sparse_features",
    ),
    "#1866 p99 of one model while another loads": (
        f"{CASES}::test_requests_are_answered_while_another_model_loads",
        f"{CASES}::test_a_load_is_not_on_the_threads_that_serve",
    ),
    "#881 #910 #996 a restore in the pool of inference": (f"{CASES}::test_a_load_is_not_on_the_threads_that_serve",),
    "#385 #733 the first requests of a version are slow": (f"{REAL}::test_first_calls_after_a_swap_are_warm",),
    "#1664 #2142 #1215 memory after an unload": (
        f"{MEMORY}::test_an_unload_gives_back_what_the_load_took",
        f"{MEMORY}::test_22_loads_and_unloads_end_where_they_began",
        f"{REAL}::test_memory_after_30_reloads_is_that_after_5",
    ),
    "#1312 #1529 batching gives nothing": (
        f"{GROUP}::test_requests_of_many_threads_run_together",
        f"{NATIVE}::test_requests_share_a_run",
    ),
    "#1522 #2008 batching is one for all models": (
        f"{SERVER}/test_config.py::test_options_win_over_the_file_and_over_its_models",
    ),
    "#1955 #1624 time outside the graph is not told": (
        f"{SERVER}/test_grpc_tfs.py::test_timing_adds_up_and_ids_come_back",
        f"{SERVER}/test_rest_tfs.py::test_timing_adds_up",
    ),
    "#678 #867 #1381 custom operations need another build": (
        f"{SERVER}/test_op_library.py::test_an_op_library_is_an_option_not_a_rebuild",
    ),
    "#4018 models with TensorRT inside fail without a word": (
        f"{HERE}/test_dense_group.py::test_a_gpu_bundle_on_a_machine_without_one_is_refused_by_name",
        f"{HERE}/test_dense_group.py::test_its_fallback_is_named_in_status_and_metrics",
    ),
}
TRITON = {
    "#2685 #3060 #7672 no histogram of latency": (
        f"{SERVER}/test_metrics.py::test_models_executors_tables_and_versions_are_told",
        f"{LIFE}::test_metrics",
    ),
    "#8561 metrics cost a third of the throughput": (
        f"{SERVER}/test_metrics.py::test_off_means_no_request_is_counted",
    ),
    "#8251 queues under real arrivals": (
        "tests/loadtest/test_schedule.py::test_poisson_arrivals_have_the_rate_and_exponential_gaps",
        "tests/loadtest/test_schedule.py::test_bursts_come_together_at_the_same_mean_rate",
    ),
    "#8117 #5757 #5042 #7762 a reload is slow, or not warm": (f"{CASES}::test_a_reload_is_warm",),
    "#2076 unloads before it loads": (f"{MANAGER}::test_loads_before_it_unloads",),
    "#7512 a timeout fires when the run before has ended": (
        f"{NATIVE}::test_deadline_in_the_queue_and_while_running",
        f"{DISPATCHER}::TestDeadlineInTheQueue",
        f"{CASES}::test_a_deadline_that_passes_before_the_reply_names_that_stage",
    ),
    "#5783 #6796 the queue's limit is not exact": (
        f"{NATIVE}::test_queue_limit_is_exact",
        f"{DISPATCHER}::TestQueueLimitIsExact",
    ),
    "#980 offline traffic before online traffic": (f"{NATIVE}::test_priorities",),
    "#4344 #4618 no cancelling": (
        f"{NATIVE}::test_cancel",
        f"{SERVER}/test_grpc_faults.py::test_a_client_that_goes_away_gives_its_request_up",
    ),
    "#8653 a wrong key is ignored": (f"{SERVER}/test_config.py::test_what_is_wrong_is_named",),
    "#3321 one protocol is slower": (f"{SERVER}/test_server.py::test_one_server_answers_both_fronts_and_counts_them",),
    "#6038 memory grows with varying shapes": (f"{CASES}::test_requests_leave_no_state_behind",),
    "#7271 batches of odd sizes": (f"{NATIVE}::test_limit_of_a_batch", f"{NATIVE}::test_large_requests_run_in_pieces"),
    "Merlin #906 lists of different lengths are not batched": (
        "tests/core/test_request_batch.py::test_a_batch_is_what_packing_the_concatenation_gives",
    ),
}


@pytest.mark.parametrize("case", [*DEEPREC, *TF_SERVING, *TRITON])
def test_every_case_has_its_tests(case):
    for where in (DEEPREC | TF_SERVING | TRITON)[case]:
        file, name = where.split("::")
        text = (ROOT / file).read_text()
        assert f"def {name}(" in text or f"void {name}(" in text, where


def test_no_case_of_the_study_is_left_out():
    assert {int(case.split()[0]) for case in DEEPREC} == set(range(20, 27))
