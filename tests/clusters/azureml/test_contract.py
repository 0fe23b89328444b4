"""The contract of clusters, held by a workspace of Azure ML whose jobs run on this machine."""

import contextlib

import pytest

from distdl_jupyter.clusters.azureml.client import SET_BY_AZURE
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.plan import Service
from distdl_jupyter.testing import ClusterContract
from distdl_jupyter.testing.sample import RunListener

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


class TestTwoNodes(ClusterContract):
    name = "azureml"
    node_count = 2
    process_count_per_node = 1
    timeout = 120.0

    @pytest.fixture(autouse=True)
    def _workspace(self, ml):
        type(self).options = ml.options
        ml.grace = 4.0
        self.ml = ml

    def test_a_placement_has_free_ports_and_every_rank_has_streams_of_its_own(self):
        """Azure chooses the addresses and ports when the nodes have started."""
        sample = self.make_sample("print(1)")
        placement = sample.place(ports=3, rank_ports=2)
        assert set(placement.ports) == {SET_BY_AZURE}
        assert [slot.rank for slot in placement.ranks] == list(range(self.ranks))
        with contextlib.closing(RunListener(sample.start(placement), sample.nonce)) as listener:
            streams = {(stream.rank, stream.name) for stream in listener.run.streams if stream.rank is not None}
            assert streams == {(rank, name) for rank in range(self.ranks) for name in ("out", "err")}
            listener.wait_until_ended(self.ranks, self.timeout)

    def test_a_service_that_never_is_ready_ends_the_start(self):
        """No service can be started there: Azure's own distribution lets the ranks meet."""
        service = Service("a service", ("-c", "print('cannot begin')"), "ready now")
        with pytest.raises(LaunchFailed) as failed:
            self.make_sample("print(1)", services=(service,)).start()
        assert failed.value.code == "azureml-service"
        assert not self.ml.jobs

    def test_a_module_that_a_remote_node_lacks_is_an_error(self):
        """What an image of the user's own holds is not known before a job runs there, and that is said."""
        rows = self.check(modules=("distdl_a_module_that_is_nowhere",), programs=())
        assert [row.level for row in rows if row.what == "Image"] == ["info"]
