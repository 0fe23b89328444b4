"""Looks again and again for a host that was lost, and brings a job back to it when it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.agents import connection as connections
from distdl_jupyter.clusters.agents import staging
from distdl_jupyter.clusters.agents.agent import HostTrouble
from distdl_jupyter.clusters.ssh.reach import reach
from distdl_jupyter.core.errors import DistDLError

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Host
    from distdl_jupyter.clusters.agents.staging import AgentNode, Job

#: Seconds between two tries.
_PAUSE = 5.0


class Returning:
    """All hosts that are looked for."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._found: list[AgentNode] = []
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def look_for(self, host: Host, found: Callable[[AgentNode], None]) -> None:
        """Try to reach a host from now on; ``found`` is called in a thread with the host's new place in the job."""
        threading.Thread(target=self._look, args=(host, found), name=f"return-{host.name}", daemon=True).start()

    def close(self) -> list[AgentNode]:
        """Look for no host any more, and return all that came back; one that comes now is left at once."""
        with self._lock:
            self._closed.set()
            return self._found

    def _look(self, host: Host, found: Callable[[AgentNode], None]) -> None:
        while not self._closed.wait(_PAUSE):
            try:
                connection = reach(host, self._job.options, self._job.spec.python)
            except (HostTrouble, OSError):
                continue
            try:
                (node,) = staging.prepare(self._job, [connection])
                if not node.shared:
                    staging.copy(self._job, node)
            except (DistDLError, OSError):
                connection.close()
                continue
            with self._lock:
                if not self._closed.is_set():
                    self._found.append(node)
                    found(node)
                    return
            connections.end_all([connection])
