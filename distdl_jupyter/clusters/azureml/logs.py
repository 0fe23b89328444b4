"""The log files of a run as streams: what every rank writes, and what Azure ML writes before a rank starts.

Each file is read by ranges, from where the last request ended. Azure keeps one file for each process; marks in it name
the rank and separate its two streams (``bootstrap``). Positions of a rank's stream are bytes of that stream, so a
second supervisor reads the files from their beginning and skips what was recorded.

Text outside of a rank's output (the build of the image, the preparation of the nodes, a shell's error) goes line by
line into one stream. A second supervisor passes on only what is new since it started.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.azureml import bootstrap
from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core.errors import AzureRefused
from distdl_jupyter.node.channels import Inbox

if TYPE_CHECKING:
    from distdl_jupyter.clusters.azureml.client import Workspace

#: Bytes of one request, and files that are requested at once.
_PIECE, _CONCURRENCY = 4 * 1024 * 1024, 8
_OF_PROCESSES = "user_logs/"
#: Files of the nodes' preparation that are useless to users.
_IGNORED = re.compile(r"system_logs/.*(metrics_capability|snapshot_capability)")
#: Status of a request for a range behind the end of the file.
_RANGE_NOT_SATISFIABLE = 416


class LogFile:
    """One log file of a run: its current address, and how much of it was read."""

    def __init__(self, name: str, nonce: str, logs: Logs, *, is_shown: bool = True) -> None:
        self.name = name
        #: Whether text outside of a rank's output is passed on: an earlier supervisor has not read it.
        self.is_shown = is_shown
        self.url = ""
        self.position = 0
        self._begin = bootstrap.mark(nonce, "")[:-1]
        self._logs = logs
        self._rest = b""
        self._rank: int | None = None
        self._stream = ""
        self._line = b""

    def feed(self, content: bytes, *, last: bool = False) -> None:
        """Pass on what is new; ``last`` passes on a line without an end, too."""
        self.position += len(content)
        content = self._rest + content
        while (begin := content.find(self._begin)) >= 0 and (end := content.find(b"\x1f", begin)) >= 0:
            self._text(content[:begin])
            self._mark(content[begin + len(self._begin) : end].decode(errors="replace"))
            content = content[end + 1 :]
        cut = begin if begin >= 0 else _partial_mark(content, self._begin)
        self._rest = content[cut:]
        self._text(content[:cut])
        if last and self._line:
            self._show(self._line + b"\n")
            self._line = b""

    def _mark(self, label: str) -> None:
        kind, _, value = label.partition(" ")
        if kind == "rank":
            self._rank, self._stream = self._logs.begin(int(value)), "out"
        elif kind == "end" and self._rank is not None:
            self._logs.ends[self._rank] = json.loads(value)
            self._stream = ""
        elif kind in ("out", "err"):
            self._stream = kind

    def _text(self, text: bytes) -> None:
        if self._stream and self._rank is not None:
            self._logs.write(self._rank, self._stream, text)
        elif not self._stream:
            lines, newline, self._line = (self._line + text).rpartition(b"\n")
            self._show(lines + newline)

    def _show(self, lines: bytes) -> None:
        if lines and self.is_shown:
            self._logs.show(self.name, lines)


def _partial_mark(content: bytes, begin: bytes) -> int:
    """Return where a mark may begin whose rest is not there yet; the length of ``content`` where none does."""
    cut = content.rfind(begin[:1], max(0, len(content) - len(begin)))
    return cut if cut >= 0 and begin.startswith(content[cut:]) else len(content)


class Logs:
    """All files of a run. ``advance`` is called by one thread; ``ends`` and ``begun`` are read by another."""

    def __init__(
        self, workspace: Workspace, nonce: str, ranks: int, read: Mapping[tuple[int, str], int] | None = None
    ) -> None:
        self._workspace = workspace
        self._nonce = nonce
        #: Whether an earlier supervisor has read the files that exist now.
        self._is_continued, read = read is not None, read or {}
        self._own = Inbox()
        #: What was not recorded before of each rank's stream.
        self._inboxes = {
            (rank, name): Inbox(read.get((rank, name), 0)) for rank in range(ranks) for name in ("out", "err")
        }
        #: The text outside of ranks' output, then each rank's two streams.
        self.streams = (
            Stream(self._own, None, "out"),
            *(Stream(inbox, *name, read.get(name, 0)) for name, inbox in self._inboxes.items()),
        )
        self._files: dict[str, LogFile] = {}
        self._pool = ThreadPoolExecutor(_CONCURRENCY, "distdl-azureml-log")
        #: The file whose text outside of a rank's output was passed on last.
        self._last = ""
        #: How ranks ended: exit code, signal and evidence.
        self.ends: dict[int, dict[str, Any]] = {}
        #: Ranks that have begun.
        self.begun: set[int] = set()
        #: Whether an address was refused and new ones are needed.
        self.stale = False

    @property
    def complete(self) -> bool:
        """Whether every rank has reported its end."""
        return 2 * len(self.ends) == len(self._inboxes)

    @property
    def behind(self) -> bool:
        """Whether so much waits for the supervisor that no more should be requested."""
        return self._own.pending + sum(inbox.pending for inbox in self._inboxes.values()) > Inbox.MOST

    def show(self, name: str, lines: bytes) -> None:
        """Pass on whole lines of a file outside of a rank's output."""
        self._own.feed(lines if name == self._last else f"[{name}]\n".encode() + lines)
        self._last = name

    def begin(self, rank: int) -> int | None:
        """Note that a rank has begun; return None for one that the job does not have."""
        if (rank, "out") not in self._inboxes:
            return None
        self.begun.add(rank)
        return rank

    def write(self, rank: int, stream: str, content: bytes) -> None:
        """Pass on what a rank wrote."""
        if content:  # nothing would end the stream
            self._inboxes[rank, stream].feed(content)

    def set_addresses(self, addresses: Mapping[str, str]) -> None:
        """Take the addresses of the run's files, which are valid for some time."""
        self.stale = False
        for name, url in addresses.items():
            if not _IGNORED.search(name):
                new = LogFile(name, self._nonce, self, is_shown=not self._is_continued)
                self._files.setdefault(name, new).url = url
        self._is_continued = self._is_continued and not self._files

    def advance(self, *, last: bool = False) -> bool:
        """Request what is new in every file once; True when something was. ``last`` ends unfinished lines.

        Raises DistDLError when Azure does not respond.
        """
        files = [file for file in self._files.values() if file.name.startswith(_OF_PROCESSES) or not self.begun]
        contents: Iterable[bytes] = self._pool.map(self._fetch, files) if len(files) > 1 else map(self._fetch, files)
        is_new = False
        for file, content in zip(files, contents, strict=True):
            is_new = is_new or bool(content)
            file.feed(content, last=last)
            file.is_shown = file.is_shown or len(content) < _PIECE
        return is_new

    def _fetch(self, file: LogFile) -> bytes:
        """Return what is behind the file's position, at most ``_PIECE`` bytes."""
        range_ = f"bytes={file.position}-{file.position + _PIECE - 1}"
        headers = {"x-ms-range": range_, "Range": range_}
        try:
            response = self._workspace.without_token(file.url).send("GET", file.url, headers=headers)
        except AzureRefused as error:
            if error.status in (401, 403, 404):
                self.stale = True  # its signature has expired
            elif error.status != _RANGE_NOT_SATISFIABLE:
                raise
            return b""
        content: bytes = response.content
        # A server without ranges sends the whole file.
        return content[file.position :] if response.status_code == 200 else content

    def close(self) -> None:
        """End all streams, when no thread advances any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for inbox in (self._own, *self._inboxes.values()):
            inbox.feed(b"")
