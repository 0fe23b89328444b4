"""Describes an exception as data: its frames as in the notebook, the values at the failing line, and a hint.

``describe`` never raises, so the original error is always reported. Its docstring specifies the data.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import hints, secret_patterns, values
from distdl_jupyter.worker.frames import WORKER_FOLDER, ErrorFrame, FrameDescriber, View
from distdl_jupyter.worker.hooks import gpu_memory
from distdl_jupyter.worker.sources import CellSources, add_to_linecache

#: Maximum number of characters of a message and of a traceback. Longer ones lose their middle.
_MAX_MESSAGE_CHARS, _MAX_TRACEBACK_CHARS = 4_000, 24_000
#: Maximum number of values at the failing line, and of causes, which is also the maximum depth of nested causes.
_MAX_VALUES, _MAX_CAUSES = 12, 3
#: Maximum number of an error's arguments that are reported, and upper bound of a number among them.
_MAX_ARGUMENTS, _MAX_FLOAT = 20, 1e300


def describe(error: BaseException, sources: CellSources, code_folder: Path | None = None) -> dict[str, Any]:
    """Return the error as JSON data; ``code_folder`` is the folder of the modules sent with the job.

    ``{"type", "module", "name" (qualified), "args" (if they are plain), "message", "traceback" (text), "time" (epoch
    seconds of this call), "frames", "values", "values_at", "code", "hint", "causes"}``, and ``"gpu_memory"`` if a GPU
    is out of memory (``hooks.gpu_memory``). A frame is ``{"file", "line", "function", "kind", "label",
    "cell", "source"}`` with kind worker, cell, user or library. ``values_at`` is the index of the deepest frame of a
    cell, or else of the user's modules, or None. ``values`` has one [name, short text] for each name that the failing
    statement of this frame uses. If the error cannot be described, the data has only type, message, time and traceback,
    and ``"problem"`` is the internal error.
    """
    try:
        return _describe(error, FrameDescriber(sources, code_folder), 0)
    except Exception as internal_error:  # noqa: BLE001  the user's error must still be reported
        fields = {"type": type(error).__name__, "message": _format_message(error), "time": round(time.time(), 4)}
        fields |= {"traceback": "".join(traceback.format_exception_only(error)), "frames": [], "values": []}
        problem = f"{type(internal_error).__name__}: {internal_error}"
        return {**fields, "values_at": None, "hint": "", "causes": [], "problem": problem}


def _describe(error: BaseException, describer: FrameDescriber, depth: int) -> dict[str, Any]:
    frames = describer.list_frames(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename and error.lineno and describer.is_user_code(error.filename):
        # The traceback of a SyntaxError has no frame for its location.
        file, kind, cell = error.filename, describer.classify(error.filename), describer.sources.get(error.filename)
        frames.append(ErrorFrame(file, error.lineno, "<module>", kind, cell, {}, {}))
    # Users look at the notebook's line first, then at their own modules below it.
    indices = [n for n, frame in enumerate(frames) if frame.kind in ("cell", "user")]
    order = sorted(indices, key=lambda n: (frames[n].kind == "cell", n), reverse=True)
    views = [View(frames[n]) for n in order[:8]]
    # The message of an error of this package already contains the fix.
    code, hint = getattr(error, "code", ""), ""
    if type(code) is not str or not code or not type(error).__module__.startswith("distdl_jupyter."):
        code, hint = hints.find_hint(error, views)
    memory: dict[str, Any] = {}
    if code == "gpu-memory-full":
        with contextlib.suppress(Exception):  # without this data, the error has the generic hint
            memory = {"gpu_memory": gpu_memory.collect(error, describer.locate_first)}
            hint = gpu_memory.explain(memory["gpu_memory"], os.environ.get("DISTDL_JOB_ID", "").rpartition("-")[2])
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    causes: Sequence[BaseException] = () if cause is None or cause is error else (cause,)
    if isinstance(error, BaseExceptionGroup):
        causes = error.exceptions
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "name": type(error).__qualname__,
        **_collect_arguments(error),
        "message": _format_message(error),
        "traceback": _format_traceback(error, describer),
        "time": round(time.time(), 4),
        "frames": [
            {
                "file": frame.file,
                "line": frame.notebook_line,
                "function": frame.function,
                "kind": frame.kind,
                "label": describer.get_label(frame.file),
                "cell": frame.cell.number if frame.cell else None,
                "source": [] if frame.kind in ("worker", "library") else describer.read_lines(frame),
            }
            for frame in frames
        ],
        "values": [
            [name, _format_value(name, value)]
            for name, value in (views[0].list_values() if views else [])[:_MAX_VALUES]
        ],
        "values_at": order[0] if order else None,
        "code": code,
        "hint": secret_patterns.redact(hint),
        **memory,
        "causes": [_describe(cause, describer, depth + 1) for cause in causes[:_MAX_CAUSES] if depth < _MAX_CAUSES],
    }


def _format_message(error: BaseException) -> str:
    message = ""
    with contextlib.suppress(Exception):  # a user-defined __str__ can raise anything
        message = str(error)
    return _redact(message, _MAX_MESSAGE_CHARS)


def _collect_arguments(error: BaseException) -> dict[str, Any]:
    """Return ``{"args": [...]}`` if all arguments are plain data, else {}."""
    arguments = error.args
    if isinstance(error, OSError) and len(arguments) == 2 and error.filename is not None:
        arguments = (*arguments, error.filename)
    is_plain = all(value is None or type(value) in (bool, int, float, str) for value in arguments)
    is_finite = all(abs(value) < _MAX_FLOAT for value in arguments if type(value) in (int, float))  # JSON has no nan
    if not is_plain or not is_finite or len(arguments) > _MAX_ARGUMENTS:
        return {}
    return {"args": [_redact(value, _MAX_MESSAGE_CHARS) if type(value) is str else value for value in arguments]}


def _format_value(name: str, value: Any) -> str:
    if secret_patterns.looks_secret(name.rpartition(".")[2]) and not callable(value):
        return secret_patterns.MASK
    return secret_patterns.redact(values.describe(value))


def _redact(text: str, max_length: int) -> str:
    """Redact the secrets in the text, and omit its middle if it is longer than ``max_length``."""
    text, half = secret_patterns.redact(text), max_length // 2
    if len(text) <= max_length:
        return text
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters omitted]\n{text[-half:]}"


def _format_traceback(error: BaseException, describer: FrameDescriber) -> str:
    """Return the traceback in Python's format, with the notebook's cells and lines and without the worker's frames.

    A module that was sent with the job is shown by its name instead of the path of its copy.
    """
    root = traceback.TracebackException.from_exception(error, lookup_lines=False, compact=True)
    pending, visited = [root], set()
    while pending:
        part = pending.pop()
        if id(part) in visited:
            continue
        visited.add(id(part))
        frames = [frame for frame in part.stack if not frame.filename.startswith((WORKER_FOLDER, "<frozen runpy"))]
        part.stack = traceback.StackSummary.from_list(frames)
        for frame in frames:
            if (shift := _add_labeled_source(frame.filename, describer)) is not None:
                frame.filename = describer.get_label(frame.filename)
                frame.lineno = (frame.lineno or 0) + shift
                frame.end_lineno = None if frame.end_lineno is None else frame.end_lineno + shift
        filename = getattr(part, "filename", None)  # only a SyntaxError has one
        if filename and (shift := _add_labeled_source(filename, describer)) is not None:
            part.filename = describer.get_label(filename)
            part.lineno = str(int(part.lineno or 0) + shift)
        pending.extend(p for p in (part.__cause__, part.__context__, *(part.exceptions or ())) if p is not None)
    return _redact("".join(root.format()), _MAX_TRACEBACK_CHARS)


def _add_labeled_source(filename: str, describer: FrameDescriber) -> int | None:
    """Add the lines of a cell, or of a module that was sent with the job, to ``linecache`` under its label.

    Return the offset of its line numbers, or None for any other file, which keeps its own name.
    """
    cell = describer.sources.get(filename)
    if cell is None and not (describer.code_folder and filename.startswith(describer.code_folder)):
        return None
    shift = cell.shift if cell else 0
    add_to_linecache(describer.get_label(filename), "\n" * shift + "".join(linecache.getlines(filename)))
    return shift
