"""What comes over a wire for one reader: bytes into a pipe, as if its writer were a process here.

A pipe is never waited for: what does not fit waits in memory, and the wire stops reading while much is waiting.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque


class PipeEnd:
    """The writing end of a pipe whose reader may be slow, used by one thread; ``reader`` is for whoever reads."""

    def __init__(self, skip: int = 0) -> None:
        """``skip`` is how many bytes at the beginning are left out."""
        self._skip = skip
        self.reader, self.fd = os.pipe()
        os.set_blocking(self.fd, False)
        self._waiting: deque[bytes] = deque()
        self._ending = False
        self._broken = False
        #: Bytes that wait for the reader.
        self.pending = 0

    @property
    def done(self) -> bool:
        """Whether nothing will be written any more, so that it can be closed."""
        return self._broken or (self._ending and not self._waiting)

    def feed(self, content: bytes) -> None:
        """Take the next bytes; b"" ends the pipe behind what is waiting."""
        if not content:
            self._ending = True
            return
        if self._skip:
            skipped = min(self._skip, len(content))
            self._skip, content = self._skip - skipped, content[skipped:]
        if content and not self._broken:
            self._waiting.append(content)
            self.pending += len(content)
            self.write()

    def write(self) -> None:
        """Write what fits now."""
        try:
            while self._waiting:
                self._took(os.write(self.fd, self._waiting[0]))
        except BlockingIOError:
            return
        except OSError:  # nobody reads any more
            self._broken = True
            self._waiting.clear()
            self.pending = 0

    def _took(self, count: int) -> None:
        self.pending -= count
        first = self._waiting.popleft()
        if count < len(first):
            self._waiting.appendleft(first[count:])

    def close(self) -> None:
        """Close the writing end; what is waiting is dropped."""
        self._broken, self.pending = True, 0
        self._waiting.clear()
        with contextlib.suppress(OSError):
            os.close(self.fd)
