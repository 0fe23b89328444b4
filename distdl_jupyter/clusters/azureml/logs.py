"""The log files of a run as streams: what every rank says, and what Azure ML says before anybody can.

Each file is read on from where it was, by ranges. A rank's file holds its two streams (``node.log_mux``), and says
which rank it is; the file's own name is not relied on. Positions of a rank's stream are bytes of that stream, so a
second supervisor reads the files again from their beginning and passes on what is behind them.

What no rank said (the image's build, the nodes' preparation, a shell's complaint) goes line by line into one stream,
which is kept in the job's folder: its bytes come from several files, and only that order makes it one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.azureml.node.log_mux import Splitter
from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core import redact
from distdl_jupyter.core.errors import AzureRefused
from distdl_jupyter.worker import owned

if TYPE_CHECKING:
    from pathlib import Path

    from distdl_jupyter.clusters.azureml.client import Workspace

#: Bytes of one request.
_PIECE = 4 * 1024 * 1024
#: Files that are asked for at once.
_AT_ONCE = 8
_OF_RANKS = "user_logs/"
#: Files of the nodes' preparation in which nothing is of use to whoever waits.
_DULL = re.compile(r"system_logs/.*(metrics_capability|snapshot_capability)")
#: The requested range begins behind the end: nothing is new.
_NOTHING = 416


class Pipe:
    """One stream that is written here and read by the supervisor, from ``position`` on."""

    def __init__(self, rank: int | None, name: str, position: int) -> None:
        read, self._write = os.pipe()
        os.set_blocking(read, False)
        self.stream = Stream(read, rank, name, position)
        self._skip = position

    def pass_on(self, content: bytes) -> None:
        """Write what was not heard before, waiting for the reader where it must. Raises BrokenPipeError."""
        skipped = min(self._skip, len(content))
        self._skip -= skipped
        view = memoryview(content)[skipped:]
        while view:
            view = view[os.write(self._write, view) :]

    def discard_rest(self) -> None:
        """Close the reading end: a writer that waits for a reader wakes up then."""
        os.close(self.stream.fd)

    def close(self) -> None:
        """Close the writing end."""
        os.close(self._write)


class Journal:
    """The stream of what no rank said, kept as JSON lines: which file, how far, what text."""

    def __init__(self, path: Path, pipe: Pipe) -> None:
        self._path = path
        self._pipe = pipe
        self._last = ""
        #: How many bytes of each file stand in it.
        self.positions: dict[str, int] = {}

    def replay(self) -> None:
        """Pass on what an earlier supervisor kept and did not write down."""
        with contextlib.suppress(OSError), self._path.open(encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    self.positions[entry["file"]] = int(entry["to"])
                    self._last = entry["file"]
                    self._pipe.pass_on(str(entry["text"]).encode())

    def add(self, name: str, to: int, content: bytes) -> None:
        """Keep whole lines of a file that is now known up to ``to``, and pass them on."""
        text = redact.text(content.decode(errors="replace"))
        if name != self._last:
            text = f"[{name}]\n{text}"
        self._last, self.positions[name] = name, to
        with open(self._path, "a", encoding="utf-8", opener=owned.private) as file:
            file.write(json.dumps({"file": name, "to": to, "text": text}) + "\n")
        self._pipe.pass_on(text.encode())


class File:
    """One log file: its address now, and how far it was read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = ""
        self.position = 0


class Quiet(File):
    """A file that no rank writes."""

    def __init__(self, name: str, journal: Journal) -> None:
        super().__init__(name)
        self._journal = journal
        self.position = journal.positions.get(name, 0)
        self._rest = b""

    def take(self, content: bytes, *, last: bool = False) -> None:
        """Take what is new; whole lines go on, with ``last`` all."""
        self.position += len(content)
        whole, newline, self._rest = (self._rest + content).rpartition(b"\n")
        if last and self._rest:
            whole, newline, self._rest = whole + newline + self._rest, b"\n", b""
        if newline:
            self._journal.add(self.name, self.position - len(self._rest), whole + newline)


class Spoken(File):
    """A file that one rank writes."""

    def __init__(self, name: str, nonce: str, logs: Logs) -> None:
        super().__init__(name)
        self._splitter = Splitter(nonce)
        self._logs = logs
        self._rank: int | None = None
        self._before = Quiet(name, logs.journal)
        self._before.position, self._known = 0, self._before.position

    def take(self, content: bytes, *, last: bool = False) -> None:
        """Take what is new."""
        self.position += len(content)
        for piece in self._splitter.feed(content):
            if piece.word:
                self._word(piece.word)
            elif piece.stream and self._rank is not None:
                self._logs.pass_on(self._rank, piece.stream, piece.content)
            else:
                self._nobodys(piece.content)
        if last:
            self._before.take(b"", last=True)

    def _word(self, word: str) -> None:
        kind, _, value = word.partition(" ")
        if kind == "rank":
            self._rank = self._logs.speaks(int(value))
        elif kind == "end" and self._rank is not None:
            self._logs.ends[self._rank] = json.loads(value)

    def _nobodys(self, content: bytes) -> None:
        skipped = min(self._known, len(content))
        self._known -= skipped
        self._before.position += skipped
        if content[skipped:]:
            self._before.take(content[skipped:])


class Logs:
    """All files of a run. ``advance`` is called by one thread; ``ends`` and ``spoken`` are read by another."""

    def __init__(self, workspace: Workspace, nonce: str, ranks: int, kept: Path,
                 read: Mapping[tuple[int, str], int]) -> None:  # fmt: skip
        self._workspace = workspace
        self._nonce = nonce
        self._ranks = ranks
        own = Pipe(None, "out", read.get((-1, "sys"), 0))
        self._pipes = {(rank, name): Pipe(rank, name, read.get((rank, name), 0))
                       for rank in range(ranks) for name in ("out", "err")}  # fmt: skip
        self._all = (own, *self._pipes.values())
        self.journal = Journal(kept, own)
        self._files: dict[str, Quiet | Spoken] = {}
        self._pool: ThreadPoolExecutor | None = None
        #: How ranks have ended, as their nodes told it.
        self.ends: dict[int, dict[str, Any]] = {}
        #: The ranks that have begun.
        self.spoken: set[int] = set()
        #: Whether an address was refused and new ones are needed.
        self.stale = False

    @property
    def streams(self) -> tuple[Stream, ...]:
        """What no rank said, then each rank's two streams."""
        return tuple(pipe.stream for pipe in self._all)

    @property
    def complete(self) -> bool:
        """Whether every rank has told its end."""
        return len(self.ends) == self._ranks

    def speaks(self, rank: int) -> int | None:
        """Take note that a rank has begun; None for one that the job does not have."""
        if (rank, "out") not in self._pipes:
            return None
        self.spoken.add(rank)
        return rank

    def pass_on(self, rank: int, stream: str, content: bytes) -> None:
        """Let the supervisor read what a rank said."""
        self._pipes[rank, stream].pass_on(content)

    def learn(self, addresses: Mapping[str, str]) -> None:
        """Take in which files there are, and where they are read now."""
        self.stale = False
        for name, url in addresses.items():
            if name not in self._files:
                if _DULL.search(name):
                    continue
                ours = name.startswith(_OF_RANKS)
                self._files[name] = Spoken(name, self._nonce, self) if ours else Quiet(name, self.journal)
            self._files[name].url = url

    def advance(self, *, last: bool = False) -> bool:
        """Read on in every file once; True when something was new. ``last`` passes on lines without an end too.

        Raises DistDLError when Azure does not answer.
        """
        files = [file for file in self._files.values() if isinstance(file, Spoken) or not self.spoken]
        came = False
        for file, content in zip(files, self._fetched(files), strict=True):
            came = came or bool(content)
            file.take(content, last=last)
        return came

    def _fetched(self, files: list[Quiet | Spoken]) -> Iterator[bytes]:
        if len(files) < 2:
            return map(self._fetch, files)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_AT_ONCE, "distdl-azureml-log")
        return self._pool.map(self._fetch, files)

    def _fetch(self, file: File) -> bytes:
        """Return what stands behind the file's position, at most ``_PIECE`` bytes."""
        wanted = {"x-ms-range": f"bytes={file.position}-{file.position + _PIECE - 1}"}
        wanted["Range"] = wanted["x-ms-range"]
        try:
            response = self._workspace.plain(file.url).send("GET", file.url, headers=wanted)
        except AzureRefused as error:
            if error.status in (401, 403, 404):
                self.stale = True  # its signature has expired
            elif error.status != _NOTHING:
                raise
            return b""
        content: bytes = response.content
        # A server that knows no ranges gives the whole file.
        return content[file.position :] if response.status_code == 200 else content

    def discard_rest(self) -> None:
        """Close the reading ends."""
        for pipe in self._all:
            pipe.discard_rest()

    def close(self) -> None:
        """Close the writing ends, when no thread advances any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for pipe in self._all:
            pipe.close()
