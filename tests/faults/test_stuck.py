"""Ranks that are stuck in every way, under every backend: who waits for whom is told, and asking harms nobody."""

import concurrent.futures
import os
import signal
import textwrap
import time

import psutil
import pytest

from distdl_jupyter import ranks
from distdl_jupyter.api.submit_process import submit_source
from distdl_jupyter.core.errors import JobNotFound, JobNotRunning
from distdl_jupyter.core.events import State
from distdl_jupyter.jobs import client
from tests.clusters.functions import stuck
from tests.conftest import until_gone, wait_for
from tests.faults.conftest import end
from tests.faults.jobs import submit
from tests.processes import distdl
from tests.written import all_written

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("ended")]

#: What rank 1 does while rank 0 waits, under each backend; each of the two once in `make test`.
QUICK = (("loop", "torch"), ("sleep", "horovod-gloo"))
WAYS = [
    pytest.param(how, backend, marks=() if (how, backend) in QUICK else pytest.mark.full)
    for backend in ("torch", "horovod-gloo", "horovod-mpi")
    for how in ("loop", "sleep")
]
SHOWN = "stack traces of all ranks are shown side by side, the stuck rank first, and no rank is disturbed"


def run(how, backend="torch", **options):
    """Submit a job that gets stuck and return it when it is."""
    job = submit(stuck, backend, how, process_count_per_node=2, distributed_backend=backend, **options)
    reported(job, step=2)
    return job


def reported(job, step):
    def all_ranks():
        view = job.view()
        assert not view.state.ended, (view.reason, [line.text for line in job.logs()])
        return all(rank.last_step == step for rank in view.ranks)

    wait_for(all_ranks, 120, "the last step before the fault")


def events(job, type_):
    return [event for event in all_written(job.folder) if event["type"] == type_]


def thread_at(taken, rank, function):
    return next(one for one in taken.ranks[rank].threads if one.user_frame and one.user_frame.function == function)


@pytest.mark.full
@pytest.mark.parametrize(("how", "backend"), WAYS)
@pytest.mark.fault("stuck", SHOWN)
def test_a_rank_that_skips_a_collective_operation(how, backend):
    job = run(how, backend)
    module = "torch.distributed" if backend == "torch" else "hvd"
    taken = wait_for(lambda: (found := job.stacks(30)).ranks[0].main.awaited_call.startswith(module) and found, 60)
    assert taken.missing == {}
    assert taken.outliers == (1,)
    assert [group.ranks for group in taken.groups()] == [(1,), (0,)]
    line = {"loop": ("while True:", "pass"), "sleep": ("time.sleep(3600)",)}[how]
    assert taken.ranks[1].main.user_frame.source in line
    assert taken.ranks[1].state == {"loop": "running", "sleep": "sleeping"}[how]
    assert taken.ranks[0].step == 2
    told = repr(taken)
    assert f"rank 0 waits for it in {module}." in told
    assert line[-1] in told or line[0] in told
    assert "functions.py, line" in told


def waits_for_second(rank):
    return (
        len(rank.others) == 1 and rank.main.user_frame is not None and rank.main.user_frame.source == "second.acquire()"
    )


@pytest.mark.fault("stuck", "all threads of the rank are shown, each with the line at which it waits for the other")
def test_two_threads_that_wait_for_each_other():
    job = run("deadlock")
    taken = wait_for(lambda: (found := job.stacks(30)) and waits_for_second(found.ranks[1]) and found, 60)
    assert thread_at(taken, 1, "other").user_frame.source == "first.acquire()"
    assert "first.acquire()" in repr(taken)
    assert "first.acquire()" in taken._repr_html_()


@pytest.mark.fault("stuck", "it is reported as stopped, with a fix; then it continues and the job completes")
def test_a_stopped_rank():
    job = run("sleep")
    pid = job.view().ranks[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, 10)
        taken = job.stacks(30)
        assert "stopped" in taken.missing[0]
        assert f"kill -CONT {pid}" in taken.missing[0]
        assert taken.outliers == (0,)
        assert taken.ranks[1].main.user_frame.source == "time.sleep(3600)"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert job.stacks(30).ranks[0].main.awaited_call == "torch.distributed.all_reduce"
    end(job)


@pytest.mark.fault("stuck", "the other program is not signalled: it keeps running, and its name is reported")
def test_a_rank_that_has_become_another_program():
    job = run("program")
    pid = job.view().ranks[1].pid
    wait_for(lambda: psutil.Process(pid).name() == "sleep", 30)
    for _ in range(3):
        taken = job.stacks(30)
        assert "another program (sleep)" in taken.missing[1]
        assert taken.ranks[0].main.user_frame
        assert psutil.Process(pid).name() == "sleep"


@pytest.mark.fault(
    "stuck", "stack traces also work for code that uses faulthandler, the standard streams or signals itself"
)
def test_code_that_uses_the_same_means():
    job = submit_source(textwrap.dedent("""
        import faulthandler, io, os, signal, sys, time
        from distdl_jupyter import log
        sys.stderr = io.StringIO()
        sys.__stderr__.close()
        os.close(2)
        faulthandler.enable(open(os.devnull, "w"))
        faulthandler.register(signal.SIGUSR1, open(os.devnull, "w"))
        faulthandler.dump_traceback_later(3600, file=open(os.devnull, "w"))
        signal.signal(signal.SIGUSR2, lambda *_: None)
        os.closerange(20, 60)
        log(step=2, loss=0.0)
        time.sleep(3600)
    """).strip(), options={"process_count_per_node": 1})  # fmt: skip
    reported(job, 2)
    taken = wait_for(lambda: (found := job.stacks(30)).ranks[0].main.user_frame.source == "time.sleep(3600)" and found)
    own = taken.ranks[0].main.user_frame
    assert (own.kind, own.line) == ("cell", 12)


@pytest.mark.fault("stuck", "only the rank responds, not the processes that it has forked, and they continue")
def test_loader_processes_forked_from_a_rank():
    job = submit_source(textwrap.dedent("""
        import torch
        from torch.utils.data import DataLoader, Dataset
        from distdl_jupyter import log
        class Slow(Dataset):
            def __len__(self):
                return 10_000
            def __getitem__(self, index):
                import time
                time.sleep(0.05)
                return index
        for step, batch in enumerate(DataLoader(Slow(), batch_size=2, num_workers=2)):
            log(step=step, loss=0.0)
    """).strip(), options={"process_count_per_node": 1})  # fmt: skip
    wait_for(lambda: (job.view().ranks[0].last_step or 0) > 2, 120)
    taken = [job.stacks(30) for _ in range(3)][-1]
    assert len([one for one in taken.ranks[0].threads if one.main]) == 1
    assert taken.ranks[0].text.count("Current thread") == 1
    before = job.view().ranks[0].last_step
    wait_for(lambda: job.view().ranks[0].last_step > before + 5, 60, "the next steps")


@pytest.mark.fault("stuck", "the lines of the script are shown")
def test_a_script_that_is_stuck(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import time\n\n\ndef wait():\n    time.sleep(3600)\n\n\nprint('here', flush=True)\nwait()\n")
    job = client.submit(entry_script=str(script), process_count_per_node=2)
    wait_for(lambda: sum(str(line) == "here" for line in job.logs()) == 2, 60, "both ranks")
    taken = wait_for(lambda: (found := job.stacks(30)) and found.ranks[1].main.user_frame and found)
    assert [frame.function for frame in taken.ranks[1].main.frames if frame.is_user_code] == ["wait", "<module>"]
    assert taken.ranks[1].main.user_frame.location == "train.py, line 5"
    assert taken.ranks[1].main.user_frame.source == "time.sleep(3600)"
    assert [group.ranks for group in taken.groups()] == [(0, 1)]


@pytest.mark.full
@pytest.mark.fault("stuck", "a cell on persistent ranks is named by its number; there are no stalls between cells")
def test_a_stuck_cell_of_ranks_that_stay(monkeypatch):
    monkeypatch.setenv("DISTDL_STALL_SECONDS", "2")
    session = ranks.start(process_count_per_node=2, distributed_backend="torch")
    job = session.job
    try:
        time.sleep(4)  # nothing to wait for: that nothing happens is what is tested
        assert job.view().stall is None
        assert "code outside the job" in job.stacks(30).groups()[0].position
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            cell = pool.submit(session.run, "import time\nif rank == 1:\n    time.sleep(12)")
            stall = wait_for(lambda: job.view().stall, 30, "the stall")
            assert "rank 1 is in" in stall.text
            cell.result(60)
        wait_for(lambda: job.view().stall is None, 30, "the end of the stall")
    finally:
        session.stop()


@pytest.mark.fault("stuck", "it is reported in time, with the ranks that differ, and withdrawn automatically")
def test_a_stall_that_passes(monkeypatch):
    monkeypatch.setenv("DISTDL_STALL_SECONDS", "3")
    job = submit_source(textwrap.dedent("""
        import time
        import torch
        import torch.distributed as dist
        from distdl_jupyter import log
        dist.init_process_group("gloo")
        for step in range(3):
            dist.all_reduce(torch.ones(1))
            log(step=step, loss=0.0)
        if dist.get_rank() == 1:
            time.sleep(6)
        dist.all_reduce(torch.ones(1))
        for step in range(3, 12):
            log(step=step, loss=0.0)
            time.sleep(0.1)
    """).strip(), options={"process_count_per_node": 2, "distributed_backend": "torch"})  # fmt: skip
    stall = wait_for(lambda: job.view().stall, 120, "the stall")
    assert stall.ranks == [1]
    assert stall.text.startswith("No progress. Rank 0 waits in all_reduce, operation 4 (Cell, line 11), ")
    assert "which rank 1 has not called. Rank 1 is in Cell, line 10 (time.sleep(6))" in stall.text
    assert [(row.ranks, row.operation, row.state) for row in stall.collectives] == [
        ((0,), "all_reduce", "waiting"), ((1,), "all_reduce", "done")]  # fmt: skip
    assert [one.why for one in job.view().stacks] == ["stall"]
    job.wait(60)
    assert job.state is State.COMPLETED
    told = events(job, "stall")
    assert len(told) == 2
    assert told[1]["since"] is None
    assert job.view().stall is None


@pytest.mark.parametrize("backend", ["torch", pytest.param("horovod-gloo", marks=pytest.mark.full),
                                     pytest.param("horovod-mpi", marks=pytest.mark.full)])  # fmt: skip
@pytest.mark.fault(
    "stuck", "the job ends as failed with a sentence about the position of each rank; the stacks stay readable"
)
def test_a_hang_that_is_given_a_time(backend):
    job = run("loop", backend, hang_timeout_seconds=4)
    job.wait(90)
    view = job.view()
    assert view.state is State.FAILED, view.reason
    assert "no rank made progress for 4 s (hang_timeout_seconds)" in view.reason
    assert "rank 1 is in tests/clusters/functions.py, line" in view.reason
    assert "rank 0 waits for it in" in view.reason
    assert view.stop.by == "hang"
    assert view.failure is None
    assert [one.why for one in view.stacks] == ["hang"]
    taken = job.stacks()
    assert (taken.why, taken.outliers) == ("hang", (1,))
    assert job.stacks(number=1) == taken
    assert not until_gone(job.id)


@pytest.mark.full
@pytest.mark.fault("stuck", "stacks are captured before the ranks are stopped, and saved")
def test_a_job_whose_time_is_over():
    job = run("loop", max_run_duration_seconds=15)
    job.wait(90)
    assert job.state is State.FAILED
    assert "max_run_duration_seconds" in job.view().reason
    assert events(job, "stacks")[0]["t"] < events(job, "stop")[0]["t"]
    assert job.stacks(recorded=True).ranks[1].main.user_frame.function == "stuck"
    assert not until_gone(job.id)


@pytest.mark.fault("stuck", "all get the same response, and the ranks are asked once")
def test_ten_that_ask_at_once():
    job = run("sleep")
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        numbers = {taken.number for taken in pool.map(lambda _: job.stacks(60), range(10))}
    assert len(numbers) <= 2  # one may come while the first answers are on their way
    assert len(job.view().stacks) == max(numbers)


def nothing():
    """Do nothing."""


@pytest.mark.fault("stuck", "a request that is too early or too late gets one sentence")
def test_asking_when_nobody_runs():
    job = client.submit(nothing)
    job.wait(60)
    with pytest.raises(JobNotRunning, match="has ended \\(completed\\), so no stack traces can be captured"):
        job.stacks()
    with pytest.raises(JobNotFound, match="has no stack dumps"):
        job.stacks(recorded=True)


@pytest.mark.fault("stuck", "the command line shows the same, also saved stacks and every thread")
def test_asking_from_a_terminal():
    job = run("sleep")
    said = distdl("stacks", job.id).stdout
    assert "time.sleep(3600)" in said
    assert "rank 0 waits for it in torch.distributed.all_reduce" in said
    end(job)
    assert "time.sleep(3600)" in distdl("stacks", job.id, "--recorded").stdout
    assert "Current thread" in distdl("stacks", job.id, "--recorded", "1", "--whole").stdout
