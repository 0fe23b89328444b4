"""Starts an agent on a host by ssh alone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from distdl_jupyter.clusters import environment, package
from distdl_jupyter.clusters.agents import bootstrap, wire
from distdl_jupyter.clusters.agents.connection import DIRECTORY, Connection
from distdl_jupyter.clusters.agents.wire import Wire
from distdl_jupyter.clusters.ssh import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.clusters.agents.agent import Host
    from distdl_jupyter.clusters.ssh.options import SshOptions


#: Seconds without a word after which the end of a connection is no surprise: ssh found out first.
_LONG_SILENCE = 3.0
#: The exit code of ssh itself when it fails.
_OF_SSH = 255
#: Seconds between two looks whether it has ended, and for its last words.
_LOOK, _LAST = 0.01, 0.2


class SshProcess(wire.Link):
    """One ssh process."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        super().__init__()
        self._name = name
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment.for_ssh(),
            start_new_session=True,
        )
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._pipes = [pipe for pipe in pipes if pipe is not None]
        self._in, self._out, self._err = (pipe.fileno() for pipe in self._pipes)
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    async def open(self) -> None:
        """Listen to its errors."""
        self._errors = asyncio.create_task(self.keep_errors(functools.partial(wire.read, self._err)))

    async def read(self) -> bytes:
        """Return what it has printed next."""
        return await wire.read(self._out)

    async def write(self, content: bytes) -> None:
        """Write to its standard input."""
        await wire.write(self._in, content)

    def close_input(self) -> None:
        """End its standard input; idempotent."""
        with contextlib.suppress(OSError):
            self._pipes[0].close()

    async def end(self, grace: float = 0.0) -> None:
        """Wait for its end, after ``grace`` seconds by force."""
        until = time.monotonic() + grace
        while self.code is None:
            if time.monotonic() >= until:
                self._process.kill()
            await asyncio.sleep(_LOOK)

    async def close(self) -> None:
        """Close its streams."""
        self._errors.cancel()
        await asyncio.wait([self._errors])
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()

    async def why_ended(self, silent: float) -> str:
        """Return what the end of its output means, when nothing was heard for ``silent`` seconds."""
        await self.end(2.0)
        # A process that it has left behind may hold its errors open.
        await asyncio.wait([self._errors], timeout=_LAST)
        code, last = self.code, self.last_line
        if code == _OF_SSH and silent > _LONG_SILENCE:
            return f"No response from {self._name} for {silent:.0f} s."
        if code == _OF_SSH:
            return f"The connection to {self._name} broke{last}."
        return f"The agent on {self._name} ended with code {code}{last}."


def reach(host: Host, options: SshOptions, python: str = "") -> Connection:
    """Start an agent on a host and return the connection. Raises Unreachable.

    ``python`` is the job's own path of Python, taken where the options name none.
    """
    path = options.python or python or sys.executable
    base = options.directory or DIRECTORY
    first = bootstrap.first_input(path, base, package.built(), agent_arguments(options))
    argv = command.argv(host, os.path.expanduser(options.ssh_config) if options.ssh_config else "")  # noqa: PTH111
    link = SshProcess(host.name, argv)
    connection = Connection(host, path, lambda listener: Wire(host.name, link, first, listener))
    connection.shell = command.in_words(host, options.ssh_config)
    connection.start()
    connection.await_greeting(lambda said, code: command.explain(host, options.ssh_config, path, said, code))
    return connection


def agent_arguments(options: SshOptions) -> list[str]:
    """Return the command line of the agent: nothing in it is about the job."""
    return [str(options.patience_seconds)]
