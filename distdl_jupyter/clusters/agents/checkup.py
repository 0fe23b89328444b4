"""Checks hosts before a job starts on them: queries all hosts in parallel and lets them connect to each other.

``check_hosts`` uses connections that are already open. Every request has a timeout, so a host that stops responding
does not delay the others. ``checks`` evaluates the answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.clusters.agents import checks
from distdl_jupyter.clusters.agents.agent import HostTrouble, Unreachable, ask_all
from distdl_jupyter.clusters.agents.checks import ALWAYS, Common, HostReport, Meeting, Survey, duplicates, judge
from distdl_jupyter.clusters.agents.connection import Connection
from distdl_jupyter.clusters.base import NodeCheck
from distdl_jupyter.core import store
from distdl_jupyter.node import facts as node_facts
from distdl_jupyter.worker.hooks.frameworks import COMPARED

#: Timeout in seconds of a check over open connections.
LOOK_SECONDS = 16.0
#: Timeouts in seconds for facts (an idle nvidia-smi is slow), for listening, and for the test connections.
_FACTS_SECONDS, _LISTEN_SECONDS, _REACH_SECONDS = 12.0, 4.0, 3.0


@dataclass(frozen=True, slots=True)
class Checkup:
    """The result: rows in display order, the network for the ranks (None: not found), and the facts of each host."""

    checks: tuple[NodeCheck, ...]
    network: Common | None
    facts: Mapping[str, Mapping[str, Any]]

    @property
    def errors(self) -> tuple[NodeCheck, ...]:
        """The rows of problems that prevent a job from running."""
        return tuple(check for check in self.checks if check.level == "error")


def check_hosts(
    connections: Sequence[Connection],
    unreachable: Sequence[Unreachable],
    options: Any,
    modules: Sequence[str] = (),
    programs: Sequence[str] = (),
    *,
    processes: int = 0,
    seconds: float = LOOK_SECONDS,
    several_per_host: bool = False,
) -> Checkup:
    """Check all hosts within ``seconds`` seconds.

    ``processes`` is the number of processes on each host (0: not known yet). With ``several_per_host``, several
    connections may lead to one machine. Raises InvalidSpec if the option ``network`` is not valid.
    """
    modules = with_required(modules)
    requests = _Requests(connections, options, time.monotonic() + seconds)
    reports = requests.facts(modules, programs)
    names = duplicates(list(reports.values()))
    meeting = requests.meet({host: report for host, report in reports.items() if host not in names})
    answered = [report for host, report in reports.items() if host not in requests.silent]
    if several_per_host and (common := meeting.common) is not None:
        known = {endpoint.host for endpoint in common.endpoints}
        same = [dataclasses.replace(common.endpoint(name), host=host) for host, name in names.items() if name in known]
        common = dataclasses.replace(common, endpoints=(*common.endpoints, *same))
        meeting = dataclasses.replace(meeting, common=common)
    survey = Survey(
        answered,
        here(modules),
        modules,
        programs,
        processes,
        options.shared,
        oversubscribe=options.oversubscribe,
        several_per_host=several_per_host,
    )
    rows = judge(survey, [*unreachable, *requests.silent.values()], meeting, options.network)
    return Checkup(tuple(rows), meeting.common, {report.host: report.facts for report in answered})


def with_required(modules: Sequence[str]) -> tuple[str, ...]:
    """Return the modules of a job and the modules that every job needs."""
    return tuple(dict.fromkeys((*modules, *ALWAYS)))


def here(modules: Sequence[str]) -> dict[str, Any]:
    """Return the facts of this machine."""
    return complete(node_facts.gather(modules, packages=COMPARED))


def complete(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with an empty value for each fact that the host could not report."""
    empty: dict[str, Any] = {
        **{name: {} for name in ("packages", "modules", "programs", "disk", "problems")},
        **{name: [] for name in ("interfaces", "gpus", "infiniband")},
        **dict.fromkeys(("driver", "mpirun"), ""),
    }
    return {**facts, **empty, **{name: value for name, value in facts.items() if value is not None}}


class _Requests:
    """The requests of one check to connected hosts."""

    def __init__(self, connections: Sequence[Connection], options: Any, until: float) -> None:
        self._connections = connections
        self._options = options
        self._until = until
        #: Hosts that failed; later requests skip them.
        self.silent: dict[str, HostTrouble] = {}

    def _ask(self, type_: str, requests: Sequence[tuple[Connection, Mapping[str, Any]]], most: float) -> list[Any]:
        """Return (connection, request fields, answer) for each host that answers."""
        requests = [request for request in requests if request[0].host not in self.silent]
        timeout = max(0.5, min(most, self._until - time.monotonic()))
        rows = []
        for (connection, fields), answer in zip(requests, ask_all(requests, type_, timeout), strict=True):
            if isinstance(answer, HostTrouble):
                self.silent.setdefault(connection.host, answer)
            else:
                rows.append((connection, fields, answer))
        return rows

    def facts(self, modules: Sequence[str], programs: Sequence[str]) -> dict[str, HostReport]:
        """Return the report of each host that answers."""
        with _proof(self._options) as proof:
            fields = {"modules": modules, "programs": [*programs, proof] if proof else programs, "packages": COMPARED}
            # Leave time for the test connections.
            timeout = min(_FACTS_SECONDS, self._until - time.monotonic() - _LISTEN_SECONDS)
            sent_at = time.time()
            rows = self._ask("facts", [(connection, fields) for connection in self._connections], timeout)
        reports = {}
        for connection, _, answer in rows:
            facts = complete(answer)
            shares = bool(proof and facts["programs"].get(proof))
            host, shell, slots = connection.host, connection.shell, connection.target.slots
            reports[host] = HostReport(host, facts, sent_at, answer["received_at"], shell, slots, shares)
        return reports

    def meet(self, reports: Mapping[str, HostReport]) -> Meeting:
        """Test the connections: every host listens on its addresses and connects to all other hosts."""
        interfaces = {host: report.facts["interfaces"] for host, report in reports.items()}
        offered = {host: checks.endpoints(host, each, self._options.network) for host, each in interfaces.items()}
        if len(offered) < 2:
            alone = [checks.loopback(host, each) for host, each in interfaces.items()]
            return Meeting(offered, {}, alone[0] if alone else None)
        connections = [connection for connection in self._connections if connection.host in reports]
        listen = [(each, {"address": end.address}) for each in connections for end in offered[each.host]]
        targets = [
            (connection.host, [fields["address"], int(answer["port"])])
            for connection, fields, answer in self._ask("listen", listen, _LISTEN_SECONDS)
        ]
        seconds = max(0.5, min(_REACH_SECONDS, self._until - time.monotonic()))
        others = {each.host: [target for host, target in targets if host != each.host] for each in connections}
        reach = [(each, {"targets": others[each.host], "seconds": seconds}) for each in connections]
        reached = {
            (connection.host, str(address)): str(why)
            for connection, _, answer in self._ask("reach", reach, seconds + 4.0)
            for address, _port, why in answer["reached"]
        }
        offered = {host: endpoints for host, endpoints in offered.items() if host not in self.silent}
        return Meeting(offered, reached, checks.choose(offered, reached) if len(offered) > 1 else None)


@contextlib.contextmanager
def _proof(options: Any) -> Iterator[str]:
    """Create a file with a random name in the jobs folder and yield its path. Hosts that see the file share the folder.

    Yields "" if the option ``shared`` is False, or if the file cannot be written.
    """
    path = store.home() / f".seen-{secrets.token_hex(16)}"
    with contextlib.suppress(OSError):
        if options.shared is not False:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield str(path.resolve()) if path.exists() else ""
    finally:
        path.unlink(missing_ok=True)
