"""Start an agent inside a scheduler's task and connect it back to the supervisor.

The scheduler's own program (a task of Spark) executes the text of this file, so it uses only the standard library. It
connects with TLS 1.3 to a port of the supervisor, whose certificate it knows in advance. It first sends one line of
JSON with the job's secret, the number of the task and its host. After that, the agent's bytes are exchanged in the
format of ``frames``: channel 0 is its stdin (an empty frame is end of file), 1 its stdout and 2 its stderr; the last
message contains its exit code. When the connection closes, so does the agent's stdin, and the agent stops all its
processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

#: Timeouts in seconds: to connect, to send the last bytes, and for an agent without a supervisor to exit.
_CONNECT_SECONDS, _LAST_SECONDS, _AGENT_SECONDS = 20.0, 5.0, 30.0
_PIECE = 64 * 1024
_PROGRAM = "import sys;exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"


class NotReached(RuntimeError):
    """The supervisor's port cannot be reached from this host."""


def serve(back: Mapping[str, Any], identity: Mapping[str, Any], python: str, environment: Mapping[str, str]) -> None:
    """Run an agent until it exits. Raises NotReached.

    ``back`` has the supervisor's host, port, certificate and secret. ``identity`` is sent to it. ``python`` is the
    interpreter of the agent ("": the current one).
    """
    asyncio.run(_serve(back, identity, python or sys.executable, environment))


async def _serve(
    back: Mapping[str, Any], identity: Mapping[str, Any], python: str, environment: Mapping[str, str]
) -> None:
    reader, writer = await _connected(back)
    address = {"hostname": socket.gethostname(), "address": writer.get_extra_info("sockname")[0]}
    try:
        writer.write(json.dumps({**identity, **address, "secret": back["secret"]}).encode() + b"\n")
        await writer.drain()
        await _carry(reader, writer, python, environment)
    except OSError:
        pass  # the supervisor is gone
    finally:
        writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), _LAST_SECONDS)


async def _connected(back: Mapping[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # only the job's own certificate is trusted
    context.load_verify_locations(cadata=back["certificate"])
    host, port = back["host"], back["port"]
    try:
        return await asyncio.wait_for(asyncio.open_connection(host, port, ssl=context), _CONNECT_SECONDS)
    except (TimeoutError, OSError) as error:
        reason = str(error) or f"no response within {_CONNECT_SECONDS:.0f} s"
        raise NotReached(f"distdl: {socket.gethostname()} cannot reach {host}:{port}: {reason}") from None


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, python: str, environment: Mapping[str, str]
) -> None:
    """Start the agent and forward its bytes until it has exited."""
    agent = await asyncio.create_subprocess_exec(
        python,
        "-c",
        _PROGRAM,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert agent.stdout is not None, "it is a pipe"
    assert agent.stderr is not None, "it is a pipe"
    feeding = asyncio.create_task(_feed(reader, agent))
    try:
        await asyncio.gather(_send(agent.stdout, 1, writer), _send(agent.stderr, 2, writer))
        body = json.dumps({"type": "exit", "code": await agent.wait()}).encode()
        writer.write(struct.pack(">cI", b"J", len(body)) + body)
        await writer.drain()
    finally:
        feeding.cancel()
        _end_input(agent)


async def _send(stream: asyncio.StreamReader, channel: int, writer: asyncio.StreamWriter) -> None:
    while content := await stream.read(_PIECE):
        writer.write(struct.pack(">cII", b"D", len(content) + 4, channel) + content)
        await writer.drain()


async def _feed(reader: asyncio.StreamReader, agent: asyncio.subprocess.Process) -> None:
    """Forward input to the agent. If the supervisor disconnects, close its stdin and kill it after a timeout."""
    assert agent.stdin is not None, "it is a pipe"
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while length := struct.unpack(">cII", await reader.readexactly(9))[1] - 4:
            agent.stdin.write(await reader.readexactly(length))
            await agent.stdin.drain()
        _end_input(agent)
        await reader.read()
    _end_input(agent)
    await asyncio.sleep(_AGENT_SECONDS)
    agent.kill()


def _end_input(agent: asyncio.subprocess.Process) -> None:
    assert agent.stdin is not None, "it is a pipe"
    agent.stdin.close()
