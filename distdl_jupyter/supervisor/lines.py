"""From the bytes of one stream to log texts and reports: lines, redrawn lines, reports between them.

Pure: bytes in, items out. It does not know where bytes come from or where items go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distdl_jupyter.core.events import MAX_LOG_TEXT
from distdl_jupyter.worker import protocol

#: A line without an end is passed on in pieces beyond this many bytes.
MAX_LINE = 1024 * 1024


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


class LineSplitter:
    """Cuts one stream of a rank into items. ``nonce`` marks the reports ("" looks for none)."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._marker = protocol.marker(nonce) if nonce else b""
        self._tail = b""
        self._end = 0  # bytes up to behind the last whole line
        self._open = 0  # redraws already passed on for the line that is not ended
        self._shown = b""

    def feed(self, data: bytes) -> list[Item]:
        """Take the next bytes and return what is complete."""
        data = self._tail + data
        end = data.rfind(b"\n") + 1
        self._tail = data[end:]
        items = self._lines(data[:end]) if end else []
        if len(self._tail) > MAX_LINE and self._marker not in self._tail[-len(self._marker) - MAX_LINE :]:
            items.extend(self._lines(self._tail + b"\n"))
            self._tail = b""
        return items

    def pending(self) -> list[Item]:
        """Return the line that has not ended yet as a redrawn one, when it changed since the last call."""
        if not self._tail or self._tail == self._shown or (self._marker and self._marker[:1] in self._tail):
            return []
        self._shown = self._tail
        self._open = max(1, self._tail.count(b"\r"))
        return [Text(_last_drawn(self._tail), redraws=self._open, end=self._end)]

    def finish(self) -> list[Item]:
        """Return what is left when the stream has ended."""
        left, self._tail = self._tail, b""
        return self._lines(left + b"\n") if left else []

    def _lines(self, data: bytes) -> list[Item]:
        items: list[Item] = []
        plain: list[str] = []
        size = 0
        for raw in data[:-1].split(b"\n"):
            reports, line = self._take_reports(raw)
            redrawn = line is not None and (self._open or b"\r" in line.rstrip(b"\r"))
            if reports or redrawn:
                self._flush(items, plain)
                size = 0
            if line is not None and not redrawn:
                text = line.rstrip(b"\r").decode("utf-8", errors="replace")
                if plain and size + len(text) > MAX_LOG_TEXT:
                    self._flush(items, plain)
                    size = 0
                plain.append(text)
                size += len(text) + 1
            if reports:
                # Text before a report stands on the report's own line: both are read when that line is.
                self._flush(items, plain)
            self._end += len(raw) + 1
            if redrawn:
                items.append(self._redrawn(line or b""))
            items.extend(Report(report, self._end) for report in reports)
        self._flush(items, plain)
        return items

    def _flush(self, items: list[Item], plain: list[str]) -> None:
        if plain:
            items.append(Text("\n".join(plain), end=self._end))
            plain.clear()

    def _take_reports(self, raw: bytes) -> tuple[list[dict[str, Any]], bytes | None]:
        if not self._marker or self._marker not in raw:
            return [], raw
        text, report = protocol.split(raw, self._nonce)
        if report is None:
            return [], raw
        return [report], text or None

    def _redrawn(self, line: bytes) -> Text:
        redraws = max(1, line.count(b"\r"), self._open)
        self._open, self._shown = 0, b""
        return Text(_last_drawn(line), redraws=redraws, closed=True, end=self._end)


def _last_drawn(line: bytes) -> str:
    drawn = [part for part in line.split(b"\r") if part.strip()]
    return (drawn[-1] if drawn else b"").decode("utf-8", errors="replace")
