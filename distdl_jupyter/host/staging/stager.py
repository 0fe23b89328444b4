"""The run of one order: what the cache has is linked and the rest is fetched, until all is in its place."""

from __future__ import annotations

import errno
import ssl
import threading
import time

from distdl_jupyter.host.staging import names, paths
from distdl_jupyter.host.staging.access import Access
from distdl_jupyter.host.staging.cache import MORE_ROOM, RANGE, Cache
from distdl_jupyter.host.staging.connection import trust
from distdl_jupyter.host.staging.failure import Failure, masked, readable
from distdl_jupyter.host.staging.fetch import Feed, Fetcher
from distdl_jupyter.host.staging.order import Order, Source
from distdl_jupyter.host.staging.part import Part, State
from distdl_jupyter.host.staging.progress import Progress
from distdl_jupyter.host.staging.talk import Talk
from distdl_jupyter.host.staging.tree import Tree
from distdl_jupyter.host.staging.work import File, Work

#: Seconds between two messages of progress.
_TELL = 0.25
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_FULL = {*_NO_ROOM, errno.EFBIG}


class Stager:
    """``run`` does it. Raises Failure."""

    def __init__(self, order: Order, talk: Talk) -> None:
        self._order = order
        self._talk = talk
        self._cache = Cache(order.base)
        self._progress = Progress()
        self._noted: set[tuple[str, str]] = set()
        self._failed: list[BaseException] = []
        self._change = threading.Event()
        self._letting_go = threading.Lock()

    def run(self) -> None:
        """Bring everything here and tell where it is."""
        started = time.monotonic()
        found = {one.variable: paths.checked(one) for one in self._order.sources if one.kind == "path"}
        blobs = [one for one in self._order.sources if one.kind == "blob"]
        try:
            if blobs:
                found |= self._blobs(blobs)
        except OSError as error:
            raise self._of_disk(error) from None
        self._tell_progress()
        self._talk.last({"type": "staged", "paths": found, "bytes": self._progress.bytes,
                         "cached": self._progress.cached, "seconds": round(time.monotonic() - started, 3)})  # fmt: skip

    def _blobs(self, sources: list[Source]) -> dict[str, str]:
        self._cache.prepare()
        tree = Tree(self._cache, self._order.job, self._order.node)
        files = [file for source in sources for file in self._files(source, tree)]
        work = Work(self._cache, tree, self._progress)
        missing = [file for file in files if not work.link_cached(file)]
        self._make_room(missing)
        work.take(missing)
        self._work(work, sum(-(-file.item.size // RANGE) for file in missing))
        return {one.variable: tree.folder(one.name) for one in sources}

    def _files(self, source: Source, tree: Tree) -> list[File]:
        """Return the files of a source; its folders are made."""
        try:
            layout = names.layout(source.prefix, source.items)
        except Failure as failure:
            raise Failure(failure.text, failure.remedy, source.name) from None
        tree.folder(source.name)
        for folder in layout.folders:
            tree.add_folder(source.name, folder)
        self._progress.begin(source.name, sum(item.size for item in layout.files.values()), len(layout.files))
        feed = Feed(source.name, source.address, Access(source.name, self._talk),
                    lambda size: self._progress.fetched(source.name, size),
                    lambda code, text: self._note(source.name, code, text))  # fmt: skip
        return [File(feed, item, place, self._cache.path(source.address, item.name, item.etag))
                for place, item in layout.files.items()]  # fmt: skip

    def _make_room(self, missing: list[File]) -> None:
        """See to it that what has to come fits. Raises Failure."""
        needed = {file.final: file.item.size - self._cache.begun(file.final) for file in missing}
        over = self._cache.make_room(sum(max(size, 0) for size in needed.values()), self._order.limit)
        if over and self._order.limit is not None:
            self._note("", "cache-limit", f"The job needs {readable(over)} more than the cache may hold; "
                       "it is let go of when the job has ended.")  # fmt: skip

    def _work(self, work: Work, ranges: int) -> None:
        """Fetch with several threads until all is there. Raises what the first of them met."""
        context = trust(self._order.ca)
        count = min(self._order.workers, max(ranges, 1))
        threads = [threading.Thread(target=self._worker, args=(work, context), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        while not self._failed and any(thread.is_alive() for thread in threads):
            self._change.wait(_TELL)
            self._change.clear()
            self._tell_progress()
        if self._failed:
            raise self._failed[0]

    def _worker(self, work: Work, context: ssl.SSLContext) -> None:
        fetcher = Fetcher(context)
        try:
            while not self._failed and (taken := work.next()):
                work.over(taken[0], self._one(fetcher, work, *taken))
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self._failed.append(error)
        finally:
            fetcher.close()
            self._change.set()

    def _one(self, fetcher: Fetcher, work: Work, file: File, index: int) -> State:
        """Bring one range to the disk, unless an earlier attempt did; return what became of its file."""
        assert file.part is not None
        left = file.left.get(index)
        if left and file.part.holds(index, left, fetcher.buffer):
            size = file.part.length(index)
            self._progress.found(file.feed.source, size)
            return file.part.accept(index, fetcher.buffer[:size])
        proven = file.part.several or not file.item.md5
        content, digest = fetcher.fetch(file.feed, file.item, index, proven=proven)
        return self._write(file.part, index, content, digest)

    def _write(self, part: Part, index: int, content: memoryview, digest: bytes) -> State:
        """Write a range; where there is no room left, let go of what no job uses and write it once more."""
        try:
            return part.write(index, content, digest)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
        with self._letting_go:
            self._cache.let_go()
        return part.write(index, content, digest)

    # words --------------------------------------------------------------------------------------

    def _tell_progress(self) -> None:
        for message in self._progress.news():
            self._talk.tell(message)

    def _note(self, source: str, code: str, text: str) -> None:
        """Tell what is worth a word, once."""
        if (source, code) not in self._noted:
            self._noted.add((source, code))
            level = "info" if code in ("elsewhere", "resumed") else "warning"
            self._talk.tell({"type": "note", "source": source, "level": level, "code": code, "text": masked(text)})

    def _of_disk(self, error: OSError) -> Failure:
        if error.errno in _FULL:
            quota = error.errno == errno.EDQUOT
            return Failure(f"Your quota on the disk with {self._cache.base} is used up." if quota else
                           f"The disk with {self._cache.base} is full.",
                           f"{MORE_ROOM} What has come is kept.")  # fmt: skip
        return Failure(f"{self._cache.base} cannot hold staged data ({error.strerror or error}).",
                       "Choose another folder for staged data.")  # fmt: skip
