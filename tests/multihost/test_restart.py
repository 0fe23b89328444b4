"""A host that dies while ranks train: the job goes on from its checkpoint with the hosts that are left."""

import pytest

from distdl_jupyter.core.events import State
from distdl_jupyter.jobs.reader import JobReader
from tests.conftest import wait_for
from tests.faults import jobs

pytestmark = pytest.mark.timeout(300)

STEPS = 60


def train(steps, pause):
    """Count steps together; rank 0 keeps how far all are."""
    import json
    import os
    import time

    import torch
    import torch.distributed as dist

    import distdl_jupyter

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    path = distdl_jupyter.checkpoint_dir() / "last.json"
    first = json.loads(path.read_text()) if path.exists() else 0
    print(f"rank {rank} of {size} on {os.uname().nodename} begins at {first}", flush=True)
    for step in range(first, steps):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == size
        distdl_jupyter.log(step=step, loss=1 / (step + 1))
        if rank == 0 and (step + 1) % 5 == 0:
            new = path.with_suffix(".new")
            new.write_text(str(step + 1))
            new.replace(path)
        time.sleep(pause)
    return size, first


def launch(**options):
    return jobs.submit(train, STEPS, 0.2, compute_target="lab", distributed_backend="torch-gloo",
                       stop_grace_seconds=1.0, **options)  # fmt: skip


def text(job):
    return "\n".join(line.text for line in job.logs())


def trains_to(job, step):
    wait_for(lambda: (job.view().ranks[0].last_step or 0) >= step, 120.0, f"step {step}")


@pytest.mark.fault("restarts", "a host dies: the job continues with the remaining hosts, from the checkpoint")
@pytest.mark.full
@pytest.mark.parametrize("dies", ["node-c", "node-b"])
def test_a_host_that_dies(lab_of, dies):
    hosts = lab_of(3, options={"patience_seconds": 6, "shared": False})
    job = launch(node_count=3, min_node_count=2, max_restarts=2)
    trains_to(job, 12)
    hosts.kill(dies)
    job.wait(200)
    view = job.view()
    assert view.state is State.COMPLETED, (view.reason, text(job))
    assert dies in view.restarts[0].reason
    assert (view.node_count, view.process_count) == (2, 2)
    assert dies not in {rank.host for rank in view.ranks}
    (first,) = {first for _, first in job.results()}
    assert first >= 10
    assert [size for size, _ in job.results()] == [2, 2]
    outline = JobReader(job.folder, curves=True)
    outline.catch_up()
    assert [row.step for row in outline.curves.get("loss").get_band().rows] == list(range(STEPS))
    assert (job.folder.checkpoints / "last.json").read_text() == str(STEPS)


@pytest.mark.fault("restarts", "a host dies and one is spare: a restart continues with all nodes, from the checkpoint")
@pytest.mark.full
def test_a_host_to_spare(lab_of):
    hosts = lab_of(3, options={"patience_seconds": 6, "shared": False})
    job = launch(node_count=2, max_restarts=1)
    trains_to(job, 12)
    hosts.kill("node-b")
    job.wait(200)
    view = job.view()
    assert view.state is State.COMPLETED, (view.reason, text(job))
    assert [rank.host for rank in view.ranks] == ["node-a", "node-c"]
    assert [size for size, _ in job.results()] == [2, 2]
    assert min(first for _, first in job.results()) >= 10
    assert "node-b is no longer reachable. node-c replaces it." in {note["text"] for note in view.notes}


@pytest.mark.fault(
    "restarts", "a canceled job on hosts that share no folder: every host finds the checkpoint when it is resumed"
)
@pytest.mark.full
def test_resume_on_hosts_without_a_shared_folder(lab_of):
    lab_of(2, options={"shared": False})
    job = launch(node_count=2)
    trains_to(job, 7)
    job.cancel()
    assert job.wait(120).state is State.CANCELED
    assert job.folder.has_checkpoints, text(job)
    new = job.resume(max_run_duration_seconds=200).wait(200)
    assert new.state is State.COMPLETED, text(new)
    firsts = {first for _, first in new.results()}
    assert len(firsts) == 1, "both hosts went on from the same checkpoint"
    assert firsts.pop() >= 5
