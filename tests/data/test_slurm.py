"""Data for jobs in a real Slurm of two nodes with a disk each."""

import shutil
from pathlib import Path

import pytest

from distdl_jupyter import attach, submit
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core.events import State
from tests.conftest import wait_for
from tests.data.places import DISK, containing, no_signature_in, reachable, seen
from tests.data.wheels import assert_nodes_install
from tests.faults.jobs import kill_supervisor
from tests.slurm import needs_slurm, slurm_of  # noqa: F401

pytestmark = [pytest.mark.full, needs_slurm, pytest.mark.timeout(280)]


@pytest.fixture
def lab(slurm_of, tmp_path, monkeypatch, blob):  # noqa: F811
    Path(DISK).mkdir(exist_ok=True)
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path / "home"))
    slurm = slurm_of(2, private={name: [DISK] for name in ("node-a", "node-b")})
    cluster_configs.add("lab", "slurm", slurm.options(data_directory=DISK))
    proxy = reachable(blob, slurm.hosts.gateway, tmp_path, monkeypatch)
    slurm.proxy = proxy
    yield slurm
    proxy.close()
    shutil.rmtree(DISK, ignore_errors=True)


def run(function, **options):
    given = {"node_count": 2, "distributed_backend": "horovod-gloo", **options}
    return submit(function, compute_target="lab", **given)


@pytest.mark.parametrize("backend", ["horovod-gloo", "horovod-mpi"])
def test_each_node_takes_its_shard_before_any_rank(lab, blob, backend):
    place = containing(blob).place("cifar")
    job = run(seen, data={"train": f"{place}?shard"}, distributed_backend=backend, process_count_per_node=2)
    job.wait(250)
    assert job.state is State.COMPLETED, f"{job.view().reason} {[str(line) for line in job.logs()]}"
    nodes = {node: (folder, files) for node, folder, files in job.results()}
    assert set(nodes) == {"node-a", "node-b"}
    first, second = (nodes[name] for name in lab.names)
    assert first[0].startswith(DISK)
    assert first[1].keys().isdisjoint(second[1])
    assert len(first[1] | second[1]) == 6
    assert [(bar.host, bar.done) for bar in job.view().staging] == [("node-a", 600_000), ("node-b", 600_000)]
    assert lab.proxy.sent("part-") == 1_200_000
    no_signature_in(job.folder.path)


def test_another_supervisor_answers_nodes_that_still_fetch_and_sends_the_outputs(lab, blob):
    container = containing(blob)
    # Each request is refused for its signature until the supervisor that would renew it is gone.
    refused = lab.proxy.add("part-", status=403, code="AuthenticationFailed", times=1)
    slow = lab.proxy.add("part-", rate=50_000, cut=150_000, times=12)
    job = run(seen, data={"train": container.place("cifar")}, outputs=container.place("runs"))
    wait_for(lambda: slow.met, 120, "the first bytes")
    no_signature_in(job.folder.path, but=".in")
    kill_supervisor(job, watchdog=True)
    again = lab.proxy.add("part-", status=403, code="AuthenticationFailed", times=1)
    found = attach(job.id).wait(200)
    assert found.state is State.COMPLETED, found.view().reason
    assert refused.met
    assert again.met
    assert [files for _, _, files in found.results()] == [{f"part-{n}": bytes([n]) for n in range(6)}] * 2
    assert container.names(f"runs/{job.id}/results/")
    no_signature_in(job.folder.path)


def test_nodes_make_the_environment_of_the_jobs_packages(lab, tmp_path):
    assert_nodes_install(tmp_path / "wheels", "horovod-mpi")
