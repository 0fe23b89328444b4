"""Open MPI's remote shell without a second ssh: what ``mpirun`` wants to run on another host, that host's agent runs.

Everything here happens on the wires' own threads, so nothing waits.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    from distdl_jupyter.clusters.agents.agent import AgentConnection

#: What ssh's own failures give.
_NO_CONNECTION = 255
#: As sshd runs a command: Open MPI words it for the login shell, csh or like sh.
_LOGIN_SHELL = 'case "$SHELL" in *csh) exec "$SHELL" -c "$0";; esac; exec /bin/sh -c "$0"'


class Relay:
    """The remote shell of one job. ``environments`` has for each host what its ranks share."""

    def __init__(
        self,
        connections: Mapping[str, AgentConnection],
        environments: Mapping[str, Mapping[str, str]],
        first_number: int,
    ) -> None:
        self._connections = connections
        self._environments = environments
        self._numbers = itertools.count(first_number)
        self._running: dict[int, tuple[str, Callable[[int], None]]] = {}
        self._lock = threading.Lock()

    def on_request(self, source: AgentConnection, request: Mapping[str, Any]) -> None:
        """Run a command for ``source`` on another host: ``request`` has shell, host, command."""
        answer = functools.partial(source.begin, "answer", shell=int(request["shell"]))
        target = self._connections.get(str(request["host"]))
        if target is None:
            answer(err=f"The job has no host {request['host']}.\n", code=_NO_CONNECTION)
            return
        number = next(self._numbers)
        with self._lock:
            self._running[number] = (target.host, lambda code: _ignore(answer(code=code)))
        started = target.begin("start", processes=[{
            "process": number,
            "argv": ["/bin/sh", "-c", _LOGIN_SHELL, str(request["command"])],
            "environment": dict(self._environments[target.host]),
            "directory": None,
            "out": target.channel(_passing_on(answer, "out")),
            "err": target.channel(_passing_on(answer, "err")),
        }])  # fmt: skip
        started.add_done_callback(lambda reply: self._started(number, reply, answer))

    def _started(self, number: int, reply: Future[dict[str, Any]], answer: Callable[..., Any]) -> None:
        if (error := reply.exception()) is not None:
            answer(err=f"{getattr(error, 'says', error)}\n")
            self.ended(number, _NO_CONNECTION)

    def ended(self, number: int, code: int) -> bool:
        """Pass on the end of a process; False when it was none of these."""
        with self._lock:
            known = self._running.pop(number, None)
        if known is not None:
            known[1](code)
        return known is not None

    def lost(self, host: str) -> None:
        """End what runs on a host that is gone."""
        with self._lock:
            numbers = [number for number, (where, _) in self._running.items() if where == host]
        for number in numbers:
            self.ended(number, _NO_CONNECTION)


def _passing_on(answer: Callable[..., Any], name: str) -> Callable[[bytes], None]:
    def pass_on(content: bytes) -> None:
        if content:
            answer(**{name: content.decode(errors="replace")})

    return pass_on


def _ignore(_answer: object) -> None:
    """Nobody waits for this answer."""
