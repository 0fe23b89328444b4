"""The rendezvous server for the ranks of a Horovod job with the Gloo controller.

``python -m distdl_jupyter.backends.rendezvous ADDRESS PORT`` serves until its standard input ends. Horovod stores and
reads values under ``/SCOPE/KEY`` over HTTP, about 30 requests per rank (horovod/common/gloo/http_store.cc, release
0.28.1). Horovod's own server (horovod/runner/http/http_server.py) is not used, because it listens on every interface
without authentication. It also answers immediately if a value is missing, so ranks poll every 10 ms, and it keeps the
addresses of process sets, so ``hvd.init()`` after ``hvd.shutdown()`` may connect to closed sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
import sys
from collections import defaultdict

from distdl_jupyter.worker import installed
from distdl_jupyter.worker.identity import derive_rendezvous_secret

#: The line on standard output that reports that the server is listening.
READY_LINE = "rendezvous ready"
#: Timeout of a request in seconds.
_REQUEST_SECONDS = 30.0
#: Maximum size of a request in bytes.
_MAX_REQUEST_BYTES = 16 * 2**20
_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 501: "Not Implemented"}


def get_host_name(node: int) -> str:
    """Return the host name that ranks use for a logical node."""
    return f"node-{node}"


class Rendezvous:
    """A key-value server for the ranks of one job. Each path must begin with ``secret``, unless that is "".

    Raises OSError if it cannot listen.
    """

    #: Seconds that a request waits for a missing value.
    wait_seconds = 1.0

    def __init__(self, address: str, port: int, secret: str) -> None:
        self.prefix = f"/{secret}:{port}/" if secret else "/"
        self._socket = socket.create_server((address, port), backlog=1024)
        self._values: dict[str, dict[str, bytes]] = {}
        self._finished_ranks: dict[str, set[str]] = defaultdict(set)
        self._waiting_requests: dict[tuple[str, str], list[asyncio.Future[bytes | None]]] = defaultdict(list)

    async def serve(self) -> None:
        """Serve until the task is canceled."""
        loop = asyncio.get_running_loop()
        async with await loop.create_server(lambda: _Connection(self), sock=self._socket) as server:
            await server.serve_forever()

    def get(self, scope: str, key: str) -> asyncio.Future[bytes | None]:
        """Return a future whose result is the value, or None if it is not stored within ``wait_seconds``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes | None] = loop.create_future()
        if (value := self._values.get(scope, {}).get(key)) is not None:
            future.set_result(value)
        else:
            self._waiting_requests[scope, key].append(future)
            loop.call_later(self.wait_seconds, self._expire, scope, key, future)
        return future

    def _expire(self, scope: str, key: str, future: asyncio.Future[bytes | None]) -> None:
        if not future.done():
            future.set_result(None)
            self._waiting_requests[scope, key].remove(future)

    def put(self, scope: str, key: str, value: bytes) -> None:
        """Store a value, and respond to the pending requests for it."""
        self._values.setdefault(scope, {})[key] = value
        for future in self._waiting_requests.pop((scope, key), ()):
            future.set_result(value)

    def finish(self, scope: str, rank: str) -> None:
        """Record that a rank has connected to all others of a scope; the last one clears the scope."""
        self._finished_ranks[scope].add(rank)
        if self._finished_ranks[scope] >= {key for key in self._values.get(scope, ()) if key.isdigit()}:
            self._finished_ranks.pop(scope)
            self._values.pop(scope, None)


class _Connection(asyncio.Protocol):
    """One request and its response."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timeout of the request."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timeout = asyncio.get_running_loop().call_later(_REQUEST_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Handle the request when it is complete."""
        self._data += data
        head, end, value = self._data.partition(b"\r\n\r\n")
        if len(self._data) > _MAX_REQUEST_BYTES:
            self._send(400)
        elif end:
            try:
                request_line, *headers = head.decode("latin-1").split("\r\n")
                method, path, _ = request_line.split(" ")
                lengths = [line[15:] for line in headers if line.lower().startswith("content-length:")]
                length = int(lengths[0]) if lengths else 0
            except ValueError:
                return self._send(400)
            if 0 <= length <= len(value):
                self._handle(method, path, value[:length])
        return None

    def _handle(self, method: str, path: str, value: bytes) -> None:
        self._timeout.cancel()
        prefix, rest = path[: len(self._rendezvous.prefix)], path[len(self._rendezvous.prefix) :]
        if not hmac.compare_digest(prefix.encode(), self._rendezvous.prefix.encode()):
            return self._send(403)
        scope, _, key = rest.partition("/")
        if not scope or not key:
            return self._send(404)
        if method == "GET":
            self._rendezvous.get(scope, key).add_done_callback(self._send_value)
            return None
        if method == "PUT":
            self._rendezvous.put(scope, key, value)
        elif method == "DELETE":
            self._rendezvous.finish(scope, key)
        else:
            return self._send(501)
        return self._send(200)

    def _send_value(self, future: asyncio.Future[bytes | None]) -> None:
        value = None if future.cancelled() else future.result()
        self._send(404 if value is None else 200, value or b"")

    def _send(self, status: int, body: bytes = b"") -> None:
        self._timeout.cancel()
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self._transport.write(head.encode() + body)
        self._transport.close()


async def _main(address: str, port: int) -> None:
    server = Rendezvous(address, port, derive_rendezvous_secret(os.environ.get("DISTDL_NONCE", "")))
    task = asyncio.create_task(server.serve())
    asyncio.get_running_loop().add_reader(0, lambda: os.read(0, 4096) or task.cancel())
    sys.stdout.write(READY_LINE + "\n")
    sys.stdout.flush()
    installed.record_imports()
    with contextlib.suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
