"""One job from its spec to its end: place, start, watch, stop, collect, clean.

The supervisor decides only on the view that its own events fold to. Ranks are unpickling strangers to it: it reads
JSON alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter import registry
from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.events import batches
from distdl_jupyter.core.failure import crashed_at_the_end, has_failed, is_lost
from distdl_jupyter.core.state import State
from distdl_jupyter.core.words import duration, plural, ranks, size
from distdl_jupyter.supervisor import data, resume, stopping
from distdl_jupyter.supervisor.control import Inbox, request
from distdl_jupyter.supervisor.ledger import Ledger
from distdl_jupyter.supervisor.pump import Pump

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distdl_jupyter.backends.base import Backend
    from distdl_jupyter.clusters.base import Cluster, Exit, Run
    from distdl_jupyter.core.rank import RankView
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.storage.staging import JobStaging

_TICK = 0.1
#: Seconds after which ranks that never meet are taken to be training all the same.
_MEET_PATIENCE = 15.0


class Supervisor:
    """Runs one job. The caller holds the job's lock."""

    def __init__(self, folder: JobFolder, secret_variables: Mapping[str, str], wake: int) -> None:
        self._folder = folder
        self._spec = folder.spec()
        self._ledger = Ledger(folder, self._spec)
        self._past = resume.Past()
        for found, _ in batches(folder.events):
            for event in found:
                self._past.add(event)
                self._ledger.fold(event)
        self._secrets = dict(secret_variables)
        self._wake = wake
        self._inbox = Inbox(folder.control)
        self._stopper: stopping.Stopper | None = None
        self._stop_by = ""
        self._stop_reason = ""
        self._living: set[int] = set(range(self._spec.process_count))
        self._all_greeted_at: float | None = None
        self._began = time.monotonic()
        self._nonce = os.urandom(8).hex()
        self._backend: Backend
        self._cluster: Cluster

    def run(self) -> None:
        """Run the job to its end; whatever happens, an end state is written and nothing is left running."""
        try:
            run = self._begin()
        except DistDLError as error:
            self._forget_data()
            self._refuse(error)
            return
        if run is None:
            self._forget_data()
            self._finish("")
            return
        pump = Pump(run.streams, self._nonce, self._ledger)
        pump.watch(self._wake)
        self._ledger.overheard = run.overheard
        try:
            self._watch(run, pump)
            self._clean_up(run, pump)
        finally:
            run.close()
        self._finish(self._stop_reason)

    # start ------------------------------------------------------------------------------------

    def _begin(self) -> Run | None:
        """Return the run, a found one when an earlier supervisor of this job died; None when it has ended."""
        spec = self._spec
        self._cluster = registry.get("clusters", spec.cluster)
        self._backend, options = registry.backend(spec.distributed_backend, spec.backend_options)
        if resume.asked_for(self._past.events):
            return self._attach()
        try:
            return self._start(options)
        except _Canceled:
            return None

    def _start(self, options: Any) -> Run:
        ledger, spec, cluster, backend = self._ledger, self._spec, self._cluster, self._backend
        if not cluster.queues:
            ledger.state(State.PREPARING)
        cluster_options = registry.check_options("clusters", spec.cluster, spec.cluster_options)
        for reason in (cluster.unavailable(cluster_options), "" if cluster.far else backend.unavailable(options)):
            if reason:
                raise LaunchFailed(reason)
        context = self._context()
        context.modules, context.programs = backend.modules(options), backend.programs(options)
        context.rank_ports = backend.rank_ports
        if cluster.stages:
            context.staging = data.staging(spec, ledger, self._heed_cancel)
        context.tell("stage", "" if cluster.far or spec.data else "nothing to copy")
        placement = cluster.place(spec, backend.ports, cluster_options, context)
        plan = backend.plan(spec, placement, options)
        self._heed_cancel()
        if not cluster.queues:
            ledger.state(State.STARTING)
        ledger.phase("start", f"0 of {plural(spec.process_count, 'process')}")
        run = cluster.start(spec, placement, plan, context)
        ledger.write("handle", cluster=cluster.name, data=run.handle(), nonce=self._nonce)
        for place in placement.ranks:
            ledger.write("rank", rank=place.rank, status="waiting", node=place.node, host=place.host,
                         local_rank=place.local_rank, gpu=place.gpu)  # fmt: skip
        for start in run.started():
            ledger.write("rank", rank=start.rank, status="started", pid=start.pid)
        ledger.say(spec.distributed_backend if cluster.far else _versions(spec))
        for note in plan.notes:
            ledger.note("info", note)
        return run

    def _attach(self) -> Run | None:
        """Find the job of a supervisor that died; where that is impossible, end what is left of it as lost."""
        ledger, handle = self._ledger, resume.handle(self._past.events)
        if (began := resume.began(self._past.events)) is not None:
            self._began -= max(0.0, time.time() - began)
        self._living = {rank.rank for rank in ledger.view.ranks if rank.status != "ended"}
        try:
            if not self._cluster.can_attach or handle is None or not handle.nonce:
                raise LaunchFailed("This kind of cluster cannot go on without its supervisor.")
            self._nonce = handle.nonce
            context = self._context()
            context.staging = self._staging_again()
            run = self._cluster.attach(self._spec, handle.data, context, self._past.positions)
        except DistDLError:
            ledger.state(State.LOST, resume.lost(self._folder, ledger.view, self._spec.cluster))
            return None
        ledger.note("info", "The job was found again after its supervisor had died.", resume.FOUND_AGAIN)
        return run

    def _staging_again(self) -> JobStaging | None:
        """Return what answers the nodes' stagers, unless every rank was started before."""
        if not self._cluster.stages or all(rank.pid is not None for rank in self._ledger.view.ranks):
            return None
        return data.staging(self._spec, self._ledger, lambda: None)

    def _context(self) -> Context:
        return Context(self._folder, self._own_environment(), environment.for_ranks_here(os.environ), tell=self._tell)

    def _tell(self, phase: str, detail: str) -> None:
        self._ledger.phase(phase, detail)
        self._heed_cancel()

    def _heed_cancel(self) -> None:
        """Raise _Canceled when the job was canceled before it has begun."""
        for wish in self._inbox.take():
            if wish["type"] == "cancel":
                self._stop_by = "user"
                raise _Canceled

    def _own_environment(self) -> dict[str, str]:
        """Return what the job itself wants in every rank: its marks, the user's variables and their secret values."""
        own = {"CUDA_VISIBLE_DEVICES": ""} if self._spec.use_gpu is False else {}
        own |= {
            "DISTDL_JOB_ID": self._spec.id,
            "DISTDL_JOB_DIR": str(self._folder.path),
            "DISTDL_NONCE": self._nonce,
            "PYTHONUNBUFFERED": "1",
        }
        return own | self._spec.environment_variables | self._secrets

    def _forget_data(self) -> None:
        """Take away what was laid out on nodes for ranks that were never started."""
        if self._spec.data and hasattr(self, "_cluster"):
            with contextlib.suppress(DistDLError):
                self._cluster.sweep(self._spec.id, {})

    def _refuse(self, error: DistDLError) -> None:
        if isinstance(error, LaunchFailed) and error.output:
            self._ledger.say(error.output)
        self._finish(f"{error.message} {error.hint}".strip(), failed=True)

    # watch ------------------------------------------------------------------------------------

    def _watch(self, run: Run, pump: Pump) -> None:
        while self._living:
            pump.run(_TICK)
            exits = run.poll()
            if exits:
                pump.drain()
                for exit_ in exits:
                    # A run that was found again tells every end, also those that are written down.
                    if exit_.rank in self._living:
                        self._ended(exit_)
            self._note_remarks(run)
            self._follow_phases(run)
            self._obey(run)
            self._keep_time(run)
            self._notice_failure(run)
            self._tick_stopper()
            self._ledger.tick()

    def _note_remarks(self, run: Run) -> None:
        for remark in run.remarks():
            self._ledger.note(remark.level, remark.text, remark.code)
            self._ledger.say(remark.text)  # in its place in time too

    def _ended(self, exit_: Exit) -> None:
        self._living.discard(exit_.rank)
        self._ledger.settle()
        self._ledger.write("rank", rank=exit_.rank, status="ended", code=exit_.code, signal=exit_.signal,
                           evidence=exit_.evidence)  # fmt: skip
        if crashed_at_the_end(self._ledger.view.ranks[exit_.rank]):
            self._ledger.note("info", f"The process of rank {exit_.rank} crashed (SIG{exit_.signal}) while it shut "
                              "down. Its work was done and its result is saved.", "crash-at-end")  # fmt: skip

    def _follow_phases(self, run: Run) -> None:
        ledger, total = self._ledger, self._spec.process_count
        if ledger.view.state is State.QUEUED:
            why = run.waiting()
            if why:
                ledger.phase("start", why)
            else:
                ledger.state(State.STARTING)
        if ledger.view.state is not State.STARTING:
            return
        greeted, ready = len(ledger.greeted), len(ledger.ready)
        if greeted == total and self._all_greeted_at is None:
            self._all_greeted_at = time.monotonic()
        if ready == total or self._trains_anyway():
            ledger.phase("train")
            ledger.state(State.RUNNING)
        elif ledger.meeting:
            waiting = [rank for rank in range(total) if rank not in ledger.ready | ledger.meeting]
            ledger.phase("rendezvous", _waiting_for(waiting))
        else:
            ledger.phase("start", f"{greeted} of {plural(total, 'process')}")

    def _trains_anyway(self) -> bool:
        view = self._ledger.view
        if view.metrics or view.done is not None:
            return True
        if self._all_greeted_at is None:
            return False
        if not self._backend.meets:
            return True
        waited = time.monotonic() - self._all_greeted_at
        return not self._ledger.meeting and waited > _MEET_PATIENCE

    def _obey(self, run: Run) -> None:
        for wish in self._inbox.take():
            if wish["type"] == "cancel":
                self.stop(run, "user", now=bool(wish.get("now")))

    def _keep_time(self, run: Run) -> None:
        if self._ledger.view.state is State.QUEUED:
            self._began = time.monotonic()  # waiting for a turn is no running
        limit = self._spec.max_run_duration_seconds
        if limit is not None and self._stopper is None and time.monotonic() - self._began > limit:
            self._stop_reason = (
                f"The job was stopped after {duration(limit)}, its max_run_duration_seconds; raise it to run longer."
            )
            self.stop(run, "time")

    def _notice_failure(self, run: Run) -> None:
        if self._stopper is None and any(has_failed(rank) for rank in self._ledger.view.ranks):
            self._stopper = stopping.Stopper(stopping.after_failure(), run.signal)
            self._stop_by = "failure"

    def stop(self, run: Run, by: str, *, now: bool = False) -> None:
        """Begin to stop the job, or hurry a stop that is under way."""
        if by == "user" and self._stop_by in ("", "user"):
            self._ledger.state(State.CANCELING)
        if self._stopper is None:
            # In a queue there is nobody yet who could save anything.
            steps = stopping.at_once() if now or run.waiting() else stopping.gentle(self._spec.stop_grace_seconds)
            self._stopper, self._stop_by = stopping.Stopper(steps, run.signal), by
        elif now:
            self._stopper.hurry()

    def interrupt(self) -> None:
        """Take a signal to the supervisor itself as a request to stop (called from a signal handler)."""
        with contextlib.suppress(OSError):
            request(self._folder.control, "cancel")

    def _tick_stopper(self) -> None:
        sent = self._stopper.tick() if self._stopper is not None else None
        if sent is not None:
            self._ledger.write("stop", signal=sent.signal, by=self._stop_by, next=sent.next, next_in=sent.next_in,
                               kill_in=sent.kill_in, remaining=sorted(self._living))  # fmt: skip

    # end --------------------------------------------------------------------------------------

    def _clean_up(self, run: Run, pump: Pump) -> None:
        """Nothing of the job may stay alive, whatever the ranks left behind."""
        pump.drain()
        self._ledger.say(_endings(self._ledger.view.ranks))
        self._collect(run)
        left = run.alive()
        if left:
            stopper = stopping.Stopper((stopping.Step("TERM", 1.0), stopping.Step("KILL", 1.0)), run.signal)
            while run.alive():
                stopper.tick()
                pump.run(_TICK)
            self._ledger.note("warning", f"{plural(len(left), 'process')} that ranks had left running "
                              f"{'was' if len(left) == 1 else 'were'} ended.", "left-behind")  # fmt: skip
        self._deliver()
        self._note_afterwards()
        self._ledger.phase("clean", "no process left")
        pump.finish()

    def _collect(self, run: Run) -> None:
        self._ledger.phase("collect")
        try:
            run.collect()
        except DistDLError as error:
            self._ledger.note("error", str(error), "not-collected")
        self._note_remarks(run)
        self._ledger.phase("collect", self._collected())

    def _note_afterwards(self) -> None:
        """Say what goes on where the job ran, above all what goes on costing money; nobody waits for a silent cloud."""
        if not self._cluster.can_create:
            return
        with contextlib.suppress(DistDLError):
            options = registry.check_options("clusters", self._spec.cluster, self._spec.cluster_options)
            for remark in self._cluster.afterwards(options):
                self._ledger.note(remark.level, remark.text, remark.code)

    def _deliver(self) -> None:
        failed = self._ledger.view.failure is not None or self._stop_by == "time"
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
        if self._stop_by == "user" and not failed:
            ledger.state(State.CANCELED, reason)
        elif self._stop_by == "time" or failed:
            ledger.state(State.FAILED, reason)
        elif (failure := ledger.view.failure) is not None:
            total = self._spec.process_count
            reason = f"Rank {failure.rank} of {total} failed first: {failure.what}"
            if failure.kind == "lost" and failure.evidence:
                reason += f". {failure.evidence}"
            ledger.state(State.FAILED, reason)
        else:
            ledger.state(State.COMPLETED)
        ledger.close()


class _Canceled(Exception):
    """The job was canceled while it was being placed or started."""


def _versions(spec: JobSpec) -> str:
    """Return what the ranks run with, for the record: "horovod-gloo, Horovod 0.28.1, torch 2.13.0, Python 3.11.7"."""
    shown = {
        "horovod": "Horovod",
        "openmpi": "Open MPI",
        "torch": "torch",
        "tensorflow": "TensorFlow",
        "ray": "Ray",
        "python": "Python",
    }
    known = [
        f"{word} {spec.versions[name]}" for name, word in shown.items() if name in spec.versions and _used(spec, name)
    ]
    return ", ".join([spec.distributed_backend, *known])


def _used(spec: JobSpec, package: str) -> bool:
    backend = spec.distributed_backend
    if package in ("torch", "tensorflow") and backend.startswith(("torch", "tensorflow")):
        return backend.startswith(package)
    return {"horovod": "horovod", "openmpi": "-mpi", "ray": "ray"}.get(package, "") in backend


def _endings(all_ranks: Sequence[RankView]) -> str:
    """Return how the ranks' processes ended: "4 ranks ended with code 0"; those that ended alike together."""
    alike: dict[str, list[int]] = {}
    for rank in all_ranks:
        alike.setdefault(_ending(rank), []).append(rank.rank)
    if len(alike) == 1:
        return f"{plural(len(all_ranks), 'rank')} {next(iter(alike))}"
    return "; ".join(f"{ranks(numbers)} {how}" for how, numbers in alike.items())


def _ending(rank: RankView) -> str:
    if is_lost(rank):
        return "lost"
    return f"ended by SIG{rank.signal}" if rank.signal else f"ended with code {rank.code}"


def _waiting_for(ranks: list[int]) -> str:
    if not ranks:
        return ""
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"waiting for rank{'s' if len(ranks) > 1 else ''} {shown}"
