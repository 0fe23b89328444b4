"""Starts a job's ranks (place, plan, stage data, start), or reattaches to ranks that an earlier supervisor started.

Requests to Azure run in a thread, so that a cancel request takes effect at once. Azure's packages are imported only for
jobs with data in Blob Storage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.queue import AFTER
from distdl_jupyter.core.state import State
from distdl_jupyter.data import packages
from distdl_jupyter.supervisor import messages, resume
from distdl_jupyter.supervisor.queueing import Predecessors, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from distdl_jupyter.backends.base import Backend
    from distdl_jupyter.clusters.base import Cluster, Run
    from distdl_jupyter.core.plan import Placement
    from distdl_jupyter.core.queue import QueueView
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.data.staging import JobStaging
    from distdl_jupyter.supervisor.attempt import RunClock
    from distdl_jupyter.supervisor.control import ControlReader
    from distdl_jupyter.supervisor.recorder import EventRecorder

T = TypeVar("T")

#: Seconds between two polls of the queue, or of the staging of data.
_POLL_SECONDS = 0.1
_FOUND_AGAIN = "The job continues after its supervisor was restarted."


class LaunchCanceled(Exception):
    """The job was stopped while it was being placed or started.

    ``by`` is user or time (see ``Attempt.stopped_by``), ``reason`` a message for the user or "".
    """

    def __init__(self, by: str, reason: str = "") -> None:
        super().__init__(reason)
        self.by = by
        self.reason = reason


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
        self._in_queue = False
        self._wait = Wait(recorder)
        self.cluster: Cluster
        self.backend: Backend

    def start(self) -> Run:
        """Place and start all ranks. Raises DistDLError, Canceled."""
        options = self._load_plugins()
        try:
            return self._start(options)
        except BaseException:
            self.cluster.release()
            raise
        finally:
            self._handle = None

    def _start(self, options: Any) -> Run:
        recorder, spec = self._recorder, self._spec
        cluster, backend = self.cluster, self.backend
        restarted = bool(recorder.view.restart_count)
        cluster_options = registry.check_options("clusters", spec.cluster, spec.cluster_options)
        self._await_turn(cluster_options)
        if not cluster.queues and not restarted:
            recorder.state(State.PREPARING)
        self._check(cluster_options, options)
        context = self._context_for(options)
        if cluster.is_remote or spec.data or not restarted:
            context.report("stage", "" if cluster.is_remote or spec.data else "nothing to copy")
        placement = cluster.place(spec, backend.ports, cluster_options, context)
        spec = self._spec_for(placement)
        plan = backend.plan(spec, placement, options)
        if (threads := spec.environment_variables.get("OMP_NUM_THREADS")) is not None:  # the user's number, not ours
            environments = tuple(variables | {"OMP_NUM_THREADS": threads} for variables in plan.environments)
            plan = dataclasses.replace(plan, environments=environments)
        self.raise_if_canceled()
        if not cluster.queues or recorder.view.state is State.PREPARING:
            recorder.state(State.STARTING)
        recorder.phase("start", f"0 of {plural(spec.process_count, 'process')}")
        run = cluster.start(spec, placement, plan, context)
        self._record_handle(run.handle())
        with recorder.together():
            for slot in placement.ranks:
                where = {"node": slot.node, "host": slot.host, "local_rank": slot.local_rank, "gpu": slot.gpu}
                recorder.write("rank", rank=slot.rank, status="waiting", **where)
            for start in run.started():
                recorder.write("rank", rank=start.rank, status="started", pid=start.pid)
        recorder.log(spec.distributed_backend if cluster.is_remote else messages.versions(spec))
        for note in plan.notes:
            recorder.note("info", note)
        return run

    def _await_turn(self, cluster_options: Any) -> None:
        """Wait for the jobs that this one depends on, then for the resources of the cluster.

        This time counts neither as running nor as preparing.
        """
        known = self._recorder.view
        # An earlier supervisor may have seen them complete; they may have been deleted since.
        is_over = bool(known.restart_count) or (known.queue is not None and AFTER not in known.queue.lacks)
        before = Predecessors(self._folder, () if is_over else self._spec.after)
        while True:
            names = before.waiting()
            if before.failure:
                raise LaunchCanceled("user", before.failure)
            spec = dataclasses.replace(self._spec, priority=self._wait.priority)
            view = self.cluster.acquire(spec, cluster_options, blocked=bool(names), number=self._wait.number)
            if view is None and not names:
                return
            self._wait.note(view, names)
            self._clock.restart()
            self.raise_if_canceled()
            time.sleep(_POLL_SECONDS)

    def _check(self, cluster_options: Any, options: Any) -> None:
        # Secret values are not stored, so a supervisor that took over this job does not have them.
        missing = [name for name in self._spec.secret_variables if name not in self._secrets]
        if missing and self._handle is None:
            raise LaunchFailed(
                f"The ranks cannot restart: the secret value of {listing(missing)} was known only to the supervisor "
                "that died.",
                code="restart-secret-lost",
                hint="Resume the job where the variable is set: job.resume()",
            )
        is_remote = self.cluster.is_remote or packages.missing(self._spec)
        if reason := self.cluster.unavailable(cluster_options):
            raise LaunchFailed(reason, code="cluster-not-usable")
        if not is_remote and (reason := self.backend.unavailable(options)):
            raise LaunchFailed(reason, code="backend-not-usable")

    def _context_for(self, options: Any) -> Context:
        """Return the context of a start, with the requirements of the backend."""
        context, backend = self._context(), self.backend
        modules, context.programs = backend.modules(options), backend.programs(options)
        # The job's packages are not installed yet, so their contents are not checked.
        context.modules = () if packages.missing(self._spec) else modules
        context.rank_ports = backend.rank_ports
        if self.cluster.stages:
            context.staging = self._stage(self.raise_if_canceled, modules)
        if context.restart:
            context.gone, context.least_node_count = self.lost_nodes, self._spec.min_node_count
        return context

    def _spec_for(self, placement: Placement) -> JobSpec:
        """Return the spec of this attempt, which may have fewer or more nodes than the one before."""
        view, spec = self._recorder.view, self._spec
        if len(placement.ranks) != view.process_count:
            self._recorder.write("world", node_count=placement.node_count, process_count=len(placement.ranks))
            self._recorder.note("warning", messages.world(spec, placement.node_count), "nodes")
        if placement.node_count == spec.node_count:
            return spec
        return dataclasses.replace(spec, node_count=placement.node_count)

    def reattach(self, history: resume.History) -> Run | None:
        """Reattach to the job of a supervisor that died; if that is impossible, end the job as lost.

        Ranks that were to be restarted are started. Raises DistDLError when that fails, Canceled.
        """
        self._load_plugins()
        if resume.is_waiting(history.events):
            self._recorder.note("info", _FOUND_AGAIN, resume.REATTACHED)
            return self.start()
        if self.cluster.can_attach and resume.is_between_attempts(history.events):
            with contextlib.suppress(DistDLError):
                self.cluster.sweep(self._spec.id, {})
            return self.start()
        recorder, handle = self._recorder, resume.last_handle(history.events)
        if self.cluster.can_attach and handle is not None and not handle.begun:
            self.nonce, self._handle = handle.nonce, handle.data
            recorder.note("info", _FOUND_AGAIN, resume.REATTACHED)
            return self.start()
        try:
            if not self.cluster.can_attach or handle is None or not handle.nonce:
                raise LaunchFailed(
                    "A job on this type of cluster cannot continue without its supervisor.",
                    code="cluster-needs-supervisor",
                )
            self.nonce = handle.nonce
            context = self._context()
            context.staging = self._staging_for_reattach()
            run = self.cluster.attach(self._spec, handle.data, context, history.positions)
        except DistDLError:
            for type_, fields in resume.end_events(self._folder, recorder.view, self._spec.cluster):
                recorder.write(type_, **fields)
            return None
        recorder.note("info", _FOUND_AGAIN, resume.REATTACHED)
        return run

    def _load_plugins(self) -> Any:
        self.cluster = registry.get("clusters", self._spec.cluster)
        self.backend, options = registry.backend(self._spec.distributed_backend, self._spec.backend_options)
        return options

    def _staging_for_reattach(self) -> JobStaging | None:
        """Return the staging of data, unless every rank was already started."""
        if not self.cluster.stages or all(rank.pid is not None for rank in self._recorder.view.ranks):
            return None
        return self._stage(lambda: None)

    def _stage(self, check: Callable[[], None], modules: Sequence[str] = ()) -> JobStaging | None:
        """Return the staging of the job's data and packages, None if it has neither.

        ``check`` is called while this waits and may raise. Raises DataUnavailable, NotSignedIn.
        """
        spec, recorder = self._spec, self._recorder
        if not spec.data and not packages.missing(spec):
            return None
        from distdl_jupyter.azure.identity import blob_service
        from distdl_jupyter.data.staging import JobStaging

        variables = {**spec.environment_variables, **self._secrets}
        staging = JobStaging(spec, recorder.write, blob_service, variables=variables, modules=modules)
        if not spec.data:
            return staging
        recorder.phase("stage", f"checking {plural(len(spec.data), 'data source')}")
        call = call_in_background(staging.prepare)
        while not wait([call], _POLL_SECONDS).done:
            check()
        call.result()
        recorder.log(f"Data: {staging.summary}")
        return staging

    def _context(self) -> Context:
        return Context(
            self._folder,
            self._job_environment(),
            environment.for_ranks_here(os.environ),
            report=self._report_phase,
            note=self._recorder.record_notice,
            note_place=self._note_place,
            priority=lambda: self._wait.priority,
            queue_number=self._wait.number,
            record_handle=partial(self._record_handle, begun=False),
            handle=self._handle,
            restart=self._recorder.view.restart_count,
        )

    def _note_place(self, view: QueueView) -> None:
        self._wait.note(view, ())
        self.raise_if_canceled()

    def _record_handle(self, data: dict[str, Any], *, begun: bool = True) -> None:
        more = {} if begun else {"begun": False}
        self._recorder.write("handle", cluster=self.cluster.name, data=data, nonce=self.nonce, **more)

    def _report_phase(self, phase: str, detail: str) -> None:
        if self._in_queue and phase != "queue":
            self._clock.restart()
            self._recorder.state(State.PREPARING)
        self._in_queue = phase == "queue"
        self._recorder.phase("stage" if self._in_queue else phase, detail)
        self.raise_if_canceled()

    def raise_if_canceled(self) -> None:
        """Raise Canceled if the job was canceled or reached its time limit before it started."""
        requests = self._control.read()
        self._wait.obey(requests)
        if canceled := next((request for request in requests if request["type"] == "cancel"), None):
            raise LaunchCanceled("user", str(canceled.get("reason") or ""))
        # The time limit does not apply in a queue.
        if (over := self._clock.over()) and self._recorder.view.state is not State.QUEUED:
            raise LaunchCanceled("time", over)

    def _job_environment(self) -> dict[str, str]:
        """Return the environment variables of every rank: the job's marks and the user's variables."""
        restart_count = self._recorder.view.restart_count
        variables = {"CUDA_VISIBLE_DEVICES": ""} if self._spec.use_gpu is False else {}
        variables |= {
            "DISTDL_JOB_ID": self._spec.id,
            "DISTDL_JOB_DIR": str(self._folder.path),
            "DISTDL_NONCE": self.nonce,
            "DISTDL_RESTART_COUNT": str(restart_count),
            "PYTHONUNBUFFERED": "1",
            "DISTDL_BACKEND": self.backend.name,
            "DISTDL_SUBMITTER": self._spec.submitter,
            **environment.HASH_SEED,
        }
        if self._spec.weight_check_steps:
            variables["DISTDL_WEIGHT_CHECK"] = str(self._spec.weight_check_steps)
        if self._spec.check:
            variables["DISTDL_CHECK"] = json.dumps(self._spec.check)
        if self._spec.record_gpu_memory:
            variables["DISTDL_RECORD_GPU_MEMORY"] = "1"
        variables |= self.backend.job_environment(self._spec, restart_count)
        return variables | self._spec.environment_variables | self._secrets

    def remove_staged_data(self) -> None:
        """Remove the data staged on nodes for ranks that were never started."""
        if self._spec.data and hasattr(self, "cluster"):
            with contextlib.suppress(DistDLError):
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
