"""The saved page of a sweep says whether it may have changed since."""

import re

import pytest

from distdl_jupyter.saved import sweep as saved
from distdl_jupyter.views.schema import SweepPanel, TrialRow


@pytest.mark.parametrize(("state", "may_have_changed"), [("running", True), ("completed", False), ("failed", False)])
def test_only_the_page_of_a_running_sweep_says_that_it_is_not_updated(state, may_have_changed):
    panel = SweepPanel(
        id="20261121-024912-k3f9", name="digits", state=state, problem="", remedy="", words=(), metric="loss",
        maximize=False, done=1, size=4, elapsed=3.0, left=None, parameters=(),
        trials=(), best=None, processes=1, code="",
    )  # fmt: skip
    page = saved.html(panel)
    assert ("this saved page is not updated" in page) is may_have_changed
    assert "Open again with" in page


def test_labels_of_the_curves_have_equal_decimals():
    trial = TrialRow(0, "20261121-024912-aaaa", "completed", 0.5, (), 3.0, 3.0, "", (0.0, 1.0, 2.0), (2.31, 1.4, 0.52))
    panel = SweepPanel(
        id="20261121-024912-k3f9", name="digits", state="completed", problem="", remedy="", words=(), metric="loss",
        maximize=False, done=1, size=1, elapsed=3.0, left=None, parameters=(),
        trials=(trial,), best=0, processes=1, code="",
    )  # fmt: skip
    ticks = re.findall(r'text-anchor="end">([-\d.,]+)<', saved.svg(panel))
    assert len(ticks) > 2
    assert len({len(tick.partition(".")[2]) for tick in ticks}) == 1
