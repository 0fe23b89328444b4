"""What short runs say of more processes: the parts of a step are found again, and an error is stated that holds."""

import dataclasses
import math
import random

import pytest

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.link import Link
from distdl_jupyter.core.scaling import LEAST_STEPS, WARM_UP, Point, Run, Scaling, measured, point
from distdl_jupyter.core.step_times import StepTime, StepTimes
from distdl_jupyter.views.scaling import displayable

BATCH = 32.0


def step(processes, own=0.04, transfer=0.003, latency=0.0002, spread=0.0):
    ring = transfer * 2 * (processes - 1) / processes + latency * 2 * (processes - 1)
    return own, ring, spread


def made(processes, *, noise=0.0, backend="torch", **parts):
    own, ring, waiting = step(processes, **parts)
    rate = processes * BATCH / (own + ring + waiting) * (1 + noise)
    return Point(backend, processes, 1, rate, 0.005 * rate, own, ring, waiting, processes * BATCH, 2)


GRADIENTS = 4 * 2**20


def on_one_machine(backend="torch", backward=0.0, **parts):
    """Return the runs on 1 and 2 processes of one machine."""
    points = [made(n, backend=backend, **parts) for n in (1, 2)]
    return Scaling("train", [points[0], dataclasses.replace(points[1], gradients=GRADIENTS, backward=backward)])


def over(link, processes):
    sent = GRADIENTS * 2 * (processes - 1) / processes
    return 8 * sent / (link.bits_per_second * 1448 / 1514) + 2 * (processes - 1) * link.latency_seconds


def rows(ranks, steps, *, seconds=0.1, first=0, samples=16.0):
    return [
        StepTime(rank, 0, number, 1, seconds, 0.01, 0.05, 0.01, 0.02, 0.01, samples)
        for number in range(first, first + steps) for rank in range(ranks)
    ]  # fmt: skip


def test_a_forecast_finds_the_parts_of_a_step_again():
    scaling = Scaling("train", [made(n) for n in (1, 2, 4)])
    for processes in (8, 16, 64):
        own, ring, _ = step(processes)
        found = scaling.forecast(processes)
        assert found.rate == pytest.approx(processes * BATCH / (own + ring), rel=1e-6)
        assert (found.own, found.communication) == (pytest.approx(own), pytest.approx(ring))
        assert found.low < found.rate < found.high
    assert scaling.efficiency(scaling.points[0]) == 1
    assert scaling.forecast(64).error / scaling.forecast(64).rate > scaling.forecast(8).error / scaling.forecast(8).rate


def test_the_stated_error_holds_for_noisy_runs():
    inside, draw = 0, random.Random(7)
    for _ in range(200):
        scaling = Scaling("train", [made(n, noise=draw.gauss(0, 0.02)) for n in (1, 2, 4)])
        found = scaling.forecast(8)
        own, ring, _ = step(8)
        inside += found.low <= 8 * BATCH / (own + ring) <= found.high
    assert inside > 0.6 * 200


@pytest.mark.parametrize("latency", [0.0, 0.001])
def test_two_points_give_a_forecast_of_a_larger_error(latency):
    three = Scaling("train", [made(n, latency=latency) for n in (1, 2, 4)]).forecast(8)
    two = Scaling("train", [made(n, latency=latency) for n in (1, 2)]).forecast(8)
    assert two.high - two.low > three.high - three.low


@pytest.mark.parametrize("processes", [2, 4, 16])
def test_a_link_that_no_run_has_met_brings_the_counted_gradients(processes):
    link = Link(1e8, 2e-4, "set by you")
    scaling = on_one_machine()
    here, there = scaling.forecast(processes), scaling.forecast(processes, link=link)
    assert there.communication - here.communication == pytest.approx(over(link, processes))
    assert there.low < there.rate < here.rate
    # One node has no link, and of two processes on each of several nodes one sends over it.
    assert scaling.forecast(processes, nodes=1, link=link) == here
    two_each = scaling.forecast(2 * processes, nodes=processes, link=link)
    assert two_each.communication - scaling.forecast(2 * processes).communication == pytest.approx(
        over(link, 2 * processes)
    )
    assert two_each.own == scaling.points[1].own


def test_what_travels_behind_the_backward_pass_is_no_part_of_the_step():
    link = Link(1e9, 0.0, "set by you")
    whole = over(link, 2)
    shown = on_one_machine(backward=10.0)
    first_bucket = 2**20 / GRADIENTS
    added = shown.forecast(2, link=link).communication - shown.forecast(2).communication
    assert added == pytest.approx(whole * (1 - first_bucket))
    horovod = on_one_machine("horovod-gloo", backward=whole / 4)
    added = horovod.forecast(2, link=link).communication - horovod.forecast(2).communication
    assert added == pytest.approx(whole * 3 / 4)


def test_a_forecast_for_a_link_takes_gradients_and_whole_nodes():
    link = Link(1e9, 0.0, "set by you")
    with pytest.raises(InvalidSpec, match="The gradient size was not recorded in these runs, so"):
        Scaling("train", [made(n) for n in (1, 2)]).forecast(4, link=link)
    with pytest.raises(InvalidSpec, match="cannot be divided evenly among 3 nodes"):
        on_one_machine().forecast(4, nodes=3, link=link)


def test_one_point_gives_none():
    with pytest.raises(InvalidSpec, match="two numbers of processes"):
        Scaling("train", [made(2)]).forecast(8)
    with pytest.raises(InvalidSpec, match="two numbers of processes"):
        Scaling("train").forecast(8)


def test_steps_are_measured_without_the_first_ones():
    slow = rows(2, WARM_UP, seconds=5.0)
    found = measured(StepTimes(slow + rows(2, 40, first=WARM_UP)))
    assert found is not None
    assert (found.rate, found.batch, found.steps) == (pytest.approx(320), 32, 40)
    assert (found.own, found.communication, found.waiting) == (
        pytest.approx(0.07),
        pytest.approx(0.02),
        pytest.approx(0.01),
    )
    assert found.error == pytest.approx(0, abs=1e-9)
    assert measured(StepTimes(slow + rows(2, LEAST_STEPS - 1, first=WARM_UP))) is None


def test_batches_are_counted_where_their_size_was_not_seen():
    found = measured(StepTimes(rows(2, 60, samples=0.0)))
    assert found is not None
    assert (found.rate, found.counts_samples) == (pytest.approx(20), False)


def test_runs_that_differ_have_the_error_of_their_difference():
    runs = [Run(rate, 0.1, 0.04, 0.003, 0.0, 64.0, 50) for rate in (90.0, 110.0)]
    found = point("torch", 2, 1, runs)
    assert found.rate == 100
    assert found.error == pytest.approx(math.sqrt(200) / math.sqrt(2))
    assert point("torch", 2, 1, runs[:1]).error == pytest.approx(0.1)


def test_it_is_shown_as_text_html_table_and_figure():
    shown = displayable(Scaling("train", [made(n, spread=0.02 if n > 1 else 0.0) for n in (1, 2, 4)]))
    lines = str(shown).splitlines()
    assert lines[0].startswith(
        "4 processes reach 61 % of ideal. 20.0 of 65.7 ms per step are spent waiting for other ranks"
    )
    assert len(lines) == 1 + 1 + 5 + 2
    assert "about" in lines[-3]
    assert "<table>" in shown._repr_html_()
    assert list(shown.table.processes) == [1, 2, 4, 8, 16]
    assert list(shown.table.measured) == [True] * 3 + [False] * 2
    assert [trace.name for trace in shown.figure.data if trace.showlegend is not False] == [
        "torch", "torch, forecast", "ideal",
    ]  # fmt: skip
