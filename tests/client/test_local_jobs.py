"""Real jobs on this machine, with Horovod and torch.distributed."""

import os
import textwrap

import pytest

from distdl_jupyter import JobFailed, attach, distributed, jobs, submit
from distdl_jupyter.clusters import emulated_node
from distdl_jupyter.core.errors import InvalidSpec, JobNotFound, JobNotRunning, JobStillRunning
from distdl_jupyter.core.events import State
from tests.conftest import until_gone, wait_for
from tests.faults import jobs as hurt
from tests.multihost.training import with_horovod, with_torch

pytestmark = pytest.mark.timeout(600)


needs_host_names = pytest.mark.skipif(
    not emulated_node.get_shell(), reason="horovod-mpi refuses several nodes: a process gets no host name of its own"
)


@pytest.mark.readme("torch", "this machine", "two emulated nodes")
def test_torch_trains_one_model_on_two_emulated_nodes():
    job = submit(with_torch, node_count=2, process_count_per_node=2)
    assert job.spec.distributed_backend == "torch"
    values = job.results(timeout=300)
    assert [(value["local_rank"], value["cross_rank"], value["host"]) for value in values] == [
        (0, 0, "node-0"), (1, 0, "node-0"), (0, 1, "node-1"), (1, 1, "node-1")]  # fmt: skip
    for value in values[1:]:
        assert value["weights"] == pytest.approx(values[0]["weights"], abs=1e-6)


def test_the_label_sets_the_transport_unless_the_code_does():
    def which():
        import torch.distributed as dist

        dist.init_process_group()
        return dist.get_backend()

    assert submit(which, np=2, distributed_backend="gloo").results(200) == ["gloo", "gloo"]


@pytest.mark.parametrize("controller", ["gloo", pytest.param("mpi", marks=needs_host_names)])
@pytest.mark.readme("horovod-gloo", "horovod-mpi")
def test_horovod_trains_one_model_on_two_emulated_nodes(controller):
    job = submit(with_horovod, node_count=2, process_count_per_node=2, distributed_backend=f"horovod-{controller}")
    values = job.results(timeout=300)
    numbers = [(v["rank"], v["local_rank"], v["local_size"], v["cross_rank"], v["cross_size"]) for v in values]
    assert numbers == [(0, 0, 2, 0, 2), (1, 1, 2, 0, 2), (2, 0, 2, 1, 2), (3, 1, 2, 1, 2)]
    for value in values[1:]:
        assert value["weights"] == pytest.approx(values[0]["weights"], abs=1e-6)
    metrics = job.metrics()
    assert len(metrics) == 5 * 4
    assert metrics.groupby("step")["loss"].nunique().max() == 4, "each rank trains on its own data"


@pytest.mark.full
def test_a_horovod_rank_that_is_done_early_leaves_the_other_at_work():
    def one_is_late():
        import time

        import horovod.torch as hvd
        import torch

        hvd.init()
        total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)
        if hvd.rank() == 0:
            time.sleep(1)
        return hvd.rank(), hvd.size(), total.item()

    job = submit(one_is_late, process_count_per_node=2, distributed_backend="horovod-gloo")
    assert job.results(120) == [(0, 2, 3.0), (1, 2, 3.0)]
    begun = [phase.phase for phase in job.view().phases]
    assert begun.index("rendezvous") < begun.index("train"), "both told that they have met"
    assert [line.text for line in job.logs() if line.stream == "err"] == []


def test_a_single_process_needs_no_backend():
    job = submit(lambda a, b=1: a + b, (1,), {"b": 41})
    assert job.spec.distributed_backend == "plain"
    assert job.result(60) == 42
    assert job.results() == [42]
    assert job.state is State.COMPLETED


def test_auto_means_one_process_where_there_is_no_gpu():
    from distdl_jupyter.core import machine

    job = submit(lambda: 1, process_count_per_node="auto", use_gpu=None)
    assert job.spec.process_count == max(1, len(machine.list_gpu_numbers()))
    job.wait(100)


def test_logs_keep_rank_stream_and_order():
    def talk():
        import os
        import sys

        for line in range(50):
            print("out", line)
        print("to err", file=sys.stderr)
        print("no newline at the end", end="")
        return os.environ["DISTDL_RANK"]

    job = submit(talk, process_count_per_node=2)
    job.wait(60)
    for rank in (0, 1):
        lines = list(job.logs(rank))
        out = [str(line) for line in lines if line.stream == "out"]
        assert out == [f"out {n}" for n in range(50)] + ["no newline at the end"]
        assert [line.text for line in lines if line.stream == "err"] == ["to err"]
    assert {line.rank for line in job.logs()} == {None, 0, 1}, "the first line says what was captured"
    assert list(job.logs(follow=True)) == list(job.logs())


@pytest.mark.parametrize(
    ("end", "state"),
    [
        pytest.param("sys.exit(0)", State.COMPLETED, id="a normal end"),
        pytest.param('os.execv(sys.executable, [sys.executable, "-c", "pass"])', State.COMPLETED, id="another program"),
        pytest.param('os.execv(sys.executable, [sys.executable, "-c", "1 / 0"])', State.FAILED, id="one that fails"),
        pytest.param("os._exit(0)", State.FAILED, id="no end", marks=pytest.mark.full),
    ],
)
def test_a_script_ends_with_the_program_that_replaces_it(tmp_path, end, state):
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys\n{end}\n")
    job = submit(entry_script=str(script)).wait(60)
    assert job.state is state, job.view().reason


def test_a_job_whose_ranks_print_without_connecting_is_running():
    def talk():
        import time

        while True:
            print("here", flush=True)
            time.sleep(0.1)

    job = submit(talk, distributed_backend="torch", process_count_per_node=2)
    wait_for(lambda: job.state is State.RUNNING, what="running")
    begun = {phase.phase: phase.started for phase in job.view().phases}
    job.cancel(now=True)
    job.wait(60)
    assert begun["train"] - begun["start"] < 10.0


def test_a_starting_job_names_the_rank_that_is_missing(tmp_path):
    def meet(folder):
        import os
        import pathlib
        import time

        import torch.distributed as dist

        while os.environ["RANK"] == "1" and not (pathlib.Path(folder) / "go").exists():
            time.sleep(0.02)
        dist.init_process_group("gloo")

    job = submit(meet, (str(tmp_path),), distributed_backend="torch", process_count_per_node=2)
    wait_for(lambda: job.view().phases[-1].detail == "waiting for rank 1", what="the meeting")
    assert job.state is State.STARTING
    (tmp_path / "go").touch()
    job.result(timeout=60)
    begun = [phase.phase for phase in job.view().phases]
    assert begun.index("rendezvous") < begun.index("train")


def ranks_in_log(job):
    """The ranks that have printed something."""
    return {line.rank for line in job.logs()} - {None}


def forever():
    import time

    print("here", flush=True)
    while True:
        time.sleep(0.1)


def stubborn():
    import signal
    import time

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("here", flush=True)
    time.sleep(600)


def test_cancel_ends_a_job_from_anywhere():
    job = submit(forever, process_count_per_node=2)
    wait_for(lambda: ranks_in_log(job), what="the first line")
    attach(job.id).cancel()
    assert job.wait(60).state is State.CANCELED
    assert not until_gone(job.id, 1.0)
    with pytest.raises(JobFailed, match="was canceled"):
        job.result()
    with pytest.raises(JobNotRunning):
        job.cancel()


def test_cancel_now_does_not_wait():
    job = submit(stubborn, process_count_per_node=1, stop_grace_seconds=60)
    wait_for(lambda: ranks_in_log(job), what="the first line")
    job.cancel()
    wait_for(lambda: job.state is State.CANCELING)
    job.cancel(now=True)
    job.wait(30)
    assert job.state is State.CANCELED


@pytest.mark.fault("supervisor", "ranks that are stuck in a library have ended within 10 s")
def test_ranks_stuck_in_a_library_go_even_when_supervisor_and_watchdog_were_both_killed():
    def stuck():
        import ctypes

        print("stuck")
        ctypes.PyDLL(None).sleep(600)  # the interpreter is not given back, so no thread of the rank can run

    job = submit(stuck, process_count_per_node=2, distributed_backend="torch")
    wait_for(lambda: [line.text for line in job.logs()].count("stuck") == 2, what="both ranks")
    supervisor = hurt.found_supervisor_of(job)
    for process in (*hurt.watchdogs_of(supervisor), supervisor):
        process.kill()
    assert not until_gone(job.id, 10.0)
    job.wait(30)
    assert job.state is State.LOST


def read_threads():
    return os.environ["OMP_NUM_THREADS"]


def test_the_users_number_of_threads_is_used():
    variables = {"OMP_NUM_THREADS": "7"}
    assert (
        submit(read_threads, process_count_per_node=2, environment_variables=variables).results(timeout=60) == ["7"] * 2
    )
    assert submit(read_threads, process_count_per_node=1).result(timeout=60) != "7"


def test_a_script_runs_with_its_arguments(tmp_path):
    (tmp_path / "helper_beside.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import argparse, os
            from helper_beside import double
            from distdl_jupyter import log
            parser = argparse.ArgumentParser()
            parser.add_argument("--epochs", type=int)
            arguments = parser.parse_args()
            for epoch in range(arguments.epochs):
                log(step=epoch, loss=1 / (epoch + 1))
            print("done", double(arguments.epochs), __name__)
            """
        )
    )
    job = submit(entry_script="train.py", source_directory=tmp_path, script_params={"--epochs": 3}, np=2)
    job.wait(60)
    assert job.state is State.COMPLETED, list(map(str, job.logs()))
    assert [str(line) for line in job.logs(1)] == ["done 6 __main__"]
    assert len(job.metrics()) == 6


def test_the_decorator_runs_here_when_called_and_there_when_submitted():
    @distributed(process_count_per_node=2)
    def train(x):
        import os

        return x, os.environ.get("DISTDL_RANK", "")

    assert train(1)[0] == 1
    job = train.submit(5)
    assert job.results(60) == [(5, "0"), (5, "1")]
    assert train.options(np=1).submit(6).results(60) == [(6, "0")]


def test_other_handles_of_a_removed_job_raise_job_not_found():
    job = submit(lambda: 1)
    handles = [attach(job.id) for _ in range(3)]
    job.wait(60)
    job.remove()
    for handle in handles:
        for call in (handle.resume, handle.remove, handle.wait, handle.rerun):
            with pytest.raises(JobNotFound) as error:
                call()
            assert "while it ran" not in str(error.value)


def test_a_running_job_is_neither_removed_nor_resumed():
    job = submit(forever)
    with pytest.raises(JobStillRunning, match="Cancel it"):
        job.remove()
    with pytest.raises(JobStillRunning):
        job.resume()
    job.cancel(now=True)
    job.wait(60)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"distributed_backend": "horovdo"},
            "Did you mean horovod-(mpi or horovod-gloo|gloo or horovod-mpi)",
        ),
        ({"nodes": 2}, "Did you mean node_count"),
        ({"process_count_per_node": 0}, "must be an integer from 1 to 100,000, not"),
        ({"process_count_per_node": 2, "distributed_backend": "plain"}, "runs one process"),
        ({"max_run_duration_seconds": -1}, "must be a number above 0, not"),
        ({"compute_target": "lab"}, "Unknown cluster 'lab'"),
        ({"controller": "mpi"}, "Neither the backend"),
        ({"env": {"DISTDL_RANK": "1"}}, "is reserved for this package"),
        ({"use_gpu": True}, "The job needs 1 GPU, but this machine has none"),
        ({"vm_size": "Standard_NC99"}, "NC99"),
    ],
)
def test_bad_requests_are_refused_before_anything_starts(options, words):
    with pytest.raises(InvalidSpec, match=words):
        submit(lambda: 1, **options)
    assert jobs() == []


def test_a_submit_removes_the_folder_of_a_killed_submit(distdl_home):
    left = distdl_home / "jobs" / ".new-20260101-000000-aaaa"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    submit(lambda: 1).wait(60)
    assert not left.exists()


def test_rerun_takes_secrets_from_the_environment_only(monkeypatch):
    first = submit(lambda: __import__("os").environ["API_KEY"], environment_variables={"API_KEY": "one"})
    assert first.result(60) == "one"
    with pytest.raises(InvalidSpec, match="API_KEY was set for job"):
        first.rerun()
    monkeypatch.setenv("API_KEY", "two")
    assert first.rerun().result(60) == "two"


def test_rerun_of_a_job_without_its_files_says_so():
    first = submit(lambda: 1)
    assert first.result(60) == 1
    (first.folder.path / "payload.json").unlink()
    with pytest.raises(JobNotFound, match="cannot be read"):
        first.rerun()
    assert jobs() == [first]


@pytest.mark.fault("rank", "a job that has finished its work is completed, with a note")
def test_a_crash_while_python_shuts_down_spoils_no_finished_job():
    def work():
        import atexit
        import os

        atexit.register(os.abort)
        return os.environ["RANK"]

    job = submit(work, process_count_per_node=2, distributed_backend="torch")
    assert job.results(120) == ["0", "1"]
    notes = [note["text"] for note in job.view().notes]
    assert any("(SIGABRT) during shutdown" in note for note in notes)


def test_mpi_over_nodes_is_refused_where_a_process_cannot_have_a_host_name_of_its_own(monkeypatch):
    monkeypatch.setattr(emulated_node, "get_shell", lambda: ())
    with pytest.raises(
        InvalidSpec, match=r"cannot emulate several nodes on this machine.*permission to set the host name"
    ):
        submit(lambda: 1, node_count=2, distributed_backend="horovod-mpi")
    assert jobs() == []
