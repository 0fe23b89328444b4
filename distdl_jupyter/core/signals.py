"""Resets the signal handling of a job's processes to Python's defaults, however the job was submitted.

``delay_interrupt`` delays an interrupt during a short block that must run to its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

#: The handlers that Python sets at startup; other signals have the system's default.
_PYTHON_DEFAULTS: dict[int, Any] = {signal.SIGPIPE: signal.SIG_IGN, signal.SIGINT: signal.default_int_handler}
if hasattr(signal, "SIGXFSZ"):
    _PYTHON_DEFAULTS[signal.SIGXFSZ] = signal.SIG_IGN


def reset() -> None:
    """Reset custom and inherited handlers: ``command &`` in a script, for example, ignores INT and QUIT."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        default = _PYTHON_DEFAULTS.get(number, signal.SIG_DFL)
        if signal.getsignal(number) is not default:
            signal.signal(number, default)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def wake_on_child() -> int:
    """Return a descriptor that becomes readable as soon as a child process ends."""
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


@contextlib.contextmanager
def delay_interrupt() -> Iterator[None]:
    """Delay the first interrupt in the block until the block has ended; a second one is raised immediately.

    Only the main thread receives interrupts; in other threads this does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    frames: list[Any] = []

    def receive(number: int, frame: Any) -> None:
        frames.append(frame)
        if len(frames) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, receive)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if frames:
        handler(signal.SIGINT, frames[0])
