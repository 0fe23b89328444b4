"""A few points of a long way: evenly spread, the newest last, whatever their number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import MOST, JobView, Trail


def walked(steps):
    """Return the trail of a number that is its step."""
    trail, value = Trail(), None
    for step in steps:
        if trail.finishes(step):
            trail.keep(value)
        value = step
    return trail


@pytest.mark.parametrize("many", [1, 2, 3, 40, 63, 64, 65, 100, 1_000, 12_345])
def test_points_are_evenly_spread_and_few(many):
    trail = walked(range(many))
    assert len(trail.points) < MOST
    assert len(trail.points) >= min(many - 1, MOST // 2 - 1)
    gaps = {right - left for left, right in zip(trail.points, trail.points[1:], strict=False)}
    assert gaps <= {trail.every}
    shown = trail.to(many - 1, 40)
    assert len(shown) == min(40, len(trail.points) + 1)
    assert shown[-1] == many - 1
    assert shown == sorted(shown)


@given(st.lists(st.floats() | st.integers(-(10**20), 10**20), max_size=300))
def test_steps_in_any_order_keep_it_short(steps):
    trail = walked(steps)
    assert len(trail.points) < MOST
    assert trail.step == max((step for step in steps if step == step), default=-math.inf)


def test_a_point_is_the_mean_over_ranks_of_a_finished_step():
    view = JobView.of(JobSpec(id="20261121-024912-k3f9", name="digits", process_count_per_node=2))
    for step in range(3):
        for rank in range(2):
            event = {"t": 1.0, "type": "metric", "rank": rank, "step": step, "values": {"loss": step + rank}}
            view.apply(event)
    assert view.metrics["loss"].trail.points == [0.5, 1.5]
    assert view.metrics["loss"].trail.to(view.metrics["loss"].mean, 40) == [0.5, 1.5, 2.5]


def test_a_job_that_begins_again_at_a_step_forgets_the_points_from_there_on():
    trail = walked(range(10))
    assert trail.points == list(range(9))
    trail.go_back(20)
    assert trail.points == list(range(9))
    trail = walked(range(10))
    trail.go_back(4)
    assert trail.points == [0, 1, 2, 3]
    assert not trail.finishes(4)
    assert trail.finishes(5)
