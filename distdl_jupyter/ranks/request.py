"""Connections to ranks, one request to them, and the reason why a session has ended.

The addresses of the ranks are in the job's private folder. Events are reported in order of arrival, a rank's output
before its end. All output is read from the job's log, so nothing is lost if a rank dies, and a slow reader does not
block ranks. If a rank dies, the session ends and the error with the reason is raised.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from distdl_jupyter.core import logfile
from distdl_jupyter.core.errors import DistDLError, JobFailed, JobNotRunning
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import name_ranks
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.jobs import results
from distdl_jupyter.jobs.client import Job
from distdl_jupyter.ranks.answer import Answer, CellInterrupt, Event, Notice, Output, RankResult, RanksBusy
from distdl_jupyter.worker import owned
from distdl_jupyter.worker.rank_socket import NOTES, ConnectionLost, MessageConnection, RankMessage, find_note, read_uid

_STREAMS = ("out", "err")
#: The file in the job's folder that a client locks during a request.
_LOCK = f"{NOTES}/turn"
#: Timeout in seconds for the response of a rank's service thread, which waits while user code holds the GIL.
_RESPONSE_SECONDS = 60.0
#: Minimum and maximum seconds between two reads of the log, which grow while a cell runs.
_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 0.0005, 0.02
#: Seconds after the failure of a rank until a notice names the ranks that are still running.
_FAILURE_NOTICE_SECONDS = 2.0
#: Seconds after an interrupt until a notice names the ranks that are still running.
_INTERRUPT_NOTICE_SECONDS = 5.0
#: Timeout in seconds for the last lines of a rank to appear in the log.
_LOG_SECONDS = 15.0
#: Timeout in seconds for the reason of lost ranks, or for a new supervisor to replace a killed one.
_REASON_SECONDS = 75.0
_POLL_SECONDS = 0.02
_START_HINT = "Start new ones with %dist_ranks start, or ranks.start()."
#: Bytes at the end of the log that are searched for the last cell.
_TAIL_BYTES = 1_000_000

EventCallback = Callable[[Event], object]


class RankConnection(MessageConnection):
    """A connection to one rank. ``receive_activity`` must be called first, and after each further "hello".

    Raises ConnectionLost if the rank does not listen, DistDLError if another user's process listens.
    """

    def __init__(self, folder: JobFolder, rank: int) -> None:
        self.rank = rank
        try:
            note = json.loads(find_note(folder.path / NOTES, rank).read_text(encoding="utf-8"))
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
                unix.settimeout(_RESPONSE_SECONDS)
                unix.connect(note["socket"])
                if read_uid(unix) != os.getuid():
                    message = f"Another process is listening at {note['socket']}."
                    hint = "Set JUPYTER_RUNTIME_DIR to a folder that belongs to you."
                    raise DistDLError(message, code="ranks-socket-taken", hint=hint)
                super().__init__(unix)
            self.send({"do": "hello", "token": note["token"]})
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"The connection to rank {rank} failed.") from error

    def receive_activity(self) -> str:
        """Wait for the rank's handshake; return what the rank runs, or "" if it is idle. Raises ConnectionLost."""
        if not self.is_readable(_RESPONSE_SECONDS):
            raise ConnectionLost(f"Rank {self.rank} does not respond.")
        return str(self.receive().header.get("doing") or "")


def read_stamps(folder: JobFolder) -> dict[str, int]:
    """Return the modification time in ns of each rank's address file, which a new supervisor rewrites."""
    with contextlib.suppress(OSError):  # a file was removed in the meantime
        return {path.name: path.stat().st_mtime_ns for path in (folder.path / NOTES).glob("rank-*.json")}
    return {}


@contextlib.contextmanager
def lock_session(folder: JobFolder, activity: str) -> Iterator[None]:
    """Lock the session for one request. Raises RanksBusy.

    ``activity`` describes the request in messages to other clients. While a client has the lock, the file contains its
    activity and pid. The lock is also released if this process exits.
    """
    with open(folder.path / _LOCK, "a+b", buffering=0, opener=owned.open_private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise make_busy_error(*read_lock_holder(folder)) from None
        file.truncate(0)
        file.write(json.dumps([activity[:500], os.getpid()]).encode())
        try:
            yield
        finally:
            file.truncate(0)


def read_lock_holder(folder: JobFolder) -> tuple[str, int]:
    """Return the activity and pid of the lock holder, or ("", 0) if the session is not locked."""
    try:
        activity, pid = json.loads((folder.path / _LOCK).read_bytes())
        os.kill(pid, 0)
    except (OSError, ValueError, TypeError):  # also if the client was killed
        return "", 0
    return str(activity), int(pid)


def make_busy_error(activity: str, pid: int = 0) -> RanksBusy:
    """Return the error for busy ranks. ``pid`` is the process that started the cell, or 0 if it has exited."""
    owner = f" of another kernel (process {pid})" if pid else ", started by a kernel that has exited"
    owner = " of this notebook" if pid == os.getpid() else owner
    message, hint = f"The ranks are busy with {activity or 'a cell'}{owner}.", "Wait, or interrupt the ranks."
    return RanksBusy(message, code="ranks-busy", hint=hint)


@dataclass(slots=True)
class PendingRequest:
    """A request to the ranks in ``running``, with new ``connections`` to all ranks.

    ``stamps`` are the stamps of their address files (see ``read_stamps``).
    """

    job: Job
    connections: Mapping[int, RankConnection]
    stamps: Mapping[str, int]
    running: set[int]
    on_event: EventCallback
    answer: Answer = field(default_factory=Answer)
    #: Responses whose output is not complete yet, by rank, with the time of their arrival.
    incomplete: dict[int, tuple[RankResult, float]] = field(default_factory=dict)
    interrupt_count: int = 0
    interrupted_at: float = math.inf
    failed_at: float = math.inf
    #: Whether a notice has named the ranks that did not respond to an interrupt, or that run after a failure.
    is_unresponsive: bool = False
    has_reported_failure: bool = False
    output: CellOutput = field(init=False)

    def wait(self, header: dict[str, Any], body: bytes) -> Answer:
        """Send the request and wait for all responses. Raises the errors of ``Ranks.run``."""
        pause = _MIN_POLL_SECONDS
        output_ranks = self.running if header["do"] in ("run", "distributed") else ()
        self.output = CellOutput(self.job.folder, output_ranks, header["id"])
        with _count_interrupts() as interrupts, selectors.DefaultSelector() as selector:
            for connection in self.connections.values():
                selector.register(connection, selectors.EVENT_READ, connection)
            try:
                for rank in sorted(self.running):
                    self.connections[rank].send(header, body)
                while self.running or self.incomplete:
                    readable = selector.select(pause)
                    for key, _ in readable:
                        self._handle_response(key.data.rank, key.data.receive())
                    received = self._read_output() or bool(readable)
                    pause = _MIN_POLL_SECONDS if received or not self.running else min(_MAX_POLL_SECONDS, pause * 1.5)
                    self._forward_interrupts(len(interrupts))
                    if self.running:
                        self._warn()
            except ConnectionLost:
                # Report the output of all ranks before the reason.
                replaced = is_replaced(self.job, self.stamps, self._read_output)
                self._read_output()
                if not replaced:
                    raise make_session_error(self.job) from None
                message = "The supervisor of the ranks was replaced, so the result of this cell is unknown."
                hint = "The ranks keep running with all their variables. Run %dist_ranks to see when they are idle."
                raise JobNotRunning(message, code="ranks-supervisor-replaced", hint=hint) from None
        if self.interrupt_count:
            raise CellInterrupt(self.answer)
        return self.answer

    def _handle_response(self, rank: int, message: RankMessage) -> None:
        header = message.header
        if header.get("say") == "busy":
            raise make_busy_error(str(header.get("doing") or ""))
        if header.get("say") != "done" or rank not in self.running:
            return
        result = msgspec.convert({**header, "rank": rank}, RankResult)
        self.running.discard(rank)
        if result.error is not None:
            self.answer.errors[rank] = result.error
            self.failed_at = min(self.failed_at, time.monotonic())
        else:
            self.answer.pickles[rank] = message.body
        self.answer.results[rank] = result
        self.incomplete[rank] = (result, time.monotonic())

    def _read_output(self) -> bool:
        """Report new output, then the ends of ranks whose output is complete. Return whether there was output."""
        outputs = self.output.read()
        for output in outputs:
            self.on_event(output)
        for rank, (result, since) in list(self.incomplete.items()):
            is_late = time.monotonic() - since > _LOG_SECONDS
            if is_late:
                text = f"The last lines of rank {rank} were not received. They will be in the job's log."
                self.on_event(Notice(text))
            if is_late or not any((rank, stream) in self.output.open_streams for stream in _STREAMS):
                del self.incomplete[rank]
                self.on_event(result)
        return bool(outputs)

    def _forward_interrupts(self, interrupts: int) -> None:
        """Send new interrupts to the ranks. Kill ranks that did not respond to the first one and raise JobFailed."""
        while self.interrupt_count < interrupts:
            self.interrupt_count += 1
            if self.is_unresponsive:
                with contextlib.suppress(JobNotRunning):
                    self.job.cancel(now=True)
                self.job.wait()
                message = f"The ranks were stopped because {name_ranks(self.running)} did not respond to an interrupt."
                raise JobFailed(message, code="ranks-not-interrupted", job_id=self.job.id, hint=_START_HINT)
            self.interrupted_at = min(self.interrupted_at, time.monotonic())
            for rank in self.running:
                self.connections[rank].send({"do": "interrupt"})

    def _warn(self) -> None:
        """Report once which ranks the cell waits for after an interrupt or a failure, and what to do."""
        now = time.monotonic()
        running = f"{name_ranks(self.running)} {'is' if len(self.running) == 1 else 'are'} still running"
        if not self.is_unresponsive and now - self.interrupted_at > _INTERRUPT_NOTICE_SECONDS:
            self.is_unresponsive = True
            text = f"{running.capitalize()} {_INTERRUPT_NOTICE_SECONDS:g} s after the interrupt"
            reason = "possibly in a collective operation whose peers have exited"
            self.on_event(Notice(f"{text}, {reason}. Interrupt again to stop the ranks."))
        has_failed = now - self.failed_at > _FAILURE_NOTICE_SECONDS
        if has_failed and not (self.interrupt_count or self.has_reported_failure):
            self.has_reported_failure = True
            failed = self.answer.errors
            text = f"{name_ranks(failed).capitalize()} failed; {running}, possibly waiting for "
            text += f"{'it' if len(failed) == 1 else 'them'}. Interrupt the cell to stop waiting."
            self.on_event(Notice(text))


@contextlib.contextmanager
def _count_interrupts() -> Iterator[list[int]]:
    """Collect SIGINT in a list instead of raising KeyboardInterrupt, so that no received data are lost.

    Outside the main thread the list stays empty.
    """
    received: list[int] = []
    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread:
        previous_handler = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield received
    finally:
        if is_main_thread:
            signal.signal(signal.SIGINT, previous_handler or signal.SIG_DFL)


class CellOutput:
    """Follows the new output of one cell on some ranks: the lines between its marks in the job's log."""

    def __init__(self, folder: JobFolder, ranks: Iterable[int], number: int) -> None:
        self._path = folder.log
        self._cursor = logfile.get_size(self._path)  # the rest of a half-written line is skipped
        self._number = number
        self._started: set[tuple[Any, Any]] = set()
        #: Reported part of each stream's unfinished line.
        self._partial_lines: dict[tuple[Any, Any], str] = {}
        #: Streams without an end mark yet.
        self.open_streams = {(rank, stream) for rank in ranks for stream in _STREAMS}

    def read(self) -> list[Output]:
        """Return the output since the last call, in order; adjacent chunks of one stream are joined."""
        events, self._cursor = logfile.read(self._path, self._cursor)
        chunks: list[tuple[tuple[Any, Any], str]] = []
        for event in events:
            key = (event.get("rank"), event.get("stream"))
            if key not in self.open_streams:
                continue
            if event["type"] == "mark" and event.get("cell") == self._number:
                (self.open_streams.discard if event.get("ended") else self._started.add)(key)
            elif event["type"] == "log" and key in self._started:
                chunks.append((key, self._get_new_text(key, event)))
        streams = groupby(chunks, key=lambda chunk: chunk[0])
        return [Output(rank, stream, "".join(text for _, text in group)) for (rank, stream), group in streams]

    def _get_new_text(self, key: tuple[Any, Any], event: dict[str, Any]) -> str:
        """Return the new text for a terminal: a line that grew is continued, a redrawn line starts again."""
        reported, text = self._partial_lines.pop(key, ""), str(event["text"])
        if not event.get("redraws"):
            return f"{text}\n"
        if not event.get("closed"):
            self._partial_lines[key] = text
        new_text = text[len(reported) :] if text.startswith(reported) else f"\r{text}"
        return f"{new_text}\n" if event.get("closed") else new_text


def find_last_cell(log: Path) -> tuple[str, float] | None:
    """Return the label and start (epoch seconds) of the last cell in the log of a session, or None if no cell ran."""
    end = logfile.get_size(log)
    lines, _ = logfile.read_range(log, logfile.find_line(log, max(0, end - _TAIL_BYTES), end), end)
    marks = (line for line in reversed(lines) if line["type"] == "mark" and not line.get("ended"))
    return next(((str(mark.get("label") or "a cell"), float(mark["t"])) for mark in marks), None)


def is_replaced(job: Job, old_stamps: Mapping[str, int], on_poll: Callable[[], object] = bool) -> bool:
    """Wait for the reason why ranks do not respond; return whether their supervisor was replaced.

    ``old_stamps`` are the earlier stamps of their address files; ``on_poll`` is called during the wait.
    """
    deadline = time.monotonic() + _REASON_SECONDS
    while (view := job.view()).failure is None and not view.state.ended and time.monotonic() < deadline:
        new_stamps = read_stamps(job.folder)
        if new_stamps.keys() == old_stamps.keys() and not new_stamps.items() & old_stamps.items():
            return True
        on_poll()
        time.sleep(_POLL_SECONDS)
    return False


def make_session_error(job: Job) -> DistDLError:
    """Return the exception for a session that has ended or lost a rank."""
    view = job.view()
    if view.failure is not None:
        error = results.make_job_failed(job.folder, view)
        error.hint = f"{error.hint} {_START_HINT}".strip()
        return error
    reasons = {
        State.COMPLETED: "The ranks were stopped.",
        State.CANCELED: view.reason or "The ranks were canceled.",
        State.LOST: f"The ranks are lost. {view.reason}",
        State.FAILED: view.reason,
    }
    return JobNotRunning(reasons.get(view.state, "The ranks are not responding."), code="ranks-ended", hint=_START_HINT)
