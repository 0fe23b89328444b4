"""Curves: exact extrema and ends after any number of points in any order, in bounded memory."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core import series
from distdl_jupyter.core.series import MAX_METRICS, MAX_STEP, MetricStore, NonFiniteMarker

STEPS = st.one_of(st.integers(-5_000, 50_000).map(float), st.floats(-1e6, 1e6), st.floats(-MAX_STEP, MAX_STEP))
VALUES = st.one_of(st.floats(-1e3, 1e3), st.floats(-1e300, 1e300), st.sampled_from([math.nan, math.inf, -math.inf]))
POINTS = st.lists(st.tuples(st.integers(0, 3), STEPS, VALUES), min_size=1, max_size=60)


def metric(rank, step, value, t=0.0, name="loss"):
    return {"v": 1, "type": "metric", "t": t, "rank": rank, "step": step, "values": {name: value}}


def book_of(points):
    book = MetricStore()
    for rank, step, value in points:
        book.apply(metric(rank, step, value, t=1000.0 + rank))
    return book


def wave(count, ranks=1, seed=1):
    rng = random.Random(seed)
    return [(rank, float(step), math.sin(step / 50) + rng.random()) for step in range(count) for rank in range(ranks)]


def readable(book):
    """All that a view gets but the means, whose rounding depends on the order."""
    band = book.get("loss").get_band()
    rows = [(r.step, r.time, r.mean is None, r.low, r.low_rank, r.high, r.high_rank) for r in band.rows]
    lines = [(n.rank, n.steps, n.times, n.count, repr(n.last)) for n in book.get("loss").get_curves()]
    return rows, band.marks, band.ranks, band.count, band.last_step, lines


def means_agree(one, other):
    pairs = zip(one.get("loss").get_band().rows, other.get("loss").get_band().rows, strict=True)
    return all(a.mean is None or abs(a.mean - b.mean) <= 1e-9 * max(abs(a.low), abs(a.high)) for a, b in pairs)


def check_extrema(book, points):
    finite = [(value, rank) for rank, _, value in points if math.isfinite(value)]
    band = book.get("loss").get_band()
    lows = [(row.low, row.low_rank) for row in band.rows if row.low is not None]
    highs = [(row.high, row.high_rank) for row in band.rows if row.high is not None]
    assert bool(lows) == bool(finite)
    if finite:
        assert min(lows) == min(finite)
        highest = max(value for value, _ in finite)
        assert min((-value, rank) for value, rank in highs) == (-highest, min(r for v, r in finite if v == highest))


@given(POINTS, st.integers(4, 40))
def test_extrema_are_exact_and_order_makes_no_difference(points, limit):
    unique = list({(rank, step): (rank, step, value) for rank, step, value in points}.values())
    shuffled = random.Random(len(points)).sample(unique, len(unique))
    kept = series.MAX_BUCKETS
    series.MAX_BUCKETS, series._MIN_BUCKETS = limit, 2
    try:
        one, other = book_of(unique), book_of(shuffled)
        check_extrema(one, unique)
        assert readable(one) == readable(other)
        assert means_agree(one, other)
        assert len(one.get("loss").get_band().rows) <= limit + 2
    finally:
        series.MAX_BUCKETS, series._MIN_BUCKETS = kept, 128


def test_every_point_is_drawn_while_there_are_few():
    points = wave(998)
    (line,) = book_of(points).get("loss").get_curves()
    assert list(zip(line.steps, line.values, strict=True)) == [(step, value) for _, step, value in points]
    band = book_of(points).get("loss").get_band()
    assert [(row.step, row.mean) for row in band.rows] == [(step, value) for _, step, value in points]


def test_memory_and_drawn_points_are_bounded():
    book = book_of(wave(20_000, ranks=3))
    metric = book.metrics["loss"]
    assert len(metric._spans) <= series.MAX_BUCKETS
    assert metric.series[0].count == 20_000
    assert 400 < len(book.get("loss").get_band().rows) <= 1000
    assert all(400 < len(line.steps) <= 1000 for line in book.get("loss").get_curves())
    assert book.get("loss").count == 60_000


def test_many_ranks_get_coarser_curves():
    book = book_of((rank, float(step), rank + step) for rank in range(300) for step in range(0, 3000, 10))
    assert len(book.get("loss").get_band().rows) <= 64_000 // 300 + 2
    assert book.get("loss").get_band().rows[-1].high == 299 + 2990


def test_first_and_last_point_stay_exact():
    points = wave(5_001, ranks=2)
    book = book_of(points)
    band = book.get("loss").get_band()
    assert band.rows[0].step == 0.0
    assert band.rows[0].mean == (points[0][2] + points[1][2]) / 2
    assert (band.rows[-1].step, band.last_step) == (5_000.0, 5_000.0)
    assert band.rows[-1].mean == band.last == (points[-1][2] + points[-2][2]) / 2
    line = book.get("loss").get_curves()[0]
    assert (line.steps[0], line.values[0]) == points[0][1:]
    assert (line.steps[-1], line.values[-1]) == points[-2][1:]


def test_a_rank_that_has_not_reported_its_step_yet_does_not_bend_the_end():
    book = book_of([(0, 0.0, 4.0), (1, 0.0, 2.0), (0, 1.0, 3.9)])
    assert book.get("loss").get_band().rows[-1].mean == (3.9 + 2.0) / 2


def test_omitted_reports_are_counted():
    book = book_of([(0, 0.0, 4.0)])
    book.apply({**metric(0, 9.0, 1.0), "reports": 9})
    assert book.get("loss").count == book.get("loss").get_curves()[0].count == 10
    assert [row.step for row in book.get("loss").get_band().rows] == [0.0, 9.0]


def test_steps_may_be_fractions():
    book = book_of((0, step / 1000, float(step)) for step in range(500))
    assert [row.step for row in book.get("loss").get_band().rows] == [step / 1000 for step in range(500)]


def test_not_finite_values_are_gaps_with_marks():
    points = [(rank, float(step), 1.0) for step in range(6) for rank in range(2)]
    points[4] = (0, 2.0, math.nan)
    points[9] = (1, 4.0, -math.inf)
    book = book_of(points)
    band = book.get("loss").get_band()
    assert [row.mean for row in band.rows] == [1.0, 1.0, None, 1.0, None, 1.0]
    assert band.marks == [NonFiniteMarker(2.0, ("nan",), (0,)), NonFiniteMarker(4.0, ("-inf",), (1,))]
    first, second = book.get("loss").get_curves()
    assert first.values == [1.0, 1.0, None, 1.0, 1.0, 1.0]
    assert second.values == [1.0, 1.0, 1.0, 1.0, None, 1.0]


def test_marks_survive_decimation_and_stay_bounded():
    points = [(0, float(step), math.nan if step > 5000 else 1.0) for step in range(40_000)]
    band = book_of(points).get("loss").get_band()
    assert len(band.marks) <= 1000
    assert 5001.0 in {mark.step for mark in band.marks}
    assert math.isnan(band.last)
    assert band.rows[-1].mean is None


def test_events_carry_not_finite_values_as_words():
    book = book_of([(0, 1, "nan"), (0, 2, "inf"), (0, 3, 0.5)])
    assert [mark.kinds for mark in book.get("loss").get_band().marks] == [("nan",), ("inf",)]


def test_huge_values_do_not_overflow_the_mean():
    book = book_of([(rank, 0.0, 1.7e308) for rank in range(4)] + [(0, float(s), 1.7e308) for s in range(3000)])
    assert all(row.mean == 1.7e308 for row in book.get("loss").get_band().rows)


def test_malformed_events_change_nothing():
    book = book_of([(0, 1.0, 2.0)])
    before = readable(book)
    for event in (
        {"type": "metric"},
        {"type": "metric", "t": 1.0, "rank": None, "step": 1, "values": {"loss": 1}},
        metric(0, "nan", 1.0),
        metric(0, 10**400, 1.0),
        metric(0, 1e300, 1.0),
        metric(0, 1, "words"),
        metric(0, 1, None),
        {"type": "metric", "t": 1.0, "rank": 0, "step": 1, "values": [1]},
        {"type": "log", "t": 1.0, "rank": 0, "stream": "out", "text": "loss 1"},
    ):
        book.apply(event)
    assert readable(book) == before


def test_names_keep_their_order_and_are_bounded():
    book = MetricStore()
    for name in ("loss", "accuracy", "lr", "loss"):
        book.apply(metric(0, 0, 1.0, name=name))
    assert list(book.metrics) == ["loss", "accuracy", "lr"]
    for number in range(MAX_METRICS + 50):
        book.apply(metric(0, 0, 1.0, name=f"n{number}"))
    assert len(book.metrics) == MAX_METRICS


@given(POINTS, st.integers(0, 60))
def test_reading_in_between_changes_nothing(points, cut):
    whole, parts = book_of(points), MetricStore()
    for number, (rank, step, value) in enumerate(points):
        if number == cut:
            readable(parts)
        parts.apply(metric(rank, step, value, t=1000.0 + rank))
    assert readable(whole) == readable(parts)
