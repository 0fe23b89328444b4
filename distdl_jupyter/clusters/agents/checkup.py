"""Looks at hosts before a job goes there: asks all of them side by side, lets them connect to each other, and judges.

``look`` speaks to hosts through connections that others have opened. Every question has a time-out, so that a host that
falls silent in the middle costs the others nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from distdl_jupyter.clusters.agents import findings, network, network_findings, software
from distdl_jupyter.clusters.agents.agent import HostTrouble
from distdl_jupyter.clusters.agents.findings import HostReport
from distdl_jupyter.core import store
from distdl_jupyter.node import facts as own_facts
from distdl_jupyter.worker.watch.frameworks import COMPARED

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Host, Unreachable
    from distdl_jupyter.clusters.agents.network import Common, Endpoint, Reached
    from distdl_jupyter.clusters.agents.options import AgentOptions
    from distdl_jupyter.clusters.base import Check

#: Seconds for the look at hosts that are connected already.
LOOK_SECONDS = 16.0
#: Seconds at most for: facts (an idle nvidia-smi takes some), listening, connecting to each other.
_FACTS_SECONDS, _LISTEN_SECONDS, _REACH_SECONDS = 12.0, 4.0, 3.0
#: The worker cannot open what was captured without it.
_ALWAYS = ("cloudpickle", software.READS_DATA)
_AT_ONCE = 64

_Answer = TypeVar("_Answer")


class HostConnection(Protocol):
    """A host that answers questions, as ``connection.Connection``."""

    @property
    def host(self) -> str:
        """The host's name."""

    @property
    def shell(self) -> str:
        """How a user would run a command there."""

    @property
    def target(self) -> Host:
        """The host as it is named in the options."""

    def ask(self, type_: str, /, timeout: float = 15.0, **fields: Any) -> dict[str, Any]:
        """Return the answer to a request. Raises HostFailed."""


@dataclass(frozen=True, slots=True)
class Checkup:
    """What was found: rows in a fixed order, the network to meet on (None: there is none), each host's facts."""

    checks: tuple[Check, ...]
    network: Common | None
    facts: Mapping[str, Mapping[str, Any]]

    @property
    def errors(self) -> tuple[Check, ...]:
        """The rows that keep a job from running."""
        return tuple(check for check in self.checks if check.level == "error")


def look(
    connections: Sequence[HostConnection],
    unreachable: Sequence[Unreachable],
    options: AgentOptions,
    modules: Sequence[str] = (),
    programs: Sequence[str] = (),
    here: Mapping[str, Any] | None = None,
    *,
    processes: int = 0,
    seconds: float = LOOK_SECONDS,
    several_per_host: bool = False,
) -> Checkup:
    """Ask all hosts and return what was found, after ``seconds`` at the latest.

    ``here`` is what ``node.facts.gather`` says of this machine (None: it is asked now), ``processes`` how many are
    wanted on each host (0: not known yet). With ``several_per_host`` connections may lead to one machine.
    Raises InvalidSpec when the option ``network`` is none.
    """
    wanted = (*modules, *(name for name in _ALWAYS if name not in modules))
    reports, silent, found = _Look(connections, options, time.monotonic() + seconds).ask(wanted, programs)
    if several_per_host:
        found = _with_twins(found, findings.twins(reports))
    own = _whole(own_facts.gather(wanted, packages=COMPARED) if here is None else here)
    asked = Wanted(options, wanted, tuple(programs), processes, several_per_host)
    rows = judge(reports, [*unreachable, *silent], found, own, asked)
    return Checkup(tuple(rows), found.common, {one.host: one.facts for one in reports})


def _with_twins(met: Met, twins: Mapping[str, str]) -> Met:
    """Return what was met with the endpoints of hosts that are a machine already named."""
    common = met.common
    if common is None:
        return met
    known = {endpoint.host for endpoint in common.endpoints}
    more = (dataclasses.replace(common.endpoint(name), host=host) for host, name in twins.items() if name in known)
    return dataclasses.replace(met, common=dataclasses.replace(common, endpoints=(*common.endpoints, *more)))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a job wants of the hosts."""

    options: AgentOptions
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    processes: int = 0
    several_per_host: bool = False


@dataclass(frozen=True, slots=True)
class Met:
    """The addresses that hosts have, what was reached from where, and the network that this leaves (None: none)."""

    offered: Mapping[str, Sequence[Endpoint]] = field(default_factory=dict)
    reached: Reached = field(default_factory=dict)
    common: Common | None = None


def judge(
    reports: Sequence[HostReport], troubles: Sequence[HostTrouble], met: Met, here: Mapping[str, Any], wanted: Wanted
) -> list[Check]:
    """Return all rows, in the order of a table: who answers, software, network, machines."""
    return [
        *findings.reached(reports),
        *(findings.unreachable(trouble) for trouble in troubles),
        *(() if wanted.several_per_host else findings.twice(reports)),
        *software.python(reports, here),
        *software.packages(reports, here, wanted.modules),
        *software.programs(reports, wanted.programs),
        *findings.code(reports, wanted.options.shared),
        *_network(reports, troubles, met, wanted),
        *findings.gpus(reports),
        *findings.infiniband(reports),
        *findings.disk(reports),
        *findings.clock(reports),
        *findings.slots(reports, wanted.processes),
        *findings.room(reports, wanted.processes, oversubscribe=wanted.options.oversubscribe),
    ]


def _network(reports: Sequence[HostReport], troubles: Sequence[HostTrouble], met: Met, wanted: Wanted) -> list[Check]:
    """Return what is said of the network; nothing while too many hosts are missing to say anything."""
    if not reports or (len(reports) == 1 and troubles):
        return []
    return network_findings.rows(met.offered, met.reached, met.common, wanted.options.network)


class _Look:
    """One round of questions to hosts that are connected."""

    def __init__(self, connections: Sequence[HostConnection], options: AgentOptions, until: float) -> None:
        self._connections = connections
        self._options = options
        self._until = until
        self._silent: dict[str, HostTrouble] = {}

    def ask(self, modules: Sequence[str], programs: Sequence[str]) -> tuple[list[HostReport], list[HostTrouble], Met]:
        """Return what hosts reported, those that fell silent, and how they met."""
        if not self._connections:
            return [], [], Met()
        with _proof(self._options) as proof:
            reports = self._each(lambda one: self._facts(one, modules, programs, proof))
        twins = findings.twins(list(reports.values()))
        met = self._meet({host: one for host, one in reports.items() if host not in twins})
        answers = [answer for host, answer in reports.items() if host not in self._silent]
        return answers, list(self._silent.values()), met

    def _each(
        self, question: Callable[[HostConnection], _Answer], connections: Sequence[HostConnection] | None = None
    ) -> dict[str, _Answer]:
        """Put a question to all hosts at once; those that fail are remembered and left out."""
        asked = self._connections if connections is None else connections
        with ThreadPoolExecutor(min(len(asked), _AT_ONCE) or 1) as pool:
            answers = {one.host: pool.submit(question, one) for one in asked}
        found = {}
        for host, answer in answers.items():
            try:
                found[host] = answer.result()
            except HostTrouble as trouble:
                self._silent.setdefault(host, trouble)
        return found

    def _timeout(self, most: float) -> float:
        return max(0.5, min(most, self._until - time.monotonic()))

    def _facts(self, one: HostConnection, modules: Sequence[str], programs: Sequence[str], proof: str) -> HostReport:
        looked_for = [*programs, proof] if proof else list(programs)
        # Room for connecting stays.
        timeout = self._timeout(min(_FACTS_SECONDS, self._until - time.monotonic() - _LISTEN_SECONDS))
        asked = time.time()
        answer = one.ask("facts", timeout=timeout, modules=list(modules), programs=looked_for, packages=COMPARED)
        answered = time.time()
        facts = _whole(answer)
        return HostReport(
            one.host, facts, asked, answered,
            ssh=one.shell,
            slots=one.target.slots,
            shares=bool(proof and facts["programs"].get(proof)),
        )  # fmt: skip

    def _meet(self, reports: Mapping[str, HostReport]) -> Met:
        """Let every host listen on its addresses and connect to those of all others."""
        connections = [one for one in self._connections if one.host in reports]
        wanted = self._options.network
        offered = {host: network.endpoints(host, one.facts["interfaces"], wanted) for host, one in reports.items()}
        if len(offered) < 2:
            alone = [network.loopback(host, one.facts["interfaces"]) for host, one in reports.items()]
            return Met(offered, {}, alone[0] if alone else None)
        listening = self._each(lambda one: self._listen(one, offered[one.host]), connections)
        answers = self._each(lambda one: self._reach(one, listening), connections)
        reached = {key: why for answer in answers.values() for key, why in answer.items()}
        offered = {host: own for host, own in offered.items() if host not in self._silent}
        if len(offered) < 2:
            return Met(offered, reached, None)
        return Met(offered, reached, network.choose(offered, reached))

    def _listen(self, one: HostConnection, endpoints: Sequence[Endpoint]) -> dict[str, int]:
        """Return the port on which a host listens at each of its addresses."""
        return {
            endpoint.address: int(
                one.ask("listen", timeout=self._timeout(_LISTEN_SECONDS), address=endpoint.address)["port"]
            )
            for endpoint in endpoints
        }

    def _reach(self, one: HostConnection, listening: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], str]:
        targets = [
            [address, port] for host, own in listening.items() if host != one.host for address, port in own.items()
        ]
        seconds = self._timeout(_REACH_SECONDS)
        answer = one.ask("reach", timeout=seconds + 4.0, targets=targets, seconds=seconds)
        return {(one.host, str(address)): str(why) for address, _port, why in answer["reached"]}


def _whole(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts in which every part that a host could not report is empty."""
    empty: dict[str, Any] = {"packages": {}, "modules": {}, "programs": {}, "interfaces": [], "disk": {}, "gpus": [],
                             "driver": "", "infiniband": [], "problems": {}, "mpirun": ""}  # fmt: skip
    known = {name: value for name, value in facts.items() if value is not None}
    return {**facts, **empty, **known}


@contextlib.contextmanager
def _proof(options: AgentOptions) -> Iterator[str]:
    """Put a file with a name that nobody guesses where jobs lie: whoever finds it shares that folder.

    Gives "" when the user says that hosts share nothing, or when no file can be written.
    """
    if options.shared is False:
        yield ""
        return
    folder = store.home()
    path = folder / f".seen-{secrets.token_hex(16)}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _touch(path)
    except OSError:
        yield ""
        return
    try:
        yield str(path.resolve())
    finally:
        path.unlink(missing_ok=True)


def _touch(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
