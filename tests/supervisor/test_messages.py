"""Sentences about what ran and how it ended."""

import pytest

from distdl_jupyter.core.failure import RankView
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.supervisor import messages

VERSIONS = {
    "horovod": "0.28.1",
    "openmpi": "5.0",
    "torch": "2.13",
    "tensorflow": "2.16",
    "ray": "2.52",
    "python": "3.11",
}


def ended(rank, code=0, signal=None, evidence=""):
    return RankView(rank, status="ended", code=code, signal=signal, evidence=evidence)


@pytest.mark.parametrize(
    ("backend", "shown"),
    [
        ("horovod-gloo", "horovod-gloo, Horovod 0.28.1, torch 2.13, TensorFlow 2.16, Python 3.11"),
        ("horovod-mpi", "horovod-mpi, Horovod 0.28.1, Open MPI 5.0, torch 2.13, TensorFlow 2.16, Python 3.11"),
        ("torch-nccl", "torch-nccl, torch 2.13, Python 3.11"),
        ("tensorflow", "tensorflow, TensorFlow 2.16, Python 3.11"),
        ("ray", "ray, Ray 2.52, torch 2.13, TensorFlow 2.16, Python 3.11"),
    ],
)
def test_versions_are_told_of_what_can_be_used_with_a_backend(backend, shown):
    spec = JobSpec(id="20261121-024912-k3f9x", name="x", distributed_backend=backend, versions=VERSIONS)
    assert messages.versions(spec) == shown
