"""A started job on other hosts whose ranks a launcher such as ``mpirun`` starts.

The launcher runs on node 0. Its daemons on the other hosts are started by the agents there (``relay``), and each rank
connects its output to named pipes of its own host. Which rank ended first is read from the launcher's last words.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.base import Exit
from distdl_jupyter.clusters.launcher_run import RankWatch
from distdl_jupyter.clusters.processes import signal_name, signal_number
from distdl_jupyter.clusters.ssh.relay import Relay
from distdl_jupyter.clusters.ssh.run import LAUNCHER, SHELLS, START_SECONDS, SshRun

if TYPE_CHECKING:
    from distdl_jupyter.clusters.ssh.staging import Site
    from distdl_jupyter.core.plan import Launcher

_LONGEST = 20_000
First = tuple[int, int | None, int | None]


class LauncherRun(SshRun):
    """Ranks are started by a launcher."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._relay: Relay | None = None
        self._said = ""
        self._end: Mapping[str, Any] | None = None
        self._drains: list[Future[dict[str, Any]]] = []
        self._watch = RankWatch()
        self._counts: list[Future[dict[str, Any]]] = []
        #: Ranks that live, None before anybody has told.
        self._workers: int | None = None
        self._idle = ""

    def _start_ranks(self) -> None:
        heed = self.heed("starting the launcher")
        variables = [self.rank_environment(self._sites[place.node], place) for place in self._placement.ranks]
        for site in self._sites:
            ranks = [{"rank": place.rank, **self.channels(site, place.rank)} for place in self.places(site)]
            site.connection.ask("pipes", heed=heed, ranks=ranks, variables=variables)
        shared = {site.host: self._environment_of_all(site) for site in self._sites}
        self._relay = Relay({site.host: site.connection for site in self._sites}, shared, SHELLS)
        first = self._sites[0]
        channel, end = first.connection.pipe()
        self.listen(None, "out", end)
        process = {
            "process": LAUNCHER,
            "argv": [*self._launch_with.argv, "{python}", "-P", "-m", "distdl_jupyter.worker"],
            "environment": shared[first.host],
            "directory": first.directory or None,
            "out": channel,
        }
        first.connection.ask("start", START_SECONDS, heed, processes=[process])

    def _environment_of_all(self, site: Site) -> dict[str, str]:
        """Return what launcher, daemons and ranks have on a host.

        Open MPI names folders in TMPDIR by process numbers and leaves them behind when it is killed; one that an
        earlier process left makes the next daemon of that number fail. So they lie where everything goes at the end.
        """
        return {"TMPDIR": site.run, **self.environment(site), **self._launch_with.environment}

    @property
    def _launch_with(self) -> Launcher:
        assert self._plan.launcher is not None, "a plan without a launcher is run by DirectRun"
        return self._plan.launcher

    def _heard(self, site: Site, data: dict[str, Any]) -> None:
        """Serve the relay at once; everything else waits for ``poll``."""
        relay = self._relay
        if relay is not None and data["type"] == "shell":
            relay.asked(site.connection, data)
        elif relay is not None and data["type"] == "exit" and data["process"] >= SHELLS:
            relay.ended(int(data["process"]), _code(data))
        else:
            if relay is not None and data["type"] == "lost":
                relay.lost(site.host)
            super()._heard(site, data)

    def overheard(self, text: str) -> None:
        """Keep the end of what the launcher prints: it names the rank that ended first."""
        self._said = (self._said + text)[-_LONGEST:]

    def _process_ended(self, site: Site, told: Mapping[str, Any]) -> None:
        if told["process"] == LAUNCHER:
            self._end = told
            self._drains = [site.connection.begin("drain") for site in self.living]

    def _look(self) -> None:
        """When the launcher has ended, all ranks have: told after the last words of everybody were heard."""
        if self._end is None:
            self._notice_silence()
        elif all(drain.done() for drain in self._drains) and self.said_all(None):
            self._tell_ends(_code(self._end))

    def _tell_ends(self, code: int) -> None:
        # The pipe may still hold the launcher's last words; what is told now is heard in the next round.
        if self._drains:
            self._drains = []
            return
        first = self._launch_with.first_exit(self._said) if code else None
        for place in self._placement.ranks:
            self.ended(self._exit(place.rank, first, code))

    def _exit(self, rank: int, first: First | None, code: int) -> Exit:
        if code == 0:
            return Exit(rank, 0, None)
        if first is None:
            return Exit(rank, code, None, self._idle or f"The launcher ended with code {code}.")
        first_rank, first_code, number = first
        if rank != first_rank:
            return Exit(rank, None, "TERM", "stopped")
        return Exit(rank, first_code, None) if number is None else Exit(rank, None, signal_name(number))

    # what nobody tells ------------------------------------------------------------------------

    def _notice_silence(self) -> None:
        """End a launcher whose ranks have all gone; without the host of the launcher count the ranks themselves."""
        gone = self._watch.have_gone(self._living_workers)
        if not self._sites[0].connection.lost:
            if gone and not self._idle:
                self._idle = "The launcher went on after its last rank had ended, so it was ended too."
                self._sites[0].connection.begin("signal", name="KILL", to="all")
        elif self._workers == 0:
            for place in self._placement.ranks:
                self.ended(Exit(place.rank, None, "TERM", "stopped"))

    def _living_workers(self) -> list[int]:
        """Return something for each rank that lives, as the hosts told lately; nobody is waited for."""
        if all(count.done() for count in self._counts):
            if self._counts:
                self._workers = sum(int(count.result().get("workers", 0)) for count in self._counts)
            self._counts = [site.connection.begin("alive") for site in self.living]
        return [0] * (self._workers or 0)


def _code(told: Mapping[str, Any]) -> int:
    """Return a process's exit code as a shell gives it."""
    if told["code"] is not None:
        return int(told["code"])
    return 128 + signal_number(str(told["signal"]))
