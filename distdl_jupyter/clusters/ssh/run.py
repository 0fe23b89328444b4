"""A started job on other hosts: each host's agent starts its own ranks and tells each end.

``direct`` lets agents start the ranks; ``launcher`` leaves that to a program such as ``mpirun``. Nothing waits for a
host that is silent: it is lost after some seconds, its ranks with it, and its agent ends them there by itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.clusters import environment, identity
from distdl_jupyter.clusters.base import Context, Exit, Remark, Run, Start, Stream, Unkillable
from distdl_jupyter.clusters.readiness import await_line
from distdl_jupyter.clusters.ssh import staging
from distdl_jupyter.clusters.ssh.connection import ANSWER_SECONDS, end_all
from distdl_jupyter.clusters.ssh.failures import HostFailed
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.words import plural

if TYPE_CHECKING:
    from concurrent.futures import Future

    from distdl_jupyter.clusters.ssh.channels import PipeEnd
    from distdl_jupyter.clusters.ssh.staging import Site
    from distdl_jupyter.core.plan import Placement, Plan, RankPlace, Service
    from distdl_jupyter.host.stacks import Answer

#: Numbers of processes that are no ranks, as agents know them.
SERVICES, LAUNCHER, SHELLS = 1_000_000, 1_100_000, 1_200_000
_SERVICE_SECONDS = 60.0
#: Seconds in which a host must have started the processes of one request.
START_SECONDS = 60.0


class News(NamedTuple):
    """What a host told unasked."""

    site: Site
    data: dict[str, Any]


class SshRun(Run):
    """What both kinds of run share: hosts with their folders, streams, services, signals, the end."""

    def __init__(
        self, job: staging.Job, placement: Placement, plan: Plan, context: Context, sites: Sequence[Site]
    ) -> None:
        self._job = job
        self._placement = placement
        self._plan = plan
        self._context = context
        self._sites = list(sites)
        self._streams: list[Stream] = []
        self._ends: dict[int | None, list[PipeEnd]] = {}
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._waiting: list[Exit] = []
        self._told: set[int] = set()
        self._started: list[Start] = []
        self._remarks: list[Remark] = []
        self._uncollected: set[str] = set()
        self._asked: list[tuple[Site, Future[dict[str, Any]]]] = []

    # start ------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start services, then ranks. Raises LaunchFailed."""
        for site in self._sites:
            self._listen_to(site)
        for number, service in enumerate(self._plan.services):
            self._start_service(SERVICES + number, service)
        self._start_ranks()

    @abstractmethod
    def _start_ranks(self) -> None: ...

    def _listen_to(self, site: Site) -> None:
        site.connection.news = lambda data: self._heard(site, data)
        if site.connection.lost:  # before anybody listened
            raise HostFailed(site.host, site.connection.lost)

    def _heard(self, site: Site, data: dict[str, Any]) -> None:
        """Take news on the wire's thread."""
        self._news.put(News(site, data))

    def _start_service(self, number: int, service: Service) -> None:
        site = self._sites[0]
        channel, end = site.connection.pipe()
        process = {
            "process": number,
            "argv": ["{python}", *service.arguments],
            "environment": self.environment(site),
            "directory": None,
            "out": channel,
            "open_input": True,
        }
        site.connection.ask("start", START_SECONDS, self.heed(f"starting {service.name}"), processes=[process])
        self.listen(None, "out", end)
        said = await_line(end.reader, service.ready, _SERVICE_SECONDS, self.heed(f"waiting for {service.name}"))
        if service.ready not in said:
            raise LaunchFailed(f"{service.name} did not start on {site.host}.", output=said.strip()[-2000:])

    def heed(self, doing: str) -> Callable[[], None]:
        """Return what says what is being done, and raises when the start is to be stopped."""
        return lambda: self._context.tell("start", doing)

    def listen(self, rank: int | None, name: str, end: PipeEnd) -> None:
        """Add a stream to those that are read."""
        os.set_blocking(end.reader, False)
        self._streams.append(Stream(end.reader, rank, name))
        self._ends.setdefault(rank, []).append(end)

    def channels(self, site: Site, rank: int) -> dict[str, int]:
        """Open a rank's two streams and return their channels."""
        found = {}
        for name in ("out", "err"):
            found[name], end = site.connection.pipe()
            self.listen(rank, name, end)
        return found

    # who and where ----------------------------------------------------------------------------

    def environment(self, site: Site) -> dict[str, str]:
        """Return what every process of the job has on a host, over the login environment there."""
        inherited = environment.for_ranks(self._context.inherited)
        return {**inherited, **self._context.own, "DISTDL_JOB_DIR": site.folder}

    def rank_environment(self, site: Site, place: RankPlace) -> dict[str, str]:
        """Return what one rank has besides."""
        own = {"DISTDL_JOB_DIR": site.folder}
        return self._plan.environments[place.rank] | identity.variables(self._placement, place) | own | site.data

    def places(self, site: Site) -> list[RankPlace]:
        """Return the ranks of a host."""
        node = self._sites.index(site)
        return [place for place in self._placement.ranks if place.node == node]

    def ranks(self, site: Site) -> list[int]:
        """Return the numbers of a host's ranks."""
        return [place.rank for place in self.places(site)]

    @property
    def sites(self) -> list[Site]:
        """The hosts, in the order of the nodes."""
        return self._sites

    @property
    def living(self) -> list[Site]:
        """The hosts that answer."""
        return [site for site in self._sites if not site.connection.lost]

    # watch ------------------------------------------------------------------------------------

    @property
    def streams(self) -> tuple[Stream, ...]:
        """All descriptors of ranks, launcher and services."""
        return tuple(self._streams)

    def started(self) -> list[Start]:
        """Return every rank's process, as its host counts them."""
        return list(self._started)

    def remark(self, level: Any, text: str, code: str = "") -> None:
        """Keep a sentence for the user."""
        self._remarks.append(Remark(level, text, code))

    def remarks(self) -> list[Remark]:
        """Return what the user should read since the last call."""
        found, self._remarks = self._remarks, []
        return found

    def poll(self) -> list[Exit]:
        """Return the exits since the last call, each when all that its rank has said can be read."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._news.get_nowait())
        self._look()
        ready = [exit_ for exit_ in self._waiting if self.said_all(exit_.rank)]
        self._waiting = [exit_ for exit_ in self._waiting if exit_ not in ready]
        return ready

    def _take(self, news: News) -> None:
        if news.data["type"] == "exit":
            self._process_ended(news.site, news.data)
        elif news.data["type"] == "lost":
            for rank in self.ranks(news.site):
                self.ended(Exit(rank, None, None, str(news.data["says"])))

    @abstractmethod
    def _process_ended(self, site: Site, told: Mapping[str, Any]) -> None:
        """Hear of the end of a process that an agent had started."""

    def _look(self) -> None:
        """Look at what nobody tells."""

    def ended(self, exit_: Exit) -> None:
        """Note the end of a rank; the first one counts."""
        if exit_.rank not in self._told:
            self._told.add(exit_.rank)
            self._waiting.append(exit_)

    def said_all(self, rank: int | None) -> bool:
        """Say whether nothing waits for whoever reads a rank's streams but what is in the pipes."""
        return all(end.pending == 0 for end in self._ends.get(rank, ()))

    def alive(self) -> list[str]:
        """Return the host of every living process; a host that is lost has none."""
        answers = [(site, site.connection.begin("alive")) for site in self.living]
        found: list[str] = []
        for site, answer in answers:
            with contextlib.suppress(HostFailed), site.connection.hurried():
                found += [site.host] * int(site.connection.result(answer, "alive", ANSWER_SECONDS)["alive"])
        return found

    def unkillable(self) -> list[Unkillable]:
        """Return them, as far as hosts answer."""
        answers = [(site, site.connection.begin("stuck")) for site in self.living]
        found: list[Unkillable] = []
        for site, answer in answers:
            with contextlib.suppress(HostFailed), site.connection.hurried():
                told = site.connection.result(answer, "stuck", ANSWER_SECONDS)
                found += [Unkillable(site.host, int(pid)) for pid in told["pids"]]
        return found

    def signal(self, name: str) -> None:
        """INT goes to the ranks with what they started; TERM and KILL to everything. Nobody waits for an answer."""
        for site in self.living:
            site.connection.begin("signal", name=name, to="ranks" if name == "INT" else "all")

    def ask_stacks(self) -> None:
        """Let every host that answers ask its ranks."""
        self._asked = [(site, site.connection.begin("stacks", ranks=self.ranks(site))) for site in self._sites]

    def stacks(self) -> Mapping[int, Answer]:
        """Return what hosts have answered since the last call."""
        done = [(site, answer.result()) for site, answer in self._asked if answer.done()]
        self._asked = [(site, answer) for site, answer in self._asked if not answer.done()]
        return {rank: one for site, told in done for rank, one in self._answers(site, told).items()}

    def _answers(self, site: Site, told: Mapping[str, Any]) -> dict[int, Answer]:
        from distdl_jupyter.host.stacks import Answer, of_json

        if "error" in told:
            return {rank: Answer(missing=str(told["error"])) for rank in self.ranks(site)}
        return {int(rank): of_json(one) for rank, one in told["answers"].items()}

    def no_stacks(self) -> str:
        """Return "": ranks on other hosts can be asked."""
        return ""

    # end --------------------------------------------------------------------------------------

    def handle(self) -> dict[str, Any]:
        """Return what a sweep needs: the hosts, how they are reached, and where their folders are."""
        hosts = [
            {"name": site.host, "target": site.connection.target.target, "folder": site.folder, "shared": site.shared}
            for site in self._sites
        ]
        chosen = self._job.options
        return {"hosts": hosts, "ssh_config": chosen.ssh_config, "python": chosen.python or self._job.spec.python,
                "directory": chosen.directory}  # fmt: skip

    def collect(self) -> None:
        """Bring back what ranks wrote on hosts with folders of their own, one host after the other."""
        missing: list[str] = []
        brought = staging.written_here(self._job) if any(site.shared for site in self._sites) else set()
        for site in self._sites:
            if not site.shared:
                try:
                    # By the name, because of hosts that were lost the list of sites has none.
                    own = [place.rank for place in self._placement.ranks if place.host == site.host]
                    staging.bring_back(self._job, site, brought, own)
                except DistDLError as error:
                    self._uncollected.add(site.host)
                    missing.append(f"{site.host} ({site.folder}): {getattr(error, 'says', error.message)}")
        if not missing and not any(site.shared for site in self._sites):
            staging.forget_checkpoints(self._job, brought)
        for site in self._sites:
            for text in site.remarks:
                self.remark("warning", text, "collected")
        if missing:
            raise LaunchFailed(
                f"Values and files of {plural(len(missing), 'host')} did not come back: {' '.join(missing)}",
                hint="What ranks have written stays in that folder on the host.",
            )

    def close(self) -> None:
        """End the agents, with whatever they still run, and free the descriptors."""
        end_all([site.connection for site in self._sites], keep=self._uncollected)
        for stream in self._streams:
            with contextlib.suppress(OSError):
                os.close(stream.fd)
