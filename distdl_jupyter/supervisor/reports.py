"""What ranks report: the fields of each type of report, and what the event recorder does with it.

A training program can read the job's nonce in its environment and write anything behind it. So a report is valid only
with all fields of its type, of their types, finite and of limited size; anything else is text of the rank's output. A
type without fields here is valid; one without a handler is ignored.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from distdl_jupyter.core.events import number_from_json
from distdl_jupyter.worker.pictures import LARGEST
from distdl_jupyter.worker.step_times import HEAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.supervisor.recorder import EventRecorder

Fields = dict[str, Any]
#: Notes of one job, beyond which those of its ranks are left out: they are all on one page.
_MOST_NOTES = 300

_LARGEST = sys.float_info.max
#: Errors that caused each other, at most; characters of the last collective operations, and of a picture in base64.
_DEEPEST = 6
_LARGEST_COLLECTIVES = 200_000
_PicturePosition = Annotated[int, Meta(ge=0, lt=4 * LARGEST // 3 + 5)]

# Limits of what one report may hold: a program could report gigabytes.
Name = Annotated[str, Meta(max_length=500)]
Sentence = Annotated[str, Meta(max_length=20_000)]
Text = Annotated[str, Meta(max_length=200_000)]
Whole = Annotated[int, Meta(ge=0, lt=2**53)]
#: A finite number.
Number = Annotated[int, Meta(ge=-(2**62), le=2**62)] | Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
Plain = bool | Number | Sentence | None
T = TypeVar("T")
Several = Annotated[list[T], Meta(max_length=200)]


class _Report(msgspec.Struct):
    """The fields of a report that a rank may send; other fields are ignored."""


class _Metric(_Report):
    step: Number
    values: Annotated[dict[Name, Number | Literal["nan", "inf", "-inf"]], Meta(min_length=1)]


class _Progress(_Report):
    done: Number
    total: Number | None = None
    unit: Name = ""


class _Note(_Report):
    text: Sentence
    level: Literal["info", "warning", "error"] = "info"
    code: Name = ""


class _Mark(_Report):
    stream: Literal["out", "err"]
    cell: int
    label: Name
    ended: bool


class _Hello(_Report):
    pid: Whole | None = None
    host: Name | None = None


class _Environment(_Report):
    python: Sentence
    executable: Sentence
    platform: Sentence
    packages: Annotated[dict[Name, Sentence], Meta(max_length=10_000)]


class _Compile(_Report):
    compiling: bool


class _Frame(_Report):
    file: Sentence
    function: Sentence
    kind: Sentence
    label: Sentence
    line: Whole
    cell: Whole | None = None
    source: Several[tuple[Whole, Sentence]] = []


class _Error(_Report):
    type: Text = ""
    module: Text = ""
    name: Text = ""
    message: Text = ""
    traceback: Text = ""
    code: Text = ""
    hint: Text = ""
    problem: Text = ""
    time: Number = 0
    values: Several[tuple[Sentence, Sentence]] = []
    frames: Several[_Frame] = []
    args: Several[Plain] = []
    values_at: Whole | None = None
    #: Facts of ``watch.gpu_memory``.
    gpu_memory: dict[str, Plain | Several[dict[str, Plain]]] = {}
    causes: Several[_Error] = []

    def __post_init__(self) -> None:
        if self.values_at is not None and self.values_at >= len(self.frames):
            raise ValueError("values_at is not the number of a frame")
        if self.depth > _DEEPEST:
            raise ValueError("too many errors caused each other")

    @property
    def depth(self) -> int:
        """The length of the longest chain of errors that caused each other."""
        return 1 + max((cause.depth for cause in self.causes), default=0)


class _Result(_Report):
    ok: bool
    repr: Text | None = None
    bytes: Whole | None = None
    error: _Error | None = None
    problem: Sentence = ""
    #: Operations as text; ``core.collectives.read`` leaves out what cannot be read.
    collectives: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.collectives is not None and len(str(self.collectives)) > _LARGEST_COLLECTIVES:
            raise ValueError("the last operations are too long")


class _Picture(_Report):
    """A part of a picture in base64, from the character ``begin`` of ``of`` characters."""

    begin: _PicturePosition
    of: _PicturePosition
    data: Annotated[str, Meta(min_length=1, pattern=r"^[\x00-\x7f]*$")]

    def __post_init__(self) -> None:
        if len(self.data) > self.of - self.begin:
            raise ValueError("the part is longer than the picture")


class _Steps(_Report):
    first: Whole
    size: Annotated[int, Meta(gt=0, lt=2**53)]
    sending: Whole
    records: Several[Annotated[list[Whole], Meta(min_length=HEAD, max_length=200)]]
    gpu_memory: tuple[Whole, Whole] = (0, 0)


class _Weights(_Report):
    optimizer: Whole
    step: Whole
    sum: Name
    device: Name


class _Profile(_Report):
    status: Literal["armed", "recording", "saving", "done", "failed"]
    number: Whole = 0
    step: Whole = 0
    pace: Whole = 0
    bytes: Whole = 0
    text: Sentence = ""


_TYPES: dict[str, type[_Report]] = {
    "metric": _Metric,
    "progress": _Progress,
    "note": _Note,
    "mark": _Mark,
    "hello": _Hello,
    "environment": _Environment,
    "compile": _Compile,
    "result": _Result,
    "picture": _Picture,
    "steps": _Steps,
    "weights": _Weights,
    "profile": _Profile,
}


def is_valid(report: Fields) -> bool:
    """Return whether the report has the fields of its type."""
    type_ = _TYPES.get(report["type"])
    if type_ is None:
        return True
    try:
        msgspec.convert(report, type_)
    except (msgspec.ValidationError, RecursionError, OverflowError):
        return False
    return True


# handlers -------------------------------------------------------------------------------------


def _on_hello(recorder: EventRecorder, rank: int, report: Fields) -> None:
    """Take note that a rank's process is there."""
    recorder.connected.add(rank)
    if recorder.view.ranks[rank].pid != report.get("pid"):
        recorder.write("rank", rank=rank, status="started", pid=report.get("pid"), host=report.get("host"))


def _on_environment(recorder: EventRecorder, _rank: int, report: Fields) -> None:
    from distdl_jupyter.core import environment

    with contextlib.suppress(OSError):  # a full disk has a sentence of its own
        found = {name: report[name] for name in ("python", "executable", "platform", "packages")}
        environment.add(recorder.folder, **recorder.redactor.data(found))


def _on_rendezvous(recorder: EventRecorder, rank: int, _report: Fields) -> None:
    recorder.in_rendezvous.add(rank)


def _on_ready(recorder: EventRecorder, rank: int, _report: Fields) -> None:
    if rank not in recorder.ready:
        recorder.ready.add(rank)
        recorder.write("rank", rank=rank, status="ready")


def _on_metric(recorder: EventRecorder, rank: int, report: Fields) -> None:
    values = {str(name): number_from_json(value) for name, value in report["values"].items()}
    recorder.metric(rank, report["step"], values, again=report.get("again") is True)


def _on_progress(recorder: EventRecorder, rank: int, report: Fields) -> None:
    recorder.has_own_progress = True
    recorder.progress(rank, report)


def _on_note(recorder: EventRecorder, rank: int, report: Fields) -> None:
    text = str(report.get("text", ""))
    code = str(report.get("code", ""))
    notes = recorder.view.notes
    if len(notes) < _MOST_NOTES and not any(note["text"] == text for note in notes):
        recorder.write("note", level=report.get("level", "info"), text=text, code=code, rank=rank)


def _on_mark(recorder: EventRecorder, rank: int, report: Fields) -> None:
    recorder.write("mark", rank=rank, **{name: report.get(name) for name in ("stream", "cell", "label", "ended")})
    if report.get("stream") == "out":
        recorder.set_cell(rank, "" if report.get("ended") else str(report.get("label") or "a cell"))


def _on_picture(recorder: EventRecorder, rank: int, report: Fields) -> None:
    if recorder.pictures is None:
        from distdl_jupyter.supervisor.pictures import Pictures  # most jobs show none

        recorder.pictures = Pictures(recorder)
    recorder.pictures.take(rank, report)


def _on_steps(recorder: EventRecorder, rank: int, report: Fields) -> None:
    if recorder.step_times is None:
        from distdl_jupyter.supervisor.step_times import StepTimesWriter  # many jobs train nothing

        recorder.step_times = StepTimesWriter(recorder)
    recorder.step_times.take(rank, report)
    if report.get("gpu_memory"):
        recorder.take_torch_memory(rank, report["gpu_memory"])


def _on_weights(recorder: EventRecorder, rank: int, report: Fields) -> None:
    if recorder.weight_check is None:
        from distdl_jupyter.supervisor.weight_check import WeightCheck  # many jobs train nothing

        recorder.weight_check = WeightCheck(recorder)
    recorder.weight_check.take(rank, report)


def _on_compile(recorder: EventRecorder, rank: int, report: Fields) -> None:
    recorder.write("rank", rank=rank, compiling=report["compiling"])


def _on_exec(recorder: EventRecorder, rank: int, _report: Fields) -> None:
    recorder.replaced_programs.add(rank)


def _on_result(recorder: EventRecorder, rank: int, report: Fields) -> None:
    recorder.flush()
    fields = {name: report.get(name) for name in ("ok", "repr", "bytes", "error", "problem")}
    if report.get("collectives"):
        fields["collectives"] = report["collectives"]
    recorder.write("result", rank=rank, **fields)


HANDLERS: dict[str, Callable[[EventRecorder, int, Fields], None]] = {
    "hello": _on_hello,
    "environment": _on_environment,
    "rendezvous": _on_rendezvous,
    "ready": _on_ready,
    "metric": _on_metric,
    "progress": _on_progress,
    "note": _on_note,
    "mark": _on_mark,
    "exec": _on_exec,
    "picture": _on_picture,
    "steps": _on_steps,
    "weights": _on_weights,
    "compile": _on_compile,
    "profile": lambda recorder, rank, report: recorder.on_profile(rank, report),
    "result": _on_result,
}
