"""Machines created and deleted by a kind of cluster of another package, as a notebook does it."""

import time

import pytest

from distdl_jupyter import add_cluster, clusters, submit
from distdl_jupyter.clusters.base import Machines
from distdl_jupyter.core.errors import ClusterRefused, InvalidSpec
from tests import plugin


@pytest.fixture
def forge(tmp_path, monkeypatch):
    plugin.install(tmp_path, monkeypatch, plugin.FORGE, {"clusters": {"forge": "ForgeCluster"}})
    yield tmp_path / "config" / "forge.json"
    plugin.forget()


def test_machines_are_created_and_deleted_and_their_cost_is_shown(forge):
    lab = add_cluster("lab", "forge", place="north")
    problem = "The machines have not been created yet. Create them: distdl clusters compute create lab"
    assert problem in repr(lab)
    assert "Cost" not in repr(clusters())
    assert lab.create(size="small", max_nodes=4, min_nodes=2) is lab
    assert lab.machines() == Machines(
        exists=True, size="small", detail="forged", min_nodes=2, max_nodes=4, cost_per_hour=0.5, currency="USD",
        price_source="the smith",
    )  # fmt: skip
    lines = repr(clusters()).splitlines()
    assert lines[0].split() == ["Name", "Kind", "Nodes", "GPUs", "Cost"]
    assert "2 of 4 up" in lines[2]
    assert "2 nodes cost money: 1.00 USD/h" in lines[2]
    assert "<td" in clusters()._repr_html_()
    lab.delete()
    assert not lab.machines().exists
    assert lab in clusters()


def test_an_unknown_price_is_said_to_be_unknown(forge):
    lab = add_cluster("lab", "forge")
    lab.create(size="large", min_nodes=1)
    assert "1 node costs money: price unknown" in repr(lab)


def test_what_is_wanted_is_checked_by_its_declaration(forge):
    lab = add_cluster("lab", "forge")
    with pytest.raises(InvalidSpec, match="size is missing"):
        lab.create()
    with pytest.raises(InvalidSpec, match="Unknown option 'sizes' of machines of a cluster of type forge") as caught:
        lab.create(sizes="small")
    assert caught.value.field == "sizes"
    with pytest.raises(InvalidSpec, match="max_nodes must be an integer, not 'many'"):
        lab.create(size="small", max_nodes="many")
    lab.create(size="small")
    with pytest.raises(ClusterRefused, match="The forge is lit already"):
        lab.create(size="small")


def test_other_kinds_neither_make_nor_unmake(forge):
    for change in (clusters()["local"].delete, lambda: clusters()["local"].create(size="small")):
        with pytest.raises(ClusterRefused, match="do not support creating or deleting machines"):
            change()
    assert clusters()["local"].machines() is None
    with pytest.raises(InvalidSpec, match="Values of place cannot be listed for clusters of type local"):
        clusters()["local"].choices("place")


def test_no_machine_is_deleted_below_a_job(forge):
    lab = add_cluster("lab", "forge")
    lab.create(size="small", min_nodes=2)
    job = submit(time.sleep, (600,), compute_target="lab", distributed_backend="plain", name="long")
    with pytest.raises(ClusterRefused, match="1 job of lab has not ended"):
        lab.delete()
    job.cancel(now=True)
    job.wait(timeout=120)
