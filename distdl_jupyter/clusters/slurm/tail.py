"""Files that grow, as streams: what ranks append on other nodes comes out of pipes here.

Each file is opened anew for each look, because a network file system shows another machine's writes only then. It knows
nothing of jobs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from pathlib import Path

from distdl_jupyter.clusters.base import Stream

_PIECE = 1024 * 1024
#: Seconds between two looks at all files, and what each file adds to it.
_PAUSE, _PER_FILE = 0.2, 0.002


class Tail:
    """One file from ``position`` (bytes) on; ``stream`` is the reading end."""

    def __init__(self, path: Path, rank: int | None, name: str, position: int) -> None:
        self.path = path
        self.position = position
        read, self._write = os.pipe()
        os.set_blocking(read, False)
        self.stream = Stream(read, rank, name, position)

    def advance(self) -> bool:
        """Pass on what is new, waiting for the reader where it must; True when something was."""
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.position)
                data = file.read(_PIECE)
        except OSError:
            return False
        view = memoryview(data)
        while view:
            written = os.write(self._write, view)
            self.position += written
            view = view[written:]
        return bool(data)

    def unheard(self) -> None:
        """Close the reading end: a writer that waits for a reader wakes up then."""
        os.close(self.stream.fd)

    def close(self) -> None:
        """Close the writing end."""
        os.close(self._write)


class Tailer(threading.Thread):
    """Follows several files until it is stopped."""

    def __init__(self, tails: tuple[Tail, ...]) -> None:
        super().__init__(name="distdl-tail", daemon=True)
        self.tails = tails
        self._stop_wanted = threading.Event()

    def run(self) -> None:
        """Look at all files again and again."""
        pause = _PAUSE + _PER_FILE * len(self.tails)
        # The reader has closed its end: nobody wants more.
        with contextlib.suppress(BrokenPipeError):
            while not self._stop_wanted.is_set():
                came = [tail.advance() for tail in self.tails]
                if not any(came):
                    self._stop_wanted.wait(pause)

    def position(self, rank: int, name: str) -> int:
        """Return how many bytes of one stream were passed on."""
        return next(tail.position for tail in self.tails if (tail.stream.rank, tail.stream.name) == (rank, name))

    def caught_up(self) -> bool:
        """Say whether everything that stands in the files was passed on."""
        return all(_size(tail.path) <= tail.position for tail in self.tails)

    def stop(self) -> None:
        """End the thread and close all ends."""
        self._stop_wanted.set()
        for tail in self.tails:
            tail.unheard()
        if self.is_alive():
            self.join(5.0)
        for tail in self.tails:
            tail.close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def make_room(files: int) -> None:
    """Raise this process's own limit of open files where ``files`` more would pass it, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
