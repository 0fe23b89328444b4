"""How far the sources are, counted by all workers and sent at most four times a second."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


@dataclass
class Count:
    """One source: bytes and files that are here, of how many, and the bytes among them that the disk had."""

    source: str
    total: int
    of: int
    done: int = 0
    cached: int = 0
    files: int = 0

    def message(self) -> dict[str, Any]:
        """Return the message that tells it."""
        return {"type": "progress", "source": self.source, "done": self.done, "total": self.total,
                "cached": self.cached, "files": self.files, "of": self.of}  # fmt: skip


class Progress:
    """The counts of all sources."""

    def __init__(self) -> None:
        self._counts: dict[str, Count] = {}
        self._sent: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def begin(self, source: str, total: int, of: int) -> None:
        """Take up a source of ``total`` bytes in ``of`` files."""
        self._counts[source] = Count(source, total, of)

    def fetched(self, source: str, size: int) -> None:
        """Add bytes that came."""
        with self._lock:
            self._counts[source].done += size

    def set(self, source: str, done: int, total: int) -> None:
        """Say how many bytes of how many are here, where more are heard of meanwhile."""
        with self._lock:
            count = self._counts[source]
            count.done, count.total = done, total

    def lost(self, source: str, size: int) -> None:
        """Take away bytes that were here and were no good; those that the disk had count as fetched from then on."""
        with self._lock:
            count = self._counts[source]
            count.done -= size
            count.cached = min(count.cached, count.done)

    def found(self, source: str, size: int) -> None:
        """Add bytes that the disk had."""
        with self._lock:
            self._counts[source].done += size
            self._counts[source].cached += size

    def whole(self, source: str) -> None:
        """Add a file that is in its place."""
        with self._lock:
            self._counts[source].files += 1

    @property
    def cached(self) -> int:
        """Bytes of all sources that the disk had."""
        return sum(count.cached for count in self._counts.values())

    @property
    def bytes(self) -> int:
        """Bytes of all sources that were fetched and were good."""
        return sum(count.done - count.cached for count in self._counts.values())

    def news(self) -> list[dict[str, Any]]:
        """Return a message for each source that has changed since the last call."""
        found = []
        for name, count in self._counts.items():
            with self._lock:
                message = count.message()
            if self._sent.get(name) != message:
                self._sent[name] = message
                found.append(message)
        return found
