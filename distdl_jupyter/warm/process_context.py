"""What a process inherits besides its environment: limits, control group, namespaces.

A job that starts cold has those of its submitter; one that starts warm has the template's, so they must be equal.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path
from typing import Any

_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_STATUS = ("Umask", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
_LIMITS = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))


def now() -> dict[str, Any]:
    """Return the circumstances of this process as JSON data, by names that people know."""
    found: dict[str, Any] = {
        "the user": [os.getuid(), os.geteuid(), os.getgid()],
        "the hard limits (ulimit -H)": {name: resource.getrlimit(getattr(resource, name))[1] for name in _LIMITS},
    }
    if sys.platform == "linux":
        found["the allowed CPUs (affinity)"] = sorted(os.sched_getaffinity(0))
        found["the control group"] = _text("cgroup")
        found["the namespaces"] = {name: _link(name) for name in _NAMESPACES}
        found["the capabilities and the umask"] = _status()
        found["the out-of-memory score"] = _text("oom_score_adj")
    return found


def limits() -> dict[str, int]:
    """Return this process's soft limits by name, which any process may set within the hard ones."""
    return {name: resource.getrlimit(getattr(resource, name))[0] for name in _LIMITS}


def limit(soft: dict[str, int]) -> None:
    """Set this process's soft limits. Raises ValueError where a hard one is lower."""
    for name, wanted in soft.items():
        number = getattr(resource, name)
        now, hard = resource.getrlimit(number)
        if now != wanted:
            resource.setrlimit(number, (wanted, hard))


def niceness() -> int:
    """Return this process's niceness, which any process may raise."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return the name of the first circumstance that differs, "" when none does."""
    return next((name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)), "")


def _text(name: str) -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/self", name).read_text(encoding="utf-8")
    return ""


def _link(name: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/ns/{name}")  # noqa: PTH115 - no path, a name of the kernel's
    return ""


def _status() -> dict[str, str]:
    lines = (line.partition(":") for line in _text("status").splitlines())
    return {name: value.strip() for name, _, value in lines if name in _STATUS}
