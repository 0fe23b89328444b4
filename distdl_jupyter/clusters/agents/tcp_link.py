"""Agents that connect to the supervisor (``node.connect_back``): the listener, and the link of each connection.

A scheduler starts the agent's side on a host, with the port, a secret and the certificate of the job. A connection is
unproven until its client has sent the secret. The number of unproven connections and their lifetime are limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import hmac
import json
import secrets
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.clusters import package
from distdl_jupyter.clusters.agents import wire
from distdl_jupyter.clusters.agents.agent import Host
from distdl_jupyter.clusters.agents.connection import TIMEOUT, Connection, start_all
from distdl_jupyter.clusters.agents.wire import Link
from distdl_jupyter.node import frames

#: Timeouts in seconds for sending the secret: normally, and while other connections wait to be accepted.
_HELLO_SECONDS, _CROWDED_SECONDS = 10.0, 1.0
#: The maximum number of unproven connections. It exceeds most node counts, as all nodes of a job connect at once.
_MAX_UNPROVEN = 256
_PIECE = 256 * 1024
_INPUT, _OUTPUT = 0, 1


class ConnectedAgent(NamedTuple):
    """A connected node of the job: its number, its host, and the link to its agent."""

    number: int
    hostname: str
    address: str
    link: TcpLink


class AgentListener:
    """A listening port for the nodes of one job; ``agents`` holds the connected nodes by number."""

    def __init__(self, host: str, lost: Callable[[str], str]) -> None:
        """Listen on the address ``host``; ``lost`` returns the message for a lost node of a given name."""
        self._lost = lost
        self._secret = secrets.token_urlsafe(32)
        self._host = host
        self.agents: dict[int, ConnectedAgent] = {}
        self._context, self._certificate = _certificate()
        self._socket = _listen(host)
        self._number = self._socket.getsockname()[1]
        self._unproven: dict[asyncio.Task[bool], float] = {}
        self._accepting = asyncio.run_coroutine_threadsafe(self._accept(), wire.loop())

    @property
    def back(self) -> dict[str, Any]:
        """The arguments of ``connect_back.serve``, including the secret."""
        return {"host": self._host, "port": self._number, "certificate": self._certificate, "secret": self._secret}

    @property
    def shares_hosts(self) -> bool:
        """Whether several nodes have connected from one host."""
        return len({agent.hostname for agent in self.agents.values()}) < len(self.agents)

    async def _accept(self) -> None:
        """Accept connections; pause while too many of them are unproven."""
        loop = asyncio.get_running_loop()
        while True:
            await self._make_room()
            try:
                connection, _address = await loop.sock_accept(self._socket)
            except OSError:  # out of file descriptors, or the client has disconnected
                await asyncio.sleep(_CROWDED_SECONDS)
                continue
            task = asyncio.create_task(self._admit(connection))
            self._unproven[task] = loop.time()
            task.add_done_callback(functools.partial(self._after_admission, connection))

    def _after_admission(self, connection: socket.socket, task: asyncio.Task[bool]) -> None:
        del self._unproven[task]
        if task.cancelled() or not task.result():
            asyncio.get_running_loop().call_soon(connection.close)

    async def _make_room(self) -> None:
        """Wait until fewer connections are unproven; close connections that have timed out."""
        while len(self._unproven) >= _MAX_UNPROVEN:
            now = asyncio.get_running_loop().time()
            expired = [task for task, since in self._unproven.items() if now - since >= _CROWDED_SECONDS]
            for task in expired:
                task.cancel()
            left = 0.0 if expired else _CROWDED_SECONDS - (now - min(self._unproven.values()))
            await asyncio.wait(list(self._unproven), timeout=left, return_when=asyncio.FIRST_COMPLETED)

    async def _admit(self, connection: socket.socket) -> bool:
        """Register a connection from a new node of this job and return True; close any other and return False."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport: Any = None
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                transport, _protocol = await loop.connect_accepted_socket(
                    lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=_HELLO_SECONDS
                )
                agent = self._authenticate(await reader.readline(), reader, transport, protocol)
                if agent is not None and agent.number not in self.agents:
                    self.agents[agent.number] = agent
                    transport = None
                    return True
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # TimeoutError is an OSError
            pass
        finally:
            if transport is not None:
                transport.abort()
        return False

    def _authenticate(
        self, line: bytes, reader: asyncio.StreamReader, transport: Any, protocol: Any
    ) -> ConnectedAgent | None:
        """Return the node that sent this line; None if the secret is wrong."""
        hello = json.loads(line)
        if not hmac.compare_digest(str(hello["secret"]).encode(), self._secret.encode()) or hello["attempt"]:
            return None
        number, hostname, address = int(hello["number"]), str(hello["hostname"]), str(hello["address"])
        writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
        return ConnectedAgent(number, hostname, address, TcpLink(reader, writer, self._lost))

    def close(self) -> None:
        """Stop listening; idempotent."""
        wire.loop().call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._accepting.cancel()
        for task in self._unproven:
            task.cancel()
        self._socket.close()

    def cut(self) -> None:
        """Close all connections, which ends the agents."""
        for agent in list(self.agents.values()):
            wire.loop().call_soon_threadsafe(agent.link.cut)

    def connect(self, directory: str) -> list[Connection]:
        """Start an agent on each node; return the connections ordered by host name. Raises Unreachable."""
        program = package.first_input("", directory, [TIMEOUT]).partition(b"\n")[2]
        agents = sorted(self.agents.values(), key=lambda agent: (agent.hostname, agent.number))
        for name, agent in zip(distinct([agent.hostname for agent in agents]), agents, strict=True):
            agent.link.name = name
        return start_all(((Host(agent.link.name, agent.address), agent.link) for agent in agents), program)


class TcpLink(Link):
    """The link to an agent over a connection that the agent has opened."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: Callable[[str], str]) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer
        self._lost = lost
        self._frames = frames.Reader(greeting=False)
        self._code: int | None = None
        self._input_ended = False
        #: The name of the node.
        self.name = ""

    async def read(self) -> bytes:
        """Return the next output of the agent."""
        while self._code is None:
            try:
                content = await self._reader.read(_PIECE)
            except OSError:
                content = b""
            if not content:
                break
            if output := b"".join(map(self._take, self._frames.feed(content))):
                return output
        return b""

    def _take(self, frame: frames.Message | frames.Data) -> bytes:
        """Return the agent's output in a frame; store its exit code and error output."""
        if isinstance(frame, frames.Message):
            self._code = int(frame.data["code"])
        elif frame.channel == _OUTPUT:
            return frame.bytes
        else:
            self.keep(frame.bytes)
        return b""

    async def write(self, content: bytes) -> None:
        """Write to the agent's standard input."""
        self._writer.write(frames.data(_INPUT, content))
        await self._writer.drain()

    @property
    def code(self) -> int | None:
        """The exit code of the agent, 255 if it is unknown."""
        return self._code

    def close_input(self) -> None:
        """Close the agent's standard input; idempotent."""
        if not self._input_ended:
            self._input_ended = True
            self._writer.write(frames.data(_INPUT, b""))

    async def end(self, grace: float = 0.0) -> None:
        """Wait for the agent to exit; kill it after ``grace`` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drain(), grace)
        self._code = 255 if self._code is None else self._code
        self.cut()

    async def _drain(self) -> None:
        while await self.read():
            pass

    def cut(self) -> None:
        """Close the connection, which ends the agent; idempotent. Called on the loop."""
        self._writer.transport.abort()

    async def why_ended(self, silent: float) -> str:
        """Return why the output ended."""
        if self._code is not None:
            return f"The agent on {self.name} ended with code {self._code}{self.last_line}."
        return self._lost(self.name)


def distinct(hostnames: Sequence[str]) -> list[str]:
    """Return a name for each node: its host name, with -0, -1, ... if a host has several nodes."""
    several = {name for name, count in Counter(hostnames).items() if count > 1}
    numbers: Counter[str] = Counter()
    names = []
    for name in hostnames:
        names.append(f"{name}-{numbers[name]}" if name in several else name)
        numbers[name] += 1
    return names


def _listen(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family, backlog=1024)
    except OSError:  # the address belongs to a NAT gateway, not to this machine
        listener = socket.create_server(("", 0), backlog=1024)
    listener.settimeout(0)
    return listener


def _certificate() -> tuple[ssl.SSLContext, str]:
    """Return the TLS context of a server with a new self-signed certificate, and the certificate (PEM)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "distdl")])
    now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
    base = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - day, now + 365 * day
    )
    signed = base.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(key, hashes.SHA256())
    certificate = signed.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory(prefix="distdl-") as folder:  # mode 0700
        file = Path(folder, "pair.pem")
        file.touch(0o600)
        file.write_bytes(secret + certificate)
        context.load_cert_chain(file)
    return context, certificate.decode()
