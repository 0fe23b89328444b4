"""What may reach the user's terminal: text and colours.

A line that a job printed, a name or an error may hold sequences that retitle the terminal, move its cursor, hide text
or type commands into it. Of these only colours and font styles pass, and only where a terminal shows them; all else is
shown as ``core.printable`` shows it everywhere.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, TextIO

from distdl_jupyter.core.printable import STYLES, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Nothing is cut: a reader of a log may need any part of a line.
_ENDLESS = sys.maxsize // 8


def safe(text: str, *, colours: bool) -> str:
    """Return lines of text as a terminal may show them."""
    if text.isprintable():
        return text
    return "\n".join(_line(line, colours=colours) for line in text.split("\n"))


def _line(line: str, *, colours: bool) -> str:
    if not colours or "\x1b[" not in line or "\r" in line or "\b" in line:
        return printable(line, _ENDLESS)
    parts = STYLES.split(line)
    shown = [part if number % 2 else printable(part, _ENDLESS) for number, part in enumerate(parts)]
    # What a line has coloured must not colour the prompt behind it.
    return "".join(shown) + ("\x1b[0m" if len(parts) > 1 else "")


class Guarded:
    """A stream that writes only what is safe; everything else is the stream's own."""

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
    """Let everything that is printed inside be safe."""
    out: Any = Guarded(sys.stdout)
    err: Any = Guarded(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def as_it_is() -> None:
    """Let text that has no encoding, as half a surrogate pair, be written all the same."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
