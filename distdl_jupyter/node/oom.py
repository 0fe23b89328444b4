"""Whether the kernel killed a process of this host for lack of memory.

It counts such kills for each control group and for the whole host (cgroups(7), memory.events of version 2,
memory.oom_control of version 1, and oom_kill in /proc/vmstat). Nothing here knows which process it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_HOST = Path("/proc/vmstat")


def counters() -> dict[str, int]:
    """Return the counters of out-of-memory kills that this process may read: {source: count}."""
    found = {}
    for source, path in _sources():
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text(encoding="ascii").splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    found[source] = int(value)
    return found


def _sources() -> Iterator[tuple[str, Path]]:
    """Yield where the counters stand, the narrowest first."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield "The control group", _GROUPS / group.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield "The control group", _GROUPS / "memory" / group.lstrip("/") / "memory.oom_control"
    yield "The host's control group", _GROUPS / "memory.events"
    yield "The kernel", _HOST


def evidence(before: dict[str, int]) -> str:
    """Return one sentence when a counter has grown since ``before`` or memory is nearly full, else ""."""
    for source, count in counters().items():
        if (more := count - before.get(source, count)) > 0:
            return (
                f"{source} reports {more} process{'es' if more > 1 else ''} killed for lack of memory since the start."
            )
    available, total = _memory()
    if available < 0.02 * total:
        return f"Only {available // 2**20} MB of {total // 2**20} MB of memory are free."
    return ""


def _memory() -> tuple[int, int]:
    """Return the available and the total memory in bytes; (1, 1) where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        sizes = {line[0]: int(line[1]) * 1024 for line in lines}
        return sizes["MemAvailable:"], sizes["MemTotal:"]
    return 1, 1
