"""Where a rank is met: a Unix socket in a private folder, and the note in the job's folder that names both.

Three things stand between a stranger and the rank: the folder (0700) and socket (0600), the user id that the operating
system gives for the other end, and a token of the rank that only the job's private folder holds.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import stat
from pathlib import Path
from typing import Any

from distdl_jupyter.worker.serving.peer import peer_uid

#: Folder of a job in which its ranks say where they are met.
NOTES = "serving"
_BACKLOG = 16


class Door:
    """The listening socket of one rank."""

    def __init__(self, sockets: Path, job_folder: Path, rank: int) -> None:
        _check_private(sockets)
        self.path = sockets / f"ranks-{job_folder.name}-{rank}.sock"
        self._note = job_folder / NOTES / f"rank-{rank}.json"
        self._token = secrets.token_urlsafe(32)
        self.socket = _listening(self.path)
        _write_private(self._note, {"socket": str(self.path), "token": self._token, "rank": rank, "pid": os.getpid()})
        os.register_at_fork(after_in_child=self.socket.close)

    def accept(self) -> socket.socket:
        """Return the next connection of this user; others are hung up on before a byte of theirs is read."""
        while True:
            connection, _ = self.socket.accept()
            with contextlib.suppress(OSError):
                if peer_uid(connection) == os.getuid():
                    return connection
            connection.close()

    def knows(self, token: Any) -> bool:
        """Say whether this is the token of the job's folder."""
        return isinstance(token, str) and hmac.compare_digest(token.encode(), self._token.encode())

    def close(self) -> None:
        """Be met no more."""
        for path in (self._note, self.path):
            with contextlib.suppress(OSError):
                path.unlink()


def _check_private(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700:
        raise PermissionError(f"{folder} is no folder that its owner alone may enter, so no rank listens there.")


def _listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    return listener


def _write_private(path: Path, data: dict[str, Any]) -> None:
    """Write the note so that it appears whole."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(data, file)
    hidden.replace(path)
