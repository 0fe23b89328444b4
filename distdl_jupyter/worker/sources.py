"""Stores the text of the notebook's cells by file name, so that tracebacks show the lines of the notebook.

Code captured from a notebook refers to files that do not exist in a rank. The text of these cells is added to
``linecache``, where Python looks up the lines for tracebacks and warnings.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """A cell's label, its execution count, and the offset to add to line numbers in its code objects."""

    label: str
    number: int | None
    shift: int


class CellSources:
    """All cells of a job by file name."""

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}

    def add_all(self, sources: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the cells in the "sources" of a payload."""
        for filename, entry in sources.items():
            shift = int(entry.get("first_line", 1)) - 1
            self._cells[filename] = Cell(str(entry.get("label", filename)), entry.get("cell"), shift)
            add_to_linecache(filename, str(entry.get("text", "")))

    def add_shifted(self, filename: str, text: str) -> int:
        """Add a cell that this rank is about to compile, and return the number of lines by which to shift its code.

        With this shift, line numbers in tracebacks and warnings are those of the notebook. A cell that ``add_all`` has
        not added is labeled with its file name.
        """
        cell = self._cells.get(filename, Cell(filename, None, 0))
        self._cells[filename] = cell._replace(shift=0)
        add_to_linecache(filename, "\n" * cell.shift + text)
        return cell.shift

    def get(self, filename: str) -> Cell | None:
        """Return the cell whose code objects have this file name, or None for a real file."""
        return self._cells.get(filename)


def add_to_linecache(filename: str, text: str) -> None:
    """Add a file that does not exist to ``linecache``."""
    # str.splitlines would also split at form feeds, which do not end a line in Python. linecache.checkcache() does not
    # remove an entry without a modification time.
    lines = [f"{line}\n" for line in text.removesuffix("\n").split("\n")]
    linecache.cache[filename] = (len(text), None, lines, filename)


#: Recursion limit for analyzing code. Python compiles about 3,000 levels of nested code.
_MIN_RECURSION_LIMIT = 20_000

_lock = threading.Lock()
#: Number of active ``deep_recursion`` blocks, and the original limit, which the last of them restores.
_active_count = _original_limit = 0


@contextlib.contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise the recursion limit of all threads, so that any code that Python compiles can be analyzed."""
    global _active_count, _original_limit
    with _lock:
        if not _active_count:
            _original_limit = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_original_limit, _MIN_RECURSION_LIMIT))
        _active_count += 1
    try:
        yield
    finally:
        with _lock:
            _active_count -= 1
            if not _active_count:
                sys.setrecursionlimit(_original_limit)
