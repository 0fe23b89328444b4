"""What submitters and templates share: the template's files, the user's settings, socket messages, inherited state."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from distdl_jupyter.core import files, machine, store
from distdl_jupyter.core.errors import InvalidSpec

#: Incremented when the messages change, so that two versions never share a socket.
PROTOCOL = 5


class TemplateFiles(NamedTuple):
    """The paths of one template's files; their names contain ``key``."""

    python: str
    key: str
    folder: Path
    #: The Unix socket for requests.
    socket: Path
    #: The lock of the template, from its start to its exit.
    lock: Path
    #: The output of the template itself.
    log: Path
    #: The imports of recent jobs, and the modules that must not be preloaded.
    history: Path


def _shared_folder() -> Path | None:
    path = os.environ.get("DISTDL_WARM_DIR")
    return Path(path).expanduser() if path else None


def folder() -> Path:
    """Return the folder of all templates of this data directory, or ``$DISTDL_WARM_DIR`` if several share one."""
    return _shared_folder() or store.home() / "warm"


def of(python: str = "") -> TemplateFiles:
    """Return the files of the template of an interpreter (default: this one).

    Links are not resolved, because the interpreter of a virtual environment is often a link to a common one.
    """
    path = os.path.abspath(python or sys.executable)  # noqa: PTH100 - Path.resolve would follow the link
    parent = folder()
    name = f"{PROTOCOL}\0{os.getuid()}\0{path}\0{parent.absolute()}"
    key = hashlib.sha256(os.fsencode(name)).hexdigest()[:12]
    paths = (parent / f"{key}.{ending}" for ending in ("lock", "log", "json"))
    return TemplateFiles(path, key, parent, machine.socket_path(f"warm-{key}", _shared_folder()), *paths)


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
_MAX_BYTES = 64 * 2**20
_MAX_DESCRIPTORS = 8


class BrokenMessage(OSError):
    """The other end closed the connection or sent an invalid message."""


def send(connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message as an in-memory file, whose descriptor precedes the others. Raises OSError."""
    with open(os.memfd_create("message"), "w+b") as file:  # noqa: PTH123 - a descriptor
        file.write(json.dumps(message).encode())
        file.seek(0)
        socket.send_fds(connection, [b"."], [file.fileno(), *descriptors])


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one message and its descriptors. Raises BrokenMessage, OSError."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    message = None
    with contextlib.suppress(IndexError, ValueError, OSError), open(descriptors.pop(0), "rb") as file:  # noqa: PTH123
        message = json.loads(file.read(_MAX_BYTES))
    if isinstance(message, dict):
        return message, descriptors
    for fd in descriptors:
        os.close(fd)
    raise BrokenMessage("The other end hung up, or its message is not a JSON object.")


# inherited state ----------------------------------------------------------------------------------

#: The last variable of a template's environment, and the last argument of its command line (see ``fork.ArgvBuffer``).
FILLER = "DISTDL_WARM_ROOM"
FILLER_VARIABLE, FILLER_ARGUMENT = {FILLER: "." * 240}, "-" * 400
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_STATUS = ("Umask", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
_LIMITS = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))


def inherited_state() -> dict[str, Any]:
    """Return the inherited state of this process besides its environment, as JSON data with keys that users know.

    A cold job inherits it from its submitter and a warm job from the template, so both must be equal.
    """
    lines = (line.partition(":") for line in _read_own_proc("status").splitlines())
    return {
        "the user": [os.getuid(), os.geteuid(), os.getgid()],
        "the limits (ulimit)": {name: list(resource.getrlimit(getattr(resource, name))) for name in _LIMITS},
        "the allowed CPUs (affinity)": sorted(os.sched_getaffinity(0)),
        "the control group": _read_own_proc("cgroup"),
        "the namespaces": {name: _read_own_proc(f"ns/{name}") for name in _NAMESPACES},
        "the capabilities and the umask": {name: text.strip() for name, _, text in lines if name in _STATUS},
        "the out-of-memory score": _read_own_proc("oom_score_adj"),
    }


def _read_own_proc(name: str) -> str:
    """Return the text of a file, or the target of a link, about this process; "" if it cannot be read."""
    path = Path("/proc/self", name)
    with contextlib.suppress(OSError):
        return str(path.readlink()) if path.is_symlink() else path.read_text(encoding="utf-8")
    return ""


def niceness() -> int:
    """Return this process's niceness."""
    return os.getpriority(os.PRIO_PROCESS, 0)
