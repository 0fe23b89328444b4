"""The curve of ``job.figure()``: valid, strict JSON and exact."""

import json
import math

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core.series import MetricStore, SourceJob, build_figure
from tests.selection import few_or_all

POINTS = st.lists(
    st.tuples(st.integers(0, 11), st.one_of(st.integers(0, 2000).map(float), st.floats(-1e21, 1e21)), st.floats()),
    max_size=40,
)


def book_of(points, name="loss"):
    book = MetricStore()
    for rank, step, value in points:
        book.apply({"type": "metric", "t": 1.8e9 + step % 1000, "rank": rank, "step": step, "values": {name: value}})
    return book


def story(ranks=4, steps=94):
    return book_of(
        (rank, 8.0 * step, 2 / (1 + step / 9) + rank / 100) for step in range(steps) for rank in range(ranks)
    )


def named(made, name):
    (trace,) = [trace for trace in made["data"] if trace["name"] == name]
    return trace


@given(POINTS, st.booleans(), st.booleans())
def test_any_curve_is_a_valid_figure(points, each_rank, log):
    made = build_figure(book_of(points), "loss", each_rank=each_rank, log=log)
    json.dumps(made, allow_nan=False)
    go.Figure(made)
    assert all(len(trace["x"]) == len(trace["y"]) <= 1000 for trace in made["data"])


def test_the_mean_has_a_band_from_the_lowest_to_the_highest_rank():
    made = build_figure(story(), "loss")
    mean = named(made, "mean of 4")
    assert (mean["x"][0], mean["y"][0]) == (0.0, pytest.approx(2.015))
    assert (named(made, "min")["y"][0], named(made, "min to max")["y"][0]) == (2.0, pytest.approx(2.03))
    assert not named(build_figure(story(1), "loss"), "min to max")["visible"]


def test_each_rank_has_a_line_and_an_earlier_job_is_behind_it():
    made = build_figure(story(3), "loss", each_rank=True, source_job=SourceJob(story(1, 10), "k3f9x", 72.0))
    assert [trace["name"] for trace in made["data"]][2:] == ["rank 0", "rank 1", "rank 2", "k3f9x"]


def test_values_that_are_not_finite_are_gaps():
    book = book_of([(0, 1.0, 1.0), (0, 2.0, math.nan), (1, 2.0, math.inf), (0, 3.0, 1.0), (1, 3.0, 2.0)])
    made = build_figure(book, "loss")
    assert named(made, "mean of 2")["y"] == [1.0, None, 1.5]


def test_a_users_name_is_no_markup():
    name = '<a href="javascript:alert(1)">loss</a>'
    made = build_figure(book_of([(0, 1.0, 1.0)], name), name)
    assert made["layout"]["title"]["text"].startswith("&lt;a href=")
    assert "javascript" not in json.dumps(made["data"])


def test_a_single_spike_among_many_points_is_drawn():
    """Whatever is thinned out, the extrema of every bucket are in the figure."""
    book, steps = MetricStore(), few_or_all(100_000, 1_000_000)
    low, high = steps * 12_345 // 100_000, steps * 87_654 // 100_000
    apply, event = book.apply, {"type": "metric", "t": 1.8e9, "rank": 0}
    for step in range(steps):
        apply({**event, "step": step, "values": {"loss": 9.0 if step == high else -7.0 if step == low else 1.0}})
    for each_rank in (False, True):
        drawn = build_figure(book, "loss", each_rank=each_rank)["data"]
        values = [value for trace in drawn for value in trace["y"] if value is not None]
        assert (min(values), max(values)) == (-7.0, 9.0)
        at = {value: x for trace in drawn for x, value in zip(trace["x"], trace["y"], strict=True)}
        assert abs(at[9.0] - high) < steps / 400
        assert abs(at[-7.0] - low) < steps / 400
        assert all(len(trace["y"]) <= 1000 for trace in drawn)
    assert book.metrics["loss"].series[0].count == steps
