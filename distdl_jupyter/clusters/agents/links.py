"""Links to agents that communicate through files (``node.folder``) or connect back (``node.connect_back``).

A connection to the supervisor's listener is unproven until its client has sent the job's secret; the number of such
connections and their lifetime are limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hmac
import json
import math
import secrets
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents.agent import Host
from distdl_jupyter.clusters.agents.connection import AGENT_TIMEOUT, READ_BYTES, Connection, Link, get_loop, start_all
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.node import channels, folder
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.folder import FileFollower

#: Seconds after the end of a job until its last writes on a node are visible here.
GRACE_SECONDS = 3.0
#: Seconds between two polls of the agent's read position.
_POLL_SECONDS = 0.2
#: Timeout in seconds for an agent to read the messages of an earlier supervisor.
_TAKEOVER_SECONDS = 60.0
#: Timeouts in seconds for sending the secret: normally, and while other connections wait to be accepted.
_HELLO_SECONDS, _CROWDED_SECONDS = 10.0, 1.0
#: The maximum number of unproven connections. It exceeds most node counts, because nodes connect simultaneously.
_MAX_UNPROVEN = 256
#: The channels of the agent's standard input and output; all others are error output.
_INPUT, _OUTPUT = 0, 1


class Tail:
    """The stream of bytes appended to a file. It ends ``GRACE_SECONDS`` after ``is_over`` returns true."""

    def __init__(self, path: Path, is_over: Callable[[], object], position: int = 0) -> None:
        self._follower = FileFollower(path, position)
        self._is_over = is_over
        self._over_since = math.inf
        self._is_stopping = False

    async def read(self) -> bytes:
        """Return the next bytes, or b"" at the end."""
        while True:
            with contextlib.suppress(OSError):  # the file server may be temporarily unavailable
                if content := self._follower.read():
                    self._follower.advance(len(content))
                    return content
            if self._is_over():
                self._over_since = min(self._over_since, time.monotonic())
            if self._is_stopping or time.monotonic() - self._over_since > GRACE_SECONDS:
                return b""
            await asyncio.sleep(self._follower.pause)

    def stop(self) -> None:
        """End the stream after the bytes that are in the file now."""
        self._is_stopping = True

    def open_stream(self) -> Inbox:
        """Return an inbox that receives the stream."""
        inbox = Inbox()

        async def feed() -> None:
            while content := await self.read():
                inbox.feed(content)
                while inbox.is_behind:  # noqa: ASYNC110  a thread reads it
                    await asyncio.sleep(_POLL_SECONDS)
            inbox.feed(b"")

        asyncio.run_coroutine_threadsafe(feed(), get_loop())
        return inbox


class FolderLink(Tail, Link):
    """The link to the agent of one node. ``explain_loss`` returns the reason if the node is lost, else "".

    With ``takeover``, wait until the agent has read the messages of an earlier supervisor. Raises LaunchFailed.
    """

    beat_seconds = folder.BEAT_SECONDS
    #: The batch system reports lost nodes; a file server may be unavailable for minutes.
    max_idle_seconds = math.inf

    def __init__(self, run: Path, node: int, explain_loss: Callable[[], str], *, takeover: bool = False) -> None:
        Link.__init__(self)
        inbox, position_file, outbox = folder.get_file_names(node)
        Tail.__init__(self, run / outbox, explain_loss)
        self._inbox_path, self._position_path = run / inbox, run / position_file
        self._explain_loss = explain_loss
        #: The number of bytes sent to the agent, including those of earlier supervisors.
        self.sent_bytes = self._await_reader() if takeover else 0
        self._erase_task: asyncio.Task[None] | None = None

    def _await_reader(self) -> int:
        """Wait until the agent has read all complete frames, truncate an incomplete one, and return the position."""
        deadline = time.monotonic() + _TAKEOVER_SECONDS
        while True:
            position = self._read_position()
            with self._inbox_path.open("rb+") as file:
                file.seek(position)
                if not channels.measure_complete(file.read()):
                    file.truncate(position)
                    return position
            if self._explain_loss():
                return self._inbox_path.stat().st_size  # the node is lost, but its output can still be read
            if time.monotonic() > deadline:
                text = f"The agent does not read its messages from {self._inbox_path}."
                hint = "Check that the nodes and this machine see the same files in that folder. Submit the job again."
                raise LaunchFailed(text, code="agent-not-reading", hint=hint)
            time.sleep(_POLL_SECONDS)

    def _read_position(self) -> int:
        """Return the number of bytes that the agent has read."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._position_path.read_text(encoding="ascii"))
        return 0

    async def write(self, content: bytes) -> None:
        """Append bytes for the agent, and start to erase those that it has read."""
        self._erase_task = self._erase_task or asyncio.create_task(self._erase_read())
        await self._write_at(self.sent_bytes, content)
        self.sent_bytes += len(content)

    async def _write_at(self, position: int, content: bytes) -> None:
        """Write bytes at a position; retry while the disk is full or the file server is unavailable."""
        while content and not self._explain_loss():
            try:
                with self._inbox_path.open("rb+", buffering=0) as file:
                    file.seek(position)
                    count = file.write(content)
                position, content = position + count, content[count:]
            except OSError:
                await asyncio.sleep(_POLL_SECONDS)

    async def _erase_read(self) -> None:
        """Overwrite bytes that the agent has read, because they may contain secrets."""
        erased = 0
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if erased < self.sent_bytes and (position := min(self._read_position(), self.sent_bytes)) > erased:
                await self._write_at(erased, bytes(position - erased))
                erased = position

    def close_input(self) -> None:
        """Stop sending and reading; idempotent."""
        if self._erase_task is not None:
            self._erase_task.cancel()
        self.stop()

    async def end(self, grace: float = 0.0) -> None:
        """Do nothing: the batch system ends the agent."""

    async def explain_end(self, idle_seconds: float) -> str:
        """Return why the output ended."""
        return self._explain_loss() or "The agent has ended."


class TcpLink(Link):
    """The link to an agent over a connection that it opened; ``explain_loss`` returns the message for a lost node."""

    def __init__(
        self, hello: dict[str, Any], reader: asyncio.StreamReader, transport: Any, explain_loss: Callable[[str], str]
    ) -> None:
        super().__init__()
        self.number, self.hostname, self.address = int(hello["number"]), str(hello["hostname"]), str(hello["address"])
        #: The name of the node.
        self.name = ""
        self._reader = reader
        self._writer = asyncio.StreamWriter(transport, transport.get_protocol(), reader, asyncio.get_running_loop())
        self._explain_loss = explain_loss
        self._frames = channels.FrameReader(expect_handshake=False)
        self._has_closed_input = False

    async def read(self) -> bytes:
        """Return the next output of the agent; store its exit code and error output."""
        output = bytearray()
        with contextlib.suppress(OSError):  # the connection is lost
            while self._code is None and not output and (content := await self._reader.read(READ_BYTES)):
                for frame in self._frames.feed(content):
                    if isinstance(frame, dict):
                        self._code = int(frame["code"])
                    elif frame.channel == _OUTPUT:
                        output += frame.bytes
                    else:
                        self.add_errors(frame.bytes)
        return bytes(output)

    async def write(self, content: bytes) -> None:
        """Write to the agent's standard input."""
        self._writer.write(channels.encode_data(_INPUT, content))
        await self._writer.drain()

    def close_input(self) -> None:
        """Close the agent's standard input; idempotent."""
        if not self._has_closed_input:
            self._has_closed_input = True
            self._writer.write(channels.encode_data(_INPUT, b""))

    async def end(self, grace: float = 0.0) -> None:
        """Wait for the agent to exit; kill it after ``grace`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while await self.read():
                    pass
        self._code = 255 if self._code is None else self._code
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection, which ends the agent; idempotent. Called on the loop."""
        self._writer.transport.abort()

    async def explain_end(self, idle_seconds: float) -> str:
        """Return why the output ended."""
        if self._code is not None:
            return f"The agent on {self.name} exited with code {self._code}{self.last_line}."
        return self._explain_loss(self.name)


class AgentListener:
    """A port to which the nodes of one job connect."""

    def __init__(self, host: str, explain_loss: Callable[[str], str]) -> None:
        """Listen on the address ``host``; ``explain_loss`` returns the message for a lost node of a given name."""
        self._explain_loss = explain_loss
        #: The connected nodes by number.
        self.agents: dict[int, TcpLink] = {}
        self._ssl_context, certificate = _create_certificate()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, 0), family=family, backlog=1024)
        except OSError:  # the address belongs to a NAT gateway, not to this machine
            self._socket = socket.create_server(("", 0), backlog=1024)
        self._socket.settimeout(0)
        port, self._secret = self._socket.getsockname()[1], secrets.token_urlsafe(32)
        #: The data with which a node connects (``node.connect_back``).
        self.connect_info = {"host": host, "port": port, "certificate": certificate, "secret": self._secret}
        #: The tasks of unproven connections, and when each was accepted.
        self._unproven: dict[asyncio.Task[None], float] = {}
        self._accept_task = asyncio.run_coroutine_threadsafe(self._accept(), get_loop())

    @property
    def shares_hosts(self) -> bool:
        """Whether several nodes have connected from one host."""
        return len({agent.hostname for agent in self.agents.values()}) < len(self.agents)

    async def _accept(self) -> None:
        """Accept connections. While too many of them are unproven, wait, and close those that have timed out."""
        loop = asyncio.get_running_loop()
        while True:
            while len(self._unproven) >= _MAX_UNPROVEN:
                now = loop.time()
                expired = [task for task, since in self._unproven.items() if now - since >= _CROWDED_SECONDS]
                for task in expired:
                    task.cancel()
                timeout = 0.0 if expired else _CROWDED_SECONDS - (now - min(self._unproven.values()))
                await asyncio.wait(list(self._unproven), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            try:
                connection, _address = await loop.sock_accept(self._socket)
            except OSError:  # out of file descriptors, or the client has disconnected
                await asyncio.sleep(_CROWDED_SECONDS)
                continue
            task = asyncio.create_task(self._admit(connection))
            self._unproven[task] = loop.time()
            task.add_done_callback(self._unproven.__delitem__)

    async def _admit(self, connection: socket.socket) -> None:
        """Register a connection from a new node of this job; close any other."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        transport: Any = None
        is_admitted = False
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                transport, _protocol = await loop.connect_accepted_socket(
                    lambda: asyncio.StreamReaderProtocol(reader, loop=loop),
                    connection,
                    ssl=self._ssl_context,
                    ssl_handshake_timeout=_HELLO_SECONDS,
                )
                hello = json.loads(await reader.readline())
                is_ours = hmac.compare_digest(str(hello["secret"]).encode(), self._secret.encode())
                if is_ours and not hello["attempt"] and int(hello["number"]) not in self.agents:
                    link = TcpLink(hello, reader, transport, self._explain_loss)
                    self.agents[link.number] = link
                    is_admitted = True
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # TimeoutError is an OSError
            pass
        finally:
            if not is_admitted:
                if transport is not None:
                    transport.abort()
                loop.call_soon(connection.close)

    def close(self) -> None:
        """Stop listening; idempotent."""

        def close() -> None:
            self._accept_task.cancel()
            for task in self._unproven:
                task.cancel()
            self._socket.close()

        get_loop().call_soon_threadsafe(close)

    def disconnect(self) -> None:
        """Close all connections, which ends the agents."""
        for agent in list(self.agents.values()):
            get_loop().call_soon_threadsafe(agent.disconnect)

    def connect(self, directory: str) -> list[Connection]:
        """Start an agent on each node; return the connections ordered by host name. Raises ReachError."""
        program = environment.build_first_input("", directory, [AGENT_TIMEOUT]).partition(b"\n")[2]
        agents = sorted(self.agents.values(), key=lambda agent: (agent.hostname, agent.number))
        for name, agent in zip(make_names_distinct([agent.hostname for agent in agents]), agents, strict=True):
            agent.name = name
        return start_all(((Host(agent.name, agent.address), agent) for agent in agents), program)


def make_names_distinct(hostnames: Sequence[str]) -> list[str]:
    """Return a name for each node: its host name, with -0, -1, ... if a host has several nodes."""
    return [
        f"{name}-{hostnames[:index].count(name)}" if hostnames.count(name) > 1 else name
        for index, name in enumerate(hostnames)
    ]


def _create_certificate() -> tuple[ssl.SSLContext, str]:
    """Return the TLS context of a server with a new self-signed certificate, and the certificate (PEM)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, pem = ec.generate_private_key(ec.SECP256R1()), serialization.Encoding.PEM
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "distdl")])
    start, end = (dt.datetime.now(dt.UTC) + dt.timedelta(days=days) for days in (-1, 365))
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), start, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(pem)
    private_key = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory(prefix="distdl-") as folder:  # mode 0700
        file = Path(folder, "pair.pem")
        file.touch(0o600)
        file.write_bytes(private_key + certificate)
        context.load_cert_chain(file)
    return context, certificate.decode()
