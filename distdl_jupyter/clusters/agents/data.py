"""Copies the data sources of a job to hosts: local folders first, then each host's agent runs a stager.

A host that has the same folder at the same path uses it directly. Other hosts get a copy, cached by its content, so
that the next job with the same data copies nothing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import stagers
from distdl_jupyter.clusters.agents.agent import AgentNode, HostFailed, ask_all_or_raise
from distdl_jupyter.clusters.agents.staging import send
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.humanize import listing
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.node import files
from distdl_jupyter.node.data_cache import fingerprint
from distdl_jupyter.node.job import DATA

if TYPE_CHECKING:
    from distdl_jupyter.data.staging import JobStaging

#: The maximum number of characters per message; longer lines are split.
_PIECE = 1 << 20
#: Timeout in seconds of requests to an agent.
_SECONDS = 60.0
_HEED = 0.25
_AT_ONCE = 16


def stage_data(spec: JobSpec, nodes: Sequence[AgentNode], base: str, context: Context) -> None:
    """Copy a job's data to its hosts and set the variables of each node. Raises DataUnavailable, HostFailed."""
    assert context.staging is not None, "a job without data is not brought any"
    for source in spec.data:
        if source.scheme == "shared":
            _agree(source.path, nodes)
    local = [source for source in spec.data if source.scheme == "path"]
    folders = {source.path: _Folder(source.path) for source in local}
    copies = [_Copy(number, node, source.name, folders[source.path], base)
              for number, node in enumerate(nodes) for source in local]  # fmt: skip
    if copies:
        _copy(copies, context.staging, context.report)
    relocated: dict[int, dict[str, str]] = {number: {} for number in range(len(nodes))}
    for copy in copies:
        if copy.path != str(copy.folder.path):
            relocated[copy.number][copy.name] = copy.path
    started_stagers: list[AgentStager] = []
    try:
        for number, node in enumerate(nodes):
            started_stagers.append(AgentStager(number, node, relocated[number]))
        staged = stagers.run(started_stagers, context.staging, context.report, base=base)
    except BaseException:
        for stager in started_stagers:
            stager.end()
        raise
    for number, node in enumerate(nodes):
        node.data, node.python = staged[number]


def _agree(path: str, nodes: Sequence[AgentNode]) -> None:
    """Raise DataUnavailable if the content of a path differs between hosts. Stagers report a missing path."""
    answers = ask_all_or_raise([(node.connection, {"path": path}) for node in nodes], "look", _SECONDS)
    present = [
        (node.host, answer["fingerprint"])
        for node, answer in zip(nodes, answers, strict=True)
        if answer["fingerprint"] is not None
    ]
    for host, fingerprint_ in present[1:]:
        if fingerprint_ != present[0][1]:
            raise DataUnavailable(
                f"{host}: {path} does not hold the same files as on {present[0][0]}.",
                code="data-differs-between-hosts",
                hint="Use a path on a file system that all nodes share, or upload the data to Azure Blob storage.",
            )


class AgentStager(stagers.NodeStager):
    """A stager that an agent runs; ``relocated`` maps sources to their paths on its host."""

    def __init__(self, number: int, node: AgentNode, relocated: dict[str, str]) -> None:
        self._connection = node.connection
        self._relocated = relocated
        channel, out = self._connection.open_stream()
        super().__init__(number, node.host, out)
        process = {
            "kind": DATA,
            "process": 0,
            "argv": ["{python}", *stagers.PROGRAM],
            "out": channel,
            "err": self._connection.channel(self.keep_errors),
            "open_input": True,
        }
        self._connection.ask("start", _SECONDS, processes=[process])

    def adapt_order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the order with the paths on this host."""
        sources = [
            {**source, "path": self._relocated[source["name"]], "fingerprint": None}
            if source["name"] in self._relocated
            else source
            for source in order["sources"]
        ]
        return {**order, "sources": sources}

    def write(self, line: bytes) -> None:
        """Send a line in small parts, so that other messages on the connection are not delayed."""
        text = line.decode()
        with contextlib.suppress(HostFailed):
            for start in range(0, len(text), _PIECE):
                self._connection.ask("feed", _SECONDS, kind=DATA, text=text[start : start + _PIECE])

    @property
    def lost_reason(self) -> str:
        """The reason why the host is lost; "" while it responds."""
        return str(self._connection.lost)

    def end(self) -> None:
        """Stop reading; the agent ends the stager if it still runs."""
        self.out.close()


# folders on this machine ----------------------------------------------------------------------------


class _Folder:
    """A folder or file of this machine to copy to hosts. The digest is computed once, when a host first needs it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.total = self.files = 0
        self._digest = ""
        self._lock = threading.Lock()

    def digest(self, stop: threading.Event) -> str:
        """Return the digest of all names and contents. Raises OSError."""
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
                        _raise_if(stop)
            self._digest = digest.hexdigest()
            return self._digest


@dataclass(slots=True, eq=False)
class _Copy:
    """The copy of one source to one host. ``path`` is the path of the copy on the host, "" until it is known."""

    number: int
    node: AgentNode
    name: str
    folder: _Folder
    base: str
    path: str = ""
    done: int = 0
    cached: int = 0
    is_running: bool = False

    def run(self, stop: threading.Event) -> None:
        """Copy the folder to the host, unless it has the same content at the same path or in its cache."""
        path, connection = self.folder.path, self.node.connection
        try:
            if connection.ask("look", _SECONDS, path=str(path))["fingerprint"] == fingerprint(str(path)):
                self.path = str(path)
                return
            self.is_running = True
            fields = {"digest": self.folder.digest(stop), "base": self.base}
            directory = connection.ask("copied", _SECONDS, **fields)["path"]
            if directory:
                self.cached = self.folder.total
            else:
                directory = send(connection, "copy", functools.partial(self._produce, stop), **fields)["path"]
            self.path = f"{directory}/{path.name}"
        except OSError as error:
            raise DataUnavailable(
                f"Cannot read {path} to copy it to {self.node.host}: {error}.",
                code="data-copy-unreadable",
                hint="Check the path and its permissions.",
            ) from None

    def _produce(self, stop: threading.Event, write: Callable[[bytes], object]) -> None:
        def write_part(content: bytes) -> None:
            _raise_if(stop)
            write(content)
            self.done += len(content)

        files.pack(self.folder.path.parent, [self.folder.path.name], write_part)

    def message(self) -> dict[str, Any]:
        """Return the progress in the format of a stager's message."""
        folder, complete = self.folder, bool(self.path)
        done = folder.total if complete else min(self.done, folder.total)
        return {"type": "progress", "source": self.name, "done": done, "total": folder.total,
                "files": folder.files if complete else 0, "of": folder.files, "cached": self.cached}  # fmt: skip


def _raise_if(stop: threading.Event) -> None:
    if stop.is_set():
        raise DataUnavailable("The copy was stopped.", code="data-copy-stopped")


def _copy(copies: Sequence[_Copy], staging: JobStaging, report: Callable[[str, str], object]) -> None:
    """Run the copies in parallel and report their progress; an exception ends all of them."""
    stop, pool = threading.Event(), ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="copy")
    try:
        pending = {pool.submit(copy.run, stop) for copy in copies}
        while pending:
            done, pending = wait(pending, timeout=_HEED)
            for completed in done:
                completed.result()
            running = [copy for copy in copies if copy.is_running and copy.folder.total]
            if running:
                names, hosts = {copy.name for copy in running}, {copy.node.host for copy in running}
                report("stage", f"copying {listing(sorted(names))} to {listing(sorted(hosts))}")
            for copy in running:
                staging.on_message(copy.number, copy.node.host, copy.message())
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
