"""The hosts of a started job that are reached by ssh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.agents.connection import end_all
from distdl_jupyter.clusters.agents.nodes import AgentNodes
from distdl_jupyter.clusters.ssh.returning import Returning

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents import staging
    from distdl_jupyter.clusters.agents.staging import AgentNode
    from distdl_jupyter.clusters.base import Context
    from distdl_jupyter.core.plan import Placement


class SshNodes(AgentNodes):
    """Hosts that are reached by ssh, and looked for when they are lost."""

    def __init__(self, job: staging.Job, placement: Placement, context: Context, nodes: Sequence[AgentNode]) -> None:
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
