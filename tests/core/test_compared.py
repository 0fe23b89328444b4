"""Curves of several jobs in one figure: who is who, where the labels stand, what the axes say."""

import json
import math
from itertools import combinations

import pytest

from distdl_jupyter.core.compared import Compared, compared_figure, style
from distdl_jupyter.core.scale import time_axis
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.theme import DARK, LIGHT


def job(id_, values, pace=1.0, ranks=2, begun=1000.0):
    book = SeriesBook()
    for step, value in enumerate(values):
        for rank in range(ranks):
            book.apply({"type": "metric", "rank": rank, "step": step, "t": begun + 4 + step * pace,
                        "values": {"loss": value + rank}})  # fmt: skip
    return Compared(f"20261121-024900-{id_}", book.band("loss"), begun)


def test_each_job_is_one_line_of_means_in_the_given_order():
    figure = compared_figure([job("k3f9x", [2.0, 1.0]), job("t2qcx", [4.0, 3.0, 2.0])], "loss")
    first, second = figure["data"][:2]
    assert (first["name"], first["x"], first["y"]) == ("k3f9x", [0.0, 1.0], [2.5, 1.5])
    assert (second["name"], second["x"], second["y"]) == ("t2qcx", [0.0, 1.0, 2.0], [4.5, 3.5, 2.5])
    labels = [one["text"] for one in figure["layout"]["annotations"]]
    assert labels == ["step", "<b>k3f9x</b>", "<b>t2qcx</b>"]


def test_against_elapsed_time_counts_from_each_jobs_own_begin():
    early, late = job("aaaaa", [1.0] * 30, begun=1000.0), job("bbbbb", [1.0] * 30, pace=2.0, begun=90_000.0)
    figure = compared_figure([early, late], "loss", against="elapsed")
    assert (figure["data"][0]["x"][0], figure["data"][0]["x"][-1]) == (4.0, 33.0)
    assert (figure["data"][1]["x"][0], figure["data"][1]["x"][-1]) == (4.0, 62.0)
    assert figure["layout"]["xaxis"]["ticktext"][:3] == ["0 s", "15 s", "30 s"]
    assert "step" not in [one["text"] for one in figure["layout"]["annotations"]]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_twelve_jobs_are_all_told_apart_and_four_by_colour_alone_and_dash_alone(theme):
    looks = [(one["color"], one["dash"]) for one in (style(number, theme) for number in range(12))]
    assert len(set(looks)) == 12
    for one, other in combinations(looks[:4], 2):
        assert one[0] != other[0]
        assert one[1] != other[1]


def test_labels_of_curves_that_end_together_do_not_cover_each_other():
    jobs = [job(f"{n}{n}{n}{n}{n}", [3.0, 1.0 + n / 1000]) for n in range(6)]
    layout = compared_figure(jobs, "loss", height=300)["layout"]
    room = 300 - layout["margin"]["t"] - layout["margin"]["b"]
    low, high = layout["yaxis"]["range"]
    places = [
        (one["y"] - low) / (high - low) * room + one["yshift"] for one in layout["annotations"] if "xshift" in one
    ]
    assert len(places) == 6
    assert all(abs(one - other) >= 12 for one, other in combinations(places, 2))


@pytest.mark.parametrize("steps", [(3, 30), (15, 30), (30, 30)])
@pytest.mark.parametrize("values", [lambda step: 1 / (step + 1), lambda step: step / 30, lambda step: 1.0])
def test_no_label_is_struck_by_its_own_line_nor_by_another_label(steps, values):
    jobs = [job(f"{n}{n}{n}{n}{n}", [values(step) for step in range(count)]) for n, count in enumerate((*steps, 15))]
    layout = compared_figure(jobs, "loss")["layout"]
    labels = [label for label in layout["annotations"] if label["xref"] == "x"]
    assert len(labels) == 3
    # A line comes from the left and ends where its label begins.
    assert all(label["xanchor"] == "left" and label["xshift"] > 0 for label in labels)
    wide, high = (
        430 - layout["margin"]["l"] - layout["margin"]["r"],
        202 - layout["margin"]["t"] - layout["margin"]["b"],
    )
    (left, right), (low, top) = layout["xaxis"]["range"], layout["yaxis"]["range"]
    places = [
        ((label["x"] - left) / (right - left) * wide, (label["y"] - low) / (top - low) * high + label["yshift"])
        for label in labels
    ]
    assert all(abs(a[0] - b[0]) >= 40 or abs(a[1] - b[1]) >= 12 for a, b in combinations(places, 2))
    assert all(x + 40 <= wide + layout["margin"]["r"] for x, _ in places)


def test_labels_stand_at_the_ends_on_a_logarithmic_axis_too():
    figure = compared_figure([job("k3f9x", [100.0, 10.0, 0.1], ranks=1)], "loss", log=True)
    label = figure["layout"]["annotations"][-1]
    assert (label["x"], label["y"]) == (2.0, pytest.approx(math.log10(0.1)))


def test_a_job_without_the_metric_or_with_nothing_finite_has_an_empty_line_and_no_label():
    nothing = Compared("20261121-024900-aaaaa", SeriesBook().band("loss"), 0.0)
    figure = compared_figure([nothing, job("bbbbb", [float("nan")] * 3)], "loss", log=True)
    assert figure["data"][0]["x"] == []
    assert all(value is None for value in figure["data"][1]["y"])
    assert [one["text"] for one in figure["layout"]["annotations"]] == ["step"]
    json.dumps(figure, allow_nan=False)


def test_plotly_takes_it():
    import plotly.graph_objects as go

    for against in ("step", "elapsed"):
        go.Figure(compared_figure([job("k3f9x", [2.0, 1.0])], "loss", against=against, width=900, height=300))


@pytest.mark.parametrize(
    ("high", "most", "labels"),
    [
        (0.4, 4, ["0 s", "0.1 s", "0.2 s", "0.3 s", "0.4 s"]),
        (182, 7, ["0 s", "30 s", "60 s", "90 s", "120 s", "150 s", "180 s"]),
        (3000, 6, ["0 min", "10 min", "20 min", "30 min", "40 min", "50 min"]),
        (50_000, 4, ["0 h", "4 h", "8 h", "12 h"]),
        (2_000_000, 5, ["0 d", "5 d", "10 d", "15 d", "20 d"]),
    ],
)
def test_ticks_of_time_are_those_of_a_clock(high, most, labels):
    axis = time_axis(high, most)
    assert axis.low == 0
    assert axis.high == high
    assert len(axis.ticks) <= most + 1
    assert len({label.split(" ")[1] for _, label in axis.ticks}) == 1
    assert [label for _, label in axis.ticks] == labels


def test_an_axis_of_no_time_is_one():
    assert time_axis(0.0).ticks[0] == (0.0, "0 s")
