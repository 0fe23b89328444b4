"""Records a job: turns what ranks report into events, and keeps the view that these fold to.

``EventRecorder`` decides what a text or report means for the log and the view; it starts, watches and stops nothing.
Every text passes its redactor before it is written or folded. ``merger.ReportMerger`` decides which metrics and
progress reports become events, and ``buffered_writer`` writes events to a disk that may be full.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

from distdl_jupyter.core import logfile, tracking
from distdl_jupyter.core.alerts import CODE, AlertWatch
from distdl_jupyter.core.events import LOG_TYPES, Event
from distdl_jupyter.core.humanize import size as size_in_words
from distdl_jupyter.core.redact import Redactor, hidden
from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView
from distdl_jupyter.supervisor import control, merger, reports
from distdl_jupyter.supervisor.buffered_writer import BufferedEventWriter
from distdl_jupyter.supervisor.log_reader import LogText
from distdl_jupyter.supervisor.merger import ReportMerger
from distdl_jupyter.supervisor.resume import key_of
from distdl_jupyter.worker.secret_patterns import MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from distdl_jupyter.clusters.base import NodeSample, Notice, Stream
    from distdl_jupyter.core.alerts import Alert
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.supervisor.log_reader import Item, RankReport
    from distdl_jupyter.supervisor.output_metrics import OutputMetrics
    from distdl_jupyter.supervisor.parts import Part
    from distdl_jupyter.supervisor.resume import History, Key

#: The code of the note that lines of the log are left out.
_LOG_LIMIT = "log-limit"
#: Columns of ``Job.metrics()`` besides the metrics, and the code of the note that a metric has another name.
_COLUMNS = ("rank", "step", "time", "attempt")
_RENAMED = "metric-renamed"
#: Seconds between two reads of the records of experiment trackers.
_TROUBLES = 1.0
#: Bytes of reports in a kept stream after which its read position is logged.
_UNNOTED = 1_000_000
#: Before these events all held reports of metrics are written.
_AFTER_METRICS = ("rank", "restart", "result", "state", "world", "metric_source")
#: Bytes of text of the log's parts behind its first half at least (see core.parts).
_LEAST_PART = 300_000
#: Characters from which on an unfinished line may be shown in part only.
_LONGEST_OPEN = 7 * 1024
#: Events that show that a rank makes progress.
_SIGNS = frozenset(("metric", "progress", "log", "mark", "rank", "result", "restart"))
#: Messages that libraries print while they wait; these do not count as progress.
_WARNINGS = (
    "waiting for remainder of ranks",
    "Missing ranks:",
    "Stalled ranks:",
    "[missing ranks:",
    '(marked by "!") is stalled',
    "Watchdog caught collective operation timeout",
)
P = TypeVar("P", bound="Part")


class EventRecorder:
    """Writes events and folds them at once, so that the supervisor decides on what every reader will see."""

    def __init__(self, folder: JobFolder, spec: JobSpec, redactor: Redactor | None = None) -> None:
        self.view = JobView.of(spec)
        self.spec = spec
        self.redactor = redactor or Redactor()
        self.folder = folder
        self._writer = BufferedEventWriter(folder, self.view.apply)
        self._merger = ReportMerger()
        #: Bytes of text that go into the present file of the log: half of all at first, then two parts are kept.
        self._room = spec.max_log_bytes // 2
        self._part_room = max(_LEAST_PART, spec.max_log_bytes // 4)
        #: Lines in the first file, None while that is the present one.
        self._first_lines: int | None = None
        self._has_left_out = False
        #: Bytes of text that go into the log before its lines are counted.
        self._uncounted = logfile.COUNT_EVERY
        self.connected: set[int] = set()
        self.ready: set[int] = set()
        self.in_rendezvous: set[int] = set()
        #: Ranks whose process runs another program now (os.exec), which reports nothing.
        self.replaced_programs: set[int] = set()
        self._running_cells: dict[int, str] = {}
        #: What keeps pictures, step times and the like, each made when the first of it comes.
        self._parts: dict[type[Part], Part] = {}
        self._origin: dict[str, int] = {}
        #: Read positions of kept streams that the log contains, in bytes.
        self._noted: dict[Stream, int] = {}
        #: How many bytes of each kept stream were in the events when an earlier supervisor died.
        self._in_events: dict[Key, int] = {}
        #: Whether the ranks of this attempt have reported a metric or progress.
        self.reported = False
        #: Whether metrics are read in the output: until ranks report some themselves.
        self._reads_output = spec.metrics_from_output
        self._output_metrics: OutputMetrics | None = None
        #: Ranks whose last printed progress is a bar that has ended.
        self._ended_bars: set[int] = set()
        #: Whether ranks report their progress themselves.
        self.has_own_progress = False
        self._alerts = AlertWatch(spec.notify_when)
        self.end_alert: Alert | None = None
        #: What is wrong with each experiment tracker, and when that is read again.
        self._troubles = {record.tracker: record.trouble for record in tracking.of_job(folder.path)}
        self._next_troubles = 0.0
        #: What a launcher has printed, for the run.
        self._launcher_output: list[str] = []
        #: Ranks that showed a sign of progress, and whether it means that they are behind their imports.
        self._signs: dict[int, bool] = {}
        #: Called with what a rank reports of its part in a profile.
        self.on_profile: Callable[[int, dict[str, Any]], None] = lambda _rank, _report: None

    def go_on(self, history: History) -> None:
        """Continue after the existing events, all of which were folded."""
        self._in_events = history.in_events
        for _ in range(history.missing_attempts):
            self._writer.write("attempt")

    def fold(self, event: Event) -> None:
        """Fold an event or a line of the log that was written before, by the submitter or a supervisor that died."""
        self._apply(event)
        self._alerts.skip(event)
        if event["type"] == "rank" and event.get("pid") is not None:
            self.connected.add(event["rank"])
        if event["type"] == "log" and "at" in event:
            self._room -= len(event["text"].encode(errors="replace")) + 1
        elif event["type"] == "count" and "first" in event:
            self._room, self._first_lines = self._part_room, event["first"]
        self._has_left_out = self._has_left_out or event.get("code") == _LOG_LIMIT

    def write(self, type_: str, /, **fields: Any) -> None:
        """Write one event and fold it in. An event of a kept stream carries its position there (see ``Stream``)."""
        if type_ in _AFTER_METRICS:
            self._write_merged(self._merger.flush_metrics())
        if type_ == "log":
            self._put(type_, **{**fields, "text": self.redactor.text(fields["text"])})
        else:
            self._put(type_, **self.redactor.event(type_, fields))

    def _put(self, type_: str, /, **fields: Any) -> None:
        if self._in_events and self._is_in_events(type_, fields):
            return
        if self._writer.drops(type_, fields):
            return
        event = self._writer.write(type_, **fields, **self._origin)
        self._apply(event)
        self._sign(event)
        for alert in self._alerts.take(event, self.view):
            self._send_alert(alert)

    def _send_alert(self, alert: Alert) -> None:
        """Send an alert at once: as a note for pages, if they do not show it anyway, and as a message."""
        if alert.kind in ("end", "failure"):
            self.end_alert = alert  # which is sent when nothing of the job is left to do
            return
        if alert.kind in ("nan", "rule"):
            self.note("warning" if alert.kind == "nan" else "info", alert.text, f"{CODE}{alert.kind}")
        control.notify(self.folder, self.view.name, self.view.state, alert)

    def _is_in_events(self, type_: str, fields: dict[str, Any]) -> bool:
        """Return whether a supervisor that died before it wrote the log has written what a rank's output brought."""
        if "at" not in self._origin or type_ in LOG_TYPES or not isinstance(fields.get("rank"), int):
            return False
        return self._origin["at"] <= self._in_events.get(key_of({"type": type_, **fields}), 0)

    def _apply(self, event: Event) -> None:
        self.view.apply(event)
        self._merger.apply(event)
        if event["type"] in ("metric", "progress"):
            # A bar that ranks draw may be that of a download before they meet.
            self.reported = self.reported or event["type"] == "metric" or self.has_own_progress
            self._reads_output = self._reads_output and self._is_from_output(event)
        elif event["type"] == "rank" and event.get("status") == "ready":
            self.ready.add(event["rank"])
        elif event["type"] == "mark" and event["stream"] == "out":
            self._running_cells.pop(event["rank"], None)
            if not event.get("ended"):
                self._running_cells[event["rank"]] = str(event.get("label") or "a cell")
        elif event["type"] == "restart":
            self._forget()

    def _sign(self, event: Event) -> None:
        rank = event.get("rank")
        if rank is None or self._signs.get(rank):
            return
        if event["type"] in _SIGNS and not is_warning(event):
            begins = event["type"] != "rank" or event.get("status") == "ready" or "compiling" in event
            self._signs[rank] = self._signs.get(rank, False) or begins

    def take_signs(self) -> dict[int, bool]:
        """Return the ranks that made progress since the last call; False for those that may still be importing."""
        signs, self._signs = self._signs, {}
        return signs

    def take_launcher_output(self) -> list[str]:
        """Return what the launcher of the ranks has printed since the last call."""
        output, self._launcher_output = self._launcher_output, []
        return output

    def _is_from_output(self, event: Event) -> bool:
        return event["type"] == "progress" or all(name in self.view.output_metrics for name in event["values"])

    def _forget(self) -> None:
        """Expect all ranks to connect and to meet again."""
        self._in_events = {}
        self.reported = False
        if self._output_metrics is not None:
            self._output_metrics.forget()
        for ranks in (self.connected, self.ready, self.in_rendezvous, self.replaced_programs, self._ended_bars):
            ranks.clear()

    def state(self, state: State, reason: str = "", code: str = "") -> None:
        """Write a change of state, if it can follow; ``code`` is that of the error that is the reason."""
        if self.view.state is not state:
            self.write("state", state=state.value, reason=reason, **({"code": code} if code else {}))

    def part(self, type_: type[P]) -> P:
        """Return what keeps one kind of what ranks report."""
        if type_ not in self._parts:
            self._parts[type_] = type_(self)
        part = self._parts[type_]
        assert isinstance(part, type_)
        return part

    def take_samples(self, samples: Sequence[NodeSample]) -> None:
        """Keep what ranks and machines have used."""
        if samples:
            from distdl_jupyter.supervisor.parts import ResourceRecorder  # a start waits for no sample

            self.part(ResourceRecorder).take(samples)

    def record_notice(self, notice: Notice) -> None:
        """Write what the user should read; the log shows it between the lines of its time."""
        self.note(notice.level, notice.text, notice.code)
        self.log(notice.text)

    def phase(self, phase: str, detail: str = "") -> None:
        """Write that a phase began, or a new detail of the one that lasts."""
        last = self.view.phases[-1] if self.view.phases else None
        if last is None or last.phase != phase or last.detail != detail:
            self.write("phase", phase=phase, detail=detail)

    def show_cell(self) -> None:
        """Show which cell the ranks that stay run now, as the detail of their training."""
        if self.view.phases and self.view.phases[-1].phase == "train":
            last = next(reversed(self._running_cells.values()), "")
            self.phase("train", f"runs {last}" if last else "waits for a cell")

    @property
    def waits_for_a_cell(self) -> bool:
        """Whether the ranks wait for cells, and none of them runs one now."""
        return self.spec.kind == "ranks" and not self._running_cells

    def note(self, level: str, text: str, code: str = "") -> None:
        """Write a sentence for the user."""
        self.write("note", level=level, text=text, code=code)

    def log(self, text: str) -> None:
        """Write a line of the system's own into the log."""
        self.write("log", rank=None, stream="sys", text=text)

    def tick(self) -> None:
        """Do what is due from time to time."""
        self._writer.check()
        if time.monotonic() > self._next_troubles:
            self._next_troubles = time.monotonic() + _TROUBLES
            self._note_troubles()
        self._write_merged(self._merger.due())

    def _note_troubles(self) -> None:
        """Write a note for each experiment tracker that got into trouble or out of it."""
        for record in tracking.of_job(self.folder.path):
            if record.trouble != self._troubles.get(record.tracker, ""):
                self._troubles[record.tracker] = record.trouble
                level, text = (
                    ("warning", record.trouble) if record.trouble else ("info", f"{record.title} is up to date again.")
                )
                self.note(level, text, "tracking")

    @property
    def is_deleted(self) -> bool:
        """Whether the job's folder was deleted."""
        return self._writer.is_deleted

    def flush(self) -> None:
        """Write what was held back."""
        self._write_merged(self._merger.flush())

    def close(self) -> None:
        """Write what was held back and close the log."""
        self.flush()
        for part in self._parts.values():
            part.close()
        written = self._writer.finish()
        self._writer.close()
        if self.view.state.ended and written:
            from distdl_jupyter.views import job_table  # imported here because only the end of a job needs it

            job_table.write_summary(self.folder, job_table.listed(self.folder, self.view, self.spec))

    # items of streams -------------------------------------------------------------------------

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Write at the end, with one write for each file, what is recorded inside; a second one inside does nothing."""
        if self._writer.is_together:
            yield
            return
        with self._writer.together():
            yield
            for part in self._parts.values():
                part.flush()

    def take(self, stream: Stream, items: list[Item]) -> None:
        """Take items of one stream (the sink of a ``LogReader``)."""
        with self.together():
            for item in items:
                self._origin = {} if stream.start is None else {"at": stream.start + item.end}
                if isinstance(item, LogText):
                    self._text(stream, item)
                else:
                    self._report(stream, item)
            self._origin = {}
            if items and stream.start is not None:
                self._note_position(stream, stream.start + items[-1].end, printed=isinstance(items[-1], LogText))

    def _note_position(self, stream: Stream, at: int, *, printed: bool) -> None:
        """Write into the log how far a kept stream was read that prints nothing: another supervisor reads on there."""
        last = self._noted.setdefault(stream, stream.start or 0)
        if printed or at - last > _UNNOTED:
            self._noted[stream] = at
        if not printed and at - last > _UNNOTED:
            self._put("position", rank=stream.rank, stream=stream.name if stream.rank is not None else "sys", at=at)

    def _text(self, stream: Stream, item: LogText) -> None:
        if stream.rank is None:
            self._launcher_output.append(item.text + "\n")
        shown = self._shown(stream, item)
        content = shown.encode() + b"\n"
        if len(content) > self._room:
            whole, newline, rest = content[: max(0, self._room)].rpartition(b"\n")
            if newline:
                self._write_log(stream, item, whole.decode())
                content = rest + content[max(0, self._room) :]
            self._begin_part()
        self._room -= len(content)
        self._write_log(stream, item, content[:-1].decode())
        self._uncounted -= len(content)
        if self._uncounted < 0:
            self._uncounted = logfile.COUNT_EVERY
            self._writer.write("count", lines=self.view.lines, counts=self._counts())
        if self._reads_output and (view := self.view.rank(stream.rank)) is not None:
            self._read_metrics(view.rank, shown)

    def _read_metrics(self, rank: int, text: str) -> None:
        """Take the metrics and the progress that a rank has printed."""
        if self._output_metrics is None:
            from distdl_jupyter.supervisor.output_metrics import OutputMetrics  # compiles patterns

            self._output_metrics = OutputMetrics()
        for reading in self._output_metrics.read(rank, text):
            if values := self._without_columns(reading.values):
                if new := [name for name in values if name not in self.view.output_metrics]:
                    self.write("metric_source", names=new, from_output=True)
                self._take_metric(rank, reading.step, values)
            if reading.progress is not None and not self.has_own_progress:
                done, total, unit = reading.progress
                self._ended_bars.discard(rank)
                if reading.is_bar and done >= total:
                    self._ended_bars.add(rank)
                self.progress(rank, done, total, unit)

    def _begin_part(self) -> None:
        """Continue the log in a new part; from the third part on, drop the first of them."""
        if self._first_lines is None:
            self._first_lines = self.view.lines
        left_out = self._writer.begin_part(lines=self.view.lines, first=self._first_lines, counts=self._counts())
        self._room = self._part_room
        if left_out and not self._has_left_out:
            self._has_left_out = True
            limit = size_in_words(self.spec.max_log_bytes)
            text = f"The log is longer than its limit of {limit}, so only its first half and its last lines are kept."
            self.note("warning", f"{text} Raise max_log_bytes to keep more.", _LOG_LIMIT)

    def _counts(self) -> dict[str, list[int]]:
        """Return the lines of each rank, and those on stderr (see core.events)."""
        return {str(rank.rank): [rank.lines, rank.error_lines] for rank in self.view.ranks if rank.lines}

    def _shown(self, stream: Stream, item: LogText) -> str:
        """Return an item's text without secrets, whole ones and those that an unfinished line has begun with."""
        if item.redraws and not item.closed:
            whole = len(item.text) < _LONGEST_OPEN
            return self.redactor.cut(item.text if whole else item.text[: self.redactor.safe_end(item.text)])
        return self.redactor.lines((stream.rank, stream.name), item.text)

    def _write_log(self, stream: Stream, item: LogText, text: str) -> None:
        more: dict[str, Any] = {"redraws": item.redraws} if item.redraws else {}
        if item.closed:
            more["closed"] = True
        name = stream.name if stream.rank is not None else "sys"
        self._put("log", rank=stream.rank, stream=name, text=text, **more)

    def _report(self, stream: Stream, item: RankReport) -> None:
        view = self.view.rank(stream.rank if stream.rank is not None else item.data.get("rank"))
        with contextlib.suppress(reports.InvalidReport):  # a program that knows the nonce may report anything
            report = item.parsed or reports.parse(item.data)
            if report is not None and view is not None:
                report.record(self, view.rank)

    def metric(self, rank: int, step: float, values: dict[str, float], *, replace: bool = False) -> None:
        """Take a metric that a rank reports, which replaces what was read in the output under its name.

        With ``replace`` it replaces what the rank reported of this step and of later ones.
        """
        values = self._without_columns(values)
        if replaced := [name for name in self.view.output_metrics if name in values]:
            self.write("metric_source", names=replaced, from_output=False)
        self._take_metric(rank, step, values, replace=replace)

    def _without_columns(self, values: dict[str, float]) -> dict[str, float]:
        """Return the values under names that are not columns of ``Job.metrics()``, and note the first renaming."""
        taken = [name for name in values if name in _COLUMNS]
        if not taken:
            return values
        if not any(note["code"] == _RENAMED for note in self.view.notes):
            name = taken[0]
            text = f"job.metrics() already has a column {name}, so the metric {name} is stored as {name}_value."
            self.note("info", f"{text} Log it under another name.", _RENAMED)
        return {f"{name}_value" if name in _COLUMNS else name: value for name, value in values.items()}

    def _take_metric(self, rank: int, step: float, values: dict[str, float], *, replace: bool = False) -> None:
        if rank in self._ended_bars:
            self._forget_bar(rank, step)
        self._write_merged(self._merger.metric(rank, step, values, self._origin, replace=replace))
        self._sign({"type": "metric", "rank": rank})

    def _forget_bar(self, rank: int, step: float) -> None:
        """Drop the progress of a finished bar, for example of a download, when training continues after it."""
        last = self.view.ranks[rank].last_step
        if last is None or step > last:
            self._ended_bars.discard(rank)
            if not self.has_own_progress:
                none = {"done": None, "total": None, "unit": ""}
                held = self._merger.progress(rank, none, self._origin)
                self._write_merged(held or self._merger.take_progress(rank))

    def progress(self, rank: int, done: float, total: float | None, unit: str) -> None:
        """Take progress: what comes in quick succession is written when it has come to rest, or now and then."""
        fields = {"done": done, "total": total, "unit": unit}
        self._write_merged(self._merger.progress(rank, fields, self._origin))
        self._sign({"type": "progress", "rank": rank})

    def _write_merged(self, events: Iterable[merger.Merged]) -> None:
        before = self._origin
        for type_, fields, self._origin in events:
            self.write(type_, **fields)
        self._origin = before


def is_warning(event: Event) -> bool:
    """Return whether a log event holds nothing but a library's warning about ranks that it waits for."""
    text = str(event.get("text", "")) if event["type"] == "log" else ""
    return text.count("\n") < 20 and any(mark in text for mark in _WARNINGS)


def redactor_of(folder: JobFolder, spec: JobSpec, secret_variables: Mapping[str, str]) -> Redactor:
    """Return what masks the secrets of the job's variables, the supervisor's environment and a script's arguments."""
    return Redactor.of(os.environ, {**secret_variables, **hidden(spec.script_arguments, _arguments(folder, spec))})


def _arguments(folder: JobFolder, spec: JobSpec) -> list[Any]:
    """Return the script's true arguments, which are stored with its code; none when the spec masks none of them."""
    if not any(MASK in argument for argument in spec.script_arguments):
        return []
    try:
        stored = json.loads((folder.path / "payload.json").read_text(encoding="utf-8")).get("arguments")
    except (OSError, ValueError, AttributeError):
        return []
    return stored if isinstance(stored, list) else []
