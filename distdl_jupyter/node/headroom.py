"""Report how many files, processes and bytes of memory this user has left on this host, and out-of-memory kills.

Every call reads the kernel's current values. None means unlimited or not reported by this system. Threads count as
processes. The kernel counts out-of-memory kills for each control group and for the whole host (cgroups(7):
memory.events of version 2, memory.oom_control of version 1, and oom_kill in /proc/vmstat); it does not name processes.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")
#: Version 1 of control groups reports "no limit" as the largest multiple of a page.
_UNLIMITED = 1 << 60


def read_remaining() -> dict[str, int | None]:
    """Return the remaining ``files``, ``processes`` (``ulimit -u``), ``tasks`` (``pids.max``), ``memory`` (bytes)."""
    tasks = _find_minimum(_get_remaining(group / "pids.max", group / "pids.current") for group in _list_groups("pids"))
    processes, memory = count_free_processes(), read_free_memory()
    return {"files": count_free_files(), "processes": processes, "tasks": tasks, "memory": memory}


def count_free_files() -> int | None:
    """Return how many more files a process like this one may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    with contextlib.suppress(OSError):
        return max(0, limit - len(os.listdir("/dev/fd")))  # noqa: PTH208  only names are needed
    return limit


def count_free_processes() -> int | None:
    """Return how many more processes this user may start; root has no limit."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit == resource.RLIM_INFINITY or os.getuid() == 0 or not _PROC.is_dir():
        return None
    uid, count = str(os.getuid()), 0
    for status in _PROC.glob("[0-9]*/status"):
        with contextlib.suppress(OSError, KeyError, IndexError):
            lines = status.read_text(errors="replace").splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            count += int(fields["Threads"]) if fields["Uid"].split()[0] == uid else 0
    return max(0, limit - count)


def read_free_memory() -> int | None:
    """Return the available bytes of memory, including reclaimable caches."""
    amounts = [read_meminfo("MemAvailable")]
    for group in _list_groups("memory"):
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            if (remaining := _get_remaining(group / limit, group / usage)) is not None:
                # A group counts cached files as used but reclaims them first.
                cached = _read_number(group / "memory.stat", "inactive_file", "total_inactive_file")
                amounts.append(remaining + (cached or 0))
    return _find_minimum(amounts)


def read_memory_limit() -> int | None:
    """Return the memory limit in bytes of this process: that of the host or of a control group.

    ``read_memory_limit() - read_free_memory()`` is in use.
    """
    amounts = [read_meminfo("MemTotal")]
    for group in _list_groups("memory"):
        amounts += [_get_remaining(group / name) for name in ("memory.max", "memory.limit_in_bytes")]
    return _find_minimum(amounts)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_meminfo(name: str) -> int | None:
    """Return the bytes that the kernel reports under this name, such as "MemTotal"."""
    value = _read_number(_PROC / "meminfo", name)
    return None if value is None else value * 1024  # proc_meminfo(5): "kB" is 1024 bytes


def _read_number(path: Path, *names: str) -> int | None:
    """Return the number after the first of ``names`` in a file of lines "name number" or "name: number kB"."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text(encoding="ascii").splitlines():
            name, value = line.split()[:2]
            if name.rstrip(":") in names:
                return int(value)
    return None


def _list_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups with ``controller``, the innermost first.

    A container may see its own group as the root group (cgroup_namespaces(7)).
    """
    with contextlib.suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = _GROUPS / controller if controllers else _GROUPS
            group = root / name.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder == root or root in folder.parents)


def _get_remaining(limit_path: Path, usage_path: Path | None = None) -> int | None:
    """Return the limit of a control group minus its usage, or None if it has no limit."""
    with contextlib.suppress(OSError, ValueError):  # "max" is not a number
        if (limit := int(limit_path.read_text())) < _UNLIMITED:
            return max(0, limit - (int(usage_path.read_text()) if usage_path else 0))
    return None


def _find_minimum(amounts: Iterable[int | None]) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)


# out-of-memory kills -------------------------------------------------------------------------------


def count_oom_kills() -> dict[str, int]:
    """Return the readable counters of out-of-memory kills: {source: count}, the narrowest scope first."""
    names = ("memory.events", "memory.oom_control")
    sources = [("The control group", group / name) for group in _list_groups("memory") for name in names]
    sources += [("The host's control group", _GROUPS / "memory.events"), ("The kernel", _PROC / "vmstat")]
    counts: dict[str, int] = {}
    for source, path in sources:
        if (count := _read_number(path, "oom_kill")) is not None:
            counts.setdefault(source, count)
    return counts


def describe_oom_kills(old_counts: dict[str, int]) -> str:
    """Return one sentence if a counter is above its value in ``old_counts`` or memory is nearly full, else ""."""
    for source, count in count_oom_kills().items():
        if (kill_count := count - old_counts.get(source, count)) > 0:
            subject = f"{kill_count} process{'es' if kill_count > 1 else ''}"
            return f"{source} reports {subject} killed for lack of memory since the start."
    available, total = read_meminfo("MemAvailable"), read_meminfo("MemTotal")
    if available is not None and total is not None and available < 0.02 * total:
        return f"Only {available // 2**20} MB of {total // 2**20} MB of memory is free."
    return ""
