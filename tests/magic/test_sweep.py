"""The line of ``%%sweep``, and cells that no sweep could vary, without a kernel."""

import pytest

from distdl_jupyter import capture
from distdl_jupyter.core import space
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.space import Choice, Range
from distdl_jupyter.form.arguments import SWEEP_FLAGS, make_sweep_parser
from distdl_jupyter.studies import sweeps


def test_what_is_varied_stands_before_the_flags():
    found, rest = space.parse_line("lr=loguniform(1e-4, 1e-1) width=64,128 opt='adam,sgd' --trials 5 -p 2 --env A=1")
    assert found == {"lr": Range(1e-4, 1e-1, log=True), "width": Choice((64, 128)), "opt": Choice(("adam", "sgd"))}
    chosen = make_sweep_parser().parse(rest)
    assert (chosen.trials, chosen.process_count_per_node, chosen.environment_variables) == (5, 2, ["A=1"])
    assert set(SWEEP_FLAGS) & vars(chosen).keys() == {"trials"}
    assert "--prune-after" in make_sweep_parser().format_help()


@pytest.mark.parametrize(("line", "says"), [
    ("--trials 5", "A sweep needs at least one parameter."), ("lr=3", "has only one value"),
    ("lr=1,2 width", "Unexpected argument"), ("lr=1,2 --trails 3", "--trials"),
])  # fmt: skip
def test_a_line_that_cannot_be_read_is_refused(line, says):
    with pytest.raises(InvalidSpec, match=says):
        make_sweep_parser().parse(space.parse_line(line)[1])


@pytest.mark.parametrize(("cell", "says"), [
    ("lr = 0.1\nprint(lr)", "Line 2 of the cell sets lr, which overrides"), ("print(1)", "The cell does not use lr"),
])  # fmt: skip
def test_a_cell_that_could_not_be_varied_is_refused(distdl_home, cell, says):
    parameters = {"lr": Choice((1, 2))}
    draft = capture.capture_cell(cell, space.get_first_values(parameters))
    with pytest.raises(InvalidSpec, match=says):
        sweeps.sweep_draft(draft, parameters)
