"""The mark of a job on a forked process, and its command line, as the operating system shows them.

``/proc/PID/environ`` and ``/proc/PID/cmdline`` show the memory that the process got at its exec, so a forked rank
would look like the template and nobody would find it. The template is therefore started with room for both: a filler
as its last variable and as its last argument. Forked processes write into that room, and only there: everything else
in that memory may be pointed to by C code.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

#: The filler variable. Its name is part of the room, so nothing of it is left in a process that has a mark.
NAME = "DISTDL_WARM_ROOM"
_FILLER = "." * 240
_ARGUMENT = "-" * 400


def variables() -> dict[str, str]:
    """Return the filler as the last variable of a template's environment."""
    return {NAME: _FILLER}


def argument() -> str:
    """Return the filler as the last argument of a template's command line."""
    return _ARGUMENT


class Room:
    """The two places in this process's memory. Raises LookupError where they cannot be found."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise LookupError("only Linux shows where a process keeps its environment")
        # proc_pid_stat(5): arg_start, arg_end, env_start, env_end are the fields 48 to 51, counted from 1.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        addresses = [int(field) for field in fields[45:49]]
        self._variable = _find(addresses[2], addresses[3], f"{NAME}={_FILLER}".encode())
        filler, length = _find(addresses[0], addresses[1], _ARGUMENT.encode())
        begin = addresses[0] + len(ctypes.string_at(addresses[0])) + 1
        self._arguments = (begin, filler + length - begin)

    def say(self, arguments: Sequence[str], mark: str = "") -> None:
        """Show ``arguments`` behind the interpreter's path, and ``mark`` ("DISTDL_JOB_ID=...") as a variable."""
        line = b"\0".join(word.encode(errors="surrogateescape") for word in arguments)
        # Blanks, because a row of closing zeros would be read as a row of empty arguments.
        _write(self._arguments, line, b" ")
        _write(self._variable, mark.encode(), b"\0")


def _find(start: int, end: int, text: bytes) -> tuple[int, int]:
    if not 0 < start < end:
        raise LookupError("the kernel does not report where a process keeps its environment")
    at = ctypes.string_at(start, end - start).find(text + b"\0")
    if at < 0:
        raise LookupError("the space reserved for a job's mark is missing")
    return start + at, len(text)


def _write(place: tuple[int, int], text: bytes, padding: bytes) -> None:
    address, length = place
    ctypes.memmove(address, text[:length].ljust(length, padding), length)
