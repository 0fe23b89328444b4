"""Jobs on a real Ray cluster of two nodes, as users see them."""

import pytest

from distdl_jupyter import submit
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.events import State
from tests.clusters.functions import shows_gpus, trains, waits
from tests.conftest import wait_for
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.timeout(300)]


@pytest.mark.full
@pytest.mark.parametrize("backend", ["horovod-gloo", pytest.param("horovod-mpi", marks=pytest.mark.full)])
def test_horovod_trains_on_the_nodes_of_ray(on_ray, backend):
    job = submit(trains, compute_target="lab", node_count=2, process_count_per_node=1, distributed_backend=backend)
    assert job.results() == [3.0, 3.0]
    assert [rank.host for rank in job.view().ranks] == on_ray.names
    assert [line.text for line in job.logs(1) if line.text.startswith("rank")] == ["rank 1 of 2"]


@pytest.mark.full
def test_ranks_get_the_gpus_that_ray_has_given_to_the_job(on_ray):
    cluster_configs.add("gpus", "ray", {"address": on_ray.address, "gpus_per_node": 1})
    options = {"compute_target": "gpus", "node_count": 2, "process_count_per_node": 1, "distributed_backend": "torch"}
    first = submit(shows_gpus, (600,), **options)
    wait_for(lambda: any(line.text == "begun" for line in first.logs(0)), 120, "the first line")
    second = submit(shows_gpus, (0,), **options).results()
    given = [(str(rank.gpu), str(rank.gpu)) for rank in first.view().ranks]
    first.cancel(now=True)
    first.wait(60)
    for (own, marked), other in zip(second, given, strict=True):
        assert own == marked
        assert {own, other[0]} == {"0", "1"}, "two jobs on one node have one GPU each"


@pytest.mark.full
def test_what_ray_has_no_room_for_waits_with_its_reason(on_ray):
    job = submit(waits, compute_target="lab", node_count=3, process_count_per_node=1, distributed_backend="torch")
    wait_for(lambda: "waiting for 3 Ray nodes" in job.view().phases[-1].detail, 120, "the reason")
    assert "large enough: 2 nodes" in job.view().phases[-1].detail
    job.cancel()
    assert job.wait(60).state is State.CANCELED


@pytest.mark.full
@pytest.mark.fault("rank", "a lost Ray node is named, and the others end")
def test_a_lost_node_is_named(on_ray):
    job = submit(waits, compute_target="lab", node_count=2, process_count_per_node=1, distributed_backend="torch")
    wait_for(lambda: all(list(job.logs(rank)) for rank in range(2)), 120, "both ranks")
    lost = on_ray.names[1]
    on_ray.kill(lost)
    try:
        assert job.wait(90).state is State.FAILED
        assert lost in job.view().reason
        wait_for(lambda: not on_ray.hosts.running(lost, "distdl_jupyter.worker"), 60, "the end of the ranks there")
    finally:
        on_ray.join()


@pytest.mark.full
def test_ray_that_is_not_there_is_refused_with_the_remedy(tmp_path, monkeypatch):
    from distdl_jupyter.clusters.ray import RayCluster, RayOptions

    with pytest.raises(LaunchFailed) as refused:
        RayCluster().list_nodes(RayOptions(address="127.0.0.1:1"))
    assert refused.value.code == "ray-unreachable"
    assert "ray start --head" in refused.value.hint
