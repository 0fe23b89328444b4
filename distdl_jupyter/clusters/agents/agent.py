"""The machines of a started job: an agent on each starts, signals and watches processes.

``AgentConnection`` is the supervisor's side of an agent (requests as in ``distdl_jupyter.node.requests``): the agent is
part of this process (``local_node``) or runs on another machine (``connection``).
"""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from distdl_jupyter.clusters.base import Exit, Notice, Stream
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.plan import RankSlot
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.stacks import Answer

#: Seconds for an answer that is ready at once.
ANSWER_SECONDS = 15.0
#: Seconds between two calls of ``while_waiting``.
_POLL_SECONDS = 0.5


class HostTrouble(LaunchFailed):
    """A problem with one host: ``says`` is the message, ``remedy`` the fix."""

    code = "host-unusable"

    def __init__(self, host: str, reason: str, remedy: str = "", *, code: str = "") -> None:
        super().__init__(f"{host}: {reason}" if host else reason, code=code, hint=remedy)
        self.host = host
        self.says = reason
        self.remedy = remedy


class HostFailed(HostTrouble):
    """A connected host refused a request or no longer responds."""

    code = "host-failed"


class Unreachable(HostTrouble):
    """No agent could be started on a host.

    ``kind`` is the cause: unknown-key, changed-key, denied, name, refused, timeout, route, python, old-python, folder,
    shell, ssh, ssh-missing or other. The code is ``unreachable-`` and the kind.
    """

    def __init__(self, host: str, kind: str, reason: str, remedy: str = "") -> None:
        super().__init__(host, reason, remedy, code=f"unreachable-{kind}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Host:
    """One host: its name, its address (for ssh ``user@name``), and how many processes fit (0: not known)."""

    name: str
    target: str
    slots: int = 0


class AgentConnection(ABC):
    """The supervisor's side of one agent. ``host`` is the name of its machine, "" for this one."""

    host: str

    def __init__(self, host: str) -> None:
        self.host = host
        #: Called with the agent's events: ``exit`` of a process, ``shell`` (a remote shell is wanted), ``lost``.
        self.on_event: Callable[[dict[str, Any]], object] = bool

    @property
    def lost(self) -> str:
        """Why the machine is lost, one sentence; "" while it responds."""
        return ""

    @abstractmethod
    def begin(self, type_: str, /, **fields: Any) -> Future[dict[str, Any]]:
        """Send a request. The answer is its fields, or HostFailed (in this process also OSError)."""

    def ask(
        self, type_: str, /, timeout: float = ANSWER_SECONDS, while_waiting: Callable[[], object] = bool, **fields: Any
    ) -> dict[str, Any]:
        """Send a request and return the answer. Raises HostFailed: refused, no answer in ``timeout`` s, or lost."""
        with self.bypass_backpressure():
            return self.result(self.begin(type_, **fields), type_, timeout, while_waiting)

    def result(
        self,
        answer: Future[dict[str, Any]],
        type_: str,
        timeout: float | None,
        while_waiting: Callable[[], object] = bool,
        *,
        waited: bool = False,
    ) -> dict[str, Any]:
        """Wait for the answer of ``begin``, unless the caller has ``waited`` for so long. Raises HostFailed.

        ``while_waiting`` is called meanwhile, and ends the wait by raising.
        """
        until = math.inf if timeout is None else time.monotonic() + (0.0 if waited else timeout)
        while not answer.done():
            if (left := until - time.monotonic()) <= 0:
                raise HostFailed(
                    self.host, f"No response to the request {type_!r} within {timeout:.0f} s.", code="host-silent"
                )
            wait([answer], min(left, _POLL_SECONDS))
            while_waiting()
        return answer.result()

    def bypass_backpressure(self) -> contextlib.AbstractContextManager[None]:
        """Bypass backpressure: read answers even while output of ranks is not read."""
        return contextlib.nullcontext()

    @abstractmethod
    def open_stream(self) -> tuple[int, int | Inbox]:
        """Open a channel and return its number and what to read its bytes from (see ``base.Stream``)."""

    def poll(self) -> None:
        """Deliver events that no agent sends. Called about ten times a second."""
        return

    @abstractmethod
    def ask_stacks(self, ranks: Sequence[int]) -> None:
        """Ask ranks for the stacks of their threads, without waiting."""

    @abstractmethod
    def stacks(self) -> Mapping[int, Answer]:
        """Return the answers of ranks since the last call."""


def ask_all(
    requests: Iterable[tuple[AgentConnection, Mapping[str, Any]]], type_: str, timeout: float
) -> list[dict[str, Any] | HostTrouble]:
    """Send a request with its fields to several agents; return each one's answer, or its error, after ``timeout`` s."""
    begun = [(connection, connection.begin(type_, **fields)) for connection, fields in requests]
    with contextlib.ExitStack() as stack:
        for connection, _ in begun:
            stack.enter_context(connection.bypass_backpressure())
        wait([answer for _, answer in begun], timeout)
    answers: list[dict[str, Any] | HostTrouble] = []
    for connection, answer in begun:
        try:
            answers.append(connection.result(answer, type_, timeout, waited=True))
        except HostTrouble as error:
            answers.append(error)
    return answers


def ask_all_or_raise(
    requests: Sequence[tuple[AgentConnection, Mapping[str, Any]]], type_: str, timeout: float
) -> list[dict[str, Any]]:
    """Return the answers of ``ask_all``. Raises the first error."""
    answers = []
    for answer in ask_all(requests, type_, timeout):
        if isinstance(answer, HostTrouble):
            raise answer
        answers.append(answer)
    return answers


@dataclass(slots=True, eq=False)
class Node:
    """One machine of a job: the job's folder there, and the working directory of its ranks.

    ``run`` is the agent's private folder, removed with the job; ``python`` that of the job's packages, "" without.
    """

    connection: AgentConnection
    folder: str
    directory: str
    run: str
    python: str = field(default="", kw_only=True)

    @property
    def host(self) -> str:
        """The machine's name, "" for this one."""
        return self.connection.host


N = TypeVar("N", bound=Node)


class Nodes(ABC, Generic[N]):
    """All machines of a started job, in the order of the job's nodes."""

    #: Whether the job continues without its supervisor, and another one can read the agents' output again
    #: (``Connection.reopen``).
    outlive_supervisor: ClassVar[bool] = False

    def __init__(self, nodes: Sequence[N]) -> None:
        self.nodes = list(nodes)
        #: Notices for the user; the run removes them.
        self.notices: list[Notice] = []
        #: Output there that is not of an agent's processes.
        self.streams: tuple[Stream, ...] = ()

    @property
    def connected(self) -> list[N]:
        """The machines that are not lost."""
        return [node for node in self.nodes if not node.connection.lost]

    def poll(self) -> None:
        """Deliver events that no agent sends. Called about ten times a second."""
        for node in self.nodes:
            node.connection.poll()

    def node_of(self, slot: RankSlot) -> N:
        """Return the machine of a rank."""
        return self.nodes[slot.node]

    @abstractmethod
    def environment(self, node: N) -> dict[str, str]:
        """Return the environment of all processes of the job on a machine."""

    @abstractmethod
    def rank_variables(self, slot: RankSlot, variables: dict[str, str]) -> dict[str, str]:
        """Return a rank's own ``variables`` with those of its machine."""

    def keep_slots(self) -> None:
        """Keep the job's entries in the machines' queues. Called about once a second."""
        return

    def service_variables(self, number: int) -> dict[str, str]:
        """Return further variables of a service."""
        return {}

    def on_launcher_output(self, text: str) -> None:
        """Handle output that is not a rank's."""
        return

    def on_signal(self, name: str) -> None:
        """Handle that all machines were asked to signal the job."""
        return

    def explain_exit(self, exit_: Exit) -> Exit | None:
        """Return the end of a rank with its cause, None while the cause is being queried."""
        return exit_

    def interrupted(self) -> str:
        """Return why a queue took the machines from a job that had not failed (see ``Run.interrupted``)."""
        return ""

    def note_start(self, *, launcher: str = "") -> None:
        """Add a notice on how ranks were started; ``launcher`` is the program that starts them."""
        return

    @abstractmethod
    def handle(self) -> dict[str, Any]:
        """Return plain data by which ``Cluster.sweep`` finds what is left of the job."""

    def collect(self) -> None:
        """Copy back what ranks have written elsewhere (see ``Run.collect``)."""
        return

    @abstractmethod
    def close(self) -> None:
        """End the agents with all processes, and release what is held for the job."""


#: Help texts of options that all clusters with agents have.
DIRECTORY_HELP = (
    "folder for the files of jobs on a host that shares no folder with this machine (default: ~/.cache/distdl)"
)
NETWORK_HELP = (
    "network or interface that ranks use to communicate, such as 10.0.0.0/24 or eno1 (default: the one "
    "that all hosts share)"
)
SHARED_HELP = "whether hosts see this machine's folders (default: detected)"
OVERSUBSCRIBE_HELP = "allow more processes than the limit of a machine (8 per core, at least 64)"
