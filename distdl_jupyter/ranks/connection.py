"""Connections to a session's ranks. Addresses are in the job's private folder; one client at a time has the lock."""

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

#: Seconds within which a rank's service thread must respond; the user's code may hold the GIL that long.
_TIMEOUT = 60.0


class RankConnection(MessageSocket):
    """A connection to one rank. ``doing`` is what it was running when it accepted the connection ("": nothing)."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        super().__init__(connection)
        self.rank = rank
        self.doing = ""

    def read_state(self) -> str:
        """Return what the rank is running, after a request ``state`` was sent. Raises ConnectionLost."""
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
            raise DistDLError(  # noqa: TRY301 - closed like all others
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
            raise ConnectionLost(f"Rank {rank} is gone.") from error
        raise
    return connection


def stamps(folder: JobFolder) -> dict[str, int]:
    """Return when the address file of each rank was written, in ns: a new supervisor writes it again."""
    times = {}
    for path in (folder.path / NOTES).glob("rank-*.json"):
        with contextlib.suppress(OSError):
            times[path.name] = path.stat().st_mtime_ns
    return times


def running() -> Iterator[JobFolder]:
    """Yield the folders of sessions that may be alive and whose supervisor is on this machine, newest first.

    No log is read. A session whose supervisor was killed may continue in a Slurm allocation; then its address files
    still exist.
    """
    for folder in JobStore().folders():
        if (folder.path / NOTES).is_dir():
            supervisor = folder.supervisor()
            if not supervisor.host and (supervisor.held or stamps(folder)):
                yield folder


# one client at a time -----------------------------------------------------------------------------


@contextlib.contextmanager
def locked(folder: JobFolder, doing: str) -> Iterator[None]:
    """Lock the session for one request; ``doing`` is its name for users. Raises RanksBusy if it is locked.

    The lock is released when its process exits.
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
    """Return the id of the process that has locked the session, 0 if none has."""
    fd = _open_lock(folder)
    try:
        pid = int(_holder(fd).get("pid", 0))
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # it was killed
        return 0
    finally:
        os.close(fd)
    return pid


def busy(doing: str, pid: int = 0) -> RanksBusy:
    """Return the error that names what the ranks are running, and for which process (0: it has exited)."""
    of = "" if not pid else " of this notebook" if pid == os.getpid() else f" of another kernel (process {pid})"
    started = "" if pid else ", started by a kernel that is gone"
    return RanksBusy(
        f"The ranks are busy with {doing or 'a cell'}{of}{started}.",
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
