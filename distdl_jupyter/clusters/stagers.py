"""Runs the stagers of a job's nodes in parallel, and passes messages between them and the job's staging.

The cluster starts a stager on each node; this module only exchanges messages. Ranks may start when ``run`` returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.node.channels import Inbox

if TYPE_CHECKING:
    from distdl_jupyter.data.staging import JobStaging

#: The arguments of a Python interpreter that run the stager.
PROGRAM = ("-P", "-m", "distdl_jupyter.data.stager")
#: Seconds between two checks for a cancellation.
_HEED = 0.25
_READ = 256 * 1024
_ERROR_TAIL = 2000


class Staged(NamedTuple):
    """The result on a node: variables with the paths of the data, and the ranks' Python ("": the node's Python)."""

    variables: dict[str, str]
    python: str = ""


class NodeStager(ABC):
    """The stager of one node; ``out`` receives its messages."""

    def __init__(self, node: int, host: str, out: Inbox) -> None:
        self.node = node
        self.host = host
        self.out = out
        self.staged: Staged | None = None
        self._unread = b""
        self._errors = b""

    def adapt_order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the order adapted to this node."""
        return order

    @property
    def lost_reason(self) -> str:
        """The reason why the node is lost; "" while it responds."""
        return ""

    @abstractmethod
    def write(self, line: bytes) -> None:
        """Send a line; it may block. A stager that has ended ignores it."""

    @abstractmethod
    def end(self) -> None:
        """End the stager immediately and release its resources; called once, even if it has ended."""

    def lines(self) -> list[bytes] | None:
        """Return the complete lines received, None at the end."""
        content = self.out.take(Inbox.MOST)
        if not content:
            return None if content is not None else []
        *lines, self._unread = (self._unread + content).split(b"\n")
        return lines

    def keep_errors(self, content: bytes) -> None:
        """Append error output. Any thread may call this."""
        self._errors = (self._errors + content)[-_ERROR_TAIL:]

    @property
    def error_tail(self) -> str:
        """The end of the error output."""
        return self._errors.decode(errors="replace").strip()


class LocalStager(NodeStager):
    """A stager that is a child of this process."""

    def __init__(self, node: int, host: str, python: str, environment: dict[str, str]) -> None:
        super().__init__(node, host, Inbox())
        self._error_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``end``
        self._process = subprocess.Popen(
            [python, *PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._error_file,
            env=environment, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while content := os.read(stream.fileno(), _READ):
                self.out.feed(content)
        self._error_file.seek(0)
        self.keep_errors(self._error_file.read())
        self.out.feed(b"")

    def write(self, line: bytes) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def end(self) -> None:
        """Close the input of the process, then end it."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(0.0 if self.staged is None else 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(2.0)
        self._error_file.close()


def run(
    stagers: Sequence[NodeStager], staging: JobStaging, report: Callable[[str, str], object], *, base: str = ""
) -> dict[int, Staged]:
    """Run all stagers to completion; return the result of each node.

    An exception from ``report`` cancels the run. The first failure ends all stagers and raises DataUnavailable.
    """
    pool = ThreadPoolExecutor(max(1, min(2 * len(stagers), 16)), thread_name_prefix="staging")
    renewals: list[Future[None]] = []
    received = threading.Event()
    working = list(stagers)
    try:
        for stager in stagers:
            stager.out.listen(received.set)
            pool.submit(stager.write, _line(stager.adapt_order(staging.order(stager.node, base=base))))
        while working:
            report("stage", f"copying {staging.what} to {plural(len(stagers), 'node')}")
            received.wait(_HEED)
            received.clear()
            for stager in list(working):
                if (lines := stager.lines()) is None:
                    working.remove(stager)
                    _require_staged(stager, staging.what)
                renewals += _read(stager, lines or [], staging, pool)
            for renewal in filter(Future.done, renewals):
                renewal.result()
    finally:
        for stager in stagers:
            stager.end()
        pool.shutdown(wait=False, cancel_futures=True)
    return {stager.node: stager.staged for stager in stagers if stager.staged is not None}


def forget(job: str, base: str = "") -> None:
    """Remove the data folder of a job on this machine; the cache is kept."""
    from distdl_jupyter.node import data_cache

    data_cache.forget(job, base)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _message(line: bytes) -> dict[str, Any]:
    """Return the message in a line, or {} for other output, such as that of a library."""
    with contextlib.suppress(ValueError, TypeError):
        return dict(json.loads(line))
    return {}


def _read(
    stager: NodeStager, lines: Sequence[bytes], staging: JobStaging, pool: ThreadPoolExecutor
) -> list[Future[None]]:
    """Forward messages; return the pending requests for new signatures, each of which may take seconds."""

    def renew(request: dict[str, Any]) -> None:
        if answer := staging.on_message(stager.node, stager.host, request):
            stager.write(_line(answer))

    renewals = []
    for message in map(_message, lines):
        if message.get("type") == "renew":
            renewals.append(pool.submit(renew, message))
        elif message:
            staging.on_message(stager.node, stager.host, message)
        if message.get("type") == "staged":
            variables = {str(name): str(path) for name, path in message["paths"].items()}
            stager.staged = Staged(variables, str(message.get("python") or ""))
    return renewals


def _require_staged(stager: NodeStager, what: str) -> None:
    if stager.staged is not None:
        return
    if stager.lost_reason:
        raise DataUnavailable(
            f"The connection to {stager.host} was lost while copying {what}: {stager.lost_reason}",
            code="stager-host-lost",
        )
    last = stager.error_tail.splitlines()[-1:]
    raise DataUnavailable(
        f"{stager.host}: the program that copies {what} ended without a message{': ' + last[0] if last else ''}.",
        code="stager-ended",
        hint="Submit the job again. Files that were already copied are kept.",
    )
