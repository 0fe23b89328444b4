"""The handle of a session of persistent ranks, for a notebook, a program or a later kernel.

The handle has no state except its connections; the state of the session is in its job's folder.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter import preflight
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobNotFound, JobNotRunning, explain
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.jobs import client
from distdl_jupyter.jobs.client import Job
from distdl_jupyter.ranks import request
from distdl_jupyter.ranks.answer import Answer, RanksState
from distdl_jupyter.ranks.connection import busy, connect, lock_holder, locked, running, stamps
from distdl_jupyter.ranks.request import OnEvent, PendingRequest
from distdl_jupyter.worker.rank_socket import NOTES, ConnectionLost, note_of

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.ranks.connection import RankConnection

#: Seconds between two checks whether the ranks listen.
_POLL = 0.01
#: Seconds between two progress reports during the start of ranks.
_REPORT = 2.0

OnWait = Callable[[str], object]


class Ranks:
    """A session of persistent ranks, which run cells and keep their variables."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._connections: dict[int, RankConnection] = {}
        #: The ``stamps`` of the address files of these connections.
        self._stamps: dict[str, int] = {}

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
        """The call that a cell must make once to connect the ranks ("" if none is needed)."""
        return str(registry.backend(self.job.spec.distributed_backend, {})[0].usage.call)

    # requests ---------------------------------------------------------------------------------

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

        ``code`` is the cell without its magic line; ``raw_cell`` is the whole cell and ``label`` its name for users
        ("In [7]"), both for errors. ``values`` are put into the namespace first. ``on_event`` is called in this thread
        with each event (Output, Done, Notice) as it arrives.

        Errors of ranks are not raised but returned in the answer. Raises InvalidSpec and SyntaxError for invalid code,
        RanksBusy, Interrupted (a KeyboardInterrupt) if the wait was interrupted and the ranks have stopped, and
        JobFailed or JobNotRunning if the ranks are gone.
        """
        header = request.cell(code, _number(), label=label, raw_cell=raw_cell)
        more, body = request.names(values or {})
        return self._request(self._selected(on), {**header, **more}, body, on_event)

    def push(self, on: Iterable[int] | None = None, /, **values: Any) -> None:
        """Set variables in the namespaces of the ranks. Raises InvalidSpec for values that cannot be sent."""
        more, body = request.names(values)
        if more:
            header = {"do": "push", "id": _number(), "label": f"push({', '.join(values)})", **more}
            self._request(self._selected(on), header, body).check()

    def pull(self, name: str, on: Iterable[int] | None = None) -> dict[int, Any]:
        """Return the value of a variable by rank. Raises JobFailed if it is not defined on a rank."""
        header = {"do": "pull", "id": _number(), "name": name, "label": f"pull({name})"}
        return dict(self._request(self._selected(on), header, b"").check().values)

    def run_distributed(self, draft: CapturedCode, *, on_event: OnEvent | None = None) -> Answer:
        """Run a job's code on these ranks, with its captured variables, in a separate namespace.

        The ranks stay connected to each other. Raises InvalidSpec if a check of the code fails, and the errors of
        ``run``.
        """
        preflight.refuse(preflight.check(draft, self.job.spec))
        header = {"do": "distributed", "id": _number(), "label": draft.name}
        return self._request(self._selected(None), header, request.files(draft), on_event)

    def _request(
        self, ranks: list[int], header: dict[str, Any], body: bytes, on_event: OnEvent | None = None
    ) -> Answer:
        with locked(self.job.folder, str(header.get("label") or "")):
            try:
                self._refuse_busy(ranks)
                return PendingRequest(self.job, self._connections, self._stamps, ranks, on_event).wait(header, body)
            except BaseException:
                # Pending data on these connections belong to this request.
                self._close()
                raise

    def _refuse_busy(self, ranks: list[int]) -> None:
        """Make sure that every rank is connected and idle. Raises RanksBusy, or the reason why the ranks are gone."""
        if doing := self._retried(lambda: self._running(ranks)):
            raise busy(doing)

    def _running(self, ranks: list[int]) -> str:
        try:
            if set(self._connections) != set(range(self.size)):
                self._close()
                self._stamps = stamps(self.job.folder)
                for rank in range(self.size):
                    self._connections[rank] = connect(self.job.folder, rank)
            for rank in ranks:
                self._connections[rank].send({"do": "state"})
            return next(filter(None, [self._connections[rank].read_state() for rank in ranks]), "")
        except ConnectionLost:
            self._close()
            raise

    def _retried(self, ask: Callable[[], str]) -> str:
        """Return the result of ``ask``, retried once if the supervisor was replaced. Raises why the ranks are gone."""
        for _ in range(2):
            before = self._stamps or stamps(self.job.folder)
            try:
                return ask()
            except ConnectionLost:
                if not request.is_replaced(self.job, before):
                    break
        raise request.why_ended(self.job)

    def _close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections, self._stamps = {}, {}

    def _selected(self, on: Iterable[int] | None) -> list[int]:
        ranks = list(range(self.size)) if on is None else sorted(set(on))
        unknown = [rank for rank in ranks if not 0 <= rank < self.size]
        if unknown or not ranks:
            what = f"Unknown rank {unknown[0]}" if unknown else "No rank was given"
            raise InvalidSpec(
                f"{what}: this session has ranks 0 to {self.size - 1}.", code="kept-rank-unknown", field="on"
            )
        return ranks

    # state, stop and restart ------------------------------------------------------------------

    def state(self) -> RanksState:
        """Return "idle", "busy" or "ended"; ``reason`` is what is running or why the ranks ended."""
        if self.is_over:
            return RanksState("ended", request.reason(self.job))
        try:
            doing = self._retried(lambda: next(filter(None, map(self._doing, range(self.size))), ""))
        except DistDLError as error:
            return RanksState("ended", str(error.args[0]))
        return RanksState("busy", busy(doing, lock_holder(self.job.folder)).message) if doing else RanksState("idle")

    @property
    def is_over(self) -> bool:
        """Return whether the ranks have ended, or are stopping because one of them has ended."""
        view = self.job.view()
        return view.state.ended or view.failure is not None

    def interrupt(self) -> None:
        """Interrupt the running cell, from any thread or process. Idle ranks are not affected."""
        for rank in range(self.size):
            with contextlib.suppress(ConnectionLost), contextlib.closing(connect(self.job.folder, rank)) as connection:
                connection.send({"do": "interrupt"})

    def stop(self) -> None:
        """Stop the ranks and wait for their end. The job ends as canceled if a cell is running, else as completed."""
        self._close()
        if not self.job.view().state.ended:
            if self._send_stop():
                self.job.wait()
            with contextlib.suppress(JobNotRunning):
                self.job.cancel()
            self.job.wait()

    def _send_stop(self) -> bool:
        """Ask all ranks to exit; return False, without any effect, if one of them is busy."""
        try:
            with locked(self.job.folder, "stop"):
                self._refuse_busy(list(range(self.size)))
                for connection in self._connections.values():
                    connection.send({"do": "stop"})
        except (DistDLError, ConnectionLost):
            return False
        finally:
            self._close()
        return True

    def restart(self, on_wait: OnWait | None = None) -> Ranks:
        """Stop the ranks and start new ones with the same options; this handle then refers to the new ranks."""
        self.stop()
        self.job = self.job.rerun()
        self.await_ranks(on_wait)
        return self

    def await_ranks(self, on_wait: OnWait | None = None) -> None:
        """Wait until every rank is ready. Raises JobFailed or JobNotRunning if one ends before that.

        ``on_wait`` is called with the current status when it has changed, at most every 2 s.
        """
        reported, report_at = "", time.monotonic() + _REPORT
        waiting = {note_of(self.job.folder.path / NOTES, rank) for rank in range(self.size)}
        while waiting := {note for note in waiting if not note.exists()}:
            if self.is_over:
                raise _not_started(self.job)
            if on_wait is not None and time.monotonic() > report_at:
                report_at += _REPORT
                phases = self.job.view().phases
                if phases and phases[-1].detail not in ("", reported):
                    on_wait(reported := phases[-1].detail)
            time.sleep(_POLL)

    def _doing(self, rank: int) -> str:
        """Return what a rank is running, over a separate connection. Raises ConnectionLost."""
        with contextlib.closing(connect(self.job.folder, rank)) as connection:
            return connection.doing

    def __repr__(self) -> str:
        return f"<Ranks {short_id(self.id)}: {self.size} of {self.job.spec.distributed_backend}, {self.state()}>"


def _number() -> int:
    """Return a unique number for a request."""
    return time.time_ns() // 1000


def _not_started(job: Job) -> DistDLError:
    error = request.why_ended(job)
    if isinstance(error, JobNotRunning):
        error.message = f"The ranks could not be started: {job.view().reason or error.message}"
        error.hint = ""
    return error


def start(*, on_wait: OnWait | None = None, **options: Any) -> Ranks:
    """Start persistent ranks and return when all of them are ready. ``options`` are those of ``submit``.

    ``on_wait`` is called periodically with the current status, such as "waiting for free nodes (Resources)".

    On other machines (``compute_target``), they stop after 2 h without a cell, unless ``idle_timeout_seconds`` is set.

    As in a job, a cell must call ``hvd.init()`` or ``init_process_group()`` once before the ranks can communicate.
    Raises InvalidSpec, PluginUnavailable, and JobFailed if a rank ends before it is ready.
    """
    session = Ranks(client.launch(request.session(), **options))
    try:
        session.await_ranks(on_wait)
    except KeyboardInterrupt as interrupt:
        with contextlib.suppress(JobNotRunning):
            session.job.cancel(now=True)
        explain(interrupt, "Interrupted before the ranks were ready; they were stopped.")
        raise
    return session


def current(only: str = "") -> Ranks | None:
    """Return the newest session of this user that was started on this machine, also by another kernel.

    ``only`` is the id of the session to return. Raises JobNotFound if it is not a session, JobNotRunning if it was
    started on another host.
    """
    if not only:
        sessions = (Ranks(client.Job(folder)) for folder in running())
        return next(filter(_is_alive, sessions), None)
    job = client.attach(only)
    if job.spec.kind != "ranks":
        raise JobNotFound(
            f"Job {job.id} is not a session of ranks.",
            code="job-has-no-kept-ranks",
            hint="Start one with ranks.start().",
        )
    if (host := job.folder.supervisor().host) and not job.state.ended:
        raise JobNotRunning(
            f"The ranks of job {job.id} were started on {host}.",
            code="kept-ranks-elsewhere",
            hint=f"Log in to {host} to use them.",
        )
    session = Ranks(job)
    return session if _is_alive(session) else None


def _is_alive(session: Ranks) -> bool:
    """Return whether the ranks are alive, after waiting for those that are still starting."""
    with contextlib.suppress(DistDLError):  # they ended in the meantime
        if not session.is_over:
            session.await_ranks()
            return True
    return False
