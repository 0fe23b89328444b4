"""Starts agents on hosts by ssh alone: on one, or on many side by side."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import environment, package
from distdl_jupyter.clusters.agents import wire
from distdl_jupyter.clusters.agents.agent import HostTrouble, Unreachable
from distdl_jupyter.clusters.agents.connection import DIRECTORY, Connection
from distdl_jupyter.clusters.ssh import command

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Host
    from distdl_jupyter.clusters.ssh.hosts import SshOptions

#: Seconds without a byte after which a broken connection is reported as a silent host.
_SILENCE_SECONDS = 3.0
#: The exit code of ssh itself when it fails.
_SSH_FAILED = 255
#: Seconds between two polls for the end of ssh, and for the rest of its errors then.
_POLL_SECONDS, _ERRORS_SECONDS = 0.01, 0.2
#: Seconds in which connections that are no longer needed are closed; a silent host does not delay the caller further.
_CLOSE_SECONDS = 6.0
#: Seconds between two reports of how many hosts are connected.
_REPORT_SECONDS = 0.5


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
        """Collect what it prints as errors."""
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
            await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """Close its streams."""
        self._errors.cancel()
        await asyncio.wait([self._errors])
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()

    async def why_ended(self, silent: float) -> str:
        """Return why its output ended, ``silent`` seconds after the last byte."""
        await self.end(2.0)
        # A process that ssh started may keep standard error open.
        await asyncio.wait([self._errors], timeout=_ERRORS_SECONDS)
        code, last = self.code, self.last_line
        if code == _SSH_FAILED and silent > _SILENCE_SECONDS:
            return f"No response from {self._name} for {silent:.0f} s."
        if code == _SSH_FAILED:
            return f"The connection to {self._name} broke{last}."
        return f"The agent on {self._name} ended with code {code}{last}."


def reach(host: Host, options: SshOptions, python: str = "") -> Connection:
    """Start an agent on a host and return the connection. Raises Unreachable.

    ``python`` is used where the options set none.
    """
    path = options.python or python or sys.executable
    base = options.directory or DIRECTORY
    first = package.first_input(path, base, [str(options.patience_seconds)])
    argv = command.argv(host, os.path.expanduser(options.ssh_config) if options.ssh_config else "")  # noqa: PTH111
    try:
        link = SshProcess(host.name, argv)
    except OSError as error:
        text = f"Cannot start ssh: {error.strerror or error}."
        remedy = "Install the OpenSSH client on this machine."
        raise Unreachable(host.name, "ssh-missing", text, remedy) from None
    connection = Connection(host, path, link, first)
    connection.shell = command.shell_command(host, options.ssh_config)
    connection.start()
    connection.await_greeting(lambda output, code: command.explain(host, options.ssh_config, path, output, code))
    return connection


def reach_all(
    hosts: Sequence[Host],
    options: SshOptions,
    python: str = "",
    *,
    seconds: float | None = None,
    report: Callable[[int], object] = bool,
) -> list[Connection | Unreachable]:
    """Start agents side by side and return, in order, a connection or the reason for each host.

    A host that does not answer within ``seconds`` is unreachable; None waits for ssh's own limit. ``report`` is called
    with the number of hosts that are done, and ends the wait by raising. Connections that come later are closed.
    """
    futures = [in_thread(_reached, host, options, python) for host in hosts]
    until = None if seconds is None else time.monotonic() + seconds
    pending = set(futures)
    try:
        while pending and (until is None or time.monotonic() < until):
            _, pending = wait(pending, timeout=_REPORT_SECONDS, return_when=FIRST_COMPLETED)
            report(len(hosts) - len(pending))
    except BaseException:
        pending = set(futures)
        raise
    finally:
        for future in pending:
            future.add_done_callback(_close_late)
    late = [command.explain(host, options.ssh_config, "", "Connection timed out", None) for host in hosts]
    return [late[at] if future in pending else future.result() for at, future in enumerate(futures)]


@contextlib.contextmanager
def connected(
    hosts: Sequence[Host], options: SshOptions, seconds: float
) -> Iterator[tuple[list[Connection], list[Unreachable]]]:
    """Connect to hosts for a short time; yield those that answered within ``seconds``, and why the others did not."""
    results = reach_all(hosts, options, seconds=seconds)
    connections = [result for result in results if isinstance(result, Connection)]
    try:
        yield connections, [result for result in results if isinstance(result, Unreachable)]
    finally:
        wait([in_thread(connection.close) for connection in connections], timeout=_CLOSE_SECONDS)


def in_thread(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Call a function in a daemon thread, so that a silent host does not delay the end of this process."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001  the future's reader gets it
            future.set_exception(error)

    threading.Thread(target=call, name=f"ssh-{function.__name__}", daemon=True).start()
    return future


def _reached(host: Host, options: SshOptions, python: str) -> Connection | Unreachable:
    try:
        return reach(host, options, python)
    except Unreachable as error:
        return error
    except HostTrouble as error:
        return Unreachable(host.name, "other", error.says, error.remedy)


def _close_late(future: Future[Connection | Unreachable]) -> None:
    if future.exception() is None and isinstance(connection := future.result(), Connection):
        connection.close()
