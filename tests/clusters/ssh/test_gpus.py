"""GPUs that are asked for must be on every host that is used."""

import pytest

from distdl_jupyter.core.errors import JobFailed
from tests.hosts import needs_hosts


@needs_hosts
def test_a_job_that_demands_gpus_does_not_start_on_hosts_without_them(lab_of):
    lab = lab_of(2)
    job = lab.submit(int, distributed_backend="torch", use_gpu=True)
    with pytest.raises(JobFailed, match="a GPU for each of 1 process on a host, but node-a has 0 and node-b has 0"):
        job.result(120)
