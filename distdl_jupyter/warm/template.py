"""The template process: it imports ahead, then answers at its socket and forks one supervisor for each job.

It has one thread, opens no GPU and holds no job's lock. It ends when nobody has needed it for a while, when anything
that it has imported has changed, when its socket or its data directory is gone, and when it is asked to.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters.environment import for_ranks_here
from distdl_jupyter.core import sockets
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import processes
from distdl_jupyter.warm import (
    import_history,
    modules,
    pages,
    preconditions,
    process_context,
    settings,
    supervisor,
    wire,
)
from distdl_jupyter.warm.preload import Prepared
from distdl_jupyter.warm.process_marker import Room
from distdl_jupyter.warm.template_files import TemplateFiles
from distdl_jupyter.worker import import_recorder, installed
from distdl_jupyter.worker.watch import frameworks, rendezvous

#: Seconds between two looks at what makes a template end.
_TICK = 2.0
#: Seconds that one conversation may take.
_TIMEOUT = 5.0


class Ended(Exception):
    """The template is to end; the message says why."""


class Template:
    """One template. ``environment`` is the submitter's, in which everything is imported."""

    def __init__(self, place: TemplateFiles, room: Room, environment: Mapping[str, str]) -> None:
        self._place = place
        self._room = room
        self._environment = dict(environment)
        self._process_context = process_context.now()
        self._modules = modules.Modules()
        self._learned = import_history.Learned(place.learned)
        self._since = time.time()
        self._last = time.monotonic()
        self._jobs: dict[int, JobFolder] = {}
        self._started = 0
        self._watched: list[JobFolder] = []
        self._wanted: list[str] = []
        #: Jobs that tell only what they have imported beyond this template's modules.
        self._warm: set[str] = set()
        self._socket: socket.socket | None = None

    def watch(self, folder: JobFolder) -> None:
        """Learn from this job when it has ended."""
        self._watched.append(folder)

    # imports ----------------------------------------------------------------------------------

    def prepare(self, more: tuple[str, ...] = ()) -> None:
        """Import what jobs need. Raises Unfit, Ended."""
        try:
            for name in modules.own():
                self._modules.load(name)
        except modules.Unfit as unfit:
            raise Ended(f"a module that it needs cannot be preloaded: {unfit}") from unfit
        for name in (*more, *self._learned.names()):
            if not self._learned.is_unfit(name):
                self._modules.load(name)
        if entry := preconditions.relative_path():
            raise Ended(f"sys.path contains {entry!r}, which is a different folder for every job")
        _settle()

    def _learn(self) -> None:
        """Begin to import what ended jobs have imported beyond that, or go on with it. Raises Unfit."""
        for folder in list(self._watched):
            if not _has_ended(folder):
                continue
            self._watched.remove(folder)
            if names := import_history.take_from(folder.path):
                self._learned.add([*self._learned.names(), *names] if folder.id in self._warm else names)
                self._wanted += [name for name in self._learned.names() if self._modules.would_load(name)]
        if self._wanted:
            # One at a time: between two of them a job may come.
            self._modules.load(self._wanted.pop(0))
            if not self._wanted:
                _settle()

    def leave_out(self, unfit: modules.Unfit) -> None:
        """Never import those modules ahead again."""
        self._learned.leave_out(unfit.names, unfit.why)

    # serving ----------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer until something ends it. Raises Ended, Unfit, OSError."""
        wake = _wake_on_child()
        installed.packages()  # each rank 0 tells them
        self._listen()
        while True:
            assert self._socket is not None, "it listens until it ends"
            for ready in select.select([self._socket.fileno(), wake], [], [], 0 if self._wanted else _TICK)[0]:
                if ready == wake:
                    _empty(wake)
                else:
                    self._answer_next()
            self._reap()
            self._look_around()
            self._learn()

    def _listen(self) -> None:
        path = self._place.socket
        sockets.secured(path.parent)
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.bind(str(path))
        finally:
            os.umask(before)
        self._socket.listen(16)
        self._socket.setblocking(False)  # noqa: FBT003 - its only argument
        self._inode = path.stat().st_ino

    def close(self) -> None:
        """Take no more jobs, and the socket away, unless another template has put its own there."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                if self._place.socket.stat().st_ino == self._inode:
                    self._place.socket.unlink()
            self._socket.close()

    def _look_around(self) -> None:
        try:
            same = self._place.socket.stat().st_ino == self._inode
        except OSError:
            same = False
        if not same:
            raise Ended("its socket is gone")
        if not self._place.folder.is_dir():
            raise Ended("its data directory is gone")
        if self._jobs:
            self._last = time.monotonic()
        if time.monotonic() - self._last > settings.read().idle_minutes * 60:
            raise Ended("it was not used for a while")

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                folder = self._jobs.pop(found[0], None)
                if folder is not None:
                    self._warm.add(folder.id)
                    self.watch(folder)

    # conversations ----------------------------------------------------------------------------

    def _answer_next(self) -> None:
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(_TIMEOUT)
            if sockets.peer_uid(connection) == os.getuid():
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        descriptors: list[int] = []
        try:
            message, descriptors = wire.receive(connection)
            self._answer(connection, message, descriptors)
        except (wire.Broken, OSError, KeyError, TypeError) as error:
            sys.stderr.write(f"A connection ended early: {error!r}.\n")
        finally:
            for fd in descriptors:
                os.close(fd)

    def _answer(self, connection: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
        kind = message.get("type")
        if kind == "status":
            wire.send(connection, self._status())
        elif kind == "stop":
            wire.send(connection, {"pid": os.getpid()})
            raise Ended("it received a request to stop")
        elif kind == "start" and len(descriptors) == len(supervisor.DESCRIPTORS):
            self._start(connection, message, descriptors)

    def _start(self, connection: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
        reason = self._refusal(message)
        if reason:
            wire.send(connection, {"cold": reason})
            raise Ended(reason)
        if name := self._prepared().differing(message["environment"]):
            # The job's own variables: another template would not have them either.
            wire.send(connection, {"cold": _differs(name)})
            return
        pid = os.fork()
        if pid == 0:
            supervisor.become(connection, message, descriptors, self._prepared())
        self._jobs[pid] = JobFolder(Path(message["folder"]))
        self._started += 1
        self._last = time.monotonic()

    def _refusal(self, message: dict[str, Any]) -> str:
        """Return why this job cannot start warm, "" when it can; a template that says so has had its day."""
        if path := self._modules.stamps.changed():
            return f"{path} has changed since the template was started"
        if name := self._prepared().differing(for_ranks_here(message["inherited"])):
            return _differs(name)
        if name := process_context.difference(self._process_context, message["circumstances"]):
            return f"the job and the template differ in {name}"
        if message["niceness"] < process_context.niceness():
            return "the template has a lower priority (nice)"
        if preconditions.threads() > 1:
            return "the template has started threads"
        return ""

    def _prepared(self) -> Prepared:
        recorder = self._modules.recorder
        return Prepared(self._room, self._environment, recorder.read, recorder.set)

    def _status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "python": self._place.python,
            "modules": len(sys.modules),
            "since": self._since,
            "jobs": self._started,
            "running": len(self._jobs),
            "learning": bool(self._wanted) or any(map(_has_ended, self._watched)),
            "unfit": self._learned.unfit,
            "loads": [name for name in frameworks.SLOW if name in sys.modules],
        }


def _differs(name: str) -> str:
    return f"the value of the environment variable {name} differs from that of the template"


def _has_ended(folder: JobFolder) -> bool:
    return not folder.path.exists() or supervisor.is_over(folder)


def _settle() -> None:
    """Let the garbage collector leave alone what was loaded: what it touches would be copied."""
    rendezvous.look_ahead()
    gc.collect()
    gc.freeze()
    pages.collapse()
    import_recorder.known = len(sys.modules)


def _wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _empty(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


def only_one(place: TemplateFiles, timeout: float = 5.0) -> int | None:
    """Take the lock of the place and return its descriptor; None when another template keeps it."""
    place.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                return None
            time.sleep(0.05)
        else:
            os.ftruncate(fd, 0)
            os.write(fd, processes.mark().encode())
            return fd


def stopped(place: TemplateFiles) -> float:
    """Return when a template of this place was last asked to end (epoch seconds), 0 when none was."""
    try:
        return float(place.stopped.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0.0
