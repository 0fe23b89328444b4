"""The rank's standard streams, and the lifeline that ends the rank when they have no reader.

Under ``mpirun`` the streams of all ranks are merged, so the job creates named pipes for each rank. A rank opens them
first, because earlier output cannot be assigned to a rank.

Streams are line-buffered as on a terminal: no line is lost in a crash, and each line is one write. Text without a
newline is flushed within ``PARTIAL`` seconds.

While the flushing thread writes, it holds the lock of the stream's buffer. A child forked at that moment would inherit
the lock without its owner and wait for it forever. This cannot happen:

* The thread flushes only while it holds ``_flushing``; a fork acquires that lock before (``_hold``) and releases it
  after. So during a fork the thread holds no stream's lock, nor any other lock that a child acquires.
* The fork does not wait forever. The thread holds ``_flushing`` while it writes, until the pipe accepts the bytes or
  has no reader, or while it waits for a stream that another thread writes to, which ends in the same way. The forking
  thread is that other thread only if a signal handler forks after interrupting a write. ``flush`` detects this, and the
  wait is limited to ``INTERRUPTED`` seconds: a thread that has not released the lock by then waits for the interrupted
  write, without any stream's lock (or the other stream's pipe was full for that long).
* A fork by a handler that interrupts ``_hold`` acquires the lock again, because it is reentrant. The child starts with
  a new lock, whichever thread held the parent's.

Locks held by other threads during a fork are not handled: they print as on a terminal.
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
#: Seconds between the request to exit and the forced exit when the lifeline breaks.
GRACE = 2.0
#: Seconds after which text without a newline is flushed, and between two calls of ``at_each_look``.
PARTIAL = 0.25
#: Seconds that a fork waits for the flushing thread if it interrupts a write of its own thread.
INTERRUPTED = 1.0
#: Exit code of a rank whose lifeline broke and that did not exit on request.
ORPHANED = 70
#: Functions that the thread calls regularly; they must not block.
at_each_look: list[Callable[[], None]] = []
_is_attended = False


def adopt(pipes: Path | None, rank: int) -> None:
    """Use the rank's named pipes as standard streams and watch the lifeline, if they exist in ``pipes``.

    A rank that cannot open its pipe keeps its original stream and prints a message there.
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
    """Open a named pipe, with a timeout for its reader. Raises OSError (ENXIO: no reader)."""
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


#: The original streams of this process, which training code may have replaced.
_own: list[io.TextIOWrapper] = []


def _write_whole_lines() -> None:
    """Make the standard streams line-buffered and able to print any character."""
    if not _own:
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_renew)
    sys.stdout = sys.__stdout__ = _by_line(1, "<stdout>")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _by_line(2, "<stderr>")  # type: ignore[misc]
    _own[:] = [sys.stdout, sys.stderr]


def _by_line(fd: int, name: str) -> io.TextIOWrapper:
    """Return a stream like Python's for a terminal.

    Its buffer completes a write that a signal has interrupted; Python's unbuffered streams would lose the rest.
    """
    raw = io.FileIO(fd, "w", closefd=False)
    raw.name = name
    text = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True
    )
    text.mode = "w"  # type: ignore[misc]
    return text


#: Held by the flushing thread during a flush, and by a thread that forks.
_flushing = threading.RLock()


def flush() -> bool:
    """Flush text without a newline; return False if this thread is in the middle of a write."""
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
    """Prepare a fork: a child would print buffered text again, and could wait for the flushing thread forever."""
    _flushing.acquire(timeout=-1 if flush() else INTERRUPTED)


def _release() -> None:
    with contextlib.suppress(RuntimeError):  # it was not acquired
        _flushing.release()


def _renew() -> None:
    global _flushing
    _flushing = threading.RLock()


def _attend(lifeline: Path | None) -> None:
    """Start the thread that flushes and, with a pipe ``lifeline``, ends this process when the pipe has no writer.

    The writer must have opened the pipe before the rank starts, or the rank ends at once.
    """
    pipe = None
    if lifeline is not None and lifeline.exists():
        # Without O_NONBLOCK, opening would wait for a writer, forever if that has died.
        pipe = lifted(os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    global _is_attended
    _is_attended = True
    threading.Thread(target=_keep_up, args=(pipe,), name="distdl-lifeline", daemon=True).start()


def is_attended() -> bool:
    """Return whether the thread that flushes and calls ``at_each_look`` is running."""
    return _is_attended


def _keep_up(pipe: int | None) -> None:
    waiting = select.poll()
    if pipe is not None:
        waiting.register(pipe, select.POLLIN)
    # Read each time, because poll() does not report the end if the last writer was gone before the pipe was opened.
    while pipe is None or not _has_ended(pipe):
        waiting.poll(PARTIAL * 1000)
        with _flushing:
            flush()
        for call in at_each_look:
            with contextlib.suppress(Exception):
                call()
    _end()


def _die_with_parent() -> None:
    """Make the kernel send TERM when the parent process dies (Linux).

    This backs up the thread, which cannot run while a library holds the GIL. It is used only if the parent is the
    supervisor itself, because a launcher may end one of its threads at any time.
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
