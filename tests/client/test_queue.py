"""Jobs that wait for their turn on this machine: their order, what is said of it, and what may happen meanwhile."""

import contextlib
import os
import signal
import time
from dataclasses import asdict

import pytest

import distdl_jupyter
from distdl_jupyter import add_cluster, attach, cli, jobs, queue, submit
from distdl_jupyter.core import events
from distdl_jupyter.core.errors import ClusterRefused, InvalidSpec, JobNotFound, JobNotRunning
from distdl_jupyter.core.events import State
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.plan import QueueView
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, create_id
from distdl_jupyter.jobs.job_queue import prioritize
from distdl_jupyter.node import processes
from distdl_jupyter.node.devices import cores
from distdl_jupyter.supervisor.launch import call_in_background
from distdl_jupyter.supervisor.recorder import EventRecorder
from tests.conftest import wait_for


def until(path):
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.02)
    return time.time()


def fails():
    raise ValueError("no")


def begin(tmp_path, name, **options):
    options = {"cores": cores(), **options}
    return submit(until, (str(tmp_path / name),), name=name, distributed_backend="plain", **options)


def waits(job):
    return wait_for(lambda: job.view().queue, 60, f"{job.name} to wait")


def runs(job):
    wait_for(lambda: job.state is State.RUNNING, 60, f"{job.name} to run")


@pytest.mark.full
@pytest.mark.fault(
    "queue", "a killed supervisor of a waiting job is replaced; the job keeps its position and starts once"
)
def test_jobs_start_in_their_order_and_another_one_changes_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "configuration"))
    first = begin(tmp_path, "first")
    runs(first)
    second, third = begin(tmp_path, "second"), begin(tmp_path, "third")
    view = waits(second)
    assert (view.position, view.lacks, view.names) == (1, ("cores",), (f"first ({first.id[-5:]})",))
    assert view.needs == {"cores": cores()}
    assert view.free == {"cores": 0}
    waits(third)
    beside = submit(until, (str(tmp_path / "beside"),), name="beside", process_count_per_node=2)
    runs(beside)  # what asks for nothing waits for nobody
    (tmp_path / "beside").touch()
    assert cli.main(["queue"]) == 0
    printed = capsys.readouterr().out
    assert f"waiting for {cores()} cores, held by first ({first.id[-5:]})" in printed
    assert cli.main(["queue", "--first", third.id[-5:]]) == 0
    assert capsys.readouterr().out == f"third {third.id[-5:]} has priority 1\n"
    wait_for(lambda: third.view().queue.position == 1, 20, "the third job's new place")
    now = queue()
    assert [one.name for one in now.waiting] == ["third", "second"]
    assert [(one.name, one.cores) for one in now.holding] == [("first", cores())]
    assert (now.total["cores"], now.free["cores"]) == (cores(), 0)

    assert processes.signal_marked(third.folder.lock.read_text(), signal.SIGKILL)
    wait_for(lambda: third.folder.read_supervisor().is_dead, 20, "the end of the third job's supervisor")
    wait_for(lambda: third.state is State.QUEUED and third.folder.read_supervisor().is_held, 60, "another supervisor")
    wait_for(lambda: [one.name for one in queue().waiting] == ["third", "second"], 30, "its place")

    (tmp_path / "first").touch()
    runs(third)
    assert second.state is State.QUEUED
    with pytest.raises(JobNotRunning, match="is no longer queued: it is"):
        prioritize(third.id)
    add_cluster("spare", "local")
    moved = second.move("spare", cores=None)
    assert (second.state, second.view().reason) == (State.CANCELED, "The job was moved to spare.")
    runs(moved)
    assert (moved.spec.compute_target, moved.name) == ("spare", "second")
    with pytest.raises(JobNotRunning, match="is no longer queued: it is"):
        moved.move("local")
    (tmp_path / "second").touch()
    assert moved.wait(60).state is State.COMPLETED
    (tmp_path / "third").touch()
    assert third.wait(60).state is State.COMPLETED
    assert [event for event in events.read_all(third.folder.events)[0] if event["type"] == "resume"]
    wait_for(lambda: queue().holding == (), 20, "an empty machine")


def test_a_job_does_not_wait_for_one_whose_supervisor_is_gone(tmp_path):
    first = begin(tmp_path, "first", cores=None)
    runs(first)
    second = begin(tmp_path, "second", cores=None, after=first)
    waits(second)
    assert processes.signal_marked(first.folder.lock.read_text(), signal.SIGKILL)
    wait_for(lambda: second.state is State.CANCELED, 40, "the end of the job that waits")  # nobody reads the first one
    assert second.view().reason.endswith("which was lost because its supervisor is gone.")


def test_a_job_starts_after_others_have_completed_and_is_canceled_when_one_has_not(tmp_path):
    first = begin(tmp_path, "first", cores=None)
    second = begin(tmp_path, "second", cores=None, after=first)
    third = begin(tmp_path, "third", cores=None, after=[first.id, second.id[-5:]])
    assert third.spec.after == (first.id, second.id)
    view = waits(second)
    with pytest.raises(InvalidSpec, match="must be an integer from -1,000,000 to 1,000,000"):
        prioritize(second.id, 10**400)
    assert view.why == f"waiting for first ({first.id[-5:]}) to complete"
    assert [one.why for one in queue().waiting if one.id == second.id] == [view.why]
    (tmp_path / "third").touch()
    (tmp_path / "first").touch()
    runs(second)
    assert third.state is State.QUEUED
    bad = submit(fails, name="bad", distributed_backend="plain", after=second)
    after_bad = begin(tmp_path, "never", cores=None, after=bad)
    (tmp_path / "second").touch()
    assert third.result(60) >= second.result(60) >= first.result(60)
    view = after_bad.wait(60).view()
    assert view.state is State.CANCELED
    assert view.reason == f"This job starts after bad ({bad.id[-5:]}), which failed."
    assert len(jobs()) == 5


def saves():
    (distdl_jupyter.checkpoint_dir() / "step-1.pt").write_text("x")


@pytest.mark.full
def test_a_job_that_is_moved_waits_and_goes_on_as_before_and_is_moved_once(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "configuration"))
    add_cluster("spare", "local")
    first = begin(tmp_path, "first", cores=None)
    saved = submit(saves, name="saved", distributed_backend="plain").wait(60)
    waiting = saved.resume(after=first)
    waits(waiting)
    later = begin(tmp_path, "later", cores=None, after=waiting)
    (tmp_path / "later").touch()

    waiting.folder.payload.chmod(0o666)
    with pytest.raises(JobNotFound, match="is writable by others"):
        waiting.move("spare")
    assert waiting.state is State.QUEUED
    waiting.folder.payload.chmod(0o600)

    assert prioritize(waiting.id, 3) == 3
    moves = [call_in_background(lambda: attach(waiting.id).move("spare")) for _ in range(2)]
    wait_for(lambda: all(one.done() for one in moves), 60, "both answers")
    answers = []
    for one in moves:
        with contextlib.suppress(JobNotRunning):
            answers.append(one.result())
    (moved,) = answers
    assert [job.name for job in jobs()] == ["saved", "later", "saved", "saved", "first"]
    assert (moved.spec.after, moved.spec.resumed_from, moved.spec.priority) == ((first.id,), saved.id, 3)
    assert [one.path for one in moved.checkpoints()] == ["step-1.pt"]
    waits(moved)
    wait_for(lambda: later.view().queue.names == (f"saved ({moved.id[-5:]})",), 20, "who waits for it to follow")
    (tmp_path / "first").touch()
    assert moved.wait(60).state is State.COMPLETED
    assert later.wait(60).state is State.COMPLETED


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cores": 10_000}, "but this machine has"),
        ({"gpus": 1}, "The job needs 1 GPU, but this machine has none"),
        (
            {"gpus": 2, "process_count_per_node": 2, "distributed_backend": "torch"},
            "2 processes with 2 GPUs each need 4 GPUs, but this machine has none",
        ),
        ({"gpus": -1}, "gpus must be an integer from 0"),
        ({"gpus": 1, "use_gpu": False}, "gpus is 1, but use_gpu is False"),
        ({"cores": 0}, "cores must be an integer from 1 to"),
        ({"cores": True}, "cores must be an integer from 1 to"),
        ({"memory": "much"}, "memory must be a size, not 'much'"),
        ({"memory": "90000 TB"}, "of memory, but this machine has"),
        ({"priority": 0.5}, "priority must be an integer"),
        ({"after": "nothing"}, "after: "),
    ],
)
def test_what_can_never_be_is_refused_at_once(options, says):
    with pytest.raises(InvalidSpec) as refused:
        submit(fails, **options)
    assert says in str(refused.value)
    assert jobs() == []


@pytest.mark.parametrize(("text", "size"), [("24 GB", 24e9), ("1.5GiB", 1.5 * 2**30), ("512", 512), (1000, 1000)])
def test_sizes_of_memory(text, size):
    from distdl_jupyter.core.options import check_options

    assert check_options({"memory": text})["memory"] == size


def test_a_process_has_as_many_cores_for_threads_as_it_asked_for(tmp_path):
    job = submit(lambda: os.environ["OMP_NUM_THREADS"], cores=1, name="threads")
    assert job.result(60) == "1"
    assert attach(job.id).spec.cores == 1


def test_where_the_order_cannot_be_changed_from_here_no_other_priority_is_said(distdl_home):
    store = JobStore()
    spec = JobSpec(id=create_id(), name="far", created=time.time(), compute_target="slurm")
    folder = store.prepare(spec.id)
    folder.spec_file.write_text(spec.dumps())
    lock = JobLock.acquire(folder.lock)
    folder = store.publish(folder)
    recorder = EventRecorder(folder, spec)
    recorder.write("queue", **asdict(QueueView(host="Slurm", is_fixed=True)))
    try:
        with pytest.raises(ClusterRefused, match="is queued on Slurm, so its order cannot be changed here"):
            prioritize(folder.id, 5)
        assert not folder.control.exists()
    finally:
        recorder.close()
        lock.release()
