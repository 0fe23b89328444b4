"""Starts a job's ranks (place, plan, stage data, start), or reattaches to ranks that an earlier supervisor started.

Requests to Azure run in a thread, so that a cancel request takes effect immediately. Azure's packages are imported only
for jobs with data in Blob Storage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from distdl_jupyter.backends.base import Backend
from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.base import Cluster, Context, Run
from distdl_jupyter.core import events, registry
from distdl_jupyter.core.errors import DistDLError, JobNotFound, LaunchFailed
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import listing, plural, short_id
from distdl_jupyter.core.plan import AFTER, MOVED_PREFIX, Placement, QueueView, format_reason
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.core.view import JobView
from distdl_jupyter.data import packages
from distdl_jupyter.supervisor import resume
from distdl_jupyter.supervisor.attempt import RunClock
from distdl_jupyter.supervisor.control import ControlReader
from distdl_jupyter.supervisor.recorder import EventRecorder

if TYPE_CHECKING:
    from distdl_jupyter.data.staging import JobStaging

T = TypeVar("T")

#: Seconds between two polls of the queue, or of the staging of data.
_POLL_SECONDS = 0.1


class LaunchCanceled(Exception):
    """The job was stopped before it started, ``stopped_by`` user or time (see ``Attempt``); ``reason`` may be ""."""

    def __init__(self, stopped_by: str, reason: str = "") -> None:
        super().__init__(reason)
        self.stopped_by, self.reason = stopped_by, reason


class Launch:
    """Starts the ranks, once for each attempt, each with a new cluster object."""

    def __init__(
        self, recorder: EventRecorder, control: ControlReader, clock: RunClock, secrets: Mapping[str, str]
    ) -> None:
        self._folder = recorder.folder
        self._spec = recorder.spec
        self._recorder = recorder
        self._control = control
        self._clock = clock
        self._secrets = dict(secrets)
        self.nonce = os.urandom(8).hex()
        #: Nodes lost in the last attempt.
        self.lost_nodes: frozenset[int] = frozenset()
        #: The handle that an earlier supervisor recorded without starting the ranks.
        self._handle: Mapping[str, Any] | None = None
        self._is_queued = False
        self._queue = QueueRecorder(recorder)
        self.cluster: Cluster
        self.backend: Backend

    def start(self) -> Run:
        """Place and start all ranks. Raises DistDLError, LaunchCanceled."""
        self._load_plugins()
        try:
            return self._start()
        except BaseException:
            self.cluster.release()
            raise
        finally:
            self._handle = None

    def _load_plugins(self) -> None:
        self.cluster = registry.get("clusters", self._spec.cluster)
        self.backend, self._options = registry.load_backend(self._spec.distributed_backend, self._spec.backend_options)

    def _start(self) -> Run:
        recorder, spec = self._recorder, self._spec
        cluster, backend, options = self.cluster, self.backend, self._options
        is_restart = bool(recorder.view.restarts)
        cluster_options = registry.check_options("clusters", spec.cluster, spec.cluster_options)
        self._wait_in_queue(cluster_options)
        if not cluster.has_queue and not is_restart:
            recorder.record_state(State.PREPARING)
        self._check(cluster_options)
        context, modules = self._build_context(), backend.modules(options)
        # The job's packages are not installed yet, so their contents are not checked.
        context.modules = () if packages.find_missing_packages(spec) else modules
        context.programs, context.rank_ports = backend.programs(options), backend.rank_ports
        if cluster.has_agents:
            context.staging = self._stage(self.raise_if_canceled, modules)
        if cluster.is_remote or spec.data or not is_restart:
            context.report("stage", "" if cluster.is_remote or spec.data else "nothing to copy")
        placement = cluster.place(spec, backend.ports, cluster_options, context)
        spec = self._resize_spec(placement)
        plan = backend.plan(spec, placement, options)
        if (threads := spec.environment_variables.get("OMP_NUM_THREADS")) is not None:  # the user's number wins
            environments = tuple(variables | {"OMP_NUM_THREADS": threads} for variables in plan.environments)
            plan = dataclasses.replace(plan, environments=environments)
        self.raise_if_canceled()
        if not cluster.has_queue or recorder.view.state is State.PREPARING:
            recorder.record_state(State.STARTING)
        recorder.record_phase("start", f"0 of {plural(spec.process_count, 'process')}")
        run = cluster.start(spec, placement, plan, context)
        self._record_handle(run.handle())
        with recorder.batch_events():
            for slot in placement.ranks:
                slot_fields = {"node": slot.node, "host": slot.host, "local_rank": slot.local_rank, "gpu": slot.gpu}
                recorder.write("rank", rank=slot.rank, status="waiting", **slot_fields)
            for start in run.list_starts():
                recorder.write("rank", rank=start.rank, status="started", pid=start.pid)
        versions = []
        if not cluster.is_remote:  # "Horovod 0.28.1, torch 2.13.0, Python 3.11.7"
            titles = {package.name: package.title for package in backend.packages(options)} | {"python": "Python"}
            versions = [f"{title} {spec.versions[name]}" for name, title in titles.items() if name in spec.versions]
        recorder.log(", ".join([spec.distributed_backend, *versions]))
        for note in plan.notes:
            recorder.note("info", note)
        return run

    def _wait_in_queue(self, cluster_options: Any) -> None:
        """Wait for the jobs that this one depends on, then for the resources of the cluster.

        This time counts neither as running nor as preparing.
        """
        job_view = self._recorder.view
        # An earlier supervisor may have seen them complete, and they may have been deleted since then.
        is_done = bool(job_view.restarts) or (job_view.queue is not None and AFTER not in job_view.queue.lacks)
        store = JobStore(self._folder.path.parent.parent)
        predecessors = [] if is_done else [Predecessor(store.get_folder(id_)) for id_ in self._spec.after]
        while True:
            predecessors = [predecessor for predecessor in predecessors if not predecessor.has_completed()]
            names = [predecessor.name for predecessor in predecessors]
            spec = dataclasses.replace(self._spec, priority=self._queue.priority)
            view = self.cluster.acquire(spec, cluster_options, blocked=bool(names), number=self._queue.number)
            if view is None and not names:
                return
            self._queue.record(view, names)
            self._clock.restart()
            self.raise_if_canceled()
            time.sleep(_POLL_SECONDS)

    def _check(self, cluster_options: Any) -> None:
        # Secret values are not stored, so a supervisor that took over this job does not have them.
        missing = [name for name in self._spec.secret_variables if name not in self._secrets]
        if missing and self._handle is None:
            reason = f"the secret value of {listing(missing)} was known only to the supervisor that died"
            hint = "Resume the job where the variable is set: job.resume()"
            raise LaunchFailed(f"The ranks cannot restart: {reason}.", code="restart-secret-lost", hint=hint)
        is_remote = self.cluster.is_remote or packages.find_missing_packages(self._spec)
        if problem := self.cluster.unavailable(cluster_options):
            raise LaunchFailed(problem, code="cluster-not-usable")
        if not is_remote and (problem := self.backend.unavailable(self._options)):
            raise LaunchFailed(problem, code="backend-not-usable")

    def _resize_spec(self, placement: Placement) -> JobSpec:
        """Return the spec of this attempt, which may have fewer or more nodes than the one before."""
        spec, node_count, process_count = self._spec, placement.node_count, len(placement.ranks)
        if process_count != self._recorder.view.process_count:
            self._recorder.write("world", node_count=node_count, process_count=process_count)
            status = f"The job continues with {node_count} of {spec.node_count} nodes"
            if node_count == spec.node_count:
                status = f"All {node_count} nodes are available again"
            self._recorder.note("warning", f"{status}, with {plural(process_count, 'process')}.", "nodes")
        return spec if node_count == spec.node_count else dataclasses.replace(spec, node_count=node_count)

    def reattach(self, history: resume.History) -> Run | None:
        """Reattach to the job of a supervisor that died; if that is impossible, end the job as lost.

        If a restart was pending, start the ranks. Raises DistDLError if that fails, and LaunchCanceled.
        """
        self._load_plugins()
        recorder, handle = self._recorder, resume.find_last_start(history.events)
        can_attach, text = self.cluster.can_attach, "The job continues after its supervisor was restarted."
        if can_attach and handle is not None and handle["type"] == "restart":
            with contextlib.suppress(DistDLError):
                self.cluster.sweep(self._spec.id, {})
            return self.start()
        if handle is not None:
            self.nonce = handle.get("nonce", self.nonce)
        is_placed = can_attach and handle is not None and not handle.get("begun", True)
        if resume.is_waiting(history.events) or is_placed:
            self._handle = None if handle is None else handle["data"]
            recorder.note("info", text, resume.REATTACHED)
            return self.start()
        run = None
        if can_attach and handle is not None:
            with contextlib.suppress(DistDLError):
                context = self._build_context()
                if self.cluster.has_agents and any(rank.pid is None for rank in recorder.view.ranks):
                    context.staging = self._stage(lambda: None)
                run = self.cluster.attach(self._spec, handle["data"], context, history.positions)
        if run is not None:
            recorder.note("info", text, resume.REATTACHED)
        else:
            for type_, fields in resume.build_end_events(self._folder, recorder.view, self._spec.cluster):
                recorder.write(type_, **fields)
        return run

    def _stage(self, check: Callable[[], None], modules: Sequence[str] = ()) -> JobStaging | None:
        """Return the staging of the job's data and packages, or None if it has neither.

        ``check`` is called while this method waits, and may raise. Raises DataUnavailable, NotSignedIn.
        """
        spec, recorder = self._spec, self._recorder
        if not spec.data and not packages.find_missing_packages(spec):
            return None
        from distdl_jupyter.azure.identity import open_blob_service
        from distdl_jupyter.data.staging import JobStaging

        variables = {**spec.environment_variables, **self._secrets}
        staging = JobStaging(spec, recorder.write, open_blob_service, variables=variables, modules=modules)
        if not spec.data:
            return staging
        recorder.record_phase("stage", f"checking {plural(len(spec.data), 'data source')}")
        call = call_in_background(staging.prepare)
        while not wait([call], _POLL_SECONDS).done:
            check()
        call.result()
        recorder.log(f"Data: {staging.summary}")
        return staging

    def _build_context(self) -> Context:
        restart_count = len(self._recorder.view.restarts)
        return Context(
            self._folder,
            self._build_environment(),
            environment.select_for_local_ranks(os.environ),
            report=self._report_phase,
            note=self._recorder.record_notice,
            note_position=self._note_position,
            get_priority=lambda: self._queue.priority,
            queue_number=self._queue.number,
            record_handle=partial(self._record_handle, begun=False),
            handle=self._handle,
            restart=restart_count,
            lost_nodes=self.lost_nodes,
            min_node_count=self._spec.min_node_count if restart_count else None,
        )

    def _note_position(self, view: QueueView) -> None:
        self._queue.record(view, ())
        self.raise_if_canceled()

    def _record_handle(self, data: dict[str, Any], *, begun: bool = True) -> None:
        fields = {} if begun else {"begun": False}
        self._recorder.write("handle", cluster=self.cluster.name, data=data, nonce=self.nonce, **fields)

    def _report_phase(self, phase: str, detail: str) -> None:
        if self._is_queued and phase != "queue":
            self._clock.restart()
            self._recorder.record_state(State.PREPARING)
        self._is_queued = phase == "queue"
        self._recorder.record_phase("stage" if self._is_queued else phase, detail)
        self.raise_if_canceled()

    def raise_if_canceled(self) -> None:
        """Raise LaunchCanceled if the job was canceled or reached its time limit before it started."""
        for request in self._control.read():
            if request["type"] == "priority" and isinstance(request.get("priority"), int):
                self._queue.priority = request["priority"]
            elif request["type"] == "cancel":
                raise LaunchCanceled("user", str(request.get("reason") or ""))
        # The time limit does not apply while the job is queued.
        if (limit_reason := self._clock.get_limit_reason()) and self._recorder.view.state is not State.QUEUED:
            raise LaunchCanceled("time", limit_reason)

    def _build_environment(self) -> dict[str, str]:
        """Return the environment variables of every rank: the job's marks and the user's variables."""
        spec, restart_count = self._spec, len(self._recorder.view.restarts)
        return {
            **({"CUDA_VISIBLE_DEVICES": ""} if spec.use_gpu is False else {}),
            **({"DISTDL_WEIGHT_CHECK": str(spec.weight_check_steps)} if spec.weight_check_steps else {}),
            **({"DISTDL_CHECK": json.dumps(spec.check)} if spec.check else {}),
            **({"DISTDL_RECORD_GPU_MEMORY": "1"} if spec.record_gpu_memory else {}),
            "DISTDL_JOB_ID": spec.id,
            "DISTDL_JOB_DIR": str(self._folder.path),
            "DISTDL_NONCE": self.nonce,
            "DISTDL_RESTART_COUNT": str(restart_count),
            "PYTHONUNBUFFERED": "1",
            "DISTDL_BACKEND": self.backend.name,
            **environment.HASH_SEED,
            **self.backend.job_environment(spec, restart_count),
            **spec.environment_variables,
            **self._secrets,
        }

    def remove_staged_data(self) -> None:
        """Remove the data staged on nodes for ranks that were never started."""
        with contextlib.suppress(DistDLError):
            if self._spec.data and hasattr(self, "cluster"):
                self.cluster.sweep(self._spec.id, {})


def call_in_background(function: Callable[[], T]) -> Future[T]:
    """Call the function in a daemon thread, which the caller may abandon."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - ``result`` raises it
            future.set_exception(error)

    threading.Thread(target=run, name="data", daemon=True).start()
    return future


# the wait for other jobs and for resources ----------------------------------------------------------

#: Seconds between two polls of a predecessor.
_PREDECESSOR_SECONDS = 0.5
#: Timeout in seconds for the replacement of a moved job or of a dead supervisor to appear.
_MOVE_SECONDS = 10.0
#: Pause between two queue events: minimum seconds, fraction of the waiting time so far, and maximum seconds.
_MIN_PAUSE_SECONDS, _PAUSE_SHARE, _MAX_PAUSE_SECONDS = 1.0, 0.1, 20.0


class QueueRecorder:
    """Records the position of a queued job, and applies the user's changes of its priority."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        old_queue = recorder.view.queue
        self.priority = recorder.spec.priority if old_queue is None else old_queue.priority
        #: The job's queue number from an earlier wait, with which it keeps its position.
        self.number = None if old_queue is None else old_queue.number
        self._recorded: QueueView | None = None
        self._started_at = self._recorded_at = time.monotonic()

    def record(self, view: QueueView | None, predecessors: Sequence[str]) -> None:
        """Record the position if it has changed; ``predecessors`` are the jobs that must complete first.

        Changes of the user's priority are recorded immediately, other changes are limited in rate.
        """
        view = dataclasses.replace(view or QueueView(), priority=self.priority)
        if names := tuple(predecessors):
            view = dataclasses.replace(view, lacks=(AFTER,), names=names, why=format_reason({}, (AFTER,), names))
        self.number = view.number if view.number is not None else self.number
        # Other users can change a job's position any number of times, so the number of events is limited.
        now = time.monotonic()
        pause = min(max(_MIN_PAUSE_SECONDS, (now - self._started_at) * _PAUSE_SHARE), _MAX_PAUSE_SECONDS)
        is_due = self._recorded is None or view.priority != self._recorded.priority or now - self._recorded_at > pause
        if view != self._recorded and is_due:
            self._recorded_at, self._recorded = now, view
            self._recorder.record_phase("stage", view.why)
            self._recorder.write("queue", **dataclasses.asdict(view))


class Predecessor:
    """Another job that must complete before this one starts, followed until its end."""

    def __init__(self, folder: JobFolder) -> None:
        self._store = JobStore(folder.path.parent.parent)
        self._next_poll = 0.0
        self._follow(folder)

    def _follow(self, folder: JobFolder) -> None:
        self._folder, self._cursor = folder, 0
        self._view: JobView | None = None
        #: Deadline for the job that replaces a moved one, or the supervisor that replaces a dead one, to appear.
        self._appear_deadline: float | None = None
        self.name = short_id(folder.id)

    def has_completed(self) -> bool:
        """Return whether the job has completed. Raises LaunchCanceled if it never will."""
        if time.monotonic() < self._next_poll:
            return False
        self._next_poll = time.monotonic() + _PREDECESSOR_SECONDS
        try:
            if self._view is None:
                self._view = JobView.from_spec(self._folder.read_spec())
                self.name = f"{self._view.name} ({self.name})"
            new_events, self._cursor = events.read(self._folder.events, self._cursor)
        except (JobNotFound, FileNotFoundError):
            raise self._make_cancellation("was removed") from None
        except OSError:
            return False
        for event in new_events:
            self._view.apply(event)
        state = self._view.state
        if state is State.CANCELED and self._view.reason.startswith(MOVED_PREFIX):
            self._follow_moved()
        elif state in _END_TEXTS:
            raise self._make_cancellation(_END_TEXTS[state])
        elif new_events or not self._folder.read_supervisor().is_dead:
            self._appear_deadline = None
        else:
            # If no process reads that job, it is never marked as lost, and this job would wait forever.
            self._appear_deadline = self._appear_deadline or time.monotonic() + _MOVE_SECONDS
            if time.monotonic() > self._appear_deadline and not resume.can_attach(self._folder):
                raise self._make_cancellation("was lost because its supervisor is gone")
        return state is State.COMPLETED

    def _follow_moved(self) -> None:
        """Follow the job that has replaced this one on another cluster; it may not exist yet."""
        for folder in takewhile(lambda candidate: candidate.id > self._folder.id, self._store.list_folders()):
            with contextlib.suppress(DistDLError):
                if folder.read_spec().moved_from == self._folder.id:
                    self._follow(folder)
                    return
        self._appear_deadline = self._appear_deadline or time.monotonic() + _MOVE_SECONDS
        if time.monotonic() > self._appear_deadline:
            raise self._make_cancellation(_END_TEXTS[State.CANCELED])

    def _make_cancellation(self, ending: str) -> LaunchCanceled:
        return LaunchCanceled("user", f"This job starts after {self.name}, which {ending}.")


_END_TEXTS = {State.FAILED: "failed", State.CANCELED: "was canceled", State.LOST: "was lost"}
