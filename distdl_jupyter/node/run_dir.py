"""A run's private folder in this host's temporary directory: named pipes, the lifeline ``alive``, the relay's socket.

Ranks that a launcher starts connect their output to the named pipes; every rank watches the lifeline, which ends when
its owner does. On Linux a folder of the same name in shared memory belongs to it: Open MPI's ranks share memory by
files, which stay there when the ranks are killed (see ``worker.identity``, which tells them of the folder).

Its owner removes it. When the owner was killed the lifeline has neither writer nor reader any more, once the ranks have
ended too, and ``sweep`` removes such a folder. The folder's name holds a short mark of its job, and no more: Open MPI
puts sockets into it, and a socket's path has at most 107 bytes (unix(7)).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter import permissions

#: The named pipe that the run's owner holds open, and that every rank watches.
LIFELINE = "alive"
_LONGEST = 107
#: Seconds in which a folder may still be without its lifeline because it is being made.
_FRESH = 60.0
#: Seconds that a killed process may hold the lifeline: the kernel takes its memory away before it closes its files.
_DYING = 1.0
#: Shared memory; the folder there has the name of one that mkdtemp made.
_SHARED = Path("/dev/shm")  # noqa: S108 - as below
#: Where folders lie whose path would be too long for a socket.
_SHORT = "/tmp"  # noqa: S108 - mkdtemp makes a folder of its own there
_NAME = re.compile(r"distdl-[0-9a-f]{8}-[a-z0-9_]{8}")


def make(job: str, socket: str = "") -> Path:
    """Make a folder for a run of the job, which this user alone may enter, short enough for a socket of that name.

    Raises OSError.
    """
    folder = _new(job, None)
    if socket and len(os.fsencode(folder / socket)) > _LONGEST:
        folder.rmdir()
        folder = _new(job, _SHORT)
    with contextlib.suppress(OSError):
        (_SHARED / folder.name).mkdir(mode=0o700)
    return folder


def _new(job: str, parent: str | None) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"distdl-{_mark(job)}-", dir=parent))


def lifeline(folder: Path) -> int:
    """Make the lifeline and return this process's hold on it: until it is closed, or this process ends."""
    path = folder / LIFELINE
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, and first its part in shared memory: ``sweep`` finds it by the folder."""
    for path in (_SHARED / folder.name, folder):
        if permissions.is_own(path):
            shutil.rmtree(path, ignore_errors=True)


def sweep(job: str = "") -> None:
    """Remove the folders of runs that are dead, of all of this user's, or of one job whose processes were killed."""
    until = time.monotonic() + (_DYING if job else 0.0)
    for folder in _all(f"distdl-{_mark(job)}-" if job else "distdl-"):
        with contextlib.suppress(OSError):
            if not job and time.time() - folder.stat().st_mtime < _FRESH:
                continue
            while (held := _is_held(folder)) and time.monotonic() < until:
                time.sleep(0.02)
            if held is False:
                remove(folder)


def _mark(job: str) -> str:
    return f"{zlib.crc32(job.encode()):08x}"


def _all(prefix: str) -> Iterator[Path]:
    for parent in {tempfile.gettempdir(), _SHORT}:
        with contextlib.suppress(OSError), os.scandir(parent) as entries:
            for entry in entries:
                named = entry.name.startswith(prefix) and _NAME.fullmatch(entry.name)
                if named and entry.is_dir(follow_symlinks=False) and permissions.is_own(entry.path):
                    yield Path(entry.path)


def _is_held(folder: Path) -> bool | None:
    """Return whether a process has opened the lifeline; None for one that is not there yet or not ours: no proof."""
    try:
        os.close(os.open(folder / LIFELINE, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError as error:
        return False if error.errno == errno.ENXIO else None  # a named pipe without a reader (fifo(7))
    return True


# the folder of one run -----------------------------------------------------------------------------


SOCKET = "shell"


class Pipes:
    """The folder of a run of the job, until it is closed. Raises OSError."""

    def __init__(self, job: str) -> None:
        self.folder = make(job, SOCKET)
        self._lifeline = lifeline(self.folder)

    def _fifo(self, name: str, flags: int) -> int:
        path = self.folder / name
        os.mkfifo(path, 0o600)
        return os.open(path, flags | os.O_CLOEXEC)

    def for_rank(self, rank: int) -> tuple[int, int]:
        """Return the reading ends of a rank's output and error output, which never end by themselves."""
        # With a writer of its own the pipe does not end before the first rank has opened it, nor after the last.
        out, err = (self._fifo(f"rank-{rank}.{name}", os.O_RDWR | os.O_NONBLOCK) for name in ("out", "err"))
        return out, err

    def write_variables(self, variables: Sequence[Any]) -> None:
        """Write down what each rank wants in its environment, for ranks whose launcher gives all the same."""
        path = self.folder / "ranks.json"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:  # noqa: PTH123
            json.dump(list(variables), file)

    def serving(self, rank: int) -> dict[str, Any]:
        """Return where a persistent rank listens: ``socket`` and ``token`` (see ``worker.serving.connection``).

        Raises OSError while it does not listen.
        """
        endpoint = json.loads((self.folder / f"rank-{rank}.json").read_text(encoding="utf-8"))
        return dict(endpoint)

    def close(self) -> None:
        """Let go of the lifeline, so that ranks that still live end themselves, and remove the folder."""
        os.close(self._lifeline)
        remove(self.folder)
        sweep()


# requests to ranks ---------------------------------------------------------------------------------


def ask_profile(folder: Path, ranks: Iterable[int], request: Mapping[str, Any]) -> None:
    """Ask ranks to record some steps, by a file for each (``worker.hooks.profile``). Raises OSError."""
    for rank in ranks:
        path = folder / f"rank-{rank}.profile"
        hidden = folder / f".{path.name}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(hidden, flags, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123  a descriptor
            json.dump(dict(request), file)
        hidden.replace(path)
