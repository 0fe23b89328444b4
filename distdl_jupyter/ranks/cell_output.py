"""What ranks print during one cell, read from the job's own log: the lines between the cell's marks.

The log is the one way of all output, so nothing is lost when a rank dies in mid-sentence, and a reader that stops
reading makes nobody wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import logfile, parts
from distdl_jupyter.ranks.answer import Output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distdl_jupyter.core.store import JobFolder

_STREAMS = ("out", "err")
Key = tuple[int, str]


class CellOutput:
    """Follows the output of one cell on some ranks from now on."""

    def __init__(self, folder: JobFolder, ranks: Iterable[int], number: int) -> None:
        self._path = folder.log
        self._cursor = logfile.line_start(self._path, parts.size(self._path))
        self._number = number
        self._begun: set[Key] = set()
        #: What was told of each stream's line that has not ended.
        self._unended: dict[Key, str] = {}
        #: Streams whose end mark has not come.
        self._open = {(rank, stream) for rank in ranks for stream in _STREAMS}

    def read(self) -> list[Output]:
        """Return what came since the last call, in order."""
        found, self._cursor = logfile.read(self._path, self._cursor)
        return [output for event in found if (output := self._take(event)) is not None]

    def complete(self, rank: int) -> bool:
        """Say whether all that a rank has printed was read."""
        return not any((rank, stream) in self._open for stream in _STREAMS)

    def _take(self, event: dict[str, Any]) -> Output | None:
        key = (event.get("rank"), event.get("stream"))
        if key not in self._open:
            return None
        if event["type"] == "mark" and event.get("cell") == self._number:
            (self._open.discard if event.get("ended") else self._begun.add)(key)
        elif event["type"] == "log" and key in self._begun:
            return Output(*key, self._text(key, event))
        return None

    def _text(self, key: Key, event: dict[str, Any]) -> str:
        """Return what is new for a terminal: a line that only grew goes on, one that is drawn over begins anew."""
        shown, text = self._unended.pop(key, ""), str(event["text"])
        if not event.get("redraws"):
            return f"{text}\n"
        if not event.get("closed"):
            self._unended[key] = text
        new = text[len(shown) :] if text.startswith(shown) else f"\r{text}"
        return f"{new}\n" if event.get("closed") else new
