"""Step numbers of metrics that start over, that move together, and that are logged again."""

import pytest

from distdl_jupyter.worker.report import StepAxis


def places(axis, *calls):
    """The stored steps of each metric after calls of (step, names)."""
    stored = {}
    for step, names in calls:
        for (place, _replace), group in axis.assign_steps(step, names.split()).items():
            for name in group:
                stored.setdefault(name, []).append(place)
    return stored


def epochs(number, steps, names="loss"):
    return [(step, names) for _ in range(number) for step in steps]


@pytest.mark.parametrize(
    ("steps", "stored"),
    [
        (range(3), [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (range(1, 4), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (range(0, 30, 10), [0, 10, 20, 30, 40, 50, 60, 70, 80]),
        ([0.0, 0.5], [0, 0.5, 1, 1.5, 2, 2.5]),
    ],
)
def test_a_count_that_starts_over_continues(steps, stored):
    axis = StepAxis()
    assert places(axis, *epochs(3, steps)) == {"loss": stored}


def test_a_count_that_rises_is_left_alone():
    axis = StepAxis()
    assert places(axis, *epochs(1, [0, 1, 1, 5, 7.5, 100])) == {"loss": [0, 1, 1, 5, 7.5, 100]}


def test_a_count_that_falls_is_left_alone():
    axis = StepAxis()
    assert places(axis, *epochs(1, range(10, 5, -1))) == {"loss": [10, 9, 8, 7, 6]}


def test_a_late_report_is_left_alone():
    axis = StepAxis()
    assert places(axis, *epochs(1, [1, 2, 4, 3, 5])) == {"loss": [1, 2, 4, 3, 5]}
    assert axis.assign_steps(6, ["loss"]) == {(6, False): ["loss"]}


@pytest.mark.parametrize("names", ["loss val", "val loss"])
def test_the_value_of_an_epochs_end_is_at_that_end(names):
    """The last step of each epoch has a validation, in one call with the loss or in one of its own."""
    together = [call for _ in range(3) for call in [(0, "loss"), (1, "loss"), (2, names)]]
    assert places(StepAxis(), *together)["val"] == [2, 5, 8]
    apart = [call for _ in range(3) for call in [*epochs(1, range(3)), (2, "val")]]
    assert places(StepAxis(), *apart)["val"] == [2, 5, 8]


def test_the_value_of_an_epochs_begin_is_at_that_begin():
    calls = [call for _ in range(3) for call in [(0, "rate"), *epochs(1, range(3))]]
    assert places(StepAxis(), *calls) == {"rate": [0, 3, 6], "loss": list(range(9))}


def test_a_metric_that_comes_later_joins_the_count():
    calls = [*epochs(1, range(3)), *epochs(1, range(3), "accuracy loss")]
    assert places(StepAxis(), *calls) == {"loss": list(range(6)), "accuracy": [3, 4, 5]}


def test_a_count_of_epochs_beside_one_of_steps_is_left_alone():
    calls = [call for epoch in range(4) for call in [*epochs(1, range(3)), (epoch, "val")]]
    assert places(StepAxis(), *calls) == {"loss": list(range(12)), "val": [0, 1, 2, 3]}


def test_counts_that_start_over_at_different_moments_do_not_disturb_each_other():
    calls = [call for step in range(420) for call in [(step % 50, "one"), (step % 70, "other")]]
    assert places(StepAxis(), *calls) == {"one": list(range(420)), "other": list(range(420))}


def test_steps_that_are_logged_again_say_so():
    axis = StepAxis()
    places(axis, *epochs(2, range(10)))
    again = [*(key for step in (4, 5, 6) for key in axis.assign_steps(step, ["loss"]))]
    assert again == [(14, True), (15, False), (16, False)]


def test_a_return_behind_all_that_is_remembered_logs_again():
    axis = StepAxis()
    places(axis, *epochs(1, range(5000)))
    assert list(axis.assign_steps(100, ["loss"])) == [(100, True)]
    assert list(axis.assign_steps(101, ["loss"])) == [(101, False)]
