"""A TLS server that answers Get Blob with ranges at the least cost, to see what a client costs.

It asks for no signature and keeps everything in memory. ``python -m tests.azurite.cheap CERTIFICATE KEY COUNT SIZE``
serves ``COUNT`` blobs of ``SIZE`` bytes as ``/account/container/<number>``, prints its port and ends with its input.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_WORDS = b"\r\n".join([
    b"HTTP/1.1 206 Partial Content", b"Content-Length: %d", b"Content-Range: bytes %d-%d/%d", b"Content-MD5: %s",
    b'ETag: "0x1"', b"Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT", b"x-ms-blob-type: BlockBlob",
    b"Content-Type: application/octet-stream", b"x-ms-request-id: 1", b"x-ms-version: 2023-11-03", b"", b"",
])  # fmt: skip


class Cheap:
    """The server as a process of its own."""

    def __init__(self, certificate: Path, key: Path, count: int, size: int) -> None:
        self.ca = str(certificate)
        self.count, self.size = count, size
        command = [sys.executable, "-m", "tests.azurite.cheap", str(certificate), str(key), str(count), str(size)]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = f"https://127.0.0.1:{int(self._process.stdout.readline())}/account"

    @property
    def items(self) -> list[list[object]]:
        """What an order says of its blobs."""
        return [[str(number), self.size, "0x1", ""] for number in range(self.count)]

    def close(self) -> None:
        self._process.communicate("")


def content(number: int, size: int) -> bytes:
    """Return what blob ``number`` holds."""
    return hashlib.sha256(str(number).encode()).digest() * (size // 32) + bytes(size % 32)


def main(certificate: str, key: str, count: str, size: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    # The blobs are few or small: a large one is the same bytes for all.
    blobs = [
        content(number if int(size) < 2**16 else 0, int(size))
        for number in range(int(count) if int(size) < 2**16 else 1)
    ]
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_accept, args=(listener, context, blobs), daemon=True).start()
    sys.stdin.read()


def _accept(listener: socket.socket, context: ssl.SSLContext, blobs: list[bytes]) -> None:
    sums: dict[tuple[int, int, int], bytes] = {}
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve, args=(connection, context, blobs, sums), daemon=True).start()


def _serve(
    plain: socket.socket, context: ssl.SSLContext, blobs: list[bytes], sums: dict[tuple[int, int, int], bytes]
) -> None:
    try:
        with context.wrap_socket(plain, server_side=True) as connection:
            received = b""
            for _ in itertools.count():
                while b"\r\n\r\n" not in received:
                    piece = connection.recv(2**16)
                    if not piece:
                        return
                    received += piece
                head, _, received = received.partition(b"\r\n\r\n")
                connection.sendall(_answer(head, blobs, sums))
    except OSError:
        return


def _answer(head: bytes, blobs: list[bytes], sums: dict[tuple[int, int, int], bytes]) -> bytes:
    number = int(head.split(b" ", 2)[1].split(b"?")[0].rpartition(b"/")[2]) % len(blobs)
    first, last = head.lower().split(b"range: bytes=")[1].split(b"\r\n")[0].split(b"-")
    blob = blobs[number]
    start, end = int(first), min(int(last) + 1, len(blob))
    body = blob[start:end]
    key = (number, start, end)
    if key not in sums:
        sums[key] = base64.b64encode(hashlib.md5(body).digest())
    return _WORDS % (len(body), start, end - 1, len(blob), sums[key]) + body


if __name__ == "__main__":
    main(*sys.argv[1:])
