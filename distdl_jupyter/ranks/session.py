"""A session of ranks: what a notebook, a program or a later kernel holds of it.

It holds no state of its own but connections; what the session is stands in its job's folder.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distdl_jupyter import preflight
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobNotRunning
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.ranks import request
from distdl_jupyter.ranks.answer import Answer, RanksState
from distdl_jupyter.ranks.ending import is_led_anew, reason, why_ended
from distdl_jupyter.ranks.found import stamps
from distdl_jupyter.ranks.link import Gone, Link, linked
from distdl_jupyter.ranks.pending_request import OnEvent, PendingRequest, Request
from distdl_jupyter.ranks.turn import busy, holder, turn
from distdl_jupyter.worker.serving.listener import NOTES, note_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.jobs.client import Job

#: Seconds between two looks whether the ranks listen.
_POLL = 0.01
#: Seconds between two words on what ranks that are started wait for.
_SILENCE = 2.0

OnWait = Callable[[str], object]


class Ranks:
    """A session of persistent ranks, which run cells and keep their variables."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._links: dict[int, Link] = {}
        #: The ``stamps`` of the notes that led to them.
        self._notes: dict[str, int] = {}
        self._owner = secrets.token_hex(8)

    @property
    def id(self) -> str:
        """Return the id of the job of these ranks."""
        return self.job.id

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return self.job.spec.process_count

    @property
    def setup_call(self) -> str:
        """The call with which a cell lets the ranks meet, once ("" where they need not)."""
        return str(registry.backend(self.job.spec.distributed_backend, {})[0].usage.call)

    # asking -----------------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        on: Iterable[int] | None = None,
        label: str = "",
        raw_cell: str = "",
        values: Mapping[str, Any] | None = None,
        on_event: OnEvent | None = None,
    ) -> Answer:
        """Run a cell on all ranks, or on those in ``on``, and wait for the results.

        ``code`` is the cell without its magic line, ``raw_cell`` the whole of it and ``label`` what people call it
        ("In [7]"), for errors; ``values`` are put into the namespace first. ``on_event`` is called in this thread with
        what comes (Output, Done, Notice), in order.

        A rank's error is no exception here: it is in the answer. Raises InvalidSpec and SyntaxError for what cannot
        run, RanksBusy, Interrupted (a KeyboardInterrupt) when the wait was interrupted and the ranks have stopped, and
        JobFailed or JobNotRunning when the ranks are gone.
        """
        asked = request.cell(code, _number(), label=label, raw_cell=raw_cell)
        more, body = request.names(values or {})
        return self._ask(self._chosen(on), {**asked, **more}, body, on_event)

    def push(self, on: Iterable[int] | None = None, /, **values: Any) -> None:
        """Set variables in the namespaces of the ranks. Raises InvalidSpec for values that cannot be sent."""
        more, body = request.names(values)
        if more:
            asked = {"do": "push", "id": _number(), "label": f"push({', '.join(values)})", **more}
            self._ask(self._chosen(on), asked, body).check()

    def pull(self, name: str, on: Iterable[int] | None = None) -> dict[int, Any]:
        """Return the value of a variable by rank. Raises JobFailed if it is not defined on a rank."""
        asked = {"do": "pull", "id": _number(), "name": name, "label": f"pull({name})"}
        return dict(self._ask(self._chosen(on), asked, b"").check().values)

    def run_distributed(self, draft: CapturedCode, *, on_event: OnEvent | None = None) -> Answer:
        """Run a job's code on these ranks: what it captured travels with it, into a namespace of its own.

        Where the ranks have met before they stay together. Raises InvalidSpec when a check of the code fails, and what
        ``run`` raises.
        """
        preflight.refuse(preflight.check(draft, self.job.spec))
        asked = {"do": "distributed", "id": _number(), "label": draft.name}
        return self._ask(self._chosen(None), asked, request.files(draft), on_event)

    def _ask(self, on: list[int], asked: dict[str, Any], body: bytes, on_event: OnEvent | None = None) -> Answer:
        requests: dict[int, Request] = dict.fromkeys(on, (asked, body))
        with turn(self.job.folder, str(asked.get("label") or ""), self._owner) as again:
            try:
                if not (again and self._links and all(link.is_open for link in self._links.values())):
                    self._refuse_busy(on)
                return PendingRequest(self.job, self._links, self._notes, requests, on_event).wait()
            except BaseException:
                # What still comes on these connections answers nobody's question.
                self._hang_up()
                raise

    def _refuse_busy(self, on: list[int]) -> None:
        """Make sure of a fresh connection or a known one to every rank. Raises RanksBusy, why the ranks are gone."""
        if runs := self._answered(lambda: self._running(on)):
            raise busy(runs)

    def _running(self, on: list[int]) -> str:
        try:
            if set(self._links) != set(range(self.size)):
                self._hang_up()
                self._notes = stamps(self.job.folder)
                for rank in range(self.size):
                    self._links[rank] = linked(self.job.folder, rank)
            return next(filter(None, [_doing(self._links[rank]) for rank in on]), "")
        except Gone:
            self._hang_up()
            raise

    def _answered(self, ask: Callable[[], str]) -> str:
        """Return what ``ask`` gives, asked once more where another supervisor has come. Raises why ranks are gone."""
        for _ in range(2):
            seen = self._notes or stamps(self.job.folder)
            try:
                return ask()
            except Gone:
                if not is_led_anew(self.job, seen):
                    break
        raise why_ended(self.job)

    def _hang_up(self) -> None:
        for link in self._links.values():
            link.close()
        self._links, self._notes = {}, {}

    def _chosen(self, on: Iterable[int] | None) -> list[int]:
        chosen = list(range(self.size)) if on is None else sorted(set(on))
        wrong = [rank for rank in chosen if not 0 <= rank < self.size]
        if wrong or not chosen:
            what = f"Unknown rank {wrong[0]}" if wrong else "No rank was given"
            raise InvalidSpec(
                f"{what}: this session has ranks 0 to {self.size - 1}.", code="kept-rank-unknown", field="on"
            )
        return chosen

    # life -------------------------------------------------------------------------------------

    def state(self) -> RanksState:
        """Return "idle", "busy" or "ended"; ``reason`` is a sentence that says what runs or why the ranks ended."""
        if self.is_over:
            return RanksState("ended", reason(self.job))
        try:
            runs = self._answered(lambda: next(filter(None, [self._query(rank) for rank in range(self.size)]), ""))
        except DistDLError as error:
            return RanksState("ended", str(error.args[0]))
        return RanksState("busy", busy(runs, holder(self.job.folder)).message) if runs else RanksState("idle")

    @property
    def is_over(self) -> bool:
        """Return whether the ranks have ended, or are ending because one of them has ended."""
        view = self.job.view()
        return view.state.ended or view.failure is not None

    def interrupt(self) -> None:
        """Interrupt the running cell, from any thread or process. Idle ranks are not affected."""
        for rank in range(self.size):
            with contextlib.suppress(Gone):
                self._query(rank, {"do": "interrupt"})

    def stop(self) -> None:
        """Stop the ranks and wait for their end. The job ends as canceled if a cell is running, else as completed."""
        self._hang_up()
        if not self.job.view().state.ended:
            if self._say_stop():
                self.job.wait()
            with contextlib.suppress(JobNotRunning):
                self.job.cancel()
            self.job.wait()

    def _say_stop(self) -> bool:
        """Tell all ranks to end; False when one of them runs something, which then goes on everywhere."""
        try:
            with turn(self.job.folder, "stop"):
                self._refuse_busy(list(range(self.size)))
                for link in self._links.values():
                    link.send({"do": "stop"})
        except (DistDLError, Gone):
            return False
        finally:
            self._hang_up()
        return True

    def restart(self, on_wait: OnWait | None = None) -> Ranks:
        """Stop the ranks and start new ones with the same options; this handle then refers to the new ranks."""
        self.stop()
        self.job = self.job.rerun()
        self.await_ranks(on_wait)
        return self

    def await_ranks(self, on_wait: OnWait | None = None) -> None:
        """Wait until every rank is ready. Raises JobFailed or JobNotRunning if one ends before that.

        ``on_wait`` is called with what is waited for when that has changed, every 2 s at most.
        """
        said, silent_until = "", time.monotonic() + _SILENCE
        waiting = {note_of(self.job.folder.path / NOTES, rank) for rank in range(self.size)}
        while waiting := {note for note in waiting if not note.exists()}:
            if self.is_over:
                raise _not_started(self.job)
            if on_wait is not None and time.monotonic() > silent_until:
                silent_until += _SILENCE
                phases = self.job.view().phases
                if phases and phases[-1].detail not in ("", said):
                    on_wait(said := phases[-1].detail)
            time.sleep(_POLL)

    def _query(self, rank: int, request: dict[str, Any] | None = None) -> str:
        """Return what a rank runs, over a connection of its own; ``request`` needs no answer. Raises Gone."""
        link = linked(self.job.folder, rank)
        try:
            if request is not None:
                link.send(request)
            return link.doing
        finally:
            link.close()

    def __repr__(self) -> str:
        return f"<Ranks {short_id(self.id)}: {self.size} of {self.job.spec.distributed_backend}, {self.state()}>"


def _doing(link: Link) -> str:
    """Ask a rank what it runs now."""
    link.send({"do": "state"})
    while True:
        for message in link.receive():
            if message.header.get("say") == "state":
                return str(message.header.get("doing") or "")


def _number() -> int:
    """Return a number for a request that no other has."""
    return time.time_ns() // 1000


def _not_started(job: Job) -> DistDLError:
    error = why_ended(job)
    if isinstance(error, JobNotRunning):
        error.message = f"The ranks could not be started: {job.view().reason or error.message}"
        error.hint = ""
    return error
