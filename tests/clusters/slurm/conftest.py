"""A real Slurm, whose queue is empty after each test."""

import pytest

from distdl_jupyter import attach
from distdl_jupyter.core.store import JobStore
from tests.conftest import wait_for
from tests.faults.jobs import supervisor_of
from tests.slurm import accounted, site, slurm, slurm_of, two_nodes  # noqa: F401 - fixtures


def slurm_jobs(cluster):
    """Return {job number: state} of the jobs that wait or run."""
    said = cluster.run("squeue", "-h", "-o", "%i %T").stdout.split()
    return dict(zip(said[::2], said[1::2], strict=True))


@pytest.fixture
def nothing_stays(slurm):  # noqa: F811 - the fixture
    yield
    for job in map(attach, JobStore().list_ids()):
        if not job.state.ended and (supervisor := supervisor_of(job)):
            supervisor.kill()  # a test has failed, or has taken its Slurm away
    slurm.run("scancel", "--user=root", check=False)
    wait_for(lambda: not slurm_jobs(slurm), what="an empty queue")
