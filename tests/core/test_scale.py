"""Axes: every value has its place, ticks are round, ascending and few, whatever the numbers."""

import math

from hypothesis import example, given
from hypothesis import strategies as st

from distdl_jupyter.core.scale import log_axis, step_axis, value_axis
from distdl_jupyter.core.series import MAX_STEP

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def labels(axis):
    return [label for _, label in axis.ticks]


def test_the_axes_of_a_loss():
    assert labels(value_axis([0.114, 2.3], 5)) == ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]
    assert labels(log_axis([0.1, 2.3])) == ["0.1", "0.2", "0.5", "1", "2"]
    steps = step_axis(0, 744)
    assert (steps.high, labels(steps)) == (750, ["0", "200", "400", "600"])


def test_ticks_have_the_decimals_they_need():
    assert labels(value_axis([0.955, 0.966], 4)) == ["0.955", "0.960", "0.965", "0.970"]
    assert labels(value_axis([950, 1000], 5)) == ["950", "960", "970", "980", "990", "1,000"]
    assert labels(value_axis([2e8, 9e8], 5)) == ["0", "2e8", "4e8", "6e8", "8e8", "1e9"]
    assert labels(value_axis([0, 3e-7], 3)) == ["0", "1e-7", "2e-7", "3e-7"]
    assert labels(log_axis([1e-12, 1e3], 6)) == ["1e-12", "1e-9", "1e-6", "0.001", "1", "1,000"]


def test_whole_steps_have_whole_ticks():
    assert labels(step_axis(0, 0)) == ["0"]
    assert labels(step_axis(0, 3)) == ["0", "1", "2"]


def test_the_axis_grows_in_steps():
    ends = [step_axis(0, step).high for step in range(1, 2000)]
    assert ends == sorted(ends)
    assert len(set(ends)) < 120


def test_nothing_positive_has_no_logarithmic_axis():
    assert log_axis([0.0, -1.0]) is None


@given(st.lists(FINITE, max_size=5), st.integers(2, 8))
@example([5e-324], 2)
@example([1.7e308, -1.7e308], 6)
@example([1e16, 1e16 + 2], 6)
def test_value_axes(values, most):
    axis = value_axis(values, most)
    check(axis, [min(1e300, max(-1e300, value)) for value in values])
    assert 1 <= len(axis.ticks) <= most + 2


@given(st.lists(FINITE, max_size=5), st.integers(2, 8))
def test_log_axes(values, most):
    axis = log_axis(values, most)
    if axis is not None:
        assert axis.low > 0
        check(axis, [min(1e300, value) for value in values if value > 1e-300])
        assert len(axis.ticks) <= most + 2


@given(st.floats(-MAX_STEP, MAX_STEP), st.floats(-MAX_STEP, MAX_STEP), st.integers(2, 8))
@example(0.0, 5e-324, 6)
@example(MAX_STEP, MAX_STEP, 6)
def test_step_axes(one, other, most):
    low, high = sorted((one, other))
    check(step_axis(low, high, most), [low, high])


def check(axis, values):
    ticks = [value for value, _ in axis.ticks]
    slack = 1e-6 * (axis.high / 2 - axis.low / 2)
    assert axis.low < axis.high
    assert all(axis.low - slack <= value <= axis.high + slack for value in [*values, *ticks])
    assert ticks == sorted(set(ticks))
    assert len(set(labels(axis))) == len(ticks)
    assert all(0 <= axis.place(value) <= 1 for value in [*values, *ticks, math.pi])
