"""The hosts of a started job that are reached by ssh."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.agents import connection as connections
from distdl_jupyter.clusters.agents import staging
from distdl_jupyter.clusters.agents.agent import HostTrouble
from distdl_jupyter.clusters.agents.connection import end_all
from distdl_jupyter.clusters.agents.nodes import AgentNodes
from distdl_jupyter.clusters.ssh.reach import reach
from distdl_jupyter.core.errors import DistDLError

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Host
    from distdl_jupyter.clusters.agents.staging import AgentNode, Job
    from distdl_jupyter.clusters.base import Context
    from distdl_jupyter.core.plan import Placement


class SshNodes(AgentNodes):
    """Hosts that are reached by ssh, and looked for when they are lost."""

    def __init__(self, job: Job, placement: Placement, context: Context, nodes: Sequence[AgentNode]) -> None:
        super().__init__(job, placement, context, nodes)
        self._returning = Returning(job)

    def await_return(self, node: AgentNode, found: Callable[[AgentNode], None]) -> None:
        """Look for a host that was lost, and call ``found``, in a thread, when it takes part again."""
        self._returning.look_for(node.connection.target, found)

    def handle(self) -> dict[str, Any]:
        """Return what a sweep needs: the hosts, how they are reached, and where their folders are."""
        hosts = [
            {"name": node.host, "target": node.connection.target.target, "folder": node.folder, "shared": node.shared}
            for node in self.nodes
        ]
        chosen = self._job.options
        return {"hosts": hosts, "ssh_config": chosen.ssh_config, "python": chosen.python or self._job.spec.python,
                "directory": chosen.directory}  # fmt: skip

    def close(self) -> None:
        """Look for no host any more, and end the agents, those that came back too late as well."""
        end_all([node.connection for node in self._returning.close() if node not in self.nodes])
        super().close()


# a host that was lost and answers again -------------------------------------------------------------

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
