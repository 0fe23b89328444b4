"""What short runs say of more processes: the parts of a step, the error of several runs, and what is not comparable."""

import math
import re

import pytest

from distdl_jupyter.core.events import State
from distdl_jupyter.core.step_times import (
    MIN_STEPS,
    WARM_UP_STEPS,
    ScalingPoint,
    StepTime,
    StepTimes,
    Straggler,
    measure_run,
)
from distdl_jupyter.views.scaling import ScalingView, StudyInfo

BATCH = 32.0


def made(processes, *, busy=0.041, communication=None, waiting=0.0, batch=BATCH, rate=None):
    ring = 0.002 * (processes > 1) if communication is None else communication
    rate = rate or processes * batch / (busy + ring + waiting)
    return ScalingPoint(
        backend="torch", processes=processes, nodes=1, rate=rate, error=0.01 * rate, busy=busy, communication=ring,
        waiting=waiting, batch=processes * batch, steps=50,
    )  # fmt: skip


def rows(ranks, steps, *, seconds=0.1, first=0, samples=16.0):
    return [
        StepTime(rank, 0, number, 1, seconds, 0.01, 0.05, 0.01, 0.02, 0.01, samples)
        for number in range(first, first + steps) for rank in range(ranks)
    ]  # fmt: skip


def test_steps_are_measured_without_the_first_ones():
    slow = rows(2, WARM_UP_STEPS, seconds=5.0)
    found = measure_run(StepTimes(slow + rows(2, 40, first=WARM_UP_STEPS)))
    assert found is not None
    assert (found.rate, found.batch, found.steps) == (pytest.approx(320), 32, 40)
    assert (found.busy, found.communication, found.waiting) == (
        pytest.approx(0.07),
        pytest.approx(0.02),
        pytest.approx(0.01),
    )
    assert found.error == pytest.approx(0, abs=1e-9)
    assert measure_run(StepTimes(slow + rows(2, MIN_STEPS - 1, first=WARM_UP_STEPS))) is None


def test_batches_are_counted_where_their_size_was_not_seen():
    found = measure_run(StepTimes(rows(2, 60, samples=0.0)))
    assert found is not None
    assert (found.rate, found.counts_samples) == (pytest.approx(20), False)


def test_a_run_whose_rate_varies_has_a_larger_error():
    uneven = [row for half in range(2)
              for row in rows(2, 20, seconds=0.1 + 0.1 * half, first=WARM_UP_STEPS + 20 * half)]  # fmt: skip
    found = measure_run(StepTimes(rows(2, WARM_UP_STEPS) + uneven))
    # Four blocks of 320 samples/s and four of 160.
    assert found.error == pytest.approx(80 * math.sqrt(8 / 7) / math.sqrt(8))


def test_it_is_shown_as_text_html_table_and_figure():
    shown = ScalingView("train", [made(n, waiting=0.02 * (n > 1)) for n in (1, 2, 4)])
    lines = str(shown).splitlines()
    assert lines[0].startswith("4 processes reach 65 % of ideal. 20.0 of 63.0 ms per step are spent waiting for other")
    assert len(lines) == 1 + 1 + 3 + 1
    assert "<table>" in shown._repr_html_()
    assert list(shown.table.processes) == [1, 2, 4]
    assert list(shown.table)[:4] == ["backend", "processes", "nodes", "rate"]
    assert [round(share, 2) for share in shown.table.efficiency] == [1, 0.65, 0.65]
    assert [trace.name for trace in shown.figure.data] == ["torch", "ideal"]
    assert list(shown.figure.data[1].y) == [shown.points[0].rate, 4 * shown.points[0].rate]


def test_names_are_text():
    assert "<b>" not in ScalingView("train", [made(1), made(2)]).figure.to_json()
    shown = ScalingView("<b>", [made(1)])
    shown.info = StudyInfo(id="20261125-120000-s2cab", state=State.RUNNING, size=3)
    assert "&lt;b&gt;" in shown._repr_html_()


@pytest.mark.parametrize("ratio", [1.2, 5.96])
def test_more_than_the_ideal_rate_is_not_comparable_and_no_result(ratio):
    """One process that shares the machine with another program is slower than each of two later."""
    slow = made(1)
    shown = ScalingView("train", [slow, made(2, rate=2 * ratio * slow.rate, busy=0.041 / ratio)])
    assert shown.efficiency(shown.points[1]) is None
    assert shown.table.efficiency.isna().tolist() == [False, True]
    assert [bool(why) for why in shown.table.not_comparable] == [False, True]
    assert "other programs used the machine" in shown.why_not_comparable(shown.points[1])
    for text in (str(shown), shown._repr_html_(), shown.figure.to_json()):
        assert "not comparable" in text
        assert not re.search(r"(1[1-9]\d|[2-9]\d\d) %", text)


def test_a_different_batch_is_named_as_the_reason():
    shown = ScalingView("train", [made(1, batch=64), made(2, batch=32, rate=8000.0)])
    assert "The batch size per process differs: 64 with 1 process, 32 with 2 processes." in str(shown)


def test_up_to_a_tenth_above_the_ideal_rate_is_a_result():
    first = made(1)
    shown = ScalingView("train", [first, made(2, rate=2.16 * first.rate)])
    assert shown.efficiency(shown.points[1]) == pytest.approx(1.08)


def test_the_rank_that_the_others_wait_for_is_named():
    shown = ScalingView("train", [made(1), made(4, waiting=0.019)])
    shown.info = StudyInfo(id="20261125-120000-s2cab", state=State.COMPLETED, target="local", done=2, size=2, runs=4,
                        seconds=40,
                        stragglers={("torch", 4): Straggler(3, "gpu2", "data", 0.019, 30.0)})  # fmt: skip
    assert shown.sentences == [
        "4 processes reach 66 % of ideal. 19.0 of 62.0 ms per step are spent waiting for rank 3."
    ]
    assert str(shown).splitlines()[0] == (
        "Scaling of train (20261125-120000-s2cab): completed · local · weak scaling · 4 short runs, 40 s"
    )


def test_own_work_that_grows_is_told_from_communication():
    (shown,) = ScalingView("digits", [made(1), made(2, busy=0.08)]).sentences
    assert "39.0 of 82.0 ms per step are additional computation compared with 1 process" in shown
    (shown,) = ScalingView("digits", [made(1), made(2, communication=0.02)]).sentences
    assert shown.endswith("20.0 of 61.0 ms per step are spent on communication.")


def test_a_batch_that_all_share_is_strong_scaling():
    assert ScalingView("digits", [made(1), *(made(n, batch=32 / n) for n in (2, 4))]).mode == "strong"
    assert ScalingView("digits", [made(1)]).mode == ""


def test_a_study_is_shown_before_it_has_measured_anything():
    shown = ScalingView("digits", [])
    shown.info = StudyInfo(id="20261125-120000-s2cab", state=State.RUNNING, size=3, runs=1, seconds=5)
    assert "0 of 3 measured, 1 short run, 5 s" in str(shown)
    assert "No measurements yet." in shown._repr_html_()
    assert len(shown.table) == len(shown.figure.data) == 0
