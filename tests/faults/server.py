"""A Jupyter server with this extension in a process of its own, so that what it holds can be counted, and its readers.

A reader is a bare socket that asks for the stream of events, as a page does; the test decides how well it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from urllib.parse import urlsplit

import httpx

from tests.conftest import wait_for
from tests.server.running import API, TOKEN


@contextlib.contextmanager
def running(folder):
    """Start a server; give its process and its address."""
    environment = {**os.environ, "IPYTHONDIR": str(folder / "ipython")}
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        environment[f"JUPYTER_{kind}_DIR"] = str(folder / f"jupyter-{kind.lower()}")
    command = [
        sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser", "--port=0", "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={TOKEN}",
        "--ServerApp.jpserver_extensions=distdl_jupyter=True", "--DistDLApp.linger_seconds=1",
    ]  # fmt: skip
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        yield process, _address(process, folder)
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


def _address(process, folder):
    def there():
        assert process.poll() is None, (folder / "server.log").read_text()[-3000:]
        for file in (folder / "jupyter-runtime").glob("jpserver-*.json"):
            with contextlib.suppress(ValueError, KeyError):
                return json.loads(file.read_text())["url"].rstrip("/")
        return None

    return wait_for(there, 90, "the server")


def asking(url, timeout=120):
    return httpx.Client(base_url=url, headers={"Authorization": f"token {TOKEN}"}, timeout=timeout)


class Reader:
    """One reader of the stream, and what it has been told: rows of the log by number, with the time when each came."""

    def __init__(self, url, job, **wish):
        at = urlsplit(url)
        self._host, self._port, self._job, self._wish = at.hostname, at.port, job, wish
        self.rows, self.came, self.wholes, self.mark, self.key = {}, {}, 0, 0, ""
        self.told_again = 0
        self.state, self.steps = "", {}

    async def open(self, room=0):
        """Connect and ask; with ``room`` the socket takes no more than some kilobytes."""
        sock = socket.socket()
        if room:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (self._host, self._port))
        self._in, self._out = await asyncio.open_connection(sock=sock, limit=2**24)
        wish = {"log": {"mark": self.mark}, "key": self.key, **self._wish}
        body = json.dumps({"job": {self._job: wish}}).encode()
        head = (
            f"POST {API}/events HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: token {TOKEN}\r\n"
            f"Accept: application/x-ndjson\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._out.write(head.encode() + body)
        await self._out.drain()

    async def _lines(self):
        head = await self._in.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        rest = b""
        while size := int(await self._in.readline(), 16):
            rest += await self._in.readexactly(size)
            await self._in.readexactly(2)
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield json.loads(line)

    async def read(self, until):
        """Read until ``until(reader)`` is true."""
        async with contextlib.aclosing(self._lines()) as lines:
            async for message in lines:
                self._take(message)
                if until(self):
                    return

    def _take(self, message):
        now = time.monotonic()
        if message["type"] == "log":
            self.wholes += message["whole"]
            if message["whole"]:
                self.rows.clear()
            for row in message["rows"]:
                self.told_again += row[0] in self.rows
                self.rows[row[0]] = row[4]
                self.came.setdefault(row[4], now)
            self.mark = message["mark"]
        elif message["type"] == "job":
            self.state, self.key = message["card"]["state"], message["key"]
            for metric in message["metrics"]:
                self.steps.setdefault((metric["name"], metric["step"]), now)

    def close(self, *, rudely=False):
        """Go away, as a page that is closed or as a machine that is switched off."""
        if rudely:
            sock = self._out.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._out.transport.abort() if rudely else self._out.close()
