"""Paths of the Unix sockets that processes of one user share on a machine."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
from pathlib import Path

from distdl_jupyter.core.errors import DistDLError

#: Maximum length of a Unix socket's path on all platforms (macOS: 104 bytes including the final NUL).
_LONGEST = 103


def socket_path(name: str, folder: Path | None = None) -> Path:
    """Return the path of the socket ``name``, which contains the host because home directories may be shared.

    It is in ``folder`` (default: Jupyter's runtime directory), or in a user's folder of the temporary directory if that
    path is too long for a socket. Nothing is created; see ``secured``.
    """
    runtime = folder or _runtime()
    file = f"{name}-{_short(socket.gethostname().encode(), 8)}.sock"
    path = runtime / "distdl" / file
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    return Path(tempfile.gettempdir()) / f"distdl-{os.getuid()}-{_short(os.fsencode(runtime), 10)}" / file


def _runtime() -> Path:
    from jupyter_core.paths import jupyter_runtime_dir

    return Path(jupyter_runtime_dir())


def _short(text: bytes, length: int) -> str:
    return hashlib.sha256(text).hexdigest()[:length]


def secured(folder: Path) -> Path:
    """Create a folder that only its owner may enter. Raises DistDLError if another user owns it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise DistDLError(
            f"{folder} belongs to another user.",
            code="socket-folder-of-another-user",
            hint="Set JUPYTER_RUNTIME_DIR to a folder that belongs to you.",
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)
    return folder
