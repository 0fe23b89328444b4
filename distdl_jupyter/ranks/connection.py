"""Connect to the ranks of a session and lock it for one client.

The addresses of the ranks are in the job's private folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.ranks.answer import RanksBusy
from distdl_jupyter.worker.rank_socket import NOTES, ConnectionLost, MessageSocket, note_of, peer_uid

#: Timeout in seconds for the response of a rank's service thread, which waits while user code holds the GIL.
_TIMEOUT = 60.0


class RankConnection(MessageSocket):
    """A connection to one rank. ``doing`` is what the rank was running when connected, "" if it was idle."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        super().__init__(connection)
        self.rank = rank
        self.doing = ""

    def read_state(self) -> str:
        """Return the response to a ``state`` request: what the rank is running, "" if idle. Raises ConnectionLost."""
        while True:
            for message in self.receive():
                if message.header.get("say") == "state":
                    return str(message.header.get("doing") or "")

    def __del__(self) -> None:
        self.close()


def connect(folder: JobFolder, rank: int) -> RankConnection:
    """Connect to a rank. Raises ConnectionLost if it does not listen, DistDLError if another user's process listens."""
    try:
        note = json.loads(note_of(folder.path / NOTES, rank).read_text(encoding="utf-8"))
        path, token = str(note["socket"]), str(note["token"])
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise ConnectionLost(f"Rank {rank} is not listening.") from error
    connection = RankConnection(rank, unix)
    try:
        unix.settimeout(_TIMEOUT)
        unix.connect(path)
        if peer_uid(unix) != os.getuid():
            raise DistDLError(  # noqa: TRY301 - the handler closes the connection
                f"Another process is listening at {path}.",
                code="ranks-socket-taken",
                hint="Set JUPYTER_RUNTIME_DIR to a folder that belongs to you.",
            )
        connection.send({"do": "hello", "token": token})
        while not (messages := connection.receive()):
            pass
        connection.doing = str(messages[0].header.get("doing") or "")
        unix.settimeout(None)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError):
            raise ConnectionLost(f"The connection to rank {rank} failed.") from error
        raise
    return connection


def stamps(folder: JobFolder) -> dict[str, int]:
    """Return the modification time in ns of each rank's address file, which a new supervisor rewrites."""
    times = {}
    for path in (folder.path / NOTES).glob("rank-*.json"):
        with contextlib.suppress(OSError):
            times[path.name] = path.stat().st_mtime_ns
    return times


def running() -> Iterator[JobFolder]:
    """Yield the folders of sessions that may be running and were started on this machine, newest first.

    Logs are not read. The session of a killed supervisor may still run in a Slurm allocation, in which case its address
    files exist.
    """
    for folder in JobStore().folders():
        if (folder.path / NOTES).is_dir():
            supervisor = folder.supervisor()
            if not supervisor.host and (supervisor.held or stamps(folder)):
                yield folder


# one client at a time -----------------------------------------------------------------------------


@contextlib.contextmanager
def locked(folder: JobFolder, doing: str) -> Iterator[None]:
    """Lock the session for one request. Raises RanksBusy if another request has locked it.

    ``doing`` describes the request in messages to other clients. The lock is also released if this process exits.
    """
    fd = _open_lock(folder)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(fd)
            raise busy(str(holder.get("doing", "")), int(holder.get("pid", -1))) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"doing": doing[:500], "pid": os.getpid()}).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def lock_holder(folder: JobFolder) -> int:
    """Return the pid of the process that has locked the session, 0 if it is not locked."""
    fd = _open_lock(folder)
    try:
        pid = int(_holder(fd).get("pid", 0))
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # the process was killed
        return 0
    finally:
        os.close(fd)
    return pid


def busy(doing: str, pid: int = 0) -> RanksBusy:
    """Return the error for busy ranks. ``pid`` is the process that started the cell, 0 if it has exited."""
    owner = "" if not pid else " of this notebook" if pid == os.getpid() else f" of another kernel (process {pid})"
    started = "" if pid else ", started by a kernel that has exited"
    return RanksBusy(
        f"The ranks are busy with {doing or 'a cell'}{owner}{started}.",
        code="ranks-busy",
        hint="Wait for it to finish, or interrupt the ranks.",
    )


def _open_lock(folder: JobFolder) -> int:
    return os.open(folder.path / NOTES / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _holder(fd: int) -> dict[str, str | int]:
    try:
        data = json.loads(os.pread(fd, 4096, 0))
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
