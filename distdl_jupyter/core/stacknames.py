"""Whose code a call in a stack is, and what people call it: cells, the user's files, libraries, the worker itself.

Tracebacks of failed ranks are named by the ranks (``worker.failure``); stacks are named here, because a rank that is
stuck cannot name anything. Both say the same of the same code.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import redact
from distdl_jupyter.core.threads import Frame, Thread, parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distdl_jupyter.core.store import JobFolder

#: A cell that a rank which stays compiles itself: <in [7], 12>.
_ASKED_CELL = re.compile(r"<((?!frozen |string>|stdin>).+), \d+>")
#: The execution count in the label of a cell: "In [7]".
_COUNT = re.compile(r"\[(\d+)\]")
_LARGEST_SOURCE = 4_000_000
_LONGEST_LINE = 300


class Names:
    """Tells cells, the user's files, libraries and the worker apart, and calls them as tracebacks do.

    ``payload`` is the job's payload.json, ``about`` what a rank said of itself, ``sources`` lines by file and number.
    """

    def __init__(
        self, payload: Mapping[str, Any], about: Mapping[str, Any], sources: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._cells: Mapping[str, Mapping[str, Any]] = payload.get("sources") or {}
        #: The cell that the rank compiles itself counts its lines as the notebook does.
        self._compiled = str(payload.get("filename") or "") if payload.get("kind") == "cell" else ""
        self._worker = _folder(about.get("worker"))
        self._code = _folder(about.get("code"))
        self._stdlib = _folder(about.get("stdlib"))
        self._directory = _folder(payload.get("working_directory"))
        self._sources = sources

    def thread(self, thread: Thread, *, main: bool) -> Thread:
        """Return the thread with its frames named, without this package's that the user's code has led to.

        Those are hooks around calls of torch and Horovod. The text of the dump (``RankStacks.text``) has them all.
        """
        frames: list[Frame] = []
        for frame in reversed(thread.frames):
            kind = self._kind(frame.file)
            if self._is_package(frame.file) and kind in ("worker", "library") and any(one.own for one in frames):
                continue
            if main and all(one.kind == "worker" for one in frames) and self._starts(frame.file):
                kind = "worker"
            frames.append(self._named(frame, kind))
        return dataclasses.replace(thread, frames=tuple(reversed(frames)), main=main)

    def _starts(self, file: str) -> bool:
        """Say whether it is what leads to the user's code: this package, and Python's own start of a program."""
        return file.startswith(("<frozen ", f"{self._stdlib}runpy.py")) or self._is_package(file)

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
        asked = _ASKED_CELL.fullmatch(frame.file)
        label = str(cell.get("label") or (f"{asked[1][:1].upper()}{asked[1][1:]}" if asked else frame.file))
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
    """Return the lines of the user's own files that stand in ``texts`` (with what their ranks said of themselves)."""
    found: dict[str, dict[str, str]] = {}
    read: dict[str, list[str]] = {}
    for text, about in texts:
        names = Names(payload, about, {})
        for frame in _user_frames(names, text):
            if frame.file not in read:
                read[frame.file] = _lines(_here(folder, frame.file, about))
            lines = read[frame.file]
            if 0 < frame.line <= len(lines):
                found.setdefault(frame.file, {})[str(frame.line)] = lines[frame.line - 1].strip()[:_LONGEST_LINE]
    return found


def _user_frames(names: Names, text: str) -> Iterator[Frame]:
    for thread in parse(text):
        yield from (frame for frame in names.thread(thread, main=False).frames if frame.kind == "user")


def _here(folder: JobFolder, file: str, about: Mapping[str, Any]) -> Path:
    """Return where a rank's file is on this machine: modules that travelled lie in the job's own folder."""
    code = _folder(about.get("code"))
    return folder.code / file[len(code) :] if code and file.startswith(code) else Path(file)


def _lines(path: Path) -> list[str]:
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > _LARGEST_SOURCE:
            return []
        return path.read_text(encoding="utf-8", errors="replace").split("\n")
    except (OSError, ValueError):
        return []
