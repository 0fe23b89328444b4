"""What a stream is cut into: log texts and reports, and how many small texts become few.

Pure. Where a line begins and what is a report in it is decided by ``supervisor.lines``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.events import MAX_LOG_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Reports that tell nothing of the lines around them.
_APART = ("metric", "progress")


@dataclass(frozen=True, slots=True)
class Text:
    """Whole lines without the last newline; with ``redraws`` one line that was drawn over (see core.events).

    ``end`` counts the stream's bytes up to behind the last whole line.
    """

    text: str
    redraws: int = 0
    closed: bool = False
    end: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank reported; ``end`` counts the stream's bytes up to behind the report."""

    data: dict[str, Any]
    end: int = 0


Item = Text | Report


class Gathered:
    """Items on their way out: plain lines are gathered to texts of up to ``MAX_LOG_TEXT`` bytes.

    Metrics and progress go behind the text that came with them unless everything is to be ``in_order``.
    """

    def __init__(self, *, in_order: bool) -> None:
        self._in_order = in_order
        self._items: list[Item] = []
        self._later: list[Item] = []
        self._lines: list[bytes] = []
        self._size = self._end = 0

    def plain(self, lines: bytes, end: int) -> None:
        """Take whole lines with their ends; the stream's bytes up to behind them are ``end``."""
        begin = end - len(lines)
        for start, stop in _parts(lines):
            if self._size + stop - start > MAX_LOG_TEXT:
                self._flush_lines()
            self._lines.append(lines[start:stop])
            self._size, self._end = self._size + stop - start, begin + stop

    def text(self, text: Text) -> None:
        """Take a line that was drawn over."""
        self._flush()
        self._items.append(text)

    def report(self, report: Report) -> None:
        """Take a report."""
        self._later.append(report)
        if self._in_order or report.data["type"] not in _APART:
            self._flush()

    def items(self) -> list[Item]:
        """Return all of them in order."""
        self._flush()
        return self._items

    def _flush(self) -> None:
        self._flush_lines()
        self._items += self._later
        self._later = []

    def _flush_lines(self) -> None:
        if self._lines:
            lines = self._lines[0] if len(self._lines) == 1 else b"".join(self._lines)
            if lines := without_cursor_codes(lines):
                self._items.append(Text(decoded(lines[:-1]), end=self._end))
            self._lines, self._size = [], 0


def _parts(lines: bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end of runs of whole lines up to ``MAX_LOG_TEXT`` bytes; a longer line stands alone."""
    begin = 0
    while begin < len(lines):
        most = begin + MAX_LOG_TEXT
        stop = len(lines) if most >= len(lines) else lines.rfind(b"\n", begin, most) + 1
        stop = stop if stop > begin else lines.index(b"\n", most) + 1
        yield begin, stop
        begin = stop


#: What moves a terminal's cursor, erases, or sets a mode (ECMA-48, DEC): the means of a live display. What gives text
#: its look (SGR, which ends in m) is none of it.
_CURSOR = rb"\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|[78DEM])"
_CURSOR_CODE, _CURSOR_LINES = re.compile(_CURSOR), re.compile(rb"^(?:%s)+\r?\n" % _CURSOR, re.MULTILINE)
_HALF_CODE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*)?\Z")


def without_cursor_codes(text: bytes) -> bytes:
    """Return the text without what means nothing in a log; a whole line of nothing else is none."""
    return _CURSOR_CODE.sub(b"", _CURSOR_LINES.sub(b"", text)) if b"\x1b" in text else text


def without_half_code(text: bytes) -> bytes:
    """Return what has come of a line without a control sequence that has not come whole."""
    return _HALF_CODE.sub(b"", text)


def decoded(text: bytes) -> str:
    """Return the text; what is no UTF-8 is shown as such."""
    return text.decode("utf-8", errors="replace")
