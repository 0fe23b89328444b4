"""The hosts of a started job: what processes have there, what comes back, and how the job leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents import staging
from distdl_jupyter.clusters.agents.agent import Nodes
from distdl_jupyter.clusters.agents.connection import end_all
from distdl_jupyter.clusters.agents.staging import AgentNode
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.humanize import plural

if TYPE_CHECKING:
    from distdl_jupyter.clusters.base import Context
    from distdl_jupyter.core.plan import Placement, RankSlot


class AgentNodes(Nodes[AgentNode]):
    """Hosts with an agent on each."""

    def __init__(self, job: staging.Job, placement: Placement, context: Context, nodes: Sequence[AgentNode]) -> None:
        super().__init__(nodes)
        self._job = job
        self._placement = placement
        self._context = context
        self._uncollected: set[str] = set()

    def environment(self, node: AgentNode) -> dict[str, str]:
        """Return what every process of the job has on a host, over the login environment there."""
        inherited = environment.for_ranks(self._context.inherited)
        return {**inherited, **self._context.own, "DISTDL_JOB_DIR": node.folder}

    def of_rank(self, place: RankSlot, variables: dict[str, str]) -> dict[str, str]:
        """Add the rank's folder and data on its host."""
        node = self.of(place)
        return variables | {"DISTDL_JOB_DIR": node.folder} | node.data

    def collect(self) -> None:
        """Bring back what ranks wrote on hosts with folders of their own, one host after the other."""
        apart, missing = [node for node in self.nodes if not node.shared], list[str]()
        brought = staging.written_here(self._job) if len(apart) < len(self.nodes) else set()
        for node in apart:
            try:
                # By the name, because of hosts that were lost the list of nodes has none.
                own = [place.rank for place in self._placement.ranks if place.host == node.host]
                staging.bring_back(self._job, node, brought, own)
            except DistDLError as error:
                self._uncollected.add(node.host)
                missing.append(f"{node.host} ({node.folder}): {getattr(error, 'says', error.message)}")
        if not missing and len(apart) == len(self.nodes):
            staging.forget_checkpoints(self._job, brought)
        self._uncollected |= {node.host for node in self.nodes if node.keeps}
        for node in self.nodes:
            self.notices += node.notices
        if missing:
            raise LaunchFailed(
                f"Cannot copy the values and files of {plural(len(missing), 'host')} back: {' '.join(missing)}",
                code="results-not-collected",
                hint="The files that ranks wrote stay in that folder on the host. Copy them from there.",
            )

    def close(self) -> None:
        """End the agents."""
        end_all([node.connection for node in self.nodes], keep=self._uncollected)
