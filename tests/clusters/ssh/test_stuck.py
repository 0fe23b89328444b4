"""Ranks on other hosts are asked where they stand by the agent there; a host that is gone is told as such."""

import pytest

from distdl_jupyter.core.state import State
from tests.conftest import wait_for
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.timeout(280)]


def stuck(backend):
    """Rank 1 sleeps while rank 0 waits for it."""
    import time

    import torch

    from distdl_jupyter import log

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


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "horovod-gloo",
                                     "horovod-mpi"])  # fmt: skip
@pytest.mark.fault("stuck", "stack traces are shown with their host, and a host that does not respond is named")
def test_a_rank_on_another_host(lab_of, backend):
    lab = lab_of(2)
    job = lab.submit(stuck, (backend,), distributed_backend=backend)
    wait_for(lambda: ended(job) or all(rank.last_step == 2 for rank in job.view().ranks), 150, "the third step")
    module = "torch.distributed" if backend == "torch" else "hvd"
    taken = wait_for(lambda: (found := job.stacks(30)).ranks[0].main.waits_in.startswith(module) and found, 60)
    assert taken.missing == {}
    assert taken.differ == (1,)
    assert taken.ranks[1].main.own.source == "time.sleep(3600)"
    assert [taken.ranks[rank].host for rank in (0, 1)] == lab.hosts.names[:2]
    if backend == "torch":
        lab.hosts.cut(lab.hosts.names[1])
        wait_for(lambda: ended(job), 90, "the end")
        assert job.stacks(kept=True).differ == (1,)
    else:
        job.cancel(now=True)
        assert job.wait(60).state is State.CANCELED


def ended(job):
    return job.view().state.ended
