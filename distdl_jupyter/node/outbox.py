"""What waits to be written to the supervisor: whole frames, in order, without ever blocking.

It is bounded by its users: they stop producing data while it is ``full`` and begin again when it has ``room``.
"""

from __future__ import annotations

import os
from collections import deque

#: Bytes. More than a frame of data, little enough that a slow reader costs no memory.
_FULL, _ROOM = 1024 * 1024, 256 * 1024


class Outbox:
    """The frames for one descriptor."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._frames: deque[bytes] = deque()
        self._begun = b""
        self._urgent = b""
        self._size = 0

    def put(self, frames: bytes) -> None:
        """Add one or more whole frames at the end."""
        self._frames.append(frames)
        self._size += len(frames)

    def urge(self, frame: bytes) -> None:
        """Send a frame before all others; it replaces an urgent one that was not sent yet."""
        self._urgent = frame

    @property
    def full(self) -> bool:
        """Whether nothing should be added but answers."""
        return self._size > _FULL

    @property
    def room(self) -> bool:
        """Whether so much was sent that data may be added again."""
        return self._size < _ROOM

    @property
    def empty(self) -> bool:
        """Whether all was sent."""
        return not (self._begun or self._urgent or self._frames)

    def flush(self) -> None:
        """Write as much as the other side takes now. Raises BrokenPipeError and the like when it is gone."""
        while self._begun or self._next():
            try:
                written = os.write(self.fd, self._begun)
            except BlockingIOError:
                return
            self._begun = self._begun[written:]

    def _next(self) -> bool:
        if self._urgent:
            self._begun, self._urgent = self._urgent, b""
        elif self._frames:
            self._begun = self._frames.popleft()
            self._size -= len(self._begun)
        return bool(self._begun)
