"""``python -u -P -m distdl_jupyter.warm.template FILLER``: the template process (FILLER: see ``fork``).

It preloads modules, then serves requests at its socket and forks a supervisor for each job.

The process has one thread, opens no GPU and holds no lock of a job. It exits when it is idle for a while, when a file
that it has imported has changed, when its socket or data directory is removed, and on request.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter import permissions
from distdl_jupyter.clusters.environment import select_for_local_ranks
from distdl_jupyter.core import files, machine, registry
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.events import read_all
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import processes
from distdl_jupyter.warm import fork, preload, start
from distdl_jupyter.warm.preload import UnforkableModule
from distdl_jupyter.worker import installed
from distdl_jupyter.worker.hooks import distributed, frameworks
from distdl_jupyter.worker.rank_socket import open_listener, read_uid

#: Seconds between two checks for ended jobs and for reasons to exit.
_CHECK_SECONDS = 1.0
#: Timeout of one connection in seconds.
_TIMEOUT_SECONDS = 5.0
#: Seconds after which imports start even if the job that started the template is not yet running.
_MAX_WAIT_SECONDS = 20.0
#: States of a job before its ranks are training, in which imports would slow down its start.
_STARTING_STATES = ("queued", "preparing", "starting")


class TemplateExit(Exception):
    """The template exits; the message is the reason."""


class Template:
    """One template. ``config`` is the JSON object that ``main`` reads."""

    def __init__(self, config: Mapping[str, Any], argv: fork.ArgvBuffer) -> None:
        self._files = start.get_template_files()
        self._lock = int(config["lock"])
        self._state = start.read_inherited_state()
        self._preloader = preload.Preloader()
        self._forker = fork.Forker(argv, config["environment"], self._preloader.recorder)
        self.history = preload.ImportHistory(self._files.history)
        self._started_at = time.time()
        self._used_at = time.monotonic()
        #: The running jobs by the pid of their supervisor, and how many jobs were started.
        self._jobs: dict[int, JobFolder] = {}
        self._job_count = 0
        #: Jobs whose imports are added to the history once they have ended. The first one is not started here.
        self._watched_jobs = [JobFolder(Path(config["job"]))] if config["job"] else []
        self._pending_modules: list[str] = []
        self._socket: socket.socket | None = None
        self._socket_inode = -1

    def prepare(self) -> None:
        """Import the modules that jobs need, once the ranks of the first job are training.

        Raises UnforkableModule, TemplateExit.
        """
        backend_modules = _await_ranks(self._watched_jobs[0]) if self._watched_jobs else ()
        package_modules = (*preload.REQUIRED_MODULES, *registry.list_built_in("backends"))
        for name in (*package_modules, *backend_modules, *self.history.list_names()):
            if not self.history.is_unforkable(name):
                self._preloader.load(name)
        if entry := next((entry for entry in sys.path if not os.path.isabs(entry)), ""):  # noqa: PTH117 - a string
            raise TemplateExit(f"sys.path contains {entry!r}, which is a different folder for every job")
        _prepare_forks()

    def _load_next(self) -> None:
        """Import further modules of ended jobs, one per call. Raises UnforkableModule."""
        for folder in filter(_has_ended, list(self._watched_jobs)):
            self._watched_jobs.remove(folder)
            if names := preload.take_imports(folder.path):
                self.history.add(names)
                self._pending_modules += [name for name in self.history.list_names() if self._preloader.can_load(name)]
        if self._pending_modules:
            # One at a time, because a request may arrive in between.
            self._preloader.load(self._pending_modules.pop(0))
            if not self._pending_modules:
                _prepare_forks()

    def serve(self) -> None:
        """Serve requests until an exit condition is met. Raises TemplateExit, UnforkableModule, OSError."""
        installed.list_packages()  # each rank 0 reports them
        path = self._files.socket
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        permissions.make_private(path.parent).chmod(0o700)
        path.unlink(missing_ok=True)
        listener = self._socket = open_listener(path)
        listener.setblocking(False)  # noqa: FBT003 - its only argument
        self._socket_inode = path.stat().st_ino
        while True:
            if select.select([listener], [], [], 0 if self._pending_modules else _CHECK_SECONDS)[0]:
                self._accept(listener)
            with contextlib.suppress(ChildProcessError):
                while ended := os.waitpid(-1, os.WNOHANG)[0]:
                    if ended in self._jobs:  # an import may have started other processes
                        self._watched_jobs.append(self._jobs.pop(ended))
            if not self._has_socket() or not self._files.folder.is_dir():
                raise TemplateExit("its socket or its data directory is gone")
            if self._jobs:
                self._used_at = time.monotonic()
            if time.monotonic() - self._used_at > start.read_settings().idle_minutes * 60:
                raise TemplateExit("it was not used for a while")
            self._load_next()

    def _has_socket(self) -> bool:
        with contextlib.suppress(OSError):
            return self._files.socket.stat().st_ino == self._socket_inode
        return False

    def close(self) -> None:
        """Stop accepting jobs, remove the socket unless it belongs to another template, and release the lock."""
        if self._socket is not None:
            if self._has_socket():
                self._files.socket.unlink(missing_ok=True)
            self._socket.close()
            self._socket = None
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _accept(self, listener: socket.socket) -> None:
        descriptors: list[int] = []
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(_TIMEOUT_SECONDS)
                if read_uid(connection) != os.getuid():
                    return
                message, descriptors = start.receive(connection)
                type_ = message.get("type")
                if type_ == "status":
                    start.send(connection, self._build_status())
                elif type_ == "stop":
                    start.send(connection, {"pid": os.getpid()})
                    raise TemplateExit("it received a request to stop")
                elif type_ == "start":
                    self._start(connection, message, descriptors)
        except (OSError, KeyError, TypeError) as error:
            _log(f"A request failed: {error!r}.")
        finally:
            for fd in descriptors:
                os.close(fd)

    def _start(self, connection: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
        """Fork the supervisor of a job. Raises TemplateExit if this template cannot start jobs like this one."""
        if reason := self._find_refusal(message):
            self.close()  # the submitter may start another template as soon as it has the answer
            start.send(connection, {"cold": reason})
            raise TemplateExit(reason)
        if reason := self._forker.find_difference(message["environment"]):
            # A variable of the job itself, which another template would not have either.
            start.send(connection, {"cold": reason})
            return
        pid = os.fork()
        if pid == 0:
            fork.become_supervisor(connection, message, descriptors, self._forker)
        self._jobs[pid] = JobFolder(Path(message["folder"]))
        self._job_count += 1
        self._used_at = time.monotonic()

    def _find_refusal(self, message: dict[str, Any]) -> str:
        """Return why this template cannot start the job and must be replaced, or "" if it can start the job."""
        if path := self._preloader.find_change():
            return f"{path} has changed since the template was started"
        if reason := self._forker.find_difference(select_for_local_ranks(message["inherited"])):
            return reason
        state = message["state"]
        if name := next((name for name in {**self._state, **state} if self._state.get(name) != state.get(name)), ""):
            return f"the job and the template differ in {name}"
        if message["niceness"] < os.getpriority(os.PRIO_PROCESS, 0):
            return "the template has a lower priority (nice)"
        return "the template has started threads" if preload.count_threads() > 1 else ""

    def _build_status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "modules": len(sys.modules),
            "since": self._started_at,
            "jobs": self._job_count,
            "running": len(self._jobs),
            "learning": bool(self._pending_modules) or any(map(_has_ended, self._watched_jobs)),
            "loads": [name for name in frameworks.SLOW_MODULES if name in sys.modules],
        }


def _has_ended(folder: JobFolder) -> bool:
    """Return whether the job has ended; its supervisor was on this host."""
    return not folder.path.exists() or not files.read_holder(folder.lock).is_held


def _prepare_forks() -> None:
    """Prepare for forks. Loaded objects are not garbage-collected, which would write to their pages and copy them."""
    distributed.watch_groups()
    gc.collect()
    gc.freeze()
    machine.use_huge_pages()
    installed.inherited_count = len(sys.modules)


def main() -> None:
    """Import modules, then serve until an exit condition is met.

    Standard input holds one JSON object: the submitter's ``environment``, in which modules are imported (it is not the
    initial environment of this process, which all processes of this user can read), the ``job`` that must start before
    the imports begin ("" if there is none), and the descriptor of the ``lock``, which this process has inherited.
    """
    machine.reset_signals()  # if SIGCHLD were ignored, ended jobs could not be reaped
    argv = fork.ArgvBuffer()
    config = json.loads(sys.stdin.read())
    os.set_inheritable(config["lock"], False)  # noqa: FBT003 - as in its documentation
    os.write(config["lock"], processes.make_mark().encode())
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    os.environ.clear()
    os.environ.update({**config["environment"], **preload.NO_THREADS})
    template = Template(config, argv)
    try:
        template.prepare()
        template.serve()
    except TemplateExit as reason:
        _log(f"The template exits: {reason}.")
    except UnforkableModule as unforkable:
        _log(f"{unforkable}, so it will not be preloaded again.")
        template.history.exclude(unforkable)
        template.close()
        os.environ.clear()
        os.environ.update(config["environment"])
        # Only a new process is free of what an unforkable module has started, such as threads.
        start.start_template(start.get_template_files())
        os._exit(0)
    finally:
        template.close()


def _await_ranks(job: JobFolder) -> Sequence[str]:
    """Wait until the ranks of a job are training or it has ended, and return the modules of its backend."""
    deadline = time.monotonic() + _MAX_WAIT_SECONDS
    with contextlib.suppress(OSError, DistDLError):
        while time.monotonic() < deadline:
            states = [event["state"] for event in read_all(job.events)[0] if event["type"] == "state"]
            if states and states[-1] not in _STARTING_STATES:
                break
            time.sleep(0.1)
        spec = job.read_spec()
        backend, options = registry.load_backend(spec.distributed_backend, spec.backend_options)
        return tuple(backend.modules(options))
    return ()


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


if __name__ == "__main__":
    main()
