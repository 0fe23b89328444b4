"""Data sources of a job on hosts: a stager run by each host's agent, and folders of this machine copied before.

A host that sees the same folder under the same path uses it there. Others get a copy, kept by its content, so that the
next job with the same data copies nothing.
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
from distdl_jupyter.clusters.agents.agent import HostFailed
from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.humanize import listing
from distdl_jupyter.node import files
from distdl_jupyter.node.children import DATA
from distdl_jupyter.node.data_cache import fingerprint

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.staging import AgentNode
    from distdl_jupyter.clusters.base import Context, Staging
    from distdl_jupyter.core.spec import JobSpec

#: Characters of a line that go in one message.
_PIECE = 1 << 20
#: Seconds for an agent that starts a process or takes a line.
_SECONDS = 60.0
_HEED = 0.25
_AT_ONCE = 16


def bring(spec: JobSpec, nodes: Sequence[AgentNode], base: str, context: Context) -> None:
    """Bring a job's data to its hosts and note each one's variables. Raises DataUnavailable, HostFailed."""
    assert context.staging is not None, "a job without data is not brought any"
    for source in spec.data:
        if source.scheme == "shared":
            _agree(source.path, nodes)
    local = [source for source in spec.data if source.scheme == "path"]
    copies = [_Copy(number, node, source.name, source.path, base)
              for number, node in enumerate(nodes) for source in local]  # fmt: skip
    if copies:
        _copy(copies, context.staging, context.report)
    moved: dict[int, dict[str, str]] = {number: {} for number in range(len(nodes))}
    for one in copies:
        if one.path != one.source:
            moved[one.number][one.name] = one.path
    begun: list[AgentStager] = []
    try:
        for number, node in enumerate(nodes):
            begun.append(AgentStager(number, node, moved[number]))
        found = stagers.run(begun, context.staging, context.report, base=base)
    except BaseException:
        for stager in begun:
            stager.end()
        raise
    for number, node in enumerate(nodes):
        node.data, node.python = found[number]


def _agree(path: str, nodes: Sequence[AgentNode]) -> None:
    """Raise DataUnavailable when hosts see different things at a path; one that sees nothing says so itself."""
    asked = [(node, node.connection.begin("look", path=path)) for node in nodes]
    answers = [(node.host, node.connection.result(answer, "look", _SECONDS)["fingerprint"]) for node, answer in asked]
    seen = [(host, found) for host, found in answers if found is not None]
    for host, found in seen[1:]:
        if found != seen[0][1]:
            raise DataUnavailable(
                f"{host}: {path} does not hold the same files as on {seen[0][0]}.",
                code="data-differs-between-hosts",
                hint="Use a path on a file system that all nodes share, or upload the data to Azure Blob storage.",
            )


class AgentStager(stagers.Stager):
    """A stager that an agent started; ``moved`` are the sources that lie elsewhere on its host."""

    def __init__(self, number: int, node: AgentNode, moved: dict[str, str]) -> None:
        self._connection = node.connection
        self._moved = moved
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

    def fitted(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the order with the paths of this host."""
        sources = [
            {**one, "path": self._moved[one["name"]], "fingerprint": None} if one["name"] in self._moved else one
            for one in order["sources"]
        ]
        return {**order, "sources": sources}

    def write(self, line: bytes) -> None:
        """Give it a line, in pieces that do not hold up what else the connection carries."""
        text = line.decode()
        with contextlib.suppress(HostFailed):
            for at in range(0, len(text), _PIECE):
                self._connection.ask("feed", _SECONDS, kind=DATA, text=text[at : at + _PIECE])

    @property
    def gone(self) -> str:
        """Why its host does not answer any more, "" while it does."""
        return self._connection.lost

    def end(self) -> None:
        """Read nothing more; a program that still works is ended with its agent."""
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
    """A folder's content, read once though many hosts get it."""

    digest: str
    total: int
    files: int


def _copy(copies: Sequence[_Copy], staging: Staging, report: Callable[[str, str], None]) -> None:
    stop: list[bool] = []
    contents: dict[str, Future[_Content]] = {}
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="copy")
    try:
        lacking = [one for one in copies if not _sees(one)]
        if not lacking:
            return
        for source in {one.source for one in lacking}:
            contents[source] = pool.submit(_content, source, stop)
        work = {pool.submit(_to_host, one, contents[one.source], stop): one for one in lacking}
        where = listing(list(dict.fromkeys(one.node.host for one in lacking)))
        pending = set(work)
        while pending:
            report("stage", f"copying {listing(sorted({one.name for one in lacking}))} to {where}")
            done, pending = wait(pending, timeout=_HEED)
            for one in done:
                one.result()
            for future, one_ in work.items():
                if one_.total:
                    staging.on_message(one_.number, one_.node.host, one_.message(complete=future.done()))
    finally:
        stop.append(True)
        pool.shutdown(wait=False, cancel_futures=True)


def _sees(one: _Copy) -> bool:
    """Ask whether the host has the same under the same path."""
    answer = one.node.connection.ask("look", _SECONDS, path=one.source)
    try:
        same = bool(answer["fingerprint"] == fingerprint(one.source))
    except OSError as error:
        raise DataUnavailable(
            f"Cannot read {one.source}: {error.strerror}.", code="data-path-unreadable", hint="Check the path."
        ) from None
    one.path = one.source if same else ""
    return same


def _content(source: str, stop: list[bool]) -> _Content:
    """Return the digest of all names and contents below a path."""
    found, total, count = hashlib.blake2b(digest_size=20), 0, 0
    root = Path(source)
    names = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    for path in names:
        size = path.stat().st_size
        found.update(f"{path.relative_to(root.parent).as_posix()}\0{size}\0".encode("utf-8", "surrogateescape"))
        total, count = total + size, count + 1
        with path.open("rb") as file:
            while content := file.read(1 << 20):
                found.update(content)
                if stop:
                    raise DataUnavailable("The copy was stopped.", code="data-copy-stopped")
    return _Content(found.hexdigest(), total, count)


def _to_host(one: _Copy, content: Future[_Content], stop: list[bool]) -> None:
    try:
        found = content.result()
        one.total, one.files = found.total, found.files
        kept = one.node.connection.ask("copied", _SECONDS, digest=found.digest, base=one.base)["path"]
        if kept:
            one.done = one.cached = found.total
        else:
            kept = _send(one, found, stop)
    except OSError as error:
        raise DataUnavailable(
            f"Cannot read {one.source} to copy it to {one.node.host}: {error}.",
            code="data-copy-unreadable",
            hint="Check the path and its permissions.",
        ) from None
    one.path = f"{kept}/{Path(one.source).name}"


def _send(one: _Copy, found: _Content, stop: list[bool]) -> str:
    connection = one.node.connection
    channel = connection.channel(lambda _content: None)
    answer = connection.begin("copy", channel=channel, digest=found.digest, base=one.base)

    def write(content: bytes) -> None:
        if stop:
            raise DataUnavailable("The copy was stopped.", code="data-copy-stopped")
        if content:
            connection.write(channel, content)
            one.done += len(content)

    source = Path(one.source)
    files.pack(source.parent, [source.name], write)
    connection.write(channel, b"")
    return str(connection.result(answer, "copy", None)["path"])
