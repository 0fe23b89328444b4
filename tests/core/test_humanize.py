"""How numbers, times and sizes are written."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core import humanize
from distdl_jupyter.core.events import PHASES, State


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (52, "52 s"),
        (60, "1 min"),
        (81, "1 min 21 s"),
        (3600, "1 h"),
        (7505, "2 h 5 min"),
        (90061, "1 d 1 h"),
        (-3, "0 s"),
    ],
)
def test_durations(seconds, said):
    assert humanize.duration(seconds) == said


def test_short_spans_and_past():
    assert [humanize.seconds_taken(s) for s in (0, 0.44, 9.94, 9.96, 81)] == [
        "0.0 s",
        "0.4 s",
        "9.9 s",
        "10 s",
        "1 min 21 s",
    ]
    assert [humanize.ago(s) for s in (0.2, 3, 2465, 7300, 200_000)] == [
        "just now",
        "3 s ago",
        "41 min ago",
        "2 h ago",
        "2 d ago",
    ]


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 B"),
        (312, "312 B"),
        (2_100, "2.1 kB"),
        (927_000, "927 kB"),
        (999_600, "1.0 MB"),
        (12_400_000, "12 MB"),
        (3e18, "3000 PB"),
    ],
)
def test_sizes(size, said):
    assert humanize.size(size) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.114, "0.114"), (0.04, "0.040"), (0.0803, "0.080"), (2.3, "2.30"), (47.21, "47.2"), (123.4, "123"),
        (2065.3, "2,065"), (62, "62"), (0, "0"), (-0.0, "0"), (-0.5, "-0.500"), (1.234e-5, "1.23e-5"), (0.001, "0.001"),
        (0.00312, "0.00312"), (3e9, "3e9"), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"),
    ],
)  # fmt: skip
def test_numbers(value, said):
    assert humanize.number(value) == said


@given(st.floats(-1e300, 1e300))
def test_a_number_is_short_and_near(value):
    said = humanize.number(value)
    assert len(said) <= 11 + said.count(",")
    assert float(said.replace(",", "")) == pytest.approx(value, rel=0.06, abs=1e-300)


def test_counts_and_shares():
    assert [humanize.count(value) for value in (744, 1200.0, 0.5, 1234.25)] == ["744", "1,200", "0.5", "1,234.25"]
    assert [humanize.percent(*pair) for pair in ((744, 1200), (1199.9, 1200), (1200, 1200), (0, 0))] == [
        "62 %",
        "99 %",
        "100 %",
        "0 %",
    ]


def test_words_with_numbers():
    assert [humanize.plural(1, "rank"), humanize.plural(1204, "line"), humanize.plural(2, "process")] == [
        "1 rank",
        "1,204 lines",
        "2 processes",
    ]
    assert humanize.plural(2, "index", "indices") == "2 indices"
    assert [
        humanize.listing(["image"]),
        humanize.listing([0, 1]),
        humanize.listing([0, 1, 3]),
        humanize.listing([]),
    ] == [
        "image",
        "0 and 1",
        "0, 1 and 3",
        "",
    ]
    assert [humanize.ranks([3]), humanize.ranks([0, 1]), humanize.ranks(list(range(12)))] == [
        "rank 3",
        "ranks 0 and 1",
        "12 ranks",
    ]
    assert [humanize.processes(1, 1), humanize.processes(1, 2), humanize.processes(2, 4)] == [
        "1 process",
        "1 × 2 = 2 processes",
        "2 × 4 = 8 processes",
    ]
    assert humanize.short_id("20261121-024912-k3f9") == "k3f9"


def test_moments():
    moment = time.mktime((2026, 11, 21, 2, 49, 17, 0, 0, -1))
    assert humanize.clock(moment + 0.25) == "02:49:17"
    assert humanize.date_and_clock(moment) == "2026-11-21 02:49:17"


def test_every_state_and_phase_has_its_word_and_shape():
    assert humanize.STATE_LABELS[State.RUNNING] == "Running"
    assert set(humanize.STATE_LABELS) == set(humanize.STATE_SHAPES) == {*State, humanize.STALLED}
    assert list(humanize.PHASE_LABELS) == list(PHASES)
    assert humanize.PHASE_LABELS["clean"] == "Clean up"
