"""Base classes for jobs with an agent on each machine, which starts, signals and watches processes.

On another machine, the agent (``node.agent``) is reached through a ``connection``. On this machine, it is part of the
supervisor, so that ranks can be forked warm.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from distdl_jupyter.clusters.base import Context, Exit, RunHooks, RunNotice, Stream
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.plan import RankSlot
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.node import data_cache, devices
from distdl_jupyter.node import job as node_job
from distdl_jupyter.node.channels import Channels, ChannelSource, Inbox
from distdl_jupyter.node.files import Workdir
from distdl_jupyter.node.job import Job
from distdl_jupyter.node.ports import Ports
from distdl_jupyter.node.slots import QueueSlot
from distdl_jupyter.worker import installed

#: Timeout in seconds of requests that are answered immediately.
ANSWER_SECONDS = 15.0
#: Seconds between two calls of ``while_waiting``.
_POLL_SECONDS = 0.5
#: The number of bytes per read of a local process's output.
_READ_SIZE = 64 * 1024

#: Help texts of the options that all clusters with agents share.
DIRECTORY_HELP = "folder for jobs on a host that shares no folder with this machine (default: ~/.cache/distdl)"
NETWORK_HELP = "network or interface of the ranks, such as 10.0.0.0/24 or eno1 (default: the one that all hosts share)"
SHARED_HELP = "whether hosts see this machine's folders (default: detected)"
OVERSUBSCRIBE_HELP = "allow more processes than the limit of a machine (8 per core, at least 64)"


class HostFailed(LaunchFailed):
    """A host refused a request, or no longer responds; ``reason`` is the message, ``remedy`` the fix."""

    code = "host-failed"

    def __init__(self, host: str, reason: str, remedy: str = "", *, code: str = "") -> None:
        super().__init__(f"{host}: {reason}" if host else reason, code=code, hint=remedy)
        self.host = host
        self.reason = reason
        self.remedy = remedy


class ReachError(HostFailed):
    """No agent could be started on a host; ``kind`` is the cause: timeout, denied, ... (see ``ssh.CAUSES``)."""

    def __init__(self, host: str, kind: str, reason: str, remedy: str = "") -> None:
        super().__init__(host, reason, remedy, code=f"unreachable-{kind}")
        self.kind = kind


#: The staged data on a node: variables with its paths, and the ranks' Python ("": the node's Python).
NodeData = tuple[dict[str, str], str]


@dataclass(frozen=True, slots=True)
class Host:
    """A host. ``target`` is its address (ssh: ``user@name``), ``slots`` how many processes fit (0: unknown)."""

    name: str
    target: str
    slots: int = 0


class AgentConnection(ABC):
    """The connection of the supervisor to one agent; ``host`` is the name of its machine, or "" for this machine."""

    def __init__(self, host: str) -> None:
        self.host = host
        #: The reason why the machine is lost, as one sentence, or "" while it responds.
        self.lost = ""
        #: Called with the agent's events: ``exit`` of a process, ``shell`` (request for a remote shell), ``lost``.
        self.on_event: Callable[[dict[str, Any]], object] = bool

    @abstractmethod
    def begin(self, type_: str, /, **fields: Any) -> Future[dict[str, Any]]:
        """Send a request; return a future of the answer or of HostFailed (local agents: also OSError)."""

    def ask(
        self, type_: str, /, timeout: float = ANSWER_SECONDS, while_waiting: Callable[[], object] = bool, **fields: Any
    ) -> dict[str, Any]:
        """Send a request and return the answer. Raises HostFailed if it is refused, times out, or the host is lost."""
        return self.result(self.begin(type_, **fields), type_, timeout, while_waiting)

    def result(
        self, answer: Future[dict[str, Any]], type_: str, timeout: float, while_waiting: Callable[[], object] = bool
    ) -> dict[str, Any]:
        """Wait for the answer to ``begin`` and return it; ``while_waiting`` may end the wait. Raises HostFailed."""
        deadline = time.monotonic() + timeout
        while not answer.done():
            if (remaining := deadline - time.monotonic()) <= 0:
                raise HostFailed(self.host, f"No response to the request {type_!r}.", code="host-silent")
            wait([answer], min(remaining, _POLL_SECONDS))
            while_waiting()
        return answer.result()

    @abstractmethod
    def open_stream(self) -> tuple[int, int | Inbox]:
        """Open a channel; return its number and the source of its bytes (see ``base.Stream``)."""

    def poll(self) -> None:
        """Deliver events that do not come from agents. Called about ten times per second."""
        return


#: The connections to agents, each with the fields of a request.
Requests = Iterable[tuple[AgentConnection, Mapping[str, Any]]]


def query_all(requests: Requests, type_: str, timeout: float) -> list[dict[str, Any] | HostFailed]:
    """Send requests to all agents in parallel; return the answer or the error of each within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    answers: list[dict[str, Any] | HostFailed] = []
    for connection, answer in [(connection, connection.begin(type_, **fields)) for connection, fields in requests]:
        try:
            answers.append(connection.result(answer, type_, deadline - time.monotonic()))
        except HostFailed as error:
            answers.append(error)
    return answers


def query_or_raise(requests: Requests, type_: str, timeout: float) -> list[dict[str, Any]]:
    """Send requests to all agents in parallel and return the answers. Raises HostFailed for the first error."""
    pending = [(connection, connection.begin(type_, **fields)) for connection, fields in requests]
    return [connection.result(answer, type_, timeout) for connection, answer in pending]


@dataclass(slots=True, eq=False)
class AgentNode:
    """One machine of a job."""

    #: A ``Connection`` to another machine, or the agent in this process.
    connection: Any
    #: The job's folder on the machine, the working directory of its ranks, and the agent's private folder.
    folder: str
    directory: str
    private_folder: str
    #: Whether the machine sees the job's folder of this machine.
    is_shared: bool = True
    #: The environment variables with the paths of the data.
    data_variables: dict[str, str] = field(default_factory=dict)
    #: The Python interpreter with the job's packages, or "" if it has none.
    python: str = ""

    @property
    def host(self) -> str:
        """The name of the machine, or "" for this machine."""
        return str(self.connection.host)


class JobNodes(RunHooks):
    """All machines of a started job, in the order of the job's nodes."""

    #: Whether the job continues without its supervisor, and a new one can read the output again (``reopen``).
    outlives_supervisor: ClassVar[bool] = False

    def __init__(self, nodes: Sequence[AgentNode]) -> None:
        self.nodes = list(nodes)
        #: Notices for the user that the run has not fetched yet.
        self.notices: list[RunNotice] = []
        #: Output of the machines that does not come from an agent's processes.
        self.streams: tuple[Stream, ...] = ()

    @property
    def connected(self) -> list[AgentNode]:
        """The machines that are not lost."""
        return [node for node in self.nodes if not node.connection.lost]

    def poll(self) -> None:
        """Deliver events that do not come from agents. Called about ten times per second."""
        for node in self.nodes:
            node.connection.poll()

    def get_node(self, slot: RankSlot) -> AgentNode:
        """Return the machine of a rank."""
        return self.nodes[slot.node]

    @abstractmethod
    def get_environment(self, node: AgentNode) -> dict[str, str]:
        """Return the environment that all processes of the job have on a machine."""

    @abstractmethod
    def get_rank_variables(self, slot: RankSlot, variables: dict[str, str]) -> dict[str, str]:
        """Return the ``variables`` of a rank and the variables of its machine."""

    def get_service_variables(self, number: int) -> dict[str, str]:
        """Return additional variables for a service."""
        return {}

    def on_signal(self, name: str) -> None:
        """React to a signal that was sent to all machines."""
        return

    def explain_exit(self, exit_: Exit) -> Exit | None:
        """Return the exit of a rank with its cause added, or None while the cause is being queried."""
        return exit_

    def note_start(self, *, launcher: str = "") -> None:
        """Add a notice about how the ranks were started; ``launcher`` is the program that started them."""
        return


class LocalChannels(Channels):
    """The channels of an agent in this process: pipes that the supervisor reads directly."""

    def __init__(self) -> None:
        self._sources: list[ChannelSource] = []
        #: The ends (read, write) of each channel's pipe; the write end is -1 after a process has received it.
        self._pipes: dict[int, list[int]] = {}

    def create_pipe(self) -> tuple[int, int]:
        """Create a channel; return its number and the read end."""
        number = len(self._pipes) + 1
        self._pipes[number] = list(os.pipe())
        return number, self._pipes[number][0]

    def forward(self, sink: Callable[[bytes], object]) -> int:
        """Create a channel whose bytes a thread passes to ``sink``, b"" at the end; return its number."""
        number, reader = self.create_pipe()
        self._pipes[number][0] = -1  # only the thread uses it

        def read() -> None:
            with open(reader, "rb", buffering=0) as pipe:  # noqa: PTH123  a descriptor
                while content := pipe.read(_READ_SIZE):
                    sink(content)
            sink(b"")

        threading.Thread(target=read, name="channel", daemon=True).start()
        return number

    def open(self, channel: int) -> tuple[int, ChannelSource | None]:
        """Return the write end."""
        writer, self._pipes[channel][1] = self._pipes[channel][1], -1
        return writer, None

    def add(self, fd: int, channel: int) -> ChannelSource | None:
        """Read the channel's bytes from ``fd``, such as a named pipe."""
        reader, writer = self._pipes[channel]
        os.dup2(fd, reader, inheritable=False)
        os.close(fd)
        os.close(writer)
        self._pipes[channel][1] = -1
        return None

    def discard_all(self) -> None:
        """Discard unread bytes, so that no process blocks on a full pipe."""
        for reader, _writer in self._pipes.values():
            with contextlib.suppress(OSError):
                os.set_blocking(reader, False)
                while os.read(reader, _READ_SIZE):
                    pass

    def close(self) -> None:
        """Close the write ends that no process has received; readers close the read ends."""
        for _reader, writer in self._pipes.values():
            if writer >= 0:
                os.close(writer)
        self._pipes.clear()


class LocalJob(Job):
    """A job whose processes this process starts with complete environments."""

    def _on_feed(self, fields: node_job.Fields) -> None:
        self.feed(**fields)

    # A process that is forked warm is found as a child of this process: its environment shows only the job's mark.
    def _build_environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {**variables, **devices.build_cuda_variables(variables), **self.marks}


class LocalAgent(AgentConnection):
    """An agent in this process, which answers requests immediately."""

    def __init__(self, job: JobSpec, folder: Path) -> None:
        super().__init__("")
        self._channels = LocalChannels()
        self.open_channel = self._channels.forward
        self.job = LocalJob(job.id, Workdir(folder, is_copy=False), self._channels, [], None, job.python)

    def begin(self, type_: str, /, **fields: Any) -> Future[dict[str, Any]]:
        """Handle a request and return a completed future of the answer, HostFailed or OSError."""
        answer: Future[dict[str, Any]] = Future()
        try:
            answer.set_result(self.job.handle(type_, fields))
        except node_job.StartFailed as error:
            failure = HostFailed("", str(error), code="process-not-started")
            answer.set_exception(error.__cause__ if isinstance(error.__cause__, OSError) else failure)
        except node_job.RequestFailed as error:
            answer.set_exception(HostFailed("", str(error), code="host-request-failed"))
        except OSError as error:
            answer.set_exception(error)
        return answer

    def open_stream(self) -> tuple[int, int]:
        """Open a channel; return its number and the read end of its pipe."""
        return self._channels.create_pipe()

    def poll(self) -> None:
        """Deliver the exits of processes, their stacks and a sample of their resource usage."""
        for end in self.job.collect_exits(outbox_is_full=False):
            self.on_event({"type": "exit", **end})
        if answers := self.job.take_stacks():
            self.on_event({"type": "stacks", "answers": answers})
        if (sample := self.job.sample()) is not None:
            self.on_event({"type": "resources", "samples": [sample]})

    def close(self) -> None:
        """End all processes and remove the private folder."""
        self.job.kill()
        self.job.clean_up(None)
        self._channels.close()


class LocalNodes(JobNodes):
    """This machine, which emulates all nodes of a job; ``staged`` has the data and Python of each node's ranks."""

    def __init__(
        self, spec: JobSpec, context: Context, ports: Ports, slot: QueueSlot | None, staged: Mapping[int, NodeData]
    ) -> None:
        self._agent = agent = LocalAgent(spec, context.folder.path)
        folder, run = str(context.folder.path), str(agent.job.run.path)
        super().__init__([AgentNode(agent, folder, spec.working_directory, run)])
        self._context = context
        self._ports = ports
        self._slot = slot
        self._staged = staged
        # All emulated nodes have the same packages.
        self.nodes[0].python = next((python for _variables, python in staged.values()), "")

    def get_node(self, slot: RankSlot) -> AgentNode:
        """Return this machine."""
        return self.nodes[0]

    def keep_slots(self) -> None:
        """Restore the job's entry in the machine's queue if it was deleted."""
        if self._slot is not None:
            self._slot.ensure_file()

    def get_environment(self, node: AgentNode) -> dict[str, str]:
        """Return the supervisor's environment, extended by the job's variables."""
        return {**self._context.inherited, **self._context.variables}

    def get_rank_variables(self, slot: RankSlot, variables: dict[str, str]) -> dict[str, str]:
        """Add the data of the rank's node; rank 0 records its imports."""
        recording = self._get_recording_variables("rank-0") if slot.rank == 0 else {}
        return {**variables, **(self._staged[slot.node][0] if self._staged else {}), **recording}

    def get_service_variables(self, number: int) -> dict[str, str]:
        """Make a service, which runs on the first node, record its imports."""
        return self._get_recording_variables(f"service-{number}")

    def _get_recording_variables(self, name: str) -> dict[str, str]:
        folder = installed.get_record_folder(self._context.folder.path)
        return {installed.RECORD_VARIABLE: str(folder / f"{name}.json")} if folder.is_dir() else {}

    def note_start(self, *, launcher: str = "") -> None:
        """Add a notice that the start was warm, or why some programs were started cold."""
        if node_job.fork is None:
            return
        reasons = [f"{launcher} starts them"] if launcher else list(dict.fromkeys(node_job.fork_failures))
        node_job.fork_failures.clear()
        notices = [RunNotice("info", f"This job starts cold because {reason}.", "cold-start") for reason in reasons]
        self.notices += notices or [RunNotice("info", node_job.WARM_NOTICE, "warm-start")]

    def handle(self) -> dict[str, Any]:
        """Return {}, because a sweep finds processes by the job's mark."""
        return {}

    def close(self) -> None:
        """End all processes, and release the ports and the job's resources."""
        self._agent.close()
        self._ports.release()
        if self._slot is not None:
            self._slot.release()
        if self._staged:
            data_cache.remove_links(self._context.folder.id)
