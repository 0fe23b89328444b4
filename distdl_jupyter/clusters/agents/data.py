"""Copies the data sources of a job to hosts: local folders first, then each host's agent runs a stager.

A host that has the same folder at the same path uses it directly. Other hosts get a copy, cached by its content, so
that the next job with the same data copies nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.clusters import stagers
from distdl_jupyter.clusters.agents.agent import HostFailed, ask_all_or_raise
from distdl_jupyter.clusters.agents.staging import AgentNode, send
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.humanize import listing
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.node import files
from distdl_jupyter.node.data_cache import fingerprint
from distdl_jupyter.node.job import DATA

if TYPE_CHECKING:
    from distdl_jupyter.data.staging import JobStaging

#: The maximum number of characters of a line in one message.
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
    copies = [_Copy(number, node, source.name, source.path, base)
              for number, node in enumerate(nodes) for source in local]  # fmt: skip
    if copies:
        _copy(copies, context.staging, context.report)
    relocated: dict[int, dict[str, str]] = {number: {} for number in range(len(nodes))}
    for copy in copies:
        if copy.path != copy.source:
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
    """Raise DataUnavailable if the content at a path differs between hosts; hosts without it report that themselves."""
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
        """Send a line in small parts, which do not delay other traffic of the connection."""
        text = line.decode()
        with contextlib.suppress(HostFailed):
            for at in range(0, len(text), _PIECE):
                self._connection.ask("feed", _SECONDS, kind=DATA, text=text[at : at + _PIECE])

    @property
    def lost_reason(self) -> str:
        """The reason why the host is lost; "" while it responds."""
        return self._connection.lost

    def end(self) -> None:
        """Stop reading; the agent ends a program that still runs."""
        self.out.close()


# folders of this machine ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Copy:
    number: int
    node: AgentNode
    name: str
    source: str
    base: str
    path: str = ""
    done: int = 0
    total: int = 0
    files: int = 0
    cached: int = 0

    def message(self, *, complete: bool) -> dict[str, Any]:
        done, files_ = (self.total, self.files) if complete else (min(self.done, self.total), 0)
        return {"type": "progress", "source": self.name, "done": done, "total": self.total, "files": files_,
                "of": self.files, "cached": self.cached}  # fmt: skip


class _Content(NamedTuple):
    """The content of a folder; it is read once for all hosts."""

    digest: str
    total: int
    files: int


def _copy(copies: Sequence[_Copy], staging: JobStaging, report: Callable[[str, str], object]) -> None:
    stop: list[bool] = []
    contents: dict[str, Future[_Content]] = {}
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="copy")
    try:
        outdated = [copy for copy in copies if not _sees(copy)]
        if not outdated:
            return
        for source in {copy.source for copy in outdated}:
            contents[source] = pool.submit(_content, source, stop)
        work = {pool.submit(_to_host, copy, contents[copy.source], stop): copy for copy in outdated}
        where = listing(list(dict.fromkeys(copy.node.host for copy in outdated)))
        pending = set(work)
        while pending:
            report("stage", f"copying {listing(sorted({copy.name for copy in outdated}))} to {where}")
            done, pending = wait(pending, timeout=_HEED)
            for completed in done:
                completed.result()
            for future, copy in work.items():
                if copy.total:
                    staging.on_message(copy.number, copy.node.host, copy.message(complete=future.done()))
    finally:
        stop.append(True)
        pool.shutdown(wait=False, cancel_futures=True)


def _sees(copy: _Copy) -> bool:
    """Return whether the host has the same content at the same path."""
    answer = copy.node.connection.ask("look", _SECONDS, path=copy.source)
    try:
        same = bool(answer["fingerprint"] == fingerprint(copy.source))
    except OSError as error:
        raise DataUnavailable(
            f"Cannot read {copy.source}: {error.strerror}.", code="data-path-unreadable", hint="Check the path."
        ) from None
    copy.path = copy.source if same else ""
    return same


def _content(source: str, stop: list[bool]) -> _Content:
    """Return the digest of all names and contents below a path."""
    digest, total, count = hashlib.blake2b(digest_size=20), 0, 0
    root = Path(source)
    names = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    for path in names:
        size = path.stat().st_size
        digest.update(f"{path.relative_to(root.parent).as_posix()}\0{size}\0".encode("utf-8", "surrogateescape"))
        total, count = total + size, count + 1
        with path.open("rb") as file:
            while content := file.read(1 << 20):
                digest.update(content)
                if stop:
                    raise DataUnavailable("The copy was stopped.", code="data-copy-stopped")
    return _Content(digest.hexdigest(), total, count)


def _to_host(copy: _Copy, content: Future[_Content], stop: list[bool]) -> None:
    try:
        source = content.result()
        copy.total, copy.files = source.total, source.files
        directory = copy.node.connection.ask("copied", _SECONDS, digest=source.digest, base=copy.base)["path"]
        if directory:
            copy.done = copy.cached = source.total
        else:
            directory = _send(copy, source, stop)
    except OSError as error:
        raise DataUnavailable(
            f"Cannot read {copy.source} to copy it to {copy.node.host}: {error}.",
            code="data-copy-unreadable",
            hint="Check the path and its permissions.",
        ) from None
    copy.path = f"{directory}/{Path(copy.source).name}"


def _send(copy: _Copy, described: _Content, stop: list[bool]) -> str:
    source = Path(copy.source)

    def produce(pass_on: Callable[[bytes], object]) -> None:
        def write(content: bytes) -> None:
            if stop:
                raise DataUnavailable("The copy was stopped.", code="data-copy-stopped")
            pass_on(content)
            copy.done += len(content)

        files.pack(source.parent, [source.name], write)

    answer = send(copy.node.connection, "copy", produce, digest=described.digest, base=copy.base)
    return str(answer["path"])
