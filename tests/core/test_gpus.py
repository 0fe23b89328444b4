"""Visible GPUs are those of nvidia-smi, and each job gets its own."""

import dataclasses
import os

import pytest

from distdl_jupyter import submit
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core import machine, registry
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.events import State
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, create_id
from distdl_jupyter.node import devices
from tests.conftest import wait_for
from tests.processes import executable


def forget():
    machine.list_gpus.cache_clear()
    devices.list_gpus.cache_clear()


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Return ``nvidia_smi(script)``, which puts a program of that name in front of all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(script):
        executable(tmp_path / "nvidia-smi", script)
        forget()

    yield install
    forget()


TWO = """
echo "GPU 0: NVIDIA A100 (UUID: GPU-5d5ba0d6-d33d)"
echo "GPU 1: NVIDIA H100 (UUID: GPU-77aa11bb-0042)"
"""
DIVIDED = """
echo "GPU 0: NVIDIA A100 (UUID: GPU-5d5ba0d6-d33d)"
echo "  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4)"
echo "  MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8-9bed)"
"""


@pytest.mark.parametrize(
    ("chosen", "indices", "name"),
    [
        (None, [0, 1], "NVIDIA A100"),
        ("1", [1], "NVIDIA H100"),
        ("1,7", [1], "NVIDIA H100"),
        ("1,0", [1, 0], "NVIDIA H100"),
        ("", [], ""),
        ("GPU-77aa11bb-0042,GPU-5d5ba0d6-d33d", [1, 0], "NVIDIA H100"),
        ("GPU-77", [1], "NVIDIA H100"),
        ("GPU-00", [], ""),
        ("none", [], ""),
    ],
)
def test_the_variable_limits_the_visible_gpus(nvidia_smi, monkeypatch, chosen, indices, name):
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    nvidia_smi(TWO)
    assert machine.list_gpu_numbers() == indices
    assert next((gpu.name for gpu in machine.list_gpus()), "") == name


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (None, ["MIG-c6d4f1ef-42e4", "MIG-cba663e8-9bed"]),
        ("MIG-cba663e8-9bed", ["MIG-cba663e8-9bed"]),
        ("MIG-00", []),
    ],
)
def test_a_divided_gpu_counts_as_its_parts(nvidia_smi, monkeypatch, chosen, words):
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    nvidia_smi(DIVIDED)
    assert [gpu.identifier for gpu in machine.list_gpus()] == words
    for number, word in zip(machine.list_gpu_numbers(), words, strict=True):
        assert devices.build_cuda_variables({"CUDA_VISIBLE_DEVICES": str(number)}) == {"CUDA_VISIBLE_DEVICES": word}
    assert {gpu.name for gpu in machine.list_gpus()} <= {"NVIDIA A100 (MIG 3g.20gb)", "NVIDIA A100 (MIG 1g.5gb)"}


def test_a_failing_nvidia_smi_means_no_gpus(nvidia_smi):
    nvidia_smi(f"{TWO}\nexit 9")
    assert machine.list_gpu_numbers() == []


# which job has them -----------------------------------------------------------------------------


@pytest.fixture
def two(nvidia_smi):
    """A machine with two GPUs."""
    nvidia_smi(TWO)


def wants(count, name="n", **options):
    """Return a cluster and its answer to a job of so many ranks."""
    cluster, spec = registry.get("clusters", "local"), JobSpec(id=create_id(), name=name, process_count_per_node=count)
    return cluster, spec, cluster.acquire(spec, registry.check_options("clusters", "local", options))


def placed(cluster, spec):
    return [place.gpu for place in cluster.place(spec, 0, None, Context(JobStore().prepare(create_id()))).ranks]


def test_more_ranks_than_gpus_share_them(two):
    cluster, spec, now = wants(3)
    assert now is None
    assert placed(cluster, spec) == [0, 1, 0]
    cluster.release()


def test_a_gpu_for_each_rank_is_given_where_there_are_as_many_and_refused_where_there_are_fewer(two):
    cluster, spec, now = wants(2)
    assert now is None
    assert placed(cluster, dataclasses.replace(spec, use_gpu=True)) == [0, 1]
    with pytest.raises(InvalidSpec, match="3 processes with 1 GPU each need 3 GPUs, but this machine has 2 GPUs"):
        placed(cluster, dataclasses.replace(spec, use_gpu=True, process_count_per_node=3))
    cluster.release()


def test_a_job_that_a_rank_submits_shares_the_gpus_of_its_job(two, monkeypatch):
    first, spec, _ = wants(2)
    monkeypatch.setenv("DISTDL_JOB_DIR", f"/jobs/{spec.id}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    forget()
    second, other, now = wants(1)
    assert now is None
    assert placed(second, other) == [1]
    first.release()


def holds(until):
    import os
    import time

    while not os.path.exists(until):
        time.sleep(0.02)
    return os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.fault(
    "many", "each has its own GPUs; the next job is queued and names the jobs that it waits for, until one ends"
)
def test_more_jobs_than_gpus(two, tmp_path):
    def begin(name, **options):
        return submit(holds, (str(tmp_path / name),), name=name, distributed_backend="plain", **options)

    first = begin("first")
    wait_for(lambda: first.state is State.RUNNING, 60, "the first job")
    second = begin("second")
    wait_for(lambda: second.state is State.RUNNING, 60, "the second job")
    third = begin("third")
    wait_for(lambda: "held by first (" in "".join(one.detail for one in third.view().phases), 60, "the third's turn")
    assert third.state is State.QUEUED
    impatient = begin("impatient", wait=False).wait(60)
    assert impatient.state is State.FAILED
    assert "is waiting for 1 GPU, held by first (" in impatient.view().reason
    (tmp_path / "first").touch()
    wait_for(lambda: third.state is State.RUNNING, 60, "the third job")
    for name in ("second", "third"):
        (tmp_path / name).touch()
    assert [job.result(60) for job in (first, second, third)] == ["0", "1", "0"]
    assert [rank.gpu for rank in third.view().ranks] == [0]
