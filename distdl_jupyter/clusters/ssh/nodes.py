"""The hosts of a started job that are reached by ssh."""

from __future__ import annotations

from typing import Any

from distdl_jupyter.clusters.agents.nodes import AgentNodes


class SshNodes(AgentNodes):
    """Hosts that are reached by ssh."""

    def handle(self) -> dict[str, Any]:
        """Return what a sweep needs: the hosts, how they are reached, and where their folders are."""
        hosts = [
            {"name": node.host, "target": node.connection.target.target, "folder": node.folder, "shared": node.shared}
            for node in self.nodes
        ]
        chosen = self._job.options
        return {"hosts": hosts, "ssh_config": chosen.ssh_config, "python": chosen.python or self._job.spec.python,
                "directory": chosen.directory}  # fmt: skip
