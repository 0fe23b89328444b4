"""Start a keeper: take the lock that says there is one, listen, serve until it ends."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import resource
import sys
import time
from typing import IO

from distdl_jupyter.azure.keeper.client import START_SECONDS, there
from distdl_jupyter.azure.keeper.service import Service
from distdl_jupyter.core import sockets

#: prctl(PR_SET_DUMPABLE, 0), linux/prctl.h: no process of the same user may read this one's memory, as with ssh-agent.
_PR_SET_DUMPABLE = 4


def main() -> int:
    """Serve until the end; 0 also when another keeper is there already."""
    _shut()
    path = sockets.place("azure")
    sockets.secured(path.parent)
    with path.with_suffix(".lock").open("w") as lock:
        until = time.monotonic() + START_SECONDS
        while not _taken(lock):
            if there() or time.monotonic() > until:
                return 0
            time.sleep(0.05)  # The one before is ending.
        path.unlink(missing_ok=True)
        with Service(path) as service:
            service.serve_forever(poll_interval=0.5)
    return 0


def _taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _shut() -> None:
    """Leave no way for tokens out of this process's memory: no core file, no debugger of the same user."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
