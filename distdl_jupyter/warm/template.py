"""``python -u -P -m distdl_jupyter.warm.template FILLER``: the template process (FILLER: see ``process_state``).

It preloads modules, then serves requests at its socket and forks one supervisor for each job.

The process has one thread, opens no GPU and holds no job's lock. It exits when it is idle for a while, when a file that
it has imported has changed, when its socket or data directory is removed, and on request.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters.environment import for_ranks_here
from distdl_jupyter.core import locks, machine, registry, signals
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.events import read_all
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import processes
from distdl_jupyter.warm import fork, preload, process_state, start, template_files
from distdl_jupyter.warm.preload import Unforkable
from distdl_jupyter.warm.template_files import TemplateFiles
from distdl_jupyter.worker import installed
from distdl_jupyter.worker.hooks import distributed, frameworks
from distdl_jupyter.worker.rank_socket import peer_uid

#: Seconds between two checks for ended jobs and for a reason to exit.
_TICK = 1.0
#: Timeout of one connection in seconds.
_TIMEOUT = 5.0
#: Seconds after which imports start even if the job that started the template is not yet running.
_LATEST = 20.0
#: States of a job before its ranks train, in which imports would slow down its start.
_STARTING = ("queued", "preparing", "starting")
#: Seconds to wait for another template to exit.
_LOCK_SECONDS = 5.0


class Ended(Exception):
    """The template exits; the message is the reason."""


class Template:
    """One template. ``environment`` is that of the submitter, in which modules are imported."""

    def __init__(
        self,
        files: TemplateFiles,
        argv: process_state.ArgvBuffer,
        environment: Mapping[str, str],
        job: JobFolder | None,
    ) -> None:
        self._files = files
        self._state = process_state.current()
        self._preloader = preload.Preloader()
        self._forker = fork.Forker(argv, environment, self._preloader.recorder)
        self._history = preload.ImportHistory(files.history)
        self._since = time.time()
        self._last = time.monotonic()
        self._jobs: dict[int, JobFolder] = {}
        self._started = 0
        #: Jobs whose imports are added to the history once they have ended.
        self._watched = [job] if job is not None else []
        self._to_load: list[str] = []
        self._socket: socket.socket | None = None

    # imports ----------------------------------------------------------------------------------

    def prepare(self, more: tuple[str, ...] = ()) -> None:
        """Import the modules that jobs need. Raises Unforkable, Ended."""
        try:
            for name in preload.required():
                self._preloader.load(name)
        except Unforkable as unforkable:
            raise Ended(f"a module that it needs cannot be preloaded: {unforkable}") from unforkable
        for name in (*more, *self._history.names()):
            if not self._history.is_unforkable(name):
                self._preloader.load(name)
        if entry := preload.relative_path():
            raise Ended(f"sys.path contains {entry!r}, which is a different folder for every job")
        _settle()

    def _learn(self) -> None:
        """Import further modules of ended jobs, one per call. Raises Unforkable."""
        for folder in list(self._watched):
            if not _has_ended(folder):
                continue
            self._watched.remove(folder)
            if names := preload.take_imports(folder.path):
                self._history.add(names)
                self._to_load += [name for name in self._history.names() if self._preloader.would_load(name)]
        if self._to_load:
            # One at a time, because a request may arrive in between.
            self._preloader.load(self._to_load.pop(0))
            if not self._to_load:
                _settle()

    def leave_out(self, unforkable: Unforkable) -> None:
        """Exclude the modules of ``unforkable`` from preloading."""
        self._history.leave_out(unforkable)

    # serving ----------------------------------------------------------------------------------

    def serve(self) -> None:
        """Serve requests until an exit condition. Raises Ended, Unforkable, OSError."""
        installed.packages()  # each rank 0 reports them
        listener = self._listen()
        while True:
            if select.select([listener], [], [], 0 if self._to_load else _TICK)[0]:
                self._accept(listener)
            self._reap()
            self._check()
            self._learn()

    def _listen(self) -> socket.socket:
        path = self._files.socket
        machine.secured(path.parent)
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            listener = self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(16)
        listener.setblocking(False)  # noqa: FBT003 - its only argument
        self._inode = path.stat().st_ino
        return listener

    def _has_socket(self) -> bool:
        try:
            return self._files.socket.stat().st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Stop accepting jobs and remove the socket, unless it belongs to another template."""
        if self._socket is not None:
            if self._has_socket():
                self._files.socket.unlink(missing_ok=True)
            self._socket.close()

    def _check(self) -> None:
        if not self._has_socket():
            raise Ended("its socket is gone")
        if not self._files.folder.is_dir():
            raise Ended("its data directory is gone")
        if self._jobs:
            self._last = time.monotonic()
        if time.monotonic() - self._last > template_files.read_settings().idle_minutes * 60:
            raise Ended("it was not used for a while")

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if (folder := self._jobs.pop(ended[0], None)) is not None:
                    self._watched.append(folder)

    # requests ---------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        descriptors: list[int] = []
        with connection:
            connection.settimeout(_TIMEOUT)
            if peer_uid(connection) != os.getuid():
                return
            try:
                message, descriptors = template_files.receive(connection)
                self._answer(connection, message, descriptors)
            except (template_files.BrokenMessage, OSError, KeyError, TypeError) as error:
                sys.stderr.write(f"A connection ended early: {error!r}.\n")
            finally:
                for fd in descriptors:
                    os.close(fd)

    def _answer(self, connection: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
        kind = message.get("type")
        if kind == "status":
            template_files.send(connection, self._status())
        elif kind == "stop":
            template_files.send(connection, {"pid": os.getpid()})
            raise Ended("it received a request to stop")
        elif kind == "start" and len(descriptors) == len(fork.DESCRIPTORS):
            self._start(connection, message, descriptors)

    def _start(self, connection: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
        if reason := self._refusal(message):
            template_files.send(connection, {"cold": reason})
            raise Ended(reason)
        if name := self._forker.differing(message["environment"]):
            # A variable of the job itself, which another template would not have either.
            template_files.send(connection, {"cold": _differs(name)})
            return
        pid = os.fork()
        if pid == 0:
            fork.become_supervisor(connection, message, descriptors, self._forker)
        self._jobs[pid] = JobFolder(Path(message["folder"]))
        self._started += 1
        self._last = time.monotonic()

    def _refusal(self, message: dict[str, Any]) -> str:
        """Return why this template cannot start the job, "" if it can; if not, the template exits and is replaced."""
        if path := self._preloader.stamps.changed():
            return f"{path} has changed since the template was started"
        if name := self._forker.differing(for_ranks_here(message["inherited"])):
            return _differs(name)
        if name := process_state.difference(self._state, message["state"]):
            return f"the job and the template differ in {name}"
        if message["niceness"] < process_state.niceness():
            return "the template has a lower priority (nice)"
        return "the template has started threads" if preload.thread_count() > 1 else ""

    def _status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "python": self._files.python,
            "modules": len(sys.modules),
            "since": self._since,
            "jobs": self._started,
            "running": len(self._jobs),
            "learning": bool(self._to_load) or any(map(_has_ended, self._watched)),
            "unfit": self._history.unforkable,
            "loads": [name for name in frameworks.SLOW if name in sys.modules],
        }


def _differs(name: str) -> str:
    return f"the value of the environment variable {name} differs from that of the template"


def _has_ended(folder: JobFolder) -> bool:
    """Return whether the job has ended; its supervisor was on this host."""
    return not folder.path.exists() or not locks.is_held(folder.lock)


def _settle() -> None:
    """Exempt loaded objects from garbage collection, which would write to their pages and copy them."""
    distributed.look_ahead()
    gc.collect()
    gc.freeze()
    preload.collapse_pages()
    installed.known = len(sys.modules)


# the program --------------------------------------------------------------------------------------


def main() -> None:
    """Import modules, then serve until an exit condition.

    Standard input holds one JSON object: the submitter's ``environment``, in which modules are imported (it is not the
    initial environment of this process, which all processes of this user can read), the ``job`` that must start before
    the imports begin, and the time when the template was ``made`` (epoch seconds).
    """
    signals.reset()  # if SIGCHLD were ignored, ended jobs could not be reaped
    argv = process_state.ArgvBuffer()
    order = json.loads(sys.stdin.read())
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    os.environ.clear()
    os.environ.update({**order["environment"], **preload.NO_THREADS})
    files = template_files.of()
    lock = _lock(files)
    if lock is None or order["made"] <= _stopped_at(files):
        return
    job = JobFolder(Path(order["job"])) if order.get("job") else None
    if job is not None:
        _wait_for_ranks(job)
    template = Template(files, argv, order["environment"], job)
    try:
        template.prepare(_backend_modules(job) if job is not None else ())
        template.serve()
    except Ended as ended:
        _log(f"The template exits: {ended}.")
    except Unforkable as unforkable:
        _log(f"{unforkable}, so it will not be preloaded again.")
        template.leave_out(unforkable)
        template.close()
        # Only a new process is free of what an unforkable module has started, such as threads.
        start.spawn(files, {**order, "job": ""})
        os._exit(0)
    finally:
        template.close()


def _lock(files: TemplateFiles) -> int | None:
    """Acquire the template lock and return its descriptor; None if another template holds it."""
    files.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                return None
            time.sleep(0.05)
        else:
            os.ftruncate(fd, 0)
            os.write(fd, processes.mark().encode())
            return fd


def _stopped_at(files: TemplateFiles) -> float:
    """Return when a template of these files was last requested to stop (epoch seconds), 0 if never."""
    try:
        return float(files.stopped.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0.0


def _wait_for_ranks(job: JobFolder) -> None:
    deadline = time.monotonic() + _LATEST
    while time.monotonic() < deadline:
        try:
            states = [event["state"] for event in read_all(job.events)[0] if event["type"] == "state"]
        except OSError:
            return
        if states and states[-1] not in _STARTING:
            return
        time.sleep(0.1)


def _backend_modules(job: JobFolder) -> tuple[str, ...]:
    with contextlib.suppress(DistDLError):
        spec = job.spec()
        backend, options = registry.backend(spec.distributed_backend, spec.backend_options)
        return tuple(backend.modules(options))
    return ()


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


if __name__ == "__main__":
    main()
