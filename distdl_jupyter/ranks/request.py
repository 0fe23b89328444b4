"""Sends requests to ranks, waits for all responses and output, and explains why a session has ended.

Events are reported in order of arrival, a rank's output before its end. All output is read from the job's log, so
nothing is lost if a rank dies, and a slow reader does not block ranks. If a rank dies, the session ends and the reason
is raised.
"""

from __future__ import annotations

import contextlib
import io
import re
import selectors
import signal
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from distdl_jupyter import capture
from distdl_jupyter.capture import listing
from distdl_jupyter.capture.captured_code import CapturedCode, payload_fields, pickled
from distdl_jupyter.capture.cell import plain_python
from distdl_jupyter.capture.modules import search_path
from distdl_jupyter.capture.notebook import cell_label
from distdl_jupyter.capture.pickler import refuse
from distdl_jupyter.core import logfile, registry
from distdl_jupyter.core.errors import DistDLError, JobFailed, JobNotRunning
from distdl_jupyter.core.spec import CodeSource
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.jobs import results
from distdl_jupyter.jobs.client import Job
from distdl_jupyter.ranks.answer import Answer, Done, Event, Interrupted, Notice, Output, named
from distdl_jupyter.ranks.connection import busy, stamps
from distdl_jupyter.worker.rank_socket import ConnectionLost, RankMessage

if TYPE_CHECKING:
    from distdl_jupyter.ranks.connection import RankConnection

_NUMBER = re.compile(r"In \[(\d+)\]")
_STREAMS = ("out", "err")
#: Seconds between two reads of the log: the minimum, for short cells, and the maximum, for long ones.
_SHORTEST, _LONGEST = 0.0005, 0.02
#: Seconds until a notice names the ranks that still run: after another rank has failed, and after an interrupt.
_WAITS_FOR_FAILED = 2.0
_DEAF = 5.0
#: Timeout in seconds for the last lines of a rank to appear in the log.
_LOG_TIMEOUT = 15.0
#: Seconds to wait for the reason of lost ranks, and for a new supervisor to replace a killed one.
_TIMEOUT, _ATTACH_TIMEOUT = 15.0, 60.0
_POLL = 0.02
_RESTART = "Start new ones with %dist_ranks start, or ranks.start()."
#: Bytes at the end of the log that are searched for the last cell.
_END = 1_000_000

OnEvent = Callable[[Event], object]


# contents of requests -----------------------------------------------------------------------------


def session() -> CapturedCode:
    """Return the draft of a job of persistent ranks."""
    notebook = capture.here()
    return CapturedCode(
        kind="ranks",
        name=f"{notebook.name.removesuffix('.ipynb')[:100]} ranks".strip(),
        source=CodeSource(
            notebook=notebook.path,
            cell_id=notebook.cell_id,
            execution_count=notebook.execution_count,
            command="ranks.start()",
        ),
        payload_json=payload_fields("ranks", path=search_path(notebook)),
    )


def cell(code: str, number: int, *, label: str, raw_cell: str) -> dict[str, Any]:
    """Return the request to run a cell. Raises InvalidSpec, SyntaxError (with line numbers of the cell)."""
    notebook = capture.here()
    raw = raw_cell or notebook.raw
    position = raw.rstrip().rfind(code.rstrip()) if code.strip() else -1
    first_line = raw.count("\n", 0, position) + 1 if position >= 0 else None
    match = _NUMBER.fullmatch(label)
    count = int(match[1]) if match else notebook.execution_count if first_line else None
    title = cell_label(count, notebook.name) if count is not None or not label else label
    filename = f"<{title[:1].lower()}{title[1:]}, {number}>"
    return {
        "do": "run",
        "id": number,
        "code": plain_python(code, first_line=first_line or 1, filename=filename, awaits=True),
        "filename": filename,
        "label": label or (f"In [{count}]" if count is not None else title),
        "cell": count,
        "title": title,
        "first_line": first_line or 1,
    }


def names(values: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return ``names``, ``sources`` and pickles of a request. Raises InvalidSpec for values that cannot be sent."""
    if not values:
        return {}, b""
    with pickled(values.items()) as (notes, file), file:
        refuse(notes, values, unit="cell")
        file.seek(0)
        return {"names": list(values), "sources": listing.sources_of(notes, capture.here())}, file.read()


def files(draft: CapturedCode) -> bytes:
    """Return the files of a job's code as a tar file, because ranks on other machines cannot read the job's folder."""
    with tempfile.TemporaryDirectory(prefix="distdl-") as name:
        folder = JobFolder(Path(name))
        folder.code.mkdir(mode=0o700)
        draft.write(folder)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(name, ".")
        return packed.getvalue()


# waiting for responses ----------------------------------------------------------------------------


class PendingRequest:
    """A request to ``ranks``, with the ``connections`` to all ranks and the ``stamps`` of their address files."""

    def __init__(
        self,
        job: Job,
        connections: Mapping[int, RankConnection],
        stamps: Mapping[str, int],
        ranks: list[int],
        on_event: OnEvent | None,
    ) -> None:
        self._job = job
        self._connections = connections
        self._stamps = stamps
        self._running = set(ranks)
        self._on_event: OnEvent = (lambda _event: None) if on_event is None else on_event
        self._answer = Answer()
        self._done: dict[int, tuple[Done, float]] = {}
        self._pause = _SHORTEST
        self._interrupts_sent = 0
        self._interrupted_at = self._failed_at = float("inf")
        self._warned: set[str] = set()

    def wait(self, header: dict[str, Any], body: bytes) -> Answer:
        """Send the request and wait for all responses. Raises the errors of ``Ranks.run``."""
        begin = time.perf_counter()
        prints = self._running if header["do"] in ("run", "distributed") else ()
        self._output = CellOutput(self._job.folder, prints, header["id"])
        with _count_interrupts() as interrupts, selectors.DefaultSelector() as selector:
            for connection in self._connections.values():
                selector.register(connection, selectors.EVENT_READ, connection)
            try:
                for rank in sorted(self._running):
                    self._connections[rank].send(header, body)
                while self._running or self._done:
                    self._poll(selector)
                    self._pass_on(len(interrupts))
                    self._warn()
            except ConnectionLost:
                # Report the output of all ranks before the reason.
                replaced = is_replaced(self._job, self._stamps, self._read_output)
                self._read_output()
                raise (_supervisor_replaced() if replaced else why_ended(self._job)) from None
        self._answer.seconds = time.perf_counter() - begin
        if self._interrupts_sent:
            raise Interrupted(self._answer)
        return self._answer

    def _poll(self, selector: selectors.BaseSelector) -> None:
        received = False
        for key, _ in selector.select(self._pause):
            for message in key.data.receive():
                self._take(key.data.rank, message)
                received = True
        received = self._read_output() or received
        self._pause = _SHORTEST if received or not self._running else min(_LONGEST, self._pause * 1.5)

    def _take(self, rank: int, message: RankMessage) -> None:
        header = message.header
        if header.get("say") == "busy":
            raise busy(str(header.get("doing") or ""))
        if header.get("say") != "done" or rank not in self._running:
            return
        done = msgspec.convert({**header, "rank": rank}, Done)
        self._running.discard(rank)
        if done.error is not None:
            self._answer.errors[rank] = done.error
            self._failed_at = min(self._failed_at, time.monotonic())
        else:
            self._answer.values.put(rank, message.body, done)
        self._answer.dones[rank] = done
        self._done[rank] = (done, time.monotonic())

    def _read_output(self) -> bool:
        """Report new output, then the ends of ranks whose output is complete."""
        outputs = self._output.read()
        for output in outputs:
            self._on_event(output)
        for rank, (done, since) in list(self._done.items()):
            late = time.monotonic() - since > _LOG_TIMEOUT
            if late:
                text = f"The last lines of rank {rank} were not received. They will be in the job's log."
                self._on_event(Notice(text))
            if late or self._output.is_complete(rank):
                del self._done[rank]
                self._on_event(done)
        return bool(outputs)

    def _pass_on(self, interrupts: int) -> None:
        while self._interrupts_sent < interrupts:
            self._interrupts_sent += 1
            if "deaf" in self._warned:
                raise _killed(self._job, sorted(self._running))
            self._interrupted_at = min(self._interrupted_at, time.monotonic())
            for rank in self._running:
                self._connections[rank].send({"do": "interrupt"})

    def _warn(self) -> None:
        """Report which ranks the cell waits for, and what to do."""
        if not self._running:
            return
        now, left = time.monotonic(), named(sorted(self._running))
        verb = "runs" if len(self._running) == 1 else "run"
        if now - self._interrupted_at > _DEAF:
            self._warn_once(
                "deaf",
                f"{left.capitalize()} still {verb} {_DEAF:g} s after the interrupt, perhaps in a collective "
                "operation whose peers are gone. Interrupt again to stop the ranks.",
            )
        elif now - self._failed_at > _WAITS_FOR_FAILED and not self._interrupts_sent:
            failed = sorted(self._answer.errors)
            self._warn_once(
                "failed",
                f"{named(failed).capitalize()} failed; {left} still {verb}, perhaps waiting for "
                f"{'it' if len(failed) == 1 else 'them'}. Interrupt to stop the wait.",
            )

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self._on_event(Notice(text))


@contextlib.contextmanager
def _count_interrupts() -> Iterator[list[int]]:
    """Collect SIGINT in a list instead of raising KeyboardInterrupt, so that no received data are lost.

    Outside the main thread the list stays empty.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)


class CellOutput:
    """Follows the new output of one cell on some ranks: the lines between its marks in the job's log."""

    def __init__(self, folder: JobFolder, ranks: Iterator[int] | set[int] | tuple[()], number: int) -> None:
        self._path = folder.log
        _, self._cursor = logfile.last_lines(self._path, 0)
        self._number = number
        self._begun: set[tuple[Any, Any]] = set()
        #: Reported part of each stream's unfinished line.
        self._unended: dict[tuple[Any, Any], str] = {}
        #: Streams without an end mark yet.
        self._open = {(rank, stream) for rank in ranks for stream in _STREAMS}

    def read(self) -> list[Output]:
        """Return the output since the last call, in order; adjacent pieces of one stream are joined."""
        events, self._cursor = logfile.read(self._path, self._cursor)
        outputs: list[Output] = []
        for event in events:
            if (output := self._take(event)) is not None:
                last = outputs[-1] if outputs else None
                if last is not None and (last.rank, last.stream) == (output.rank, output.stream):
                    outputs[-1] = Output(output.rank, output.stream, last.text + output.text)
                else:
                    outputs.append(output)
        return outputs

    def is_complete(self, rank: int) -> bool:
        """Return whether all output of a rank was read."""
        return not any((rank, stream) in self._open for stream in _STREAMS)

    def _take(self, event: dict[str, Any]) -> Output | None:
        key = (event.get("rank"), event.get("stream"))
        if key not in self._open:
            return None
        if event["type"] == "mark" and event.get("cell") == self._number:
            (self._open.discard if event.get("ended") else self._begun.add)(key)
        elif event["type"] == "log" and key in self._begun:
            return Output(event["rank"], event["stream"], self._text(key, event))
        return None

    def _text(self, key: tuple[Any, Any], event: dict[str, Any]) -> str:
        """Return the new text for a terminal: a line that grew is continued, a redrawn line starts again."""
        shown, text = self._unended.pop(key, ""), str(event["text"])
        if not event.get("redraws"):
            return f"{text}\n"
        if not event.get("closed"):
            self._unended[key] = text
        new = text[len(shown) :] if text.startswith(shown) else f"\r{text}"
        return f"{new}\n" if event.get("closed") else new


class LastCell(NamedTuple):
    """A cell's label, and when it began (epoch seconds)."""

    label: str
    begun: float


def last_cell(log: Path) -> LastCell | None:
    """Return the last cell that ran on the ranks, from the end of their job's log; None if there is none."""
    end = logfile.size(log)
    lines, _ = logfile.between(log, logfile.line_from(log, max(0, end - _END), end), end)
    marks = (line for line in reversed(lines) if line["type"] == "mark" and not line.get("ended"))
    return next((LastCell(str(mark.get("label") or "a cell"), float(mark["t"])) for mark in marks), None)


# how a session ends -------------------------------------------------------------------------------


def is_replaced(job: Job, before: Mapping[str, int], meanwhile: Callable[[], object] = bool) -> bool:
    """Wait for the reason why ranks do not respond; return whether their supervisor was replaced.

    ``before`` are the earlier ``stamps`` of their address files; ``meanwhile`` is called during the wait.
    """
    attaches = registry.get("clusters", job.spec.cluster).can_attach
    deadline = time.monotonic() + (_ATTACH_TIMEOUT if attaches else _TIMEOUT)
    while (view := job.view()).failure is None and not view.state.ended and time.monotonic() < deadline:
        now = stamps(job.folder)
        if now.keys() == before.keys() and not now.items() & before.items():
            return True
        meanwhile()
        time.sleep(_POLL)
    return False


def why_ended(job: Job) -> DistDLError:
    """Return the exception for a session that lost a rank, as soon as the reason is known."""
    deadline = time.monotonic() + _TIMEOUT
    while (view := job.view()).failure is None and not view.state.ended and time.monotonic() < deadline:
        time.sleep(_POLL)
    if view.failure is not None:
        error = results.job_failed(job.folder, view)
        error.hint = f"{error.hint} {_RESTART}".strip()
        return error
    return JobNotRunning(reason(job), code="ranks-ended", hint=_RESTART)


def reason(job: Job) -> str:
    """Return one sentence that explains why the ranks are gone."""
    view = job.view()
    if view.failure is not None:
        return results.job_failed(job.folder, view).message
    sentences = {
        State.COMPLETED: "The ranks were stopped.",
        State.CANCELED: view.reason or "The ranks were canceled.",
        State.LOST: f"The ranks are lost. {view.reason}",
        State.FAILED: view.reason,
    }
    return sentences.get(view.state, "The ranks are not responding.")


def _supervisor_replaced() -> JobNotRunning:
    return JobNotRunning(
        "The supervisor of the ranks was replaced, so the result of this cell is unknown.",
        code="kept-ranks-supervisor-replaced",
        hint="The ranks keep running with all their variables. Check with %dist_ranks when they are idle.",
    )


def _killed(job: Job, ranks: list[int]) -> JobFailed:
    """Kill a session whose ranks do not respond to an interrupt, and return the exception for it."""
    with contextlib.suppress(JobNotRunning):
        job.cancel(now=True)
    job.wait()
    return JobFailed(
        f"The ranks were stopped because {named(ranks)} did not respond to an interrupt.",
        code="kept-ranks-not-interrupted",
        job_id=job.id,
        hint=_RESTART,
    )
