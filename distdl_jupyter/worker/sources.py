"""The notebook's cells by the file names that code objects carry, so that a frame can be told as a person sees it.

Code that was captured from a notebook names files that do not exist in a rank. Their text is put into ``linecache``, so
that every traceback and warning that Python itself prints shows the cell's lines.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """One cell: what to call it, its execution count, and what to add to a line number of its code objects."""

    label: str
    number: int | None
    shift: int


class Sources:
    """All cells of a job by file name."""

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}

    def add_all(self, sources: Mapping[str, Mapping[str, Any]]) -> None:
        """Take in the payload's "sources"."""
        for filename, entry in sources.items():
            first = int(entry.get("first_line", 1))
            self._cells[filename] = Cell(str(entry.get("label", filename)), entry.get("cell"), first - 1)
            show(filename, str(entry.get("text", "")))

    def add_shifted(self, filename: str, text: str) -> int:
        """Take in the cell that this rank compiles itself and return how many lines its code is to be moved down.

        Its line numbers then are the notebook's own, in every traceback and warning. A cell that ``add_all`` does not
        know is called by its file name.
        """
        cell = self._cells.get(filename, Cell(filename, None, 0))
        self._cells[filename] = cell._replace(shift=0)
        show(filename, "\n" * cell.shift + text)
        return cell.shift

    def cell(self, filename: str) -> Cell | None:
        """Return the cell whose code objects carry this file name, None for a real file."""
        return self._cells.get(filename)

    def lines(self, filename: str, module_globals: dict[str, Any] | None = None) -> list[str]:
        """Return the lines of a cell or file, counted as its code objects count; empty when it cannot be read."""
        return linecache.getlines(filename, module_globals)


def show(filename: str, text: str) -> None:
    """Let ``linecache`` answer for a file that does not exist."""
    # str.splitlines would also cut at form feeds, which Python does not count. Without a modification time
    # linecache.checkcache() keeps the entry.
    lines = [f"{line}\n" for line in text.removesuffix("\n").split("\n")]
    linecache.cache[filename] = (len(text), None, lines, filename)
