"""Ranks on other hosts are asked where they stand by the agent there; a host that is gone is told as such."""

import pytest

from distdl_jupyter.core.events import State
from tests.clusters.functions import stuck
from tests.clusters.stuck import stacks_of_stuck
from tests.conftest import wait_for
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.timeout(280)]


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "horovod-gloo", "horovod-mpi"])
@pytest.mark.fault("stuck", "stack traces are shown with their host, and a host that does not respond is named")
def test_a_rank_on_another_host(lab_of, backend):
    lab = lab_of(2)
    job = lab.submit(stuck, (backend,), distributed_backend=backend)
    taken = stacks_of_stuck(job, backend)
    assert [taken.ranks[rank].host for rank in (0, 1)] == lab.hosts.names[:2]
    if backend == "torch":
        lab.hosts.cut(lab.hosts.names[1])
        wait_for(lambda: job.view().state.ended, 90, "the end")
        assert job.stacks(recorded=True).outliers == (1,)
    else:
        job.cancel(now=True)
        assert job.wait(60).state is State.CANCELED
