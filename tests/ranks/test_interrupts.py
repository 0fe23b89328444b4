"""Interrupts: what they reach, what they spare, and what is said while ranks are waited for."""

import os
import signal
import threading
import time

import pytest

from distdl_jupyter import ranks
from distdl_jupyter.core.errors import JobFailed
from distdl_jupyter.ranks import request
from tests.conftest import wait_for


def interrupt_when(condition):
    """Send this process what Jupyter's stop button sends, as soon as the condition holds."""

    def run():
        wait_for(condition)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_an_interrupt_reaches_the_code_of_every_rank_and_spares_the_rank(shared, told):
    waiting = interrupt_when(lambda: told.text(0) and told.text(1))
    code = "import time\nprint('begun')\ntry:\n    while True: time.sleep(0.1)\nfinally:\n    seen = 'clean'"
    with pytest.raises(ranks.CellInterrupt) as caught:
        shared.run(code, on_event=told)
    waiting.join()
    assert isinstance(caught.value, KeyboardInterrupt)
    assert {error["type"] for error in caught.value.answer.errors.values()} == {"KeyboardInterrupt"}
    assert dict(shared.run("seen").values) == {0: "clean", 1: "clean"}


def test_code_may_answer_an_interrupt_itself(shared, told):
    waiting = interrupt_when(lambda: told.text(0) and told.text(1))
    code = "import time\nprint('begun')\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    left = 'early'\nleft"
    with pytest.raises(ranks.CellInterrupt) as caught:
        shared.run(code, on_event=told)
    waiting.join()
    assert dict(caught.value.answer.values) == {0: "early", 1: "early"}


def test_interrupts_between_cells_change_nothing(shared):
    shared.run("kept = 'kept'")
    for _ in range(20):
        shared.interrupt()
    assert dict(shared.run("kept").values) == {0: "kept", 1: "kept"}


def test_interrupts_at_any_moment_leave_the_ranks_usable(shared):
    """The end of a cell and an interrupt meet at random moments; each cell is answered all the same."""
    stop = threading.Event()

    def hammer():
        while not stop.is_set():
            shared.interrupt()

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            answer = shared.run("sum(range(20_000))")
            assert all(error["type"] == "KeyboardInterrupt" for error in answer.errors.values())
            assert len(answer.values) + len(answer.errors) == 2
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    wait_for(lambda: dict(shared.run("rank").values) == {0: 0, 1: 1})


def test_another_thread_or_kernel_may_interrupt(shared, told):
    def run():
        wait_for(lambda: told.text(0))
        ranks.find_session(shared.id).interrupt()

    thread = threading.Thread(target=run)
    thread.start()
    answer = shared.run("import time\nprint('begun')\ntime.sleep(60)", on=[0], on_event=told)
    thread.join()
    assert answer.errors[0]["type"] == "KeyboardInterrupt"


def test_signal_handlers_of_a_cell_end_with_it(shared, told):
    shared.run("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    waiting = interrupt_when(lambda: told.text(0) and told.text(1))
    with pytest.raises(ranks.CellInterrupt):
        shared.run("import time\nprint('begun')\ntime.sleep(60)", on_event=told)
    waiting.join()


def test_a_failed_rank_is_told_at_once_and_the_others_are_waited_for(shared, told, monkeypatch):
    monkeypatch.setattr(request, "_FAILURE_NOTICE_SECONDS", 0.5)
    begin, came = time.monotonic(), []

    def tell(event):
        told(event)
        came.append(time.monotonic() - begin)

    shared.run("import time\nif rank == 1: raise KeyError('lost')\ntime.sleep(1.5)", on_event=tell)
    first, second = told.results()
    assert (first.rank, first.error["type"]) == (1, "KeyError")
    assert (second.rank, second.ok) == (0, True)
    assert told.notices() == [
        "Rank 1 failed; rank 0 is still running, possibly waiting for it. Interrupt the cell to stop waiting."
    ]  # fmt: skip
    assert [type(event) for event in told] == [ranks.RankResult, ranks.Notice, ranks.RankResult]
    assert came[1] - came[0] > 0.4


def test_ranks_that_hear_no_interrupt_are_named_and_a_second_one_ends_the_session(started, told, monkeypatch):
    monkeypatch.setattr(request, "_INTERRUPT_NOTICE_SECONDS", 1.0)
    session = started()
    # Deaf as a rank in a collective whose peer is gone.
    code = (
        "import signal, time\nprint('begun')\n"
        "if rank == 1:\n    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\ntime.sleep(600)"
    )
    first = interrupt_when(lambda: told.text(0) and told.text(1))
    second = interrupt_when(told.notices)
    begin = time.monotonic()
    with pytest.raises(JobFailed, match="The ranks were stopped because rank 1 did not respond to an interrupt"):
        session.run(code, on_event=told)
    first.join()
    second.join()
    assert time.monotonic() - begin < 60
    (notice,) = told.notices()
    assert notice.startswith("Rank 1 is still running 1 s after the interrupt, possibly in a collective")
    assert notice.endswith("have exited. Interrupt again to stop the ranks.")
    assert session.state() == "ended"
    assert session.job.state.value == "canceled"


def test_cancelling_the_job_ends_idle_ranks_within_the_first_grace(started):
    session = started(stop_grace_seconds=30)
    session.job.cancel()
    session.job.wait(25)
    assert session.job.state.value == "canceled"
    assert session.state().reason == "The ranks were canceled."
