"""Makes output safe for the user's terminal: only text and colours.

A line printed by a job, a name or an error may contain sequences that retitle the terminal, move its cursor, hide text
or inject commands. Only colours and font styles pass, and only to a terminal; everything else is escaped by
``core.humanize``.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, TextIO

from distdl_jupyter.core.humanize import STYLES, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

#: No length limit: a reader of a log may need any part of a line.
_NO_LIMIT = sys.maxsize // 8


def safe(text: str, *, colours: bool) -> str:
    """Return lines of text that are safe for a terminal."""
    if text.isprintable():
        return text
    return "\n".join(_safe_line(line, colours=colours) for line in text.split("\n"))


def _safe_line(line: str, *, colours: bool) -> str:
    if not colours or "\x1b[" not in line or "\r" in line or "\b" in line:
        return printable(line, _NO_LIMIT)
    parts = STYLES.split(line)
    safe_parts = [part if index % 2 else printable(part, _NO_LIMIT) for index, part in enumerate(parts)]
    # The colour of a line must not continue into the prompt.
    return "".join(safe_parts) + ("\x1b[0m" if len(parts) > 1 else "")


class Guarded:
    """A wrapper of a stream that writes only safe text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colours = stream.isatty()

    def write(self, text: str) -> int:
        """Write text."""
        self._stream.write(safe(text, colours=self._colours))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Escape everything that is printed in this context."""
    out: Any = Guarded(sys.stdout)
    err: Any = Guarded(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def escape_unencodable() -> None:
    """Allow text that cannot be encoded, such as lone surrogates, to be written."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
