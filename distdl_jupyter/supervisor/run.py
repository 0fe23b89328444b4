"""One job from its spec to its end: begin, watch, begin again where that was asked for, collect, clean.

The supervisor decides only on the view that its own events fold to. Ranks are unpickling strangers to it: it reads
JSON alone.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from distdl_jupyter import registry
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.events import batches
from distdl_jupyter.core.redact import Redactor
from distdl_jupyter.core.state import State
from distdl_jupyter.core.words import plural, size
from distdl_jupyter.supervisor import data, resume, telling
from distdl_jupyter.supervisor.attempt import Attempt, Clock
from distdl_jupyter.supervisor.beginning import Beginning, Canceled
from distdl_jupyter.supervisor.control import Inbox, request
from distdl_jupyter.supervisor.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.clusters.base import Run
    from distdl_jupyter.core.store import JobFolder


class Supervisor:
    """Runs one job. The caller holds the job's lock."""

    def __init__(self, folder: JobFolder, secret_variables: Mapping[str, str], wake: int) -> None:
        self._folder = folder
        self._spec = folder.spec()
        self._ledger = Ledger(folder, self._spec, Redactor.of(os.environ, secret_variables))
        self._past = resume.Past()
        for found, _ in batches(folder.events):
            for event in found:
                self._past.add(event)
                self._ledger.fold(event)
        self._wake = wake
        self._inbox = Inbox(folder.control)
        self._clock = Clock()
        self._beginning = Beginning(folder, self._ledger, self._inbox, secret_variables)
        self._stopped_by = ""

    def run(self) -> None:
        """Run the job to its end; whatever happens, an end state is written and nothing is left running."""
        try:
            run = self._begin()
        except Canceled:
            self._stopped_by = "user"
            run = None
        except DistDLError as error:
            self._beginning.forget_data()
            self._refuse(error)
            return
        if run is None:
            self._beginning.forget_data()
            self._finish("")
            return
        self._finish(self._attempt(run))

    @property
    def redactor(self) -> Redactor:
        """What masks secrets in all that is written of the job."""
        return self._ledger.redactor

    def interrupt(self) -> None:
        """Take a signal to the supervisor itself as a request to stop (called from a signal handler)."""
        with contextlib.suppress(OSError):
            request(self._folder.control, "cancel")

    def _begin(self) -> Run | None:
        """Return the run, a found one when an earlier supervisor of this job died; None when it has ended."""
        if not resume.asked_for(self._past.events):
            return self._beginning.start()
        if (began := resume.began(self._past.events)) is not None:
            self._clock.began_at(began)
        return self._beginning.find_again(self._past)

    def _attempt(self, run: Run) -> str:
        """See one attempt through and return the sentence that says why it was stopped, "" for none."""
        beginning = self._beginning
        attempt = Attempt(
            run, self._ledger, beginning.backend, self._inbox, self._clock, nonce=beginning.nonce, wake=self._wake
        )
        try:
            attempt.watch()
            self._stopped_by = attempt.stopped_by
            self._clean_up(run, attempt)
        finally:
            run.close()
        return attempt.reason

    def _refuse(self, error: DistDLError) -> None:
        if isinstance(error, LaunchFailed) and error.output:
            self._ledger.say(error.output)
        self._finish(f"{error.message} {error.hint}".strip(), failed=True)

    # end --------------------------------------------------------------------------------------

    def _clean_up(self, run: Run, attempt: Attempt) -> None:
        """Nothing of the job may stay alive, whatever the ranks left behind."""
        attempt.settle()
        self._collect(run, attempt)
        attempt.end_leftovers()
        self._deliver()
        self._note_afterwards()
        self._ledger.phase("clean", "no process left")
        attempt.close()

    def _collect(self, run: Run, attempt: Attempt) -> None:
        self._ledger.phase("collect")
        try:
            run.collect()
        except DistDLError as error:
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
        failed = self._ledger.view.failure is not None or self._stopped_by == "time"
        data.deliver(self._spec, self._folder, self._ledger, failed=failed, canceled=self._is_canceled)

    def _is_canceled(self) -> bool:
        return any(wish["type"] == "cancel" for wish in self._inbox.take())

    def _collected(self) -> str:
        values = list(self._folder.results.glob("rank-*.pkl"))
        outputs = [path for path in self._folder.outputs.rglob("*") if path.is_file()]
        total = sum(path.stat().st_size for path in (*values, *outputs))
        parts = [plural(len(values), "value")] + ([plural(len(outputs), "file")] if outputs else [])
        return f"{', '.join(parts)}, {size(total)}"

    def _finish(self, reason: str, *, failed: bool = False) -> None:
        ledger = self._ledger
        if ledger.view.state.ended:
            ledger.close()
            return
        if self._stopped_by == "user" and not failed:
            ledger.state(State.CANCELED, reason)
        elif self._stopped_by == "time" or failed:
            ledger.state(State.FAILED, reason)
        elif (failure := ledger.view.failure) is not None:
            ledger.state(State.FAILED, telling.failed_first(failure, self._spec.process_count))
        else:
            ledger.state(State.COMPLETED)
        ledger.close()
