"""The stagers of a job's nodes at work side by side: what each says goes to the job's staging, and answers go back.

How a stager is started on a node is the cluster's; here are only its two ends. Ranks may start when ``run`` returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.node.channels import Inbox

if TYPE_CHECKING:
    from distdl_jupyter.data.staging import JobStaging

#: The stager, as the words behind a Python interpreter.
PROGRAM = ("-P", "-m", "distdl_jupyter.data.stager")
#: Seconds between two looks whether somebody wants the staging to end.
_HEED = 0.25
_READ = 256 * 1024
_ERROR_TAIL = 2000


class Staged(NamedTuple):
    """What a node's ranks get: variables that say where their data is, and their Python, "" for the node's own."""

    variables: dict[str, str]
    python: str = ""


class Stager(ABC):
    """One node's stager, whose messages come from ``out``."""

    def __init__(self, node: int, host: str, out: Inbox) -> None:
        self.node = node
        self.host = host
        self.out = out
        self.staged: Staged | None = None
        self._unread = b""
        self._errors = b""

    def adapt_order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the order as this node takes it."""
        return order

    @property
    def lost_reason(self) -> str:
        """Why its node does not answer any more, "" while it does."""
        return ""

    @abstractmethod
    def write(self, line: bytes) -> None:
        """Give it a line; it may take a moment. One that has ended takes nothing."""

    @abstractmethod
    def end(self) -> None:
        """Let it end at once, and free what it holds; called once, also for one that has ended."""

    def lines(self) -> list[bytes] | None:
        """Return the whole lines that came, None at the end."""
        content = self.out.take(Inbox.MOST)
        if not content:
            return None if content is not None else []
        *lines, self._unread = (self._unread + content).split(b"\n")
        return lines

    def keep_errors(self, content: bytes) -> None:
        """Keep the end of what it prints as errors. Any thread may call this."""
        self._errors = (self._errors + content)[-_ERROR_TAIL:]

    @property
    def error_tail(self) -> str:
        """The end of what it printed as errors."""
        return self._errors.decode(errors="replace").strip()


class LocalStager(Stager):
    """A stager that is a child of this process."""

    def __init__(self, node: int, host: str, python: str, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [python, *PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        super().__init__(node, host, Inbox())
        self._errors_reader = threading.Thread(target=_pump, args=(self._process.stderr, self.keep_errors), daemon=True)
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._errors_reader.start()
        self._reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        _pump(stream, self.out.feed)
        self._errors_reader.join(1.0)  # an error without its text would explain nothing
        self.out.feed(b"")

    def write(self, line: bytes) -> None:
        """Give it a line."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def end(self) -> None:
        """End its input, then the process."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(0.0 if self.staged is None else 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(2.0)


def _pump(stream: IO[bytes], feed: Callable[[bytes], object]) -> None:
    with stream:
        while content := os.read(stream.fileno(), _READ):
            feed(content)


def run(
    stagers: Sequence[Stager], staging: JobStaging, report: Callable[[str, str], object], *, base: str = ""
) -> dict[int, Staged]:
    """Let all work to their ends and return what each node's ranks get.

    ``report`` may raise to end it. Raises DataUnavailable for the first failure; all are ended then.
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
    """Remove what a job's ranks saw of its data on this machine; the cache stays."""
    from distdl_jupyter.node import data_cache

    data_cache.forget(job, base)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _message(line: bytes) -> dict[str, Any]:
    """Return a message, {} for what a library printed."""
    with contextlib.suppress(ValueError, TypeError):
        return dict(json.loads(line))
    return {}


def _read(stager: Stager, lines: Sequence[bytes], staging: JobStaging, pool: ThreadPoolExecutor) -> list[Future[None]]:
    """Pass on messages; return the requests for signatures, which may take seconds each."""
    renewals = []
    for message in map(_message, lines):
        if message.get("type") == "renew":
            renewals.append(pool.submit(_renew, stager, staging, message))
        elif message:
            staging.on_message(stager.node, stager.host, message)
        if message.get("type") == "staged":
            variables = {str(name): str(path) for name, path in message["paths"].items()}
            stager.staged = Staged(variables, str(message.get("python") or ""))
    return renewals


def _renew(stager: Stager, staging: JobStaging, message: dict[str, Any]) -> None:
    if answer := staging.on_message(stager.node, stager.host, message):
        stager.write(_line(answer))


def _require_staged(stager: Stager, what: str) -> None:
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
