"""One range of one blob into memory, whole and proven, through cuts, throttling and signatures that end."""

from __future__ import annotations

import hashlib
import http.client
import random
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from distdl_jupyter.host.staging import answers
from distdl_jupyter.host.staging.access import Access
from distdl_jupyter.host.staging.cache import RANGE
from distdl_jupyter.host.staging.connection import Connection
from distdl_jupyter.host.staging.failure import Failure
from distdl_jupyter.host.staging.order import Item

#: The version of the service whose answers are understood here.
_VERSION = "2023-11-03"
#: Bytes that are read at once: what is lost at most of a cut.
_PIECE = 256 * 1024
#: Attempts in a row without a byte, which is about two minutes; times that a range may come damaged.
_ATTEMPTS, _DAMAGED = 12, 4
#: Seconds between attempts, at first and at most.
_FIRST, _LONGEST = 0.2, 20.0


@dataclass(frozen=True, slots=True)
class Feed:
    """Where a source's blobs come from; ``count`` is told the bytes as they come, ``note`` what is worth a word."""

    source: str
    address: str
    access: Access
    count: Callable[[int], None]
    note: Callable[[str, str], None]


class _Again(Exception):
    """The request may be made again, after ``wait`` seconds at least; ``at_once`` where something was mended."""

    def __init__(self, why: str, wait: float = 0.0, *, at_once: bool = False) -> None:
        super().__init__(why)
        self.wait = wait
        self.at_once = at_once


class Fetcher:
    """One worker's connections and its buffer; its ranges are good until the next is fetched."""

    def __init__(self, context: ssl.SSLContext, sleep: Callable[[float], object] = time.sleep) -> None:
        self._context = context
        self._sleep = sleep
        self._connections: dict[str, Connection] = {}
        self.buffer = memoryview(bytearray(RANGE))

    def close(self) -> None:
        """End the connections."""
        for connection in self._connections.values():
            connection.close()

    def fetch(self, feed: Feed, item: Item, index: int, *, proven: bool) -> tuple[memoryview, bytes]:
        """Return a range's bytes and their MD5. With ``proven`` the service is asked for the MD5 of the range.

        Without, the range has to be the whole blob and is held against the blob's own MD5. Raises Failure.
        """
        start = index * RANGE
        view = self.buffer[: min(RANGE, item.size - start)]
        for _ in range(_DAMAGED):
            told = self._fill(feed, item, start, view, proven)
            found = hashlib.md5(view, usedforsecurity=False).digest()
            if found == (told if proven else item.md5):
                return view, found
            feed.count(-len(view))
            feed.note("damaged", f"A part of {item.name!r} came damaged and is fetched again.")
        raise answers.mistaken(feed.source, item.name)

    def _fill(self, feed: Feed, item: Item, start: int, view: memoryview, proven: bool) -> bytes:  # noqa: FBT001
        """Read a whole range in as many requests as it takes; return the MD5 that the first one told."""
        told, got, attempt = b"", 0, 0
        while got < len(view):
            before = got
            try:
                answer = self._ask(feed, item, start + got, start + len(view), proven=proven and not got)
                told = answers.md5(answer) if not got else told
                if proven and not told:
                    raise Failure(f"{feed.address.split('/')[2]} tells no checksum of a range.", source=feed.source)
                for size in _pieces(answer, view[got:]):
                    got += size
                    feed.count(size)
                if got < len(view):
                    self._cut(feed)
            except (_Again, OSError, http.client.HTTPException) as error:
                attempt = 1 if got > before else attempt + 1
                self._wait(feed, item, attempt, error)
        return told

    def _ask(self, feed: Feed, item: Item, start: int, end: int, *, proven: bool) -> http.client.HTTPResponse:
        """Return the answer that brings the bytes from ``start`` to ``end``.

        Raises _Again, Failure, OSError, HTTPException.
        """
        sas, number = feed.access.sas(item.name)
        target = f"{urlsplit(feed.address).path}/{quote(item.name, safe='/~')}?{sas}"
        headers = {"x-ms-version": _VERSION, "x-ms-range": f"bytes={start}-{end - 1}", "If-Match": f'"{item.etag}"',
                   "User-Agent": "distdl-jupyter"}  # fmt: skip
        if proven:
            headers["x-ms-range-get-content-md5"] = "true"
        answer = self._get(self._connection(feed), target, headers)
        if answer.status in (200, 206):
            if not answers.fits(answer, start, end, item.size):
                raise http.client.HTTPException("other bytes came than were asked for")
            feed.access.worked()
            return answer
        code = answers.code(answer)
        if not answer.isclosed():  # a long refusal is not worth a read
            self._connection(feed).close()
        if answer.status in (401, 403):
            feed.access.refused(number, answer.status, code)
            raise _Again("the signature has ended", at_once=True)
        if answer.status in answers.BUSY:
            feed.note("throttled", f"Azure Blob asks for patience ({answer.status} {code}).")
            raise _Again(f"{answer.status} {code}", answers.patience(answer))
        raise answers.refusal(feed.source, item.name, answer.status, code)

    def _get(self, connection: Connection, target: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Ask; once more at once when a connection that was idle turns out to have been ended."""
        fresh = connection.fresh
        try:
            return connection.get(target, headers)
        except (ConnectionError, http.client.BadStatusLine, ssl.SSLError):
            connection.close()
            if fresh:
                raise
            return connection.get(target, headers)

    def _wait(self, feed: Feed, item: Item, attempt: int, error: Exception) -> None:
        """Wait before the next attempt. Raises Failure after the last, and where no attempt can help."""
        if not isinstance(error, _Again):
            self._connection(feed).close()
        host = feed.address.split("/")[2]
        if isinstance(error, ssl.SSLCertVerificationError):
            raise answers.untrusted(feed.source, host, error)
        if attempt >= _ATTEMPTS:
            raise answers.silent(feed.source, host, item.name, error)
        told, at_once = (error.wait, error.at_once) if isinstance(error, _Again) else (0.0, False)
        usual = min(_FIRST * 2 ** (attempt - 1), _LONGEST) * random.uniform(0.7, 1.3)  # noqa: S311 - no secret
        self._sleep(0.0 if at_once else max(told, usual))

    def _cut(self, feed: Feed) -> None:
        self._connection(feed).close()
        raise _Again("the connection was cut")

    def _connection(self, feed: Feed) -> Connection:
        host = feed.address.split("/")[2]
        if host not in self._connections:
            self._connections[host] = Connection(feed.address, self._context)
        return self._connections[host]


def _pieces(answer: http.client.HTTPResponse, view: memoryview) -> Iterator[int]:
    """Read a body into ``view`` and yield the bytes of each piece, until it is full or the connection has ended."""
    while view and (size := answer.readinto(view[:_PIECE])):
        yield size
        view = view[size:]
