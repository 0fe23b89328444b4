"""What submitters and a template share: the template's files, the user's settings, and the messages at its socket."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.core import atomic_write, sockets, store
from distdl_jupyter.core.errors import InvalidSpec

#: Raised when the messages change, so that two versions never share a socket.
PROTOCOL = 3


class TemplateFiles(NamedTuple):
    """The files of one template; their names begin with ``key``. Nothing here opens or makes one."""

    python: str
    folder: Path
    key: str

    @property
    def socket(self) -> Path:
        """The Unix socket at which it takes jobs."""
        return sockets.place(f"warm-{self.key}", _shared())

    @property
    def lock(self) -> Path:
        """The living template holds this lock."""
        return self.folder / f"{self.key}.lock"

    @property
    def stopped(self) -> Path:
        """When a template was last asked to stop (epoch seconds); templates that were started earlier exit at once."""
        return self.folder / f"{self.key}.stopped"

    @property
    def log(self) -> Path:
        """What the template itself printed."""
        return self.folder / f"{self.key}.log"

    @property
    def history(self) -> Path:
        """What the last jobs imported, and which modules must not be preloaded."""
        return self.folder / f"{self.key}.json"

    @property
    def last_cold(self) -> Path:
        """Why the last cold job was not started warm."""
        return self.folder / f"{self.key}.cold.json"


def folder() -> Path:
    """Return the folder of all templates of this data directory, or ``$DISTDL_WARM_DIR`` where several share one."""
    return _shared() or store.home() / "warm"


def _shared() -> Path | None:
    path = os.environ.get("DISTDL_WARM_DIR")
    return Path(path).expanduser() if path else None


def of(python: str = "") -> TemplateFiles:
    """Return the files of the template of an interpreter (default: this one).

    The interpreter of a virtual environment is often a link to a common one, so links are kept.
    """
    path = os.path.abspath(python or sys.executable)  # noqa: PTH100 - Path.resolve would follow the link
    parent = folder()
    name = f"{PROTOCOL}\0{os.getuid()}\0{path}\0{parent.absolute()}"
    return TemplateFiles(path, parent, hashlib.sha256(os.fsencode(name)).hexdigest()[:12])


# settings -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """The user's settings for all kernels. ``idle_minutes`` is how long a template runs after its last job."""

    enabled: bool = True
    idle_minutes: float = 30.0


def read_settings() -> Settings:
    """Return the settings; the defaults where the file cannot be read."""
    try:
        data = json.loads((folder() / "settings.json").read_text(encoding="utf-8"))
        return Settings(bool(data["enabled"]), float(data["idle_minutes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Settings()


def change_settings(*, enabled: bool | None = None, idle_minutes: float | None = None) -> Settings:
    """Change and store what is not None, and return the settings. Raises InvalidSpec, OSError."""
    settings = read_settings()
    if idle_minutes is not None:
        if not 0 < idle_minutes <= 60 * 24 * 7:
            raise InvalidSpec(
                f"idle_minutes is {idle_minutes:g}, but must be more than 0 and at most 10080 (one week).",
                code="warm-idle-minutes-range",
                field="idle_minutes",
            )
        settings = replace(settings, idle_minutes=float(idle_minutes))
    if enabled is not None:
        settings = replace(settings, enabled=enabled)
    atomic_write.write(folder() / "settings.json", asdict(settings))
    return settings


def parse_settings(options: Mapping[str, str]) -> Settings:
    """Change what ``on``, ``off`` or ``idle_minutes=M`` say. Raises InvalidSpec for anything else."""
    unknown = sorted(set(options) - {"on", "off", "idle_minutes"})
    if unknown or {"on", "off"} <= set(options):
        raise InvalidSpec(
            f"Unknown setting {unknown[0]!r} for warm starts." if unknown else "Warm starts cannot be both on and off.",
            code="warm-setting-unknown",
            field=unknown[0] if unknown else "warm",
            hint="Use on, off or idle_minutes=30.",
        )
    try:
        minutes = float(options["idle_minutes"]) if "idle_minutes" in options else None
    except ValueError:
        raise InvalidSpec(
            f"idle_minutes is {options['idle_minutes']!r}, but must be a number.",
            code="warm-idle-minutes-invalid",
            field="idle_minutes",
        ) from None
    enabled = "on" in options if {"on", "off"} & set(options) else None
    return change_settings(enabled=enabled, idle_minutes=minutes) if options else read_settings()


def switched_off() -> str:
    """Return what switches warm starts off ("DISTDL_WARM" or "the settings"), "" when they are on."""
    if os.environ.get("DISTDL_WARM", "").lower() in ("off", "0", "no", "false"):
        return "DISTDL_WARM"
    return "" if read_settings().enabled else "the settings"


# messages -----------------------------------------------------------------------------------------

#: A message is its length and JSON; descriptors travel beside the length.
_LENGTH = struct.Struct(">I")
#: Bytes of the longest message; environments of some hundred kB are legal.
_LONGEST = 64 * 2**20
_MOST_DESCRIPTORS = 8


class BrokenMessage(Exception):
    """The other end hung up or sent something that is not a message."""


def send(connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message. Raises OSError."""
    body = json.dumps(message).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(body))], descriptors)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return one message and the descriptors beside it. Raises BrokenMessage, OSError."""
    head, descriptors, _flags, _address = socket.recv_fds(
        connection, _LENGTH.size, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
    )
    try:
        return _message(connection, head), descriptors
    except (BrokenMessage, OSError, ValueError) as error:
        for fd in descriptors:
            os.close(fd)
        raise BrokenMessage(str(error)) from error


def _message(connection: socket.socket, head: bytes) -> dict[str, Any]:
    head += _read(connection, _LENGTH.size - len(head))
    length = _LENGTH.unpack(head)[0]
    message = json.loads(_read(connection, length)) if length <= _LONGEST else None
    if not isinstance(message, dict):
        raise BrokenMessage("the message is not a JSON object")
    return message


def _read(connection: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        piece = connection.recv(min(count - len(content), 2**20))
        if not piece:
            raise BrokenMessage("the message was cut off")
        content += piece
    return bytes(content)
