"""The run of one order: what the cache has is linked and the rest is fetched, until all is in its place.

Files are taken up one after the other and handed out range by range, so that several files, and several ranges of one,
come at a time.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from distdl_jupyter.node.staging import part, paths
from distdl_jupyter.node.staging.cache import MORE_ROOM, RANGE, Cache
from distdl_jupyter.node.staging.failure import Failure, masked, readable
from distdl_jupyter.node.staging.part import Part
from distdl_jupyter.node.staging.tree import Tree
from distdl_jupyter.stager import packages, stores
from distdl_jupyter.stager.fetch import Feed, Fetcher
from distdl_jupyter.stager.order import Item, Order, Source, layout
from distdl_jupyter.stager.progress import Progress
from distdl_jupyter.stager.talk import Talk

#: Seconds between two messages of progress, and between two looks at a file that another program is fetching.
_REPORT, _LOOK = 0.25, 0.2
#: Times that a file may come damaged.
_DAMAGED = 4
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_FULL = {*_NO_ROOM, errno.EFBIG}


@dataclass
class File:
    """An object that is to become a file: where it goes in the folder of its source, and where in the cache."""

    feed: Feed
    item: Item
    place: str
    final: str
    part: Part | None = None
    #: MD5 of the ranges that an earlier attempt has left, by their number.
    left: dict[int, bytes] = field(default_factory=dict)
    damaged: int = 0


class Stager:
    """``run`` does it. Raises Failure."""

    def __init__(self, order: Order, talk: Talk) -> None:
        self._order = order
        self._talk = talk
        self._cache = Cache(order.base)
        self._progress = Progress()
        self._noted: set[tuple[str, str]] = set()
        self._failed: list[BaseException] = []
        self._letting_go = threading.Lock()
        #: Held while files and ranges are handed out.
        self._lock = threading.Condition()
        self._waiting: deque[File] = deque()
        self._elsewhere: list[File] = []
        self._ranges: deque[tuple[File, int]] = deque()
        self._open = 0

    def run(self) -> None:
        """Bring everything here and tell where it is."""
        started = time.monotonic()
        found = {one.variable: paths.checked(one.name, one.path, one.fingerprint)
                 for one in self._order.sources if one.kind == "path"}  # fmt: skip
        stored = [one for one in self._order.sources if one.kind != "path"]
        try:
            if stored:
                found |= self._bring(stored)
        except OSError as error:
            raise self._of_disk(error) from None
        wanted = self._order.packages
        python = (
            packages.Environment(wanted, self._order.base, self._progress, self._send_progress).make() if wanted else ""
        )
        self._send_progress()
        self._talk.last({"type": "staged", "paths": found, "python": python, "bytes": self._progress.bytes,
                         "cached": self._progress.cached, "seconds": round(time.monotonic() - started, 3)})  # fmt: skip

    def _bring(self, sources: list[Source]) -> dict[str, str]:
        self._cache.prepare()
        self._tree = Tree(self._cache, self._order.job, self._order.node)
        files = [file for source in sources for file in self._files(source)]
        missing = [file for file in files if not self._link_cached(file)]
        self._make_room(missing)
        self._waiting.extend(missing)
        self._work(sum(-(-file.item.size // RANGE) for file in missing))
        return {one.variable: self._tree.folder(one.name) for one in sources}

    def _files(self, source: Source) -> list[File]:
        """Return the files of a source; its folders are made."""
        try:
            found = layout(source.prefix, source.items)
        except Failure as failure:
            raise Failure(failure.text, failure.remedy, source.name) from None
        self._tree.folder(source.name)
        for folder in found.folders:
            self._tree.add_folder(source.name, folder)
        self._progress.begin(source.name, sum(item.size for item in found.files.values()), len(found.files))
        ask = partial(self._talk.ask, {"type": "renew", "source": source.name})
        access = stores.access(source.name, source.kind, source.address, ca=self._order.ca, settings=source.settings,
                               ask=ask)  # fmt: skip
        feed = Feed(source.name, source.kind, source.address, access, partial(self._progress.fetched, source.name),
                    partial(self._note, source.name))  # fmt: skip
        return [File(feed, item, place, self._cache.path(source.address, item.name, item.version))
                for place, item in found.files.items()]  # fmt: skip

    def _make_room(self, missing: list[File]) -> None:
        """See to it that what has to come fits. Raises Failure."""
        needed = {file.final: file.item.size - self._cache.begun(file.final) for file in missing}
        over = self._cache.make_room(sum(max(size, 0) for size in needed.values()), self._order.limit)
        if over and self._order.limit is not None:
            self._note("", "cache-limit", f"The data is {readable(over)} larger than the cache limit. "
                       "The excess is deleted when the job ends.")  # fmt: skip

    # workers ------------------------------------------------------------------------------------

    def _work(self, ranges: int) -> None:
        """Fetch with several threads until all is there. Raises what the first of them met."""
        count = min(self._order.workers, max(ranges, 1))
        threads = [threading.Thread(target=self._worker, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not self._failed:
                thread.join(_REPORT)
                self._send_progress()
        if self._failed:
            raise self._failed[0]

    def _worker(self) -> None:
        fetcher = Fetcher()
        try:
            while not self._failed and (taken := self._next()):
                self._one(fetcher, *taken)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it; a panic of obstore is no Exception
            self._failed.append(error)

    def _next(self) -> tuple[File, int] | None:
        """Return a file with the number of one of its ranges, or None when all files are in their place."""
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
        """Take up a file: it may be there by now, or be fetched by another program."""
        if self._link_cached(file):
            return
        file.part = part.begin(file.final, file.item.size)
        if file.part is None:
            file.feed.note("elsewhere", "The same data is already being downloaded and will be reused.")
            self._elsewhere.append(file)
        elif self._link_cached(file):  # it came between the two looks
            file.part.drop()
        elif not file.part.count:
            self._publish(file)
        else:
            self._open += 1
            file.left = file.part.listed()
            if file.left:
                file.feed.note("resumed", "Resuming an earlier download.")
            self._ranges.extend((file, index) for index in range(file.part.count))

    def _one(self, fetcher: Fetcher, file: File, index: int) -> None:
        """Bring one range to the disk, unless an earlier attempt did, and the file to its place after the last."""
        assert file.part is not None
        left = file.left.get(index)
        if left and file.part.holds(index, left, fetcher.buffer):
            self._progress.found(file.feed.source, file.part.length(index))
            whole = file.part.accept(index)
        else:
            content = fetcher.fetch(file.feed, file.item, index)
            whole = self._write(file.part, index, content)
        if whole and self._is_right(file):
            self._publish(file)
            with self._lock:
                self._open -= 1
                self._lock.notify_all()

    def _is_right(self, file: File) -> bool:
        """Return whether a file has the MD5 that it should; else all of it is fetched anew. Raises Failure."""
        assert file.part is not None
        if not file.item.md5 or file.part.md5() == file.item.md5:
            return True
        file.damaged += 1
        file.part.begin_anew()
        if file.damaged == _DAMAGED:
            file.part.drop(listed=True)
            raise Failure(f"{file.item.name!r} of {file.feed.source} arrived with a wrong checksum "
                          "several "
                          "times.", "Upload the file again, or correct its Content-MD5.", file.feed.source)  # fmt: skip
        self._progress.lost(file.feed.source, file.item.size)
        file.feed.note("damaged", f"{file.item.name!r} arrived damaged and is downloaded again.")
        file.left = {}
        with self._lock:
            self._ranges.extend((file, index) for index in range(file.part.count))
            self._lock.notify_all()
        return False

    def _write(self, into: Part, index: int, content: memoryview) -> bool:
        """Write a range; where there is no room left, let go of what no job uses and write it once more."""
        try:
            return into.write(index, content)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
        with self._letting_go:
            self._cache.let_go()
        return into.write(index, content)

    # files --------------------------------------------------------------------------------------

    def _link_cached(self, file: File) -> bool:
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

    def _publish(self, file: File) -> None:
        assert file.part is not None
        file.part.publish(lambda now, final: self._tree.add(file.feed.source, file.place, now, final))
        self._progress.whole(file.feed.source)

    # messages -----------------------------------------------------------------------------------

    def _send_progress(self) -> None:
        for message in self._progress.news():
            self._talk.send(message)

    def _note(self, source: str, code: str, text: str) -> None:
        """Report what is worth a word, once."""
        if (source, code) not in self._noted:
            self._noted.add((source, code))
            level = "info" if code in ("elsewhere", "resumed") else "warning"
            self._talk.send({"type": "note", "source": source, "level": level, "code": code, "text": masked(text)})

    def _of_disk(self, error: OSError) -> Failure:
        if error.errno in _FULL:
            quota = error.errno == errno.EDQUOT
            return Failure(f"Your disk quota for {self._cache.base} is exhausted." if quota else
                           f"The disk of {self._cache.base} is full.",
                           f"{MORE_ROOM} Downloaded files are kept.")  # fmt: skip
        return Failure(f"Cannot store data in {self._cache.base} ({error.strerror or error}).",
                       "Use another folder for staged data.")  # fmt: skip
