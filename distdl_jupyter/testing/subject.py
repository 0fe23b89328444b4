"""What all contracts of clusters share: which cluster, how jobs are spread, and what must not be left behind."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, ClassVar

from distdl_jupyter.core import registry
from distdl_jupyter.node import processes
from distdl_jupyter.testing.listener import Listener
from distdl_jupyter.testing.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distdl_jupyter.clusters.base import Cluster


class Subject:
    """The cluster that is looked at."""

    #: The name of the entry point below ``distdl_jupyter.clusters``.
    name: ClassVar[str] = ""
    #: The options, as a user writes them.
    options: Mapping[str, Any] = {}
    node_count = 1
    process_count_per_node = 2
    #: How many nodes a job that is only asked about has.
    preview_nodes = 2
    #: Seconds that anything may take.
    timeout = 90.0

    @property
    def cluster(self) -> Cluster:
        """A fresh object of the cluster."""
        plugin: Cluster = registry.get("clusters", self.name)
        return plugin

    @property
    def checked(self) -> Any:
        """The options as the cluster gets them."""
        return registry.check_options("clusters", self.name, dict(self.options))

    @property
    def ranks(self) -> int:
        """How many ranks a job of these tests has."""
        return self.node_count * self.process_count_per_node

    def sample(self, code: str, **more: Any) -> Sample:
        """Make a job of ``code`` that is not started yet."""
        return Sample(self.name, self.options, code, self.node_count, self.process_count_per_node, **more)

    @contextlib.contextmanager
    def running(self, code: str, **more: Any) -> Iterator[tuple[Sample, Listener]]:
        """Start a job and listen to it; afterwards it is closed and nothing may be left of it."""
        sample = self.sample(code, **more)
        listener = Listener(sample.start(), sample.nonce)
        try:
            yield sample, listener
        finally:
            listener.close()
        self.leaves_nothing(sample.id)

    def until_said(self, listener: Listener, line: str) -> None:
        """Listen until every rank has said this line."""
        listener.until(
            lambda: all(line in listener.said(rank) for rank in range(self.ranks)),
            self.timeout,
            f"{line!r} of every rank",
        )

    def left(self, job_id: str) -> Sequence[object]:
        """Return what still lives of a job; by default what this machine shows, to be overridden where more is seen."""
        return sorted(processes.of_job({processes.MARK: job_id}))

    def leaves_nothing(self, job_id: str) -> None:
        """Wait until nothing of a job lives."""
        until = time.monotonic() + self.timeout
        while left := self.left(job_id):
            assert time.monotonic() < until, f"these parts of job {job_id} were left behind: {left}"
            time.sleep(0.1)
