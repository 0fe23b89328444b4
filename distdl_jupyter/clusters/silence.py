"""What a thread that watches a job on somebody else's service has to tell, above all that the service is silent."""

from __future__ import annotations

import queue
import time

from distdl_jupyter.clusters.base import Notice


class Silence:
    """Notices on their way to the supervisor. A silence is reported once, and its end where it was reported.

    ``timeout`` is how many seconds without an answer pass before that.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None
        self._reported = False
        self._notices: queue.SimpleQueue[Notice] = queue.SimpleQueue()

    def put(self, notice: Notice) -> None:
        """Let the user read this."""
        self._notices.put(notice)

    def missed(self, asked_at: float, notice: Notice, *, at_once: bool = False) -> None:
        """Take that a question of ``asked_at`` (monotonic) got no answer, of which ``notice`` speaks."""
        self._since = self._since or asked_at
        if not self._reported and (at_once or time.monotonic() - self._since > self._timeout):
            self._reported = True
            self._notices.put(notice)

    def answered(self, notice: Notice) -> None:
        """Take that there was an answer; ``notice`` is handed on when the silence was reported."""
        if self._reported:
            self._notices.put(notice)
        self._since, self._reported = None, False

    def notices(self) -> list[Notice]:
        """Return what is new."""
        found = []
        while not self._notices.empty():
            found.append(self._notices.get())
        return found
