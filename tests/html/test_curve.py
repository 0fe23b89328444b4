"""The curve as a picture: well-formed, small, with exact extrema, gaps and marks."""

import math
import re
import xml.etree.ElementTree as ET

from hypothesis import example, given
from hypothesis import strategies as st

from distdl_jupyter.core.series import MetricStore
from distdl_jupyter.html.curve import WIDTH, _find_axis_range, draw_svg, thin_rows


def band_of(points, name="loss"):
    book = MetricStore()
    for rank, step, value in points:
        book.apply({"type": "metric", "t": 1.0, "rank": rank, "step": step, "values": {name: value}})
    return book.get(name).get_band()


def paths(picture, **wanted):
    return [
        e.get("d")
        for e in ET.fromstring(picture).iter()
        if e.tag.endswith("path") and all(e.get(k) == v for k, v in wanted.items())
    ]


def lines(picture):
    return paths(picture, **{"stroke-width": "2", "stroke-linejoin": "round"})


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-1e21, 1e21), st.floats()), max_size=50),
    st.text(max_size=40),
    st.integers(4, 60),
)
def test_any_curve_is_a_picture(points, name, most):
    picture = draw_svg(band_of(points), name, points=most)
    root = ET.fromstring(picture)
    numbers = re.findall(r"-?\d+\.?\d*", " ".join(paths(picture)))
    assert all(-10 <= float(number) <= WIDTH + 10 for number in numbers)
    assert "nan" not in " ".join(paths(picture))
    assert {e.tag.rpartition("}")[2] for e in root.iter()} <= {"svg", "text", "path", "circle", "rect"}


def test_a_spike_survives_thinning():
    points = [(0, float(step), 1.0 + math.sin(step)) for step in range(20_000)] + [(1, 7777.0, 500.0)]
    band = band_of(points)
    rows = thin_rows(band.rows, 60)
    assert len(rows) <= 61
    assert max(row.high for row in rows if row.high is not None) == 500.0
    assert (rows[0].step, rows[-1].step) == (0.0, 19_999.0)
    assert len(draw_svg(band, "loss", points=60)) < 8_000
    assert len(draw_svg(band, "loss")) < 16_000


def test_gaps_split_the_line_and_are_marked():
    values = [1.0, 0.8, math.nan, 0.6, 0.5]
    picture = draw_svg(band_of([(0, float(step), value) for step, value in enumerate(values)]))
    assert [drawn.count("L") for drawn in lines(picture)] == [1, 1]
    assert len(paths(picture, **{"stroke-width": "1.5"})) == 1


def test_a_lone_point_is_seen():
    assert len(lines(draw_svg(band_of([(0, 3.0, 0.5)])))) == 1


def test_the_legend_stands_only_where_there_is_a_band():
    assert "min to max" not in draw_svg(band_of([(0, 0.0, 1.0), (0, 1.0, 2.0)]))
    assert "mean of 2" in draw_svg(band_of([(0, 0.0, 1.0), (1, 0.0, 2.0)]))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5))
@example([5e-324])
@example([1.7e308, -1.7e308])
@example([1e16, 1e16 + 2])
def test_every_value_is_within_its_axis(values):
    low, high = _find_axis_range(values)
    assert math.isfinite(low)
    assert math.isfinite(high)
    assert low < high
    slack = 1e-6 * (high / 2 - low / 2)
    assert all(low - slack <= min(1e300, max(-1e300, value)) <= high + slack for value in values)
