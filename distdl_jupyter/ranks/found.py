"""Which sessions of ranks live, found on disk without reading any job's log."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from distdl_jupyter.core import sockets
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.worker.serving.listener import NOTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from distdl_jupyter.core.store import JobFolder


def running() -> Iterator[JobFolder]:
    """Yield the folders of sessions that live on this machine, newest first."""
    for folder in JobStore().folders():
        if (folder.path / NOTES).is_dir() and lives(folder):
            yield folder


def lives(folder: JobFolder) -> bool:
    """Say whether a job has its supervisor on this host: the lock is held as long as it lives."""
    supervisor = folder.supervisor()
    return supervisor.held and not supervisor.host


def sockets_folder() -> Path:
    """Return the folder of the ranks' sockets, whose names are as long as this one at most; it may not be there yet."""
    return sockets.place(f"ranks-{'0' * 28}-00000").parent


def sweep() -> None:
    """Remove the sockets of ranks that were killed: nobody listens there any more."""
    with contextlib.suppress(DistDLError, OSError):
        for path in sockets_folder().glob("ranks-*.sock"):
            if path.is_socket() and not _listens(path):
                path.unlink(missing_ok=True)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True
