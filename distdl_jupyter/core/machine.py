"""What this process may use of the machine it runs on."""

from __future__ import annotations

import os


def cores() -> int:
    """Return the processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
