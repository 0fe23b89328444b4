"""A proxy before Azurite that cuts, refuses, delays and corrupts on purpose, and counts what is asked.

It speaks TLS on both sides. A fault says which requests it meets and how often; all others go through as they are.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.azurite.server import Azurite

_PIECE = 64 * 1024
#: Headers of one connection, not of what goes through it.
_OF_THE_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "proxy-connection"}


@dataclass
class Seen:
    """A request that came: its path is unquoted; ``sent`` are the bytes of the answer's body that went out."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    connection: int = 0
    status: int = 0
    sent: int = 0

    @property
    def range(self) -> str:
        return self.headers.get("x-ms-range") or self.headers.get("range") or ""


@dataclass
class Fault:
    """What happens to the requests that ``pattern`` and ``method`` fit, ``times`` times after the first ``after``.

    ``cut`` ends the connection behind so many bytes of the body, ``status`` answers that without asking Azurite,
    ``delay`` waits so many seconds, ``rate`` sends so many bytes a second, ``corrupt`` changes the byte at that place
    of the body, ``before`` is called with the request.
    """

    pattern: str = ""
    method: str = "GET"
    times: int = 1
    after: int = 0
    cut: int | None = None
    status: int = 0
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    rate: float = 0.0
    corrupt: int | None = None
    before: Callable[[Seen], Any] | None = None
    met: int = 0


class Proxy:
    """``proxy.add(cut=1000)``, then ``proxy.address`` instead of Azurite's."""

    def __init__(self, azurite: Azurite, certificate: Path | str, key: Path | str, host: str = "127.0.0.1") -> None:
        self.azurite = azurite
        self.seen: list[Seen] = []
        self.faults: list[Fault] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._http = _Listener((host, 0), type("Handler", (OneConnection,), {"proxy": self}))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.address = f"https://{host}:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def template(self) -> str:
        """What stands for ``blob`` in the description of a cloud."""
        return f"{self.address}/{{account}}"

    @property
    def endpoint(self) -> str:
        return f"{self.address}/{self.azurite.account}"

    def add(self, pattern: str = "", **more: Any) -> Fault:
        """Let requests whose path and query ``pattern`` fits meet a fault; the earliest that fits is taken."""
        fault = Fault(pattern, **more)
        with self._lock:
            self.faults.append(fault)
        return fault

    def gets(self, pattern: str = "") -> list[Seen]:
        """Return the requests for content so far (no lists)."""
        return [one for one in self.seen if one.method == "GET" and "comp=" not in one.query
                and re.search(pattern, one.path)]  # fmt: skip

    def sent(self, pattern: str = "") -> int:
        """Return how many bytes of content went out."""
        return sum(one.sent for one in self.gets(pattern))

    def cut_all(self) -> None:
        """End every connection that is open now."""
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self.cut_all()
        self._thread.join()

    # for the handler ----------------------------------------------------------------------------

    def opened(self, connection: socket.socket) -> int:
        with self._lock:
            self._open.add(connection)
            self.connections += 1
            return self.connections

    def gone(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def fault(self, seen: Seen) -> Fault:
        with self._lock:
            self.seen.append(seen)
            for fault in self.faults:
                if fault.method == seen.method and re.search(fault.pattern, f"{seen.path}?{seen.query}"):
                    fault.met += 1
                    if fault.after < fault.met <= fault.after + fault.times:
                        return fault
        return Fault()

    def upstream(self) -> http.client.HTTPSConnection:
        trust = ssl.create_default_context(cafile=self.azurite.ca)
        return http.client.HTTPSConnection("127.0.0.1", self.azurite.port, timeout=60, context=trust)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        return  # a client that goes away, or a cut on purpose


class OneConnection(BaseHTTPRequestHandler):
    """A client's connection and its own one to Azurite."""

    proxy: Proxy
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def setup(self) -> None:
        super().setup()
        self.number = self.proxy.opened(self.connection)
        self.upstream = self.proxy.upstream()

    def finish(self) -> None:
        self.proxy.gone(self.connection)
        self.upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def do(self) -> None:
        split = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.command, unquote(split.path), split.query, headers, self.number)
        fault = self.proxy.fault(seen)
        if fault.before is not None:
            fault.before(seen)
        time.sleep(fault.delay)
        if fault.status:
            self.refuse(seen, fault)
        else:
            self.forward(seen, fault, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = do_HEAD = do  # noqa: N815

    def refuse(self, seen: Seen, fault: Fault) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>On purpose.</Message></Error>".encode()
        seen.status = fault.status
        self.send_response_only(fault.status)
        for name, value in {"x-ms-error-code": fault.code, **fault.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def forward(self, seen: Seen, fault: Fault, body: bytes) -> None:
        kept = {name: value for name, value in seen.headers.items() if name not in _OF_THE_HOP}
        self.upstream.request(self.command, self.path, body or None, {**kept, "Content-Length": str(len(body))})
        with self.upstream.getresponse() as answer:
            seen.status = answer.status
            whole = answer.read() if answer.chunked else b""
            length = str(len(whole)) if answer.chunked else answer.headers.get("Content-Length", "0")
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_THE_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.pass_on(seen, fault, whole, answer)

    def pass_on(self, seen: Seen, fault: Fault, piece: bytes, source: http.client.HTTPResponse) -> None:
        while piece := piece or source.read(_PIECE):
            if fault.corrupt is not None and seen.sent <= fault.corrupt < seen.sent + len(piece):
                at = fault.corrupt - seen.sent
                piece = piece[:at] + bytes([piece[at] ^ 0xFF]) + piece[at + 1 :]
            if fault.cut is not None:
                piece = piece[: fault.cut - seen.sent]
            # Counted first: who asked may look as soon as it has the last byte.
            seen.sent += len(piece)
            self.wfile.write(piece)
            if seen.sent == fault.cut:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if fault.rate:
                time.sleep(len(piece) / fault.rate)
            piece = b""

    def log_message(self, *_: object) -> None:
        return
