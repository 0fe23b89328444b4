"""The rank's own standard streams, and the lifeline that ends it when they have no reader.

Under ``mpirun`` the streams of all ranks are merged into one, so the job offers named pipes for each rank. They are the
first thing that a rank opens: what is printed before has no rank.

Each line leaves the process whole and at once, as at a terminal: none is lost when it crashes, and a print is one write
and not one for each of its words. Text without a line's end follows within ``PARTIAL`` seconds.

While the thread that flushes writes, it has the lock of the stream's buffer. A child that is forked at that moment
would inherit the lock without its owner and wait for it forever. This cannot happen:

* The thread flushes only while it holds ``_flushing``, and a fork takes that lock before (``_hold``) and gives it back
  after. So at a fork the thread has no stream's lock, nor any other that a child takes.
* The fork's wait ends. The thread holds ``_flushing`` while it writes, until the pipe takes the bytes or has no reader,
  or while it waits for a stream that another thread writes to, which ends in the same way. The forking thread is that
  other thread only when a signal's handler forks and has interrupted a write below it. ``flush`` sees this, and the
  wait is limited to ``INTERRUPTED`` seconds: a thread that has not given the lock back by then waits for the
  interrupted write, without any stream's lock (or the other stream's pipe was full for so long).
* A fork by a handler that interrupts ``_hold`` takes the lock once more, because it is reentrant. The child begins with
  a lock of its own, whichever thread held the parent's.

What other threads hold at a fork is not looked at: they print as at a terminal.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from distdl_jupyter.worker.channel import lifted

#: Seconds to wait until a named pipe has a reader.
TIMEOUT = 30.0
#: Seconds between the request to end and the end, when the lifeline breaks.
GRACE = 2.0
#: Seconds after which text without a line's end leaves the process, and between two calls of ``at_each_look``.
PARTIAL = 0.25
#: Seconds that a fork waits for the flushing thread when it happens in the middle of a write of its own thread.
INTERRUPTED = 1.0
#: Exit code of a rank whose lifeline broke and that did not end on request.
ORPHANED = 70
#: What the thread calls each time it looks; nothing that waits.
at_each_look: list[Callable[[], None]] = []
_is_attended = False


def adopt(pipes: Path | None, rank: int) -> None:
    """Make the rank's named pipes its standard streams and watch the lifeline, as far as they exist in ``pipes``.

    A rank that cannot open its pipe keeps the stream that it was started with and says so there.
    """
    if pipes is not None:
        outputs = [(fd, pipes / f"rank-{rank}.{name}") for fd, name in ((1, "out"), (2, "err"))]
        for fd, path in outputs:
            _replace(fd, path)
        if (pipes / "alive").exists() and not any(path.exists() for _, path in outputs):
            _die_with_parent()
    _write_whole_lines()
    _attend(None if pipes is None else pipes / "alive")


def _replace(fd: int, path: Path) -> None:
    if not path.exists():
        return
    try:
        pipe = _open_for_writing(path)
    except OSError as error:
        os.write(2, f"The rank uses its inherited stream {fd} because {path} cannot be opened: {error}.\n".encode())
        return
    os.dup2(pipe, fd)
    os.close(pipe)


def _open_for_writing(path: Path) -> int:
    """Open a named pipe without waiting forever for its reader. Raises OSError (ENXIO: no reader)."""
    until = time.monotonic() + TIMEOUT
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


#: This process's own streams, whatever training code has put in their place since.
_own: list[io.TextIOWrapper] = []


def _write_whole_lines() -> None:
    """Let printed lines leave the process at once, and let no character be unprintable."""
    if not _own:
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_renew)
    sys.stdout = sys.__stdout__ = _by_line(1, "<stdout>")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _by_line(2, "<stderr>")  # type: ignore[misc]
    _own[:] = [sys.stdout, sys.stderr]


def _by_line(fd: int, name: str) -> io.TextIOWrapper:
    """Return a stream as Python makes them for a terminal.

    Its buffer also writes on where a signal cut a write short: what Python makes unbuffered loses the rest then.
    """
    raw = io.FileIO(fd, "w", closefd=False)
    raw.name = name
    text = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True
    )
    text.mode = "w"  # type: ignore[misc]
    return text


#: Held by the thread that flushes while it does so, and by a thread that forks.
_flushing = threading.RLock()


def flush() -> bool:
    """Let what was printed without a line's end leave the process; False where this thread is within a write."""
    interrupted = False
    for stream in _own:
        try:
            stream.flush()
        except RuntimeError:
            interrupted = True
        except (OSError, ValueError):  # no reader; closed
            pass
    return not interrupted


def _hold() -> None:
    """Before a fork: a child would print again what is waiting, and could wait for the flushing thread forever."""
    _flushing.acquire(timeout=-1 if flush() else INTERRUPTED)


def _release() -> None:
    with contextlib.suppress(RuntimeError):  # it could not be had
        _flushing.release()


def _renew() -> None:
    global _flushing
    _flushing = threading.RLock()


def _attend(lifeline: Path | None) -> None:
    """Start the thread that flushes and, with a pipe ``lifeline``, ends this process when its last writer is gone.

    The writer must have opened it before the rank starts: without a writer the end is at once.
    """
    pipe = None
    if lifeline is not None and lifeline.exists():
        # Without O_NONBLOCK the open itself would wait for a writer, forever when that one has died.
        pipe = lifted(os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    global _is_attended
    _is_attended = True
    threading.Thread(target=_keep_up, args=(pipe,), name="distdl-lifeline", daemon=True).start()


def is_attended() -> bool:
    """Return whether the thread runs that flushes and calls ``at_each_look``."""
    return _is_attended


def _keep_up(pipe: int | None) -> None:
    waiting = select.poll()
    if pipe is not None:
        waiting.register(pipe, select.POLLIN)
    # It is read each time, because poll() reports no end where the last writer was gone before the pipe was opened.
    while pipe is None or not _has_ended(pipe):
        waiting.poll(PARTIAL * 1000)
        with _flushing:
            flush()
        for call in at_each_look:
            with contextlib.suppress(Exception):
                call()
    _end()


def _die_with_parent() -> None:
    """Let the kernel send TERM when the process that has started this one dies (Linux).

    A belt beside the thread: code that is stuck in a library without giving the interpreter back stops the thread too.
    Only for a rank whose parent is the supervisor itself; a launcher may end one of its threads when it likes.
    """
    if sys.platform == "linux":
        import ctypes
        import signal

        pr_set_pdeathsig = 1  # include/uapi/linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)


def _has_ended(pipe: int) -> bool:
    try:
        return not os.read(pipe, 4096)
    except BlockingIOError:
        return False


def _end() -> None:
    import signal

    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(ORPHANED)
