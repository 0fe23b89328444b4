"""Whole jobs on clusters that are slow, that fail, or that never start a job."""

import json
import os
import subprocess
import sys
import time

import pytest

from distdl_jupyter import JobFailed, attach, submit
from distdl_jupyter.core import files
from distdl_jupyter.core.events import State
from distdl_jupyter.node import processes
from tests.conftest import until_gone, wait_for
from tests.elsewhere import sign_elsewhere
from tests.faults.jobs import supervisor_of
from tests.written import all_written

pytestmark = [pytest.mark.usefixtures("bad_clusters"), pytest.mark.timeout(240)]


def trains():
    import time

    print("begins", flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        print("saved", flush=True)
        raise


def answers():
    import os

    print("rank", os.environ["RANK"])
    return int(os.environ["RANK"]) * 10


def on(target, function=answers, nodes=1, per_node=2, **options):
    return submit(function, compute_target=target, node_count=nodes, process_count_per_node=per_node,
                  distributed_backend="torch", **options)  # fmt: skip


def notes(job):
    return [note["text"] for note in job.view().notes]


def supervised_again(job) -> bool:
    return any("after its supervisor was restarted" in text for text in notes(job))


def types(job):
    return [event["type"] for event in all_written(job.folder)]


def said(job, rank):
    return [line.text for line in job.logs(rank) if line.stream == "out"]


def kill_supervisor(job):
    wait_for(lambda: supervisor_of(job), what="a supervisor").kill()


# a turn that never comes ----------------------------------------------------------------------


def test_a_job_whose_turn_never_comes_is_queued_and_says_why_and_a_cancel_ends_it_at_once():
    job = on("never", stop_grace_seconds=300, max_run_duration_seconds=1)
    reason = "waiting for free nodes (Resources)"
    wait_for(lambda: job.view().phases[-1].detail == reason, what="the reason")
    time.sleep(3)
    assert job.state is State.QUEUED, "the time in a queue does not count as running"
    job.cancel()
    job.wait(60)
    view = job.view()
    assert view.state is State.CANCELED
    assert view.failure is None
    assert [phase.phase for phase in view.phases if phase.phase == "rendezvous"] == []
    with pytest.raises(JobFailed, match="canceled"):
        job.result()


def test_a_job_of_a_host_that_is_gone_gets_a_supervisor_here_when_that_is_said():
    job = on("never", reason="pending: Priority")
    wait_for(lambda: job.view().handle, what="the handle")
    kill_supervisor(job)
    wait_for(lambda: not files.read_holder(job.folder.lock).is_held, what="the end of its supervisor")
    sign_elsewhere(job.folder.lock, "login1", 200.0)
    for file in (job.folder.events, job.folder.log):
        os.utime(file, (time.time() - 200, time.time() - 200))
    wait_for(lambda: job.view().remote_writer, what="a look at its lock")
    job.declare_lost()
    wait_for(lambda: supervised_again(job), what="another supervisor")
    assert job.view().remote_writer is None
    job.cancel()
    assert job.wait(60).state is State.CANCELED
    assert types(job).count("resume") == 1


def test_a_queued_job_that_is_taken_out_of_the_queue_by_somebody_else_has_failed():
    job = on("never")
    wait_for(lambda: job.view().handle, what="the handle")
    (job.folder.path / "queued").unlink()
    job.wait(60)
    assert job.state is State.FAILED
    assert "It was taken out of the queue." in {rank.evidence for rank in job.view().ranks}


def test_a_queued_job_that_is_forgotten_while_nobody_looks_is_lost():
    job = on("never")
    wait_for(lambda: job.view().handle, what="the handle")
    kill_supervisor(job)
    (job.folder.path / "queued").unlink()
    job.wait(60)
    assert job.state is State.LOST
    assert "No process of the job is running" in job.view().reason


def test_a_start_that_takes_longer_than_the_job_may_is_given_up():
    job = on("slow", seconds=1.5, max_run_duration_seconds=1)
    job.wait(60)
    assert job.state is State.FAILED
    assert (
        job.view().reason == "The job was stopped after 1 s (max_run_duration_seconds). Raise this limit to run longer."
    )
    assert "handle" not in types(job), "no rank was started"


# slow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["copying 3 files", "rank 1"])
def test_a_cancel_while_a_slow_cluster_sets_up_leaves_nothing(words):
    job = on("slow", seconds=1.0, function=trains)
    wait_for(lambda: any(phase.detail == words for phase in job.view().phases), what=words)
    job.cancel()
    assert job.wait(60).state is State.CANCELED
    assert not processes.find_job_pids({processes.MARK: job.id})


# failing --------------------------------------------------------------------------------------


def test_a_start_that_fails_half_way_fails_the_job_with_its_words_and_leaves_nothing():
    job = on("failing", trains, nodes=2, per_node=1, fails="start")
    job.wait(60)
    assert (job.state, job.view().reason) == (
        State.FAILED,
        "node-b could not start its ranks: no space left on device.",
    )
    assert "mkdir: no space" in [line.text for line in job.logs()]
    assert not until_gone(job.id, 5.0)


def test_a_node_that_is_lost_fails_the_job_and_is_named():
    job = on("failing", trains, nodes=2, per_node=2, fails="node")
    job.wait(90)
    view = job.view()
    assert view.state is State.FAILED
    assert view.failure.rank == 2
    assert "No response from node-1 for 10 s" in view.reason
    with pytest.raises(JobFailed, match="No response from node-1 for 10 s"):
        job.result()
    assert not until_gone(job.id, 5.0)


def test_values_that_cannot_be_brought_are_said_with_the_node():
    job = on("failing", fails="collect")
    job.wait(60)
    assert "The values of rank 1 could not be brought from node-b: the connection was lost." in notes(job)
    assert job.view().state is State.COMPLETED


# a supervisor that dies -----------------------------------------------------------------------


def test_a_cluster_that_cannot_look_for_a_lost_job_says_so():
    job = on("failing", trains, fails="sweep")
    wait_for(lambda: said(job, 0) and said(job, 1), what="ranks that train")
    kill_supervisor(job)
    assert not until_gone(job.id, 30.0)
    job.wait(60)
    assert job.state is State.LOST
    reason = job.view().reason
    assert "Its ranks could not be checked: node-b does not answer. Look at it yourself: ssh node-b ps." in reason


@pytest.mark.full
@pytest.mark.fault("supervisor", "a job whose supervisors all die is lost")
def test_supervisors_that_die_one_after_another_end_in_a_lost_job(monkeypatch):
    monkeypatch.setenv("FAKE_CAN_ATTACH", "1")
    job = on("failing", trains, fails="attach")
    wait_for(lambda: said(job, 0) and said(job, 1), what="ranks that train")
    kill_supervisor(job)
    job.wait(90)
    assert job.state is State.LOST
    assert types(job).count("resume") == 3
    assert not until_gone(job.id, 5.0)


@pytest.mark.parametrize("target", ["local", "failing", "never"])
@pytest.mark.fault("supervisor", "several readers at the same time write one end")
def test_readers_that_find_a_lost_job_at_the_same_time_settle_it_once(target):
    job = on(target, trains)
    wait_for(lambda: job.view().handle, what="a started job")
    code = (
        "import sys; from distdl_jupyter import attach; job = attach(sys.argv[1]); print('looks', flush=True);"
        "sys.stdin.readline(); print(job.wait(90).state)"
    )
    readers = [
        subprocess.Popen([sys.executable, "-c", code, job.id], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for reader in readers:
        assert reader.stdout.readline() == "looks\n"
    kill_supervisor(job)
    for reader in readers:
        reader.stdin.write("\n")
        reader.stdin.flush()
    if target == "never":
        wait_for(lambda: supervised_again(job), what="another supervisor")
        job.cancel()
    answers_ = {reader.communicate(timeout=120)[0].strip() for reader in readers}
    assert answers_ == {"canceled" if target == "never" else "lost"}
    ends = [event for event in all_written(job.folder)
            if event["type"] == "state" and State(event["state"]).ended]  # fmt: skip
    assert len(ends) == 1
    assert types(job).count("resume") == (0 if target == "local" else 1)


def test_a_job_whose_python_is_gone_is_settled_with_the_readers_own(tmp_path):
    job = on("failing", trains)
    wait_for(lambda: said(job, 0) and said(job, 1), what="ranks that train")
    spec = json.loads(job.folder.spec_file.read_text())
    job.folder.spec_file.write_text(json.dumps({**spec, "python": str(tmp_path / "removed" / "python")}))
    kill_supervisor(job)
    again = attach(job.id)
    assert again.wait(60).state is State.LOST
    assert again.view().reason_code == "supervisor-killed"
    assert types(job).count("resume") == 1
