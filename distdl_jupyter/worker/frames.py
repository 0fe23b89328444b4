"""Stack frames as users know them: whose code each is, and its name and line in the notebook."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from distdl_jupyter.worker import failing_statement
from distdl_jupyter.worker.failing_statement import View
from distdl_jupyter.worker.sources import Cell, CellSources

#: The folder of the worker's own modules.
WORKER = f"{Path(__file__).parent}/"
_AROUND = 2
_LONGEST_LINE = 300
_FIRST_FRAMES, _LAST_FRAMES = 20, 60


class ErrorFrame(NamedTuple):
    """One frame of a traceback; ``line`` is counted as in its code object, ``cell`` is None for a real file."""

    file: str
    line: int
    function: str
    kind: str
    cell: Cell | None
    variables: dict[str, Any]
    globals: dict[str, Any]

    @property
    def shown_line(self) -> int:
        """The line number in the notebook."""
        return self.line + (self.cell.shift if self.cell else 0)


class Describer:
    """Determines whose code a frame is."""

    def __init__(self, sources: CellSources, code: Path | None) -> None:
        self.sources = sources
        self.code = f"{code}/" if code else ""
        paths = sysconfig.get_paths()
        #: Cache of ``kind`` by file, for ``position``.
        self._kinds: dict[str, str] = {}
        self._library = tuple({f"{paths[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})

    def kind(self, file: str) -> str:
        """Return whose code a file is: cell, worker, user or library."""
        if self.sources.cell(file) is not None:
            return "cell"
        if file.startswith(WORKER):
            return "worker"
        if self.code and file.startswith(self.code):
            return "user"
        inside = file.startswith(("<", *self._library)) or "site-packages" in file or "dist-packages" in file
        return "library" if inside else "user"

    def label(self, file: str) -> str:
        """Return a file's display name: the cell, or the path relative to the folder from which it was imported."""
        cell = self.sources.cell(file)
        if cell is not None:
            return cell.label
        roots = [self.code, *sorted(self._library, key=len, reverse=True), f"{Path.cwd()}/"]
        root = next((root for root in roots if root and file.startswith(root)), "")
        return file[len(root) :] if root else Path(file).name

    def frames(self, trace: TracebackType | None) -> list[ErrorFrame]:
        """Return the frames of a traceback, outermost first, without the middle of a very long one."""
        frames: list[ErrorFrame] = []
        while trace is not None:
            code, file = trace.tb_frame.f_code, trace.tb_frame.f_code.co_filename
            kind = self.kind(file)
            # Python's own machinery between the worker and a script belongs to the worker.
            kind = "worker" if kind == "library" and all(f.kind == "worker" for f in frames) else kind
            frames.append(ErrorFrame(file, trace.tb_lineno or code.co_firstlineno, code.co_qualname, kind,
                               self.sources.cell(file), trace.tb_frame.f_locals, trace.tb_frame.f_globals))  # fmt: skip
            trace = trace.tb_next
        return (
            frames if len(frames) <= _FIRST_FRAMES + _LAST_FRAMES else frames[:_FIRST_FRAMES] + frames[-_LAST_FRAMES:]
        )

    def line(self) -> tuple[str, int]:
        """Return label and line of the innermost frame of a cell or the user's files."""
        return self.shown(*self.position())

    def position(self) -> tuple[str, int]:
        """Return the same as file name and line of the code object; cheap, because it is called in each step."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to walk the stack
        kinds = self._kinds
        while frame is not None:
            file = frame.f_code.co_filename
            if (kind := kinds.get(file)) is None:
                kind = kinds[file] = self.kind(file)
            if kind in ("cell", "user"):
                return file, frame.f_lineno
            frame = frame.f_back
        return "", 0

    def shown(self, file: str, line: int) -> tuple[str, int]:
        """Return label and line of a position."""
        cell = self.sources.cell(file)
        return self.label(file) if file else "", line + (cell.shift if cell else 0)

    def source(self, frame: ErrorFrame) -> list[list[Any]]:
        """Return the lines around the failing one as [number, text], numbered as in the notebook."""
        lines = self.sources.lines(frame.file, frame.globals)
        first, last = max(1, frame.line - _AROUND), min(len(lines), frame.line + _AROUND)
        shift = frame.shown_line - frame.line
        return [[n + shift, lines[n - 1].rstrip("\n")[:_LONGEST_LINE]] for n in range(first, last + 1)]

    def view(self, frame: ErrorFrame) -> View:
        """Return the failing statement of a frame with its variables."""
        lines = self.sources.lines(frame.file, frame.globals)
        return failing_statement.view(lines, frame.line, frame.variables, frame.globals)
