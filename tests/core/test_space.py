"""What a sweep varies is read from Python and from a line, and refused in one sentence where it cannot be."""

import contextlib
import dataclasses
import json

import optuna
import pytest

from distdl_jupyter.core import space
from distdl_jupyter.core.errors import InvalidSpec, JobNotFound
from distdl_jupyter.core.series import Row
from distdl_jupyter.core.space import (
    Choice,
    Range,
    SweepPlan,
    choice,
    get_comparison_points,
    integers,
    loguniform,
    sample_points,
    uniform,
)
from distdl_jupyter.core.spec import Group

FLOAT, INT = optuna.distributions.FloatDistribution, optuna.distributions.IntDistribution


def test_ranges_and_lists_are_understood_and_kept():
    given = {"lr": loguniform(1e-4, 1e-1), "width": [64, 128], "depth": integers(1, 4), "drop": uniform(0, 0.5),
             "optimizer": choice(["sgd", "adam"]), "of": FLOAT(1e-3, 1, log=True), "whole": INT(1, 8)}  # fmt: skip
    found = space.check_space(given)
    assert found["lr"] == Range(1e-4, 1e-1, log=True)
    assert found["width"] == Choice((64, 128))
    assert (found["of"], found["whole"]) == (Range(1e-3, 1, log=True), Range(1, 8, whole=True))
    plan = SweepPlan(parameters=found, trials=2, metric="loss")
    data = json.loads(json.dumps(dataclasses.asdict(plan)))
    assert (
        SweepPlan.from_group(Group(kind="sweep", id="20261121-024912-k3f9x", name="digits", size=2, plan=data)) == plan
    )
    assert space.get_first_values(found)["depth"] == 1
    assert space.count_combinations(found) is None
    assert space.count_combinations({"a": choice([1, 2, 3]), "b": integers(1, 4)}) == 12


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("loguniform(1e-4, 1e-1)", Range(1e-4, 1e-1, log=True)), ("integers(1,8)", Range(1, 8, whole=True)),
        ("integers(1, 8, log=True)", Range(1, 8, log=True, whole=True)), ("64,128", Choice((64, 128))),
        ("[0.1, 0.2]", Choice((0.1, 0.2))), ("adam,sgd", Choice(("adam", "sgd"))),
        ("True,False", Choice((True, False))), ("64,64,128", Choice((64, 128))),
    ],
)  # fmt: skip
def test_what_stands_on_a_line_is_understood(text, found):
    assert space.parse_domain("x", text) == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "must be a dict from names"), ({"lr": 0.1}, "must be a range such as .* or a list of values, "
        "not"), ({"lr": []}, "must be a list of 1 to 100 values"),
        ({"lr": [object()]}, "has the value <object object"), ({"lr": object()}, "or a list of values, not <object"),
        ({"lr": [float("nan")]}, "has the value nan"),
    ],
)  # fmt: skip
def test_what_is_no_space_is_refused(given, says):
    with pytest.raises(InvalidSpec, match=says):
        space.check_space(given)


@pytest.mark.parametrize("text", ["1", "normal(0,1)", "loguniform(0,1)", "uniform(2,1)", "integers(1,2.5)",
                                  "uniform(1)", "uniform(a,b)",
                                  "choice(5)", f"uniform(1,1{400 * '0'})"])  # fmt: skip
def test_a_line_that_says_nothing_is_refused(text):
    with pytest.raises(InvalidSpec):
        space.parse_domain("lr", text)


@pytest.mark.parametrize("make", [lambda: space.choice(5), lambda: space.choice("adam"),
                                  lambda: space.uniform(1, 10**400)])  # fmt: skip
def test_what_gives_no_values_is_refused(make):
    with pytest.raises(InvalidSpec):
        make()


def rows(steps):
    return [Row(float(step), 0.0, float(step)) for step in steps]


def test_trials_are_compared_at_the_same_steps_whenever_they_are_looked_at():
    whole = get_comparison_points(rows(range(1000)), -1, complete=True)
    assert [step for step, _ in whole[:41]] == [*range(41)]
    assert len(whole) < 120
    pieces, last = [], -1
    for end in range(1, 1001, 7):
        found = get_comparison_points(rows(range(end)), last, complete=True)
        pieces += found
        last = found[-1][0] if found else last
    assert pieces == [one for one in whole if one[0] <= last]
    assert get_comparison_points(rows([0, 100, 200, 300]), -1, complete=True)[0] == (0, 0.0)
    # Where other ranks may still report the newest step, it does not count yet.
    assert get_comparison_points(rows([0, 1, 2]), -1, complete=False)[-1] == (1, 1.0)
    assert sample_points(rows(range(1000)))[-1] == (999.0, 999.0)
    assert len(sample_points(rows(range(1000)))) <= 101


@pytest.mark.parametrize(
    "text",
    ["+".join(["1"] * 3000), "uniform" + "()" * 3000, "uniform(" + "-" * 3000 + "1, 2)", "1," + "-" * 3000 + "1"],
)
def test_a_deeply_nested_line_is_read_or_refused(text):
    with contextlib.suppress(InvalidSpec):
        assert space.parse_domain("x", text)


@pytest.mark.parametrize("plan", [{}, {"parameters": {"lr": [1, 2]}, "trials": 2}, {"parameters": {}, "trials": 2}])
def test_a_plan_of_another_version_is_refused_in_one_sentence(plan):
    with pytest.raises(JobNotFound) as refused:
        SweepPlan.from_group(Group(kind="sweep", id="20261121-024912-k3f9x", name="digits", size=2, plan=plan))
    assert refused.value.code == "sweep-plan-invalid"
