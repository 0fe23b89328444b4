"""A few points of a long way: evenly spread, the newest last, whatever their number."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import MAX_TRAIL_POINTS, JobView, MetricView
from distdl_jupyter.views.job_table import make_sparkline


def walked(steps):
    """Return a metric of one rank whose value is its step."""
    metric = MetricView("loss")
    for step in steps:
        metric.add(0, step, step)
    return metric


def means(metric):
    return [mean for _, mean in metric.trail]


@pytest.mark.parametrize("many", [1, 2, 3, 39, 40, 41, 64, 100, 1_000, 12_345])
def test_points_are_evenly_spread_and_few(many):
    metric = walked(range(many))
    points = means(metric)
    assert len(points) < MAX_TRAIL_POINTS
    assert len(points) >= min(many - 1, MAX_TRAIL_POINTS // 2 - 1)
    gaps = {right - left for left, right in pairwise(points)}
    assert gaps <= {max(1, metric.min_spacing)}
    shown = [*points, metric.mean]
    assert len(shown) == min(40, len(points) + 1)
    assert shown[-1] == many - 1
    assert shown == sorted(shown)


@given(st.lists(st.floats(allow_nan=False) | st.integers(-(10**20), 10**20), min_size=1, max_size=300))
def test_steps_in_any_order_keep_it_short(steps):
    metric = walked(steps)
    assert len(metric.trail) < MAX_TRAIL_POINTS
    assert metric.newest_step == max(steps)


def test_a_point_is_the_mean_over_ranks_of_a_finished_step():
    view = JobView.from_spec(JobSpec(id="20261121-024912-k3f9", name="digits", process_count_per_node=2))
    for step in range(3):
        for rank in range(2):
            event = {"t": 1.0, "type": "metric", "rank": rank, "step": step, "values": {"loss": step + rank}}
            view.apply(event)
    assert make_sparkline(view.metrics["loss"]) == (0.5, 1.5, 2.5)


def test_a_job_that_begins_again_at_a_step_forgets_the_points_from_there_on():
    metric = walked(range(10))
    metric.add(0, 20, 20, repeated=True)
    assert means(metric) == [*range(9)]
    metric = walked(range(10))
    metric.add(0, 4, 4, repeated=True)
    assert means(metric) == [0, 1, 2, 3]
    metric.add(0, 5, 5)
    assert means(metric) == [0, 1, 2, 3, 4]
