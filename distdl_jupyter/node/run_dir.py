"""The private folder of a run in this host's temporary directory, with named pipes, sockets and a lifeline ``alive``.

Ranks started by a launcher write their output to the named pipes. Every rank watches the lifeline, which closes when
its owner exits. On Linux, the folder has a counterpart of the same name in shared memory, for the shared memory
files of Open MPI's ranks, which remain when the ranks are killed (``worker.identity`` passes on the path).

The owner removes the folder. If the owner was killed, the lifeline is closed once the ranks have exited too, and
``sweep`` removes the folder. Its name contains only a short hash of the job id, because Open MPI creates sockets in it
and a socket's path has at most 107 bytes (unix(7)).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

from distdl_jupyter import permissions

#: The named pipe that the owner of the run keeps open and that every rank watches.
LIFELINE = "alive"
#: The socket of the remote shell (``node.mpi_shell``).
SOCKET = "shell"
_MAX_SOCKET_PATH_BYTES = 107
#: Age in seconds up to which a folder may not have its lifeline yet.
_FRESH_SECONDS = 60.0
#: Seconds that a killed process may still hold the lifeline: the kernel frees its memory before closing its files.
_DYING_SECONDS = 1.0
#: Shared memory; the folder there has the same name as one created by mkdtemp.
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - as below
#: Parent of the folder when the path in the temporary directory is too long for a socket.
_SHORT_PARENT = "/tmp"  # noqa: S108 - mkdtemp creates a private folder in it
_NAME = re.compile(r"distdl-[0-9a-f]{8}-[a-z0-9_]{8}")


def _build_prefix(job: str) -> str:
    return f"distdl-{zlib.crc32(job.encode()):08x}-"


def _remove_folder(folder: Path) -> None:
    """Remove a folder after its counterpart in shared memory, because ``sweep`` finds that through the folder."""
    for path in (_SHARED_MEMORY / folder.name, folder):
        if permissions.is_own(path):
            shutil.rmtree(path, ignore_errors=True)


def sweep(job: str = "") -> None:
    """Remove the folders of dead runs of this user, or of ``job`` after its processes were killed."""
    deadline = time.monotonic() + (_DYING_SECONDS if job else 0.0)
    pattern = f"{_build_prefix(job) if job else 'distdl-'}*"
    for folder in [path for parent in {tempfile.gettempdir(), _SHORT_PARENT} for path in Path(parent).glob(pattern)]:
        with contextlib.suppress(OSError):
            is_fresh = not job and time.time() - folder.lstat().st_mtime < _FRESH_SECONDS
            if is_fresh or not _NAME.fullmatch(folder.name) or not permissions.is_own(folder):
                continue
            while (is_held := _is_held(folder)) and time.monotonic() < deadline:
                time.sleep(0.02)
            if is_held is False:
                _remove_folder(folder)


def _is_held(folder: Path) -> bool | None:
    """Return whether a process holds the lifeline open, or None if unknown, because it is missing or not accessible."""
    try:
        os.close(os.open(folder / LIFELINE, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError as error:
        return False if error.errno == errno.ENXIO else None  # a named pipe without a reader (fifo(7))
    return True


def _mkfifo(path: Path, flags: int) -> int:
    os.mkfifo(path, 0o600)
    return os.open(path, flags | os.O_CLOEXEC)


class RunFolder:
    """The folder of a run, whose path has room for a socket of this name. ``close`` removes it. Raises OSError."""

    def __init__(self, job: str, socket: str = SOCKET) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_build_prefix(job)))
        if len(os.fsencode(self.path / socket)) > _MAX_SOCKET_PATH_BYTES:
            self.path.rmdir()
            self.path = Path(tempfile.mkdtemp(prefix=_build_prefix(job), dir=_SHORT_PARENT))
        with contextlib.suppress(OSError):
            (_SHARED_MEMORY / self.path.name).mkdir(mode=0o700)
        self._lifeline = _mkfifo(self.path / LIFELINE, os.O_RDWR)

    def open_pipe(self, rank: int, name: str) -> int:
        """Create a pipe of a rank, ``name`` "out" or "err", and return a descriptor to read it, without end of file."""
        # Opened for writing too, so that there is no end of file before a rank opens the pipe or after it exits.
        return _mkfifo(self.path / f"rank-{rank}.{name}", os.O_RDWR | os.O_NONBLOCK)

    def write(self, name: str, content: Any) -> None:
        """Write a file with ``content`` as JSON, which is complete when it appears. Raises OSError."""
        temporary, flags = self.path / f".{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123  a descriptor
            json.dump(content, file)
        temporary.replace(self.path / name)

    def close(self) -> None:
        """Close the lifeline, so that ranks that are still alive exit, and remove the folder."""
        os.close(self._lifeline)
        _remove_folder(self.path)
        sweep()
