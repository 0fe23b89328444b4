"""What it means to a user when the operating system gives no more processes, files or memory."""

from __future__ import annotations

import errno

from distdl_jupyter.core.errors import LaunchFailed

_PROCESSES = "You may run no more processes here: wait until some have ended, or raise 'ulimit -u'."
_MEMORY = "The memory is used up: end other programs, or run fewer processes."
_REMEDIES = {
    errno.EAGAIN: _PROCESSES,
    errno.EMFILE: "A process may open no more files here: raise 'ulimit -n'.",
    errno.ENFILE: "This machine may open no more files: end other programs.",
    errno.ENOMEM: _MEMORY,
}


def remedy(error: BaseException) -> str:
    """Return what to do about it, "" when no limit is the cause."""
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, RuntimeError):  # that of a thread says no number
        return _PROCESSES if "start new thread" in str(error) else ""
    return _REMEDIES.get(error.errno or 0, "") if isinstance(error, OSError) else ""


def launch_failed(what: str, error: OSError) -> LaunchFailed:
    """Return the error of a start that the operating system refused: ``what``, its reason, and the remedy."""
    named = f" ({error.filename})" if error.filename else ""
    return LaunchFailed(f"{what}: {error.strerror or error}{named}.", hint=remedy(error))
