"""When silence is a stall: told by a clock that only goes forward, by signs, by the job's own pace."""

import pytest

from distdl_jupyter.supervisor.hang_detector import StallTimer
from distdl_jupyter.supervisor.recorder import is_warning


def test_a_job_without_a_pace_may_be_silent_for_five_minutes():
    timer = StallTimer(100.0)
    timer.on_activity(110.0, 0)
    assert timer.limit == 300.0
    assert not timer.is_stalled(410.0)
    assert timer.is_stalled(410.1)


@pytest.mark.parametrize(("gap", "limit"), [(0.1, 60.0), (12.0, 60.0), (13.0, 65.0), (200.0, 1000.0)])
def test_five_times_its_longest_silence_is_the_limit(gap, limit):
    timer = StallTimer(0.0)
    timer.on_activity(0.0, 0)
    timer.on_activity(gap, 1)
    timer.on_activity(gap + 0.05, 0)
    assert timer.limit == pytest.approx(limit)
    assert not timer.is_stalled(gap + limit)
    assert timer.is_stalled(gap + limit + 0.1)


def test_imports_may_take_five_minutes_whatever_is_asked_for():
    timer = StallTimer(0.0, 3.0)
    timer.on_activity(1.0, 0, is_past_imports=False)
    assert timer.extend_limit(10.0) == 300.0
    assert not timer.is_stalled(290.0)
    timer.on_activity(291.0, 0)
    assert timer.extend_limit(10.0) == 10.0
    assert timer.is_stalled(294.1)
    assert timer.limit == 3.0, "what went by with imports is no pace"


def test_while_nothing_is_expected_nothing_is_counted():
    timer = StallTimer(0.0)
    for second in range(3):
        timer.on_activity(float(second), 0)
    timer.reset(5000.0)
    assert timer.measure_idle_time(5030.0) == 30.0
    timer.on_activity(5040.0, 0)
    assert timer.limit == 60.0, "the time between two cells is no pace"


def test_zero_never_tells_a_stall():
    timer = StallTimer(0.0, 0.0)
    timer.on_activity(1.0)
    assert timer.limit is None
    assert not timer.is_stalled(1e9)


def test_each_rank_has_its_own_silence():
    timer = StallTimer(0.0)
    timer.on_activity(10.0, 0)
    timer.on_activity(12.0, 1)
    assert timer.measure_idle_time(15.0) == 3.0
    assert [timer.measure_rank_idle_time(rank, 15.0) for rank in (0, 2)] == [5.0, None]


@pytest.mark.parametrize("text", [
    "[W stall_inspector.cc:107] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of "
    "ranks and are waiting for remainder of ranks for more than 60 seconds.\nMissing ranks:\n1: [allreduce.noname.4]",
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE)",
])  # fmt: skip
def test_what_libraries_print_while_they_wait_is_no_sign(text):
    assert is_warning({"type": "log", "rank": 0, "text": text})
    assert not is_warning({"type": "log", "rank": 0, "text": f"{text}\n" + "epoch\n" * 30})
    assert not is_warning({"type": "metric", "rank": 0})
