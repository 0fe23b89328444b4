"""Checks hosts before a job goes there: asks all of them side by side and lets them connect to each other.

``look`` uses connections that others have opened. Every request has a timeout, so a host that stops responding does
not delay the others. ``checks`` judges the answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from distdl_jupyter.clusters.agents import network
from distdl_jupyter.clusters.agents.agent import HostTrouble
from distdl_jupyter.clusters.agents.checks import ALWAYS, HostReport, Meeting, Survey, judge, twins
from distdl_jupyter.core import store
from distdl_jupyter.node import facts as node_facts
from distdl_jupyter.worker.hooks.frameworks import COMPARED

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import AgentOptions, Unreachable
    from distdl_jupyter.clusters.agents.connection import Connection
    from distdl_jupyter.clusters.agents.network import Common, Endpoint
    from distdl_jupyter.clusters.base import Check

#: Seconds for the check of hosts that are connected already.
LOOK_SECONDS = 16.0
#: Seconds at most for: facts (an idle nvidia-smi takes some), listening, connecting to each other.
_FACTS_SECONDS, _LISTEN_SECONDS, _REACH_SECONDS = 12.0, 4.0, 3.0
_AT_ONCE = 64

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Checkup:
    """The result: rows in a fixed order, the network for the ranks (None: there is none), each host's facts."""

    checks: tuple[Check, ...]
    network: Common | None
    facts: Mapping[str, Mapping[str, Any]]

    @property
    def errors(self) -> tuple[Check, ...]:
        """The rows that keep a job from running."""
        return tuple(check for check in self.checks if check.level == "error")


def look(
    connections: Sequence[Connection],
    unreachable: Sequence[Unreachable],
    options: AgentOptions,
    modules: Sequence[str] = (),
    programs: Sequence[str] = (),
    *,
    processes: int = 0,
    seconds: float = LOOK_SECONDS,
    several_per_host: bool = False,
) -> Checkup:
    """Ask all hosts and return the result after ``seconds`` at the latest.

    ``processes`` is the number on each host (0: not known yet). With ``several_per_host`` connections may lead to one
    machine. Raises InvalidSpec when the option ``network`` is not valid.
    """
    modules = with_always(modules)
    requests = _Requests(connections, options, time.monotonic() + seconds)
    reports, silent, meeting = requests.run(modules, programs)
    if several_per_host:
        meeting = _with_twins(meeting, twins(reports))
    survey = Survey(
        reports,
        here(modules),
        modules,
        programs,
        processes,
        options.shared,
        oversubscribe=options.oversubscribe,
        several_per_host=several_per_host,
    )
    rows = judge(survey, [*unreachable, *silent], meeting, options.network)
    return Checkup(tuple(rows), meeting.common, {report.host: report.facts for report in reports})


def with_always(modules: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that a job needs, with those that every job needs."""
    return tuple(dict.fromkeys((*modules, *ALWAYS)))


def here(modules: Sequence[str]) -> dict[str, Any]:
    """Return the facts of this machine."""
    return complete(node_facts.gather(modules, packages=COMPARED))


def complete(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts in which every part that a host could not report is empty."""
    empty: dict[str, Any] = {
        **{name: {} for name in ("packages", "modules", "programs", "disk", "problems")},
        **{name: [] for name in ("interfaces", "gpus", "infiniband")},
        **dict.fromkeys(("driver", "mpirun"), ""),
    }
    return {**facts, **empty, **{name: value for name, value in facts.items() if value is not None}}


def _with_twins(meeting: Meeting, names: Mapping[str, str]) -> Meeting:
    """Add the endpoints of hosts that are the same machine as one that has met the others."""
    common = meeting.common
    if common is None:
        return meeting
    known = {endpoint.host for endpoint in common.endpoints}
    more = (dataclasses.replace(common.endpoint(name), host=host) for host, name in names.items() if name in known)
    return dataclasses.replace(meeting, common=dataclasses.replace(common, endpoints=(*common.endpoints, *more)))


class _Requests:
    """One round of requests to hosts that are connected."""

    def __init__(self, connections: Sequence[Connection], options: AgentOptions, until: float) -> None:
        self._connections = connections
        self._options = options
        self._until = until
        self._silent: dict[str, HostTrouble] = {}

    def run(
        self, modules: Sequence[str], programs: Sequence[str]
    ) -> tuple[list[HostReport], list[HostTrouble], Meeting]:
        """Return the hosts' reports, those that stopped responding, and how the others met."""
        if not self._connections:
            return [], [], Meeting()
        with _proof(self._options) as proof:
            reports = self._each(lambda connection: self._facts(connection, modules, programs, proof))
        names = twins(list(reports.values()))
        meeting = self._meet({host: report for host, report in reports.items() if host not in names})
        answered = [report for host, report in reports.items() if host not in self._silent]
        return answered, list(self._silent.values()), meeting

    def _each(
        self, request: Callable[[Connection], _Answer], connections: Sequence[Connection] | None = None
    ) -> dict[str, _Answer]:
        """Send a request to all hosts at once; hosts that fail are recorded and left out."""
        connections = self._connections if connections is None else connections
        with ThreadPoolExecutor(min(len(connections), _AT_ONCE) or 1) as pool:
            futures = {connection.host: pool.submit(request, connection) for connection in connections}
        answers = {}
        for host, future in futures.items():
            try:
                answers[host] = future.result()
            except HostTrouble as trouble:
                self._silent.setdefault(host, trouble)
        return answers

    def _timeout(self, most: float) -> float:
        return max(0.5, min(most, self._until - time.monotonic()))

    def _facts(self, connection: Connection, modules: Sequence[str], programs: Sequence[str], proof: str) -> HostReport:
        # Time for connecting to each other must remain.
        timeout = self._timeout(min(_FACTS_SECONDS, self._until - time.monotonic() - _LISTEN_SECONDS))
        paths = [*programs, proof] if proof else list(programs)
        sent_at = time.time()
        answer = connection.ask("facts", timeout=timeout, modules=list(modules), programs=paths, packages=COMPARED)
        received_at = time.time()
        facts = complete(answer)
        shares = bool(proof and facts["programs"].get(proof))
        return HostReport(
            connection.host, facts, sent_at, received_at, connection.shell, connection.target.slots, shares
        )

    def _meet(self, reports: Mapping[str, HostReport]) -> Meeting:
        """Let every host listen on its addresses and connect to those of all others."""
        connections = [connection for connection in self._connections if connection.host in reports]
        offered = {
            host: network.endpoints(host, report.facts["interfaces"], self._options.network)
            for host, report in reports.items()
        }
        if len(offered) < 2:
            alone = [network.loopback(host, report.facts["interfaces"]) for host, report in reports.items()]
            return Meeting(offered, {}, alone[0] if alone else None)
        listening = self._each(lambda connection: self._listen(connection, offered[connection.host]), connections)
        answers = self._each(lambda connection: self._reach(connection, listening), connections)
        reached = {key: why for answer in answers.values() for key, why in answer.items()}
        offered = {host: endpoints for host, endpoints in offered.items() if host not in self._silent}
        return Meeting(offered, reached, network.choose(offered, reached) if len(offered) > 1 else None)

    def _listen(self, connection: Connection, endpoints: Sequence[Endpoint]) -> dict[str, int]:
        """Return the port on which a host listens at each of its addresses."""
        ports = {}
        for endpoint in endpoints:
            answer = connection.ask("listen", timeout=self._timeout(_LISTEN_SECONDS), address=endpoint.address)
            ports[endpoint.address] = int(answer["port"])
        return ports

    def _reach(self, connection: Connection, listening: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], str]:
        targets = [
            [address, port]
            for host, ports in listening.items()
            if host != connection.host
            for address, port in ports.items()
        ]
        seconds = self._timeout(_REACH_SECONDS)
        answer = connection.ask("reach", timeout=seconds + 4.0, targets=targets, seconds=seconds)
        return {(connection.host, str(address)): str(why) for address, _port, why in answer["reached"]}


@contextlib.contextmanager
def _proof(options: AgentOptions) -> Iterator[str]:
    """Put a file with a random name in the jobs folder: a host that sees it shares that folder.

    Yields "" when the user says that hosts share nothing, or when no file can be written.
    """
    path = store.home() / f".seen-{secrets.token_hex(16)}"
    try:
        if options.shared is not False:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        pass
    try:
        yield str(path.resolve()) if path.exists() else ""
    finally:
        path.unlink(missing_ok=True)
