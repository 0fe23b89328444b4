"""Ranks in Slurm are asked where they stand by their tasks, or by a program of the launcher's on each node."""

import pytest

from distdl_jupyter import submit
from distdl_jupyter.core.events import State
from tests.clusters.functions import stuck
from tests.clusters.stuck import stacks_of_stuck
from tests.slurm import needs_slurm

pytestmark = [needs_slurm, pytest.mark.timeout(600)]


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "horovod-mpi"])
@pytest.mark.fault("stuck", "stack traces are shown with the Slurm node")
def test_a_rank_in_an_allocation(slurm, backend):
    options = {"compute_target": "slurm", "node_count": 2, "process_count_per_node": 1, "distributed_backend": backend}
    job = submit(stuck, (backend,), **options)
    stacks_of_stuck(job, backend)
    job.cancel(now=True)
    assert job.wait(90).state is State.CANCELED
