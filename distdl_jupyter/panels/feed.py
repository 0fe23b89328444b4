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
    from distdl_jupyter.readers import Reading

#: Seconds between two looks at a log that grew a moment ago, and at a quiet one.
_POLL, _QUIET_POLL = 0.05, 0.12
#: Seconds of reading before what is known is drawn, and the part of the time that a flood is read: the kernel has a
#: user's own work to do.
_TURN, _SHARE = 0.05, 0.3


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
    """Reads on and calls ``draw(final=...)`` several times a second, until the job has ended.

    ``broke`` is told why it cannot go on.
    """

    def __init__(self, reading: Reading, draw: Draw, broke: Callable[[Exception], None]) -> None:
        self._reading = reading
        self._moved = 0.0
        self._draw = draw
        self._broke = broke
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"distdl-panel-{reading.folder.id}", daemon=True)

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
            began = time.monotonic()
            with self._lock:
                moved = self._read(began + _TURN)
                final = not moved and self._reading.view.state.ended
                self._draw(final=final)
            if final:
                return
            self._rest(began, moved=moved)

    def _read(self, until: float) -> bool:
        moved = False
        while self._reading.step():
            moved = True
            if time.monotonic() > until:
                break
        return self._reading.listen(heard=moved) or moved

    def _rest(self, began: float, *, moved: bool) -> None:
        now = time.monotonic()
        if moved:
            self._moved = now
            pause = max(0.01, (now - began) * (1 / _SHARE - 1)) if self._reading.complete else 0.001
        else:
            pause = _POLL if now - self._moved < 5 else _QUIET_POLL
        self._wake.wait(min(pause, 0.5))
        self._wake.clear()
