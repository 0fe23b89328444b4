"""Explains limits of the operating system on processes, open files and memory.

Errors are explained when they occur, and predicted before a start where possible (``find_shortages``).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import count, plural, size
from distdl_jupyter.worker.hooks.frameworks import LARGE_LIBRARY

#: Maximum number of ranks per core without ``oversubscribe``.
_RANKS_PER_CORE = 8
#: Number of ranks that a machine of any size accepts.
_ALWAYS_ALLOWED_RANKS = 64
#: Minimum number of open files per rank, in the process that reads its output.
_FILES_PER_RANK = 2
#: Minimum processes of a rank, including threads.
_TASKS_PER_RANK = 2
#: Minimum bytes of memory of a rank.
_BYTES_PER_RANK = 10_000_000
_PROCESSES_REMEDY = "Wait for other processes to exit, or raise the limit with 'ulimit -u'."
_MEMORY_REMEDY = "Stop other programs, or run fewer processes."
_CONTAINER_REMEDY = "Raise pids.max of the control group, or the container's process limit (docker --pids-limit)."
#: Code and remedy of each limit, by errno.
LIMITS = {
    errno.EAGAIN: ("process-limit", f"Your user has reached its process limit. {_PROCESSES_REMEDY}"),
    errno.EMFILE: ("open-files-limit", "The process has reached its limit of open files. Raise it with 'ulimit -n'."),
    errno.ENFILE: ("machine-open-files-limit", "The machine has reached its limit of open files. Stop other programs."),
    errno.ENOMEM: ("memory-exhausted", f"The machine is out of memory. {_MEMORY_REMEDY}"),
}


def find_remedy(error: BaseException) -> str:
    """Return the remedy for an error, or "" if no limit caused it."""
    if isinstance(error, MemoryError):
        return LIMITS[errno.ENOMEM][1]
    if isinstance(error, RuntimeError):  # a thread that cannot start has no errno
        return LIMITS[errno.EAGAIN][1] if "start new thread" in str(error) else ""
    if isinstance(error, OSError):
        return LIMITS.get(error.errno or 0, ("", ""))[1]
    return find_remedy(error.__cause__) if error.__cause__ is not None else ""


def make_launch_error(message: str, error: OSError) -> LaunchFailed:
    """Return the error for processes that the operating system did not start: message, reason and remedy."""
    filename = f" ({error.filename})" if error.filename else ""
    code, hint = LIMITS.get(error.errno or 0, ("start-refused", ""))
    return LaunchFailed(f"{message}: {error.strerror or error}{filename}.", code=code, hint=hint)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource that is too scarce on a machine for the requested ranks; an ``error`` prevents the start.

    ``message`` is a clause without a full stop, ``remedy`` is a sentence.
    """

    level: Literal["warning", "error"]
    message: str
    remedy: str


def check_rank_count(ranks: int, cores: int, *, oversubscribe: bool = False, slots: int = 0) -> Shortage | None:
    """Return why one machine rejects this number of ranks, or None; ``oversubscribe`` allows any number.

    ``slots`` is the configured number of processes of the machine.
    """
    limit = max(_ALWAYS_ALLOWED_RANKS, _RANKS_PER_CORE * cores, slots)
    if oversubscribe or ranks <= limit:
        return None
    message = f"{plural(ranks, 'process')} are too many for {plural(cores, 'core')}; the limit is {count(limit)}"
    return Shortage("error", message, "Use fewer processes, or set oversubscribe=True.")


def find_shortages(ranks: int, available: Mapping[str, int | None]) -> Iterator[Shortage]:
    """Yield the resources that are too scarce for this number of ranks.

    ``available`` is the result of ``node.headroom.read_remaining()``.
    """
    subject = f"{plural(ranks, 'process')} {'needs' if ranks == 1 else 'need'}"
    for name, resource, need, remedy in (
        ("files", "open files", _FILES_PER_RANK * ranks, "Raise the limit with 'ulimit -n'."),
        ("processes", "processes and threads", _TASKS_PER_RANK * ranks, _PROCESSES_REMEDY),
        ("tasks", "processes and threads", _TASKS_PER_RANK * ranks, _CONTAINER_REMEDY),
    ):
        remaining = available.get(name)
        if remaining is not None and remaining < need:
            message = f"{subject} about {count(need)} {resource}, but only {count(remaining)} are available"
            yield Shortage("error", message, remedy)
    memory, need = available.get("memory"), _BYTES_PER_RANK * ranks
    library, library_bytes = LARGE_LIBRARY
    if memory is not None and memory < need:
        message = f"{subject} at least {size(need)} of memory, but only {size(memory)} is available"
        yield Shortage("error", message, _MEMORY_REMEDY)
    elif memory is not None and memory < library_bytes * ranks:
        message = f"Only {size(memory // ranks)} of memory is available for each process, and {library} alone needs "
        yield Shortage("warning", f"{message}about {size(library_bytes)}", _MEMORY_REMEDY)


def raise_file_limit(count: int) -> None:
    """Raise the soft limit of open files of this process, as far as allowed, if ``count`` more may exceed it."""
    import resource  # Unix only

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 256
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
