"""What a panel is told of a job, for jobs as their events tell them."""

import json

import pytest

from distdl_jupyter.core.errors import Finding
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views import job_table
from distdl_jupyter.views.card import make_card, make_failure_card
from distdl_jupyter.views.job_page import make_rank_row
from distdl_jupyter.views.wire import to_json
from tests.widgets import recorded
from tests.written import all_written


@pytest.fixture
def seen(tmp_path):
    """Return a function that gives the view of a recorded job."""
    stories = []

    def seen_(kind):
        story = recorded.tell(kind, JobStore(tmp_path))
        stories.append(story)
        view = JobView.from_spec(story.spec)
        for event in all_written(story.folder):
            view.apply(event)
        return view

    yield seen_
    for story in stories:
        story.close()


def test_a_running_job_says_how_far_it_is(seen):
    view = seen("running")
    told = make_card(view, view.last_sign)
    assert (told.done, told.total, told.step) == (744, 1200, 744)
    assert 0 < told.remaining < 60
    rows = [make_rank_row(rank) for rank in view.ranks]
    assert [(row.host, row.status) for row in rows] == [("node-a", "ready")] * 2 + [("node-b", "ready")] * 2
    assert told.failure is None


@pytest.mark.parametrize(("value", "shown"), [("0.97", "0.97"), ("None", ""), ("", "")])
def test_the_value_of_rank_0_is_shown_where_it_is_one(value, shown):
    view = JobView.from_spec(JobSpec(id="20261121-024912-k3f9x", name="x"))
    view.apply({"t": 1.0, "type": "result", "rank": 0, "ok": True, "repr": value})
    assert make_card(view, 2.0).result == shown


def test_a_canceling_job_has_its_next_signal_and_the_ranks_that_are_left(seen):
    view = seen("canceling")
    told = make_card(view, view.last_sign)
    left = [row for row in map(make_rank_row, view.ranks) if row.status not in ("ended", "failed")]
    assert [(row.rank, row.host, row.pid) for row in left] == [(3, "node-b", 48214)]
    assert (told.stop.signal, told.stop.next) == ("INT", "TERM")


def test_a_failure_is_told_in_order(seen):
    view = seen("failed")
    failure = make_failure_card(view)
    assert (failure.rank, failure.what, failure.location) == (2, "KeyError: 'label'", "node-b (pid 48213, GPU 0)")
    assert [(other.rank, other.what.split(":")[0]) for other in failure.others] == [
        (0, "HorovodInternalError"), (1, "HorovodInternalError"), (3, "ended by SIGTERM"),
    ]  # fmt: skip
    times = [other.after for other in failure.others]
    assert times == sorted(times)
    assert failure.frames[failure.values_at].cell == 7


def test_a_killed_rank_tells_what_is_known_of_it(seen):
    failure = make_failure_card(seen("killed"))
    assert failure.what == "ended by SIGKILL"
    assert "out-of-memory" in failure.hint
    assert failure.frames == ()


def test_a_job_that_failed_as_a_whole_blames_no_rank():
    view = JobView.from_spec(JobSpec(id="20261121-024912-k3f9", name="digits"))
    view.apply({"type": "state", "t": 5.0, "state": "failed", "reason": "The environment has no torch."})
    told = make_card(view, 6.0)
    assert told.failure.rank is None
    assert told.reason == "The environment has no torch."


SPEC = JobSpec(id="20261121-024912-k3f9", name="digits", process_count_per_node=2)


def view_of(*events):
    view = JobView.from_spec(SPEC)
    for number, event in enumerate(events):
        view.apply({"t": 5.0 + number, **event})
    return view


def result(rank, *, ok, error=None):
    return {"type": "result", "rank": rank, "ok": ok, "repr": "", "error": error}


def test_ranks_that_made_different_numbers_of_steps_blame_no_rank():
    echo = {"type": "RuntimeError", "message": "Connection closed by peer", "values": [["step", "4"]], "time": 20.0}
    view = view_of(
        {"type": "metric", "rank": 1, "step": 3, "values": {"loss": 1.0}},
        {**result(1, ok=True), "t": 10.0},
        {**result(0, ok=False, error=echo), "t": 25.0},
        {"type": "state", "state": "failed", "t": 26.0},
    )
    failure = make_failure_card(view)
    conclusion = "the ranks ran different numbers of steps"
    said = f"Rank 1 had finished (step 3) while rank 0 was at step 4: {conclusion}"
    assert (failure.rank, failure.what, failure.others) == (None, said, ())
    assert "drop_last=True" in failure.hint
    assert job_table.make_job_row(view, SPEC, 30.0).message == conclusion


def test_a_failure_is_told_only_when_the_job_has_ended(seen):
    view = seen("running")
    view.apply({"type": "rank", "t": view.last_sign + 1, "rank": 1, "status": "ended", "code": 1})
    assert make_card(view, view.last_sign).failure is None
    assert make_rank_row(view.ranks[1]).status == "failed"


def test_numbers_that_are_not_finite_are_left_out_of_a_card():
    view = JobView.from_spec(JobSpec(id="x", name="x"))
    view.apply({"type": "progress", "t": 1.0, "rank": 0, "done": float("inf"), "total": float("nan")})
    view.apply({"type": "metric", "t": 1.0, "rank": 0, "step": float("nan"), "values": {"loss": "nan"}})
    json.dumps(to_json(make_card(view, 2.0)), allow_nan=False)


def test_the_gravest_and_newest_note_is_the_notice():
    view = JobView.from_spec(JobSpec(id="x", name="x"))
    for level, text in (("info", "a"), ("warning", "b"), ("error", "c"), ("error", "d"), ("warning", "e")):
        view.apply({"type": "note", "t": 1.0, "level": level, "text": text})
    assert make_card(view, 2.0).notice == Finding("error", "", "d")
