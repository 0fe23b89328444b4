"""Conversations with a template, and making one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.environment import for_ranks_here
from distdl_jupyter.core import locks, sockets
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.node import processes
from distdl_jupyter.warm import process_context, process_marker, wire
from distdl_jupyter.worker import owned

if TYPE_CHECKING:
    from distdl_jupyter.core.events import JobLock
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.warm.template_files import TemplateFiles

#: Seconds that a submitter waits for a template's answer, which may be importing one more module: a cold start costs
#: more than that.
_TIMEOUT = 1.0


def start(
    where: TemplateFiles, folder: JobFolder, lock: JobLock, secret_variables: Mapping[str, str], spec: JobSpec
) -> str:
    """Let the template start the job. Returns "" when it has, else one sentence why it could not."""
    inherited = _inherited()
    request = {
        "type": "start",
        "folder": str(folder.path.absolute()),
        "inherited": inherited,
        "environment": {**for_ranks_here(inherited), **spec.environment_variables, **secret_variables},
        "secrets": dict(secret_variables),
        "circumstances": process_context.now(),
        "limits": process_context.limits(),
        "niceness": process_context.niceness(),
    }
    try:
        connection = _connected(where)
    except (OSError, DistDLError):
        return _none_there(where)
    try:
        with connection, folder.supervisor_log.open("ab") as log:
            wire.send(connection, request, (lock.fd, log.fileno()))
            answer = wire.receive(connection)[0]
            if "taken" in answer:
                wire.send(connection, {"go": True})
                return ""
    except (OSError, wire.Broken):
        return "This job starts cold because the warm template did not respond."
    return f"This job starts cold because {answer.get('cold', 'the warm template could not start it')}."


def _inherited() -> dict[str, str]:
    """Return this process's environment, without the mark of a job that it may belong to."""
    return {name: value for name, value in os.environ.items() if name not in ("DISTDL_JOB_ID", process_marker.NAME)}


def _none_there(where: TemplateFiles) -> str:
    if is_being_made(where):
        return "This job starts cold because the warm template for this Python is still being prepared."
    return "This job starts cold because no warm template was running for this Python; the next job will have one."


def _connected(where: TemplateFiles) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_TIMEOUT)
        connection.connect(str(where.socket))
        own = sockets.peer_uid(connection) == os.getuid()
    except BaseException:
        connection.close()
        raise
    if not own:
        connection.close()
        raise PermissionError("the socket belongs to another user's process")
    return connection


def is_being_made(where: TemplateFiles) -> bool:
    """Say whether a template lives, ready or not."""
    return locks.is_held(where.lock)


def status(where: TemplateFiles) -> dict[str, Any] | None:
    """Return what a template says of itself, None without one.

    That is ``pid python modules since jobs running learning unfit loads``.
    """
    return _asked(where, "status")


def stop(where: TemplateFiles, timeout: float = 10.0) -> bool:
    """End the template and wait until it has gone; jobs that it has started go on.

    False when there was none, or one that cannot be proven to run on this host: such a process gets no signal.
    """
    # For one that has no lock yet: it begins just now, or waits for another's end.
    with contextlib.suppress(FileNotFoundError):
        where.stopped.write_text(repr(time.time()), encoding="ascii")
    if not is_being_made(where):
        return False
    received = _asked(where, "stop") is not None
    until = time.monotonic() + timeout
    while is_being_made(where) and time.monotonic() < until:
        # It still imports. The lock's file names its owner, which may live on another host that shares this folder.
        with contextlib.suppress(OSError):
            received = received or processes.send_marked(where.lock.read_text(encoding="utf-8"), signal.SIGTERM)
        time.sleep(0.02)
    return not is_being_made(where)


def _asked(where: TemplateFiles, type_: str) -> dict[str, Any] | None:
    try:
        with _connected(where) as connection:
            wire.send(connection, {"type": type_})
            return wire.receive(connection)[0]
    except (OSError, wire.Broken, DistDLError):
        return None


def make(where: TemplateFiles, folder: JobFolder | None = None) -> None:
    """Start a template, unless one lives; with ``folder`` its work begins when that job runs. Raises OSError."""
    environment = for_ranks_here(_inherited())
    where.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    order = {"environment": environment, "job": str(folder.path.absolute()) if folder else "", "made": time.time()}
    # In memory and whole before the start: the process that submits may end at once.
    with open(where.log, "ab", opener=owned.private) as log, open(os.memfd_create("order"), "w+b") as given:  # noqa: PTH123
        given.write(json.dumps(order).encode())
        given.seek(0)
        process = subprocess.Popen(
            [where.python, "-u", "-P", "-m", "distdl_jupyter.warm", process_marker.argument()],
            stdin=given,
            stdout=log,
            stderr=log,
            env={**_shown(environment), **process_marker.variables()},
            cwd=where.folder,
            start_new_session=True,
        )
    # A child that ended stays a zombie until somebody waits for it; where no thread can be started, until this ends.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=process.wait, name="reap-template", daemon=True).start()


def _shown(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what may stand in a process's own environment for everybody of the user to see."""
    return {name: value for name, value in environment.items() if not is_secret(name, value)}


def wait_until_ready(where: TemplateFiles, timeout: float = 120.0) -> dict[str, Any] | None:
    """Return the status of a template as soon as it serves, None when it does not within ``timeout`` seconds."""
    until = time.monotonic() + timeout
    while (said := status(where)) is None and time.monotonic() < until:
        time.sleep(0.05)
    return said
