"""Records a job: turns the reports of ranks into events, and folds these into a view.

``EventRecorder`` interprets texts and reports for the log and the view; it starts and stops nothing. Secrets are masked
in every text before it is written or folded. ``reports.ReportThinner`` decides which metrics and progress reports
become events, and ``buffered_writer`` writes events to a disk that may be full.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from distdl_jupyter.clusters.base import NodeSample, RunNotice, Stream
from distdl_jupyter.core import logfile, tracking
from distdl_jupyter.core.alerts import CODE_PREFIX, Alert, AlertWatch
from distdl_jupyter.core.events import LOG_TYPES, Event, State
from distdl_jupyter.core.humanize import size as format_size
from distdl_jupyter.core.redact import Redactor, find_masked_arguments
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.supervisor import control, reports
from distdl_jupyter.supervisor.buffered_writer import BufferedEventWriter
from distdl_jupyter.supervisor.log_reader import Item, LogText, RankReport
from distdl_jupyter.supervisor.parts import STORES, ReportStore, ResourceRecorder
from distdl_jupyter.supervisor.reports import PendingEvent, ProfileReport, ReportThinner
from distdl_jupyter.supervisor.resume import History, StreamKey, get_stream_key
from distdl_jupyter.worker.secret_patterns import MASK

if TYPE_CHECKING:
    from distdl_jupyter.supervisor.output_metrics import OutputMetrics

#: Code of the note that log lines were dropped.
_LOG_LIMIT = "log-limit"
#: Columns of ``Job.metrics()`` besides the metrics, and the code of the note that a metric was renamed.
_COLUMNS = ("rank", "step", "time", "attempt")
_RENAMED = "metric-renamed"
#: Seconds between two reads of the records of experiment trackers.
_TRACKER_SECONDS = 1.0
#: Bytes of reports in a stored stream after which its read position is logged.
_POSITION_BYTES = 1_000_000
#: Events before which all held-back metric reports are written.
_METRIC_FLUSH_TYPES = ("rank", "restart", "result", "state", "world", "metric_source")
#: Minimum bytes of text in a part of the log after its first half (see core.logfile).
_MIN_PART_BYTES = 300_000
#: Characters beyond which an unfinished line may be shown only in part.
_MAX_OPEN_CHARS = 7 * 1024
#: Events that show that a rank makes progress.
_ACTIVITY_TYPES = frozenset(("metric", "progress", "log", "mark", "rank", "result", "restart"))
#: Messages that libraries print while waiting; they do not count as progress.
_WARNING_TEXTS = (
    "waiting for remainder of ranks",
    "Missing ranks:",
    "Stalled ranks:",
    "[missing ranks:",
    '(marked by "!") is stalled',
    "Watchdog caught collective operation timeout",
)
P = TypeVar("P", bound=ReportStore)


class EventRecorder:
    """Writes events and folds them immediately, so that the supervisor acts on the view that every reader sees."""

    def __init__(self, folder: JobFolder, spec: JobSpec, redactor: Redactor | None = None) -> None:
        self.view = JobView.from_spec(spec)
        self.spec = spec
        self.redactor = redactor or Redactor()
        self.folder = folder
        self._writer = BufferedEventWriter(folder, self.view.apply)
        self._thinner = ReportThinner()
        #: Free bytes in the current log file. The first file gets half of the limit; the last two later ones are kept.
        self._free_bytes = spec.max_log_bytes // 2
        self._part_bytes = max(_MIN_PART_BYTES, spec.max_log_bytes // 4)
        #: Lines in the first file, None while it is the current one.
        self._first_line_count: int | None = None
        self._has_dropped_lines = False
        #: Bytes of text left to write before the next count of the log's lines.
        self._uncounted_bytes = logfile.COUNT_INTERVAL_BYTES
        self.connected_ranks: set[int] = set()
        self.ready_ranks: set[int] = set()
        self.rendezvous_ranks: set[int] = set()
        #: Ranks whose process now runs another program (os.exec), which reports nothing.
        self.replaced_ranks: set[int] = set()
        #: The labels of the cells that persistent ranks run.
        self.running_cells: dict[int, str] = {}
        #: Storage of pictures, step times and similar data, each created with its first report.
        self._parts: dict[type[ReportStore], Any] = {}
        #: The position of the current item in a stored stream, as the field ``at`` of its events.
        self._origin: dict[str, int] = {}
        #: Read positions of stored streams according to the log, in bytes.
        self._logged_positions: dict[Stream, int] = {}
        #: Read positions of stored streams, in bytes, according to the events of a supervisor that died.
        self._event_positions: dict[StreamKey, int] = {}
        #: Whether the ranks of this attempt have reported a metric or progress.
        self.has_reports = False
        #: Whether metrics are parsed from the output, which ends when ranks report metrics themselves.
        self._is_parsing_output = spec.metrics_from_output
        self._output_metrics: OutputMetrics | None = None
        #: Ranks whose last printed progress is a finished bar.
        self._finished_bars: set[int] = set()
        #: Whether ranks report their progress themselves.
        self.has_reported_progress = False
        self._alerts = AlertWatch(spec.notify_when)
        self.end_alert: Alert | None = None
        #: The problem of each experiment tracker, and the time of the next check.
        self._tracker_problems = {record.tracker: record.trouble for record in tracking.read_records(folder.path)}
        self._next_tracker_check = 0.0
        #: Output of a launcher that the run has not processed yet.
        self.launcher_output: list[str] = []
        #: Ranks with recent activity, and whether that activity shows that they have finished their imports.
        self._activity: dict[int, bool] = {}
        #: Reports of ranks on the profile in progress, for its collector.
        self.profile_reports: list[tuple[int, ProfileReport]] = []

    def continue_from(self, history: History) -> None:
        """Continue after the existing events, which are already folded."""
        self._event_positions = history.event_positions
        for _ in range(history.unlogged_restarts):
            self._writer.write("attempt")

    def fold(self, event: Event) -> None:
        """Fold an existing event or log line, written by the submitter or an earlier supervisor."""
        self._apply(event)
        self._alerts.skip(event)
        if event["type"] == "rank" and event.get("pid") is not None:
            self.connected_ranks.add(event["rank"])
        if event["type"] == "log" and "at" in event:
            self._free_bytes -= len(event["text"].encode(errors="replace")) + 1
        elif event["type"] == "count" and "first" in event:
            self._free_bytes, self._first_line_count = self._part_bytes, event["first"]
        self._has_dropped_lines = self._has_dropped_lines or event.get("code") == _LOG_LIMIT

    def write(self, type_: str, /, **fields: Any) -> None:
        """Write one event and fold it. An event from a stored stream carries its position there (see ``Stream``)."""
        if type_ in _METRIC_FLUSH_TYPES:
            self._write_pending(self._thinner.take_all(only_metrics=True))
        if type_ == "log":
            self._put(type_, **{**fields, "text": self.redactor.mask_text(fields["text"])})
        else:
            self._put(type_, **self.redactor.mask_event(type_, fields))

    def _put(self, type_: str, /, **fields: Any) -> None:
        if self._event_positions and "at" in self._origin and type_ not in LOG_TYPES:
            # An earlier supervisor may have written this event from a rank's output and died before it wrote the log.
            position = self._event_positions.get(get_stream_key({"type": type_, **fields}), 0)
            if isinstance(fields.get("rank"), int) and self._origin["at"] <= position:
                return
        if self._writer.should_drop(type_, fields):
            return
        event = self._writer.write(type_, **fields, **self._origin)
        self._apply(event)
        self._note_activity(event)
        for alert in self._alerts.check(event, self.view):
            if alert.kind in ("nan", "rule"):  # pages do not show these otherwise
                self.note("warning" if alert.kind == "nan" else "info", alert.text, f"{CODE_PREFIX}{alert.kind}")
            if alert.kind in ("end", "failure"):
                self.end_alert = alert  # this message is sent after the job is done
            else:
                control.notify(self.folder, self.view.name, self.view.state, alert)

    def _apply(self, event: Event) -> None:
        self.view.apply(event)
        self._thinner.count(event)
        if event["type"] in ("metric", "progress"):
            # Before the ranks connect, a bar may belong to a download.
            self.has_reports = self.has_reports or event["type"] == "metric" or self.has_reported_progress
            if self._is_parsing_output and event["type"] == "metric":
                self._is_parsing_output = all(name in self.view.output_metrics for name in event["values"])
        elif event["type"] == "rank" and event.get("status") == "ready":
            self.ready_ranks.add(event["rank"])
        elif event["type"] == "mark" and event["stream"] == "out":
            self.running_cells.pop(event["rank"], None)
            if not event.get("ended"):
                self.running_cells[event["rank"]] = str(event.get("label") or "a cell")
        elif event["type"] == "restart":  # all ranks must connect again
            self._event_positions, self.has_reports = {}, False
            if self._output_metrics is not None:
                self._output_metrics.reset_steps()
            for ranks in (self.connected_ranks, self.ready_ranks, self.rendezvous_ranks, self.replaced_ranks):
                ranks.clear()
            self._finished_bars.clear()

    def _note_activity(self, event: Event) -> None:
        rank = event.get("rank")
        if rank is None or self._activity.get(rank):
            return
        if event["type"] in _ACTIVITY_TYPES and not is_warning(event):
            has_begun = event["type"] != "rank" or event.get("status") == "ready" or "compiling" in event
            self._activity[rank] = self._activity.get(rank, False) or has_begun

    def take_activity(self) -> dict[int, bool]:
        """Return the ranks that were active since the last call; False for those that may still be importing."""
        activity, self._activity = self._activity, {}
        return activity

    def record_state(self, state: State, reason: str = "", code: str = "") -> None:
        """Write a change of state if it is allowed; ``code`` is the code of the error that caused it."""
        if self.view.state is not state:
            self.write("state", state=state.value, reason=reason, **({"code": code} if code else {}))

    def record_phase(self, phase: str, detail: str = "") -> None:
        """Write the start of a phase, or a new detail of the current one."""
        if not self.view.phases or (self.view.phases[-1].phase, self.view.phases[-1].detail) != (phase, detail):
            self.write("phase", phase=phase, detail=detail)

    def note(self, level: str, text: str, code: str = "") -> None:
        """Write a note for the user."""
        self.write("note", level=level, text=text, code=code)

    def log(self, text: str) -> None:
        """Write a system line into the log."""
        self.write("log", rank=None, stream="sys", text=text)

    def record_notice(self, notice: RunNotice) -> None:
        """Write a notice for the user, and the same text as a line of the log."""
        self.note(notice.level, notice.text, notice.code)
        self.log(notice.text)

    @property
    def is_waiting_for_cell(self) -> bool:
        """Whether the ranks are persistent and none of them runs a cell."""
        return self.spec.kind == "ranks" and not self.running_cells

    @property
    def is_deleted(self) -> bool:
        """Whether the job's folder was deleted, so that readers cannot see what is written."""
        return os.fstat(self._writer.events.fd).st_nlink == 0

    def tick(self) -> None:
        """Do the periodic work."""
        self._writer.check()
        if time.monotonic() > self._next_tracker_check:
            self._next_tracker_check = time.monotonic() + _TRACKER_SECONDS
            for record in tracking.read_records(self.folder.path):
                if record.trouble != self._tracker_problems.get(record.tracker, ""):
                    self._tracker_problems[record.tracker] = record.trouble
                    text = record.trouble or f"{tracking.TITLES[record.tracker]} is up to date again."
                    self.note("warning" if record.trouble else "info", text, "tracking")
        self._write_pending(self._thinner.take_due())

    def flush(self) -> None:
        """Write the held-back events."""
        self._write_pending(self._thinner.take_all())

    def close(self) -> None:
        """Write held-back events and close the log."""
        self.flush()
        for part in self._parts.values():
            part.close()
        written = self._writer.finish()
        self._writer.close()
        if self.view.state.ended and written:
            from distdl_jupyter.views import job_table  # lazy: only the end of a job needs it

            job_table.write_summary(self.folder, job_table.make_entry(self.folder, self.view, self.spec))

    def get_part(self, type_: type[P]) -> P:
        """Return the storage for one type of data."""
        part: P = self._parts.get(type_) or self._parts.setdefault(type_, type_(self))
        return part

    def store(self, rank: int, report: reports.Report) -> None:
        """Pass a report of a rank to the storage of its type."""
        self.get_part(STORES[type(report)]).take(rank, report)

    def take_samples(self, samples: Sequence[NodeSample]) -> None:
        """Store the resource usage of ranks and machines."""
        if samples:
            self.get_part(ResourceRecorder).take(samples)

    # items of streams -------------------------------------------------------------------------

    def batch_events(self) -> AbstractContextManager[None]:
        """Batch the events recorded inside into one write per file; a nested call does nothing."""
        return self._writer.batch_events()

    def take(self, stream: Stream, items: list[Item]) -> None:
        """Process items of one stream (as the sink of a ``LogReader``)."""
        with self.batch_events():
            for item in items:
                self._origin = {} if stream.start is None else {"at": stream.start + item.end}
                if isinstance(item, LogText):
                    self._record_text(stream, item)
                else:
                    self._record_report(stream, item)
            self._origin = {}
            if items and stream.start is not None:
                # A new supervisor resumes where the log ends, so the log also has positions in streams without output.
                end, is_text = stream.start + items[-1].end, isinstance(items[-1], LogText)
                is_behind = end - self._logged_positions.setdefault(stream, stream.start) > _POSITION_BYTES
                if is_text or is_behind:
                    self._logged_positions[stream] = end
                if is_behind and not is_text:
                    stream_name = "sys" if stream.rank is None else stream.name
                    self._put("position", rank=stream.rank, stream=stream_name, at=end)

    def _record_text(self, stream: Stream, item: LogText) -> None:
        if stream.rank is None:
            self.launcher_output.append(item.text + "\n")
        if item.redraws and not item.closed:  # an unfinished line, whose end may be part of a secret
            is_whole = len(item.text) < _MAX_OPEN_CHARS
            text = self.redactor.mask_unfinished(
                item.text if is_whole else item.text[: self.redactor.find_safe_end(item.text)]
            )
        else:
            text = self.redactor.mask_lines((stream.rank, stream.name), item.text)
        content = text.encode() + b"\n"
        if len(content) > self._free_bytes:
            whole_lines, newline, rest = content[: max(0, self._free_bytes)].rpartition(b"\n")
            if newline:
                self._write_log(stream, item, whole_lines.decode())
                content = rest + content[max(0, self._free_bytes) :]
            self._begin_part()
        self._free_bytes -= len(content)
        self._write_log(stream, item, content[:-1].decode())
        self._uncounted_bytes -= len(content)
        if self._uncounted_bytes < 0:
            self._uncounted_bytes = logfile.COUNT_INTERVAL_BYTES
            self._writer.write("count", lines=self.view.lines, counts=self._count_lines())
        if self._is_parsing_output and (view := self.view.find_rank(stream.rank)) is not None:
            self._read_metrics(view.rank, text)

    def _write_log(self, stream: Stream, item: LogText, text: str) -> None:
        fields = {"redraws": item.redraws} if item.redraws else {}
        fields |= {"closed": True} if item.closed else {}
        self._put("log", rank=stream.rank, stream="sys" if stream.rank is None else stream.name, text=text, **fields)

    def _begin_part(self) -> None:
        """Continue the log in a new part; from the third part onwards, delete the first one."""
        if self._first_line_count is None:
            self._first_line_count = self.view.lines
        first, counts = self._first_line_count, self._count_lines()
        has_dropped = self._writer.begin_part(lines=self.view.lines, first=first, counts=counts)
        self._free_bytes = self._part_bytes
        if has_dropped and not self._has_dropped_lines:
            self._has_dropped_lines = True
            limit = format_size(self.spec.max_log_bytes)
            text = f"The log is longer than its limit of {limit}, so only its first half and its last lines are kept."
            self.note("warning", f"{text} Raise max_log_bytes to keep more.", _LOG_LIMIT)

    def _count_lines(self) -> dict[str, list[int]]:
        """Return the number of lines of each rank, and of those on stderr (see core.events)."""
        return {str(rank.rank): [rank.lines, rank.error_lines] for rank in self.view.ranks if rank.lines}

    def _record_report(self, stream: Stream, item: RankReport) -> None:
        view = self.view.find_rank(stream.rank if stream.rank is not None else item.data.get("rank"))
        with contextlib.suppress(reports.InvalidReport):  # a program that knows the nonce may report anything
            report = item.parsed or reports.parse(item.data)
            if report is not None and view is not None:
                report.record(self, view.rank)

    # metrics and progress ---------------------------------------------------------------------

    def _read_metrics(self, rank: int, text: str) -> None:
        """Parse the metrics and the progress that a rank has printed."""
        if self._output_metrics is None:
            from distdl_jupyter.supervisor.output_metrics import OutputMetrics  # lazy: compiles patterns

            self._output_metrics = OutputMetrics()
        for reading in self._output_metrics.read(rank, text):
            if values := self._rename_columns(reading.values):
                if new := [name for name in values if name not in self.view.output_metrics]:
                    self.write("metric_source", names=new, from_output=True)
                self._take_metric(rank, reading.step, values)
            if reading.progress is not None and not self.has_reported_progress:
                done, total, unit = reading.progress
                self._finished_bars.discard(rank)
                if reading.is_bar and done >= total:
                    self._finished_bars.add(rank)
                self.record_progress(rank, done, total, unit)

    def record_metric(self, rank: int, step: float, values: dict[str, float], *, replace: bool = False) -> None:
        """Record a metric report, which replaces metrics of the same name parsed from the output.

        With ``replace`` it replaces the rank's reports for this step and later ones.
        """
        values = self._rename_columns(values)
        if replaced := [name for name in self.view.output_metrics if name in values]:
            self.write("metric_source", names=replaced, from_output=False)
        self._take_metric(rank, step, values, replace=replace)

    def _rename_columns(self, values: dict[str, float]) -> dict[str, float]:
        """Rename values whose names are columns of ``Job.metrics()``, and note the first renaming."""
        name = next((name for name in values if name in _COLUMNS), None)
        if name is None:
            return values
        if not any(note["code"] == _RENAMED for note in self.view.notes):
            text = f"job.metrics() already has a column {name}, so the metric {name} is stored as {name}_value."
            self.note("info", f"{text} Log it under another name.", _RENAMED)
        return {f"{name}_value" if name in _COLUMNS else name: value for name, value in values.items()}

    def _take_metric(self, rank: int, step: float, values: dict[str, float], *, replace: bool = False) -> None:
        if rank in self._finished_bars and ((last := self.view.ranks[rank].last_step) is None or step > last):
            # Training continues, so the finished bar, for example of a download, is not its progress.
            self._finished_bars.discard(rank)
            if not self.has_reported_progress:
                empty = {"done": None, "total": None, "unit": ""}
                self._write_pending(self._thinner.add_progress(rank, empty, self._origin, now=True))
        self._write_pending(self._thinner.add_metric(rank, step, values, self._origin, replace=replace))
        self._note_activity({"type": "metric", "rank": rank})

    def record_progress(self, rank: int, done: float, total: float | None, unit: str) -> None:
        """Record progress; reports in quick succession are merged."""
        fields = {"done": done, "total": total, "unit": unit}
        self._write_pending(self._thinner.add_progress(rank, fields, self._origin))
        self._note_activity({"type": "progress", "rank": rank})

    def _write_pending(self, events: Iterable[PendingEvent]) -> None:
        origin = self._origin
        for type_, fields, self._origin in events:
            self.write(type_, **fields)
        self._origin = origin


def is_warning(event: Event) -> bool:
    """Return whether a log event is only a library's warning that it waits for other ranks."""
    text = str(event.get("text", "")) if event["type"] == "log" else ""
    return text.count("\n") < 20 and any(mark in text for mark in _WARNING_TEXTS)


def build_redactor(folder: JobFolder, spec: JobSpec, secret_variables: Mapping[str, str]) -> Redactor:
    """Return the redactor for secrets of the job's variables, the supervisor's environment and a script's arguments."""
    arguments = None
    if any(MASK in argument for argument in spec.script_arguments):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the unmasked ones are stored with the code
            arguments = json.loads((folder.path / "payload.json").read_text(encoding="utf-8")).get("arguments")
    unmasked = arguments if isinstance(arguments, list) else []
    return Redactor.from_variables(
        os.environ, {**secret_variables, **find_masked_arguments(spec.script_arguments, unmasked)}
    )
