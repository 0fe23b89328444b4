"""One attempt of a job, from the start of its ranks until all their processes have exited.

A job has one attempt, and one more for every restart. All decisions are based on the view folded from the events.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from distdl_jupyter.backends.base import Backend
from distdl_jupyter.clusters.base import Exit, Run, RunNotice
from distdl_jupyter.core.events import State
from distdl_jupyter.core.failure import has_crashed_at_end, has_failed, is_lost, may_concern_collectives
from distdl_jupyter.core.humanize import duration, plural, ranks
from distdl_jupyter.supervisor import stop
from distdl_jupyter.supervisor.control import ControlReader
from distdl_jupyter.supervisor.hang_detector import HangDetector
from distdl_jupyter.supervisor.log_reader import LogReader
from distdl_jupyter.supervisor.recorder import EventRecorder

if TYPE_CHECKING:
    from distdl_jupyter.supervisor.profiler import ProfileCollector

_TICK_SECONDS = 0.1
#: Seconds between two renewals of the ranks' slots in the local queue.
_RENEW_SECONDS = 1.0
#: Seconds after which ranks that never joined a process group are assumed to be training.
_CONNECT_SECONDS = 15.0
#: Seconds after a rank's first output after which ranks are assumed to be training.
_PRINT_SECONDS = 2.0
#: Maximum number of failed ranks whose log is read, which takes time. Later failures mostly refer to the first ones.
_MAX_POSTMORTEMS = 16


class RunClock:
    """Elapsed run time of the job in seconds, over all attempts, without time in a queue.

    ``limit`` is its ``max_run_duration_seconds``.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = math.inf if limit is None else limit
        self._previous_seconds = 0.0
        self.restart()

    def restart(self, ago: float = 0.0) -> None:
        """Start the time of this attempt now, or some seconds ago."""
        self._started_at = time.monotonic() - ago

    def start_attempt(self) -> None:
        """Add the time of the current attempt to the total, and start the time of another one."""
        self._previous_seconds += time.monotonic() - self._started_at
        self.restart()

    def get_limit_reason(self) -> str:
        """Return the reason why the job must stop now, or "" before its limit is reached."""
        if self._previous_seconds + time.monotonic() - self._started_at <= self._limit:
            return ""
        limit = duration(self._limit)
        return f"The job was stopped after {limit} (max_run_duration_seconds). Raise this limit to run longer."


class Attempt:
    """Watches a started run, handles requests, and stops all ranks when one fails."""

    def __init__(
        self,
        run: Run,
        recorder: EventRecorder,
        backend: Backend,
        control: ControlReader,
        clock: RunClock,
        *,
        nonce: str,
        wake: int,
    ) -> None:
        self._run = run
        self._recorder = recorder
        self._spec = recorder.spec
        self._backend = backend
        self._control = control
        self._clock = clock
        self._reader = LogReader(run.streams, nonce, recorder, safe_end=recorder.redactor.find_safe_end)
        self._reader.watch(wake)
        self._hangs = HangDetector(run, recorder)
        self._profiles: ProfileCollector | None = None
        #: Persistent ranks whose address is in the job's folder, and the time when all became idle (inf: not idle).
        self._published_ranks: set[int] = set()
        self._idle_since = math.inf
        self._running = {rank.rank for rank in recorder.view.ranks if rank.status != "ended"}
        #: The times when all ranks had connected and when one had printed something (inf: not yet).
        self._all_connected_at = self._printed_at = math.inf
        self._renewed_at = -math.inf
        self._stopper: stop.Stopper | None = None
        self._postmortem_count = 0
        self._unkillable = stop.UnkillableProcesses(run)
        #: The cause of the stop: "user", "time" (or another final reason), "hang" or "failure"; "" while it runs.
        #: ``reason`` is a message for the user.
        self.stopped_by = ""
        self.reason = ""

    def watch(self) -> None:
        """Return when every rank has ended."""
        steps: tuple[Callable[[], object], ...] = (
            self._read_output,  # before the exits, whose meaning depends on what the ranks reported
            self._record_exits,  # before the requests: a rank that has exited on its own is not stopped
            self.record_notices,
            self._record_resources,
            self._follow_phases,
            self._serve_ranks,
            # Reasons to stop the ranks, highest priority first: a user's request, a limit, a hang, a failure. A failure
            # is last because each of the others also causes failures.
            self._handle_requests,
            self._check_limits,
            self._check_hang,
            self._check_failure,
            self._tick_stopper,
            self._recorder.tick,  # last: held-back events follow everything that this tick has recorded
        )
        while self._running:
            for step in steps:
                step()
        self._hangs.finish()
        if self._profiles is not None:
            self._profiles.finish()

    def _read_output(self) -> None:
        self._reader.run(_TICK_SECONDS)
        self._forward_launcher_output()

    def _forward_launcher_output(self) -> None:
        while self._recorder.launcher_output:
            self._run.on_launcher_output(self._recorder.launcher_output.pop(0))

    def _record_exits(self) -> None:
        if exits := self._run.poll():
            self._reader.drain({exit_.rank for exit_ in exits})
            self._forward_launcher_output()
            with self._recorder.batch_events():
                for exit_ in exits:
                    # A reattached run returns every exit, including those already recorded.
                    if exit_.rank in self._running:
                        self._record_exit(exit_)

    def _record_exit(self, exit_: Exit) -> None:
        recorder, evidence = self._recorder, exit_.evidence
        self._running.discard(exit_.rank)
        recorder.flush()
        if exit_.code == 0 and not evidence and recorder.view.ranks[exit_.rank].ok is None:
            # A rank without a reported result may still have succeeded.
            if exit_.rank in recorder.replaced_ranks:
                evidence = "Another program replaced it (os.exec)."
            elif recorder.folder.get_result_path(exit_.rank).exists():
                evidence = "Its result is saved."
        end = {"code": exit_.code, "signal": exit_.signal, "evidence": evidence}
        recorder.write("rank", rank=exit_.rank, status="ended", **end)
        rank = recorder.view.ranks[exit_.rank]
        if has_failed(rank) and self._postmortem_count < _MAX_POSTMORTEMS:
            from distdl_jupyter.supervisor import postmortem  # lazy: rarely needed

            self._postmortem_count += 1
            if (error := postmortem.explain_exit(recorder.folder, rank)) is not None:
                recorder.write("result", rank=rank.rank, ok=False, repr="", bytes=0, error=error)
        if has_crashed_at_end(rank):
            crash = f"The process of rank {exit_.rank} crashed (SIG{exit_.signal}) during shutdown."
            recorder.note("info", f"{crash} Its work was done and its result is saved.", "crash-at-end")

    def record_notices(self) -> None:
        """Record the notices of the run for the user."""
        for notice in self._run.take_notices():
            self._recorder.record_notice(notice)

    def _record_resources(self) -> None:
        """Store the resource usage of the ranks, and renew their slots in the local queue."""
        self._recorder.take_samples(self._run.take_samples())
        if (now := time.monotonic()) - self._renewed_at >= _RENEW_SECONDS:
            self._renewed_at = now
            self._run.keep_slots()

    def _follow_phases(self) -> None:
        recorder, total = self._recorder, self._recorder.view.process_count
        if recorder.view.state is State.QUEUED:
            if queue_reason := self._run.why_waiting():
                recorder.record_phase("start", queue_reason)
            else:
                recorder.record_state(State.STARTING)
        if recorder.view.state is not State.STARTING:
            return
        connected, ready = len(recorder.connected_ranks), len(recorder.ready_ranks)
        if connected == total:
            self._all_connected_at = min(self._all_connected_at, time.monotonic())
        if ready == total or self._is_assumed_training():
            recorder.record_phase("train")
            recorder.record_state(State.RUNNING)
        elif recorder.rendezvous_ranks:
            missing = [rank for rank in range(total) if rank not in recorder.ready_ranks | recorder.rendezvous_ranks]
            recorder.record_phase("rendezvous", f"waiting for {ranks(missing)}" if missing else "")
        else:
            recorder.record_phase("start", f"{connected} of {plural(total, 'process')}")

    def _is_assumed_training(self) -> bool:
        """Return whether ranks that have not all joined a process group are assumed to be training."""
        now, has_connected = time.monotonic(), self._all_connected_at < math.inf
        if self._recorder.has_reports or not has_connected or not self._backend.communicates:
            return self._recorder.has_reports or has_connected
        if any(rank.lines > rank.error_lines for rank in self._recorder.view.ranks):
            self._printed_at = min(self._printed_at, now)
        is_late = now - self._printed_at > _PRINT_SECONDS or now - self._all_connected_at > _CONNECT_SECONDS
        return is_late and not self._recorder.rendezvous_ranks

    def _serve_ranks(self) -> None:
        """Publish persistent ranks as soon as they listen, and stop them after too long without a request."""
        if self._spec.kind != "ranks":
            return
        for rank in sorted(self._recorder.ready_ranks - self._published_ranks):
            self._published_ranks.add(rank)
            self._run.expose_endpoint(rank)
        now, limit = time.monotonic(), self._spec.idle_timeout_seconds
        is_idle = self._recorder.is_waiting_for_cell and len(self._published_ranks) == self._spec.process_count
        self._idle_since = min(self._idle_since, now) if is_idle else math.inf
        if limit is not None and now - self._idle_since > limit and self._stopper is None:
            self.reason = f"The ranks were stopped after {duration(limit)} without a cell (idle_timeout_seconds)."
            self._stop("user")

    def _handle_requests(self) -> None:
        for request in self._control.read():
            if request["type"] == "cancel":
                if self.stopped_by in ("", "user"):
                    self.reason = self.reason or str(request.get("reason") or "")
                self._stop("user", now=bool(request.get("now")))
            elif request["type"] == "stacks":
                self._hangs.collect_stacks("request")
            elif request["type"] == "profile":
                if self._profiles is None:
                    from distdl_jupyter.supervisor.profiler import ProfileCollector  # lazy: most jobs have no profile

                    self._profiles = ProfileCollector(self._run, self._recorder)
                self._profiles.request(request.get("steps"), request.get("ranks"))
        if self._profiles is not None:
            self._profiles.tick()

    def _check_limits(self) -> None:
        """Stop a job after its time limit, or if its folder was deleted, because its ranks cannot write then."""
        if self._recorder.view.state is State.QUEUED:
            self._clock.restart()  # time in a queue is not run time
        reason = self._clock.get_limit_reason()
        if reason and self._stopper is None and self._hangs.ensure_stacks("time"):
            self.reason = reason
            self._stop("time")
        if self._stopper is None and self._recorder.is_deleted:
            path = self._recorder.folder.path
            self.reason = f"The job was stopped because its folder was deleted while it ran: {path}."
            self._stop("time")
            print(self.reason, file=sys.stderr)  # noqa: T201 - into supervisor.log, which may still be open

    def _check_hang(self) -> None:
        self._hangs.tick()
        if self._hangs.hang_reason and self._stopper is None:
            self.reason, self.stopped_by = self._hangs.hang_reason, "hang"
            self._stopper = stop.Stopper(stop.AFTER_HANG_STEPS, self._run.signal)

    def _check_failure(self) -> None:
        if self._stopper is None and any(map(has_failed, self._recorder.view.ranks)):
            self._stopper = stop.Stopper(stop.AFTER_FAILURE_STEPS, self._run.signal)
            self.stopped_by = "failure"
            all_ranks = self._recorder.view.ranks
            if len(all_ranks) > 1 and any(may_concern_collectives(rank.error) for rank in all_ranks):
                self._hangs.collect_stacks("failure")  # the stacks of the other ranks explain the failure

    def _stop(self, by: str, *, now: bool = False) -> None:
        """Begin to stop the ranks, or escalate a pending stop to KILL."""
        if by == "user" and self.stopped_by in ("", "user"):
            self._recorder.record_state(State.CANCELING)
        if self._stopper is None:
            # A queued job has no process yet that could save its work.
            is_gentle = not now and not self._run.why_waiting()
            steps = stop.build_gentle_steps(self._spec.stop_grace_seconds) if is_gentle else stop.IMMEDIATE_STEPS
            self._stopper, self.stopped_by = stop.Stopper(steps, self._run.signal), by
        elif now:
            self._stopper.escalate()

    def _tick_stopper(self) -> None:
        if self._stopper is not None:
            # A rank that has exited can no longer report what it was waiting for.
            is_waiting = self._hangs.pending_reason == "failure" and self._recorder.view.stop is not None
            if not is_waiting and (sent := self._stopper.tick()) is not None:
                self._recorder.write("stop", **sent, by=self.stopped_by, remaining=sorted(self._running))
            self._give_up_unkillable(self._stopper)

    def _give_up_unkillable(self, stopper: stop.Stopper) -> None:
        """Stop waiting for processes that survive KILL for some time, because they may never exit."""
        for process in self._unkillable.find_new(stopper):
            ranks = self._recorder.view.ranks
            rank = next((rank for rank in ranks if rank.pid == process.pid and process.host in ("", rank.host)), None)
            location = f"{process.pid} on {process.host}" if process.host else str(process.pid)
            subject, pronoun = f"Process {location}", "it"
            if rank is not None:
                subject, pronoun = f"Rank {rank.rank}", f"process {location}"
            summary = f"{subject} cannot be ended (state D)"
            cause = "is blocked in the kernel, for example by a disk, a network folder or a device"
            text = f"{summary}: {pronoun} {cause}, and ends when that responds."
            self._recorder.record_notice(RunNotice("warning", text, "unkillable"))
            if self.stopped_by == "user":
                self.reason = self.reason or f"{summary}."
            if rank is not None and rank.rank in self._running:
                self._record_exit(Exit(rank.rank, None, "KILL", f"{summary}."))

    def drain(self) -> None:
        """Read the pending output of the ranks, and log how they ended."""
        self._reader.drain()
        by_ending: dict[str, list[int]] = {}
        for rank in self._recorder.view.ranks:
            ending = f"ended by SIG{rank.signal}" if rank.signal else f"exited with code {rank.code}"
            by_ending.setdefault("lost" if is_lost(rank) else ending, []).append(rank.rank)
        parts = [f"{ranks(numbers)} {ending}" for ending, numbers in by_ending.items()]
        if len(by_ending) == 1:
            parts = [f"{plural(len(self._recorder.view.ranks), 'rank')} {ending}" for ending in by_ending]
        self._recorder.log("; ".join(parts))

    def stop_leftovers(self) -> None:
        """Stop processes that the ranks left behind, because no process may outlive its job."""
        known_count, leftover_count = len(self._unkillable), self._unkillable.count_killable()
        if not leftover_count:
            return
        stopper, pause = stop.Stopper(stop.LEFTOVER_STEPS, self._run.signal), _TICK_SECONDS
        while self._unkillable.count_killable():
            stopper.tick()
            self._give_up_unkillable(stopper)
            deadline = time.monotonic() + pause
            while (remaining := deadline - time.monotonic()) > 0:
                self._reader.run(remaining)
            pause = min(2 * pause, stop.POLL_SECONDS)
        count = leftover_count - (len(self._unkillable) - known_count)
        if count > 0:
            text = f"{plural(count, 'process')} that ranks had left running {'was' if count == 1 else 'were'} stopped."
            self._recorder.note("warning", text, "left-behind")

    def close(self) -> None:
        """Read the remaining output and close the reader."""
        self._reader.finish()
