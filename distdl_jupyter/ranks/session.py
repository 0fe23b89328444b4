"""A handle to a session of persistent ranks, for a notebook, a program or a later kernel.

The state of the session is in its job's folder, so that any number of handles can be used one after the other.
"""

from __future__ import annotations

import contextlib
import io
import re
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter import capture, preflight
from distdl_jupyter.capture import listing
from distdl_jupyter.capture.captured_code import CapturedCode, build_payload, pickle_values
from distdl_jupyter.capture.cell import check_plain_python
from distdl_jupyter.capture.modules import build_search_path
from distdl_jupyter.capture.pickler import raise_errors
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobNotFound, JobNotRunning, explain
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.core.source import format_cell_label
from distdl_jupyter.core.spec import CodeSource
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.jobs import client
from distdl_jupyter.jobs.client import Job
from distdl_jupyter.ranks import request
from distdl_jupyter.ranks.answer import Answer, RanksState
from distdl_jupyter.ranks.request import EventCallback, PendingRequest, RankConnection
from distdl_jupyter.worker.rank_socket import NOTES, ConnectionLost, find_note

_CELL_LABEL = re.compile(r"In \[(\d+)\]")
#: Seconds between two checks whether the ranks listen.
_POLL_SECONDS = 0.01
#: Seconds between two progress reports during the start of ranks.
_REPORT_SECONDS = 2.0

WaitCallback = Callable[[str], object]


class Ranks:
    """A session of persistent ranks, which run cells and keep their variables."""

    def __init__(self, job: Job) -> None:
        self.job = job
        #: The stamps of the address files at the last request (see ``read_stamps``).
        self._stamps: dict[str, int] = {}
        #: The connections of the last request, unless another one is using them.
        self._connections: dict[int, RankConnection] = {}

    @property
    def id(self) -> str:
        """The id of the job of these ranks."""
        return self.job.id

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.job.spec.process_count

    @property
    def setup_call(self) -> str:
        """The call that a cell must make once to connect the ranks or "" if it needs none."""
        return str(registry.load_backend(self.job.spec.distributed_backend, {})[0].usage.call)

    def run(
        self,
        code: str,
        *,
        on: Iterable[int] | None = None,
        label: str = "",
        raw_cell: str = "",
        values: Mapping[str, Any] | None = None,
        on_event: EventCallback | None = None,
    ) -> Answer:
        """Run a cell on all ranks, or on those in ``on``, and wait for the results.

        ``code`` is the cell without its magic line; ``raw_cell`` is the whole cell and ``label`` its name for users
        ("In [7]"), both for errors. ``values`` are put into the namespace first. ``on_event`` is called in this thread
        with each event (Output, RankResult, Notice) as it arrives.

        Errors of ranks are not raised but returned in the answer. Raises InvalidSpec and SyntaxError for invalid code,
        RanksBusy, CellInterrupt (a KeyboardInterrupt) if the wait was interrupted and the ranks have stopped, and
        JobFailed or JobNotRunning if the ranks are gone.
        """
        notebook, number = capture.current_location(), time.time_ns() // 1000
        raw = raw_cell or notebook.raw
        position = raw.rstrip().rfind(code.rstrip()) if code.strip() else -1
        first_line = raw.count("\n", 0, position) + 1 if position >= 0 else None
        match = _CELL_LABEL.fullmatch(label)
        count = int(match[1]) if match else notebook.execution_count if first_line else None
        title = format_cell_label(count, notebook.name) if count is not None or not label else label
        filename = f"<{title[:1].lower()}{title[1:]}, {number}>"
        value_fields, body = _pack_values(values or {})
        header = {
            "do": "run",
            "id": number,
            "code": check_plain_python(code, first_line=first_line or 1, filename=filename, allow_await=True),
            "filename": filename,
            "label": label or (f"In [{count}]" if count is not None else title),
            "cell": count,
            "title": title,
            "first_line": first_line or 1,
            **value_fields,
        }
        return self._request(on, header, body, on_event)

    def push(self, on: Iterable[int] | None = None, /, **values: Any) -> None:
        """Set variables in the namespaces of the ranks. Raises InvalidSpec for values that cannot be sent."""
        value_fields, body = _pack_values(values)
        if value_fields:
            header = {"do": "push", "label": f"push({', '.join(values)})", **value_fields}
            self._request(on, header, body).check()

    def pull(self, name: str, on: Iterable[int] | None = None) -> dict[int, Any]:
        """Return the value of a variable by rank. Raises JobFailed if it is not defined on a rank."""
        header = {"do": "pull", "name": name, "label": f"pull({name})"}
        return dict(self._request(on, header, b"").check().values)

    def run_distributed(self, draft: CapturedCode, *, on_event: EventCallback | None = None) -> Answer:
        """Run a job's code on these ranks, with its captured variables, in a separate namespace.

        The ranks stay connected to each other. Raises InvalidSpec if a check of the code fails, and the errors of
        ``run``.
        """
        preflight.raise_errors(preflight.check(draft, self.job.spec))
        # The files are sent, because ranks on other machines cannot read the job's folder.
        packed = io.BytesIO()
        with tempfile.TemporaryDirectory(prefix="distdl-") as name, tarfile.open(fileobj=packed, mode="w") as archive:
            folder = JobFolder(Path(name))
            folder.code.mkdir(mode=0o700)
            draft.write(folder)
            archive.add(name, ".")
        header = {"do": "distributed", "label": draft.name}
        return self._request(None, header, packed.getvalue(), on_event)

    def _request(
        self, on: Iterable[int] | None, header: dict[str, Any], body: bytes, on_event: EventCallback | None = None
    ) -> Answer:
        """Send a request to all ranks, or those in ``on``, and wait for the results. Raises the errors of ``run``."""
        ranks = list(range(self.size)) if on is None else sorted(set(on))
        unknown = [rank for rank in ranks if not 0 <= rank < self.size]
        if unknown or not ranks:
            problem = f"Unknown rank {unknown[0]}" if unknown else "No rank was given"
            message = f"{problem}: this session has ranks 0 to {self.size - 1}."
            raise InvalidSpec(message, code="ranks-rank-unknown", field="on")
        header.setdefault("id", time.time_ns() // 1000)
        on_event = (lambda _event: None) if on_event is None else on_event
        with request.lock_session(self.job.folder, str(header["label"])):
            connections, activities = self._connect()
            if activity := next(filter(None, (activities[rank] for rank in ranks)), ""):
                raise request.make_busy_error(activity)
            try:
                answer = PendingRequest(self.job, connections, self._stamps, set(ranks), on_event).wait(header, body)
            except BaseException:
                for connection in connections.values():
                    connection.close()
                raise
            self._connections = connections
            return answer

    def _connect(self) -> tuple[dict[int, RankConnection], dict[int, str]]:
        """Return connections to all ranks, and what each rank runs. Raises the reason why the ranks are gone."""
        for _ in range(3):  # a connection may be broken, and the supervisor may be replaced in the meantime
            stamps = request.read_stamps(self.job.folder)
            reused, self._connections = self._connections if stamps == self._stamps else {}, {}
            try:
                for connection in reused.values():
                    connection.send({"do": "hello"})
                connections = reused or {rank: RankConnection(self.job.folder, rank) for rank in range(self.size)}
                activities = {rank: connection.receive_activity() for rank, connection in connections.items()}
            except ConnectionLost:
                if not reused and not request.is_replaced(self.job, self._stamps or stamps):
                    break
            else:
                self._stamps = stamps
                return connections, activities
        raise request.make_session_error(self.job)

    def state(self) -> RanksState:
        """Return "idle", "busy" or "ended"; ``reason`` is what is running or why the ranks ended."""
        try:
            if self.has_ended:
                raise request.make_session_error(self.job)
            self._connections, activities = self._connect()
            activity = next(filter(None, activities.values()), "")
        except DistDLError as error:
            return RanksState("ended", str(error.args[0]))
        pid = request.read_lock_holder(self.job.folder)[1]
        return RanksState("busy", request.make_busy_error(activity, pid).message) if activity else RanksState("idle")

    @property
    def has_ended(self) -> bool:
        """Whether the ranks have ended, or are stopping because one of them has ended."""
        view = self.job.view()
        return view.state.ended or view.failure is not None

    def interrupt(self) -> None:
        """Interrupt the running cell, from any thread or process. Idle ranks are not affected."""
        for rank in range(self.size):
            with contextlib.suppress(ConnectionLost):
                connection = RankConnection(self.job.folder, rank)
                connection.receive_activity()
                connection.send({"do": "interrupt"})

    def stop(self) -> None:
        """Stop the ranks and wait for their end. The job ends as canceled if a cell is running, else as completed."""
        if not self.job.view().state.ended:
            with contextlib.suppress(DistDLError, ConnectionLost), request.lock_session(self.job.folder, "stop"):
                connections, activities = self._connect()
                if not any(activities.values()):
                    for connection in connections.values():
                        connection.send({"do": "stop"})
                    self.job.wait()
            with contextlib.suppress(JobNotRunning):
                self.job.cancel()
            self.job.wait()

    def restart(self, on_wait: WaitCallback | None = None) -> Ranks:
        """Stop the ranks and start new ones with the same options; this handle then refers to the new ranks."""
        self.stop()
        self.job, self._stamps, self._connections = self.job.rerun(), {}, {}
        self.wait_until_ready(on_wait)
        return self

    def wait_until_ready(self, on_wait: WaitCallback | None = None) -> None:
        """Wait until every rank is ready. Raises JobFailed or JobNotRunning if one ends before that.

        ``on_wait`` is called with the current status when it has changed, at most every 2 s.
        """
        reported, report_at = "", time.monotonic() + _REPORT_SECONDS
        waiting = {find_note(self.job.folder.path / NOTES, rank) for rank in range(self.size)}
        while waiting := {note for note in waiting if not note.exists()}:
            if self.has_ended:
                error = request.make_session_error(self.job)
                if isinstance(error, JobNotRunning):
                    reason = self.job.view().reason or error.message
                    error = JobNotRunning(f"The ranks could not be started: {reason}", code=error.code)
                raise error
            if on_wait is not None and time.monotonic() > report_at:
                report_at += _REPORT_SECONDS
                phases = self.job.view().phases
                if phases and phases[-1].detail not in ("", reported):
                    on_wait(reported := phases[-1].detail)
            time.sleep(_POLL_SECONDS)

    def __repr__(self) -> str:
        return f"<Ranks {short_id(self.id)}: {self.size} of {self.job.spec.distributed_backend}, {self.state()}>"


def _pack_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return ``names``, ``sources`` and pickles of a request. Raises InvalidSpec for values that cannot be sent."""
    if not values:
        return {}, b""
    with pickle_values(values.items()) as (notes, file), file:
        raise_errors(notes, values, unit="cell")
        file.seek(0)
        sources = listing.collect_sources(notes, capture.current_location())
        return {"names": list(values), "sources": sources}, file.read()


def build_draft() -> CapturedCode:
    """Return the draft of a job of persistent ranks."""
    notebook = capture.current_location()
    name = notebook.name.removesuffix(".ipynb")[:100]
    source = CodeSource(
        notebook=notebook.path,
        cell_id=notebook.cell_id,
        execution_count=notebook.execution_count,
        command="ranks.start()",
    )
    payload = build_payload("ranks", path=build_search_path(notebook))
    return CapturedCode(kind="ranks", name=f"{name} ranks".strip(), source=source, payload_json=payload)


def start(*, on_wait: WaitCallback | None = None, **options: Any) -> Ranks:
    """Start persistent ranks and return when all of them are ready. ``options`` are those of ``submit``.

    ``on_wait`` is called periodically with the current status, such as "waiting for free nodes (Resources)". On other
    machines (``compute_target``), they stop after 2 h without a cell, unless ``idle_timeout_seconds`` is set. As in a
    job, a cell must call ``hvd.init()`` or ``init_process_group()`` once before the ranks can communicate.
    Raises InvalidSpec, PluginUnavailable, and JobFailed if a rank ends before it is ready.
    """
    session = Ranks(client.launch(build_draft(), **options))
    try:
        session.wait_until_ready(on_wait)
    except KeyboardInterrupt as interrupt:
        with contextlib.suppress(JobNotRunning):
            session.job.cancel(now=True)
        explain(interrupt, "The start was interrupted, so the ranks were stopped.")
        raise
    return session


def find_session(only: str = "") -> Ranks | None:
    """Return the newest session of this user that was started on this machine, also by another kernel.

    ``only`` is the id of the session to return. Raises JobNotFound if it is not a session, JobNotRunning if it was
    started on another host.
    """
    if only:
        job = client.attach(only)
        if job.spec.kind != "ranks":
            message, hint = f"Job {job.id} is not a session of ranks.", "Start one with ranks.start()."
            raise JobNotFound(message, code="job-without-ranks", hint=hint)
        if (host := job.folder.read_supervisor().host) and not job.state.ended:
            message, hint = f"The ranks of job {job.id} were started on {host}.", f"Log in to {host} to use them."
            raise JobNotRunning(message, code="ranks-elsewhere", hint=hint)
        sessions = iter([Ranks(job)])
    else:
        # The session of a killed supervisor may still be running in a Slurm allocation; then its address files exist.
        sessions = (
            Ranks(client.Job(folder))
            for folder in JobStore().list_folders()
            if (folder.path / NOTES).is_dir()
            and not (supervisor := folder.read_supervisor()).host
            and (supervisor.is_held or request.read_stamps(folder))
        )
    for session in sessions:
        with contextlib.suppress(DistDLError):  # it ended in the meantime
            if not session.has_ended:
                session.wait_until_ready()  # it may still be starting
                return session
    return None
