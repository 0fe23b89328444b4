"""An exception as data: its frames as a person sees them, the values at the failing line, and one hint.

Describing an error never raises and never hides it. See ``describe`` for the shape of the data.
"""

from __future__ import annotations

import sys
import sysconfig
import time
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from distdl_jupyter.worker import failing_statement, masking, short_repr
from distdl_jupyter.worker.failing_statement import View
from distdl_jupyter.worker.sources import Cell, Sources, show
from distdl_jupyter.worker.watch import hints

_HERE = f"{Path(__file__).parent}/"
_AROUND = 2
_LONGEST_LINE = 300
_LONGEST_MESSAGE = 4_000
_LONGEST_TRACEBACK = 24_000
_FIRST_FRAMES, _LAST_FRAMES = 20, 60
_MOST_VALUES = 12
_MOST_ARGUMENTS, _LARGEST = 20, 1e300
_DEEPEST_CAUSE = 3


class Frame(NamedTuple):
    """One frame of a traceback; ``line`` is the number as its code object counts, ``cell`` None for a real file."""

    file: str
    line: int
    function: str
    kind: str
    cell: Cell | None
    variables: dict[str, Any]
    globals: dict[str, Any]

    @property
    def shown_line(self) -> int:
        """The line's number as the notebook shows it."""
        return self.line + (self.cell.shift if self.cell else 0)


def describe(error: BaseException, sources: Sources, code: Path | None = None) -> dict[str, Any]:
    """Return the error as JSON data; ``code`` is the folder of the modules that travel with the job.

    ``{"type", "module", "name" (qualified), "args" (where they are plain), "message", "traceback" (text), "time" (epoch
    seconds of this call), "frames", "values", "values_at", "hint", "causes"}``. A frame is ``{"file", "line",
    "function", "kind", "label", "cell", "source"}`` with kind worker, cell, user or library. ``values`` are [name,
    short text] of what the statement of frame number ``values_at`` uses: the deepest frame of a cell, else the deepest
    of the user's code (None: there is none).
    """
    try:
        return _describe(error, Describer(sources, code), 0)
    except Exception as second:  # noqa: BLE001  the user's error must arrive whatever else goes wrong
        plain = "".join(traceback.format_exception_only(error))
        return {
            "type": type(error).__name__, "message": _message(error), "traceback": plain, "time": round(time.time(), 4),
            "frames": [], "values": [], "values_at": None, "hint": "", "causes": [],
            "problem": f"{type(second).__name__}: {second}",
        }  # fmt: skip


class Describer:
    """What is needed to tell whose code a frame is."""

    def __init__(self, sources: Sources, code: Path | None) -> None:
        self.sources = sources
        self.code = f"{code}/" if code else ""
        paths = sysconfig.get_paths()
        self._library = tuple({f"{paths[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})

    def kind(self, file: str) -> str:
        """Return whose code a file is: cell, worker, user or library."""
        if self.sources.cell(file) is not None:
            return "cell"
        if file.startswith(_HERE):
            return "worker"
        if self.code and file.startswith(self.code):
            return "user"
        inside = file.startswith(("<", *self._library)) or "site-packages" in file or "dist-packages" in file
        return "library" if inside else "user"

    def label(self, file: str) -> str:
        """Return a file's name as people say it: the cell, or the path below the folder that it was found in."""
        cell = self.sources.cell(file)
        if cell is not None:
            return cell.label
        roots = [self.code, *sorted(self._library, key=len, reverse=True), f"{Path.cwd()}/"]
        root = next((root for root in roots if root and file.startswith(root)), "")
        return file[len(root) :] if root else Path(file).name

    def frames(self, trace: TracebackType | None) -> list[Frame]:
        """Return the frames of a traceback, outermost first, the middle of a very long one left out."""
        found: list[Frame] = []
        while trace is not None:
            code, file = trace.tb_frame.f_code, trace.tb_frame.f_code.co_filename
            kind = self.kind(file)
            # Python's own machinery between the worker and a script belongs to the worker.
            kind = "worker" if kind == "library" and all(f.kind == "worker" for f in found) else kind
            found.append(Frame(file, trace.tb_lineno or code.co_firstlineno, code.co_qualname, kind,
                               self.sources.cell(file), trace.tb_frame.f_locals, trace.tb_frame.f_globals))  # fmt: skip
            trace = trace.tb_next
        return found if len(found) <= _FIRST_FRAMES + _LAST_FRAMES else found[:_FIRST_FRAMES] + found[-_LAST_FRAMES:]

    def line(self) -> tuple[str, int]:
        """Return where the user's code is now: label and line of the innermost frame of a cell or the user's files."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to walk the stack
        while frame is not None:
            file = frame.f_code.co_filename
            if self.kind(file) in ("cell", "user"):
                cell = self.sources.cell(file)
                return self.label(file), frame.f_lineno + (cell.shift if cell else 0)
            frame = frame.f_back
        return "", 0

    def source(self, frame: Frame) -> list[list[Any]]:
        """Return the lines around the failing one as [number, text], numbered as the notebook shows them."""
        lines = self.sources.lines(frame.file, frame.globals)
        first, last = max(1, frame.line - _AROUND), min(len(lines), frame.line + _AROUND)
        shift = frame.shown_line - frame.line
        return [[n + shift, lines[n - 1].rstrip("\n")[:_LONGEST_LINE]] for n in range(first, last + 1)]

    def view(self, frame: Frame) -> View:
        """Return the failing statement of a frame with its variables."""
        lines = self.sources.lines(frame.file, frame.globals)
        return failing_statement.view(lines, frame.line, frame.variables, frame.globals)


def _describe(error: BaseException, about: Describer, depth: int) -> dict[str, Any]:
    frames = about.frames(error.__traceback__) + _syntax_frame(error, about)
    own = [n for n, frame in enumerate(frames) if frame.kind in ("cell", "user")]
    # The notebook's own line is what a person looks at; a module of theirs below it comes second.
    order = sorted(own, key=lambda n: (frames[n].kind == "cell", n), reverse=True)
    views = [about.view(frames[n]) for n in order[:8]]
    code, hint = hints.find_hint(error, views)
    values = [[name, _value(name, value)] for name, value in (views[0].used() if views else [])[:_MOST_VALUES]]
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "name": type(error).__qualname__,
        **_arguments(error),
        "message": _message(error),
        "traceback": text(error, about),
        "time": round(time.time(), 4),
        "frames": [_frame(frame, about) for frame in frames],
        "values": values,
        "values_at": order[0] if order else None,
        "code": code,
        "hint": masking.redact(hint),
        "causes": [_describe(cause, about, depth + 1) for cause in _causes(error)] if depth < _DEEPEST_CAUSE else [],
    }


def _frame(frame: Frame, about: Describer) -> dict[str, Any]:
    return {
        "file": frame.file,
        "line": frame.shown_line,
        "function": frame.function,
        "kind": frame.kind,
        "label": about.label(frame.file),
        "cell": frame.cell.number if frame.cell else None,
        "source": [] if frame.kind in ("worker", "library") else about.source(frame),
    }


def _syntax_frame(error: BaseException, about: Describer) -> list[Frame]:
    """A SyntaxError has no frame where it stands; give it one when it stands in the user's code."""
    if not isinstance(error, SyntaxError) or not error.filename or not error.lineno:
        return []
    kind = about.kind(error.filename)
    if kind not in ("cell", "user"):
        return []
    return [Frame(error.filename, error.lineno, "<module>", kind, about.sources.cell(error.filename), {}, {})]


def _causes(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return list(error.exceptions[:_DEEPEST_CAUSE])
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [] if cause is None or cause is error else [cause]


def _message(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  a foreign class's own method
        message = ""
    return _cut(masking.redact(message), _LONGEST_MESSAGE)


def _arguments(error: BaseException) -> dict[str, Any]:
    """Return ``{"args": [...]}`` for arguments that are plain data, {} for others."""
    given = error.args
    if isinstance(error, OSError) and len(given) == 2 and error.filename is not None:
        given = (*given, error.filename)
    plain = all(value is None or type(value) in (bool, int, float, str) for value in given)
    if not plain or len(given) > _MOST_ARGUMENTS:
        return {}
    found = [_cut(masking.redact(value), _LONGEST_MESSAGE) if type(value) is str else value for value in given]
    finite = all(abs(value) < _LARGEST for value in found if isinstance(value, int | float))  # nan is no JSON
    return {"args": found} if finite else {}


def _value(name: str, value: Any) -> str:
    if masking.looks_secret(name.rpartition(".")[2]) and not callable(value):
        return masking.MASK
    return masking.redact(short_repr.short(value))


def _cut(text_: str, longest: int) -> str:
    if len(text_) <= longest:
        return text_
    half = longest // 2
    return f"{text_[:half]}\n[{len(text_) - 2 * half:,} characters left out]\n{text_[-half:]}"


def text(error: BaseException, about: Describer) -> str:
    """Return the traceback as Python prints it, with cells and their lines, and without the worker's frames.

    A module that travelled with the job is called by its own name, not by the path of its copy.
    """
    whole = traceback.TracebackException.from_exception(error, lookup_lines=False, compact=True)
    pending, seen = [whole], set()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        _map(part, about)
        pending.extend(p for p in (part.__cause__, part.__context__, *(part.exceptions or ())) if p is not None)
    return _cut(masking.redact("".join(whole.format())), _LONGEST_TRACEBACK)


def _map(part: traceback.TracebackException, about: Describer) -> None:
    kept = [frame for frame in part.stack if not _is_scaffold(frame.filename)]
    part.stack = traceback.StackSummary.from_list(kept)
    for frame in kept:
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
    return filename.startswith((_HERE, "<frozen runpy"))


def _show_as_label(filename: str, about: Describer) -> int | None:
    """Let the lines of a cell or of a module that travelled be found under its label too.

    Returns by how much line numbers move there; None for a file that keeps its name.
    """
    cell = about.sources.cell(filename)
    if cell is None and not (about.code and filename.startswith(about.code)):
        return None
    shift = cell.shift if cell else 0
    show(about.label(filename), "\n" * shift + "".join(about.sources.lines(filename)))
    return shift
