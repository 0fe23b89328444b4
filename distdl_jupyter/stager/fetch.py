"""One range of one object into memory, of the version that was listed, through cuts, throttling and new credentials."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.node.staging.cache import RANGE
from distdl_jupyter.node.staging.failure import Failure
from distdl_jupyter.stager import stores

if TYPE_CHECKING:
    from distdl_jupyter.stager.order import Item
    from distdl_jupyter.stager.stores import Access, Answer

#: Bytes that come at once: what is lost at most of a cut.
_PIECE = 256 * 1024
#: Attempts in a row without a byte, which is about two minutes.
_ATTEMPTS = 12
#: Seconds between attempts, at first and at most, and at least when the store asks for patience.
_FIRST, _LONGEST, _THROTTLED = 0.2, 20.0, 1.0

_RULES = {
    404: ("{name!r} of {source} no longer exists ({code}).",
          "Check whether the file was deleted, then submit the job again."),
    409: ("{name!r} of {source} cannot be read now ({code}).",
          "If the blob is in the archive tier, rehydrate it first."),
    412: ("{name!r} of {source} changed or was deleted during the download.",
          "Submit the job again when no program writes there. Unchanged files are not downloaded again."),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Feed:
    """Where a source's objects come from; ``count`` takes the bytes as they come, ``note`` a code and a sentence."""

    source: str
    kind: str
    address: str
    access: Access
    count: Callable[[int], None]
    note: Callable[[str, str], None]

    @property
    def host(self) -> str:
        """What is named when nothing comes from there."""
        return self.address if self.kind in ("s3", "gs") else self.address.split("/")[2]

    @property
    def title(self) -> str:
        """What is named when an answer came."""
        return "Azure Blob" if self.kind == "blob" else self.host


class Fetcher:
    """One worker's buffer: ``fetch`` fills it, and what it returned is good until the next call."""

    def __init__(self, sleep: Callable[[float], object] = time.sleep) -> None:
        self._sleep = sleep
        self.buffer = memoryview(bytearray(RANGE))

    def fetch(self, feed: Feed, item: Item, index: int) -> memoryview:
        """Return the bytes of a range. Raises Failure."""
        start = index * RANGE
        view = self.buffer[: min(RANGE, item.size - start)]
        got = attempt = 0
        while got < len(view):
            store, number = feed.access.store()
            before = got
            try:
                for piece in self._open(feed, store, item, start + got, start + len(view)):
                    view[got : got + len(piece)] = piece
                    got += len(piece)
                    feed.count(len(piece))
                feed.access.worked()
            except stores.errors() as error:
                answer = stores.answer(error)
                if feed.access.refuses(number, answer):
                    feed.access.refused(number, answer)
                    continue
                attempt = 1 if got > before else attempt + 1
                if not answer.passing or attempt >= _ATTEMPTS:
                    raise refusal(feed, item.name, answer) from None
                self._wait(feed, attempt, answer)
        return view

    def _open(self, feed: Feed, store: Any, item: Item, start: int, end: int) -> Any:
        """Return the pieces of the bytes from ``start`` to ``end``. Raises Failure, and what obstore raises."""
        import obstore

        options: Any = stores.condition(feed.kind, item.version)
        if feed.kind != "https" or end - start < item.size:  # not every web server gives parts
            options["range"] = (start, end)
        found = obstore.get(store, item.name, options=options)
        if (stores.version(found.meta), found.meta["size"]) != (item.version, item.size):
            raise refusal(feed, item.name, stores.CHANGED)
        return found.stream(min_chunk_size=_PIECE)

    def _wait(self, feed: Feed, attempt: int, answer: Answer) -> None:
        usual = min(_FIRST * 2 ** (attempt - 1), _LONGEST) * random.uniform(0.7, 1.3)  # noqa: S311 - no secret
        if answer.status in stores.BUSY:
            feed.note("throttled", f"{feed.title} limits the number of requests ({answer.status} {answer.code}).")
            usual = max(usual, _THROTTLED)
        self._sleep(usual)


def refusal(feed: Feed, name: str, answer: Answer) -> Failure:
    """Return the failure that an answer means after which nothing can be tried."""
    source, host = feed.source, feed.host
    if answer.untrusted:
        return Failure(f"The certificate of {host} is not trusted ({answer.untrusted}).",
                       "Set SSL_CERT_FILE to the certificate of your proxy or service.", source)  # fmt: skip
    if answer.passing:
        why = f"{answer.status} {answer.code}" if answer.status else answer.code
        return Failure(f"The download of {name!r} from {host} is incomplete ({why}).",
                       "Check the network of this node, then submit the job again. The download "
                       "resumes.", source)  # fmt: skip
    if answer.code == "RangesNotSupported":
        return Failure(f"{host} does not support range requests, and {name!r} is too large for one request.",
                       "Upload the file to a store, or to a web server that supports Range "
                       "requests.", source)  # fmt: skip
    text, remedy = _RULES.get(answer.status, ("{title} answered {status} {code} for {name!r} of {source}.", ""))
    return Failure(text.format(name=name, source=source, status=answer.status, code=answer.code or answer.status,
                               title=feed.title), remedy, source)  # fmt: skip
