"""Whole jobs on hosts of their own network, file system and process table: what happens when something breaks."""

import time
from pathlib import Path

import pytest

from distdl_jupyter.core.errors import JobFailed
from distdl_jupyter.core.store import JobStore
from tests import profiled
from tests.conftest import wait_for
from tests.hosts import needs_hosts
from tests.selection import few_or_all

pytestmark = [needs_hosts, pytest.mark.timeout(280)]

#: Put together here, so that this text itself, which travels as the function's module, does not hold it.
SECRET = "-".join(["sk", "very", "secret", "4711"])


def wait_alone():

    print("waits")
    time.sleep(600)


def tell_all():
    import os
    from pathlib import Path

    outputs = Path(os.environ["DISTDL_JOB_DIR"], "outputs")
    (outputs / f"of-{os.environ['DISTDL_RANK']}").write_text(os.uname().nodename)
    if os.environ["DISTDL_LOCAL_RANK"] == "0":
        (outputs / "model.txt").write_text(os.uname().nodename)
    return {name: os.environ.get(name) for name in ("MINE", "MY_TOKEN", "NCCL_DEBUG", "EDITOR")} | {
        "directory": os.getcwd(),
        "host": os.uname().nodename,
    }


def talk(lines):
    import os

    for number in range(lines):
        print(os.environ["DISTDL_RANK"], number, "x" * 80)


def kill_one(victim):
    import os
    import signal

    import horovod.torch as hvd
    import torch

    hvd.init()
    for step in range(100_000):
        hvd.allreduce(torch.ones(3), name="ones")
        if step == 50 and hvd.rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.fault("supervisor", "nothing is left on any host")
def test_nothing_is_left_on_any_host_when_the_supervisor_is_killed(lab_of):
    lab = lab_of(2)
    lab.submit(wait_alone, distributed_backend="torch", process_count_per_node=2)
    for rank in range(4):
        lab.until_said("waits", rank)
    lab.kill_supervisor()
    lab.until_nothing_is_left()
    lab.until_state("lost")


@pytest.mark.full
@pytest.mark.fault("supervisor", "nothing is left, not even on a disconnected host")
def test_nothing_is_left_on_a_host_that_was_cut_off_when_the_supervisor_was_killed(lab_of):
    lab = lab_of(2, patience_seconds=8.0)
    lab.submit(wait_alone, distributed_backend="torch")
    for rank in range(2):
        lab.until_said("waits", rank)
    lab.hosts.cut("node-b")
    lab.kill_supervisor()
    lab.until_nothing_is_left()


@pytest.mark.full
def test_without_a_shared_folder_values_and_files_come_back(lab_of, tmp_path, monkeypatch):
    here, base = tmp_path / "notebooks", tmp_path / "base"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("EDITOR", "vi")
    lab = lab_of(2, private={"node-b": [str(tmp_path)]}, directory=str(base))
    job = lab.submit(tell_all, process_count_per_node=2, distributed_backend="torch",
                     environment_variables={"MINE": "mine", "MY_TOKEN": SECRET})  # fmt: skip
    values = job.results()
    assert [value["MINE"] for value in values] == ["mine"] * 4
    assert [value["MY_TOKEN"] for value in values] == [SECRET] * 4
    assert [value["NCCL_DEBUG"] for value in values] == ["INFO"] * 4
    assert {value["host"] for value in values} == {"node-a", "node-b"}
    assert values[0]["directory"] == str(here)
    assert values[2]["directory"].startswith(str(base))
    assert all(value["EDITOR"] != "vi" for value in values)
    outputs = JobStore().find(job.id).outputs
    kept = {str(path.relative_to(outputs)): path.read_text() for path in outputs.rglob("*") if path.is_file()}
    assert kept == {"of-0": "node-a", "of-1": "node-a", "of-2": "node-b", "of-3": "node-b",
                    "model.txt": "node-a", "node-b/model.txt": "node-b"}  # fmt: skip
    notes = {event["code"]: event["text"] for event in lab.events("note")}
    assert "node-b has no folder" in notes["working-directory"]
    assert "model.txt" in notes["file-of-several-hosts"]
    lab.until_nothing_is_left()
    assert lab.hosts.ssh("node-b", "ls", str(base / "jobs")).stdout == ""


def save_three():
    from distdl_jupyter import checkpoint_dir, log

    for step in (10, 20, 30):
        log(step=step, loss=1.0 / step)
        (checkpoint_dir() / f"model-step-{step}.pt").write_text(str(step))
    return sorted(path.name for path in checkpoint_dir().iterdir())


@pytest.mark.full
def test_hosts_without_a_shared_folder_keep_all_checkpoints_until_the_end(lab_of, distdl_home, tmp_path):
    lab = lab_of(1, private={"node-a": [str(tmp_path)]}, directory=str(tmp_path / "base"))
    job = lab.submit(save_three, node_count=1, distributed_backend="plain", keep_checkpoints="last 1")
    assert job.result() == ["model-step-10.pt", "model-step-20.pt", "model-step-30.pt"]
    assert [(one.step, Path(one.path).name) for one in job.checkpoints()] == [(30, "model-step-30.pt")]


def test_no_line_is_lost_when_every_rank_prints_megabytes(lab_of):
    lab = lab_of(2)
    count = few_or_all(10_000, 100_000)
    job = lab.submit(talk, (count,), distributed_backend="torch", process_count_per_node=2)
    lab.until_state("completed")
    said = {rank: [] for rank in range(4)}
    for event in lab.events("log"):
        shown_again = event.get("redraws") and not event.get("closed")
        if event["rank"] is not None and event["stream"] == "out" and not shown_again:
            said[event["rank"]] += event["text"].split("\n")
    assert job.state == "completed"
    for rank, lines in said.items():
        own = [line.split(" ")[:2] for line in lines if line.endswith("xxx")]
        assert own == [[str(rank), str(number)] for number in range(count)]


@pytest.mark.full
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.fault("rank", "the rank is named, on any host")
def test_a_rank_under_mpirun_that_is_killed_is_named(lab_of, victim):
    lab = lab_of(2)
    lab.submit(kill_one, (victim,), distributed_backend="horovod-mpi")
    lab.until_state("failed")
    with pytest.raises(JobFailed) as told:
        lab.job.result()
    assert (told.value.rank, told.value.signal) == (victim, "KILL")
    lab.until_nothing_is_left()


def test_a_host_that_cannot_be_reached_is_named_with_its_remedy(lab_of):
    lab = lab_of(2)
    lab.hosts.forget_host_key("node-b")
    lab.submit(wait_alone)
    lab.until_state("failed")
    with pytest.raises(JobFailed) as told:
        lab.job.result()
    assert "node-b: The host key is not known on this machine. Run ssh -F" in str(told.value)
    wait_for(lambda: not lab.agents("node-a"), 30, "the end of the agent on node-a")


def hold_memory(size, seconds):
    import os
    import time

    held = bytearray(b"x" * (size if os.environ["DISTDL_RANK"] == "1" else 1))
    time.sleep(seconds)
    return len(held)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "horovod-mpi"])
def test_what_ranks_use_is_sampled_on_each_host(lab_of, backend):
    lab, size = lab_of(2), 100_000_000
    job = lab.submit(hold_memory, (size, 6.0), distributed_backend=backend)
    job.results(200)
    frame = job.resources().to_pandas()
    assert not frame.duplicated(["time", "rank"]).any()
    last = frame.groupby("rank").last()
    assert list(last.index) == [0, 1]
    assert list(last["host"]) == lab.hosts.names
    assert abs(last["memory"][1] - last["memory"][0] - size) < 0.1 * size
    assert (frame.groupby("rank")["cpu"].count() >= 2).all()
    assert (last["node_memory"] < last["node_limit"]).all()


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "horovod-gloo", "horovod-mpi"])
def test_steps_are_recorded_on_each_host(lab_of, backend):
    lab = lab_of(2)
    job = lab.submit(profiled.train, (backend,), distributed_backend=backend)
    profiled.check_on_hosts(job, backend, lab.hosts.names)
