"""The tests of real jobs once more, on a warm template: ``distdl_home`` is the one of this folder."""

import pytest

from tests.client.test_local_jobs import (  # noqa: F401 - collected here too
    test_a_crash_while_python_shuts_down_spoils_no_finished_job,
    test_a_failing_rank_ends_the_others_within_seconds_and_is_the_one_raised,
    test_a_script_runs_with_its_arguments,
    test_a_time_limit_ends_the_job_and_says_so,
    test_cancel_ends_a_job_from_anywhere,
    test_cancel_ends_code_that_ignores_signals_and_its_runaway_children,
    test_cancel_now_does_not_wait,
    test_environment_variables_reach_every_rank_and_secrets_stay_out_of_the_folder,
    test_horovod_averages_gradients_over_all_ranks,
    test_logs_keep_rank_stream_and_order,
    test_metrics_keep_what_is_not_finite,
    test_sys_exit_keeps_its_code,
    test_the_cause_is_raised_and_not_the_echo_of_a_lost_peer,
    test_the_transport_of_the_label_is_taken_when_the_code_names_none,
    test_torch_averages_gradients_over_all_ranks,
    test_two_jobs_at_once_do_not_meet_each_other,
)

pytestmark = [pytest.mark.timeout(600)]
