"""Describes an exception as data: its frames as in the notebook, the values at the failing line, and a hint.

``describe`` never raises, so the original error is always reported. Its docstring specifies the data.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import hints, secret_patterns, values
from distdl_jupyter.worker.frames import WORKER, Describer, ErrorFrame
from distdl_jupyter.worker.hooks import gpu_memory
from distdl_jupyter.worker.sources import CellSources, show

_LONGEST_MESSAGE = 4_000
_LONGEST_TRACEBACK = 24_000
_MOST_VALUES = 12
_MOST_ARGUMENTS, _LARGEST = 20, 1e300
_DEEPEST_CAUSE = 3


def describe(error: BaseException, sources: CellSources, code: Path | None = None) -> dict[str, Any]:
    """Return the error as JSON data; ``code`` is the folder of the modules sent with the job.

    ``{"type", "module", "name" (qualified), "args" (if they are plain), "message", "traceback" (text), "time" (epoch
    seconds of this call), "frames", "values", "values_at", "code", "hint", "causes"}``, and ``"gpu_memory"`` if a GPU
    is out of memory (``hooks.gpu_memory.GpuMemory``). A frame is ``{"file", "line", "function", "kind", "label",
    "cell", "source"}`` with kind worker, cell, user or library. ``values_at`` is the index of the deepest frame of a
    cell, or else of the user's modules, or None. ``values`` has one [name, short text] for each name that the failing
    statement of this frame uses.
    """
    try:
        return _describe(error, Describer(sources, code), 0)
    except Exception as second:  # noqa: BLE001  the user's error must still be reported
        plain = "".join(traceback.format_exception_only(error))
        return {
            "type": type(error).__name__, "message": _message(error), "traceback": plain, "time": round(time.time(), 4),
            "frames": [], "values": [], "values_at": None, "hint": "", "causes": [],
            "problem": f"{type(second).__name__}: {second}",
        }  # fmt: skip


def _describe(error: BaseException, about: Describer, depth: int) -> dict[str, Any]:
    frames = about.frames(error.__traceback__) + _syntax_frame(error, about)
    indices = [n for n, frame in enumerate(frames) if frame.kind in ("cell", "user")]
    # Users look at the notebook's line first, then at their own modules below it.
    order = sorted(indices, key=lambda n: (frames[n].kind == "cell", n), reverse=True)
    views = [about.view(frames[n]) for n in order[:8]]
    code, hint = _own_code(error), ""
    if not code:
        code, hint = hints.find_hint(error, views)
    memory = _gpu_memory(error, about) if code == "gpu-memory-full" else None
    if memory is not None:
        hint = gpu_memory.explain(memory, os.environ.get("DISTDL_JOB_ID", "").rpartition("-")[2])
    used = [[name, _value(name, value)] for name, value in (views[0].used() if views else [])[:_MOST_VALUES]]
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "name": type(error).__qualname__,
        **_arguments(error),
        "message": _message(error),
        "traceback": text(error, about),
        "time": round(time.time(), 4),
        "frames": [_frame(frame, about) for frame in frames],
        "values": used,
        "values_at": order[0] if order else None,
        "code": code,
        "hint": secret_patterns.redact(hint),
        **({} if memory is None else {"gpu_memory": memory.to_json()}),
        "causes": [_describe(cause, about, depth + 1) for cause in _causes(error)] if depth < _DEEPEST_CAUSE else [],
    }


def _gpu_memory(error: BaseException, about: Describer) -> gpu_memory.GpuMemory | None:
    """Return the usage of the GPU memory, None if unknown. The generic hint is used in that case."""

    def locate(frames: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
        for frame in frames:
            file, line = str(frame.get("filename", "")), int(frame.get("line", 0))
            if about.kind(file) in ("cell", "user"):
                return about.shown(file, line)
        return "", 0

    try:
        return gpu_memory.collect(error, locate)
    except Exception:  # noqa: BLE001  the error must be reported without this data
        return None


def _frame(frame: ErrorFrame, about: Describer) -> dict[str, Any]:
    return {
        "file": frame.file,
        "line": frame.shown_line,
        "function": frame.function,
        "kind": frame.kind,
        "label": about.label(frame.file),
        "cell": frame.cell.number if frame.cell else None,
        "source": [] if frame.kind in ("worker", "library") else about.source(frame),
    }


def _syntax_frame(error: BaseException, about: Describer) -> list[ErrorFrame]:
    """Return a frame for the location of a SyntaxError in the user's code, because its traceback does not have one."""
    if not isinstance(error, SyntaxError) or not error.filename or not error.lineno:
        return []
    kind = about.kind(error.filename)
    if kind not in ("cell", "user"):
        return []
    return [ErrorFrame(error.filename, error.lineno, "<module>", kind, about.sources.cell(error.filename), {}, {})]


def _own_code(error: BaseException) -> str:
    """Return the code of an error of this package, "" for other errors. Its message already contains the fix."""
    code = getattr(error, "code", None)
    return code if type(code) is str and type(error).__module__.startswith("distdl_jupyter.") else ""


def _causes(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return list(error.exceptions[:_DEEPEST_CAUSE])
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [] if cause is None or cause is error else [cause]


def _message(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  a user-defined method
        message = ""
    return _cut(secret_patterns.redact(message), _LONGEST_MESSAGE)


def _arguments(error: BaseException) -> dict[str, Any]:
    """Return ``{"args": [...]}`` if all arguments are plain data, else {}."""
    arguments = error.args
    if isinstance(error, OSError) and len(arguments) == 2 and error.filename is not None:
        arguments = (*arguments, error.filename)
    plain = all(value is None or type(value) in (bool, int, float, str) for value in arguments)
    if not plain or len(arguments) > _MOST_ARGUMENTS:
        return {}
    redacted = [
        _cut(secret_patterns.redact(value), _LONGEST_MESSAGE) if type(value) is str else value for value in arguments
    ]
    finite = all(abs(value) < _LARGEST for value in redacted if isinstance(value, int | float))  # JSON has no nan
    return {"args": redacted} if finite else {}


def _value(name: str, value: Any) -> str:
    if secret_patterns.looks_secret(name.rpartition(".")[2]) and not callable(value):
        return secret_patterns.MASK
    return secret_patterns.redact(values.short(value))


def _cut(text_: str, longest: int) -> str:
    if len(text_) <= longest:
        return text_
    half = longest // 2
    return f"{text_[:half]}\n[{len(text_) - 2 * half:,} characters omitted]\n{text_[-half:]}"


def text(error: BaseException, about: Describer) -> str:
    """Return the traceback in Python's format, with the notebook's cells and lines and without the worker's frames.

    A module that was sent with the job is shown by its name instead of the path of its copy.
    """
    whole = traceback.TracebackException.from_exception(error, lookup_lines=False, compact=True)
    pending, visited = [whole], set()
    while pending:
        part = pending.pop()
        if id(part) in visited:
            continue
        visited.add(id(part))
        _map(part, about)
        pending.extend(p for p in (part.__cause__, part.__context__, *(part.exceptions or ())) if p is not None)
    return _cut(secret_patterns.redact("".join(whole.format())), _LONGEST_TRACEBACK)


def _map(part: traceback.TracebackException, about: Describer) -> None:
    frames = [frame for frame in part.stack if not _is_scaffold(frame.filename)]
    part.stack = traceback.StackSummary.from_list(frames)
    for frame in frames:
        shift = _show_as_label(frame.filename, about)
        if shift is not None:
            frame.filename = about.label(frame.filename)
            frame.lineno = (frame.lineno or 0) + shift
            frame.end_lineno = None if frame.end_lineno is None else frame.end_lineno + shift
    filename = getattr(part, "filename", None)
    shift = _show_as_label(filename, about) if filename else None
    if filename and shift is not None:
        part.filename = about.label(filename)
        part.lineno = str(int(part.lineno or 0) + shift)


def _is_scaffold(filename: str) -> bool:
    return filename.startswith((WORKER, "<frozen runpy"))


def _show_as_label(filename: str, about: Describer) -> int | None:
    """Add the lines of a cell, or of a module that was sent with the job, to ``linecache`` under its label.

    Return the offset of its line numbers, or None for another file, which is shown by its own name.
    """
    cell = about.sources.cell(filename)
    if cell is None and not (about.code and filename.startswith(about.code)):
        return None
    shift = cell.shift if cell else 0
    show(about.label(filename), "\n" * shift + "".join(about.sources.lines(filename)))
    return shift
