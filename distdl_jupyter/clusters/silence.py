"""What a thread that watches a job on somebody else's service has to tell, above all that the service is silent."""

from __future__ import annotations

import queue
import time

from distdl_jupyter.clusters.base import Remark


class Silence:
    """Remarks on their way to the supervisor. A silence is told once, and its end where it was told.

    ``patience`` is how many seconds without an answer pass before that.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: float | None = None
        self._told = False
        self._remarks: queue.SimpleQueue[Remark] = queue.SimpleQueue()

    def put(self, remark: Remark) -> None:
        """Let the user read this."""
        self._remarks.put(remark)

    def missed(self, asked_at: float, remark: Remark, *, at_once: bool = False) -> None:
        """Take that a question of ``asked_at`` (monotonic) got no answer, of which ``remark`` tells."""
        self._since = self._since or asked_at
        if not self._told and (at_once or time.monotonic() - self._since > self._patience):
            self._told = True
            self._remarks.put(remark)

    def answered(self, remark: Remark) -> None:
        """Take that there was an answer; ``remark`` tells of it when the silence was told."""
        if self._told:
            self._remarks.put(remark)
        self._since, self._told = None, False

    def remarks(self) -> list[Remark]:
        """Return what is new to tell."""
        found = []
        while not self._remarks.empty():
            found.append(self._remarks.get())
        return found
