"""Start an agent inside a scheduler's task and connect it back to the supervisor.

The scheduler's own program (a task of Spark) executes the text of this file, so it uses only the standard library. It
connects with TLS 1.3 to a port of the supervisor, whose certificate it knows in advance. It first sends one line of
JSON with the job's secret, the number of the task and its host. After that, the agent's bytes are exchanged in the
format of ``channels``: channel 0 is its stdin (an empty frame is end of file), 1 its stdout and 2 its stderr; the last
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

#: Timeout in seconds to connect.
_CONNECT_SECONDS = 20.0
#: Timeout in seconds to send the last bytes.
_FLUSH_SECONDS = 5.0
#: Timeout in seconds for an agent without a supervisor to exit.
_AGENT_SECONDS = 30.0
_CHUNK_BYTES = 64 * 1024
_AGENT_PROGRAM = "import sys;exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"


async def serve(
    supervisor: Mapping[str, Any], identity: Mapping[str, Any], python: str, environment: Mapping[str, str]
) -> None:
    """Run an agent until it exits. Raises RuntimeError if the supervisor's port cannot be reached from this host.

    ``supervisor`` has its host, port, certificate and secret. ``identity`` is sent to it. ``python`` is the
    interpreter of the agent ("" for the current one).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # only the job's own certificate is trusted
    context.load_verify_locations(cadata=supervisor["certificate"])
    host, port = supervisor["host"], supervisor["port"]
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port, ssl=context), _CONNECT_SECONDS)
    except (TimeoutError, OSError) as error:
        reason = str(error) or f"no response within {_CONNECT_SECONDS:.0f} s"
        raise RuntimeError(f"distdl: {socket.gethostname()} cannot reach {host}:{port}: {reason}") from None
    address = {"hostname": socket.gethostname(), "address": writer.get_extra_info("sockname")[0]}
    try:
        writer.write(json.dumps({**identity, **address, "secret": supervisor["secret"]}).encode() + b"\n")
        await writer.drain()
        await _relay(reader, writer, python or sys.executable, environment)
    except OSError:
        pass  # the supervisor is gone
    finally:
        writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), _FLUSH_SECONDS)


async def _relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, python: str, environment: Mapping[str, str]
) -> None:
    """Start the agent and forward its bytes until it has exited."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    agent = await asyncio.create_subprocess_exec(
        python, "-c", _AGENT_PROGRAM, env=environment, start_new_session=True, **pipes
    )
    stdin, stdout, stderr = agent.stdin, agent.stdout, agent.stderr
    assert stdin is not None and stdout is not None and stderr is not None, "they are pipes"  # noqa: PT018

    async def send(stream: asyncio.StreamReader, channel: int) -> None:
        while content := await stream.read(_CHUNK_BYTES):
            writer.write(struct.pack(">cII", b"D", len(content) + 4, channel) + content)
            await writer.drain()

    async def feed() -> None:
        """Forward input to the agent. If the supervisor disconnects, close its stdin and kill it after a timeout."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while length := struct.unpack(">cII", await reader.readexactly(9))[1] - 4:
                stdin.write(await reader.readexactly(length))
                await stdin.drain()
            stdin.close()
            await reader.read()
        stdin.close()
        await asyncio.sleep(_AGENT_SECONDS)
        agent.kill()

    feed_task = asyncio.create_task(feed())
    try:
        await asyncio.gather(send(stdout, 1), send(stderr, 2))
        body = json.dumps({"type": "exit", "code": await agent.wait()}).encode()
        writer.write(struct.pack(">cI", b"J", len(body)) + body)
        await writer.drain()
    finally:
        feed_task.cancel()
        stdin.close()
