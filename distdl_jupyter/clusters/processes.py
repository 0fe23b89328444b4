"""The processes of a job on this machine, found by the mark they carry, never by name.

Every process that a job starts inherits ``DISTDL_JOB_ID`` in its environment, so daemonised grandchildren are found
too; descendants of known processes are added in case one of them cleared its environment. One that also left its
parents is adopted by the supervisor, and by the watchdog when that was killed (Linux). Only when both were killed at
the same moment does a daemon without mark and parents get away.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable

import psutil

MARK = "DISTDL_JOB_ID"

#: Children of this process that belong to it and not to the job's ranks: services.
spared: set[int] = set()
_adopts = False


def marked(job_id: str) -> list[int]:
    """Return the pids of this user's living processes that carry the job's mark, without the calling process."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == job_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def with_descendants(pids: Iterable[int]) -> list[int]:
    """Return the given living processes and everything that descends from them."""
    found: dict[int, None] = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    if one.status() != psutil.STATUS_ZOMBIE:
                        found[one.pid] = None
    found.pop(os.getpid(), None)
    return list(found)


def running(pids: Iterable[int], argv: list[str]) -> list[int]:
    """Return those of ``pids`` that were started with exactly this command line."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).cmdline() == argv:
                found.append(pid)
    return found


def adopt_orphans() -> None:
    """Become the parent of daemonised grandchildren, so that they stay findable even without their mark (Linux)."""
    global _adopts
    if sys.platform == "linux":
        pr_set_child_subreaper = 36  # include/uapi/linux/prctl.h
        _adopts = ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0) == 0


def tree(job_id: str, roots: Iterable[int] = ()) -> list[int]:
    """Return every living process of a job: the marked ones, ``roots``, adopted ones, and all their descendants."""
    own = [child.pid for child in psutil.Process().children()] if _adopts else []
    wanted = [pid for pid in (*roots, *marked(job_id), *own) if pid not in spared]
    return [pid for pid in with_descendants(wanted) if pid not in spared]


def send(pids: Iterable[int], number: int) -> None:
    """Signal each process; one that is gone is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_all(job_id: str, roots: Iterable[int] = (), patience: float = 5.0) -> list[int]:
    """KILL every process of a job until none is left, for ``patience`` seconds; return the pids that were found."""
    roots, seen = list(roots), dict[int, None]()
    until = time.monotonic() + patience
    while (left := tree(job_id, roots)) and time.monotonic() < until:
        seen.update(dict.fromkeys(left))
        send(left, signal.SIGKILL)
        time.sleep(0.02)  # the kernel needs a moment to take them away; the loop looks again
    return list(seen)


def signal_name(number: int) -> str:
    """Return ``"KILL"`` for 9; a number without a name as the number."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)


def signal_number(name: str) -> int:
    """Return 9 for ``"KILL"``, what ``signal_name`` gave; 0 for what is no signal."""
    number: int | None = getattr(signal, f"SIG{name}", None)
    return number or (int(name) if name.isdigit() else 0)


def out_of_memory_evidence(before: dict[str, int]) -> str:
    """Return one sentence when the kernel's counters of killed processes have grown since ``before``, else ""."""
    now = oom_counters()
    for source, count in now.items():
        if count > before.get(source, 0):
            return f"{source} counts {count - before.get(source, 0)} process killed for lack of memory since the start."
    memory = psutil.virtual_memory()
    if memory.available < 0.02 * memory.total:
        return f"Only {memory.available // 2**20} MB of {memory.total // 2**20} MB of memory are free."
    return ""


def oom_counters() -> dict[str, int]:
    """Return Linux's out-of-memory kill counters that this process may read: {source: count}."""
    found: dict[str, int] = {}
    for path, source in (("/sys/fs/cgroup/memory.events", "the control group"), ("/proc/vmstat", "the kernel")):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:  # noqa: PTH123
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    found[source] = int(value)
    return found
