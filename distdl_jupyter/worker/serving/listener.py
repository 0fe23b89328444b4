"""Where a rank is met: a Unix socket in the run's private folder on its host, beside it a note that names both.

The host's agent hands the note to the supervisor, which writes it into the job's folder (``NOTES``). Three things stand
between a stranger and the rank: the folder (0700) and socket (0600), the user id that the operating system gives for
the other end, and a token of the rank that only private folders hold.
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

#: Folder of a job in which notes say where its ranks are met.
NOTES = "serving"
_BACKLOG = 16


class Door:
    """The listening socket of one rank."""

    def __init__(self, run: Path, rank: int) -> None:
        self.path = run / f"rank-{rank}.sock"
        self._note = note_of(run, rank)
        self._token = secrets.token_urlsafe(32)
        self.socket = listening(self.path)
        write_note(self._note, {"socket": str(self.path), "token": self._token, "rank": rank, "pid": os.getpid()})
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
        raise PermissionError(f"{folder} is not a private folder of its owner, so the rank does not listen there.")


def note_of(folder: Path, rank: int) -> Path:
    """Return the note of a rank in a folder; it is there while the rank listens."""
    return folder / f"rank-{rank}.json"


def listening(path: Path) -> socket.socket:
    """Return a socket that listens in a folder which its owner alone may enter. Raises PermissionError, OSError."""
    _check_private(path.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def write_note(path: Path, data: dict[str, Any]) -> None:
    """Write a note so that it appears whole."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(data, file)
    hidden.replace(path)
