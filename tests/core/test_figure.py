"""The curve as a plotly dict: valid, strict JSON, small and exact."""

import json
import math
import time

import plotly.graph_objects as go
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distdl_jupyter.core import theme
from distdl_jupyter.core.figure import figure, step_range, value_range
from distdl_jupyter.core.series import MAX_STEP, SeriesBook
from tests.selection import few_or_all

FINITE = st.floats(allow_nan=False, allow_infinity=False)
POINTS = st.lists(
    st.tuples(st.integers(0, 11), st.one_of(st.integers(0, 2000).map(float), st.floats(-1e21, 1e21)), st.floats()),
    max_size=40,
)


def book_of(points, name="loss"):
    book = SeriesBook()
    for rank, step, value in points:
        book.apply({"type": "metric", "t": 1.8e9 + step % 1000, "rank": rank, "step": step, "values": {name: value}})
    return book


def story(ranks=4, steps=94):
    return book_of(
        (rank, 8.0 * step, 2 / (1 + step / 9) + rank / 100) for step in range(steps) for rank in range(ranks)
    )


def named(made, name):
    (trace,) = [trace for trace in made["data"] if trace["name"].split("  ")[0] == name]
    return trace


@given(POINTS, st.sampled_from(["band", "ranks"]), st.booleans(), st.booleans())
def test_any_curve_is_a_valid_figure(points, mode, log, standalone):
    made = figure(book_of(points), "loss", mode=mode, log=log, standalone=standalone)
    json.dumps(made, allow_nan=False)
    go.Figure(made)
    low, high = made["layout"]["yaxis"]["range"]
    for trace in made["data"]:
        assert len(trace["x"]) == len(trace["y"]) <= 1000
        shown = [value for value in trace["y"] if value is not None and not log]
        slack = 1e-6 * (high / 2 - low / 2)
        assert all(low - slack <= value <= high + slack for value in shown if abs(value) < 1e300)


def test_the_band_says_mean_extent_time_and_ranks():
    made = figure(story(), "loss")
    mean = named(made, "mean of 4")
    assert mean["line"] == {"color": theme.CURVE, "width": 2}
    assert (mean["x"][0], mean["y"][0]) == (0.0, pytest.approx(2.015))
    clock = time.strftime("%H:%M:%S", time.localtime(1.8e9))
    assert mean["customdata"][0] == [clock, pytest.approx(2.03), 2.0, 3, 0]
    assert named(made, "min to max")["fillcolor"].endswith("0.22)")
    end = named(made, "last")
    assert (end["x"], end["text"]) == ([744.0], ["<b>0.191</b>"])
    assert made["layout"]["annotations"] == []
    assert made["layout"]["xaxis"]["range"] == [0, 750]


def test_each_rank_has_its_colour_and_dash_and_value():
    made = figure(story(8), "loss", mode="ranks")
    lines = [trace for trace in made["data"] if trace["name"].startswith("rank")]
    assert [line["line"]["color"] for line in lines] == [*theme.RANKS, *theme.RANKS]
    assert [line["line"]["dash"] for line in lines] == ["solid"] * 4 + ["dash"] * 4
    assert (lines[3]["name"], lines[3]["meta"]) == ("rank 3  %{meta[0]}", ["0.206"])
    assert not named(made, "min to max")["visible"]


def test_above_eight_ranks_all_are_grey():
    made = figure(story(16), "loss", mode="ranks")
    lines = [trace for trace in made["data"] if trace["type"] == "scatter" and "rank" in trace["name"]]
    assert [line["line"]["color"] for line in lines] == [theme.GREY] * 16
    assert [line["name"] for line in lines if line["showlegend"]] == ["16 ranks"]


def test_not_finite_values_are_marked_on_the_axis():
    book = book_of([(0, 1.0, 1.0), (0, 2.0, math.nan), (1, 2.0, math.inf), (0, 3.0, 1.0), (1, 3.0, 2.0)])
    made = figure(book, "loss")
    assert named(made, "mean of 2")["y"] == [1.0, None, 1.5]
    marks = named(made, "nan, inf")
    assert (marks["x"], marks["y"]) == ([2.0], [made["layout"]["yaxis"]["range"][0]])
    assert marks["text"] == ["step 2: nan and inf on ranks 0 and 1"]


def test_a_training_that_ends_in_nan_says_so_at_its_end():
    made = figure(book_of([(0, 1.0, 1.0), (0, 2.0, math.nan)]), "loss")
    end = named(made, "last")
    assert end["text"] == ["<b>nan</b>"]
    assert end["textfont"]["color"] == theme.WARN


def test_log_needs_positive_values_and_says_so():
    made = figure(book_of([(0, 1.0, -1.0), (0, 2.0, -2.0)]), "loss", log=True)
    assert made["layout"]["yaxis"]["type"] == "linear"
    assert "The log scale shows only values above 0." in [note["text"] for note in made["layout"]["annotations"]]
    mixed = figure(book_of([(0, 1.0, -1.0), (0, 2.0, 2.0)]), "loss", log=True)
    assert mixed["layout"]["yaxis"]["type"] == "log"


def test_a_users_name_is_no_markup():
    name = '<a href="javascript:alert(1)">loss</a>'
    made = figure(book_of([(0, 1.0, 1.0)], name), name, standalone=True)
    assert made["layout"]["title"]["text"].startswith("&lt;a href=")
    assert "javascript" not in json.dumps(made["data"])


def test_a_single_spike_among_many_points_is_drawn():
    """Whatever is thinned out, the extrema of every bucket are in what a page draws."""
    book, steps = SeriesBook(), few_or_all(100_000, 1_000_000)
    low, high = steps * 12_345 // 100_000, steps * 87_654 // 100_000
    apply, event = book.apply, {"type": "metric", "t": 1.8e9, "rank": 0}
    for step in range(steps):
        apply({**event, "step": step, "values": {"loss": 9.0 if step == high else -7.0 if step == low else 1.0}})
    drawn = figure(book, "loss")
    values = [value for trace in drawn["data"] for value in trace.get("y", ()) if value is not None]
    assert (min(values), max(values)) == (-7.0, 9.0)
    assert drawn["layout"]["yaxis"]["range"][0] <= -7.0
    assert drawn["layout"]["yaxis"]["range"][1] >= 9.0
    at = {value: x for trace in drawn["data"] for x, value in zip(trace.get("x", ()), trace.get("y", ()), strict=False)}
    assert abs(at[9.0] - high) < steps / 400
    assert abs(at[-7.0] - low) < steps / 400
    assert all(len(trace.get("y", ())) <= 2 * 1000 for trace in drawn["data"])
    of_rank = [value for trace in figure(book, "loss", mode="ranks")["data"] for value in trace.get("y", ())]
    assert {-7.0, 9.0} <= {value for value in of_rank if value is not None}
    assert book.series("loss", 0).count == steps


def holds(ends, values):
    low, high = ends
    slack = 1e-6 * (high / 2 - low / 2)
    assert math.isfinite(low)
    assert math.isfinite(high)
    assert low < high
    assert all(low - slack <= value <= high + slack for value in values)


@given(values=st.lists(FINITE, max_size=5), log=st.booleans())
@example(values=[5e-324], log=False)
@example(values=[1.7e308, -1.7e308], log=False)
@example(values=[1e16, 1e16 + 2], log=False)
def test_every_value_is_within_its_axis(values, log):
    shown = [min(1e300, max(-1e300, value)) for value in values if not log or value > 1e-300]
    holds(value_range(values, log=log), shown)


@given(st.floats(-MAX_STEP, MAX_STEP), st.floats(-MAX_STEP, MAX_STEP))
@example(0.0, 5e-324)
@example(MAX_STEP, MAX_STEP)
def test_every_step_is_within_its_axis(one, other):
    holds(step_range([one, other]), [one, other])
