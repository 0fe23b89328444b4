"""Interrupts of the one who waits, counted instead of raised: what a rank has sent must not be lost half-way."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Interrupts:
    """How many came so far."""

    def __init__(self) -> None:
        self.count = 0

    def count_one(self, *_: Any) -> None:
        """Count one (a signal handler)."""
        self.count += 1


@contextlib.contextmanager
def counted() -> Iterator[Interrupts]:
    """Count SIGINT within this block; in a thread that gets no signals none come."""
    found = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = signal.signal(signal.SIGINT, found.count_one)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
