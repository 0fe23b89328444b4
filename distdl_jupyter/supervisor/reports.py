"""What ranks report: which reports are valid, and what the event recorder does with each type.

A report is valid when every field is there, of its type, finite and of a bearable size. A program finds the job's nonce
in its environment and may write whatever it likes behind it. What is no valid report is text like any other: it is
shown, it changes nothing, and no reader of the job meets a value that it does not expect. A type without a check here
is valid; one without a handler is ignored.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.events import number_from_json
from distdl_jupyter.supervisor import messages
from distdl_jupyter.worker.pictures import LARGEST
from distdl_jupyter.worker.step_times import HEAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.supervisor.recorder import EventRecorder

Fields = dict[str, Any]
#: Notes of one job, beyond which those of its ranks are left out: they all stand on one page.
_MOST_NOTES = 300
_WORDS = ("nan", "inf", "-inf")
_LARGEST = 1e300
#: Most characters of a name or a short text, of a sentence, and of a text with many lines.
_NAME, _SENTENCE, _TEXT = 500, 20_000, 200_000
#: Most parts of a list, and errors that caused each other.
_MOST, _DEEPEST = 200, 6
_MOST_PACKAGES = 10_000
#: Characters of a picture in base64.
_LARGEST_PICTURE = 4 * LARGEST // 3 + 5


def is_valid(report: Fields) -> bool:
    """Say whether the report has the shape that its type promises."""
    check = _CHECKS.get(report["type"])
    return check is None or check(report)


def _is_number(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and -_LARGEST < value < _LARGEST


def _is_text(value: Any, most: int) -> bool:
    return type(value) is str and len(value) <= most


def _valid_metric(report: Fields) -> bool:
    values = report.get("values")
    if not _is_number(report.get("step")) or type(values) is not dict or not values:
        return False
    # The common case first: this is asked for each value of each training step.
    return all(
        (math.isfinite(value) if type(value) is float else value in _WORDS if type(value) is str else _is_number(value))
        and _is_text(name, _NAME)
        for name, value in values.items()
    )


def _valid_progress(report: Fields) -> bool:
    total = report.get("total")
    return (
        _is_number(report.get("done"))
        and (total is None or _is_number(total))
        and _is_text(report.get("unit", ""), _NAME)
    )


def _valid_note(report: Fields) -> bool:
    return (
        report.get("level", "info") in ("info", "warning", "error")
        and _is_text(report.get("text"), _SENTENCE)
        and _is_text(report.get("code", ""), _NAME)
    )


def _valid_mark(report: Fields) -> bool:
    return (
        report.get("stream") in ("out", "err")
        and type(report.get("cell")) is int
        and _is_number(report["cell"])
        and _is_text(report.get("label"), _NAME)
        and type(report.get("ended")) is bool
    )


def _valid_hello(report: Fields) -> bool:
    pid, host = report.get("pid"), report.get("host")
    return (pid is None or _is_whole(pid)) and (host is None or _is_text(host, _NAME))


def _valid_environment(report: Fields) -> bool:
    packages = report.get("packages")
    return (
        all(_is_text(report.get(name), _SENTENCE) for name in ("python", "executable", "platform"))
        and type(packages) is dict
        and len(packages) <= _MOST_PACKAGES
        and all(_is_text(name, _NAME) and _is_text(version, _SENTENCE) for name, version in packages.items())
    )


def _valid_shard(report: Fields) -> bool:
    return _is_text(report.get("source"), _NAME) and all(
        _is_whole(report.get(name)) for name in ("first", "rows", "total", "steps", "size")
    )


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_whole_below(value: Any, limit: int) -> bool:
    return _is_whole(value) and value < limit


def _valid_picture(report: Fields) -> bool:
    return (
        all(_is_whole_below(report.get(name), _LARGEST_PICTURE) for name in ("begin", "of"))
        and type(data := report.get("data")) is str
        and data.isascii()
        and 0 < len(data) <= report["of"] - report["begin"]
    )


def _valid_result(report: Fields) -> bool:
    error, shown, size = report.get("error"), report.get("repr"), report.get("bytes")
    return (
        type(report.get("ok")) is bool
        and (shown is None or _is_text(shown, _TEXT))
        and (size is None or _is_whole(size))
        and (error is None or _valid_error(error, _DEEPEST))
        and _is_text(report.get("problem", ""), _SENTENCE)
        and _valid_collectives(report.get("collectives"))
    )


def _valid_collectives(found: Any) -> bool:
    """Return whether these may be operations; ``core.collectives.read`` leaves out what cannot be read."""
    return found is None or (type(found) is dict and len(str(found)) <= _TEXT)


def _valid_error(error: Any, depth: int) -> bool:
    if type(error) is not dict or depth == 0:
        return False
    names = ("type", "module", "name", "message", "traceback", "code", "hint", "problem")
    texts = all(_is_text(error.get(name, ""), _TEXT) for name in names)
    return (
        texts
        and _is_number(error.get("time", 0))
        and _is_list_of(error.get("values", []), _is_pair)
        and _is_list_of(error.get("frames", []), _is_frame)
        and _is_list_of(error.get("args", []), _is_plain)
        and (error.get("values_at") is None or _is_whole_below(error["values_at"], len(error.get("frames", []))))
        and _valid_gpu_memory(error.get("gpu_memory", {}))
        and _is_list_of(error.get("causes", []), lambda cause: _valid_error(cause, depth - 1))
    )


def _valid_gpu_memory(memory: Any) -> bool:
    """Return whether these are facts of ``watch.gpu_memory``: plain values, and lists of such."""
    return type(memory) is dict and all(
        _is_list_of(value, lambda part: type(part) is dict and all(map(_is_plain, part.values())))
        if type(value) is list
        else _is_plain(value)
        for value in memory.values()
    )


def _is_list_of(value: Any, check: Callable[[Any], bool]) -> bool:
    return type(value) is list and len(value) <= _MOST and all(map(check, value))


def _is_plain(value: Any) -> bool:
    return value is None or type(value) is bool or _is_number(value) or _is_text(value, _SENTENCE)


def _is_pair(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and all(_is_text(part, _SENTENCE) for part in value)


def _is_frame(frame: Any) -> bool:
    return (
        type(frame) is dict
        and all(_is_text(frame.get(name), _SENTENCE) for name in ("file", "function", "kind", "label"))
        and _is_whole(frame.get("line"))
        and (frame.get("cell") is None or _is_whole(frame["cell"]))
        and _is_list_of(frame.get("source", []), _is_source_line)
    )


def _is_source_line(line: Any) -> bool:
    return type(line) is list and len(line) == 2 and _is_whole(line[0]) and _is_text(line[1], _SENTENCE)


def _valid_steps(report: Fields) -> bool:
    return (
        all(_is_whole(report.get(name)) for name in ("first", "size", "sending"))
        and _is_list_of(report.get("gpu_memory", [0, 0]), _is_whole)
        and len(report.get("gpu_memory", [0, 0])) == 2
        and report["size"] > 0
        and _is_list_of(report.get("records"), lambda record: _is_list_of(record, _is_whole) and len(record) >= HEAD)
    )


def _valid_weights(report: Fields) -> bool:
    return all(_is_whole(report.get(name)) for name in ("optimizer", "step")) and all(
        _is_text(report.get(name), _NAME) for name in ("sum", "device")
    )


def _valid_profile(report: Fields) -> bool:
    return (
        report.get("status") in ("armed", "recording", "saving", "done", "failed")
        and all(_is_whole(report.get(name, 0)) for name in ("number", "step", "pace", "bytes"))
        and _is_text(report.get("text", ""), _SENTENCE)
    )


_CHECKS: dict[str, Callable[[Fields], bool]] = {
    "metric": _valid_metric,
    "progress": _valid_progress,
    "note": _valid_note,
    "mark": _valid_mark,
    "hello": _valid_hello,
    "environment": _valid_environment,
    "compile": lambda report: type(report.get("compiling")) is bool,
    "result": _valid_result,
    "picture": _valid_picture,
    "shard": _valid_shard,
    "steps": _valid_steps,
    "weights": _valid_weights,
    "profile": _valid_profile,
}


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


def _on_shard(recorder: EventRecorder, rank: int, report: Fields) -> None:
    """When each rank has read its rows of a table, write that these are all rows, each of them once."""
    source, total = report["source"], report["total"]
    seen = recorder.shards.setdefault(source, {})
    seen[rank] = report
    if len(seen) < report["size"]:
        return
    del recorder.shards[source]
    text, complete = messages.shards(source, total, list(seen.values()))
    if not complete:
        recorder.note("warning", text, "rows")
    elif source not in recorder.shards_told:
        recorder.shards_told.add(source)
        recorder.log(text)


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
    "shard": _on_shard,
    "steps": _on_steps,
    "weights": _on_weights,
    "compile": _on_compile,
    "profile": lambda recorder, rank, report: recorder.on_profile(rank, report),
    "result": _on_result,
}
