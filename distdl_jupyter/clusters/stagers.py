"""The stagers of a job's nodes at work side by side: what each says goes to the job's staging, and answers go back.

How a stager is started on a node is the cluster's; here are only its two ends. Ranks may start when ``run`` returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.humanize import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.clusters.base import Report, Staging

#: The stager, as the words behind a Python interpreter.
PROGRAM = ("-P", "-m", "distdl_jupyter.data.stager")
#: Seconds between two looks whether somebody wants the staging to end.
_HEED = 0.25
_READ = 256 * 1024
_LAST_WORDS = 2000


class Staged(NamedTuple):
    """What a node's ranks get: variables that say where their data is, and their Python, "" for the node's own."""

    variables: dict[str, str]
    python: str = ""


class Stager(ABC):
    """One node's stager: ``out`` is read for what it says, ``err`` for its last words; both become owned by it."""

    def __init__(self, node: int, host: str, out: int, err: int) -> None:
        self.node = node
        self.host = host
        self.out, self.err = out, err
        self.staged: Staged | None = None
        self._unread = b""
        self._said = b""
        for fd in (out, err):
            os.set_blocking(fd, False)

    def fitted(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the order as this node takes it."""
        return order

    @property
    def gone(self) -> str:
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
        try:
            content = os.read(self.out, _READ)
        except BlockingIOError:
            return []
        if not content:
            return None
        *lines, self._unread = (self._unread + content).split(b"\n")
        return lines

    @property
    def last_words(self) -> str:
        """The end of what it printed as errors."""
        with contextlib.suppress(OSError):
            while content := os.read(self.err, _READ):
                self._said = (self._said + content)[-_LAST_WORDS:]
        return self._said.decode(errors="replace").strip()


class LocalStager(Stager):
    """A stager that is a child of this process."""

    def __init__(self, node: int, host: str, python: str, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [python, *PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        super().__init__(node, host, self._process.stdout.fileno(), self._process.stderr.fileno())

    def write(self, line: bytes) -> None:
        """Give it a line."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def end(self) -> None:
        """End its input, then the process."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        try:
            self._process.wait(0.0 if self.staged is None else 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def run(stagers: Sequence[Stager], staging: Staging, report: Report, *, base: str = "") -> dict[int, Staged]:
    """Let all work to their ends and return what each node's ranks get.

    ``report`` may raise to end it. Raises DataUnavailable for the first failure; all are ended then.
    """
    pool = ThreadPoolExecutor(max(1, min(2 * len(stagers), 16)), thread_name_prefix="staging")
    renewals: list[Future[None]] = []
    selector = selectors.DefaultSelector()
    try:
        for stager in stagers:
            selector.register(stager.out, selectors.EVENT_READ, stager)
            pool.submit(stager.write, _line(stager.fitted(staging.order(stager.node, base=base))))
        while selector.get_map():
            report("stage", f"copying {staging.what} to {plural(len(stagers), 'node')}")
            for key, _ in selector.select(_HEED):
                if (lines := key.data.lines()) is None:
                    selector.unregister(key.fileobj)
                    _require_staged(key.data, staging.what)
                renewals += _read(key.data, lines or [], staging, pool)
            for renewal in filter(Future.done, renewals):
                renewal.result()
    finally:
        selector.close()
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


def _read(stager: Stager, lines: Sequence[bytes], staging: Staging, pool: ThreadPoolExecutor) -> list[Future[None]]:
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


def _renew(stager: Stager, staging: Staging, message: dict[str, Any]) -> None:
    if answer := staging.on_message(stager.node, stager.host, message):
        stager.write(_line(answer))


def _require_staged(stager: Stager, what: str) -> None:
    if stager.staged is not None:
        return
    if stager.gone:
        raise DataUnavailable(
            f"{stager.host} was lost while {what} was copied to it: {stager.gone}", code="stager-host-lost"
        )
    last = stager.last_words.splitlines()[-1:]
    raise DataUnavailable(
        f"{stager.host}: the program that copies {what} ended without a message{': ' + last[0] if last else ''}.",
        code="stager-ended",
        hint="Submit the job again. Files that were already copied are kept.",
    )
