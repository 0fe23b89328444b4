"""One job on Azure ML watched from a thread: its state, its logs, and requests for its end.

Azure can be silent for minutes, and a sign-in can expire while a job runs for days: nothing else waits for either, the
job goes on meanwhile, and what was missed is read when Azure answers again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.azureml import states
from distdl_jupyter.clusters.base import Notice
from distdl_jupyter.clusters.silence import Silence
from distdl_jupyter.core.errors import AzureRefused, DistDLError, NotSignedIn

if TYPE_CHECKING:
    from distdl_jupyter.clusters.azureml.client import Workspace
    from distdl_jupyter.clusters.azureml.logs import Logs

#: Seconds between two looks at logs: while something comes, and at most.
_QUICK, _SLOW = 0.3, 2.0
#: Seconds between two questions for a run's state and its files, when something is about to change and later.
_SOON, _LATER = 1.0, 5.0
_HURRY = 60.0
#: Seconds without an answer after which it is said.
_SILENCE = 10.0
#: Seconds after a job's end in which its last lines may still arrive, and where no rank has begun.
_SETTLE, _SHORT = 10.0, 3.0
#: Seconds after the start in which Azure may not know the run yet.
_YOUNG = 60.0
#: Seconds between two requests for the end.
_AGAIN = 10.0
#: The service takes the token no more.
_UNAUTHORIZED = 401
_BACK = frozenset({"Queued", "Preparing", "Provisioning", "Starting", "NotStarted"})


class Watch(threading.Thread):
    """Asks after one run until it has ended and all was read, or ``stop`` is called."""

    def __init__(self, workspace: Workspace, name: str, logs: Logs) -> None:
        super().__init__(name="distdl-azureml", daemon=True)
        self._workspace = workspace
        self.run_name = name
        self._logs = logs
        self.status = ""
        #: What Azure says of a failure.
        self.error = ""
        #: Whether Azure knows nothing of the run any more.
        self.forgotten = False
        #: Whether the job is over and everything that it said was passed on.
        self.done = False
        self._began = time.monotonic()
        self._looked = 0.0
        self._hurry_until = self._began + _HURRY
        self._over_at: float | None = None
        self._silence = Silence(_SILENCE)
        self._cancel_wanted = False
        self._canceled_at = 0.0
        self._pause = _QUICK
        self._wake = threading.Event()
        self._stop_wanted = False

    def run(self) -> None:
        """Look, read, rest."""
        # The reader has closed its end: nobody wants more.
        with contextlib.suppress(BrokenPipeError):
            self._logs.journal.replay()
            while not self._stop_wanted and not self.done:
                self._wake.clear()
                self._round()
                if not self.done:
                    self._wake.wait(self._pause)

    @property
    def ended(self) -> bool:
        """Whether Azure says that the job is over."""
        return self.status in states.ENDED or self.forgotten

    def cancel(self) -> None:
        """Ask Azure for the job's end, again and again until it is there."""
        self._cancel_wanted = True
        self._hurry_until = time.monotonic() + _HURRY
        self._wake.set()

    def notices(self) -> list[Notice]:
        """Return what is new to tell."""
        return self._silence.notices()

    def stop(self) -> None:
        """End the thread; a request that is under way is waited for a moment."""
        self._stop_wanted = True
        self._wake.set()
        if self.is_alive():
            self.join(10.0)

    def _round(self) -> None:
        asked_at = time.monotonic()
        try:
            self._send_cancel()
            if self._is_due():
                self._look()
            self._read()
        except NotSignedIn as error:
            self._miss(asked_at, f"{error.message} {error.hint}".strip(), "azure-signed-out")
        except DistDLError as error:
            signed_out = getattr(error, "status", None) == _UNAUTHORIZED
            self._miss(asked_at, error.message, "azure-signed-out" if signed_out else "azure-silent")
        else:
            self._silence.answered(Notice("info", "Azure ML is reachable again.", "azure-answers"))

    def _send_cancel(self) -> None:
        if not self._cancel_wanted or self.ended or time.monotonic() - self._canceled_at < _AGAIN:
            return
        try:
            self._workspace.cancel(self.run_name)
        except AzureRefused as error:
            if error.status not in (400, 404, 409):
                raise
            # It is ending by itself, which the next look tells.
        self._canceled_at = time.monotonic()
        self._looked = 0.0

    def _is_due(self) -> bool:
        now = time.monotonic()
        pause = _SOON if now < self._hurry_until or not self._logs.spoken else _LATER
        return not self.ended and (self._logs.stale or now - self._looked >= pause)

    def _look(self) -> None:
        try:
            details = self._workspace.details(self.run_name)
        except AzureRefused as error:
            if error.status != 404:
                raise
            self._looked = time.monotonic()
            self.forgotten = time.monotonic() - self._began > _YOUNG
            return
        self._looked = time.monotonic()
        self._logs.learn(details.get("logFiles") or {})
        self.error = states.error_of(details) or self.error
        self._becomes(str(details.get("status") or ""))

    def _becomes(self, status: str) -> None:
        if self.status == "Running" and status in _BACK:
            self._silence.put(Notice("warning", "Azure ML preempted the low-priority nodes and queued the job again. "
                                     "It restarts from the latest checkpoint if the "
                                     "code loads one.", "preempted"))  # fmt: skip
        if status != self.status:
            self._hurry_until = time.monotonic() + _HURRY
        self.status = status

    def _read(self) -> None:
        came = self._logs.advance(last=self.ended)
        self._pause = _QUICK if came or self.ended else min(_SLOW, self._pause * 1.3)
        if not self.ended:
            return
        now = time.monotonic()
        self._over_at = self._over_at or now
        expected = self._logs.spoken or self.status == "Completed"
        waited = now - self._over_at > (_SETTLE if expected else _SHORT)
        self.done = waited or (self._logs.complete and not came)
        if not self.done and not self.forgotten and now - self._looked >= _SOON:
            self._looked = now
            self._logs.learn(self._workspace.details(self.run_name).get("logFiles") or {})

    def _miss(self, asked_at: float, why: str, code: str) -> None:
        self._pause = _SLOW
        notice = Notice("warning", f"Azure ML is unreachable. The job continues. {why}", code)
        self._silence.missed(asked_at, notice, at_once=code == "azure-signed-out")
