"""Progress of a long step on a terminal: one line that is rewritten, or few whole lines where nobody can rewrite."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO


class ConsoleProgress:
    """A progress callback: call it with a short text; call ``end()`` before printing anything else.

    Texts that share what stands before their first colon belong to one step. On a terminal each text replaces the
    one before; elsewhere a step's texts are printed at most once in ``every_seconds``, so a log stays short.
    """

    def __init__(self, stream: TextIO | None = None, every_seconds: float = 30.0) -> None:
        self._stream = stream or sys.stderr
        self._every_seconds = every_seconds
        self._rewrites = self._stream.isatty()
        self._step = ""
        self._printed_at = 0.0

    def __call__(self, text: str) -> None:
        """Show ``text``."""
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{text[:width]}")
            self._stream.flush()
        elif self._is_due(text):
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def end(self) -> None:
        """Clear the rewritten line."""
        if self._rewrites:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _is_due(self, text: str) -> bool:
        step, now = text.partition(":")[0], time.monotonic()
        due = step != self._step or now - self._printed_at >= self._every_seconds
        if due:
            self._step, self._printed_at = step, now
        return due
