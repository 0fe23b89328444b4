"""What is left to fetch, handed out to workers range by range: several files, and several ranges of one, at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from distdl_jupyter.host.staging import answers, part
from distdl_jupyter.host.staging.cache import RANGE, Cache
from distdl_jupyter.host.staging.fetch import Feed
from distdl_jupyter.host.staging.order import Item
from distdl_jupyter.host.staging.part import Part
from distdl_jupyter.host.staging.progress import Progress
from distdl_jupyter.host.staging.tree import Tree

#: Seconds between two looks at a file that another program is fetching.
_LOOK = 0.2


@dataclass
class File:
    """A blob that is to become a file: where it goes in the folder of its source, and where in the cache."""

    feed: Feed
    item: Item
    place: str
    final: str
    part: Part | None = None
    #: MD5 of the ranges that an earlier attempt has left, by their number.
    left: dict[int, bytes] = field(default_factory=dict)


class Work:
    """``next`` gives a range, ``over`` takes what became of its file. All workers use it at once."""

    def __init__(self, cache: Cache, tree: Tree, progress: Progress) -> None:
        self._cache = cache
        self._tree = tree
        self._progress = progress
        self._lock = threading.Condition()
        self._waiting: deque[File] = deque()
        self._elsewhere: list[File] = []
        self._ranges: deque[tuple[File, int]] = deque()
        self._open = 0

    def take(self, files: Iterable[File]) -> None:
        """Take up what is to be fetched, before any worker asks."""
        self._waiting.extend(files)

    def next(self) -> tuple[File, int] | None:
        """Return a file with the number of one of its ranges, or None when all files are in their place.

        Raises OSError and Failure.
        """
        with self._lock:
            while not self._ranges:
                if self._waiting:
                    self._begin(self._waiting.popleft())
                elif self._elsewhere:
                    self._lock.wait(_LOOK)
                    self._waiting.extend(self._elsewhere)
                    self._elsewhere.clear()
                elif self._open:
                    self._lock.wait()
                else:
                    return None
            return self._ranges.popleft()

    def _begin(self, file: File) -> None:
        """Take up a file: it may be there by now, or be fetched by somebody else."""
        if self.link_cached(file):
            return
        size = file.item.size
        file.part = part.begin(file.final, size, file.item.md5 if size > RANGE else b"")
        if file.part is None:
            file.feed.note("elsewhere", "The same data is being fetched already; what comes is taken over.")
            self._elsewhere.append(file)
        elif self.link_cached(file):  # it came between the two looks
            file.part.drop()
        else:
            self._open += 1
            file.left = file.part.listed()
            if file.left:
                file.feed.note("resumed", "Goes on where an earlier attempt has ended.")
            self._ranges.extend((file, index) for index in range(file.part.count))
            if not file.part.count:
                self._publish(file)
                self._open -= 1

    def link_cached(self, file: File) -> bool:
        """Put a file into its place that the cache has; return whether it had."""
        if not self._cache.has(file.final, file.item.size):
            return False
        try:
            self._tree.add(file.feed.source, file.place, file.final, file.final)
        except FileNotFoundError:
            return False  # let go of by another program between the two calls
        self._progress.found(file.feed.source, file.item.size)
        self._progress.whole(file.feed.source)
        return True

    def over(self, file: File, state: part.State) -> None:
        """Take what became of a file when a range of it was written. Raises OSError and Failure."""
        assert file.part is not None
        if state is part.State.WRONG:
            file.part.drop(listed=True)
            raise answers.mistaken(file.feed.source, file.item.name)
        if state is part.State.WHOLE:
            self._publish(file)
            with self._lock:
                self._open -= 1
                self._lock.notify_all()

    def _publish(self, file: File) -> None:
        assert file.part is not None
        file.part.publish(lambda now, final: self._tree.add(file.feed.source, file.place, now, final))
        self._progress.whole(file.feed.source)
