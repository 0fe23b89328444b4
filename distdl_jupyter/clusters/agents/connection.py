"""The connection to the agent of one host: requests, answers, byte channels and heartbeats.

Any thread may send requests and data. The event loop of ``wire`` transfers frames and handles answers and events.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from distdl_jupyter.clusters import package
from distdl_jupyter.clusters.agents import wire
from distdl_jupyter.clusters.agents.agent import AgentConnection, Host, HostFailed, Unreachable, ask_all
from distdl_jupyter.clusters.agents.wire import Link
from distdl_jupyter.node import frames
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.stacks import StackDump

#: Timeout in seconds for an agent's greeting: 10 s for ssh, the rest for starting Python from a slow disk.
REACH_SECONDS = 25.0
#: Timeouts in seconds for all hosts to end their processes, and for one agent to exit after its input was closed.
_END_SECONDS, _CLOSE_SECONDS = 10.0, 5.0
#: The default folder of jobs on a host.
DIRECTORY = "~/.cache/distdl"
#: Seconds without a heartbeat after which an agent that a scheduler started exits; its input usually closes earlier.
TIMEOUT = "20"
#: Size of the send queue in bytes above which senders wait.
_MOST_UNSENT = 4 * 1024 * 1024
#: Seconds between checks whether slow readers have caught up.
_PAUSE = 0.02


class Connection(AgentConnection):
    """A connection to the agent of one host; ``python`` is the path of its interpreter, "" until it is known."""

    def __init__(self, host: Host, python: str, link: Link, first_input: bytes = b"", first: int = 1) -> None:
        """Create a connection that sends ``first_input`` before all frames.

        Requests and channels are numbered from ``first``, above all numbers that an earlier supervisor has used.
        """
        super().__init__(host.name)
        self.target = host
        self.python = python
        #: The prefix of commands that a user runs on the host: "ssh gpu1".
        self.shell = ""
        #: Set when the agent's greeting has arrived.
        self.greeted = threading.Event()
        self._link = link
        self._reader = frames.Reader(greeting=True)
        self._numbers = itertools.count(first)
        self._channels = itertools.count(first)
        self._lock = threading.Condition()
        #: The type and the future of each pending request, by number.
        self._waiting: dict[int, tuple[str, Future[dict[str, Any]]]] = {}
        self._sinks: dict[int, Callable[[bytes], None]] = {}
        self._holds: dict[int, Callable[[bool], object]] = {}
        self._inboxes: list[Inbox] = []
        #: Frames to send, None at the end; used only on the event loop.
        self._unsent: asyncio.Queue[bytes | None] = asyncio.Queue()
        if first_input:
            self._unsent.put_nowait(first_input)
        self._unsent_bytes = len(first_input)
        self._lost = ""
        self._backpressure_bypassed = 0
        self._begun = self._closing = False
        self._received_at = time.monotonic()
        #: Set on the event loop to close the connection immediately.
        self._cut = asyncio.Event()
        self._ended = threading.Event()
        #: The ranks of the pending stack request, and its answer.
        self._stack_request: tuple[list[int], Future[dict[str, Any]]] | None = None

    # requests ---------------------------------------------------------------------------------

    @property
    def lost(self) -> str:
        """The reason why the host is lost, as one sentence; "" while it responds."""
        return self._lost

    def begin(self, type_: str, /, **fields: Any) -> Future[dict[str, Any]]:
        """Send a request; ``result`` waits for the answer, which includes ``received_at`` (epoch seconds)."""
        answer: Future[dict[str, Any]] = Future()
        number = next(self._numbers)
        content = frames.message(type_, request=number, **fields)
        with self._lock:
            if not self._lost:
                self._waiting[number] = type_, answer
                self._send(content)
                return answer
        answer.set_exception(HostFailed(self.host, self._lost, code="host-lost"))
        return answer

    @contextlib.contextmanager
    def bypass_backpressure(self) -> Iterator[None]:
        """Read frames from the host even while the inboxes hold too many bytes, so that answers arrive."""
        with self._lock:
            self._backpressure_bypassed += 1
        try:
            yield
        finally:
            with self._lock:
                self._backpressure_bypassed -= 1

    def _send(self, content: bytes, *, wait: bool = False) -> bool:
        """Queue frames and return whether the host is connected. ``wait`` blocks while the queue is too long."""
        with self._lock:
            while wait and self._unsent_bytes > _MOST_UNSENT and not self._lost:
                self._lock.wait(1.0)
            if self._lost:
                return False
            self._unsent_bytes += len(content)
            wire.loop().call_soon_threadsafe(self._unsent.put_nowait, content)
        return True

    # channels ---------------------------------------------------------------------------------

    def open_stream(self) -> tuple[int, Inbox]:
        """Open a channel and return its number and the inbox with its bytes."""
        inbox = self._inbox()
        return self.channel(inbox.feed), inbox

    def reopen(self, channel: int, skip: int) -> Inbox:
        """Return the inbox of a channel of an earlier supervisor, without its first ``skip`` bytes.

        Called before ``start``.
        """
        inbox = self._inbox(skip)
        self._sinks[channel] = inbox.feed
        return inbox

    def _inbox(self, skip: int = 0) -> Inbox:
        """Return a new inbox. Reading from the host pauses while the inboxes hold too many bytes."""
        inbox = Inbox(skip)
        with self._lock:
            self._inboxes = [*(old for old in self._inboxes if old.pending or not old.ended), inbox]
        return inbox

    def channel(self, sink: Callable[[bytes], None], hold: Callable[[bool], object] = bool) -> int:
        """Open a channel whose bytes are passed to ``sink`` on the loop; b"" is its end.

        ``hold`` is called on the loop with True when the writer must pause, and False when it may continue.
        """
        number = next(self._channels)
        with self._lock:
            self._sinks[number], self._holds[number] = sink, hold
            lost = bool(self._lost)
        if lost:
            sink(b"")
        return number

    def write(self, channel: int, content: bytes, *, wait: bool = True) -> None:
        """Send bytes on a channel, b"" to end it; ``wait`` applies backpressure. Raises HostFailed."""
        if not self._send(frames.data(channel, content), wait=wait):
            raise HostFailed(self.host, self._lost, code="host-lost")

    # stacks -----------------------------------------------------------------------------------

    def ask_stacks(self, ranks: Sequence[int]) -> None:
        """Request the stacks of the ranks' threads without waiting for the answer."""
        self._stack_request = list(ranks), self.begin("stacks", ranks=list(ranks))

    def stacks(self) -> Mapping[int, StackDump]:
        """Return the dumps that have arrived, by rank, once each. If the host failed, they contain the reason."""
        if self._stack_request is None or not self._stack_request[1].done():
            return {}
        (ranks, answer), self._stack_request = self._stack_request, None
        if (error := answer.exception()) is not None:
            return dict.fromkeys(ranks, StackDump(missing=str(getattr(error, "reason", error))))
        return dict(msgspec.convert(answer.result(), _Stacks, str_keys=True).answers)

    # start and close ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to transfer frames."""
        self._begun = True
        asyncio.run_coroutine_threadsafe(self._run(), wire.loop())

    def await_greeting(self, explain: Callable[[str, int | None], Unreachable]) -> None:
        """Wait for the agent's greeting, and send the package if the host lacks it. Raises Unreachable.

        ``explain`` returns the error for the unframed output and the exit code (None: still running).
        """
        until = time.monotonic() + REACH_SECONDS
        request: bytes | None = package.request_marker()
        while not self.greeted.wait(0.05):
            if request and request in self._reader.before:
                self._send(package.built().content)
                request = None
            if self._lost or time.monotonic() > until:
                self.close()
                printed = self._reader.before[-wire.ERROR_TAIL :] + b"\n" + self._link.error_tail
                output = printed.decode(errors="replace").strip()
                raise explain(output or ("" if self._lost else "Connection timed out"), self._link.code)

    def close(self) -> None:
        """End the agent and all processes that it started; idempotent."""
        self._closing = True
        if not self._begun:
            self.start()
        wire.loop().call_soon_threadsafe(self._unsent.put_nowait, None)
        if not self._ended.wait(_CLOSE_SECONDS):
            wire.loop().call_soon_threadsafe(self._cut.set)
            self._ended.wait()

    # event loop -------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            why = await self._move()
        except frames.BrokenWire as error:
            why = f"{self.host} sent an invalid message: {error}"
        except Exception as error:  # noqa: BLE001  pending requests must not wait forever
            why = f"The connection to {self.host} failed: {type(error).__name__}: {error}."
        try:
            self._send_no_more()
            await self._link.end()
            self._lose(why)
            await self._link.close()
        finally:
            self._ended.set()

    async def _move(self) -> str:
        """Transfer frames until the connection ends, and return the reason."""
        await self._link.open()
        sending = asyncio.create_task(self._send_queued())
        ends = [asyncio.create_task(end) for end in (self._receive(), self._watch(), self._wait_for_cut())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return next(end.result() for end in ends if end.done())
        finally:
            for task in (sending, *ends):
                task.cancel()
            await asyncio.gather(sending, *ends, return_exceptions=True)

    async def _receive(self) -> str:
        """Handle received frames until the output ends, and return the reason."""
        while True:
            while sum(inbox.pending for inbox in self._inboxes) > Inbox.MOST and not self._backpressure_bypassed:
                await asyncio.sleep(_PAUSE)
                self._received_at = time.monotonic()  # silent only because this side paused reading
            content = await self._link.read()
            if not content:
                return await self._link.why_ended(time.monotonic() - self._received_at)
            self._received_at = time.monotonic()
            for frame in self._reader.feed(content):
                self._on_frame(frame)
            if self._reader.greeted:
                self.greeted.set()

    async def _send_queued(self) -> None:
        with contextlib.suppress(OSError):  # the agent has exited, and its output explains why
            while (content := await self._unsent.get()) is not None:
                await self._link.write(content)
                with self._lock:
                    self._unsent_bytes -= len(content)
                    self._lock.notify_all()
        self._send_no_more()

    def _send_no_more(self) -> None:
        with self._lock:
            self._unsent_bytes = 0
            self._lock.notify_all()
        self._link.close_input()

    async def _watch(self) -> str:
        """Send heartbeats; return the reason when the host has been silent for too long."""
        while True:
            await asyncio.sleep(self._link.beat_seconds)
            if self._closing or not self.greeted.is_set():
                continue
            if not self._unsent_bytes:  # any frame serves as a heartbeat
                self._send(frames.message("beat"))
            if time.monotonic() - self._received_at > self._link.silence_seconds:
                return f"No response from {self.host} for {self._link.silence_seconds:.0f} s."

    async def _wait_for_cut(self) -> str:
        await self._cut.wait()
        return f"The connection to {self.host} was closed."

    def _on_frame(self, frame: frames.Message | frames.Data) -> None:
        if isinstance(frame, frames.Data):
            sink = self._sinks.get(frame.channel) if frame.bytes else self._sinks.pop(frame.channel, None)
            if sink is not None:
                sink(frame.bytes)
            if not frame.bytes:
                self._holds.pop(frame.channel, None)
        elif frame.data["type"] == "reply":
            self._on_reply(_number(frame.data.get("request")), frame.data)
        elif frame.data["type"] == "hold":
            self._holds.get(_number(frame.data.get("channel")), bool)(bool(frame.data.get("held")))
        elif frame.data["type"] != "beat":
            _check(frame.data, _EVENTS)
            self.on_event(frame.data)

    def _on_reply(self, number: int, reply: dict[str, Any]) -> None:
        with self._lock:
            type_, answer = self._waiting.get(number, ("", None))
        if answer is None:
            return
        if "error" not in reply and type_ in _REPLIES:
            _check(reply, _REPLIES[type_])
        with self._lock:
            self._waiting.pop(number, None)
        if "error" in reply:
            text, remedy = str(reply["error"]), str(reply.get("remedy", ""))
            answer.set_exception(HostFailed(self.host, text, remedy, code="host-request-failed"))
        else:
            answer.set_result({**reply, "received_at": time.time()})

    def _lose(self, why: str) -> None:
        """Mark the host as lost: fail all pending requests and end all channels."""
        with self._lock:
            self._lost = why
            waiting, self._waiting = self._waiting, {}
            sinks = list(self._sinks.values())
            self._lock.notify_all()
        for _type, answer in waiting.values():
            answer.set_exception(HostFailed(self.host, why, code="host-lost"))
        for sink in sinks:
            sink(b"")
        self.on_event({"type": "lost", "reason": why})


def _number(value: object) -> int:
    if type(value) is not int:
        raise frames.BrokenWire(f"{str(value)[:20]!r} is not a number.")
    return value


def start_all(links: Iterable[tuple[Host, Link]], first: bytes = b"") -> list[Connection]:
    """Connect to agents that a scheduler started, and send ``first`` to each. Raises Unreachable."""
    connections: list[Connection] = []

    def not_started(host: str, output: str, _code: int | None) -> Unreachable:
        return Unreachable(host, "other", f"The agent did not start: {output or 'it printed nothing'}.")

    for host, link in links:
        connections.append(Connection(host, "", link, first))
        connections[-1].shell = f"on {host.name}:"
        connections[-1].start()
    try:
        for connection in connections:
            connection.await_greeting(functools.partial(not_started, connection.host))
    except BaseException:
        end_all(connections)
        raise
    return connections


def end_all(connections: Iterable[Connection], keep: Iterable[str] = ()) -> None:
    """End agents in parallel. The agents of the hosts in ``keep`` do not remove their folders."""
    hosts = set(keep)
    ending = list(connections)
    ask_all([(connection, {"keep": connection.host in hosts}) for connection in ending], "end", _END_SECONDS)
    with ThreadPoolExecutor(max(1, min(len(ending), 16))) as pool:
        list(pool.map(Connection.close, ending))


# messages of an agent -------------------------------------------------------------------------
# Training code runs on the same host and may tamper with the agent, so messages of agents are validated.

Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
#: The maximum number of process ids on Linux.
Count = Annotated[int, Meta(ge=0, le=2**22)]
Text = Annotated[str, Meta(max_length=4096)]
Amount = Annotated[float, Meta(ge=-1e18, le=1e18)]
_NumberText = Annotated[str, Meta(pattern=r"^[0-9]{1,9}\Z")]


class _Event(msgspec.Struct, tag_field="type"):
    pass


class _Exit(_Event, tag="exit"):
    kind: Literal["rank", "service", "launcher", "shell", "data"]
    process: Number
    code: Annotated[int, Meta(ge=-(2**31), le=2**32 - 1)] | None
    signal: Annotated[str, Meta(pattern=r"^[A-Z0-9+]{1,20}\Z")] | None
    evidence: Text | None = None


class _Shell(_Event, tag="shell"):  # the launcher requests a command on another host of the job
    shell: Number
    host: Annotated[str, Meta(max_length=300)]
    command: Annotated[str, Meta(max_length=2**20)]


class _ShellClosed(_Event, tag="shell-closed"):
    shell: Number


class _Warned(_Event, tag="warned"):  # the scheduler has announced the end of the job
    pass


class _Sample(msgspec.Struct):  # the values of each rank are validated where they are used (see node.resources)
    t: Amount
    node: Any
    ranks: dict[_NumberText, Any]
    gpus: Any = None


class _Resources(_Event, tag="resources"):
    samples: Annotated[list[_Sample], Meta(max_length=4096)]


class _Started(msgspec.Struct):
    pids: dict[_NumberText, Number]


class _Alive(msgspec.Struct):
    alive: Count
    workers: Count = 0


class _Stuck(msgspec.Struct):
    pids: Annotated[list[Number], Meta(max_length=4096)]


class _Drained(msgspec.Struct):
    evidence: Text | None = None


class _Stacks(msgspec.Struct):
    answers: dict[Number, StackDump]


_EVENTS = _Exit | _Shell | _ShellClosed | _Warned | _Resources
_REPLIES: Mapping[str, type[msgspec.Struct]] = {
    "start": _Started,
    "alive": _Alive,
    "stuck": _Stuck,
    "drain": _Drained,
    "stacks": _Stacks,
}


def _check(data: Mapping[str, Any], shape: Any) -> None:
    """Raise BrokenWire for an invalid message, which closes only the connection to that host."""
    try:
        msgspec.convert(data, shape, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise frames.BrokenWire(f"Invalid message {str(data.get('type'))[:20]!r}: {error}.") from None
