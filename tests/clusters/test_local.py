"""The local cluster holds the contract of all clusters; ports stay reserved."""

import pytest

from distdl_jupyter import registry
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, new_id
from distdl_jupyter.host import ports
from distdl_jupyter.testing import ClusterContract


class TestLocal(ClusterContract):
    name = "local"
    node_count = 2


@pytest.mark.full
class TestLocalOnOneNode(ClusterContract):
    name = "local"


def test_without_a_free_port_it_says_so(monkeypatch):
    monkeypatch.setattr(ports.random, "sample", lambda _range, _count: [])
    cluster = registry.get("clusters", "local")
    with pytest.raises(LaunchFailed, match="No free TCP port"):
        cluster.place(JobSpec(id="i", name="n"), 1, None, Context(JobStore().prepare(new_id())))
