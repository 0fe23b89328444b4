"""The start of a job's ranks: place, plan, start; or find again what a supervisor that died had started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter import registry
from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.state import State
from distdl_jupyter.core.words import listing, plural
from distdl_jupyter.supervisor import data, resume, telling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.backends.base import Backend
    from distdl_jupyter.clusters.base import Cluster, Run
    from distdl_jupyter.core.plan import Placement
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.storage.staging import JobStaging
    from distdl_jupyter.supervisor.attempt import Clock
    from distdl_jupyter.supervisor.control import Inbox
    from distdl_jupyter.supervisor.ledger import Ledger

#: Seconds between two questions whether it is the job's turn.
_TURN_SECONDS = 0.1


class Canceled(Exception):
    """The job was stopped while it was being placed or started.

    ``by`` is user or time (see ``Attempt.stopped_by``), ``reason`` a sentence for it or "".
    """

    def __init__(self, by: str, reason: str = "") -> None:
        super().__init__(reason)
        self.by = by
        self.reason = reason


class Beginning:
    """Starts the ranks, as often as it is asked to; each start is an attempt with a cluster of its own."""

    def __init__(
        self, folder: JobFolder, ledger: Ledger, inbox: Inbox, clock: Clock, secrets: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._spec = ledger.spec
        self._ledger = ledger
        self._inbox = inbox
        self._clock = clock
        self._secrets = dict(secrets)
        self.nonce = os.urandom(8).hex()
        #: The nodes that were lost when the ranks last ran.
        self.gone: frozenset[int] = frozenset()
        self.cluster: Cluster
        self.backend: Backend

    def start(self) -> Run:
        """Place and start all ranks. Raises DistDLError with the reason, Canceled."""
        options = self._look_up()
        try:
            return self._start(options)
        except BaseException:
            self.cluster.give_back()
            raise

    def _start(self, options: Any) -> Run:
        ledger, spec = self._ledger, self._spec
        cluster, backend = self.cluster, self.backend
        restarted = bool(ledger.view.restart_count)
        cluster_options = registry.check_options("clusters", spec.cluster, spec.cluster_options)
        self._await_turn(cluster_options)
        if not cluster.queues and not restarted:
            ledger.state(State.PREPARING)
        self._check(cluster_options, options)
        context = self._context_for(options)
        if cluster.far or spec.data or not restarted:
            context.tell("stage", "" if cluster.far or spec.data else "nothing to copy")
        placement = cluster.place(spec, backend.ports, cluster_options, context)
        spec = self._placed(placement)
        plan = backend.plan(spec, placement, options)
        self.heed()
        if not cluster.queues:
            ledger.state(State.STARTING)
        ledger.phase("start", f"0 of {plural(spec.process_count, 'process')}")
        run = cluster.start(spec, placement, plan, context)
        ledger.write("handle", cluster=cluster.name, data=run.handle(), nonce=self.nonce)
        for place in placement.ranks:
            ledger.write("rank", rank=place.rank, status="waiting", node=place.node, host=place.host,
                         local_rank=place.local_rank, gpu=place.gpu)  # fmt: skip
        for start in run.started():
            ledger.write("rank", rank=start.rank, status="started", pid=start.pid)
        ledger.say(spec.distributed_backend if cluster.far else telling.versions(spec))
        for note in plan.notes:
            ledger.note("info", note)
        return run

    def _await_turn(self, cluster_options: Any) -> None:
        """Wait until the cluster has what the job must have alone; this is no running, and no preparing yet."""
        while why := self.cluster.turn(self._spec, cluster_options):
            self._ledger.phase("stage", why)
            self._clock.restart()
            self.heed()
            time.sleep(_TURN_SECONDS)

    def _check(self, cluster_options: Any, options: Any) -> None:
        # Their values stand nowhere: a supervisor that took this job over from one that died does not know them.
        if missing := [name for name in self._spec.secret_variables if name not in self._secrets]:
            raise LaunchFailed(
                f"The ranks cannot begin again: the value of {listing(missing)}, which is secret, was known to the "
                "supervisor that died alone.", hint="Resume the job where the variable is set: job.resume().",
            )  # fmt: skip
        far = self.cluster.far
        for reason in (self.cluster.unavailable(cluster_options), "" if far else self.backend.unavailable(options)):
            if reason:
                raise LaunchFailed(reason)

    def _context_for(self, options: Any) -> Context:
        """Return what a start needs, with what the backend asks for."""
        context, backend = self._context(), self.backend
        context.modules, context.programs = backend.modules(options), backend.programs(options)
        context.rank_ports = backend.rank_ports
        if self.cluster.stages:
            context.staging = data.staging(self._spec, self._ledger, self.heed)
        if context.restart:
            context.gone, context.least_node_count = self.gone, self._spec.min_node_count
        return context

    def _placed(self, placement: Placement) -> JobSpec:
        """Return the spec of what begins now, which may be on fewer nodes or on more than what ran before."""
        view, spec = self._ledger.view, self._spec
        if len(placement.ranks) != view.process_count:
            self._ledger.write("world", node_count=placement.node_count, process_count=len(placement.ranks))
            self._ledger.note("warning", telling.world(spec, placement.node_count), "nodes")
        if placement.node_count == spec.node_count:
            return spec
        return dataclasses.replace(spec, node_count=placement.node_count)

    def find_again(self, past: resume.Past) -> Run | None:
        """Find the job of a supervisor that died; where that is impossible, end what is left of it as lost.

        Ranks that were to be started anew are started. Raises DistDLError when that fails, Canceled.
        """
        self._look_up()
        if self.cluster.can_attach and resume.is_between(past.events):
            with contextlib.suppress(DistDLError):
                self.cluster.sweep(self._spec.id, {})
            return self.start()
        ledger, handle = self._ledger, resume.handle(past.events)
        try:
            if not self.cluster.can_attach or handle is None or not handle.nonce:
                raise LaunchFailed("This kind of cluster cannot go on without its supervisor.")
            self.nonce = handle.nonce
            context = self._context()
            context.staging = self._staging_again()
            run = self.cluster.attach(self._spec, handle.data, context, past.positions)
        except DistDLError:
            for type_, fields in resume.end(self._folder, ledger.view, self._spec.cluster):
                ledger.write(type_, **fields)
            return None
        ledger.note("info", "The job was found again after its supervisor had died.", resume.FOUND_AGAIN)
        return run

    def _look_up(self) -> Any:
        self.cluster = registry.get("clusters", self._spec.cluster)
        self.backend, options = registry.backend(self._spec.distributed_backend, self._spec.backend_options)
        return options

    def _staging_again(self) -> JobStaging | None:
        """Return what answers the nodes' stagers, unless every rank was started before."""
        if not self.cluster.stages or all(rank.pid is not None for rank in self._ledger.view.ranks):
            return None
        return data.staging(self._spec, self._ledger, lambda: None)

    def _context(self) -> Context:
        return Context(
            self._folder,
            self._own_environment(),
            environment.for_ranks_here(os.environ),
            tell=self._tell,
            restart=self._ledger.view.restart_count,
        )

    def _tell(self, phase: str, detail: str) -> None:
        self._ledger.phase(phase, detail)
        self.heed()

    def heed(self) -> None:
        """Raise Canceled when the job was canceled, or its time is over, before it has begun."""
        if any(wish["type"] == "cancel" for wish in self._inbox.take()):
            raise Canceled("user")
        # In a queue the time has not begun.
        if (over := self._clock.over()) and not self.cluster.queues:
            raise Canceled("time", over)

    def _own_environment(self) -> dict[str, str]:
        """Return what the job itself wants in every rank: its marks, the user's variables and their secret values."""
        own = {"CUDA_VISIBLE_DEVICES": ""} if self._spec.use_gpu is False else {}
        own |= {
            "DISTDL_JOB_ID": self._spec.id,
            "DISTDL_JOB_DIR": str(self._folder.path),
            "DISTDL_NONCE": self.nonce,
            "DISTDL_RESTART_COUNT": str(self._ledger.view.restart_count),
            "DISTDL_MAX_RESTARTS": str(self._spec.max_restarts),
            "PYTHONUNBUFFERED": "1",
        }
        if self._spec.distributed_backend.startswith("torch"):
            # https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"
            own |= {
                "TORCHELASTIC_RUN_ID": self._spec.id,
                "TORCHELASTIC_RESTART_COUNT": own["DISTDL_RESTART_COUNT"],
                "TORCHELASTIC_MAX_RESTARTS": own["DISTDL_MAX_RESTARTS"],
            }
        return own | self._spec.environment_variables | self._secrets

    def forget_data(self) -> None:
        """Take away what was laid out on nodes for ranks that were never started."""
        if self._spec.data and hasattr(self, "cluster"):
            with contextlib.suppress(DistDLError):
                self.cluster.sweep(self._spec.id, {})
