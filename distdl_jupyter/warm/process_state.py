"""The state that a forked process inherits from its template: limits and namespaces, command line and job mark.

``/proc/PID/environ`` and ``/proc/PID/cmdline`` show the memory from the time of exec, so a forked rank would look like
the template and could not be found by its job's mark. The template is therefore started with a filler as its last
variable and last argument. Forked processes overwrite only these fillers, because C code may have pointers to the rest
of that memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: The filler variable. Its name is overwritten too, so marked processes no longer have it.
FILLER = "DISTDL_WARM_ROOM"
#: The last variable of a template's environment, and the last argument of its command line.
FILLER_VARIABLE, FILLER_ARGUMENT = {FILLER: "." * 240}, "-" * 400
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_STATUS = ("Umask", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
_LIMITS = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))


def current() -> dict[str, Any]:
    """Return the inherited state of this process besides its environment, as JSON data with keys that users know.

    A cold job inherits it from its submitter and a warm job from the template, so both must be equal.
    """
    state: dict[str, Any] = {
        "the user": [os.getuid(), os.geteuid(), os.getgid()],
        "the limits (ulimit)": {name: list(resource.getrlimit(getattr(resource, name))) for name in _LIMITS},
    }
    if sys.platform == "linux":
        lines = (line.partition(":") for line in _text("status").splitlines())
        state["the allowed CPUs (affinity)"] = sorted(os.sched_getaffinity(0))
        state["the control group"] = _text("cgroup")
        state["the namespaces"] = {name: _namespace(name) for name in _NAMESPACES}
        state["the capabilities and the umask"] = {name: text.strip() for name, _, text in lines if name in _STATUS}
        state["the out-of-memory score"] = _text("oom_score_adj")
    return state


def difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return the name of the first entry that differs, "" if none does."""
    return next((name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)), "")


def niceness() -> int:
    """Return this process's niceness."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def _text(name: str) -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/self", name).read_text(encoding="utf-8")
    return ""


def _namespace(name: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/ns/{name}")  # noqa: PTH115 - the kernel's name, not a path
    return ""


# the command line and the mark --------------------------------------------------------------------


class ArgvBuffer:
    """The fillers in this process's memory. Raises LookupError if they cannot be found."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise LookupError("only Linux shows where a process keeps its environment")
        # proc_pid_stat(5): arg_start, arg_end, env_start, env_end are the fields 48 to 51, counted from 1.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        addresses = [int(field) for field in fields[45:49]]
        self._variable = _find(addresses[2], addresses[3], f"{FILLER}={FILLER_VARIABLE[FILLER]}".encode())
        filler, length = _find(addresses[0], addresses[1], FILLER_ARGUMENT.encode())
        begin = addresses[0] + len(ctypes.string_at(addresses[0])) + 1
        self._arguments = (begin, filler + length - begin)

    def show(self, arguments: Sequence[str], mark: str = "") -> None:
        """Set the visible arguments after the interpreter's path, and ``mark`` ("DISTDL_JOB_ID=...") as a variable."""
        line = b"\0".join(argument.encode(errors="surrogateescape") for argument in arguments)
        # Padded with blanks, because trailing zeros would be read as empty arguments.
        _write(self._arguments, line, b" ")
        _write(self._variable, mark.encode(), b"\0")


def _find(start: int, end: int, text: bytes) -> tuple[int, int]:
    if not 0 < start < end:
        raise LookupError("the kernel does not report where a process keeps its environment")
    offset = ctypes.string_at(start, end - start).find(text + b"\0")
    if offset < 0:
        raise LookupError("the space reserved for a job's mark is missing")
    return start + offset, len(text)


def _write(buffer: tuple[int, int], text: bytes, padding: bytes) -> None:
    address, length = buffer
    ctypes.memmove(address, text[:length].ljust(length, padding), length)
