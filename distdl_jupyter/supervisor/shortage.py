"""What a supervisor leaves out while its disk is full, and what it tells of that.

The sentences reach the user by the job's own log, into room that was kept for them.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.events import VERSION, encode
from distdl_jupyter.core.words import duration, plural

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from distdl_jupyter.core.events import Event
    from distdl_jupyter.supervisor.patience import PatientWriter

#: The codes of the notes that the disk is full, and that it takes what is written again.
FULL, ROOM = "disk-full", "disk-room"
#: Seconds in which a job that has ended waits for room for all that it has to tell, and then for its end alone.
_ALL, _END = 10.0, 600.0


class Shortage:
    """Watches a writer; ``fold`` takes the notes into the view."""

    def __init__(self, writer: PatientWriter, place: Path, fold: Callable[[Event], None]) -> None:
        self._writer = writer
        self._place = place
        self._fold = fold
        self._told = False
        self._lines = self._metrics = 0

    def leaves_out(self, type_: str, fields: dict[str, Any]) -> bool:
        """Say whether an event is left out, and count it then."""
        if self._writer.takes(type_):
            return False
        self._lines += fields["text"].count("\n") + 1 if type_ == "log" else 0
        self._metrics += type_ == "metric"
        return True

    def look(self) -> None:
        """Tell, once, that the disk is full, try again from time to time, and tell when that is over."""
        writer = self._writer
        if writer.refused is None:
            return
        if not self._told:
            self._told = True
            self._note("warning", f"The job's folder {self._place} cannot be written ({writer.refused.strerror}): the "
                       "training goes on, its log waits. Free some room there.", FULL)  # fmt: skip
        if writer.retry():
            self._told = False
            self._note("info", f"For {duration(time.time() - writer.since)} the job's folder could not be written. "
                       f"{self._losses()}", ROOM)  # fmt: skip
            self._lines = self._metrics = 0

    def end(self) -> bool:
        """Have the end on the disk before the log is closed; False when what stands there is not all of it."""
        if self._writer.refused is None:
            return True
        self.look()
        if self._writer.fits:
            self._writer.give()
        if self._writer.wait(_ALL):
            self.look_back()
            return True
        lines, metrics = self._writer.leave_out_many()
        self._lines, self._metrics = self._lines + lines, self._metrics + metrics
        self._note("warning", f"The job's folder could not be written to the end. {self._losses()}", ROOM)
        self._writer.give()
        if not self._writer.wait(_END):
            reason = self._writer.refused
            print(f"The end of the job cannot be written: {reason}.", file=sys.stderr)  # noqa: T201 - supervisor.log
        return False

    def look_back(self) -> None:
        """Tell what was left out although everything that waited has been written."""
        if self._told and (self._lines or self._metrics):
            self._note("warning", self._losses(), ROOM)

    def _losses(self) -> str:
        if not self._lines and not self._metrics:
            return "Nothing was lost."
        metrics = f" and {plural(self._metrics, 'report')} of metrics" if self._metrics else ""
        return f"{plural(self._lines, 'line')} of the log{metrics} were not kept; the training itself went on."

    def _note(self, level: str, text: str, code: str) -> None:
        event = {"v": VERSION, "t": round(time.time(), 4), "type": "note", "level": level, "text": text, "code": code}
        if self._writer.refused is None:
            self._writer.append(encode(event))
        else:
            self._writer.first(encode(event))
        self._fold(event)
