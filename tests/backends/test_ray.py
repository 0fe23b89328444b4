"""The nodes of a job are a Ray cluster as long as the driver runs, and nothing of it stays."""

import os
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from distdl_jupyter.api.submit_process import submit_source
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.plan import Placement, RankSlot
from distdl_jupyter.core.registry import backend
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.worker.watch import ray_cluster
from tests.conftest import wait_for
from tests.frameworks import RAY
from tests.processes import executable

SLEEPS = """
    import time
    import ray

    @ray.remote(num_cpus=1)
    def sleep():
        time.sleep(600)

    pending = sleep.remote()
    print("tasks are under way", ray.cluster_resources()["CPU"])
    ray.get(pending)
"""


def plan(nodes, per_node=1, gpu=None, emulated=False):
    made, options = backend("ray", {})
    spec = JobSpec(id="i", name="n", node_count=nodes, process_count_per_node=per_node, distributed_backend="ray")
    places = tuple(RankSlot(rank, rank, f"n{rank}", 0, gpu=gpu, address=f"10.0.0.{rank}", ports=(1, 2, 3, 4))
                   for rank in range(nodes))  # fmt: skip
    return made.plan(spec, Placement(places, "10.0.0.0", (5, 6, 7), "eth0", emulated=emulated), options)


def submit(code, **options):
    return submit_source(textwrap.dedent(code).strip(), options={"distributed_backend": "ray", **options})


def left_of(job):
    """Return what still runs of a job and carries its mark, Ray's own processes included."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DISTDL_JOB_ID") == job.id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:100])
        except psutil.Error:
            continue
    return found


def said(job, rank=0):
    return "\n".join(line.text for line in job.logs(rank=rank))


def folders():
    return {path for path in Path("/tmp").glob("distdl-ray-*") if path.stat().st_uid == os.getuid()}


def test_one_process_runs_on_a_node_and_ray_shares_out_what_the_node_has():
    made = plan(2, gpu=0)
    assert all("CUDA_VISIBLE_DEVICES" not in environment for environment in made.environments)
    assert {environment["RAY_USAGE_STATS_ENABLED"] for environment in made.environments} == {"0"}
    with pytest.raises(InvalidSpec) as refused:
        plan(1, per_node=2)
    assert refused.value.field == "process_count_per_node"
    assert "@ray.remote" in refused.value.hint


def test_emulated_nodes_keep_their_share_of_the_gpus():
    assert plan(2, gpu=0, emulated=True).environments[0]["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.timeout(600)
@pytest.mark.readme("ray")
def test_two_emulated_nodes_are_one_cluster_and_tasks_lines_are_in_the_drivers_log():
    before = folders()
    job = submit(RAY, node_count=2).wait(400)
    assert job.results() == [{"squares": [0, 1, 4, 9], "nodes": 2}, None]
    assert "exporter agent" not in said(job), "nobody has asked for Ray's own metrics"
    lines = [line for line in said(job).splitlines() if "square of" in line]
    assert sorted(line.rpartition(" ")[2] for line in lines) == ["0", "1", "2", "3"], "each once"
    assert left_of(job) == []
    assert folders() <= before


@pytest.mark.timeout(600)
@pytest.mark.full
def test_canceling_leaves_nothing_of_ray():
    before = folders()
    job = submit(SLEEPS)
    wait_for(lambda: "tasks are under way" in said(job) or job.state.ended, 240, "the driver's line")
    assert any("raylet" in line for line in left_of(job))
    job.cancel()
    job.wait(120)
    assert job.state is State.CANCELED
    assert left_of(job) == []
    assert folders() <= before
    text = JobStore().find(job.id).log.read_text()
    assert "left-behind" not in text, "the rank has ended it by itself"


def test_a_folder_that_nobody_holds_any_more_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_cluster, "_ROOT", tmp_path)
    old, young, held = (tmp_path / f"distdl-ray-{name * 8}" for name in "abc")
    mine = tmp_path / "distdl-ray-pictures"
    mine.mkdir()
    locks = [ray_cluster._own_folder(folder) for folder in (old, young, held)]
    for folder in (old, held, mine):
        os.utime(folder, (time.time() - 1000,) * 2)
    os.close(locks[0])
    os.close(locks[1])
    ray_cluster._remove_abandoned()
    assert (old.exists(), young.exists(), held.exists(), mine.exists()) == (False, True, True, True)
    os.close(locks[2])


def test_a_node_is_started_at_its_own_address_and_ports_and_ended_with_the_rank(tmp_path, monkeypatch):
    python = executable(tmp_path / "python", "echo $$ \"$@\"; echo 'Ray runtime started.'; exec sleep 600")
    monkeypatch.setattr(ray_cluster, "_ROOT", tmp_path)
    monkeypatch.setattr(ray_cluster.sys, "executable", str(python))
    monkeypatch.setenv("DISTDL_JOB_ID", "20260101-000000-aaaaa")
    with ray_cluster.RayNode("127.0.0.7", 3, (11, 12, 13, 14)) as node:
        node.start("--head")
        (log,) = node.folder.glob("start-*.log")
        pid, *words = log.read_text().splitlines()[0].split()
        assert psutil.pid_exists(int(pid))
        assert log.stat().st_mode & 0o077 == 0
    assert words[words.index("start") :] == [
        "start", "--head", "--node-ip-address=127.0.0.7", "--num-cpus=3", "--dashboard-agent-listen-port=11",
        "--dashboard-agent-grpc-port=12", "--runtime-env-agent-port=13", "--metrics-export-port=14",
        "--disable-usage-stats", "--block",
    ]  # fmt: skip
    assert not psutil.pid_exists(int(pid))
    assert not node.folder.exists()


def test_somebody_elses_folder_is_not_used(tmp_path):
    folder = tmp_path / "distdl-ray-x"
    folder.mkdir()
    if os.getuid() != 0:
        pytest.skip("only root can give a folder to somebody else")
    os.chown(folder, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        ray_cluster._own_folder(folder)


def test_a_ray_that_asks_nobody_for_a_token_is_refused(monkeypatch):
    made, options = backend("ray", {})
    monkeypatch.setattr("distdl_jupyter.backends.ray.metadata.version", lambda _name: "2.51.1")
    assert "accepts connections from anybody on the network" in made.unavailable(options)
    monkeypatch.setattr("distdl_jupyter.backends.ray.metadata.version", lambda _name: "2.52.0")
    assert made.unavailable(options) == ""
