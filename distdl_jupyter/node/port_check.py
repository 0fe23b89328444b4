"""Whether one host reaches another over TCP: one listens for a minute, the other connects and hears who answers.

Who answers says its own address and port first, so that a gateway or another machine with the same address that
accepts every connection is not taken for the host that is meant.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

#: Seconds in which somebody can connect.
LISTENING_SECONDS = 60.0
#: Connections tried at once, well below the 1,024 descriptors that a process has by default.
_AT_ONCE = 200
_LONGEST = 64


def listen(address: str) -> tuple[socket.socket, int]:
    """Return a socket and its port on ``address`` that answers in the background; closing it ends that sooner.

    Raises OSError when the address is not this host's.
    """
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        server.bind((address, 0))
        server.listen(128)
        server.settimeout(0.5)
    except OSError:
        server.close()
        raise
    port: int = server.getsockname()[1]
    threading.Thread(target=_answer, args=(server, _greeting(address, port)), daemon=True).start()
    return server, port


def _greeting(address: str, port: int) -> bytes:
    return f"distdl {address}:{port}\n".encode()


def _answer(server: socket.socket, greeting: bytes) -> None:
    until = time.monotonic() + LISTENING_SECONDS
    with server:
        while time.monotonic() < until and server.fileno() >= 0:
            try:
                guest, _ = server.accept()
            except TimeoutError:
                continue
            except OSError:  # closed meanwhile
                return
            with guest, contextlib.suppress(OSError):
                guest.sendall(greeting)


def reach(targets: Sequence[Sequence[Any]], seconds: float) -> list[list[Any]]:
    """Return ``[address, port, why]`` for each ``[address, port]`` in order; ``why`` is "" for those that answered.

    All are tried side by side and given up after ``seconds``.
    """
    until = time.monotonic() + seconds
    pairs = [(str(address), int(port)) for address, port in targets]
    answers: dict[tuple[str, int], str] = {}
    for begin in range(0, len(pairs), _AT_ONCE):
        part = pairs[begin : begin + _AT_ONCE]
        # An equal share of what is left, so that silent hosts in one part leave time for the next.
        share = (until - time.monotonic()) * len(part) / (len(pairs) - begin)
        answers |= _Attempt(part).run(time.monotonic() + share)
    return [[address, port, answers[address, port]] for address, port in pairs]


class _Attempt:
    """Connections that are tried at once."""

    def __init__(self, pairs: Sequence[tuple[str, int]]) -> None:
        self._why: dict[tuple[str, int], str] = dict.fromkeys(pairs, "timed out")
        self._received: dict[tuple[str, int], bytes] = {}
        self._selector = selectors.DefaultSelector()

    def run(self, until: float) -> dict[tuple[str, int], str]:
        """Return why not for each pair."""
        try:
            for pair in self._why:
                self._begin(pair)
            while self._selector.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in self._selector.select(left):
                    self._step(key)
            return self._why
        finally:
            for key in list(self._selector.get_map().values()):
                self._drop(key)
            self._selector.close()

    def _begin(self, pair: tuple[str, int]) -> None:
        with self._recording(pair):
            guest = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            guest.settimeout(0.0)
            code = guest.connect_ex(pair)
            if code not in (0, errno.EINPROGRESS):
                guest.close()
                raise OSError(code, os.strerror(code))
            self._selector.register(guest, selectors.EVENT_WRITE, pair)

    def _step(self, key: selectors.SelectorKey) -> None:
        """Go on with one connection: once it stands, read until the greeting is whole."""
        guest = key.fileobj
        assert isinstance(guest, socket.socket)
        with self._recording(key.data):
            if key.events & selectors.EVENT_WRITE:
                if code := guest.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(code, os.strerror(code))
                self._selector.modify(guest, selectors.EVENT_READ, key.data)
                return
            if not self._read(guest, key.data):
                return
        self._drop(key)

    def _read(self, guest: socket.socket, pair: tuple[str, int]) -> bool:
        """Take what came and say whether that is all that is needed."""
        expected = _greeting(*pair)
        piece = guest.recv(_LONGEST)
        received = self._received[pair] = self._received.get(pair, b"") + piece
        if received == expected:
            self._why[pair] = ""
            return True
        if not piece or not expected.startswith(received):
            self._why[pair] = "another machine or program answers"
            return True
        return False

    @contextlib.contextmanager
    def _recording(self, pair: tuple[str, int]) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._why[pair] = (error.strerror or str(error)).lower()

    def _drop(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()
