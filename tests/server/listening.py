"""A page as the server sees it: reads messages from its WebSocket in a thread and keeps what a page would keep."""

import contextlib
import json
import socket
import threading

import websocket

from tests.conftest import wait_for
from tests.server.running import API, TOKEN


def connect(url, *, buffer=None, **headers):
    """Open a WebSocket, with a buffer of so many bytes for what it is sent."""
    options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)] if buffer else None
    address = f"{url.replace('http', 'ws', 1)}{API}/events"
    headers = {"Authorization": f"token {TOKEN}", **headers}
    return websocket.create_connection(address, timeout=60, header=headers, sockopt=options, suppress_origin=True,
                                       skip_utf8_validation=True)  # fmt: skip


def subscribe(connection, number=1, **wanted):
    connection.send(json.dumps({"number": number, **wanted}))


class Page:
    """The messages that came, and the log as a page that only appends and replaces has it."""

    def __init__(self, url, wanted):
        self.messages, self.rows, self.open, self.mark = [], {}, [], 0
        self.ended = threading.Event()
        self.problem = None
        self._number = 0
        self._welcome = False
        self._connection = connect(url)
        self.subscribe(**wanted)
        self._thread = threading.Thread(target=self._read, name="page")
        self._thread.start()

    def subscribe(self, **wanted):
        """Ask for something else from now on."""
        self._number += 1
        subscribe(self._connection, self._number, **wanted)

    def _read(self):
        try:
            while text := self._connection.recv():
                self.take(json.loads(text))
        except (OSError, websocket.WebSocketException):
            pass  # one of the two has gone away
        except BaseException as problem:  # noqa: BLE001 - the test raises it
            self.problem = problem
        finally:
            self.ended.set()

    def take(self, message):
        if message["type"] == "hello":
            self._welcome = message["number"] == self._number
        if not self._welcome:
            return  # of an earlier subscription
        if message["type"] == "log":
            apply(message, self.rows)
            self.open, self.mark = message["open"], message["mark"]
        self.messages.append(message)

    def of(self, type_, **fields):
        """Messages of a type with some fields."""
        return [m for m in list(self.messages) if m["type"] == type_ and fields.items() <= m.items()]

    def until(self, condition, what, timeout=60):
        def there():
            assert self.problem is None, self.problem
            return condition(self)

        return wait_for(there, timeout, what)

    def until_told(self, type_, many=1, **fields):
        return self.until(lambda page: len(page.of(type_, **fields)) >= many and page.of(type_, **fields), type_)

    @property
    def texts(self):
        return [self.rows[n][4] for n in sorted(self.rows)]

    def close(self):
        """Go away."""
        self._connection.close(timeout=5)
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._connection.shutdown()  # it closes no socket whose other end was closed before


def apply(message, rows):
    """Take a log message in as a page does."""
    if message["whole"]:
        rows.clear()
    rows.update((row[0], row) for row in message["rows"])
    for n in [n for n in rows if n < message["first"]]:
        del rows[n]


@contextlib.contextmanager
def listening(url, **wanted):
    """A page that wants to be told so much, until the end of the block."""
    page = Page(url, wanted)
    try:
        yield page
    finally:
        page.close()


def told(url, *types, **wanted):
    """The first message of each of these types, by type."""
    with listening(url, **wanted) as page:
        for type_ in types:
            page.until_told(type_)
        return {type_: page.of(type_)[0] for type_ in types}
