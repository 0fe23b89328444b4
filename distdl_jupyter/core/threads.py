"""Parse the stacks of threads that ``faulthandler`` writes, and name their code for display.

A call is of a cell, the user's files, a library or the worker. Failed ranks name the frames of their
tracebacks themselves (``worker.failure``); stacks are named here, because a stuck rank cannot do it. Both use the same
names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import linecache
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distdl_jupyter.core import redact
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.worker.hooks.frameworks import COLLECTIVES

_THREAD = re.compile(r"(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?+) in (.*)')
_ESCAPED = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
#: Functions of a library that only wrap its other functions.
_WRAPPERS = frozenset(("wrapper", "inner", "wrapped", "decorate_context"))
#: The file name of a cell compiled by a persistent rank: <in [7], 12>.
_ASKED_CELL = re.compile(r"<((?!frozen |string>|stdin>).+), \d+>")
#: The execution count in the label of a cell: "In [7]".
_COUNT = re.compile(r"\[(\d+)\]")
_LARGEST_SOURCE = 4_000_000
_LONGEST_LINE = 300


@dataclass(frozen=True, slots=True)
class Frame:
    """One call. ``line`` is 0 if it is unknown; in cells it is the notebook's line number.

    ``kind`` is cell, user, library or worker ("" before ``Names`` has named it); ``label`` is "In [7]" or a short
    path, ``source`` the line's text in the user's code, if available.
    """

    file: str
    line: int
    function: str
    kind: str = ""
    label: str = ""
    source: str = ""
    #: The execution count of its cell, None if unknown.
    cell: int | None = None

    @property
    def own(self) -> bool:
        """Whether it is in the user's code."""
        return self.kind in ("cell", "user")

    @property
    def place(self) -> str:
        """The location for display: "In [7], line 12"."""
        return f"{self.label or self.file}, line {self.line}" if self.line else self.label or self.file


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread, its newest call first. ``current`` is the one that took the signal, ``main`` runs the user's code.

    ``collective`` is the unfinished operation that it waits for, if its frames do not show it.
    """

    ident: str
    frames: tuple[Frame, ...] = ()
    name: str = ""
    current: bool = False
    main: bool = False
    collective: str = ""

    @property
    def own(self) -> Frame | None:
        """The newest call of the user's own code, None without any."""
        return next((frame for frame in self.frames if frame.own), None)

    @property
    def inside(self) -> tuple[Frame, ...]:
        """The library calls made by the user's newest call, newest first; all calls if there is none."""
        return tuple(itertools.takewhile(lambda frame: not frame.own, self.frames))

    @property
    def is_workers(self) -> bool:
        """Whether it was started by the worker or runs no Python code."""
        return not self.frames or self.frames[0].kind == "worker"

    @property
    def waits_in(self) -> str:
        """The collective operation in which it waits for other ranks ("hvd.allreduce"), "" for none."""
        if any(frame.file.startswith("<frozen importlib") for frame in self.inside):
            return ""  # the module is being imported, so nothing waits
        for frame in reversed(self.inside):
            for folder, module in COLLECTIVES:
                if f"/{folder}" in frame.file and not frame.function.startswith(("_", "<")) and (
                    frame.function not in _WRAPPERS
                ):  # fmt: skip
                    return f"{module}.{frame.function}"
        return self.collective

    @property
    def key(self) -> tuple[object, ...]:
        """The key shared by threads at the same location."""
        call, newest = self.own, next(iter(self.frames), None)
        library = () if newest is None or newest.own else (newest.file, newest.function)
        return (None if call is None else (call.file, call.line), self.waits_in or library)


def parse(text: str) -> tuple[Thread, ...]:
    """Return the threads in the output of ``faulthandler`` in order; of a repeated thread only the last.

    Other lines are skipped. The frames have no kind and no label yet.
    """
    threads: dict[str, Thread] = {}
    frames: list[Frame] = []
    for line in text.splitlines():
        if (head := _THREAD.fullmatch(line)) is not None:
            frames = []
            threads.pop(head[2], None)
            threads[head[2]] = Thread(head[2], name=head[3] or "", current=head[1] != "Thread")
        elif threads and (call := _FRAME.fullmatch(line)) is not None:
            frames.append(Frame(_plain(call[1]), int(call[2]) if call[2].isdigit() else 0, _plain(call[3])))
            ident = next(reversed(threads))
            threads[ident] = dataclasses.replace(threads[ident], frames=tuple(frames))
    return tuple(threads.values())


def _plain(text: str) -> str:
    r"""Return an unescaped name: ``faulthandler`` writes non-ASCII characters as \xe9, \u4e2d."""
    return _ESCAPED.sub(lambda match: chr(int(match[1][1:], 16)), text)


class Names:
    """Classifies frames as cell, user's file, library or worker, and labels them as tracebacks do.

    ``payload`` is the job's payload.json, ``about`` the rank's description, ``sources`` lines by file and number.
    """

    def __init__(
        self, payload: Mapping[str, Any], about: Mapping[str, Any], sources: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._cells: Mapping[str, Mapping[str, Any]] = payload.get("sources") or {}
        #: A cell that the rank compiles itself has the notebook's line numbers.
        self._compiled = str(payload.get("filename") or "") if payload.get("kind") == "cell" else ""
        self._worker = _folder(about.get("worker"))
        self._code = _folder(about.get("code"))
        self._stdlib = _folder(about.get("stdlib"))
        self._directory = _folder(payload.get("working_directory"))
        self._sources = sources

    def thread(self, thread: Thread, *, main: bool) -> Thread:
        """Return the thread with named frames, without frames of this package below the user's code.

        Those are hooks around calls of torch and Horovod. The text of the dump (``RankStacks.text``) has them all.
        """
        frames: list[Frame] = []
        for frame in reversed(thread.frames):
            kind = self._kind(frame.file)
            if self._is_package(frame.file) and kind in ("worker", "library") and any(outer.own for outer in frames):
                continue
            starts = frame.file.startswith(("<frozen ", f"{self._stdlib}runpy.py")) or self._is_package(frame.file)
            if main and starts and all(outer.kind == "worker" for outer in frames):
                kind = "worker"  # callers of the user's code: this package, and Python's start of a program
            frames.append(self._named(frame, kind))
        return dataclasses.replace(thread, frames=tuple(reversed(frames)), main=main)

    def _is_package(self, file: str) -> bool:
        return bool(self._worker) and file.startswith(self._worker.removesuffix("worker/"))

    def _kind(self, file: str) -> str:
        if file in self._cells or _ASKED_CELL.fullmatch(file):
            return "cell"
        if self._worker and file.startswith(self._worker):
            return "worker"
        if self._code and file.startswith(self._code):
            return "user"
        if self._is_package(file):
            return "library"
        inside = "site-packages/" in file or "dist-packages/" in file or file.startswith("<")
        return "library" if inside or (self._stdlib and file.startswith(self._stdlib)) else "user"

    def _named(self, frame: Frame, kind: str) -> Frame:
        if kind == "cell":
            return self._in_cell(frame)
        source = self._sources.get(frame.file, {}).get(str(frame.line), "") if kind == "user" else ""
        return dataclasses.replace(frame, kind=kind, label=self._label(frame.file), source=source)

    def _in_cell(self, frame: Frame) -> Frame:
        cell = self._cells.get(frame.file, {})
        shift = int(cell.get("first_line") or 1) - 1
        compiled = frame.file == self._compiled
        lines = str(cell.get("text", "")).split("\n")
        at = frame.line - 1 - (shift if compiled else 0)
        source = redact.text(lines[at].strip()[:_LONGEST_LINE]) if frame.line and 0 <= at < len(lines) else ""
        request = _ASKED_CELL.fullmatch(frame.file)
        label = str(cell.get("label") or (f"{request[1][:1].upper()}{request[1][1:]}" if request else frame.file))
        line = frame.line + shift if frame.line and not compiled else frame.line
        count = _COUNT.search(label)
        number = int(count[1]) if count else None
        return dataclasses.replace(frame, kind="cell", label=label, line=line, source=source, cell=number)

    def _label(self, file: str) -> str:
        for marker in ("site-packages/", "dist-packages/"):
            if marker in file:
                return file.rpartition(marker)[2]
        roots = (self._code, self._stdlib, self._directory)
        root = next((root for root in roots if root and file.startswith(root)), "")
        return file[len(root) :] if root else os.path.basename(file) or file  # noqa: PTH119 - a file elsewhere


def _folder(path: object) -> str:
    return f"{path}/" if path else ""


def sources(
    folder: JobFolder, payload: Mapping[str, Any], texts: Sequence[tuple[str, Mapping[str, Any]]]
) -> dict[str, dict[str, str]]:
    """Return the lines of the user's files that occur in ``texts`` (with the descriptions of their ranks)."""
    excerpts: dict[str, dict[str, str]] = {}
    linecache.checkcache()
    for text, about in texts:
        names, code = Names(payload, about, {}), _folder(about.get("code"))
        frames = [frame for thread in parse(text) for frame in names.thread(thread, main=False).frames]
        for frame in frames:
            if frame.kind != "user" or frame.line < 1:
                continue
            # Modules that were sent are in the job's folder.
            path = folder.code / frame.file[len(code) :] if code and frame.file.startswith(code) else Path(frame.file)
            with contextlib.suppress(OSError, ValueError):
                if path.suffix != ".py" or not path.is_file() or path.stat().st_size > _LARGEST_SOURCE:
                    continue
                if line := linecache.getline(str(path), frame.line).strip():
                    excerpts.setdefault(frame.file, {})[str(frame.line)] = line[:_LONGEST_LINE]
    return excerpts
