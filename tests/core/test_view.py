"""The fold: the same events give the same view, whoever reads them and however they were cut."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core.events import State
from distdl_jupyter.core.failure import RankView, find_first_failure, is_lost_peer_error
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView

SPEC = JobSpec(id="20261121-024912-k3f9", name="digits", node_count=2, process_count_per_node=2, created=100.0)


def fold(*events):
    view = JobView.from_spec(SPEC)
    for number, event in enumerate(events):
        view.apply({"v": 1, "t": 101.0 + number, **event})
    return view


def state(word):
    return {"type": "state", "state": word}


@given(st.permutations(list(State)))
def test_states_only_move_forward_and_an_end_is_final(order):
    view = fold(*(state(one.value) for one in order))
    seen = [State.QUEUED]
    for one in order:
        if not seen[-1].ended and list(State).index(one) > list(State).index(seen[-1]):
            seen.append(one)
    assert view.state is seen[-1]
    assert sum(one.ended for one in seen) <= 1


def test_phases_get_their_durations():
    view = fold(
        {"type": "phase", "phase": "capture", "detail": "5 names", "seconds": 0.1},
        {"type": "phase", "phase": "stage", "detail": "nothing to copy"},
        {"type": "phase", "phase": "start", "detail": "0 of 4"},
        {"type": "phase", "phase": "start", "detail": "4 of 4"},
        {"type": "phase", "phase": "train"},
        state("completed"),
    )
    assert [(p.phase, p.detail, p.seconds) for p in view.phases] == [
        ("capture", "5 names", 0.1), ("stage", "nothing to copy", 1.0), ("start", "4 of 4", 2.0), ("train", "", 1.0),
    ]  # fmt: skip


def test_metrics_show_the_newest_value_of_each_rank():
    view = fold(
        *({"type": "metric", "rank": rank, "step": step, "values": {"loss": 10 - step + rank}}
          for step, rank in itertools.product(range(3), range(4)))
    )  # fmt: skip
    assert view.metrics["loss"].to_json() == {
        "name": "loss", "step": 2, "count": 12, "mean": 9.5, "low": 8.0, "low_rank": 0, "high": 11.0, "high_rank": 3,
    }  # fmt: skip
    assert view.ranks[3].last_step == 2


def test_time_left_follows_the_mean_pace():
    view = fold(state("running"), *({"type": "progress", "rank": 0, "done": n, "total": 10} for n in (1, 2, 3)))
    assert view.estimate_remaining(view.progress_at) == pytest.approx(7.0)
    assert view.estimate_remaining(view.progress_at + 2.0) == pytest.approx(5.0)
    assert view.compute_run_time(110.0) == 10.0


def test_unknown_events_ranks_and_fields_change_nothing():
    plain = fold(state("running"))
    more = fold(
        {**state("running"), "new": 1},
        {"type": "invented", "t": 0},
        {"type": "rank", "rank": 99, "status": "ended"},
        {"type": "metric", "rank": None, "step": 1, "values": {"x": 1}},
    )
    more.last_sign = plain.last_sign
    assert more == plain


def rank(number, *, error=None, at=None, code=None, signal=None, ended=None, evidence=""):
    one = RankView(
        number, status="ended" if ended else "started", code=code, signal=signal, ended=ended, evidence=evidence
    )
    if error:
        one.ok, one.error, one.error_time = False, {"type": error[0], "message": error[1]}, at
    return one


LOST_PEER = ("HorovodInternalError", "ncclCommAbort")


def test_the_earliest_failure_is_the_cause():
    ranks = [rank(0, error=("KeyError", "'b'"), at=2.0), rank(1, error=("KeyError", "'a'"), at=1.0)]
    failure = find_first_failure(ranks)
    assert (failure.rank, failure.what) == (1, "KeyError: 'a'")
    assert failure.others == [{"rank": 0, "what": "KeyError: 'b'", "after": 1.0}]


def test_a_silent_death_comes_before_earlier_lost_peer_errors():
    ranks = [rank(0, error=LOST_PEER, at=1.0, ended=1.1, code=1), rank(1, signal="KILL", ended=1.05)]
    assert find_first_failure(ranks).rank == 1
    assert find_first_failure(ranks).what == "ended by SIGKILL"


def test_a_rank_that_was_stopped_is_never_the_cause():
    ranks = [rank(0, signal="TERM", ended=1.0, evidence="stopped"), rank(1, code=7, ended=2.0)]
    assert find_first_failure(ranks).rank == 1


def test_a_rank_that_is_lost_with_its_node_is_the_cause_whatever_the_others_said_before():
    lost = rank(1, ended=11.0, evidence="No response from node-b for 10 s.")
    lost.host = "node-b"
    failure = find_first_failure([rank(0, error=LOST_PEER, at=3.0, ended=3.1, code=1), lost])
    assert (failure.rank, failure.kind, failure.what) == (1, "lost", "lost with node-b")
    assert failure.evidence == "No response from node-b for 10 s."


def test_an_error_before_the_loss_of_a_node_stays_the_cause():
    assert find_first_failure([rank(0, error=("KeyError", "'a'"), at=3.0), rank(1, ended=11.0)]).rank == 0


def test_lost_peer_errors_alone_still_are_a_failure():
    assert find_first_failure([rank(0, error=LOST_PEER, at=1.0)]).rank == 0


def test_no_failure_without_a_failed_rank():
    done = rank(0, ended=1.0, code=0)
    done.ok = True
    assert find_first_failure([done, rank(1)]) is None


def test_a_rank_that_ends_with_code_0_and_without_its_result_has_failed():
    ranks = [rank(0, error=LOST_PEER, at=1.0, ended=1.1, code=1), rank(1, ended=1.05, code=0)]
    failure = find_first_failure(ranks)
    assert (failure.rank, failure.kind) == (1, "exit")
    assert failure.what == "exited with code 0 before the training code finished"
    assert "os._exit()" in failure.evidence
    assert [other["rank"] for other in failure.others] == [0]


def test_a_code_of_0_that_somebody_explains_is_no_failure():
    assert find_first_failure([rank(0, ended=1.0, code=0, evidence="Another program replaced it (os.exec).")]) is None


def finished(number, at, step=None):
    return RankView(number, status="ready", ok=True, result_time=at, last_step=step)


def waiting(number, at, step=None, values=()):
    one = rank(number, error=LOST_PEER, at=at)
    one.error["values"], one.last_step, one.result_time = list(values), step, at
    return one


def test_a_rank_that_finished_while_another_still_stepped_is_told_with_both_steps():
    failure = find_first_failure([waiting(0, 25.0, step=4), finished(1, 10.0, step=3)])
    assert failure.kind == "unequal"
    assert failure.what == (
        "Rank 1 had finished (step 3) while rank 0 was at step 4: the ranks ran different numbers of steps"
    )
    assert failure.others == []
    assert all(word in failure.evidence for word in ("drop_last", "DistributedSampler", "hvd.join()", "model.join()"))


def test_the_loop_variable_of_the_waiting_rank_says_its_step():
    failure = find_first_failure([waiting(0, 25.0, step=3, values=[["step", "4"]]), finished(1, 10.0, step=3)])
    assert "while rank 0 was at step 4: the ranks ran different numbers of steps" in failure.what


@pytest.mark.parametrize(("last", "step"), [(3, 3), (None, None), (None, 4), (4, 3)])
def test_different_steps_are_not_claimed_where_nothing_says_so(last, step):
    values = [["i", "17"], ["step", "?"], ["pixel", "4"]]
    failure = find_first_failure([waiting(0, 10.2, step=step, values=values), finished(1, 10.0, step=last)])
    shown = f" (step {last})" if last else ""
    assert failure.what == (
        f"Rank 1 had finished{shown} while rank 0 was still waiting for it: the ranks did not run the "
        "same steps or collective calls"
    )
    assert "same shape" in failure.evidence


def test_a_rank_that_finishes_after_a_lost_peer_error_is_not_its_cause():
    assert find_first_failure([waiting(0, 10.0), finished(1, 10.5)]).kind == "exception"


def test_a_rank_that_delivered_its_result_never_ended_because_of_another():
    stopped = finished(1, 1.0)
    stopped.status, stopped.signal, stopped.ended = "ended", "TERM", 5.0
    failure = find_first_failure([rank(0, error=("KeyError", "'a'"), at=3.0), stopped])
    assert (failure.rank, failure.others) == (0, [])
    failure = find_first_failure([waiting(0, 3.0), stopped])
    assert (failure.rank, failure.kind) == (0, "unequal")


@pytest.mark.parametrize(
    ("type_", "message", "expected"),
    [
        ("RuntimeError", "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242", True),
        ("RuntimeError", "Connection reset by peer", True),
        ("RuntimeError", "Horovod has been shut down. This was caused by an exception on one of the ranks", True),
        (
            "DistBackendError",
            "NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error",
            True,
        ),
        ("DistBackendError", "NCCL error in: x.cpp:94, invalid usage\nDuplicate GPU detected", False),
        ("HorovodInternalError", "ncclCommInitRank failed: invalid usage", False),
        ("HorovodInternalError", "ncclAllReduce failed: unhandled cuda error", False),
        ("DistNetworkError", "The server socket has failed to listen on any local network address. EADDRINUSE", False),
        ("ValueError", "shapes (3, 4) and (5,) do not match", False),
    ],
)
def test_messages_of_lost_peers_and_no_others(type_, message, expected):
    assert is_lost_peer_error({"type": type_, "message": message}) is expected


def test_a_canceled_job_has_no_failure():
    view = fold(state("running"), {"type": "stop", "signal": "INT", "by": "user"},
                {"type": "rank", "rank": 0, "status": "ended", "signal": "INT"}, state("canceled"))  # fmt: skip
    assert view.failure is None


def test_what_a_launcher_stops_because_another_rank_crashed_after_its_work():
    crashed = RankView(1, status="ended", ok=True, signal="ABRT", ended=2.0)
    done = RankView(0, status="ended", ok=True, signal="TERM", evidence="stopped", ended=2.0)
    assert find_first_failure([done, crashed]) is None
    working = RankView(0, status="ended", signal="TERM", evidence="stopped", ended=2.0)
    assert find_first_failure([working, crashed]).rank == 1


def test_time_in_a_queue_is_neither_run_time_nor_paid():
    spec = dataclasses.replace(SPEC, node_count=1, price_per_hour=3600.0, currency="USD")
    view = JobView.from_spec(spec)
    events = [
        ("state", 100.0, {"state": "queued"}),
        ("queue", 100.0, {"position": 1, "of": 1}),
        ("state", 147.0, {"state": "starting"}),
        ("state", 148.0, {"state": "running"}),
        ("restart", 150.0, {"queued": True, "requeued": True}),
        ("state", 180.0, {"state": "starting"}),
        ("state", 181.0, {"state": "running"}),
        ("state", 183.0, {"state": "completed"}),
    ]
    seen = {}
    for type_, t, fields in events:
        view.apply({"type": type_, "t": t, **fields})
        seen[t] = (view.compute_wait(t), view.compute_run_time(t), view.compute_cost(t))
    assert seen[147.0] == (47.0, 0.0, 0.0)
    assert seen[150.0] == (47.0, 3.0, 3.0)
    assert (view.compute_wait(160.0), view.compute_run_time(160.0)) == (
        77.0,
        6.0,
    )  # it has ended: any moment is the end
    assert seen[183.0] == (77.0, 6.0, 6.0)
    waiting = JobView.from_spec(spec)
    waiting.apply({"type": "phase", "t": 100.0, "phase": "start", "detail": "Resources"})  # of Slurm, for example
    assert (waiting.compute_wait(100.5), waiting.compute_wait(130.0), waiting.compute_run_time(130.0)) == (
        0.0,
        30.0,
        0.0,
    )
