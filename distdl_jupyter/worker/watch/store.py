"""Lets a rank look for torch's store only when it is there.

Rank 0 keeps the store at which torch's ranks find each other. A rank that comes a millisecond early is refused, and
torch waits half a second and more before it tries again (2.13); on one machine the kernel's own table says sooner when
somebody listens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Seconds after which torch is left to its own way: the store may be elsewhere, or rank 0 busy with something else.
TIMEOUT = 5.0
_PAUSE, _LONGEST_PAUSE = 0.001, 0.02
#: The kernel's tables of connections, and its word for one that listens (include/net/tcp_states.h).
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"


def await_listener(arguments: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> None:
    """Wait until the store listens, in a rank that is going to ask for it on this machine.

    ``arguments`` are those of ``init_process_group`` by name.
    """
    port = environment.get("MASTER_PORT", "")
    elsewhere = arguments.get("store") is not None or arguments.get("init_method") not in (None, "env://")
    if elsewhere or not port.isdigit() or not environment.get("MASTER_ADDR", "").startswith("127."):
        return
    if environment.get("RANK", "0") == "0" or not _TABLES[0].exists():
        return
    until, pause = time.monotonic() + TIMEOUT, _PAUSE
    while not listens(int(port)) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def listens(port: int) -> bool:
    """Say whether a process of this machine listens at a TCP port (Linux)."""
    wanted = f":{port:04X}"
    for table in _TABLES:
        lines = table.read_text(encoding="ascii").splitlines()[1:] if table.exists() else []
        if any(
            local.endswith(wanted) and state == _LISTENS for _, local, _, state in (line.split()[:4] for line in lines)
        ):
            return True
    return False
