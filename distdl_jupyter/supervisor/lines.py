"""From the bytes of one stream to log texts and reports: lines, redrawn lines, reports between them.

Pure: bytes in, items out. It does not know where bytes come from or where items go. Lines without a report and without
a carriage return are never looked at one by one, so that a flood of them costs a search and a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdl_jupyter.supervisor import shapes
from distdl_jupyter.supervisor.items import Gathered, Report, Text, decoded, without_cursor_codes, without_half_code
from distdl_jupyter.worker import protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distdl_jupyter.supervisor.items import Item

#: A line without an end is passed on in pieces beyond this many bytes; what stands behind a marker may be longer.
MAX_LINE, MAX_REPORT = 1024 * 1024, 16 * 1024 * 1024
#: How tqdm goes back to the line of the first bar from that of the second one.
_UP = b"\x1b[A"
#: Bytes that are shown of a line while it has no end.
_SHOWN = 8 * 1024


class LineSplitter:
    """Cuts one stream of a rank into items. ``nonce`` marks the reports ("" looks for none).

    Where a reader may have to go on behind any item, all are ``in_order``; else text with metrics in it stays together.
    ``safe_end`` says up to where a line that is too long may be cut without cutting a secret in two.
    """

    def __init__(self, nonce: str, *, in_order: bool = True, safe_end: Callable[[str], int] | None = None) -> None:
        self._safe_end = safe_end
        self._in_order = in_order
        self._nonce = nonce
        self._marker = protocol.marker(nonce) if nonce else b""
        self._end = 0  # bytes up to behind the last whole line
        self._tail: list[bytes] = []  # what came of the line that has not ended
        self._size = 0  # bytes of the tail
        self._limit = MAX_LINE  # size at which the tail is looked at
        self._before = 0  # bytes of that line that were drawn over and forgotten
        self._before_redraws = 0
        self._open = 0  # redraws already passed on for that line
        self._shown = b""
        self._new = False  # whether something of it came since it was shown
        self._just_begun = False  # whether the line before ended since that was asked

    def feed(self, data: bytes) -> list[Item]:
        """Take the next bytes and return what is complete."""
        self._new = True
        if b"\n" in data:
            data = self._joined_where_drawn_below(data)
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._keep(data)
            return self._relieve() if self._size > self._limit else []
        self._just_begun = True
        block = b"".join((*self._tail, data[:cut]))
        self._forget_tail()
        self._keep(data[cut:])
        return self._lines(block)

    def _joined_where_drawn_below(self, data: bytes) -> bytes:
        """Return the bytes with a carriage return for a newline that only leads back to a bar below another one."""
        before = self._whole_tail()[-len(_UP) :]
        if b"\x1b" not in data and b"\x1b" not in before:
            return data
        return (before + data).replace(_UP + b"\n", _UP + b"\r")[len(before) :]

    def pending(self) -> list[Item]:
        """Return the line that has not ended yet as a redrawn one, when it changed since the last call.

        One that began since then is left alone unless it was drawn over: in a flood the next bytes end it.
        """
        tail = self._whole_tail()
        begun, self._just_begun = self._just_begun, False
        if not self._new or not tail or (begun and b"\r" not in tail):
            return []
        self._new = False
        drawn = _cut(_last_drawn(without_cursor_codes(without_half_code(tail)))[:_SHOWN])
        if not drawn or drawn == self._shown or (self._marker and self._marker[:1] in tail):
            return []
        self._shown = drawn
        self._open = max(1, self._before_redraws + tail.count(b"\r"))
        return [Text(decoded(drawn), redraws=self._open, end=self._end)]

    def finish(self) -> list[Item]:
        """Return what is left when the stream has ended."""
        if not self._size:
            return []
        left = self._whole_tail()
        self._forget_tail()
        return self._lines(left + b"\n")

    # the line that has not ended ------------------------------------------------------------------

    def _keep(self, data: bytes) -> None:
        if data:
            self._tail.append(data)
            self._size += len(data)

    def _forget_tail(self) -> None:
        self._tail, self._size, self._limit = [], 0, MAX_LINE

    def _whole_tail(self) -> bytes:
        if len(self._tail) > 1:
            self._tail = [b"".join(self._tail)]
        return self._tail[0] if self._tail else b""

    def _relieve(self) -> list[Item]:
        """Pass on, or forget where it was drawn over, what has become too long to be kept."""
        tail = self._whole_tail()
        stop = self._text_before_report(tail)
        drawn = _last_drawn_at(tail[:stop])[0]
        items: list[Item] = []
        if drawn:
            self._before += drawn
            self._before_redraws += tail.count(b"\r", 0, drawn)
            tail = tail[drawn:]
        elif stop > MAX_LINE // 2:
            items = self._piece(tail[:stop])
            tail = tail[stop:]
        self._forget_tail()
        self._keep(tail)
        self._limit = self._size + MAX_LINE
        return items

    def _text_before_report(self, tail: bytes) -> int:
        """Return how many bytes of the tail are text for certain, and no half of a character at their end."""
        mark = tail.find(self._marker) if self._marker else -1
        if mark >= 0 and len(tail) - mark <= MAX_REPORT:
            return mark
        half = tail.rfind(b"\x1e", len(tail) - len(self._marker)) if self._marker else -1
        stop = half if half >= 0 else len(_cut(tail))
        if self._safe_end is None or not MAX_LINE // 2 < stop < MAX_REPORT:
            return stop
        # One character a byte, so that places are those of the bytes.
        return len(_cut(tail[: self._safe_end(tail[:stop].decode("latin-1"))]))

    def _piece(self, text: bytes) -> list[Item]:
        """Return a part of a line that is too long, as a line of its own."""
        out = Gathered(in_order=self._in_order)
        self._line(text, len(text), out)
        return out.items()

    # whole lines ----------------------------------------------------------------------------------

    def _lines(self, block: bytes) -> list[Item]:
        out = Gathered(in_order=self._in_order)
        begin = 0
        for start, stop in self._special(block):
            self._plain(block, begin, start, out)
            self._line(block[start : stop - 1], stop - start, out)
            begin = stop
        self._plain(block, begin, len(block), out)
        return out.items()

    def _special(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Yield begin and end of every line that has a report, was drawn over or was already shown."""
        if self._open or self._before:
            yield 0, (behind := block.index(b"\n") + 1)
        else:
            behind = 0
        mark, drawn = self._find_mark(block, behind), self._find_drawn(block, behind)
        while (at := min(mark, drawn)) < len(block):
            stop = block.index(b"\n", at) + 1
            yield block.rfind(b"\n", behind, at) + 1 or behind, stop
            behind = stop
            mark = self._find_mark(block, stop) if mark < stop else mark
            drawn = self._find_drawn(block, stop) if drawn < stop else drawn

    def _find_mark(self, block: bytes, begin: int) -> int:
        at = block.find(self._marker, begin) if self._marker else -1
        return at if at >= 0 else len(block)

    def _find_drawn(self, block: bytes, begin: int) -> int:
        at = block.find(b"\r", begin)
        return at if at >= 0 else len(block)

    def _plain(self, block: bytes, begin: int, stop: int, out: Gathered) -> None:
        if begin < stop:
            self._end += stop - begin
            out.plain(block[begin:stop], self._end)

    def _line(self, raw: bytes, length: int, out: Gathered) -> None:
        """Take one line without its end; ``length`` counts its bytes in the stream."""
        report, line = self._take_report(raw)
        length += self._before
        if line is not None and (self._open or self._before or b"\r" in line.rstrip(b"\r")):
            seen = without_cursor_codes(line)
            if self._open or seen is line or _last_drawn(seen):
                out.text(self._redrawn(seen, self._end + length))
        elif line is not None:
            # Text before a report stands on the report's own line: both are read when that line is.
            out.plain(line.rstrip(b"\r") + b"\n", self._end + (0 if report else length))
        self._end += length
        self._before = self._before_redraws = 0
        if report is not None:
            out.report(Report(report, self._end))

    def _take_report(self, raw: bytes) -> tuple[dict[str, Any] | None, bytes | None]:
        if not self._marker or self._marker not in raw:
            return None, raw
        text, report = protocol.split(raw, self._nonce)
        return (None, raw) if report is None or not shapes.is_proper(report) else (report, text or None)

    def _redrawn(self, line: bytes, end: int) -> Text:
        redraws = max(1, self._before_redraws + line.count(b"\r"), self._open)
        self._open, self._shown = 0, b""
        return Text(decoded(_last_drawn(line)), redraws=redraws, closed=True, end=end)


def _last_drawn(line: bytes) -> bytes:
    begin, stop = _last_drawn_at(line)
    return line[begin:stop]


def _last_drawn_at(line: bytes) -> tuple[int, int]:
    """Return begin and end of what stands between carriage returns, the last of it that is not blank."""
    inked = len(line.rstrip(b"\r \t\v\f"))
    stop = line.find(b"\r", inked)
    return line.rfind(b"\r", 0, inked) + 1, (len(line) if stop < 0 else stop) if inked else 0


def _cut(text: bytes) -> bytes:
    """Return the bytes without a last character that is not whole (UTF-8 takes up to four bytes for one)."""
    for back in range(1, min(4, len(text) + 1)):
        byte = text[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-back] if length > back else text
        if byte < 0x80:
            break
    return text
