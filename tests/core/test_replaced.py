"""Ranks whose processes are replaced, or gone for a while, in a job that goes on."""

from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView

SPEC = JobSpec(id="i", name="n", process_count_per_node=2, max_restarts=3)


def told(*events):
    view = JobView.of(SPEC)
    for at, event in enumerate(({"type": "state", "state": "running"}, *events)):
        view.apply({"t": float(at), **event})
    return view


def started(rank, pid):
    return {"type": "rank", "rank": rank, "status": "started", "pid": pid, "host": "a"}


FAILED = {"type": "result", "rank": 1, "ok": False, "repr": "", "error": {"type": "KeyError", "message": "'label'"}}
ENDED = {"type": "rank", "rank": 1, "status": "ended", "signal": "KILL", "evidence": "memory"}
REPLACED = {"type": "restart", "rank": 1, "ranks": [1], "reason": "Rank 1 failed."}


def test_a_replaced_rank_begins_anew_and_the_others_stay():
    view = told(started(0, 10), started(1, 11), FAILED, ENDED, REPLACED)
    assert view.failure is None
    assert view.state is State.RUNNING
    assert (view.ranks[0].pid, view.ranks[0].status) == (10, "started")
    assert (view.ranks[1].pid, view.ranks[1].status, view.ranks[1].ok) == (None, "waiting", None)
    assert (view.ranks[1].signal, view.ranks[1].evidence, view.ranks[1].host) == (None, "", "a")
    assert view.restart_count == 1
    view.apply({"t": 9.0, **started(1, 12)})
    assert (view.ranks[1].pid, view.ranks[1].ended) == (12, None)


def test_a_rank_without_a_process_has_not_failed():
    view = told(started(1, 11), FAILED, {"type": "rank", "rank": 1, "status": "waiting", "evidence": "It went."})
    assert view.failure is None
    assert (view.ranks[1].pid, view.ranks[1].evidence) == (None, "It went.")
    assert not view.restarts


def test_the_curve_goes_on_behind_the_last_commit():
    book = SeriesBook()

    def report(step, value, rank=0):
        book.apply({"type": "metric", "t": 1.0, "rank": rank, "step": step, "values": {"loss": value}})

    for step in range(1, 8):
        report(step, 1.0)
        report(step, 1.0, rank=1)
    book.apply({"t": 2.0, **REPLACED})
    for step in range(6, 9):
        report(step, 0.5)
        report(step, 0.5, rank=1)
    for line in book.lines("loss"):
        assert list(line.steps) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert list(line.values)[4:6] == [1.0, 0.5]
