"""One host as the supervisor speaks to it: requests and their answers, channels of bytes, and its end.

``reach`` starts an agent there by ssh alone. Any thread may ask; answers and news come on the wire's own thread.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import package
from distdl_jupyter.clusters.agents import agent_messages, bootstrap
from distdl_jupyter.clusters.agents.agent import AgentConnection, Host, HostFailed, Unreachable
from distdl_jupyter.clusters.agents.wire import PipeEnd, Wire
from distdl_jupyter.node import frames

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.wire import Link
    from distdl_jupyter.node.stacks import Answer

#: Seconds to an agent's first word: 10 that ssh has for the way there, then Python's start on a slow disk.
REACH_SECONDS = 25.0
#: Seconds in which all hosts must have ended what runs there.
_END_SECONDS = 10.0
#: Where jobs keep their files on a host by default.
DIRECTORY = "~/.cache/distdl"
#: Seconds that an agent which a scheduler has started waits for a silent supervisor; its input ends before.
TIMEOUT = "20"


class Connection(AgentConnection):
    """An agent on one host. ``host`` is its name, ``python`` the path of its Python there, once it was told."""

    def __init__(self, host: Host, python: str, wire_of: Callable[[Connection], Wire], first: int = 1) -> None:
        """``first`` is the number of the first request and channel, above all those of an earlier supervisor."""
        super().__init__(host.name)
        self.target = host
        self.python = python
        #: How a user would run a command there: "ssh gpu1".
        self.shell = ""
        self._numbers = itertools.count(first)
        self._channels = itertools.count(first)
        #: The type of each request that waits for its reply.
        self._waiting: dict[int, tuple[str, Future[dict[str, Any]]]] = {}
        self._sinks: dict[int, Callable[[bytes], None]] = {}
        self._holds: dict[int, Callable[[bool], object]] = {}
        self._lock = threading.Lock()
        self._lost = ""
        #: The ranks that were asked for their stacks, and the answer.
        self._stack_request: tuple[list[int], Future[dict[str, Any]]] | None = None
        self._wire = wire_of(self)

    # requests ---------------------------------------------------------------------------------

    @property
    def lost(self) -> str:
        """Why the host does not answer any more, one sentence; "" while it does."""
        return self._lost

    def begin(self, type_: str, /, **fields: Any) -> Future[dict[str, Any]]:
        """Send a request; ``result`` waits for its answer."""
        answer: Future[dict[str, Any]] = Future()
        number = next(self._numbers)
        with self._lock:
            if self._lost:
                answer.set_exception(HostFailed(self.host, self._lost, code="host-lost"))
                return answer
            self._waiting[number] = type_, answer
        if not self._wire.send(frames.message(type_, request=number, **fields)):
            self._answered(number, {"error": f"The connection to {self.host} is lost."})
        return answer

    def hurried(self) -> contextlib.AbstractContextManager[None]:
        """While it is held, answers come through whoever does not read what ranks print."""
        return self._wire.hurried()

    # channels ---------------------------------------------------------------------------------

    def pipe(self) -> tuple[int, PipeEnd]:
        """Open a channel and return its number and the pipe from whose ``reader`` its bytes are read."""
        end = PipeEnd()
        self._wire.add(end)
        return self.channel(end.feed), end

    def reopen(self, channel: int, skip: int) -> PipeEnd:
        """Return a pipe for a channel that an earlier supervisor had opened, without its first ``skip`` bytes.

        Called before ``start``.
        """
        end = PipeEnd(skip)
        self._wire.add(end)
        self._sinks[channel] = end.feed
        return end

    def channel(self, sink: Callable[[bytes], None], hold: Callable[[bool], object] = bool) -> int:
        """Open a channel whose bytes are given to ``sink`` on the wire's thread; b"" is its end.

        ``hold`` is called there with whether nothing more should be written to it for now.
        """
        number = next(self._channels)
        with self._lock:
            self._sinks[number], self._holds[number] = sink, hold
            lost = bool(self._lost)
        if lost:
            sink(b"")
        return number

    def write(self, channel: int, content: bytes, *, wait: bool = True) -> None:
        """Send bytes on a channel, b"" to end it; with ``wait`` not faster than they leave. Raises HostFailed."""
        if not self._wire.send(frames.data(channel, content), wait=wait):
            raise HostFailed(self.host, self._lost or "The connection is lost.", code="host-lost")

    # stacks -----------------------------------------------------------------------------------

    def ask_stacks(self, ranks: Sequence[int]) -> None:
        """Ask ranks for the stacks of their threads, without waiting."""
        self._stack_request = list(ranks), self.begin("stacks", ranks=list(ranks))

    def stacks(self) -> Mapping[int, Answer]:
        """Return, once, what the host has answered; one that fails or is lost answers for none of its ranks."""
        from distdl_jupyter.node.stacks import Answer, from_json

        if self._stack_request is None or not self._stack_request[1].done():
            return {}
        (ranks, answer), self._stack_request = self._stack_request, None
        if (error := answer.exception()) is not None:
            return dict.fromkeys(ranks, Answer(missing=str(getattr(error, "says", error))))
        return {int(rank): from_json(one) for rank, one in answer.result()["answers"].items()}

    # what comes, on the wire's thread -------------------------------------------------------------

    def on_frame(self, frame: frames.Message | frames.Data) -> None:
        """Take a frame."""
        if isinstance(frame, frames.Data):
            sink = self._sinks.get(frame.channel) if frame.bytes else self._sinks.pop(frame.channel, None)
            if sink is not None:
                sink(frame.bytes)
            if not frame.bytes:
                self._holds.pop(frame.channel, None)
        elif frame.data["type"] == "reply":
            self._answered(_number(frame.data.get("request")), frame.data)
        elif frame.data["type"] == "hold":
            self._holds.get(_number(frame.data.get("channel")), bool)(bool(frame.data.get("held")))
        elif frame.data["type"] != "beat":
            agent_messages.check_event(frame.data)
            self.on_event(frame.data)

    def ended(self, why: str) -> None:
        """Let everybody who waits know that the host is gone."""
        with self._lock:
            self._lost = why
            waiting, self._waiting = self._waiting, {}
            sinks = list(self._sinks.values())
        for _type, answer in waiting.values():
            answer.set_exception(HostFailed(self.host, why, code="host-lost"))
        for sink in sinks:
            sink(b"")
        self.on_event({"type": "lost", "says": why})

    def _answered(self, number: int, found: dict[str, Any]) -> None:
        with self._lock:
            type_, answer = self._waiting.get(number, ("", None))
        if answer is None:
            return
        if "error" not in found:
            agent_messages.check_reply(type_, found)
        with self._lock:
            self._waiting.pop(number, None)
        if "error" in found:
            answer.set_exception(_refused(self.host, found))
        else:
            answer.set_result(found)

    # begin and end --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to move frames."""
        self._wire.start()

    @property
    def greeted(self) -> bool:
        """Whether the agent has spoken."""
        return self._wire.greeted.is_set()

    def await_greeting(self, explain: Callable[[str, int | None], Unreachable]) -> None:
        """Wait until the agent speaks, and send the package where it is lacking. Raises Unreachable.

        ``explain`` makes the error of what was said outside of frames and the exit code, None of one that runs.
        """
        until = time.monotonic() + REACH_SECONDS
        wanted: bytes | None = bootstrap.wanted(package.built())
        while not self._wire.greeted.wait(0.05):
            if wanted and wanted in self._wire.before:
                self._wire.send(package.built().content)
                wanted = None
            if self._lost or time.monotonic() > until:
                self.close()
                said = self._wire.said or ("" if self._lost else "Connection timed out")
                raise explain(said, self._wire.code)

    def close(self) -> None:
        """End the agent, and with it whatever it started; idempotent."""
        self._wire.close()


def _refused(host: str, answer: dict[str, Any]) -> HostFailed:
    return HostFailed(host, str(answer["error"]), str(answer.get("remedy", "")), code="host-request-failed")


def _number(value: object) -> int:
    if type(value) is not int:
        raise frames.BrokenWire(f"{str(value)[:20]!r} is not a number.")
    return value


def start_all(links: Iterable[tuple[Host, Link]], first: bytes = b"") -> list[Connection]:
    """Speak to the agents that a scheduler has started, each of which reads ``first`` first. Raises Unreachable."""
    found: list[Connection] = []
    for host, link in links:
        found.append(Connection(host, "", functools.partial(Wire, host.name, link, first)))
        found[-1].shell = f"on {host.name}:"
        found[-1].start()
    try:
        for one in found:
            one.await_greeting(functools.partial(_not_started, one.host))
    except BaseException:
        end_all(found)
        raise
    return found


def _not_started(host: str, said: str, _code: int | None) -> Unreachable:
    return Unreachable(host, "other", f"The agent did not start: {said or 'it printed nothing'}.")


def end_all(connections: Iterable[Connection], keep: Iterable[str] = ()) -> None:
    """End agents side by side; the folders of those in ``keep`` stay."""
    kept = set(keep)
    answers = [(one, one.begin("end", keep=one.host in kept)) for one in connections]
    until = time.monotonic() + _END_SECONDS
    for one, answer in answers:
        with contextlib.suppress(HostFailed), one.hurried():
            one.result(answer, "end", max(0.1, until - time.monotonic()))
    with ThreadPoolExecutor(max(1, min(len(answers), 16))) as pool:
        list(pool.map(lambda one: one[0].close(), answers))
