"""Data on its way, as bars."""

import pytest

from distdl_jupyter.cli.show import format_staging_row
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView


def event(node, source="train", **more):
    given = {"host": f"node-{node}", "done": 1_200_000, "total": 4_800_000, "files": 210, "of": 512, "cached": 300_000}
    return {"t": 1.0, "type": "staging", "node": node, "source": source, **given, **more}


def view_of(*events):
    view = JobView.from_spec(JobSpec(id="20261121-120000-aaaaa", name="x"))
    for one in events:
        view.apply(one)
    return view


def test_one_bar_for_each_source_on_each_node_in_their_order():
    view = view_of(event(1), event(0), event(0, "labels"), event(1, done=4_800_000, files=512))
    found = view.staging
    assert [(bar.source, bar.host) for bar in found] == [("train", "node-0"), ("labels", "node-0"), ("train", "node-1")]
    assert format_staging_row(found[0]) == ("train", "node-0", "1.2 MB of 4.8 MB", "210 of 512", "300 kB")


@pytest.mark.parametrize("broken", [{"node": "x"}, {"source": None}])
def test_an_event_that_says_nothing_is_left_out(broken):
    assert not view_of({**event(0), **broken}).staging
