"""The template's files, the user's settings and the socket messages, which submitters and templates share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from distdl_jupyter.core import files, machine, store
from distdl_jupyter.core.errors import InvalidSpec

#: Incremented when the messages change, so that two versions never share a socket.
PROTOCOL = 4


class TemplateFiles(NamedTuple):
    """The paths of one template's files; their names begin with ``key``."""

    python: str
    folder: Path
    key: str

    @property
    def socket(self) -> Path:
        """The Unix socket for requests."""
        return machine.socket_path(f"warm-{self.key}", _shared())

    @property
    def lock(self) -> Path:
        """The lock held by the running template."""
        return self.folder / f"{self.key}.lock"

    @property
    def stopped(self) -> Path:
        """Time of the last stop request (epoch seconds); templates started earlier exit at once."""
        return self.folder / f"{self.key}.stopped"

    @property
    def log(self) -> Path:
        """The output of the template itself."""
        return self.folder / f"{self.key}.log"

    @property
    def history(self) -> Path:
        """The imports of recent jobs, and the modules that must not be preloaded."""
        return self.folder / f"{self.key}.json"


def folder() -> Path:
    """Return the folder of all templates of this data directory, or ``$DISTDL_WARM_DIR`` if several share one."""
    return _shared() or store.home() / "warm"


def _shared() -> Path | None:
    path = os.environ.get("DISTDL_WARM_DIR")
    return Path(path).expanduser() if path else None


def of(python: str = "") -> TemplateFiles:
    """Return the files of the template of an interpreter (default: this one).

    Links are not resolved, because the interpreter of a virtual environment is often a link to a common one.
    """
    path = os.path.abspath(python or sys.executable)  # noqa: PTH100 - Path.resolve would follow the link
    parent = folder()
    name = f"{PROTOCOL}\0{os.getuid()}\0{path}\0{parent.absolute()}"
    return TemplateFiles(path, parent, hashlib.sha256(os.fsencode(name)).hexdigest()[:12])


# settings -----------------------------------------------------------------------------------------


class Settings(msgspec.Struct, frozen=True):
    """The user's settings for all kernels. ``idle_minutes`` is how long a template runs after its last job."""

    enabled: bool = True
    idle_minutes: Annotated[float, msgspec.Meta(gt=0, le=60 * 24 * 7)] = 30.0


def read_settings() -> Settings:
    """Return the settings, or the defaults if the file cannot be read."""
    try:
        return msgspec.json.decode((folder() / "settings.json").read_bytes(), type=Settings)
    except (OSError, ValueError):
        return Settings()


def change_settings(**changes: Any) -> Settings:
    """Change and store ``enabled`` and ``idle_minutes``, and return the settings. Raises InvalidSpec, OSError."""
    try:
        settings = msgspec.convert({**msgspec.to_builtins(read_settings()), **changes}, Settings, strict=False)
    except msgspec.ValidationError:
        raise InvalidSpec(
            f"idle_minutes must be a number above 0 and at most 10080 (one week), not {changes['idle_minutes']!r}.",
            code="warm-idle-minutes-invalid",
            field="idle_minutes",
        ) from None
    files.write(folder() / "settings.json", msgspec.to_builtins(settings))
    return settings


def switched_off() -> str:
    """Return what disables warm starts ("DISTDL_WARM" or "the settings"), "" if they are enabled."""
    if os.environ.get("DISTDL_WARM", "").lower() in ("off", "0", "no", "false"):
        return "DISTDL_WARM"
    return "" if read_settings().enabled else "the settings"


# messages -----------------------------------------------------------------------------------------

#: Maximum size of a message in bytes; environments may have several hundred kB.
_LONGEST = 64 * 2**20
_MOST_DESCRIPTORS = 8


class BrokenMessage(Exception):
    """The other end closed the connection or sent an invalid message."""


def send(connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message as an in-memory file, whose descriptor precedes the others. Raises OSError."""
    with open(os.memfd_create("message"), "w+b") as file:  # noqa: PTH123 - a descriptor
        file.write(json.dumps(message).encode())
        file.seek(0)
        socket.send_fds(connection, [b"."], [file.fileno(), *descriptors])


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one message and its descriptors. Raises BrokenMessage, OSError."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    message = None
    with contextlib.suppress(IndexError, ValueError, OSError), open(descriptors.pop(0), "rb") as file:  # noqa: PTH123
        message = json.loads(file.read(_LONGEST))
    if isinstance(message, dict):
        return message, descriptors
    for fd in descriptors:
        os.close(fd)
    raise BrokenMessage("The other end hung up, or its message is not a JSON object.")
