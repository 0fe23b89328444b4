"""Keeps what ranks report of the time of their steps, each report as a line of the job's ``steps.jsonl``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.events import VERSION, LineFile
from distdl_jupyter.core.packing import encode
from distdl_jupyter.core.parts import Part

if TYPE_CHECKING:
    from distdl_jupyter.supervisor.recorder import EventRecorder

#: Bytes of the file at most; a rank reports some thousand records (worker.step_times), so only a great many fill it.
_LARGEST = 200_000_000


class StepTimesWriter:
    """The reports of one job. Made when the first one arrives; what the disk refuses is left out."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._file: LineFile | None = None
        self._lines: list[bytes] = []
        self._refused = False

    def take(self, rank: int, report: dict[str, Any]) -> None:
        """Keep a report of one rank with the number of restarts before it, until ``flush`` writes it."""
        fields = {name: report[name] for name in ("first", "size", "sending", "records")}
        attempt = self._recorder.view.restart_count
        line = {"v": VERSION, "t": report.get("t"), "type": "steps", "attempt": attempt, "rank": rank, **fields}
        self._lines.append(encode(line))

    def flush(self) -> None:
        """Write the reports that are kept."""
        lines, self._lines = b"".join(self._lines), []
        if not lines:
            return
        try:
            if self._file is None:
                self._file = LineFile(Part(0, self._recorder.folder.steps))
            if self._file.size < _LARGEST:
                self._file.append(lines)
        except OSError as error:
            if not self._refused:
                self._refused = True
                self._recorder.log(f"Step times cannot be stored: {error.strerror}.")

    def close(self) -> None:
        """Write what is left and close the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
