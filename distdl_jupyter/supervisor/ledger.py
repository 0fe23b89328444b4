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
    from distdl_jupyter.supervisor.pictures import Pictures
    from distdl_jupyter.supervisor.thinning import Held

#: Seconds between two events of progress of one rank.
_PROGRESS_EVERY = 0.1
#: The view is kept beside the log after (bytes, seconds) since the last time, whatever comes first, and at the end.
_KEEP_AFTER = ((8_000_000, 0.5), (250_000, 5.0))
#: The code of the note that lines of the log are left out.
_LIMIT = "log-limit"
#: Before these all that was reported is written.
_AFTER_METRICS = ("rank", "restart", "result", "state", "world")
#: Bytes of text of the log's parts behind its first half at least (see core.parts): the job's last events are in them.
_LEAST_PART = 300_000
#: Characters from which on an unfinished line may be shown in part only.
LONGEST_OPEN = 7 * 1024
#: Notes of one job, beyond which those of its ranks are left out: they all stand on one page.
_MOST_NOTES = 300
#: Reports of metrics of a job that are written whole; of more those that no curve can tell apart become one.
_WHOLE = 100_000
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
        #: Bytes of text that go into the present file of the log: half of all at first, then two parts are kept.
        self._room = spec.max_log_bytes // 2
        self._part_room = max(_LEAST_PART, spec.max_log_bytes // 4)
        #: Lines in the first file, None while that is the present one.
        self._first_lines: int | None = None
        self._leaves_out = False
        #: Reports of progress that came too soon after the last one of their rank, with their origin.
        self._held: dict[int, tuple[dict[str, Any], dict[str, int]]] = {}
        #: Reports of metrics so far, and by rank those that no curve can tell apart.
        self._reports = 0
        self._thinned: dict[int, Held] = {}
        self._progress_at: dict[int, float] = {}
        self._kept, self._kept_at, self._keep_cost = self._writer.size, time.monotonic(), 0.0
        self.greeted: set[int] = set()
        self.ready: set[int] = set()
        self.meeting: set[int] = set()
        #: Ranks whose process runs another program now (os.exec), which reports nothing.
        self.replaced_programs: set[int] = set()
        self._cells: dict[int, str] = {}
        self.pictures: Pictures | None = None
        self._origin: dict[str, int] = {}
        #: Whether the ranks of this attempt have reported a metric or progress.
        self.reported = False
        self.overheard: Callable[[str], None] = lambda _text: None
        #: Hears every event that is written.
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
            self._room -= len(event["text"].encode(errors="replace")) + 1
        elif event["type"] == "part":
            self._room, self._first_lines = self._part_room, event["first"]
        self._leaves_out = self._leaves_out or event.get("code") == _LIMIT

    def write(self, type_: str, /, **fields: Any) -> None:
        """Write one event and fold it in. What a kept stream said carries the place behind it (see ``Stream``)."""
        if type_ in _AFTER_METRICS:
            self._write_thinned()
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
            self._reports += event.get("reports", 1) if event["type"] == "metric" else 0
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
        for rank in [rank for rank, held in self._thinned.items() if held.is_due]:
            self._write_held(rank)
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
        self._write_thinned()

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
        content = self._shown(stream, item).encode() + b"\n"
        if len(content) > self._room:
            whole, newline, rest = content[: max(0, self._room)].rpartition(b"\n")
            if newline:
                self._log(stream, item, whole.decode())
                content = rest + content[max(0, self._room) :]
            self._begin_part()
        self._room -= len(content)
        self._log(stream, item, content[:-1].decode())

    def _begin_part(self) -> None:
        """Let the log go on in another part; from the third one on the first of them is left out."""
        if self._first_lines is None:
            self._first_lines = self.view.lines
        counts = {str(rank.rank): [rank.lines, rank.error_lines] for rank in self.view.ranks if rank.lines}
        left_out = self._writer.begin_part(lines=self.view.lines, first=self._first_lines, counts=counts)
        self._room = self._part_room
        if left_out and not self._leaves_out:
            self._leaves_out = True
            limit = size_in_words(self.spec.max_log_bytes)
            self.note("warning", f"The log is longer than its limit of {limit}: its first half and its last lines are "
                      "kept, those between are left out. Raise max_log_bytes to keep more.", _LIMIT)  # fmt: skip

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

    def metric(self, rank: int, step: float, values: dict[str, float]) -> None:
        """Take a metric: of a great many those that no curve can tell apart are written as one."""
        held = self._thinned.get(rank)
        alike = self._reports >= _WHOLE and self._drawing.extends(rank, step, values)
        if not alike or (held is not None and not held.takes(step, values)):
            self._write_held(rank)
            self.write("metric", rank=rank, step=step, values=values)
            return
        if held is None:
            from distdl_jupyter.supervisor.thinning import Held  # most jobs report far less

            held = self._thinned[rank] = Held()
        held.add(step, values, self._origin)
        self.heard({"type": "metric", "rank": rank})

    def _write_thinned(self) -> None:
        for rank in list(self._thinned):
            self._write_held(rank)

    def _write_held(self, rank: int) -> None:
        held = self._thinned.pop(rank, None)
        if held is not None:
            before, self._origin = self._origin, held.origin
            self.write("metric", rank=rank, **held.fields())
            self._origin = before

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
    ledger.metric(rank, report["step"], values)


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


def _picture(ledger: Ledger, rank: int, report: dict[str, Any]) -> None:
    if ledger.pictures is None:
        from distdl_jupyter.supervisor.pictures import Pictures  # most jobs show none

        ledger.pictures = Pictures(ledger)
    ledger.pictures.take(rank, report)


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
    "picture": _picture,
    "result": _result,
}
