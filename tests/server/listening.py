"""A page as the stream of events sees it: reads messages in a thread and keeps what a page would keep."""

import contextlib
import json
import threading
import time

import httpx

from tests.conftest import wait_for
from tests.server.running import API, TOKEN

STREAM = "application/x-ndjson"


class Page:
    """The messages that came, and the log as a page that only appends and replaces has it."""

    def __init__(self, url, wanted):
        self.messages, self.rows, self.open, self.mark = [], {}, [], 0
        self.ended = threading.Event()
        self.headers = None
        self.problem = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, wanted), name="page")
        self._thread.start()

    def _read(self, url, wanted):
        try:
            headers = {"Authorization": f"token {TOKEN}", "Accept": STREAM}
            with (
                httpx.Client(base_url=url, headers=headers, timeout=60) as client,
                client.stream("POST", f"{API}/events", json=wanted) as answer,
            ):
                assert answer.status_code == 200, answer.read()
                self.headers = answer.headers
                for line in answer.iter_lines():
                    self.take(json.loads(line))
                    if self._stop.is_set():
                        return
        except (httpx.ReadError, httpx.RemoteProtocolError):
            pass  # the server went away
        except BaseException as problem:  # noqa: BLE001 - the test raises it
            self.problem = problem
        finally:
            self.ended.set()

    def take(self, message):
        if message["type"] == "log":
            apply(message, self.rows)
            self.open, self.mark = message["open"], message["mark"]
        self.messages.append(message)

    def of(self, type_, **fields):
        """Messages of a type with some fields."""
        return [m for m in list(self.messages) if m["type"] == type_ and fields.items() <= m.items()]

    def until(self, condition, what, patience=60):
        def there():
            assert self.problem is None, self.problem
            return condition(self)

        return wait_for(there, patience, what)

    def until_told(self, type_, many=1, **fields):
        return self.until(lambda page: len(page.of(type_, **fields)) >= many and page.of(type_, **fields), type_)

    @property
    def texts(self):
        return [self.rows[n][4] for n in sorted(self.rows)]

    def leave(self):
        """Stop to listen: the connection is closed at the next message."""
        self._stop.set()

    def close(self):
        self.leave()
        self._thread.join(30)
        assert not self._thread.is_alive()


def apply(message, rows):
    """Take a log message in as a page does."""
    if message["whole"]:
        rows.clear()
    rows.update((row[0], row) for row in message["rows"])
    for n in [n for n in rows if n < message["first"]]:
        del rows[n]


@contextlib.contextmanager
def listening(server, **wanted):
    """A page that wants to be told so much, until the end of the block."""
    page = Page(server.url, wanted)
    try:
        yield page
    finally:
        page.close()


def batch(server, **wanted):
    """The messages of now as one answer, and how long it took."""
    began = time.monotonic()
    found = server.post("/events", wanted, status=200)["messages"]
    return found, time.monotonic() - began
