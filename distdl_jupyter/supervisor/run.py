"""One job from its spec to its end: begin, watch, begin again where that was asked for, collect, clean.

The supervisor decides only on the view that its own events fold to. Ranks are unpickling strangers to it: it reads
JSON alone.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from distdl_jupyter import registry
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.events import batches
from distdl_jupyter.core.state import State
from distdl_jupyter.core.words import plural, size
from distdl_jupyter.supervisor import data, known, restarting, resume, telling
from distdl_jupyter.supervisor.attempt import Attempt, Clock
from distdl_jupyter.supervisor.beginning import Beginning, Canceled
from distdl_jupyter.supervisor.control import Inbox, request
from distdl_jupyter.supervisor.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from distdl_jupyter.clusters.base import Run
    from distdl_jupyter.core.redact import Redactor
    from distdl_jupyter.core.store import JobFolder

#: Seconds between two looks whether the job was canceled.
_TICK = 0.1


class Supervisor:
    """Runs one job. The caller holds the job's lock."""

    def __init__(self, folder: JobFolder, secret_variables: Mapping[str, str], wake: int) -> None:
        self._folder = folder
        self._spec = folder.spec()
        self._ledger = Ledger(folder, self._spec, known.redactor(folder, self._spec, secret_variables))
        self._past = resume.Past()
        for found, _ in batches(folder.events):
            for event in found:
                self._past.add(event)
                self._ledger.fold(event)
        self._wake = wake
        self._inbox = Inbox(folder.control, folder.lock)
        self._clock = Clock(self._spec.max_run_duration_seconds)
        self._beginning = Beginning(folder, self._ledger, self._inbox, self._clock, secret_variables)
        #: Why the last attempt was stopped (see ``Attempt``), and the sentence for it.
        self._stopped_by = self._reason = ""

    def run(self) -> None:
        """Run the job to its end; whatever happens, an end state is written and nothing is left running."""
        try:
            run = self._begin()
            while run is not None:
                self._attempt(run)
                run = self._begin_again() if self._goes_on else None
        except Canceled as canceled:
            self._stopped_by, self._reason = canceled.by, canceled.reason
            self._beginning.forget_data()
        except DistDLError as error:
            self._beginning.forget_data()
            self._refuse(error)
            return
        self._finish(self._reason)

    @property
    def redactor(self) -> Redactor:
        """What masks secrets in all that is written of the job."""
        return self._ledger.redactor

    def interrupt(self) -> None:
        """Take a signal to the supervisor itself as a request to stop (called from a signal handler)."""
        with contextlib.suppress(DistDLError):
            request(self._folder.control, "cancel")

    def _begin(self) -> Run | None:
        """Return the run, a found one when an earlier supervisor of this job died; None when it has ended."""
        if not resume.asked_for(self._past.events):
            return self._beginning.start()
        if (began := resume.began(self._past.events)) is not None:
            self._clock.began_at(began)
        run = self._beginning.find_again(self._past)
        if run is None:
            self._beginning.forget_data()
        return run

    def _attempt(self, run: Run) -> None:
        """See one attempt through, until nothing of it is left, and decide whether another one follows."""
        beginning = self._beginning
        attempt = Attempt(
            run, self._ledger, beginning.backend, self._inbox, self._clock, nonce=beginning.nonce, wake=self._wake
        )
        try:
            attempt.watch()
            self._stopped_by, self._reason = attempt.stopped_by, attempt.reason
            self._clean_up(run, attempt)
        finally:
            run.close()

    def _begin_again(self) -> Run | None:
        """Start all ranks anew, as often as it takes and is allowed; a start that fails is a failure as any other.

        Raises Canceled, and the DistDLError of the last start that was allowed.
        """
        while True:
            self._restart()
            try:
                return self._beginning.start()
            except DistDLError as error:
                if self._left == 0:
                    raise
                self._stopped_by, self._reason = "", error.message

    def _restart(self) -> None:
        """Tell of a restart, clear what the last attempt left, and wait a little. Raises Canceled."""
        ledger, view = self._ledger, self._ledger.view
        failure = None if self._reason else view.failure
        reason = self._why_ended()
        self._stopped_by, self._reason = "", ""
        self._beginning.gone = restarting.lost_nodes(view)
        self._clock.keep()
        restarting.clear(self._folder)
        ledger.settle()
        ledger.write("restart", reason=reason, rank=None if failure is None else failure.rank,
                     queued=self._beginning.cluster.queues)  # fmt: skip
        ledger.say(restarting.heading(view))
        self._pause(restarting.pause(view.restart_count))

    def _pause(self, seconds: float) -> None:
        ledger, until = self._ledger, time.monotonic() + seconds
        ledger.phase("start", restarting.announcement(ledger.view, seconds))
        while (left := until - time.monotonic()) > 0:
            self._beginning.heed()
            time.sleep(min(_TICK, left))

    @property
    def _left(self) -> int:
        """How many restarts are left."""
        return self._spec.max_restarts - self._ledger.view.restart_count

    @property
    def _goes_on(self) -> bool:
        """Whether the attempt that has just ended is followed by another one."""
        if self._left <= 0 or self._stopped_by in ("user", "time"):
            return False
        return self._stopped_by == "hang" or self._ledger.view.failure is not None

    def _why_ended(self) -> str:
        failure = self._ledger.view.failure
        if self._reason or failure is None:
            return self._reason
        return telling.failed_first(failure, self._ledger.view.process_count)

    def _refuse(self, error: DistDLError) -> None:
        if isinstance(error, LaunchFailed) and error.output:
            self._ledger.say(error.output)
        self._finish(f"{error.message} {error.hint}".strip(), failed=True)

    # end --------------------------------------------------------------------------------------

    def _clean_up(self, run: Run, attempt: Attempt) -> None:
        """Nothing of the attempt may stay alive, whatever the ranks left behind."""
        attempt.settle()
        self._collect(run, attempt)
        attempt.end_leftovers()
        if not self._goes_on:
            self._deliver()
            self._note_afterwards()
            self._ledger.phase("clean", "no process left")
        attempt.close()

    def _collect(self, run: Run, attempt: Attempt) -> None:
        self._ledger.phase("collect")
        try:
            run.collect()
        except (DistDLError, OSError) as error:
            self._ledger.note("error", str(error), "not-collected")
        attempt.note_remarks()
        self._ledger.phase("collect", self._collected())

    def _note_afterwards(self) -> None:
        """Say what goes on where the job ran, above all what goes on costing money; nobody waits for a silent cloud."""
        cluster = self._beginning.cluster
        if not cluster.can_create:
            return
        with contextlib.suppress(DistDLError):
            options = registry.check_options("clusters", self._spec.cluster, self._spec.cluster_options)
            for remark in cluster.afterwards(options):
                self._ledger.note(remark.level, remark.text, remark.code)

    def _deliver(self) -> None:
        failed = self._ledger.view.failure is not None or self._stopped_by in ("time", "hang")
        data.deliver(self._spec, self._folder, self._ledger, failed=failed, canceled=self._is_canceled)

    def _is_canceled(self) -> bool:
        return any(wish["type"] == "cancel" for wish in self._inbox.take())

    def _collected(self) -> str:
        values = list(self._folder.results.glob("rank-*.pkl"))
        outputs = [path for path in self._folder.outputs.rglob("*") if path.is_file()]
        total = sum(map(_size, (*values, *outputs)))
        parts = [plural(len(values), "value")] + ([plural(len(outputs), "file")] if outputs else [])
        return f"{', '.join(parts)}, {size(total)}"

    def _finish(self, reason: str, *, failed: bool = False) -> None:
        ledger = self._ledger
        if ledger.view.state.ended:
            ledger.close()
            return
        if self._stopped_by == "user" and not failed:
            ledger.state(State.CANCELED, reason)
        elif self._stopped_by in ("time", "hang") or failed:
            ledger.state(State.FAILED, reason)
        elif ledger.view.failure is not None:
            ledger.state(State.FAILED, restarting.used_up(self._why_ended(), ledger.view))
        else:
            ledger.state(State.COMPLETED)
        ledger.close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # somebody deletes it meanwhile
        return 0
