"""Starts jobs from the submitting process: warm from the template, else cold, with a template for the next job."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from distdl_jupyter.clusters.environment import for_ranks_here
from distdl_jupyter.core import locks
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.locks import JobLock
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import processes
from distdl_jupyter.supervisor import control
from distdl_jupyter.warm import template_files
from distdl_jupyter.warm.template_files import TemplateFiles
from distdl_jupyter.worker import installed, owned
from distdl_jupyter.worker.rank_socket import peer_uid

#: The code of the notice with the reason for a cold start.
COLD = "cold-start"
#: Timeout in seconds for the reply of a template, which may be importing. A cold start takes longer than this.
_TIMEOUT = 1.0


def begin(folder: JobFolder, lock: JobLock, secret_variables: Mapping[str, str], *, python: str = "") -> str:
    """Start the supervisor of a published job, warm if possible, and pass the lock to it.

    Return the reason for a cold start as one sentence, which is also written to the job's log. Return "" for a warm
    start, and if warm starts do not apply (remote cluster, not Linux, inside a rank, or disabled). Raises OSError if
    the supervisor cannot be started.
    """
    spec = folder.spec()
    # Forked ranks can be marked on Linux only (see ``fork.ArgvBuffer``). A job inside a rank belongs to that rank's
    # processes and must end with them.
    is_applicable = sys.platform == "linux" and spec.cluster == "local" and "DISTDL_JOB_ID" not in os.environ
    if not is_applicable or template_files.switched_off():
        control.start_supervisor(folder, lock, secret_variables, python=python)
        return ""
    files = template_files.of(python)
    installed.folder_of(folder.path).mkdir(mode=0o700, exist_ok=True)
    reason = start_warm(files, folder, lock, secret_variables, spec)
    if not reason:
        lock.release()
        return ""
    with contextlib.closing(EventWriter(folder.events)) as writer:
        writer.write("note", level="info", text=reason, code=COLD)
    control.start_supervisor(folder, lock, secret_variables, python=python)
    with contextlib.suppress(OSError):
        make(files, folder)
    return reason


# the template -------------------------------------------------------------------------------------


def start_warm(
    files: TemplateFiles, folder: JobFolder, lock: JobLock, secret_variables: Mapping[str, str], spec: JobSpec
) -> str:
    """Request a start from the template. Return "" on success, else the reason for a cold start as one sentence."""
    inherited = _own_environment()
    request = {
        "type": "start",
        "folder": str(folder.path.absolute()),
        "inherited": inherited,
        "environment": {**for_ranks_here(inherited), **spec.environment_variables, **secret_variables},
        "secrets": dict(secret_variables),
        "state": template_files.inherited_state(),
        "niceness": template_files.niceness(),
    }
    try:
        connection = _connect(files)
    except (OSError, DistDLError):
        if is_being_made(files):
            return "This job starts cold because the warm template for this Python is still being prepared."
        return "This job starts cold because no warm template was running for this Python; the next job will have one."
    try:
        with connection, folder.supervisor_log.open("ab") as log:
            template_files.send(connection, request, (lock.fd, log.fileno()))
            reply = template_files.receive(connection)[0]
            if "taken" in reply:
                template_files.send(connection, {"go": True})
                return ""
    except OSError:
        return "This job starts cold because the warm template did not respond."
    return f"This job starts cold because {reply.get('cold', 'the warm template could not start it')}."


def _own_environment() -> dict[str, str]:
    """Return the environment of this process without its job mark."""
    return {name: value for name, value in os.environ.items() if name not in ("DISTDL_JOB_ID", template_files.FILLER)}


def _connect(files: TemplateFiles) -> socket.socket:
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connection.settimeout(_TIMEOUT)
        connection.connect(str(files.socket))
        if peer_uid(connection) != os.getuid():
            raise PermissionError("the socket belongs to another user's process")
        stack.pop_all()
    return connection


def is_being_made(files: TemplateFiles) -> bool:
    """Return whether a template is running, even if it is still importing."""
    return locks.holder(files.lock).is_held


def status(files: TemplateFiles) -> dict[str, Any] | None:
    """Return the status of the template, None if none is ready.

    Keys: ``pid python modules since jobs running learning unfit loads``.
    """
    return _request(files, "status")


def stop(files: TemplateFiles, timeout: float = 10.0) -> bool:
    """Stop the template and wait up to ``timeout`` seconds for its exit. Jobs that it started continue.

    Return False if no template is running or it has not exited. A template that may run on another host gets no signal.
    """
    if not is_being_made(files):
        return False
    was_received = _request(files, "stop") is not None
    deadline = time.monotonic() + timeout
    while is_being_made(files) and time.monotonic() < deadline:
        # A template that is importing cannot reply: signal it, unless it runs on another host that shares this folder.
        with contextlib.suppress(OSError):
            was_received = was_received or processes.send_marked(files.lock.read_text(encoding="utf-8"), signal.SIGTERM)
        time.sleep(0.02)
    return not is_being_made(files)


def _request(files: TemplateFiles, type_: str) -> dict[str, Any] | None:
    try:
        with _connect(files) as connection:
            template_files.send(connection, {"type": type_})
            return template_files.receive(connection)[0]
    except (OSError, DistDLError):
        return None


def make(files: TemplateFiles, folder: JobFolder | None = None) -> None:
    """Start a template (see ``template.main``) unless one is running or starting. Raises OSError.

    With ``folder``, it imports after that job has started.
    """
    files.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    environment = for_ranks_here(_own_environment())
    with (
        open(files.lock, "ab", opener=owned.private) as lock,
        open(files.log, "ab", opener=owned.private) as log,
        open(os.memfd_create("order"), "w+b") as stdin,  # noqa: PTH123
    ):
        # The template inherits the lock, so that no other template can be started in between.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        lock.truncate(0)
        # The order is in memory before the start, because this process may exit immediately.
        order = {
            "environment": environment,
            "job": str(folder.path.absolute()) if folder else "",
            "lock": lock.fileno(),
        }
        stdin.write(json.dumps(order).encode())
        stdin.seek(0)
        process = subprocess.Popen(
            [files.python, "-u", "-P", "-m", "distdl_jupyter.warm.template", template_files.FILLER_ARGUMENT],
            stdin=stdin,
            stdout=log,
            stderr=log,
            # Without secrets, because all processes of this user can read a program's initial environment.
            env={
                **{name: value for name, value in environment.items() if not is_secret(name, value)},
                **template_files.FILLER_VARIABLE,
            },
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
    while (reply := status(files)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return reply
