"""Reports of ranks: a class for each type of report, with its fields and how the event recorder records it.

A training program can read the job's nonce in its environment and write anything after it. So a report is valid only if
all fields of its type are present, have the right types, and are finite and of limited size. Anything else is treated
as output of the rank. A type without a class is valid and ignored.

A job is limited to a few thousand events a day and rank. Of a rank's progress reports in quick succession, only the
last one becomes an event. After ``_MAX_UNTHINNED`` metric reports of a job, the same applies to reports of the same
metrics. The event counts the omitted ones in ``reports``. The first report of a rank whose values are not finite is
not omitted.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from distdl_jupyter.core.events import Event
from distdl_jupyter.worker.report import MAX_IMAGE_BYTES
from distdl_jupyter.worker.step_times import HEAD_SIZE

if TYPE_CHECKING:
    from distdl_jupyter.supervisor.recorder import EventRecorder

#: Maximum number of notes of one job, because one page shows all; further notes of ranks are dropped.
_MAX_NOTES = 300
_MAX_FLOAT = sys.float_info.max
#: Limits: length of a chain of errors; characters of the last collective operations, and of a picture in base64.
_MAX_CAUSE_DEPTH = 6
_MAX_COLLECTIVES_CHARS = 200_000
_PictureOffset = Annotated[int, Meta(ge=0, lt=4 * MAX_IMAGE_BYTES // 3 + 5)]

# Limits of one report, because a program could report gigabytes.
Name = Annotated[str, Meta(max_length=500)]
ShortText = Annotated[str, Meta(max_length=20_000)]
Text = Annotated[str, Meta(max_length=200_000)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
#: A finite number.
Number = Annotated[int, Meta(ge=-(2**62), le=2**62)] | Annotated[float, Meta(ge=-_MAX_FLOAT, le=_MAX_FLOAT)]
Scalar = bool | Number | ShortText | None
T = TypeVar("T")
ShortList = Annotated[list[T], Meta(max_length=200)]


class Report(msgspec.Struct, tag_field="type"):
    """A report of a rank; fields that its type does not have are ignored."""

    def record(self, recorder: EventRecorder, rank: int) -> None:
        """Record the report of this rank; by default in the store of its type (``parts``)."""
        recorder.store(rank, self)


class _HelloReport(Report, tag="hello"):
    """The process of a rank has started."""

    pid: Count | None = None
    host: Name | None = None

    def record(self, recorder: EventRecorder, rank: int) -> None:
        recorder.connected_ranks.add(rank)
        if recorder.view.ranks[rank].pid != self.pid:
            recorder.write("rank", rank=rank, status="started", pid=self.pid, host=self.host)


class _EnvironmentReport(Report, tag="environment"):
    python: ShortText
    executable: ShortText
    platform: ShortText
    packages: Annotated[dict[Name, ShortText], Meta(max_length=10_000)]

    def record(self, recorder: EventRecorder, rank: int) -> None:
        with contextlib.suppress(OSError):  # a full disk is reported elsewhere
            recorder.folder.add_environment(**recorder.redactor.mask_data(msgspec.structs.asdict(self)))


class _RendezvousReport(Report, tag="rendezvous"):
    """The rank waits for the others."""

    def record(self, recorder: EventRecorder, rank: int) -> None:
        recorder.rendezvous_ranks.add(rank)


class _ReadyReport(Report, tag="ready"):
    """The rank has joined the others, or accepts cells."""

    def record(self, recorder: EventRecorder, rank: int) -> None:
        if rank not in recorder.ready_ranks:
            recorder.write("rank", rank=rank, status="ready")


class _MetricReport(Report, tag="metric"):
    step: Number
    values: Annotated[dict[Name, Number | Literal["nan", "inf", "-inf"]], Meta(min_length=1)]
    #: Whether it replaces the rank's reports for this step and later ones.
    replace: bool = False

    def record(self, recorder: EventRecorder, rank: int) -> None:
        values = {name: float(value) for name, value in self.values.items()}
        recorder.record_metric(rank, self.step, values, replace=self.replace)


class _ProgressReport(Report, tag="progress"):
    done: Number
    total: Number | None = None
    unit: Name = ""

    def record(self, recorder: EventRecorder, rank: int) -> None:
        recorder.has_reported_progress = True
        recorder.record_progress(rank, self.done, self.total, self.unit)


class _NoteReport(Report, tag="note"):
    text: ShortText
    level: Literal["info", "warning", "error"] = "info"
    code: Name = ""

    def record(self, recorder: EventRecorder, rank: int) -> None:
        notes = recorder.view.notes
        if len(notes) < _MAX_NOTES and not any(note["text"] == self.text for note in notes):
            recorder.write("note", level=self.level, text=self.text, code=self.code, rank=rank)


class _MarkReport(Report, tag="mark"):
    """A cell begins or ends in the output of a persistent rank."""

    stream: Literal["out", "err"]
    cell: int
    label: Name
    ended: bool

    def record(self, recorder: EventRecorder, rank: int) -> None:
        recorder.write("mark", rank=rank, **msgspec.structs.asdict(self))
        if self.stream == "out" and recorder.view.phases and recorder.view.phases[-1].phase == "train":
            cell = next(reversed(recorder.running_cells.values()), "")
            recorder.record_phase("train", f"runs {cell}" if cell else "waits for a cell")


class _CompileReport(Report, tag="compile"):
    compiling: bool

    def record(self, recorder: EventRecorder, rank: int) -> None:
        recorder.write("rank", rank=rank, compiling=self.compiling)


class _ExecReport(Report, tag="exec"):
    """Another program replaces the rank's program (os.exec)."""

    def record(self, recorder: EventRecorder, rank: int) -> None:
        recorder.replaced_ranks.add(rank)


class PictureReport(Report, tag="picture"):
    """A part of a picture in base64, from the character ``begin`` of ``of`` characters."""

    begin: _PictureOffset
    of: _PictureOffset
    data: Annotated[str, Meta(min_length=1, pattern=r"^[\x00-\x7f]*$")]

    def __post_init__(self) -> None:
        if len(self.data) > self.of - self.begin:
            raise ValueError("the part is longer than the picture")


class StepsReport(Report, tag="steps"):
    """Time measurements of some steps (``worker.step_times``), and the GPU memory that torch uses, in bytes."""

    first: Count
    size: Annotated[int, Meta(gt=0, lt=2**53)]
    records: ShortList[Annotated[list[Count], Meta(min_length=HEAD_SIZE, max_length=200)]]
    t: Number | None = None
    gpu_memory: tuple[Count, Count] | None = None


class WeightsReport(Report, tag="weights"):
    """The checksum of a rank's weights after a step."""

    optimizer: Count
    step: Count
    sum: Name
    device: Name


class ProfileReport(Report, tag="profile"):
    """The progress of a profile (``worker.hooks.profile``)."""

    status: Literal["armed", "recording", "saving", "done", "failed"]
    number: Count = 0
    step: Count = 0
    pace: Count = 0
    text: ShortText = ""

    def record(self, recorder: EventRecorder, rank: int) -> None:
        """Pass the report on to the collector of the profile in progress, if there is one."""
        if recorder.view.profiles and not recorder.view.profiles[-1].ended:
            recorder.profile_reports.append((rank, self))


class _Frame(msgspec.Struct):
    file: ShortText
    function: ShortText
    kind: ShortText
    label: ShortText
    line: Count
    cell: Count | None = None
    source: ShortList[tuple[Count, ShortText]] = []


class _Error(msgspec.Struct):
    type: Text = ""
    module: Text = ""
    name: Text = ""
    message: Text = ""
    traceback: Text = ""
    code: Text = ""
    hint: Text = ""
    problem: Text = ""
    time: Number = 0
    values: ShortList[tuple[ShortText, ShortText]] = []
    frames: ShortList[_Frame] = []
    args: ShortList[Scalar] = []
    values_at: Count | None = None
    #: Data from ``worker.hooks.gpu_memory``.
    gpu_memory: dict[str, Scalar | ShortList[dict[str, Scalar]]] = {}
    causes: ShortList[_Error] = []
    #: Length of the longest chain of errors that caused each other, computed here.
    depth: int = 0

    def __post_init__(self) -> None:
        self.depth = 1 + max((cause.depth for cause in self.causes), default=0)
        if self.values_at is not None and self.values_at >= len(self.frames):
            raise ValueError("values_at is not the number of a frame")
        if self.depth > _MAX_CAUSE_DEPTH:
            raise ValueError("too many errors caused each other")


class _ResultReport(Report, tag="result"):
    ok: bool
    repr: Text | None = None
    bytes: Count | None = None
    #: Stored unchanged after it was validated as an ``_Error``.
    error: dict[str, Any] | None = None
    problem: ShortText = ""
    #: Operations as text; ``core.collectives.parse_report`` skips unreadable ones.
    collectives: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.error is not None:
            msgspec.convert(self.error, _Error)
        if self.collectives is not None and len(str(self.collectives)) > _MAX_COLLECTIVES_CHARS:
            raise ValueError("the last operations are too long")

    def record(self, recorder: EventRecorder, rank: int) -> None:
        recorder.flush()
        fields = msgspec.structs.asdict(self)
        if not self.collectives:
            del fields["collectives"]
        recorder.write("result", rank=rank, **fields)


_CLASS_BY_TYPE = {str(type_.__struct_config__.tag): type_ for type_ in Report.__subclasses__()}


class InvalidReport(ValueError):
    """A required field of the report is missing, or a field has the wrong type or is too large."""


def parse(report: Mapping[str, Any]) -> Report | None:
    """Return a report as an instance of its class, None for a type without a class. Raises InvalidReport."""
    if (type_ := _CLASS_BY_TYPE.get(report["type"])) is None:
        return None
    try:
        return msgspec.convert(report, type_)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise InvalidReport(str(error)) from error


#: Minimum pause in seconds between two events of a rank.
_MIN_PAUSE_SECONDS = 0.1
#: The pause as a fraction of the run time so far.
_PAUSE_SHARE = 0.001
#: Maximum pause in seconds.
_MAX_PAUSE_SECONDS = 10.0
#: Number of metric reports of a job that all become events.
_MAX_UNTHINNED = 100_000

#: Position of a report in a stored stream.
Origin = dict[str, int]
#: Type, fields and origin of an event to write.
PendingEvent = tuple[str, dict[str, Any], Origin]


class ReportThinner:
    """Holds reports back until they are due, or until a later report replaces them."""

    def __init__(self) -> None:
        self._metric_count = 0
        #: The last report of each type and rank that has not become an event.
        self._pending_reports: dict[tuple[str, int], PendingEvent] = {}
        #: The time of the last event of each type and rank, or for "problem", of the last one with values like NaN.
        self._written_at: dict[tuple[str, int], float] = {}
        #: The values of each rank's last metric report that are not finite, as text.
        self._non_finite: dict[int, dict[str, str]] = {}
        self._started_at = time.monotonic()

    def count(self, event: Event) -> None:
        """Count the metric reports of an event."""
        if event["type"] == "metric":
            self._metric_count += event.get("reports", 1)

    def add_metric(
        self, rank: int, step: float, values: Mapping[str, float], origin: Origin, *, replace: bool
    ) -> list[PendingEvent]:
        """Add a metric report; with ``replace`` it replaces earlier ones. Return the events to write now."""
        fields: dict[str, Any] = {"rank": rank, "step": step, "values": values}
        if replace:
            fields["replace"] = True
        flushed: list[PendingEvent] = []
        if (pending := self._pending_reports.get(("metric", rank))) is not None:
            if replace or step < pending[1]["step"] or values.keys() != pending[1]["values"].keys():
                flushed = self._take([("metric", rank)])
            else:
                fields["reports"] = pending[1].get("reports", 1) + 1
        self._pending_reports["metric", rank] = ("metric", fields, origin)
        is_due = replace or self._metric_count < _MAX_UNTHINNED or self._is_due(("metric", rank))
        non_finite = {name: str(value) for name, value in values.items() if not math.isfinite(value)}
        if non_finite and non_finite != self._non_finite.get(rank) and self._is_due(("problem", rank)):
            is_due, self._written_at["problem", rank] = True, time.monotonic()
        self._non_finite[rank] = non_finite
        return [*flushed, *(self._take([("metric", rank)]) if is_due else ())]

    def add_progress(self, rank: int, data: dict[str, Any], origin: Origin, *, now: bool = False) -> list[PendingEvent]:
        """Add a progress report, which replaces the previous one. Return the events to write now."""
        self._pending_reports["progress", rank] = ("progress", {"rank": rank, **data}, origin)
        return self._take([("progress", rank)]) if now or self._is_due(("progress", rank)) else []

    def take_due(self) -> list[PendingEvent]:
        """Remove and return the held-back events that are due."""
        return self._take([*filter(self._is_due, self._pending_reports)])

    def take_all(self, *, only_metrics: bool = False) -> list[PendingEvent]:
        """Remove and return all held-back events; with ``only_metrics``, only the metric events."""
        return self._take([key for key in self._pending_reports if key[0] == "metric" or not only_metrics])

    def _is_due(self, key: tuple[str, int]) -> bool:
        now = time.monotonic()
        pause = min(max(_MIN_PAUSE_SECONDS, (now - self._started_at) * _PAUSE_SHARE), _MAX_PAUSE_SECONDS)
        return now - self._written_at.get(key, -math.inf) >= pause

    def _take(self, keys: list[tuple[str, int]]) -> list[PendingEvent]:
        self._written_at |= dict.fromkeys(keys, time.monotonic())
        return [self._pending_reports.pop(key) for key in keys]
