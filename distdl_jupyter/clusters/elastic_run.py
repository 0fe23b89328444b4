"""A started job on this machine whose launcher replaces ranks that fail and tells itself how each one ends.

What it tells arrives in the named pipe ``told``, one JSON line each (see ``distdl_jupyter.backends.elastic.words``).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any

from distdl_jupyter.clusters import processes
from distdl_jupyter.clusters.base import Exit, Gone, Remark
from distdl_jupyter.clusters.elastic_words import Told
from distdl_jupyter.clusters.launcher_run import LauncherRun

#: The named pipe in which the launcher tells.
_PIPE = "told"


class ElasticRun(LauncherRun):
    """Ranks come and go; each exits once for good."""

    replaces = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._pipe = self._fifo(_PIPE, os.O_RDWR | os.O_NONBLOCK)
        self._half = b""
        self._heard = Told((place.rank for place in self._placement.ranks), self._evidence)

    def _interrupt(self) -> None:
        # The launcher first: it would take the ends of its ranks for failures.
        processes.send(self._roots(), signal.SIGINT)
        super()._interrupt()

    def poll(self) -> list[Exit]:
        """Return what the launcher told; when it has ended, so have all ranks that it did not speak of."""
        process = self._launcher
        ended = process is not None and process.poll() is not None
        self._listen()
        if ended and process is not None:
            self._heard.over(process.returncode)
        elif not self._heard.open:
            return []  # the last one's end is the job's, and the launcher is about to go
        return self._heard.exits()

    def gone(self) -> list[Gone]:
        """Return the processes that ended since the last call while the job goes on."""
        return self._heard.gone()

    def gave_up(self) -> str:
        """Return why the launcher has ended the job although no rank had failed."""
        return self._heard.gave_up

    def remarks(self) -> list[Remark]:
        """Return what the launcher told the user."""
        return [*super().remarks(), *self._heard.remarks()]

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._pipe, 65536):
                self._half += data
        *lines, self._half = self._half.split(b"\n")
        for line in lines:
            self._heard.hear(json.loads(line))

    def _evidence(self, _rank: int, name: str | None) -> str:
        return processes.out_of_memory_evidence(self._oom) if name == "KILL" else ""

    def close(self) -> None:
        """Close the pipe too."""
        os.close(self._pipe)
        super().close()
