"""Clusters that are slow, that fail and on which nothing ever starts hold the contract as far as it applies."""

import pytest

from distdl_jupyter.testing import ClusterContract, DescriptionContract, WaitingContract

pytestmark = pytest.mark.usefixtures("bad_clusters")


class TestFailing(ClusterContract):
    name = "failing"
    node_count = 2
    process_count_per_node = 1


class TestNever(DescriptionContract, WaitingContract):
    name = "never"
