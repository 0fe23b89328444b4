"""Ranks in Slurm are asked where they stand by their tasks, or by a program of the launcher's on each node."""

import pytest

from distdl_jupyter.core.state import State
from tests.clusters.slurm.test_slurm import submit
from tests.conftest import wait_for
from tests.slurm import needs_slurm, slurm, slurm_of, two_nodes  # noqa: F401 - fixtures

pytestmark = [needs_slurm, pytest.mark.timeout(600)]

STUCK = """
    import time
    import torch
    from distdl_jupyter import log
    backend = "{backend}"
    if backend == "torch":
        import torch.distributed as dist
        dist.init_process_group("gloo")
        rank, meet = dist.get_rank(), lambda: dist.all_reduce(torch.ones(3))
    else:
        import horovod.torch as hvd
        hvd.init()
        rank, meet = hvd.rank(), lambda: hvd.allreduce(torch.ones(3))
    for step in range(3):
        meet()
        log(step=step, loss=1.0)
    if rank == 1:
        time.sleep(3600)
    meet()
"""


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", pytest.param("horovod-mpi", marks=pytest.mark.full)])
@pytest.mark.fault("stuck", "stack traces are shown with the Slurm node")
def test_a_rank_in_an_allocation(slurm, backend):  # noqa: F811
    job = submit(STUCK.format(backend=backend), nodes=2, backend=backend)
    wait_for(lambda: ended(job) or all(rank.last_step == 2 for rank in job.view().ranks), 180, "the third step")
    module = "torch.distributed" if backend == "torch" else "hvd"
    taken = wait_for(lambda: (found := job.stacks(40)).ranks[0].main.waits_in.startswith(module) and found, 90)
    assert taken.missing == {}
    assert taken.differ == (1,)
    assert taken.ranks[1].main.own.source == "time.sleep(3600)"
    job.cancel(now=True)
    assert job.wait(90).state is State.CANCELED


def ended(job):
    return job.view().state.ended
