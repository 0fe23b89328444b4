"""The writing hand of a supervisor: turns what ranks say into events and keeps the view that they fold to.

It decides what a report means for the log and the view; it starts, watches and stops nothing. Every text passes its
redactor before it is written or folded.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import snapshot
from distdl_jupyter.core.events import Event, number_from_json
from distdl_jupyter.core.redact import Redactor
from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView
from distdl_jupyter.core.words import size as size_in_words
from distdl_jupyter.supervisor.drawing import Drawing
from distdl_jupyter.supervisor.items import Text
from distdl_jupyter.supervisor.patience import PatientWriter
from distdl_jupyter.supervisor.shortage import Shortage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from distdl_jupyter.clusters.base import Stream
    from distdl_jupyter.core.rank import RankView
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.supervisor.items import Item

#: Seconds between two events of progress of one rank.
_PROGRESS_EVERY = 0.1
#: The view is kept beside the log after (bytes, seconds) since the last time, whatever comes first, and at the end.
_KEEP_AFTER = ((8_000_000, 0.5), (250_000, 5.0))
#: The code of the note that the log is full.
_LIMIT = "log-limit"
#: Characters from which on an unfinished line may be shown in part only.
LONGEST_OPEN = 7 * 1024
#: Notes of one job, beyond which those of its ranks are left out: they all stand on one page.
_MOST_NOTES = 300
#: Keeping it takes at most this part of the time.
_KEEP_SHARE = 0.02


class Ledger:
    """Writes events and folds them at once, so that the supervisor decides on what every reader will see."""

    def __init__(self, folder: JobFolder, spec: JobSpec, redactor: Redactor | None = None) -> None:
        self.view = JobView.of(spec)
        self.spec = spec
        self.redactor = redactor or Redactor()
        self._folder = folder
        self._writer = PatientWriter(folder)
        self._drawing = Drawing(folder)
        self._shortage = Shortage(self._writer, folder.path, self.view.apply)
        self._log_left = spec.max_log_bytes
        self._full = False
        #: Reports of progress that came too soon after the last one of their rank, with their origin.
        self._held: dict[int, tuple[dict[str, Any], dict[str, int]]] = {}
        self._progress_at: dict[int, float] = {}
        self._kept, self._kept_at, self._keep_cost = self._writer.size, time.monotonic(), 0.0
        self.greeted: set[int] = set()
        self.ready: set[int] = set()
        self.meeting: set[int] = set()
        #: Ranks whose process runs another program now (os.exec), which reports nothing.
        self.replaced_programs: set[int] = set()
        self._cells: dict[int, str] = {}
        self._origin: dict[str, int] = {}
        #: Whether the ranks of this attempt have reported a metric or progress.
        self.reported = False
        self.overheard: Callable[[str], None] = lambda _text: None
        #: Hears every event that is written; of text that a full log has no room for, one without text.
        self.heard: Callable[[Event], None] = lambda _event: None

    def fold(self, event: Event) -> None:
        """Take in what the submitter wrote before, or a supervisor that died."""
        self.view.apply(event)
        self._drawing.apply(event)
        self._follow(event)
        if event["type"] == "rank" and event.get("pid") is not None:
            self.greeted.add(event["rank"])
        if event["type"] == "rank" and event.get("status") == "ready":
            self.ready.add(event["rank"])
        if event["type"] == "log" and "at" in event:
            self._log_left -= len(event["text"].encode(errors="replace")) + 1
        self._full = self._full or event.get("code") == _LIMIT

    def write(self, type_: str, /, **fields: Any) -> None:
        """Write one event and fold it in. What a kept stream said carries the place behind it (see ``Stream``)."""
        if type_ == "log":
            self._put(type_, **{**fields, "text": self.redactor.text(fields["text"])})
        else:
            self._put(type_, **self.redactor.event(type_, fields))

    def _put(self, type_: str, /, **fields: Any) -> None:
        if self._shortage.leaves_out(type_, fields):
            return
        event = self._writer.write(type_, **fields, **self._origin)
        self.view.apply(event)
        self._drawing.apply(event)
        self._follow(event)
        self.heard(event)

    def _follow(self, event: Event) -> None:
        if event["type"] in ("metric", "progress"):
            self.reported = True
        elif event["type"] == "restart":
            self._forget(event.get("ranks"))
        elif event["type"] == "rank" and event.get("status") == "waiting":
            self._forget([event["rank"]])

    def replace(self, rank: RankView, pid: int, reason: str) -> None:
        """Write that another process takes the place of a rank's process ``pid``; it may have greeted already."""
        self.write("restart", rank=rank.rank, ranks=[rank.rank], reason=reason)
        self.say(f"{reason} Another process takes its place.")
        if rank.pid not in (None, pid):
            _hello(self, rank.rank, {"pid": rank.pid, "host": rank.host})

    def _forget(self, ranks: list[int] | None) -> None:
        """Expect ranks to greet and to meet again, None for all of them."""
        self.reported = self.reported and ranks is not None
        for seen in (self.greeted, self.ready, self.meeting, self.replaced_programs):
            seen.difference_update(seen.copy() if ranks is None else ranks)

    def state(self, state: State, reason: str = "") -> None:
        """Write a change of state; a state that cannot follow is left out."""
        if self.view.state is not state:
            self.write("state", state=state.value, reason=reason)

    def phase(self, phase: str, detail: str = "") -> None:
        """Write that a phase began, or a new detail of the one that lasts."""
        last = self.view.phases[-1] if self.view.phases else None
        if last is None or last.phase != phase or last.detail != detail:
            self.write("phase", phase=phase, detail=detail)

    def cell(self, rank: int, label: str) -> None:
        """Note what a rank that stays runs now ("": nothing), as the detail of its training."""
        self._cells.pop(rank, None)
        if label:
            self._cells[rank] = label
        if self.view.phases and self.view.phases[-1].phase == "train":
            last = next(reversed(self._cells.values()), "")
            self.phase("train", f"runs {last}" if last else "waits for a cell")

    @property
    def waits_for_a_cell(self) -> bool:
        """Whether the ranks are there to be asked, and none of them runs anything now."""
        return self.spec.kind == "ranks" and not self._cells

    def note(self, level: str, text: str, code: str = "") -> None:
        """Write a sentence for the user."""
        self.write("note", level=level, text=text, code=code)

    def say(self, text: str) -> None:
        """Write a line of the system's own into the log."""
        self.write("log", rank=None, stream="sys", text=text)

    def tick(self) -> None:
        """Do what is due from time to time."""
        self._shortage.look()
        now = time.monotonic()
        for rank in [rank for rank in self._held if now - self._progress_at[rank] >= _PROGRESS_EVERY]:
            self._write_progress(rank)
        grown, waited = self._writer.size - self._kept, now - self._kept_at
        due = any(grown >= size and waited >= seconds for size, seconds in _KEEP_AFTER)
        if due and waited * _KEEP_SHARE > self._keep_cost:
            self._keep()

    @property
    def place(self) -> Path:
        """The job's folder."""
        return self._folder.path

    @property
    def is_deleted(self) -> bool:
        """Whether somebody has deleted the job's folder."""
        return self._writer.is_deleted

    def settle(self) -> None:
        """Write what was held back."""
        for rank in list(self._held):
            self._write_progress(rank)

    def close(self) -> None:
        """Write what was held back, keep what readers begin with and close the log."""
        self.settle()
        written = self._shortage.end()
        if written:
            self._keep()
        self._writer.close()
        if self.view.state.ended and written:
            from distdl_jupyter import ended  # what only an end needs is no part of a job's start

            ended.leave(self._folder, self.view, self.spec)

    def _keep(self) -> None:
        if self._writer.refused is not None:
            return  # the view knows more than the file
        begun = time.monotonic()
        self._kept, self._kept_at = self._writer.size, begun
        snapshot.write(self._folder, self.view, self._writer.size)
        self._drawing.keep(self._writer.size)
        self._keep_cost = time.monotonic() - begun

    # what streams say -------------------------------------------------------------------------

    def wants_text(self, stream: Stream) -> bool:
        """Say whether the stream's text is still written, or heard by the run (the pump's sink)."""
        if self._full:
            self.heard({"type": "log", "rank": stream.rank, "text": ""})
        return not self._full or stream.rank is None

    def take(self, stream: Stream, items: list[Item]) -> None:
        """Take items of one stream (the pump's sink)."""
        with self._writer.together():
            for item in items:
                self._origin = {} if stream.start is None else {"at": stream.start + item.end}
                if isinstance(item, Text):
                    self._text(stream, item)
                else:
                    self._report(stream, item.data)
            self._origin = {}

    def _text(self, stream: Stream, item: Text) -> None:
        if stream.rank is None:
            self.overheard(item.text + "\n")
        if self._full:
            return
        text = self._shown(stream, item)
        content = text.encode() + b"\n"
        self._log_left -= len(content)
        if self._log_left >= 0:
            self._log(stream, item, text)
            return
        # The line that does not fit whole is the first one that is dropped.
        whole, newline, _ = content[: self._log_left].rpartition(b"\n")
        if newline:
            self._log(stream, item, whole.decode())
        self._full = True
        limit = size_in_words(self.spec.max_log_bytes)
        self.note("warning", f"The log reached its limit of {limit}; later lines are dropped, metrics are kept. "
                  "Raise max_log_bytes to keep more.", _LIMIT)  # fmt: skip

    def _shown(self, stream: Stream, item: Text) -> str:
        """Return an item's text without secrets, whole ones and those that an unfinished line has begun with."""
        if item.redraws and not item.closed:
            whole = len(item.text) < LONGEST_OPEN
            return self.redactor.cut(item.text if whole else item.text[: self.redactor.safe_end(item.text)])
        return self.redactor.lines((stream.rank, stream.name), item.text)

    def _log(self, stream: Stream, item: Text, text: str) -> None:
        more: dict[str, Any] = {"redraws": item.redraws} if item.redraws else {}
        if item.closed:
            more["closed"] = True
        name = stream.name if stream.rank is not None else "sys"
        self._put("log", rank=stream.rank, stream=name, text=text, **more)

    def _report(self, stream: Stream, report: dict[str, Any]) -> None:
        rank = stream.rank if stream.rank is not None else report.get("rank")
        handler = _REPORTS.get(str(report.get("type")))
        view = self.view.rank(rank)
        if handler is not None and view is not None:
            # Whoever knows the nonce may report anything; what is no proper report must not end the job.
            with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
                handler(self, view.rank, report)

    def progress(self, rank: int, report: dict[str, Any]) -> None:
        """Take progress: what comes in quick succession is written when it has come to rest, or now and then."""
        self._held[rank] = (report, self._origin)
        if time.monotonic() - self._progress_at.get(rank, -1.0) >= _PROGRESS_EVERY:
            self._write_progress(rank)

    def _write_progress(self, rank: int) -> None:
        report, origin = self._held.pop(rank)
        before, self._origin = self._origin, origin
        self.write("progress", rank=rank, done=report["done"], total=report.get("total"), unit=report.get("unit", ""))
        self._origin, self._progress_at[rank] = before, time.monotonic()


def _hello(ledger: Ledger, rank: int, report: dict[str, Any]) -> None:
    ledger.greeted.add(rank)
    if ledger.view.ranks[rank].pid != report.get("pid"):
        ledger.write("rank", rank=rank, status="started", pid=report.get("pid"), host=report.get("host"))


def _rendezvous(ledger: Ledger, rank: int, _report: dict[str, Any]) -> None:
    ledger.meeting.add(rank)


def _ready(ledger: Ledger, rank: int, _report: dict[str, Any]) -> None:
    if rank not in ledger.ready:
        ledger.ready.add(rank)
        ledger.write("rank", rank=rank, status="ready")


def _metric(ledger: Ledger, rank: int, report: dict[str, Any]) -> None:
    values = {str(name): number_from_json(value) for name, value in report["values"].items()}
    ledger.write("metric", rank=rank, step=report["step"], values=values)


def _progress(ledger: Ledger, rank: int, report: dict[str, Any]) -> None:
    ledger.progress(rank, report)


def _note(ledger: Ledger, rank: int, report: dict[str, Any]) -> None:
    text = str(report.get("text", ""))
    code = str(report.get("code", ""))
    notes = ledger.view.notes
    if len(notes) < _MOST_NOTES and not any(note["text"] == text for note in notes):
        ledger.write("note", level=report.get("level", "info"), text=text, code=code, rank=rank)


def _mark(ledger: Ledger, rank: int, report: dict[str, Any]) -> None:
    ledger.write("mark", rank=rank, **{name: report.get(name) for name in ("stream", "cell", "label", "ended")})
    if report.get("stream") == "out":
        ledger.cell(rank, "" if report.get("ended") else str(report.get("label") or "a cell"))


def _exec(ledger: Ledger, rank: int, _report: dict[str, Any]) -> None:
    ledger.replaced_programs.add(rank)


def _result(ledger: Ledger, rank: int, report: dict[str, Any]) -> None:
    ledger.settle()
    fields = {name: report.get(name) for name in ("ok", "repr", "bytes", "error", "problem")}
    ledger.write("result", rank=rank, **fields)


_REPORTS: dict[str, Callable[[Ledger, int, dict[str, Any]], None]] = {
    "hello": _hello,
    "rendezvous": _rendezvous,
    "ready": _ready,
    "metric": _metric,
    "progress": _progress,
    "note": _note,
    "mark": _mark,
    "exec": _exec,
    "result": _result,
}
