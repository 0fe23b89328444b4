"""A started job on other hosts whose ranks the agents start themselves, so that each end is known exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.base import Exit, Start
from distdl_jupyter.clusters.ssh.run import SERVICES, START_SECONDS, SshRun
from distdl_jupyter.core.words import plural

if TYPE_CHECKING:
    from distdl_jupyter.clusters.ssh.staging import Site

#: Ranks that one host is asked to start at once.
_AT_ONCE = 16


class DirectRun(SshRun):
    """Agents start the ranks and hear their ends."""

    def _start_ranks(self) -> None:
        """Let all hosts start some ranks, then some more: in between the start may be stopped."""
        wanted = [(site, self._processes(site)) for site in self._sites]
        for first in range(0, max(len(processes) for _, processes in wanted), _AT_ONCE):
            begun = [
                (site, site.connection.begin("start", processes=processes[first : first + _AT_ONCE]))
                for site, processes in wanted
                if first < len(processes)
            ]
            for site, answer in begun:
                with site.connection.hurried():
                    told = site.connection.result(answer, "start", START_SECONDS, self._heed_start)
                self._started += [Start(int(rank), int(pid)) for rank, pid in told["pids"].items()]
            self._heed_start()

    def _heed_start(self) -> None:
        self._context.tell("start", f"{len(self._started)} of {plural(len(self._placement.ranks), 'process')}")

    def _processes(self, site: Site) -> list[dict[str, Any]]:
        return [
            {
                "process": place.rank,
                "argv": ["{python}", "-P", "-m", "distdl_jupyter.worker"],
                "environment": self.environment(site) | self.rank_environment(site, place),
                "directory": site.directory or None,
                **self.channels(site, place.rank),
            }
            for place in self.places(site)
        ]

    def _process_ended(self, site: Site, told: Mapping[str, Any]) -> None:
        if told["process"] < SERVICES:
            self.ended(Exit(int(told["process"]), told["code"], told["signal"], str(told.get("evidence") or "")))
