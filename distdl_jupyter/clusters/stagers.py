"""Brings a job's data and packages to its nodes: runs a stager on each node, after folders were copied to other hosts.

A stager is the program ``data.stager``; this module exchanges messages between the stagers and the job's staging. A
host that has the same folder at the same path uses it directly. Other hosts get a copy, cached by the sizes and times
of its files, so that the next job with the same data copies nothing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters.agents.agent import AgentNode, HostFailed, query_or_raise
from distdl_jupyter.clusters.agents.staging import send
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.humanize import plural
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
#: The maximum number of bytes of error output to store.
_MAX_ERROR_BYTES = 2000
#: The maximum number of characters of a part of a message to an agent.
_MAX_MESSAGE_CHARS = 1 << 20
#: The number of copied bytes between two progress messages.
_REPORT_BYTES = 1 << 23
#: The result on a node: variables with the paths of the data, and the ranks' Python ("": the node's Python).
NodeData = tuple[dict[str, str], str]
#: A message of a stager (see ``data.stager``).
Message = dict[str, Any]


class LocalStager:
    """A stager that is a child of this process. A thread reads and writes; another one calls ``end``."""

    lost_reason = ""

    def __init__(self, node: int, host: str, python: str, environment: dict[str, str]) -> None:
        self.node = node
        self.host = host
        #: The end of its error output.
        self.errors = b""
        self._error_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``end``
        self._process = subprocess.Popen(
            [python, *_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._error_file,
            env=environment, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None, "both are pipes"
        assert self._process.stdout is not None, "both are pipes"
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def copy_folders(self, _put: Callable[[Message], object]) -> dict[str, Message]:
        """Copy nothing: the folders of this machine are used directly."""
        return {}

    def write(self, message: Message) -> None:
        """Send a message; it is ignored if the process has ended."""
        with contextlib.suppress(OSError, ValueError):
            self._stdin.write(json.dumps(message).encode() + b"\n")
            self._stdin.flush()

    def read_lines(self) -> Iterator[bytes]:
        """Yield the lines of its output, then store its error output."""
        with self._stdout as lines:
            yield from lines
        self._error_file.seek(0)
        self.errors = self._error_file.read()[-_MAX_ERROR_BYTES:]

    def end(self) -> None:
        """Close the input of the process, then end it."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(5.0 if self._stdout.closed else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._error_file.close()


class AgentStager:
    """A stager that an agent runs; the agent ends it with the job. ``folders`` are copied to the host first."""

    def __init__(self, number: int, node: AgentNode, folders: Mapping[str, _Folder], base: str) -> None:
        self.node = number
        self.host = node.host
        #: The end of its error output.
        self.errors = b""
        self._connection = node.connection
        self._folders = folders
        self._base = base
        self._has_ended = False
        channel, self._output = self._connection.open_stream()
        argv, error_channel = ["{python}", *_PROGRAM], self._connection.open_channel(self._add_errors)
        process = {"kind": DATA, "process": 0, "argv": argv, "out": channel, "err": error_channel, "open_input": True}
        self._connection.ask("start", _REQUEST_SECONDS, processes=[process])

    def _add_errors(self, content: bytes) -> None:
        self.errors = (self.errors + content)[-_MAX_ERROR_BYTES:]

    def write(self, message: Message) -> None:
        """Send a message in small parts, so that other messages on the connection are not delayed."""
        text = json.dumps(message) + "\n"
        with contextlib.suppress(HostFailed):
            for start in range(0, len(text), _MAX_MESSAGE_CHARS):
                self._connection.ask("feed", _REQUEST_SECONDS, kind=DATA, text=text[start : start + _MAX_MESSAGE_CHARS])

    def read_lines(self) -> Iterator[bytes]:
        """Yield the lines of its output."""
        unread = b""
        while content := self._output.take(Inbox.MAX_UNREAD, None):
            *lines, unread = (unread + content).split(b"\n")
            yield from lines

    @property
    def lost_reason(self) -> str:
        """The reason why the host is lost, or "" while it responds."""
        return str(self._connection.lost)

    def end(self) -> None:
        """Stop copying and reading."""
        self._has_ended = True
        self._output.close()

    def copy_folders(self, put: Callable[[Message], object]) -> dict[str, Message]:
        """Copy folders that the host lacks; return the path of each copy that is not at the same path."""
        changes = {}
        for name, folder in self._folders.items():
            try:
                path = self._copy(name, folder, put)
            except OSError as error:
                text = f"Cannot read {folder.path} to copy it to {self.host}: {error}."
                hint = "Check the path and its permissions."
                raise DataUnavailable(text, code="data-copy-unreadable", hint=hint) from None
            if path != str(folder.path):
                changes[name] = {"path": path, "fingerprint": None}
        return changes

    def _copy(self, name: str, folder: _Folder, put: Callable[[Message], object]) -> str:
        """Copy a folder, unless the host has its content at the same path or in its cache; return the path there."""
        path, connection, copied_bytes = folder.path, self._connection, 0
        if connection.ask("fingerprint", _REQUEST_SECONDS, path=str(path))["fingerprint"] == fingerprint(str(path)):
            return str(path)

        def report(bytes_: int, file_count: int, cached_bytes: int = 0) -> None:
            counts = {"done": bytes_, "total": folder.total_bytes, "files": file_count, "of": folder.file_count}
            put({"type": "progress", "source": name, **counts, "cached": cached_bytes})

        def produce(write: Callable[[bytes], object]) -> None:
            def write_part(content: bytes) -> None:
                nonlocal copied_bytes
                if self._has_ended:
                    raise DataUnavailable("The copy was stopped.", code="data-copy-stopped")
                write(content)
                copied_bytes += len(content)
                if copied_bytes % _REPORT_BYTES < len(content):
                    report(min(copied_bytes, folder.total_bytes), 0)

            files.pack(path.parent, [path.name], write_part)

        fields = {"digest": folder.digest, "base": self._base}
        cached_copy = connection.ask("find_copy", _REQUEST_SECONDS, **fields)["path"]
        directory = cached_copy or send(connection, "copy", produce, **fields)["path"]
        report(folder.total_bytes, folder.file_count, folder.total_bytes if cached_copy else 0)
        return f"{directory}/{path.name}"


NodeStager = LocalStager | AgentStager
_MessageQueue = queue.SimpleQueue[tuple[NodeStager, Any]]


def _serve(stager: NodeStager, staging: JobStaging, base: str, received: _MessageQueue) -> None:
    """Send a stager its request and new signatures; queue its other messages, then None or the exception."""
    try:
        changes = stager.copy_folders(lambda message: received.put((stager, message)))
        request = staging.build_request(stager.node, base=base)
        stager.write({**request, "sources": [{**item, **changes.get(item["name"], {})} for item in request["sources"]]})
        for line in stager.read_lines():
            with contextlib.suppress(json.JSONDecodeError, UnicodeDecodeError):  # output of a library
                message = json.loads(line)
                if not isinstance(message, dict) or message.get("type") != "renew":
                    received.put((stager, message))
                elif answer := staging.handle_message(stager.node, stager.host, message):  # may take seconds
                    stager.write(answer)
        received.put((stager, None))
    except BaseException as error:  # noqa: BLE001  raised by ``run``
        received.put((stager, error))


def run(
    start: Callable[[int], NodeStager],
    nodes: Sequence[int],
    staging: JobStaging,
    report: Callable[[str, str], object],
    *,
    base: str = "",
) -> dict[int, NodeData]:
    """Run the stagers that ``start`` starts on ``nodes`` to completion; return the result of each node.

    An exception from ``start`` or ``report`` and the first failure (DataUnavailable) end all stagers.
    """
    stagers, staged = list[NodeStager](), dict[int, NodeData]()
    received: _MessageQueue = queue.SimpleQueue()
    try:
        for node in nodes:
            stagers.append(stager := start(node))
            threading.Thread(target=_serve, args=(stager, staging, base, received), name="staging", daemon=True).start()
        pending = set(stagers)
        while pending:
            report("stage", f"copying {staging.content} to {plural(len(stagers), 'node')}")
            with contextlib.suppress(queue.Empty):
                stager, message = received.get(timeout=_POLL_SECONDS)
                if isinstance(message, BaseException):
                    raise message
                if message is None:
                    pending.remove(stager)
                    if stager.node not in staged:
                        raise _make_error(stager, staging.content)
                elif isinstance(message, dict):
                    staging.handle_message(stager.node, stager.host, message)
                    if message.get("type") == "staged":
                        variables = {str(name): str(path) for name, path in message["paths"].items()}
                        staged[stager.node] = variables, str(message.get("python") or "")
    finally:
        for stager in stagers:
            stager.end()
    return staged


def _make_error(stager: NodeStager, description: str) -> DataUnavailable:
    """Return the error for a stager that has ended without a result."""
    if reason := stager.lost_reason:
        text = f"The connection to {stager.host} was lost while copying {description}: {reason}"
        return DataUnavailable(text, code="stager-host-lost")
    cause = ": ".join(["", *stager.errors.decode(errors="replace").strip().splitlines()[-1:]])
    text = f"{stager.host}: the program that copies {description} ended without a message{cause}."
    return DataUnavailable(text, code="stager-ended", hint="Submit the job again. Files already copied are kept.")


# data on hosts --------------------------------------------------------------------------------------


def stage_on_hosts(spec: JobSpec, nodes: Sequence[AgentNode], base: str, context: Context) -> None:
    """Copy a job's data to its hosts and set the variables of each node. Raises DataUnavailable, HostFailed."""
    assert context.staging is not None, "a job without data needs no staging"
    for path in [source.path for source in spec.data if source.scheme == "shared"]:
        requests = [(node.connection, {"path": path}) for node in nodes]
        answers = query_or_raise(requests, "fingerprint", _REQUEST_SECONDS)
        fingerprints = [(node.host, answer["fingerprint"]) for node, answer in zip(nodes, answers, strict=True)]
        # Stagers report a path that is missing.
        hosts = {str(fingerprint): host for host, fingerprint in fingerprints if fingerprint is not None}
        if len(hosts) > 1:
            first_host, host, *_other_hosts = sorted(hosts.values())
            text = f"{path} on {host} differs from {path} on {first_host}."
            hint = "Use a path on a file system that all nodes share, or upload the data to Azure Blob storage."
            raise DataUnavailable(text, code="data-differs-between-hosts", hint=hint)
    folders = {source.name: _Folder(source.path) for source in spec.data if source.scheme == "path"}

    def start(number: int) -> AgentStager:
        return AgentStager(number, nodes[number], folders, base)

    staged = run(start, range(len(nodes)), context.staging, context.report, base=base)
    for number, node in enumerate(nodes):
        node.data_variables, node.python = staged[number]


class _Folder:
    """A folder or file of this machine to copy to hosts."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        #: Set by ``digest``.
        self.total_bytes = self.file_count = 0

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the paths, sizes and change times (ctime, which no program can set) of all files.

        Raises OSError.
        """
        paths = sorted(path for path in self.path.rglob("*") if path.is_file()) if self.path.is_dir() else [self.path]
        statuses = [path.stat() for path in paths]
        self.total_bytes, self.file_count = sum(status.st_size for status in statuses), len(paths)
        lines = [f"{p.absolute()}\0{s.st_size}\0{s.st_ctime_ns}" for p, s in zip(paths, statuses, strict=True)]
        return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()
