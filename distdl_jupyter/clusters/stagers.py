"""Brings a job's data and packages to its nodes: runs a stager on each node, after folders were copied to other hosts.

A stager is the program ``data.stager``; this module exchanges messages between the stagers and the job's staging. Ranks
may start when ``run`` returns. A host that has the same folder at the same path uses it directly. Other hosts get a
copy, cached by its content, so that the next job with the same data copies nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters.agents.agent import AgentNode, HostFailed, ask_all_or_raise
from distdl_jupyter.clusters.agents.staging import send
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.data.staging import JobStaging
from distdl_jupyter.node import files
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.data_cache import fingerprint
from distdl_jupyter.node.job import DATA

#: The arguments of a Python interpreter that run the stager.
_PROGRAM = ("-P", "-m", "distdl_jupyter.data.stager")
#: Seconds between two checks for a cancellation, and timeout of requests to an agent.
_POLL_SECONDS, _REQUEST_SECONDS = 0.25, 60.0
#: Bytes per read, bytes of error output to store, and characters per message; longer lines are split.
_READ_SIZE, _ERROR_TAIL, _MESSAGE_SIZE = 256 * 1024, 2000, 1 << 20
#: The maximum number of nodes to serve in parallel.
_MAX_PARALLEL = 16
#: The result on a node: variables with the paths of the data, and the ranks' Python ("": the node's Python).
Staged = tuple[dict[str, str], str]


class NodeStager(ABC):
    """The stager of one node; ``out`` receives its messages. ``relocated`` maps sources to their paths on the node."""

    def __init__(self, node: int, host: str, out: Inbox, relocated: Mapping[str, str]) -> None:
        self.node = node
        self.host = host
        self.out = out
        self.staged: Staged | None = None
        self._relocated_paths = relocated
        self._unread = b""
        self._errors = b""

    def lost_reason(self) -> str:
        """Return the reason why the node is lost; "" while it responds."""
        return ""

    @abstractmethod
    def write(self, line: bytes) -> None:
        """Send a line; it may block. A stager that has ended ignores it."""

    @abstractmethod
    def end(self) -> None:
        """End the stager immediately and release its resources; called once, even if it has ended."""

    def send_order(self, order: dict[str, Any]) -> None:
        """Send the order of the node, with the paths on the node."""
        sources = [
            {**source, "path": self._relocated_paths[source["name"]], "fingerprint": None}
            if source["name"] in self._relocated_paths
            else source
            for source in order["sources"]
        ]
        self.write(_encode({**order, "sources": sources}))

    def messages(self) -> list[dict[str, Any]] | None:
        """Return the messages since the last call, None at the end; other output, such as of a library, is skipped."""
        if not (content := self.out.take(Inbox.MAX_UNREAD)):
            return None if content is not None else []
        *lines, self._unread = (self._unread + content).split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                messages.append(dict(json.loads(line)))
        return messages

    def keep_errors(self, content: bytes) -> None:
        """Append error output. Any thread may call this."""
        self._errors = (self._errors + content)[-_ERROR_TAIL:]

    def require_staged(self, what: str) -> None:
        """Raise DataUnavailable if the stager has ended without a result."""
        if self.staged is not None:
            return
        if reason := self.lost_reason():
            text = f"The connection to {self.host} was lost while copying {what}: {reason}"
            raise DataUnavailable(text, code="stager-host-lost")
        lines = self._errors.decode(errors="replace").strip().splitlines()[-1:]
        text = f"{self.host}: the program that copies {what} ended without a message{': ' + lines[0] if lines else ''}."
        hint = "Submit the job again. Files that were already copied are kept."
        raise DataUnavailable(text, code="stager-ended", hint=hint)


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class LocalStager(NodeStager):
    """A stager that is a child of this process."""

    def __init__(self, node: int, host: str, python: str, environment: dict[str, str]) -> None:
        super().__init__(node, host, Inbox(), {})
        self._error_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``end``
        self._process = subprocess.Popen(
            [python, *_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._error_file,
            env=environment, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while content := os.read(stream.fileno(), _READ_SIZE):
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
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(0.0 if self.staged is None else 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(2.0)
        self._error_file.close()


class AgentStager(NodeStager):
    """A stager that an agent runs; the agent ends it with the job."""

    def __init__(self, number: int, node: AgentNode, relocated: Mapping[str, str]) -> None:
        self._connection = node.connection
        channel, out = self._connection.open_stream()
        super().__init__(number, node.host, out, relocated)
        argv, err = ["{python}", *_PROGRAM], self._connection.channel(self.keep_errors)
        process = {"kind": DATA, "process": 0, "argv": argv, "out": channel, "err": err, "open_input": True}
        self._connection.ask("start", _REQUEST_SECONDS, processes=[process])

    def write(self, line: bytes) -> None:
        """Send a line in small parts, so that other messages on the connection are not delayed."""
        text = line.decode()
        with contextlib.suppress(HostFailed):
            for start in range(0, len(text), _MESSAGE_SIZE):
                self._connection.ask("feed", _REQUEST_SECONDS, kind=DATA, text=text[start : start + _MESSAGE_SIZE])

    def lost_reason(self) -> str:
        """Return the reason why the host is lost; "" while it responds."""
        return str(self._connection.lost)

    def end(self) -> None:
        """Stop reading."""
        self.out.close()


def run(
    start: Callable[[int], NodeStager],
    nodes: Sequence[int],
    staging: JobStaging,
    report: Callable[[str, str], object],
    *,
    base: str = "",
) -> dict[int, Staged]:
    """Run the stagers that ``start`` starts on ``nodes`` to completion; return the result of each node.

    An exception from ``start`` or ``report`` cancels the run. The first failure ends all stagers and raises
    DataUnavailable.
    """
    pool = ThreadPoolExecutor(max(1, min(2 * len(nodes), _MAX_PARALLEL)), thread_name_prefix="staging")
    stagers: list[NodeStager] = []
    renewals: list[Future[None]] = []
    received = threading.Event()

    def renew(stager: NodeStager, request: dict[str, Any]) -> None:
        if answer := staging.on_message(stager.node, stager.host, request):
            stager.write(_encode(answer))

    try:
        stagers.extend(map(start, nodes))
        for stager in stagers:
            stager.out.listen(received.set)
            pool.submit(stager.send_order, staging.order(stager.node, base=base))
        pending = list(stagers)
        while pending:
            report("stage", f"copying {staging.what} to {plural(len(stagers), 'node')}")
            received.wait(_POLL_SECONDS)
            received.clear()
            for stager in list(pending):
                if (messages := stager.messages()) is None:
                    pending.remove(stager)
                    stager.require_staged(staging.what)
                requests = _forward(stager, messages or (), staging)
                renewals += [pool.submit(renew, stager, request) for request in requests]
            for renewal in filter(Future.done, renewals):
                renewal.result()
    finally:
        for stager in stagers:
            stager.end()
        pool.shutdown(wait=False, cancel_futures=True)
    return {stager.node: stager.staged for stager in stagers if stager.staged is not None}


def _forward(stager: NodeStager, messages: Sequence[dict[str, Any]], staging: JobStaging) -> list[dict[str, Any]]:
    """Forward messages; return the requests for new signatures, each of which may take seconds."""
    requests = []
    for message in messages:
        if message.get("type") == "renew":
            requests.append(message)
            continue
        staging.on_message(stager.node, stager.host, message)
        if message.get("type") == "staged":
            variables = {str(name): str(path) for name, path in message["paths"].items()}
            stager.staged = variables, str(message.get("python") or "")
    return requests


# data on hosts --------------------------------------------------------------------------------------


def stage_on_hosts(spec: JobSpec, nodes: Sequence[AgentNode], base: str, context: Context) -> None:
    """Copy a job's data to its hosts and set the variables of each node. Raises DataUnavailable, HostFailed."""
    staging = context.staging
    assert staging is not None, "a job without data needs no staging"
    for source in spec.data:
        if source.scheme == "shared":
            _require_equal(source.path, nodes)
    local = [source for source in spec.data if source.scheme == "path"]
    folders = {source.path: _Folder(source.path) for source in local}
    copies = [
        _Copy(number, node, source.name, folders[source.path], base)
        for number, node in enumerate(nodes)
        for source in local
    ]
    _run_copies(copies, staging, context.report)

    def start(number: int) -> AgentStager:
        relocated = {copy.name: copy.path for copy in copies if copy.number == number and copy.is_relocated}
        return AgentStager(number, nodes[number], relocated)

    staged = run(start, range(len(nodes)), staging, context.report, base=base)
    for number, node in enumerate(nodes):
        node.data, node.python = staged[number]


def _require_equal(path: str, nodes: Sequence[AgentNode]) -> None:
    """Raise DataUnavailable if the content of a path differs between hosts. Stagers report a missing path."""
    answers = ask_all_or_raise([(node.connection, {"path": path}) for node in nodes], "look", _REQUEST_SECONDS)
    fingerprints = [(node.host, answer["fingerprint"]) for node, answer in zip(nodes, answers, strict=True)]
    (first_host, expected), *others = [pair for pair in fingerprints if pair[1] is not None] or [("", None)]
    for host, actual in others:
        if actual != expected:
            text = f"{host}: {path} does not hold the same files as on {first_host}."
            hint = "Use a path on a file system that all nodes share, or upload the data to Azure Blob storage."
            raise DataUnavailable(text, code="data-differs-between-hosts", hint=hint)


class _Folder:
    """A folder or file of this machine to copy to hosts. The digest is computed once, when a host first needs it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.total = self.files = 0
        self._digest = ""
        self._lock = threading.Lock()

    def digest(self, check: Callable[[], None]) -> str:
        """Return the digest of all names and contents; ``check`` is called for each part. Raises OSError."""
        with self._lock:
            if self._digest:
                return self._digest
            digest = hashlib.blake2b(digest_size=20)
            paths = sorted(path for path in self.path.rglob("*") if path.is_file())
            for path in paths if self.path.is_dir() else [self.path]:
                size = path.stat().st_size
                name = path.relative_to(self.path.parent).as_posix()
                digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
                self.total, self.files = self.total + size, self.files + 1
                with path.open("rb") as file:
                    while content := file.read(1 << 20):
                        digest.update(content)
                        check()
            self._digest = digest.hexdigest()
            return self._digest


class _Copy:
    """The copy of one source to one host. ``path`` is the path of the copy on the host, "" until it is known."""

    def __init__(self, number: int, node: AgentNode, name: str, folder: _Folder, base: str) -> None:
        self.number, self.node, self.name, self.folder, self._base = number, node, name, folder, base
        self.path = ""
        self.is_running = False
        self._done_bytes = self._cached_bytes = 0

    @property
    def is_relocated(self) -> bool:
        """Whether the path on the host differs from the path here."""
        return self.path != str(self.folder.path)

    def run(self, stop: threading.Event) -> None:
        """Copy the folder to the host, unless it has the same content at the same path or in its cache."""
        path, connection = self.folder.path, self.node.connection

        def check() -> None:
            if stop.is_set():
                raise DataUnavailable("The copy was stopped.", code="data-copy-stopped")

        def produce(write: Callable[[bytes], object]) -> None:
            def write_part(content: bytes) -> None:
                check()
                write(content)
                self._done_bytes += len(content)

            files.pack(path.parent, [path.name], write_part)

        try:
            if connection.ask("fingerprint", _REQUEST_SECONDS, path=str(path))["fingerprint"] == fingerprint(str(path)):
                self.path = str(path)
                return
            self.is_running = True
            fields = {"digest": self.folder.digest(check), "base": self._base}
            if directory := connection.ask("find_copy", _REQUEST_SECONDS, **fields)["path"]:
                self._cached_bytes = self.folder.total
            else:
                directory = send(connection, "copy", produce, **fields)["path"]
            self.path = f"{directory}/{path.name}"
        except OSError as error:
            text = f"Cannot read {path} to copy it to {self.node.host}: {error}."
            hint = "Check the path and its permissions."
            raise DataUnavailable(text, code="data-copy-unreadable", hint=hint) from None

    def message(self) -> dict[str, Any]:
        """Return the progress in the format of a stager's message."""
        total, count = self.folder.total, self.folder.files
        done, complete = (total, count) if self.path else (min(self._done_bytes, total), 0)
        counts = {"done": done, "total": total, "files": complete, "of": count, "cached": self._cached_bytes}
        return {"type": "progress", "source": self.name, **counts}


def _run_copies(copies: Sequence[_Copy], staging: JobStaging, report: Callable[[str, str], object]) -> None:
    """Run the copies in parallel and report their progress; an exception ends all of them."""
    stop, pool = threading.Event(), ThreadPoolExecutor(_MAX_PARALLEL, thread_name_prefix="copy")
    try:
        pending = {pool.submit(copy.run, stop) for copy in copies}
        while pending:
            done, pending = wait(pending, timeout=_POLL_SECONDS)
            for completed in done:
                completed.result()
            if running := [copy for copy in copies if copy.is_running and copy.folder.total]:
                names, hosts = {copy.name for copy in running}, {copy.node.host for copy in running}
                report("stage", f"copying {listing(sorted(names))} to {listing(sorted(hosts))}")
            for copy in running:
                staging.on_message(copy.number, copy.node.host, copy.message())
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
