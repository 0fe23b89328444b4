"""What a forked process does first, so that it is like one that was started: session, signals, descriptors, variables.

Descriptors that it must not have are pointed to /dev/null and not closed: an object of the parent's that is thrown
away later would otherwise close whatever has got the same number by then.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from distdl_jupyter.core import signals
from distdl_jupyter.worker.watch import after_fork


def settle(streams: Sequence[int], keep: Iterable[int] = ()) -> None:
    """Begin a session, with ``streams`` as descriptors 0, 1, 2 and of the others only ``keep``."""
    os.setsid()
    signals.reset()
    kept = [os.dup(fd) if fd < len(streams) else fd for fd in streams]
    for number, fd in enumerate(kept):
        os.dup2(fd, number)
    _let_go({0, 1, 2, *keep})
    _open_streams()


def _open_streams() -> None:
    """Open Python's own streams anew: those of the template know whether its log can be wound back."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for fd, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        raw = io.FileIO(fd, "w", closefd=False)
        raw.name = f"<{name}>"
        # As `python -u` has them: nothing waits in a buffer.
        stream = io.TextIOWrapper(raw, "utf-8", errors, "\n", line_buffering=True, write_through=True)
        stream.mode = "w"  # type: ignore[misc]  # Python sets it too, where it opens them
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _let_go(keep: set[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in open_descriptors():
        if fd not in keep and fd != nothing:
            os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


def open_descriptors() -> list[int]:
    """Return this process's open descriptors."""
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    return [fd for fd in map(int, os.listdir(folder)) if _is_open(fd)]  # noqa: PTH208 - numbers are wanted


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def replace_environment(environment: Mapping[str, str], *, set_by_imports: Mapping[str, str]) -> None:
    """Make ``environment`` this process's own, and what modules have set at their import."""
    wanted = {**environment, **set_by_imports}
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    os.environ.update(wanted)


def be_another(arguments: Sequence[str]) -> None:
    """Forget what only the parent's process may share with nobody: its command line, random numbers, caches, keys."""
    sys.orig_argv[:] = list(arguments)
    sys.argv[:] = [""]
    importlib.invalidate_caches()
    after_fork.reseed()
    # Python's own ``random`` draws a new seed in every forked process by itself.
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        own = process.current_process()
        own.authkey = os.urandom(32)
        own._parent_pid = os.getppid()  # noqa: SLF001 - taken at the import, and nothing else sets it
