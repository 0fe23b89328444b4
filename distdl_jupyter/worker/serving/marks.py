"""Marks in a rank's own output: between a begin and an end mark stands what one cell has printed.

They are reports on both streams, so they keep their place among the lines, whatever descriptors 1 and 2 point to.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

from distdl_jupyter.worker.channel import Channel
from distdl_jupyter.worker.identity import Identity


class Marks:
    """Writes the marks of one rank; to be made before any code of the user runs."""

    def __init__(self, identity: Identity) -> None:
        self._channels = {
            name: Channel(os.dup(fd), identity.nonce, identity.rank) for name, fd in (("out", 1), ("err", 2))
        }
        # Text that C code has printed may still wait in C's own buffers.
        self._c = ctypes.CDLL(None)

    def begin(self, cell: int, label: str) -> None:
        """Mark that a cell begins, with what people call it."""
        self._write(cell, label, ended=False)

    def end(self, cell: int) -> None:
        """Mark that all a cell has printed stands before this."""
        self._write(cell, "", ended=True)

    def _write(self, cell: int, label: str, *, ended: bool) -> None:
        self._flush()
        for name, channel in self._channels.items():
            channel.send("mark", stream=name, cell=cell, label=label, ended=ended)

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._c.fflush(None)
