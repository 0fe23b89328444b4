"""Unix sockets at which the processes of one user meet on one machine: where they lie, and who is at the other end."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
from pathlib import Path

from distdl_jupyter.core.errors import DistDLError

#: The longest path that a Unix socket takes everywhere (104 bytes with the closing one on macOS).
_LONGEST = 103


def socket_path(name: str, folder: Path | None = None) -> Path:
    """Return the path of the socket ``name``: one for each machine, since a home directory may be shared by several.

    It lies in ``folder``, by default Jupyter's runtime directory, or in a folder of the user's in the temporary one
    where that path would be too long for a socket. Nothing is made; see ``secured``.
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
