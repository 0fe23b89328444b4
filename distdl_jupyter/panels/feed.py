"""The thread that keeps a panel live while the kernel does something else.

It alone reads the job's log, folds it and draws; the widgets' own callbacks, which come in the kernel's main thread or
in a subshell, only set a trait or place a request and wake it. It ends with the job; a panel of an ended job is drawn
by whoever changes something on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from distdl_jupyter.core.events import Event
    from distdl_jupyter.follow import Follower

#: Seconds between two looks at the log.
_POLL = 0.12


class Draw(Protocol):
    """Shows what is known; ``final`` the last time, when everything is to be shown."""

    def __call__(self, *, final: bool) -> None:
        """Draw."""


class Pace:
    """At most one turn every ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._next = 0.0

    def due(self, now: float) -> bool:
        """Say whether it is time (seconds of a monotonic clock), and if so count it as a turn."""
        if now < self._next:
            return False
        self._next = now + self.seconds
        return True


class Feed:
    """Calls ``take`` with new events and ``draw(final=...)`` several times a second, until the job has ended.

    ``broke`` is told why it cannot go on.
    """

    def __init__(
        self, follower: Follower, take: Callable[[list[Event]], None], draw: Draw, broke: Callable[[Exception], None]
    ) -> None:
        self._follower = follower
        self._take = take
        self._draw = draw
        self._broke = broke
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"distdl-panel-{follower.folder.id}", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the panel keeps what it shows."""
        self._stopped = True
        self._wake.set()

    def poke(self) -> None:
        """Draw soon: something was asked for or changed."""
        if self._ended.is_set():
            with self._lock:
                self._draw(final=True)
        else:
            self._wake.set()

    def finish(self, patience: float = 10.0) -> bool:
        """Wait until the end of an ended job is drawn; False when that takes longer than ``patience`` seconds."""
        self._wake.set()
        return self._ended.wait(patience)

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001  a thread's error would be lost, and the panel would stand still unnoticed
            self._broke(error)
        finally:
            self._ended.set()

    def _follow(self) -> None:
        while not self._stopped:
            events = self._follower.read()
            final = not events and self._follower.view.state.ended
            with self._lock:
                self._take(events)
                self._draw(final=final)
            if final:
                return
            if not events:
                self._wake.wait(_POLL)
                self._wake.clear()
            else:
                time.sleep(0.01)
