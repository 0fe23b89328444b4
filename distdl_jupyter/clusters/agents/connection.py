"""The connection to the agent of one host: its link, requests, answers, byte channels and heartbeats.

One asyncio loop in its own thread serves the links to all hosts, so transfers continue while the supervisor's thread
waits. The loop never blocks on a host or on a reader of output. Any thread may send requests and data.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, defstruct

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents.agent import AgentConnection, Host, HostFailed, ReachError, query_all
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import channels
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.processes import StackDump
from distdl_jupyter.node.run_dir import RunFolder
from distdl_jupyter.worker.rank_socket import NOTES, find_note, open_listener, read_uid, write_note

#: The maximum number of bytes per read of an agent's output.
READ_BYTES = 256 * 1024
#: The maximum number of bytes of error output to store; only its end is stored.
MAX_ERROR_BYTES = 8192
#: Timeout in seconds for an agent's handshake: 10 s for ssh, the rest for starting Python from a slow disk.
_HANDSHAKE_SECONDS = 25.0
#: Timeouts in seconds for all hosts to end their processes, and for one agent to exit after its input was closed.
_END_SECONDS, _CLOSE_SECONDS = 10.0, 5.0
#: The default folder of jobs on a host.
DEFAULT_DIRECTORY = "~/.cache/distdl"
#: Seconds without a heartbeat after which an agent that a scheduler started exits; its input usually closes earlier.
AGENT_TIMEOUT = "20"
#: Size of the send queue in bytes above which senders wait.
_MAX_UNSENT = 4 * 1024 * 1024
#: Seconds between two polls of slow readers, and between two polls of handshakes.
_POLL_SECONDS, _HANDSHAKE_POLL_SECONDS = 0.02, 0.1
#: The maximum number of bytes per read from a kernel, and buffered for it before its rank must pause.
_READ_SIZE, _MAX_BUFFERED = 1024 * 1024, 4 * 1024 * 1024

_loop: asyncio.AbstractEventLoop | None = None
_start_lock = threading.Lock()
_inherited_loops: list[asyncio.AbstractEventLoop | None] = []


def get_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all links of this process; the first call starts it."""
    global _loop
    with _start_lock:
        if _loop is None:
            _loop = asyncio.SelectorEventLoop()
            threading.Thread(target=_loop.run_forever, name="links", daemon=True).start()
        return _loop


def _reset_loop() -> None:
    """Reset the loop in a forked child, which does not inherit the thread; ``get_loop`` then starts a new one."""
    global _loop, _start_lock
    _inherited_loops.append(_loop)  # closing it would change its epoll set, which both processes share
    _loop, _start_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_reset_loop)


class Link(ABC):
    """The byte streams of an agent, such as the pipes of a process. Coroutines run on ``get_loop``."""

    #: Seconds between two heartbeats, and seconds of idle time after which the host is lost.
    beat_seconds: ClassVar[float] = 1.0
    max_idle_seconds: ClassVar[float] = 10.0

    def __init__(self) -> None:
        #: The end of the error output.
        self.error_tail = b""
        self._code: int | None = None

    @property
    def code(self) -> int | None:
        """The agent's exit code (255: unknown), or None while it runs or if a batch system handles it."""
        return self._code

    @abstractmethod
    async def read(self) -> bytes:
        """Return the next output of the agent, or b"" at its end."""

    @abstractmethod
    async def write(self, content: bytes) -> None:
        """Send all bytes. Raises OSError if the agent has disconnected."""

    @abstractmethod
    def close_input(self) -> None:
        """Close the agent's input; idempotent."""

    @abstractmethod
    async def end(self, grace: float = 0.0) -> None:
        """Wait for the agent to exit; kill it after ``grace`` seconds."""

    @abstractmethod
    async def explain_end(self, idle_seconds: float) -> str:
        """Return the reason why the output ended, after ``idle_seconds`` without a byte."""

    async def close(self) -> None:
        """Close all streams."""
        self.close_input()

    def add_errors(self, content: bytes) -> None:
        """Append error output."""
        self.error_tail = (self.error_tail + content)[-MAX_ERROR_BYTES:]

    @property
    def last_line(self) -> str:
        """The last line of error output after ": ", or "" if there is none."""
        return format_last_line(self.error_tail.decode(errors="replace"))


def format_last_line(output: str) -> str:
    """Return the last line of an output after ": ", or "" if the output is empty."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f": {lines[-1][:300].rstrip('.')}" if lines else ""


#: The functions that receive the bytes of a channel, and the requests to hold it.
_Sink = tuple[Callable[[bytes], object], Callable[[bool], object]]
_NO_SINK: _Sink = (bool, bool)


class Connection(AgentConnection):
    """A connection to the agent of one host."""

    def __init__(
        self, host: Host, link: Link, first_input: bytes = b"", first_number: int = 1, *, user_command: str = ""
    ) -> None:
        """Create a connection that sends ``first_input`` first, and numbers requests from ``first_number``.

        ``user_command`` is the prefix of commands that a user runs on the host: "ssh gpu1".
        """
        super().__init__(host.name)
        self.target = host
        self.shell = user_command
        #: Set when the agent's handshake has arrived.
        self.handshake_done = threading.Event()
        self.link = link
        self.reader = channels.FrameReader(expect_handshake=True)
        # Requests and channels of an earlier supervisor have smaller numbers.
        self._request_numbers, self._channel_numbers = itertools.count(first_number), itertools.count(first_number)
        self._lock = threading.Condition()
        #: The type and the future of each pending request, by number.
        self._pending: dict[int, tuple[str, Future[dict[str, Any]]]] = {}
        self._sinks: dict[int, _Sink] = {}
        self._inboxes: list[Inbox] = []
        #: Frames to send, None at the end; used only on the event loop.
        self._send_queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        if first_input:
            self._send_queue.put_nowait(first_input)
        self._unsent_bytes = len(first_input)
        self._is_started = self._has_sent_package = False
        self._received_at = time.monotonic()
        #: Time (monotonic) at which the connection is closed even if the agent has not exited; inf until ``close``.
        self._close_at = math.inf
        self._ended = threading.Event()

    # requests and channels --------------------------------------------------------------------

    def begin(self, type_: str, /, **fields: Any) -> Future[dict[str, Any]]:
        """Send a request; ``result`` waits for the answer, which includes ``received_at`` (epoch seconds)."""
        answer: Future[dict[str, Any]] = Future()
        number = next(self._request_numbers)
        content = channels.encode_message(type_, request=number, **fields)
        with self._lock:
            if not self.lost:
                self._pending[number] = type_, answer
                self._send(content)
                return answer
        answer.set_exception(HostFailed(self.host, self.lost, code="host-lost"))
        return answer

    def _send(self, content: bytes, *, wait: bool = False) -> bool:
        """Queue frames and return whether the host is connected. ``wait`` blocks while the queue is too long."""
        with self._lock:
            while wait and self._unsent_bytes > _MAX_UNSENT and not self.lost:
                self._lock.wait(1.0)
            if self.lost:
                return False
            self._unsent_bytes += len(content)
            get_loop().call_soon_threadsafe(self._send_queue.put_nowait, content)
        return True

    def open_stream(self) -> tuple[int, Inbox]:
        """Open a channel and return its number and the inbox with its bytes."""
        number = next(self._channel_numbers)
        return number, self.reopen(number)

    def reopen(self, channel: int, skip: int = 0) -> Inbox:
        """Return the inbox of a channel, such as one of an earlier supervisor, without its first ``skip`` bytes."""
        inbox = Inbox(skip)
        with self._lock:
            self._inboxes = [*(item for item in self._inboxes if item.unread or not item.has_ended), inbox]
        self.open_channel(inbox.feed, number=channel)
        return inbox

    def open_channel(
        self, sink: Callable[[bytes], object], hold: Callable[[bool], object] = bool, number: int | None = None
    ) -> int:
        """Open a channel and return its number. On the loop, its bytes are passed to ``sink``; b"" is its end.

        ``hold`` is called on the loop with True when the writer must pause, and False when it may continue.
        """
        number = next(self._channel_numbers) if number is None else number
        with self._lock:
            self._sinks[number] = sink, hold
            lost = bool(self.lost)
        if lost:
            sink(b"")
        return number

    def write(self, channel: int, content: bytes, *, wait: bool = True) -> None:
        """Send bytes on a channel, b"" to end it; ``wait`` applies backpressure. Raises HostFailed."""
        if not self._send(channels.encode_data(channel, content), wait=wait):
            raise HostFailed(self.host, self.lost, code="host-lost")

    # start and close --------------------------------------------------------------------------

    def start(self) -> None:
        """Start to transfer frames."""
        self._is_started = True
        asyncio.run_coroutine_threadsafe(self._run(), get_loop())

    def close(self) -> None:
        """End the agent and all processes that it started; idempotent."""
        self._close_at = min(self._close_at, time.monotonic() + _CLOSE_SECONDS)
        if not self._is_started:
            self.start()
        get_loop().call_soon_threadsafe(self._send_queue.put_nowait, None)
        self._ended.wait()

    # event loop -------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Transfer frames until the connection ends; then the host is lost: fail all requests, end all channels."""
        tasks: list[asyncio.Task[str]] = []
        try:
            tasks = [asyncio.create_task(work) for work in (self._receive(), self._watch(), self._send_queued())]
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            reason = next(task.result() for task in tasks[:2] if task.done())
        except channels.InvalidFrame as error:
            reason = f"{self.host} sent an invalid message: {error}"
        except Exception as error:  # noqa: BLE001  pending requests must not wait forever
            reason = f"The connection to {self.host} failed: {type(error).__name__}: {error}."
        try:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.link.close_input()
            await self.link.end()
            with self._lock:
                self.lost = reason
                pending, self._pending = self._pending, {}
                sinks = list(self._sinks.values())
                self._lock.notify_all()
            for _type, answer in pending.values():
                answer.set_exception(HostFailed(self.host, reason, code="host-lost"))
            for sink, _hold in sinks:
                sink(b"")
            self.on_event({"type": "lost", "reason": reason})
            await self.link.close()
        finally:
            self._ended.set()

    async def _receive(self) -> str:
        """Handle received frames until the output ends, and return the reason."""
        while True:
            while sum(inbox.unread for inbox in self._inboxes) > Inbox.MAX_UNREAD:
                # A pending reply follows the output, so continue; only the reply to ``get`` follows bytes being read.
                if {type_ for type_, _answer in list(self._pending.values())} - {"get"}:
                    break
                await asyncio.sleep(_POLL_SECONDS)
                self._received_at = time.monotonic()  # this pause is not idle time
            content = await self.link.read()
            if not content:
                return await self.link.explain_end(time.monotonic() - self._received_at)
            self._received_at = time.monotonic()
            for frame in self.reader.feed(content):
                self._on_frame(frame)
            if self.reader.has_handshake:
                self.handshake_done.set()
            elif not self._has_sent_package and environment.build_request_marker() in self.reader.preamble:
                self._has_sent_package = True
                self._send(environment.build_package().content)

    async def _send_queued(self) -> str:
        with contextlib.suppress(OSError):  # the agent has exited, and its output explains why
            while (content := await self._send_queue.get()) is not None:
                await self.link.write(content)
                with self._lock:
                    self._unsent_bytes -= len(content)
                    self._lock.notify_all()
        self.link.close_input()
        return ""

    async def _watch(self) -> str:
        """Send heartbeats; return the reason when the host has been idle for too long."""
        timeout = self.link.max_idle_seconds
        while time.monotonic() < self._close_at:
            await asyncio.sleep(self.link.beat_seconds)
            if self._close_at == math.inf and self.handshake_done.is_set():
                if not self._unsent_bytes:  # any frame serves as a heartbeat
                    self._send(channels.encode_message("beat"))
                if time.monotonic() - self._received_at > timeout:
                    return f"No response from {self.host} for {timeout:.0f} s."
        return f"The connection to {self.host} was closed."

    def _on_frame(self, frame: dict[str, Any] | channels.Data) -> None:
        if isinstance(frame, channels.Data):
            sink, _hold = self._sinks.get(frame.channel, _NO_SINK)
            if not frame.bytes:
                self._sinks.pop(frame.channel, None)
            sink(frame.bytes)
            return
        _validate(frame, _MESSAGES.get(frame["type"]))
        if frame["type"] == "reply":
            type_, answer = self._pending.get(frame["request"], ("", None))
            if answer is not None and "error" not in frame:
                _validate(frame, _REPLIES.get(type_, dict))
                answer.set_result({**frame, "received_at": time.time()})
            elif answer is not None:
                answer.set_exception(HostFailed(self.host, str(frame["error"]), code="host-request-failed"))
            self._pending.pop(frame["request"], None)
        elif frame["type"] == "hold":
            self._sinks.get(frame["channel"], _NO_SINK)[1](frame["held"])
        elif frame["type"] != "beat":
            self.on_event(frame)


def start_agents(
    connections: Sequence[Connection],
    explain: Callable[[Connection, str, int | None], ReachError],
    seconds: float = math.inf,
    report: Callable[[int], object] = bool,
) -> tuple[list[Connection], list[ReachError]]:
    """Start connections and wait for the handshakes; return the connections, and the errors of the other hosts.

    ``explain`` returns the error for the output before the handshake and the exit code, or None if it is running.
    ``report`` is called with the number of completed hosts; an exception that it raises ends all agents.
    """
    for connection in connections:
        connection.start()
    deadline, pending = time.monotonic() + min(seconds, _HANDSHAKE_SECONDS), list(connections)
    reached, errors = list[Connection](), list[ReachError]()
    try:
        while pending and time.monotonic() < deadline:
            pending[0].handshake_done.wait(_HANDSHAKE_POLL_SECONDS)
            pending = [item for item in pending if not (item.handshake_done.is_set() or item.lost)]
            report(len(connections) - len(pending))
        reached = [item for item in connections if item.handshake_done.is_set()]
        for item in [item for item in connections if item not in reached]:
            error_tail = b"\n" + item.link.error_tail + (b"" if item.lost else b"\nConnection timed out")
            output = (item.reader.preamble[-MAX_ERROR_BYTES:] + error_tail).decode(errors="replace").strip()
            errors.append(explain(item, output, item.link.code))
    finally:
        for item in connections:
            if item not in reached:  # in daemon threads, because a host may not respond
                threading.Thread(target=item.close, name="close", daemon=True).start()
    return reached, errors


def start_all(links: Iterable[tuple[Host, Link]], first_input: bytes = b"") -> list[Connection]:
    """Connect to agents that a scheduler started, and send ``first_input`` to each. Raises ReachError."""

    def explain(connection: Connection, output: str, _code: int | None) -> ReachError:
        text = f"The agent did not start: {output or 'it printed nothing'}."
        return ReachError(connection.host, "other", text)

    new_connections = [Connection(host, link, first_input, user_command=f"on {host.name}:") for host, link in links]
    connections, errors = start_agents(new_connections, explain)
    if errors:
        end_all(connections)
        raise errors[0]
    return connections


def end_all(connections: Sequence[Connection], keep: Collection[str] = ()) -> None:
    """End agents in parallel. The agents of the hosts in ``keep`` do not remove their folders."""
    query_all([(connection, {"keep": connection.host in keep}) for connection in connections], "end", _END_SECONDS)
    with ThreadPoolExecutor(max(1, min(len(connections), 16))) as pool:
        list(pool.map(Connection.close, connections))


# relays to persistent ranks -------------------------------------------------------------------


class RankRelay:
    """Local sockets to persistent ranks on other hosts, in a private folder. Raises OSError.

    Each connection is a channel of the agent on the rank's host, which forwards the bytes to the rank's socket there.
    The rank checks the token. The relay stops reading while a few MiB are buffered on either host.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._notes_folder = folder.path / NOTES
        self._run = RunFolder(folder.id, "rank-00000.sock")
        self._servers: list[asyncio.Server] = []

    def offer(
        self, connection: Connection, rank: int, answer: Future[dict[str, Any]], on_failure: Callable[[OSError], None]
    ) -> None:
        """Create a rank's socket, then its note, once its host has reported the rank's address."""

        async def create_socket() -> None:
            try:
                note, path = answer.result(), self._run.path / f"rank-{rank}.sock"
                serve = functools.partial(_relay, connection, rank)
                self._servers.append(await asyncio.start_unix_server(serve, sock=open_listener(path), limit=_READ_SIZE))
                write_note(find_note(self._notes_folder, rank), {**note, "socket": str(path)})
            except HostFailed:
                pass  # an event reports that the host is lost or the rank has ended
            except OSError as error:
                on_failure(error)

        answer.add_done_callback(lambda _: asyncio.run_coroutine_threadsafe(create_socket(), get_loop()))

    def close(self) -> None:
        """Stop listening and remove the folder; relayed connections end with the connections to the agents."""
        for server in self._servers:
            get_loop().call_soon_threadsafe(server.close)
        self._run.close()


async def _relay(connection: Connection, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Relay a connection of this user to a rank until the kernel or the rank closes it."""
    if read_uid(writer.get_extra_info("socket")) != os.getuid():
        writer.close()
        return
    writer.transport.set_write_buffer_limits(_MAX_BUFFERED)
    can_send = asyncio.Event()
    can_send.set()
    pause: asyncio.Task[None] | None = None

    def send(content: bytes) -> None:
        nonlocal pause
        if not content:
            can_send.set()
            writer.close()
            return
        writer.write(content)
        if (pause is None or pause.done()) and writer.transport.get_write_buffer_size() > _MAX_BUFFERED:
            pause = asyncio.create_task(pause_rank())

    async def pause_rank() -> None:
        """Pause the rank's output until the kernel has read the buffer."""
        connection.begin("hold", channel=channel, held=True)
        with contextlib.suppress(OSError):  # the kernel has disconnected; the rank's connection is closed below
            await writer.drain()
        connection.begin("hold", channel=channel, held=False)

    channel = connection.open_channel(send, lambda held: can_send.clear() if held else can_send.set())
    connected = connection.begin("connect", rank=rank, channel=channel)
    connected.add_done_callback(lambda reply: reply.exception() and get_loop().call_soon_threadsafe(writer.close))
    with contextlib.suppress(OSError, DistDLError):  # the kernel was killed, or the host is lost
        while content := await reader.read(_READ_SIZE):
            await asyncio.to_thread(connection.write, channel, content)
            await can_send.wait()
    with contextlib.suppress(DistDLError):
        connection.write(channel, b"", wait=False)  # the rank then disconnects, and ``send`` gets b""


# messages of an agent -------------------------------------------------------------------------
# Training code runs on the same host and may tamper with the agent, so messages of agents are validated.

Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
#: The maximum number of process ids on Linux.
Count = Annotated[int, Meta(ge=0, le=2**22)]
Text = Annotated[str, Meta(max_length=4096)]
Amount = Annotated[float, Meta(ge=-1e18, le=1e18)]
_NumberText = Annotated[str, Meta(pattern=r"^[0-9]{1,9}\Z")]


class _Exit(msgspec.Struct):
    kind: Literal["rank", "service", "launcher", "shell", "data"]
    process: Number
    code: Annotated[int, Meta(ge=-(2**31), le=2**32 - 1)] | None
    signal: Annotated[str, Meta(pattern=r"^[A-Z0-9+]{1,20}\Z")] | None
    evidence: Text | None = None


class _Sample(msgspec.Struct):  # the values of each rank are validated where they are used (see ``node.resources``)
    t: Amount
    node: Any
    ranks: dict[_NumberText, Any]
    gpus: Any = None


#: A request for a command on another host of the job.
_Shell = defstruct("Shell", [("shell", Number), ("host", Text), ("command", Annotated[str, Meta(max_length=2**20)])])
#: The fields of each message: "warned" means that the scheduler has announced the end of the job.
_MESSAGES: Mapping[str, Any] = {
    "beat": dict,
    "warned": dict,
    "exit": _Exit,
    "shell": _Shell,
    "resources": defstruct("Resources", [("samples", Annotated[list[_Sample], Meta(max_length=4096)])]),
    "stacks": defstruct("Stacks", [("answers", dict[_NumberText, StackDump])]),
    "hold": defstruct("Hold", [("channel", Number), ("held", bool)]),
    "reply": defstruct("Reply", [("request", int)]),
}
#: The fields of the reply to each request; other replies are validated where they are used.
_REPLIES: Mapping[str, Any] = {
    "start": defstruct("Started", [("pids", dict[_NumberText, Number])]),
    "alive": defstruct("Alive", [("alive", Count), ("workers", Count, 0)]),
    "stuck": defstruct("Stuck", [("pids", Annotated[list[Number], Meta(max_length=4096)])]),
    "drain": defstruct("Drained", [("evidence", Text | None, None)]),
}


def _validate(message: Mapping[str, Any], schema: Any) -> None:
    """Raise InvalidFrame for an invalid or unknown message, which closes only the connection to that host."""
    try:
        msgspec.convert(message, schema, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise channels.InvalidFrame(f"{str(message.get('type'))[:20]!r}: {error}.") from None
