"""A Jupyter server with this extension in a process of its own, so that what it holds can be counted, and its readers.

A reader is a WebSocket, as a page has one; the test decides how well it reads.
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

import httpx
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

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
    """One reader of a job, and what it has been told: rows of the log by number, with the time when each came."""

    def __init__(self, url, job, **wish):
        self._address = f"{url.replace('http', 'ws', 1)}{API}/events"
        self._job, self._wish = job, wish
        self.rows, self.came, self.wholes, self.mark, self.key = {}, {}, 0, 0, ""
        self.told_again = 0
        self.state, self.steps = "", {}

    async def open(self, room=0):
        """Connect and subscribe; with ``room`` the socket takes no more than some kilobytes."""
        request = HTTPRequest(self._address, headers={"Authorization": f"token {TOKEN}"})
        self._connection = await websocket_connect(request, max_message_size=2**26)
        if room:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        wish = {"log": {"mark": self.mark}, "key": self.key, **self._wish}
        await self._connection.write_message(json.dumps({"number": 1, "job": {self._job: wish}}))

    @property
    def _socket(self):
        return self._connection.protocol.stream.socket

    async def read(self, until):
        """Read until ``until(reader)`` is true."""
        while (text := await self._connection.read_message()) is not None:
            self._take(json.loads(text))
            if until(self):
                return
        raise AssertionError("the server has ended the connection")

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

    async def close(self, *, rudely=False):
        """Go away, as a page that is closed or as a machine that is switched off."""
        stream = self._connection.protocol.stream
        if rudely:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.close()
            self._connection.protocol = None  # else it complains that nobody has closed it
        else:
            self._connection.close()
            until = time.monotonic() + 10
            while not stream.closed() and time.monotonic() < until:  # noqa: ASYNC110 - its callback is taken
                await asyncio.sleep(0.01)  # the server says good-bye, or the loop ends with an open socket
            stream.close()
