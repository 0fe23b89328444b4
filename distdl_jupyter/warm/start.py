"""Starts jobs from the submitting process: warm from the template, else cold, with a template for the next job.

Submitters and templates share the rest: the template's files, the user's settings, messages and inherited state.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import msgspec

from distdl_jupyter.clusters.environment import select_for_local_ranks
from distdl_jupyter.core import machine, store
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.files import JobLock, read_holder, write_json
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import processes
from distdl_jupyter.supervisor import control
from distdl_jupyter.worker import installed, owned
from distdl_jupyter.worker.rank_socket import read_uid

#: The code of the notice with the reason for a cold start.
COLD_START_CODE = "cold-start"
#: Timeout in seconds for the reply of a template, which may be importing. A cold start takes longer.
_TIMEOUT_SECONDS = 1.0
#: The version of the messages, so that two versions of this package never share a socket.
PROTOCOL = 6
#: The environment variable with the folder for the templates of several data directories.
_FOLDER_VARIABLE = "DISTDL_WARM_DIR"


def start_job(folder: JobFolder, lock: JobLock, secret_variables: Mapping[str, str], *, python: str = "") -> None:
    """Start the supervisor of a published job, warm if possible, and pass the lock to it.

    The reason for a cold start is written to the job's log as one sentence, unless warm starts do not apply (remote
    cluster, not Linux, inside a rank, or disabled). Raises OSError if the supervisor cannot be started.
    """
    spec, files = folder.read_spec(), get_template_files(python)
    # Forked ranks can be marked on Linux only (see ``fork.ArgvBuffer``). A job inside a rank belongs to that rank's
    # processes and must end with them.
    is_applicable = sys.platform == "linux" and spec.cluster == "local" and "DISTDL_JOB_ID" not in os.environ
    if not is_applicable or find_disabling_setting():
        control.start_supervisor(folder, lock, secret_variables, python=python)
        return
    installed.get_record_folder(folder.path).mkdir(mode=0o700, exist_ok=True)
    inherited = _read_own_environment()
    request = {
        "type": "start",
        "folder": str(folder.path.absolute()),
        "inherited": inherited,
        "environment": {**select_for_local_ranks(inherited), **spec.environment_variables, **secret_variables},
        "secrets": dict(secret_variables),
        "state": read_inherited_state(),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    }
    try:
        with folder.supervisor_log.open("ab") as log:
            reply = _request(files, request, (lock.fd, log.fileno()))
        if "accepted" in reply:
            lock.release()
            return
        reason = reply.get("cold", "the warm template could not start it")
    except (FileNotFoundError, ConnectionRefusedError):
        reason = "no warm template was running for this Python; the next job will have one"
        if has_template(files):
            reason = "the warm template for this Python is still being prepared"
    except OSError:
        reason = "the warm template did not respond"
    with contextlib.closing(EventWriter(folder.events)) as writer:
        writer.write("note", level="info", text=f"This job starts cold because {reason}.", code=COLD_START_CODE)
    control.start_supervisor(folder, lock, secret_variables, python=python)
    with contextlib.suppress(OSError):
        start_template(files, folder)


def _read_own_environment() -> dict[str, str]:
    """Return the environment of this process without its job mark."""
    return {name: value for name, value in os.environ.items() if name not in ("DISTDL_JOB_ID", FILLER)}


def _request(files: TemplateFiles, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
    """Send a request to the template, confirm the start of a job, and return the reply. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_SECONDS)
        connection.connect(str(files.socket))
        if read_uid(connection) != os.getuid():
            raise PermissionError("the socket belongs to another user's process")
        send(connection, message, descriptors)
        reply, _ = receive(connection)
        if "accepted" in reply:
            send(connection, {"go": True})
    return reply


def has_template(files: TemplateFiles) -> bool:
    """Return whether a template is running, even if it is still importing."""
    return read_holder(files.lock).is_held


def get_status(files: TemplateFiles) -> dict[str, Any] | None:
    """Return the status of the template (see ``Template``), or None if no template is ready."""
    try:
        return _request(files, {"type": "status"})
    except OSError:
        return None


def stop(files: TemplateFiles, timeout: float = 10.0) -> bool:
    """Stop the template, wait up to ``timeout`` seconds, and return whether it has exited. Its jobs continue.

    Return False if no template is running. A template that may run on another host gets no signal.
    """
    if not has_template(files):
        return False
    was_received = False
    with contextlib.suppress(OSError):
        was_received = bool(_request(files, {"type": "stop"}))
    deadline = time.monotonic() + timeout
    while has_template(files) and time.monotonic() < deadline:
        # A template that is importing cannot reply: signal it, unless it runs on another host that shares this folder.
        with contextlib.suppress(OSError):
            mark = files.lock.read_text(encoding="utf-8")
            was_received = was_received or processes.signal_marked(mark, signal.SIGTERM)
        time.sleep(0.02)
    return not has_template(files)


def start_template(files: TemplateFiles, folder: JobFolder | None = None) -> None:
    """Start a template (see ``template.main``) unless one is running or starting. Raises OSError.

    With ``folder``, it imports after that job has started.
    """
    files.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    environment = select_for_local_ranks(_read_own_environment())
    # Without secrets, because all processes of this user can read a program's initial environment.
    initial = {name: value for name, value in environment.items() if not is_secret(name, value)} | FILLER_VARIABLE
    job = str(folder.path.absolute()) if folder else ""
    with (
        open(files.lock, "ab", opener=owned.open_private) as lock,
        open(files.log, "ab", opener=owned.open_private) as log,
        # The order is in memory before the start, because this process may exit immediately.
        _create_memory_file({"environment": environment, "job": job, "lock": lock.fileno()}) as stdin,
    ):
        # The template inherits the lock, so that no other template can be started in between.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        lock.truncate(0)
        process = subprocess.Popen(
            [files.python, "-u", "-P", "-m", "distdl_jupyter.warm.template", FILLER_ARGUMENT],
            stdin=stdin,
            stdout=log,
            stderr=log,
            env=initial,
            cwd=files.folder,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
        )
    # Reap the child, which would otherwise stay a zombie until this process exits.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=process.wait, name="reap-template", daemon=True).start()


def wait_until_ready(files: TemplateFiles, timeout: float = 120.0) -> dict[str, Any] | None:
    """Wait until a template is ready and return its status, or None after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while (reply := get_status(files)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return reply


class TemplateFiles(NamedTuple):
    """The paths of one template's files, whose names contain ``key``, and its interpreter ``python``."""

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


def get_templates_folder() -> Path:
    """Return the folder of all templates of this data directory, or ``$DISTDL_WARM_DIR`` if several share one."""
    path = os.environ.get(_FOLDER_VARIABLE)
    return Path(path).expanduser() if path else store.get_home() / "warm"


def get_template_files(python: str = "") -> TemplateFiles:
    """Return the files of the template of an interpreter (default: this one).

    Links are not resolved, because the interpreter of a virtual environment is often a link to a common one.
    """
    path = os.path.abspath(python or sys.executable)  # noqa: PTH100 - Path.resolve would follow the link
    folder = get_templates_folder()
    name = f"{PROTOCOL}\0{os.getuid()}\0{path}\0{folder.absolute()}"
    key = hashlib.sha256(os.fsencode(name)).hexdigest()[:12]
    socket_file = machine.get_socket_path(f"warm-{key}", folder if os.environ.get(_FOLDER_VARIABLE) else None)
    return TemplateFiles(path, key, folder, socket_file, *(folder / f"{key}.{end}" for end in ("lock", "log", "json")))


class Settings(msgspec.Struct, frozen=True):
    """The user's settings for all kernels. ``idle_minutes`` is how long a template runs after its last job."""

    enabled: bool = True
    idle_minutes: Annotated[float, msgspec.Meta(gt=0, le=60 * 24 * 7)] = 30.0


def read_settings() -> Settings:
    """Return the settings, or the defaults if the file cannot be read."""
    try:
        return msgspec.json.decode((get_templates_folder() / "settings.json").read_bytes(), type=Settings)
    except (OSError, ValueError):
        return Settings()


def change_settings(**changes: Any) -> Settings:
    """Change and store ``enabled`` and ``idle_minutes``, and return the settings. Raises InvalidSpec, OSError."""
    try:
        settings = msgspec.convert({**msgspec.to_builtins(read_settings()), **changes}, Settings, strict=False)
    except msgspec.ValidationError:
        message = f"idle_minutes must be above 0 and at most 10080 (one week), not {changes['idle_minutes']!r}."
        raise InvalidSpec(message, code="warm-idle-minutes-invalid", field="idle_minutes") from None
    write_json(get_templates_folder() / "settings.json", msgspec.to_builtins(settings))
    return settings


def find_disabling_setting() -> str:
    """Return the setting that disables warm starts ("DISTDL_WARM" or "the settings"), or "" if they are enabled."""
    if os.environ.get("DISTDL_WARM", "").lower() in ("off", "0", "no", "false"):
        return "DISTDL_WARM"
    return "" if read_settings().enabled else "the settings"


#: Maximum size of a message in bytes; an environment may have several hundred kB.
_MAX_BYTES = 64 * 2**20
#: Maximum number of descriptors of a message.
_MAX_DESCRIPTORS = 8


def _create_memory_file(data: Mapping[str, Any]) -> IO[bytes]:
    file = open(os.memfd_create("message"), "w+b")  # noqa: PTH123, SIM115 - closed by the caller
    file.write(json.dumps(data).encode())
    file.seek(0)
    return file


def send(connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message as an in-memory file, whose descriptor precedes the others. Raises OSError."""
    with _create_memory_file(message) as file:
        socket.send_fds(connection, [b"."], [file.fileno(), *descriptors])


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one message and its descriptors. Raises OSError, also for an invalid message."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    message = None
    with contextlib.suppress(IndexError, ValueError, OSError), open(descriptors.pop(0), "rb") as file:  # noqa: PTH123
        message = json.loads(file.read(_MAX_BYTES))
    if isinstance(message, dict):
        return message, descriptors
    for fd in descriptors:
        os.close(fd)
    raise ConnectionError("The peer closed the connection, or its message is not a JSON object.")


#: The last variable of a template's environment, and the last argument of its command line (see ``fork.ArgvBuffer``).
FILLER = "DISTDL_WARM_ROOM"
FILLER_VARIABLE, FILLER_ARGUMENT = {FILLER: "." * 240}, "-" * 400
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_STATUS_FIELDS = ("Umask", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
_LIMITS = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))


def read_inherited_state() -> dict[str, Any]:
    """Return the inherited state of this process, except its environment, as JSON data. Messages quote the keys.

    A cold job inherits this state from its submitter and a warm job from the template, so both must be equal.
    """
    lines = (line.partition(":") for line in _read_own_proc("status").splitlines())
    return {
        "the user": [os.getuid(), os.geteuid(), os.getgid()],
        "the limits (ulimit)": {name: list(resource.getrlimit(getattr(resource, name))) for name in _LIMITS},
        "the allowed CPUs (affinity)": sorted(os.sched_getaffinity(0)),
        "the control group": _read_own_proc("cgroup"),
        "the namespaces": {name: _read_own_proc(f"ns/{name}") for name in _NAMESPACES},
        "the capabilities and the umask": {name: text.strip() for name, _, text in lines if name in _STATUS_FIELDS},
        "the out-of-memory score": _read_own_proc("oom_score_adj"),
    }


def _read_own_proc(name: str) -> str:
    """Return the text of a file about this process, or the target of a link; "" if it cannot be read."""
    path = Path("/proc/self", name)
    with contextlib.suppress(OSError):
        return str(path.readlink()) if path.is_symlink() else path.read_text(encoding="utf-8")
    return ""
