r"""Sends the reports of a rank as marked lines on its standard output, and decodes these lines.

A channel writes to a duplicate of descriptor 1, so reports still arrive when training code redirects that descriptor.
It is safe to use from several threads and from a forked child.

A line is ``\x1e<nonce> <compact strict JSON>\n``. Each job has a random nonce, so printed text cannot be mistaken for a
report. Text without a newline may precede the marker on the same line. Control characters in the JSON are escaped.
"""

from __future__ import annotations

import binascii
import fcntl
import functools
import json
import os
import select
import threading
import time
from typing import Any

#: Maximum characters of a picture in one report. The other fields have about 150.
_MAX_PART_CHARS = max(256, select.PIPE_BUF - 256)
#: Lowest number of our descriptors. Code that closes "all" descriptors usually closes only those with low numbers.
_MIN_FD = 100


def move_to_high_fd(fd: int) -> int:
    """Move a descriptor to a high number and return the number. If none is free, return the descriptor unchanged."""
    try:
        new_fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _MIN_FD)
    except OSError:
        return fd
    os.close(fd)
    return new_fd


class Channel:
    """Sends the reports of one rank. Write errors are ignored: if there is no reader, the lifeline ends the rank."""

    def __init__(self, fd: int, nonce: str, rank: int) -> None:
        self.rank = rank
        self._fd = fd
        self._nonce = nonce
        self._metric_start = make_marker(nonce).decode() + '{"type":"metric","t":'
        self.lock = threading.RLock()

    def send(self, type_: str, /, *, t: float | None = None, **fields: Any) -> None:
        """Write one report with the rank and the time ``t`` in epoch seconds (default: now). Numbers must be finite."""
        t = round(time.time() if t is None else t, 4)
        self._write(encode(self._nonce, {"type": type_, "t": t, "rank": self.rank, **fields}))

    def add_metric(
        self, step: float, values: dict[str, float | str], t: float | None = None, *, replace: bool = False
    ) -> None:
        """Send the metric values of one step, in several reports if they exceed one atomic write to a pipe.

        Values are finite numbers or the strings nan, inf and -inf. With ``replace`` they replace the values reported
        for this and later steps.
        """
        t = time.time() if t is None else t
        # The JSON encoder is several times slower, and this runs in the training loop.
        pairs = ",".join(
            [_quote(name) + (f'"{value}"' if isinstance(value, str) else repr(value)) for name, value in values.items()]
        )
        suffix = ',"replace":true' if replace else ""
        line = f'{self._metric_start}{t:.4f},"rank":{self.rank},"step":{step!r},"values":{{{pairs}}}{suffix}}}\n'
        if len(content := line.encode()) <= select.PIPE_BUF or len(values) == 1:
            self._write(content)
        else:
            items, middle = list(values.items()), len(values) // 2
            for part in (items[:middle], items[middle:]):
                self.add_metric(step, dict(part), t, replace=replace)

    def send_picture(self, data: bytes) -> None:
        """Send a picture in parts that each fit one atomic write to a pipe."""
        text = binascii.b2a_base64(data, newline=False).decode()
        with self.lock:
            for offset in range(0, len(text), _MAX_PART_CHARS):
                self.send("picture", begin=offset, of=len(text), data=text[offset : offset + _MAX_PART_CHARS])

    def _write(self, line: bytes) -> None:
        with self.lock:
            while line:
                try:
                    line = line[os.write(self._fd, line) :]
                except BlockingIOError:
                    # Training code can make the shared pipe non-blocking.
                    select.select([], [self._fd], [])
                except OSError:
                    return


@functools.lru_cache(maxsize=4096)
def _quote(name: str) -> str:
    return json.dumps(name) + ":"


_channel: Channel | None = None
_is_initialized = False


def open_channel(nonce: str, rank: int) -> None:
    """Open this process's channel on its current standard output; without a nonce, it has none."""
    global _channel, _is_initialized
    _is_initialized = True
    _channel = Channel(move_to_high_fd(os.dup(1)), nonce, rank) if nonce else None


def get_channel() -> Channel | None:
    """Return this process's channel, or None if it is not a rank of a job.

    A program started by a rank reads the rank from its environment and reports on its own standard output.
    """
    if not _is_initialized:
        rank = os.environ.get("DISTDL_RANK", "")
        open_channel(os.environ.get("DISTDL_NONCE", "") * rank.isdecimal(), int(rank) if rank.isdecimal() else 0)
    return _channel


def send(type_: str, /, **fields: Any) -> None:
    """Send a report from this process. Does nothing outside a job."""
    if (channel := get_channel()) is not None:
        channel.send(type_, **fields)


def notify(level: str, text: str, code: str = "") -> None:
    """Send a notice for the user; ``level`` is info, warning or error. Does nothing outside a job."""
    send("note", level=level, text=text, code=code)


def _replace_lock() -> None:
    """Replace the lock in a forked child, because another thread may have held it during the fork."""
    if _channel is not None:
        _channel.lock = threading.RLock()


os.register_at_fork(after_in_child=_replace_lock)


Report = dict[str, Any]

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
#: ``int`` raises ValueError for NaN and Infinity, which are not valid strict JSON.
_loads = json.JSONDecoder(parse_constant=int).decode


def make_marker(nonce: str) -> bytes:
    """Return the bytes with which each report of the job begins."""
    return b"\x1e" + nonce.encode() + b" "


def encode(nonce: str, report: Report) -> bytes:
    """Return the report as one marked line. Raises ValueError for NaN and infinities, and TypeError for other types."""
    return make_marker(nonce) + _dumps(report).encode() + b"\n"


def split_line(line: bytes, nonce: str) -> tuple[bytes, Report | None]:
    """Split a line into the text before the report and the report.

    If the line contains no report, return the line and None. A marker with another nonce is plain text, and so is one
    that is not followed by a JSON object with a "type".
    """
    mark = make_marker(nonce)
    start = line.find(mark)
    while start >= 0:
        text = line[start + len(mark) :]
        try:
            report = _loads(text.decode()) if text.startswith(b"{") else None
            if report is not None and rb"\ud" in text.lower():
                # Replace lone surrogates, which JSON allows but UTF-8 does not, by question marks.
                report = _loads(json.dumps(report, ensure_ascii=False).encode(errors="replace").decode())
        except (ValueError, RecursionError):
            report = None
        if isinstance(report, dict) and isinstance(report.get("type"), str):
            return line[:start], report
        start = line.find(mark, start + 1)
    return line, None
