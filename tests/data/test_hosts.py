"""Data for jobs on SSH hosts with networks, disks and process tables of their own."""

import os
import shutil
from pathlib import Path

import pytest

import distdl_jupyter
from distdl_jupyter.core.errors import JobFailed
from tests.clusters.ssh.conftest import lab_of  # noqa: F401
from tests.data.places import DISK, containing, reachable, seen
from tests.hosts import needs_hosts

pytestmark = [pytest.mark.full, needs_hosts, pytest.mark.timeout(280)]


@pytest.fixture
def lab(lab_of, tmp_path, monkeypatch, blob):  # noqa: F811
    """Two hosts with a disk each, which reach Azurite at the address of this machine."""
    Path(DISK).mkdir(exist_ok=True)
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path / "home"))
    settings = os.environ["JUPYTER_CONFIG_DIR"]
    (tmp_path / "local").mkdir()
    made = lab_of(2, private={name: [DISK, str(tmp_path / "local")] for name in ("node-a", "node-b")}, directory=DISK)
    for name in os.listdir(blob.settings_folder):
        Path(settings, name).write_bytes(Path(blob.settings_folder, name).read_bytes())
    proxy = reachable(blob, made.hosts.gateway, tmp_path, monkeypatch)
    made.proxy = proxy
    yield made
    proxy.close()
    shutil.rmtree(DISK, ignore_errors=True)


def of_node(lab, name, *command):
    return lab.hosts.ssh(name, *command).stdout.split()


def test_each_host_takes_its_shard_and_keeps_it_for_the_next_job(lab, blob):
    place = containing(blob).place("cifar")
    job = lab.submit(seen, data={"train": f"{place}?shard"}).wait(200)
    first, second = job.results()
    assert (first[0], second[0]) == ("node-a", "node-b")
    assert first[1].startswith(DISK)
    assert first[2].keys().isdisjoint(second[2])
    assert first[2] | second[2] == {f"part-{number}": bytes([number]) for number in range(6)}
    assert [(bar.host, bar.done) for bar in job.view().staging] == [("node-a", 600_000), ("node-b", 600_000)]
    for name in lab.hosts.names:
        assert not of_node(lab, name, f"ls {DISK}/staged")
        assert len(of_node(lab, name, f"find {DISK}/blobs -type f")) == 3
        assert not of_node(lab, name, f"grep -rlE 'sig=|skoid=' {DISK}/blobs {DISK}/jobs || true")
    sent = lab.proxy.sent("part-")
    assert sent == 1_200_000
    again = lab.submit(seen, data={"train": f"{place}?shard"}).wait(200)
    assert again.results()[0][2] == first[2]
    assert lab.proxy.sent("part-") == sent


def test_a_folder_of_this_machine_is_copied_once(lab, tmp_path):
    (tmp_path / "local" / "deep").mkdir()
    (tmp_path / "local" / "a.bin").write_bytes(b"a" * 300_000)
    (tmp_path / "local" / "deep" / "b.bin").write_bytes(b"b")
    job = lab.submit(deep, data={"train": str(tmp_path / "local")}).wait(200)
    assert job.results() == [["a.bin", "deep", "deep/b.bin"]] * 2
    assert [bar.cached for bar in job.view().staging] == [0, 0]
    again = lab.submit(deep, data={"train": str(tmp_path / "local")}).wait(200)
    assert again.results() == job.results()
    assert [bar.cached for bar in again.view().staging] == [300_001, 300_001]


def deep():
    folder = distdl_jupyter.data_path("train")
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_shared_path_that_a_host_does_not_see_is_named_with_the_host(lab, tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "x").write_text("x")
    assert lab.submit(deep, data={"train": f"shared:{tmp_path}/shared"}).wait(200).results() == [["x"]] * 2
    (tmp_path / "local" / "x").write_text("x")
    with pytest.raises(JobFailed, match=r"node-[ab]: .*local has different files on this node"):
        lab.submit(deep, data={"train": f"shared:{tmp_path}/local"}).result(200)
    assert not any(rank.pid for rank in lab.job.view().ranks)


def test_hosts_that_see_different_files_at_a_path_are_named(lab):
    for name in lab.hosts.names:
        lab.hosts.ssh(name, f"mkdir {DISK}/shared && touch {DISK}/shared/{name}")
    with pytest.raises(JobFailed, match=f"{DISK}/shared on node-b differs from {DISK}/shared on node-a"):
        lab.submit(deep, data={"train": f"shared:{DISK}/shared"}).result(200)
