"""Explain limits of the operating system on processes, open files and memory.

Errors are explained when they occur, and predicted before a start where possible: ``shortages``, ``crowd``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import count, plural, size
from distdl_jupyter.worker.hooks.frameworks import LARGE

#: Maximum number of ranks per core without ``oversubscribe``; a machine always accepts ``RANKS_ANYWAY`` ranks.
RANKS_PER_CORE, RANKS_ANYWAY = 8, 64
#: Minimum needs of a rank: open files in the process that reads its output, processes including threads, and bytes
#: of memory.
_FILES_PER_RANK, _TASKS_PER_RANK, _BYTES_PER_RANK = 2, 2, 10_000_000

_PROCESSES_REMEDY = (
    "The limit of processes for your user is reached. Wait until some have ended, or raise it with 'ulimit -u'."
)
_FILES_REMEDY = "The limit of open files per process is reached. Raise it with 'ulimit -n'."
_MEMORY_REMEDY = "The memory is used up. End other programs, or run fewer processes."
_ALL_FILES_REMEDY = "The limit of open files on this machine is reached. End other programs."
#: The code and the remedy of each limit, by errno.
LIMITS = {
    errno.EAGAIN: ("process-limit", _PROCESSES_REMEDY),
    errno.EMFILE: ("open-files-limit", _FILES_REMEDY),
    errno.ENFILE: ("machine-open-files-limit", _ALL_FILES_REMEDY),
    errno.ENOMEM: ("memory-exhausted", _MEMORY_REMEDY),
}


def remedy(error: BaseException) -> str:
    """Return the remedy for an error, "" if no limit caused it."""
    if isinstance(error, MemoryError):
        return _MEMORY_REMEDY
    if isinstance(error, RuntimeError):  # a thread that cannot start has no errno
        return _PROCESSES_REMEDY if "start new thread" in str(error) else ""
    if isinstance(error, OSError):
        return LIMITS.get(error.errno or 0, ("", ""))[1]
    return remedy(error.__cause__) if error.__cause__ is not None else ""


def launch_failed(what: str, error: OSError) -> LaunchFailed:
    """Return the error for a start that the operating system rejected: ``what``, the reason, and the remedy."""
    filename = f" ({error.filename})" if error.filename else ""
    code, hint = LIMITS.get(error.errno or 0, ("start-refused", ""))
    return LaunchFailed(f"{what}: {error.strerror or error}{filename}.", code=code, hint=hint)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource that is too scarce on a machine for the requested ranks; an ``error`` prevents the start.

    ``message`` is a clause without a full stop, ``remedy`` is a sentence.
    """

    level: Literal["warning", "error"]
    message: str
    remedy: str


def crowd(ranks: int, cores: int, *, oversubscribe: bool = False, slots: int = 0) -> Shortage | None:
    """Return why one machine rejects this number of ranks, or None; ``oversubscribe`` allows any number.

    ``slots`` is the configured number of processes of the machine.
    """
    limit = max(RANKS_ANYWAY, RANKS_PER_CORE * cores, slots)
    if oversubscribe or ranks <= limit:
        return None
    reason = f"{plural(ranks, 'process')} are too many for {plural(cores, 'core')}"
    remedy = "Use fewer processes, or set oversubscribe=True."
    return Shortage("error", f"{reason}. The limit of one machine is {count(limit)}", remedy)


def shortages(ranks: int, room: Mapping[str, int | None]) -> Iterator[Shortage]:
    """Yield the resources that are too scarce for this number of ranks; ``room`` comes from ``node.headroom.room``."""
    for name, need, what, remedy in (
        ("files", _FILES_PER_RANK, "open files", _FILES_REMEDY),
        ("processes", _TASKS_PER_RANK, "processes and threads", _PROCESSES_REMEDY),
        ("tasks", _TASKS_PER_RANK, "processes and threads", "The control group or container may run too few processes: "
         "raise its pids.max (docker's --pids-limit)."),
    ):  # fmt: skip
        available = room.get(name)
        if available is not None and available < need * ranks:
            reason = f"{plural(ranks, 'process')} need about {count(need * ranks)} {what}"
            yield Shortage("error", f"{reason}, but only {count(available)} are available", remedy)
    memory, remedy = room.get("memory"), "Use fewer processes, or end other programs."
    if memory is not None and memory < _BYTES_PER_RANK * ranks:
        reason = f"{plural(ranks, 'process')} need at least {size(_BYTES_PER_RANK * ranks)} of memory"
        yield Shortage("error", f"{reason}, but only {size(memory)} is available", remedy)
    elif memory is not None and memory < LARGE[1] * ranks:
        reason = f"Only {size(memory // ranks)} of memory is available for each process"
        yield Shortage("warning", f"{reason}, and {LARGE[0]} alone needs about {size(LARGE[1])}", remedy)


def allow_files(count: int) -> None:
    """Raise the soft limit of open files of this process, as far as allowed, if ``count`` more may exceed it."""
    import resource  # Unix only

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 256
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
