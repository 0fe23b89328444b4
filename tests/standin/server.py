"""The server under all services: routes by method and pattern, one thread a connection, every request kept."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    #: The named groups of the route's pattern.
    words: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"null")

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


@dataclass
class Answer:
    """``body`` is bytes, text, or data that is sent as JSON. ``cut`` closes the connection after so many bytes."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


def refusal(status: int, code: str, message: str) -> Answer:
    """Return an error as the resource manager writes it."""
    return Answer({"error": {"code": code, "message": message}}, status)


Handler = Callable[[Request], Any]


class Server:
    """``route("GET", r"/subscriptions", handler)``; a handler returns an Answer, or data that becomes JSON."""

    def __init__(self, certificate: str, key: str) -> None:
        self.requests: list[Request] = []
        self.surprises: list[str] = []
        self._routes: list[tuple[str, re.Pattern[str], Handler]] = []
        outer = self

        class OneRequest(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                split = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                request = Request(
                    self.command,
                    unquote(split.path),
                    {k: v[0] for k, v in parse_qs(split.query, True).items()},
                    {k.lower(): v for k, v in self.headers.items()},
                    self.rfile.read(length),
                )
                self.write(outer.answer(request))

            do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = do_HEAD = do  # noqa: N815

            def write(self, answer: Answer) -> None:
                body, headers = answer.body, dict(answer.headers)
                if not isinstance(body, bytes | str):
                    body = json.dumps(body)
                    headers.setdefault("Content-Type", "application/json")
                data = body.encode() if isinstance(body, str) else body
                headers.setdefault("Content-Length", str(len(data)))
                self.send_response(answer.status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                self.wfile.write(data if answer.cut is None else data[: answer.cut])
                if answer.cut is not None:
                    self.wfile.flush()
                    self.close_connection = True
                    with contextlib.suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)

            def log_message(self, *_: object) -> None:
                return

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                return  # a client that goes away, or a cut on purpose

        self._http = Quiet(("127.0.0.1", 0), OneRequest)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.address = f"https://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def route(self, method: str, pattern: str, handler: Handler) -> None:
        """Answer requests whose whole path (unquoted) fits ``pattern``; a later route goes before an earlier one."""
        self._routes.insert(0, (method, re.compile(pattern), handler))

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        for method, pattern, handler in self._routes:
            found = pattern.fullmatch(request.path)
            if found and method == request.method:
                request.words = found.groupdict()
                answer = handler(request)
                return answer if isinstance(answer, Answer) else Answer(answer)
        self.surprises.append(f"{request.method} {request.path}")
        return refusal(404, "NotFound", f"nothing here answers {request.method} {request.path}")

    def asked(self, pattern: str) -> list[Request]:
        """Return the requests so far whose path holds ``pattern``."""
        return [request for request in self.requests if re.search(pattern, request.path)]

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
