"""Curves as the page draws them: plotly figures that Node.js makes from what the server sends."""

import json
import math
from itertools import combinations

import plotly.graph_objects as go
import pytest

from distdl_jupyter.core.series import SourceJob
from distdl_jupyter.views.curve import make_curve
from distdl_jupyter.views.wire import to_json
from tests.core.test_figure import book_of, story
from tests.front_end import bundle, evaluate


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Return ``run(code, given)``: the value of a JavaScript expression in which ``ui`` holds the module."""
    bundled = bundle("job/figure", tmp_path_factory.mktemp("node") / "figure.mjs")

    def run(code, given=None):
        text = f"import * as ui from {json.dumps(str(bundled))}; const given = {json.dumps(given)};"
        return evaluate(f"{text} console.log(JSON.stringify({code}));")

    return run


@pytest.fixture
def draw(node):
    def draw(book, metric="loss", *, log=False, dark=False, **options):
        sent = to_json(make_curve(book, metric, **options))
        colours = f"ui.coloursOf({json.dumps(dark)}, '#fafafa')"
        made = node(f"ui.curveFigure(given, {json.dumps(log)}, {colours})", sent)
        go.Figure(made)
        return made

    return draw


def named(made, name):
    (trace,) = [trace for trace in made["data"] if trace.get("name", "").split("  ")[0] == name]
    return trace


def test_the_band_says_mean_extent_time_and_ranks(draw):
    made = draw(story())
    mean = named(made, "mean of 4")
    assert (mean["x"][0], mean["y"][0]) == (0.0, pytest.approx(2.015))
    assert mean["customdata"][0][1:] == [pytest.approx(2.03), 2.0, 3, 0]
    assert named(made, "min to max")["fillcolor"].endswith("0.22)")
    end = made["data"][3]
    assert (end["x"], end["text"]) == ([744.0], ["<b>0.191</b>"])
    assert made["layout"]["annotations"] == []
    assert made["layout"]["plot_bgcolor"] == "#fafafa"


def test_each_rank_has_its_colour_and_dash_and_value(draw):
    made = draw(story(8), mode="ranks")
    lines = [trace for trace in made["data"] if trace.get("name", "").startswith("rank")]
    assert len({(line["line"]["color"], line["line"]["dash"]) for line in lines}) == 8
    assert lines[3]["name"] == "rank 3  0.206"
    assert not named(made, "min to max")["visible"]
    dark = draw(story(8), mode="ranks", dark=True)
    assert {trace["line"]["color"] for trace in dark["data"][2:10]}.isdisjoint(line["line"]["color"] for line in lines)


def test_above_eight_ranks_all_are_grey(draw):
    made = draw(story(16), mode="ranks")
    lines = made["data"][2:18]
    assert len({line["line"]["color"] for line in lines}) == 1
    assert [line["name"] for line in lines if line["showlegend"]] == ["16 ranks"]


def test_the_extent_is_behind_lines_that_hide_single_values(draw):
    points = [(0, float(step), 9.0 if step == 7_654 else 1.0) for step in range(10_000)]
    band = named(draw(book_of(points), mode="ranks"), "min to max")
    assert band["visible"]
    assert max(band["y"]) == 9.0


def test_not_finite_values_are_marked_on_the_axis(draw):
    made = draw(book_of([(0, 1.0, 1.0), (0, 2.0, math.nan), (1, 2.0, math.inf), (0, 3.0, 1.0), (1, 3.0, 2.0)]))
    assert named(made, "mean of 2")["y"] == [1.0, None, 1.5]
    marks = named(made, "nan, inf")
    assert (marks["x"], marks["y"], marks["yaxis"]) == ([2.0], [0], "y2")
    assert marks["hovertext"] == ["step 2: nan and inf on ranks 0 and 1"]


def test_a_training_that_ends_in_nan_says_so_at_its_end(draw):
    end = draw(book_of([(0, 1.0, 1.0), (0, 2.0, math.nan)]))["data"][3]
    assert (end["text"], end["yaxis"]) == (["<b>nan</b>"], "y2")


def test_log_needs_positive_values_and_says_so(draw):
    made = draw(book_of([(0, 1.0, -1.0), (0, 2.0, -2.0)]), log=True)
    assert made["layout"]["yaxis"]["type"] == "linear"
    assert [note["text"] for note in made["layout"]["annotations"]] == ["The log scale shows only values above 0."]
    assert draw(book_of([(0, 1.0, -1.0), (0, 2.0, 2.0)]), log=True)["layout"]["yaxis"]["type"] == "log"


def test_the_job_that_was_forked_is_behind_with_a_ring_at_the_step(draw):
    made = draw(story(), source_job=SourceJob(story(1), "k3f9x", 80.0))
    line, ring = made["data"][-2:]
    assert (line["name"], ring["x"], ring["y"]) == ("k3f9x", [80.0], [line["y"][10]])


def test_metrics_without_values_are_empty_figures(draw):
    assert draw(book_of([]))["data"][2]["x"] == []
    assert draw(book_of([]), mode="ranks", log=True)["layout"]["yaxis"]["type"] == "linear"


def test_compared_jobs_are_lines_whose_names_are_text(node):
    jobs = [{"id": "20261121-024900-aaaaa", "name": "<b>x</b>"}, {"id": "20261121-024900-bbbbb", "name": "d" * 40}]
    bands = [to_json(book.get("loss").get_band()) for book in (story(1, 100), book_of([]))]
    made = node("ui.comparedFigure('loss', given[0], given[1], ui.coloursOf(false, ''))", [jobs, bands])
    go.Figure(made)
    assert [trace["name"] for trace in made["data"]] == ["&lt;b&gt;x&lt;/b&gt; aaaaa", f"{'d' * 23}… bbbbb"]
    assert [len(trace["x"]) for trace in made["data"]] == [100, 0]


def test_twelve_jobs_are_all_told_apart_and_four_by_colour_alone_and_dash_alone(node):
    styles = node("Array.from({ length: 12 }, (_, at) => ui.jobStyle(at, ui.coloursOf(false, '')))")
    looks = [(style["color"], style["dash"]) for style in styles]
    assert len(set(looks)) == 12
    for one, other in combinations(looks[:4], 2):
        assert one[0] != other[0]
        assert one[1] != other[1]
