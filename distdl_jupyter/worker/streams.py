"""The rank's standard streams and stacks, and the lifeline pipe that ends the rank when its writer exits.

Under ``mpirun`` the streams of all ranks are merged, so the job creates named pipes for each rank. A rank opens its
pipes before it prints anything, because earlier output cannot be attributed to a rank.

Streams are line-buffered as on a terminal, so that each line is one write and a crash loses no complete line. A thread
flushes text without a newline within ``FLUSH_SECONDS``. A child that is forked during a flush would inherit the locked
buffer of the stream and deadlock. Therefore:

* The thread flushes only while it holds ``_flush_lock``, and a fork acquires it first (``_lock_for_fork``).
* If a signal handler interrupts a write and forks, the thread may hold ``_flush_lock`` while it waits for that write.
  ``flush`` detects this, and the fork then waits at most ``MAX_FORK_SECONDS``: by then, the thread has no other lock.
* ``_flush_lock`` is reentrant, so a signal handler that interrupts ``_lock_for_fork`` can also fork. The child creates
  a new lock.

The stacks of all threads are written to a file next to the job's named pipes when the rank receives a signal. The
handler is that of ``faulthandler``. It is written in C, so it also runs while a library holds the GIL, as Horovod does
when it waits for other ranks. The first line of the file is JSON that tells the reader (``node.processes``) the
process, the signal and the thread that runs the user's code. After the stacks, a thread appends the last collective
operations as one line of JSON, ``{"collectives": ...}`` (``hooks.distributed``), unless a library holds the GIL.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import io
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distdl_jupyter.worker.channel import move_to_high_fd
from distdl_jupyter.worker.hooks import distributed
from distdl_jupyter.worker.identity import Identity

#: Seconds to wait until a named pipe has a reader.
PIPE_SECONDS = 30.0
#: Seconds between the request to exit and the forced exit when the lifeline breaks.
GRACE_SECONDS = 2.0
#: Interval in seconds in which text without a newline is flushed and the ``periodic_calls`` are made.
FLUSH_SECONDS = 0.25
#: Maximum seconds that a fork waits for the flushing thread, if a signal handler interrupts a write and forks.
MAX_FORK_SECONDS = 1.0
#: Exit code of a rank whose lifeline broke and that did not exit on request.
ORPHANED_EXIT_CODE = 70
#: Functions that the flushing thread calls every ``FLUSH_SECONDS`` seconds. They must not block.
periodic_calls: list[Callable[[], None]] = []
#: Whether the flushing thread is running.
is_running = False


def adopt(pipes: Path | None, rank: int) -> None:
    """Use the named pipes in ``pipes`` as the rank's standard streams and watch the lifeline, as far as they exist.

    A rank that cannot open its pipe keeps its original stream and prints a message there. The lifeline's writer must
    open it before the rank starts; otherwise the rank ends immediately.
    """
    global is_running
    lifeline = None
    if pipes is not None:
        outputs = {fd: pipes / f"rank-{rank}.{name}" for fd, name in ((1, "out"), (2, "err"))}
        for fd, path in outputs.items():
            _replace_stream(fd, path)
        if (pipes / "alive").exists():
            # Without O_NONBLOCK, open() would wait for a writer, which may have exited already.
            lifeline = move_to_high_fd(os.open(pipes / "alive", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            if not any(path.exists() for path in outputs.values()):
                _die_with_parent()
    if not _streams:
        os.register_at_fork(before=_lock_for_fork, after_in_parent=_unlock_after_fork, after_in_child=_replace_lock)
    sys.stdout = sys.__stdout__ = _open_line_buffered(1, "<stdout>")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _open_line_buffered(2, "<stderr>")  # type: ignore[misc]
    _streams[:] = [sys.stdout, sys.stderr]
    is_running = True
    threading.Thread(target=_run_flusher, args=(lifeline,), name="distdl-lifeline", daemon=True).start()


def _replace_stream(fd: int, path: Path) -> None:
    """Replace a stream by a named pipe, if it exists, waiting up to ``PIPE_SECONDS`` seconds for its reader."""
    deadline = time.monotonic() + PIPE_SECONDS
    while path.exists():
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # ENXIO without a reader
        except OSError as error:
            if time.monotonic() > deadline:
                text = f"The rank uses its inherited stream {fd} because {path} cannot be opened: {error}.\n"
                os.write(2, text.encode())
                return
            time.sleep(0.05)
        else:
            os.set_blocking(pipe, True)
            os.dup2(pipe, fd)
            os.close(pipe)
            return


#: The line-buffered streams created here. Training code may replace ``sys.stdout`` and ``sys.stderr``.
_streams: list[io.TextIOWrapper] = []


def _open_line_buffered(fd: int, name: str) -> io.TextIOWrapper:
    """Return a line-buffered stream that accepts any character."""
    raw = io.FileIO(fd, "w", closefd=False)
    raw.name = name
    # An unbuffered stream would lose the rest of a write that a signal interrupts.
    buffer = io.BufferedWriter(raw)
    text = io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True)
    text.mode = "w"  # type: ignore[misc]
    return text


#: Held by the flushing thread during a flush, and by a thread that forks.
_flush_lock = threading.RLock()


def flush() -> bool:
    """Flush text without a newline. Return False if a signal handler calls this in the middle of a write."""
    is_interrupting = False
    for stream in _streams:
        try:
            stream.flush()
        except RuntimeError:
            is_interrupting = True
        except (OSError, ValueError):  # the pipe has no reader, or the stream is closed
            pass
    return not is_interrupting


def _lock_for_fork() -> None:
    """Prepare a fork. Otherwise the child would print buffered text again and could deadlock (see the module)."""
    _flush_lock.acquire(timeout=-1 if flush() else MAX_FORK_SECONDS)


def _unlock_after_fork() -> None:
    with contextlib.suppress(RuntimeError):  # the lock was not acquired
        _flush_lock.release()


def _replace_lock() -> None:
    global _flush_lock
    _flush_lock = threading.RLock()


def _run_flusher(lifeline: int | None) -> None:
    """Flush text without a newline, and end this process when the lifeline has no writer."""
    poller = select.poll()
    if lifeline is not None:
        poller.register(lifeline, select.POLLIN)
    while True:
        # Read each time, because poll() does not report the end if the last writer exited before the pipe was opened.
        with contextlib.suppress(BlockingIOError):
            if lifeline is not None and not os.read(lifeline, 4096):
                break
        poller.poll(FLUSH_SECONDS * 1000)
        with _flush_lock:
            flush()
        for call in periodic_calls:
            with contextlib.suppress(Exception):
                call()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(ORPHANED_EXIT_CODE)


def _die_with_parent() -> None:
    """Make the kernel send SIGTERM when the parent exits (Linux).

    This is a fallback for the thread, which cannot run while a library holds the GIL. It is used only if the parent is
    the supervisor itself, because the kernel also sends the signal when a launcher's thread that started the rank ends.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # include/uapi/linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)


#: Environment variable with the folder of the file, for jobs without named pipes.
STACKS_FOLDER_VARIABLE = "DISTDL_STACKS"
#: On Linux, a real-time signal that libraries do not use. Elsewhere SIGINFO, which is ignored by default.
_SIGNAL = 57 if sys.platform == "linux" else getattr(signal, "SIGINFO", None)
#: The stacks are complete when the file has not grown for ``_IDLE_SECONDS`` seconds, or after ``_MAX_SECONDS`` seconds.
_IDLE_SECONDS, _MAX_SECONDS = 0.05, 1.0


def install_stacks_handler(identity: Identity) -> None:
    """Install the handler, if the platform has the signal, a folder is known and the file can be opened."""
    folder = os.environ.get(STACKS_FOLDER_VARIABLE) or identity.pipes
    if folder is None or _SIGNAL is None:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = move_to_high_fd(os.open(Path(folder) / f"rank-{identity.rank}.stacks", flags, 0o600))
        faulthandler.register(_SIGNAL, file=fd, all_threads=True)
        start_time = ""
        with contextlib.suppress(OSError, IndexError):  # only Linux has this file
            # Field 22 of proc_pid_stat(5); the first two contain the program's name, which may contain spaces.
            start_time = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
        first_line = {
            "pid": os.getpid(),
            "start": start_time,
            "signal": _SIGNAL,
            "fd": fd,
            "main": f"{threading.get_ident():#018x}",
            **_list_folders(identity.folder / "code"),
            "host": identity.host,
            "collectives": is_running,
        }
        os.write(fd, json.dumps(first_line).encode() + b"\n")
        periodic_calls.append(functools.partial(next, _append_operations(fd)))


def _append_operations(fd: int) -> Iterator[None]:
    """Append the last collective operations to each requested stack dump. Each iteration checks for a dump."""
    size = os.fstat(fd).st_size

    def append() -> None:
        # A thread, because reading torch's record can block while torch locks it.
        deadline, previous_size = time.monotonic() + _MAX_SECONDS, -1
        while previous_size != (previous_size := os.fstat(fd).st_size) and time.monotonic() < deadline:
            time.sleep(_IDLE_SECONDS)
        os.write(fd, json.dumps({"collectives": distributed.collect_operations()}).encode() + b"\n")

    while True:
        if os.fstat(fd).st_size > size:
            thread = threading.Thread(target=append, name="distdl-collectives", daemon=True)
            thread.start()
            while thread.is_alive():
                yield
            size = os.fstat(fd).st_size
        yield


def collect_operations(code_folder: Path) -> dict[str, Any]:
    """Return this process's last operations and the folders for labeling their frames, or {} if there are none."""
    operations = distributed.collect_operations()
    return {"operations": operations, "about": _list_folders(code_folder)} if operations else {}


def _list_folders(code_folder: Path) -> dict[str, str]:
    return {"worker": str(Path(__file__).parent), "code": str(code_folder), "stdlib": str(Path(os.__file__).parent)}
