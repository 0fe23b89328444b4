"""The rank's own standard streams, and the lifeline that ends it when nobody reads them any more.

Under ``mpirun`` the streams of all ranks are merged into one, so the job offers named pipes for each rank. They are the
first thing that a rank opens: what is printed before belongs to nobody.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

#: Seconds to wait until somebody reads a named pipe.
PATIENCE = 30.0
#: Seconds between the request to end and the end, when the lifeline breaks.
GRACE = 2.0
#: Exit code of a rank whose lifeline broke and that did not end on request.
ORPHANED = 70


def adopt(pipes: Path | None, rank: int) -> None:
    """Make the rank's named pipes its standard streams and watch the lifeline, as far as they exist in ``pipes``.

    A rank that cannot open its pipe keeps the stream that it was started with and says so there.
    """
    if pipes is not None:
        for fd, name in ((1, "out"), (2, "err")):
            _replace(fd, pipes / f"rank-{rank}.{name}")
        _watch(pipes / "alive")
    _write_at_once()


def _replace(fd: int, path: Path) -> None:
    if not path.exists():
        return
    try:
        pipe = _open_for_writing(path)
    except OSError as error:
        os.write(2, f"The rank keeps its inherited stream {fd}, because {path} cannot be opened: {error}.\n".encode())
        return
    os.dup2(pipe, fd)
    os.close(pipe)


def _open_for_writing(path: Path) -> int:
    """Open a named pipe without waiting forever for its reader. Raises OSError (ENXIO: nobody reads)."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            os.set_blocking(pipe, True)
            return pipe


def _write_at_once() -> None:
    """Let printed text leave the process at once, and let no character be unprintable."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", write_through=True)  # type: ignore[union-attr]


def _watch(path: Path) -> None:
    """Start the thread that ends this process when the last writer of the named pipe ``path`` is gone.

    The writer must have opened it before the rank starts: without a writer the end is at once.
    """
    if not path.exists():
        return
    import threading

    # Without O_NONBLOCK the open itself would wait for a writer, forever when that one has died.
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(pipe, True)
    threading.Thread(target=_await_end, args=(pipe,), name="distdl-lifeline", daemon=True).start()


def _await_end(pipe: int) -> None:
    import signal

    while os.read(pipe, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(ORPHANED)
