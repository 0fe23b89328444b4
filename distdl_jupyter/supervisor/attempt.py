"""One attempt of a job, from the start of its ranks until all their processes have exited.

A job has one attempt, and one more for every restart. All decisions are based on the view folded from the events.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter.backends.base import Backend
from distdl_jupyter.clusters.base import Exit, Run, Unkillable
from distdl_jupyter.core.failure import RankView, crashed_at_the_end, has_failed, is_lost
from distdl_jupyter.core.humanize import duration, plural, ranks
from distdl_jupyter.core.state import State
from distdl_jupyter.supervisor import stop
from distdl_jupyter.supervisor.control import ControlReader
from distdl_jupyter.supervisor.hang_detector import HangDetector
from distdl_jupyter.supervisor.log_reader import LogReader
from distdl_jupyter.supervisor.recorder import EventRecorder

if TYPE_CHECKING:
    from distdl_jupyter.supervisor.profiler import ProfileCollector

_TICK = 0.1
#: Seconds between two checks of the job's files in the local queues.
_KEEP_SLOTS = 1.0
#: Seconds after which ranks that never joined a process group are assumed to be training.
_MEET_TIMEOUT = 15.0
#: Seconds after a rank's first output after which ranks are assumed to be training.
_PRINT_TIMEOUT = 2.0
#: Maximum number of failed ranks whose log tail is read, because reading a long log takes time.
_POSTMORTEMS = 16


class RunClock:
    """Elapsed run time of the job in seconds, over all attempts, without time in a queue.

    ``limit`` is its ``max_run_duration_seconds``.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._began = time.monotonic()
        self._before = 0.0

    def restart(self) -> None:
        """Start the time of this attempt now."""
        self._began = time.monotonic()

    def keep(self) -> None:
        """Add the time of the current attempt to the total, before another attempt."""
        self._before = self.seconds
        self._began = time.monotonic()

    def began_at(self, epoch: float) -> None:
        """Start the time of this attempt at an earlier moment, in seconds since the epoch."""
        self._began = time.monotonic() - max(0.0, time.time() - epoch)

    @property
    def seconds(self) -> float:
        """Run time so far in seconds."""
        return self._before + time.monotonic() - self._began

    def over(self) -> str:
        """Return why the job must stop now, "" before its limit is reached."""
        if self._limit is None or self.seconds <= self._limit:
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
        self._reader = LogReader(run.streams, nonce, recorder, safe_end=recorder.redactor.safe_end)
        self._reader.watch(wake)
        self._hangs = HangDetector(run, recorder)
        self._profiles: ProfileCollector | None = None
        #: Persistent ranks whose address is published in the job's folder, and since when all are idle (inf: not idle).
        self._served: set[int] = set()
        self._idle_since = math.inf
        self._running = {rank.rank for rank in recorder.view.ranks if rank.status != "ended"}
        self._all_connected_at: float | None = None
        self._printed_at: float | None = None
        self._slots_kept_at = -math.inf
        self._stopper: stop.Stopper | None = None
        #: Number of ranks whose log tail was read.
        self._postmortems = 0
        self._unkillable = stop.UnkillableProcesses(run)
        #: What stopped the attempt: "user", "time" (or another final reason), "hang" or "failure"; "" while it runs.
        #: ``reason`` is a message for the user.
        self.stopped_by = ""
        self.reason = ""

    def watch(self) -> None:
        """Return when every rank has ended."""
        steps: tuple[Callable[[], object], ...] = (
            self._read_output,  # before the exits, whose meaning depends on what the ranks reported
            self._record_exits,  # before the requests: a rank that has exited on its own is not stopped
            self.record_notices,
            self._take_samples,
            self._keep_slots,
            self._follow_phases,
            self._serve_ranks,
            # Reasons to stop the ranks, highest priority first: a user's request, a limit, a hang, a failure. A failure
            # is last because each of the others also causes failures.
            self._obey_requests,
            self._notice_time_limit,
            self._notice_hang,
            self._notice_deletion,
            self._notice_failure,
            self._tick_stopper,
            self._tick_profile,
            self._recorder.tick,  # last: held-back events follow everything that this tick has recorded
        )
        while self._running:
            for step in steps:
                step()
        self._hangs.finish()
        if self._profiles is not None:
            self._profiles.finish()

    def _read_output(self) -> None:
        self._reader.run(_TICK)
        self._pass_launcher_output()

    def _pass_launcher_output(self) -> None:
        for text in self._recorder.take_launcher_output():
            self._run.on_launcher_output(text)

    def _record_exits(self) -> None:
        if exits := self._run.poll():
            self._reader.drain({exit_.rank for exit_ in exits})
            self._pass_launcher_output()
            with self._recorder.together():
                for exit_ in exits:
                    # A reattached run returns every exit, including those already recorded.
                    if exit_.rank in self._running:
                        self._record_exit(exit_)

    def _take_samples(self) -> None:
        self._recorder.take_samples(self._run.samples())

    def _tick_profile(self) -> None:
        if self._profiles is not None:
            self._profiles.tick()

    def _keep_slots(self) -> None:
        if (now := time.monotonic()) - self._slots_kept_at >= _KEEP_SLOTS:
            self._slots_kept_at = now
            self._run.keep_slots()

    def _record_exit(self, exit_: Exit) -> None:
        self._running.discard(exit_.rank)
        self._recorder.flush()
        evidence = exit_.evidence
        if exit_.code == 0 and not evidence and self._recorder.view.ranks[exit_.rank].ok is None:
            evidence = self._evidence_of_success(exit_.rank)
        end = {"code": exit_.code, "signal": exit_.signal, "evidence": evidence}
        self._recorder.write("rank", rank=exit_.rank, status="ended", **end)
        rank = self._recorder.view.ranks[exit_.rank]
        if has_failed(rank):
            self._record_postmortem(rank)
        if crashed_at_the_end(rank):
            crash = f"The process of rank {exit_.rank} crashed (SIG{exit_.signal}) during shutdown."
            self._recorder.note("info", f"{crash} Its work was done and its result is saved.", "crash-at-end")

    def _record_postmortem(self, rank: RankView) -> None:
        """Record the failure cause from a rank's log; later failures mostly refer to the first ones."""
        from distdl_jupyter.supervisor import postmortem  # lazy: rarely needed

        if not postmortem.is_in_log(rank) or self._postmortems >= _POSTMORTEMS:
            return
        self._postmortems += 1
        if (error := postmortem.error_of(self._recorder.folder, rank)) is not None:
            self._recorder.write("result", rank=rank.rank, ok=False, repr="", bytes=0, error=error)

    def _evidence_of_success(self, rank: int) -> str:
        """Return why a rank without a reported result still counts as successful, "" if it does not."""
        if rank in self._recorder.replaced_programs:
            return "Another program replaced it (os.exec)."
        return "Its result is saved." if self._recorder.folder.result(rank).exists() else ""

    def _follow_phases(self) -> None:
        recorder, total = self._recorder, self._recorder.view.process_count
        if recorder.view.state is State.QUEUED:
            why = self._run.waiting()
            if why:
                recorder.phase("start", why)
            else:
                recorder.state(State.STARTING)
        if recorder.view.state is not State.STARTING:
            return
        connected, ready = len(recorder.connected), len(recorder.ready)
        if connected == total and self._all_connected_at is None:
            self._all_connected_at = time.monotonic()
        if ready == total or self._is_training_anyway():
            recorder.phase("train")
            recorder.state(State.RUNNING)
        elif recorder.in_rendezvous:
            waiting = [rank for rank in range(total) if rank not in recorder.ready | recorder.in_rendezvous]
            recorder.phase("rendezvous", _waiting_for(waiting))
        else:
            recorder.phase("start", f"{connected} of {plural(total, 'process')}")

    def _is_training_anyway(self) -> bool:
        if self._recorder.reported:
            return True
        if self._all_connected_at is None:
            return False
        if not self._backend.meets:
            return True
        now = time.monotonic()
        if self._printed_at is None and any(rank.lines > rank.error_lines for rank in self._recorder.view.ranks):
            self._printed_at = now
        printed = self._printed_at is not None and now - self._printed_at > _PRINT_TIMEOUT
        return not self._recorder.in_rendezvous and (printed or now - self._all_connected_at > _MEET_TIMEOUT)

    def _obey_requests(self) -> None:
        for request in self._control.read():
            if request["type"] == "cancel":
                if self.stopped_by in ("", "user"):
                    self.reason = self.reason or str(request.get("reason") or "")
                self._stop("user", now=bool(request.get("now")))
            elif request["type"] == "stacks":
                self._hangs.collect_stacks("request")
            elif request["type"] == "profile":
                self._profile(request)

    def _profile(self, request: dict[str, Any]) -> None:
        if self._profiles is None:
            from distdl_jupyter.supervisor.profiler import ProfileCollector  # lazy: most jobs are never profiled

            self._profiles = ProfileCollector(self._run, self._recorder)
        self._profiles.request(request.get("steps"), request.get("ranks"))

    def _notice_time_limit(self) -> None:
        if self._recorder.view.state is State.QUEUED:
            self._clock.restart()  # time in a queue is not run time
        if self._stopper is None and (over := self._clock.over()) and self._hangs.stacks_collected("time"):
            self.reason = over
            self._stop("time")

    def _serve_ranks(self) -> None:
        """Publish persistent ranks as soon as they listen, and stop them after too long without a request."""
        if self._spec.kind != "ranks":
            return
        for rank in sorted(self._recorder.ready - self._served):
            self._served.add(rank)
            self._run.expose_endpoint(rank)
        now, limit = time.monotonic(), self._spec.idle_timeout_seconds
        idle = self._recorder.waits_for_a_cell and len(self._served) == self._spec.process_count
        self._idle_since = min(self._idle_since, now) if idle else math.inf
        if limit is not None and now - self._idle_since > limit and self._stopper is None:
            self.reason = f"The ranks were stopped after {duration(limit)} without a cell (idle_timeout_seconds)."
            self._stop("user")

    def _notice_deletion(self) -> None:
        """Stop a job whose folder was deleted: it cannot be listed or canceled, and its ranks cannot write."""
        if self._stopper is None and self._recorder.is_deleted:
            path = self._recorder.folder.path
            self.reason = f"The job was stopped because its folder was deleted while it ran: {path}."
            self._stop("time")
            print(self.reason, file=sys.stderr)  # noqa: T201 - into supervisor.log, which may still be open

    def _notice_hang(self) -> None:
        self._hangs.tick()
        if self._hangs.hang and self._stopper is None:
            self.reason, self.stopped_by = self._hangs.hang, "hang"
            self._stopper = stop.Stopper(stop.AFTER_HANG, self._run.signal)

    def _notice_failure(self) -> None:
        if self._stopper is None and any(map(has_failed, self._recorder.view.ranks)):
            self._stopper = stop.Stopper(stop.AFTER_FAILURE, self._run.signal)
            self.stopped_by = "failure"
            self._hangs.explain_failure()

    def _stop(self, by: str, *, now: bool = False) -> None:
        """Begin to stop the ranks, or escalate a pending stop to KILL."""
        if by == "user" and self.stopped_by in ("", "user"):
            self._recorder.state(State.CANCELING)
        if self._stopper is None:
            # A queued job has no process yet that could save its work.
            gentle = not now and not self._run.waiting()
            steps = stop.gentle(self._spec.stop_grace_seconds) if gentle else stop.AT_ONCE
            self._stopper, self.stopped_by = stop.Stopper(steps, self._run.signal), by
        elif now:
            self._stopper.escalate()

    def _tick_stopper(self) -> None:
        # A rank that has exited can no longer report what it was waiting for.
        waits = self._hangs.explains_failure and self._recorder.view.stop is not None
        sent = self._stopper.tick() if self._stopper is not None and not waits else None
        if sent is not None:
            fields = dataclasses.asdict(sent)
            self._recorder.write("stop", **fields, by=self.stopped_by, remaining=sorted(self._running))
        if self._stopper is not None:
            self._notice_unkillable(self._stopper)

    def _notice_unkillable(self, stopper: stop.Stopper) -> None:
        """Stop waiting for processes that survive KILL for some time: they may never exit."""
        for process in self._unkillable.poll_new(stopper):
            self._record_unkillable(process)

    def _record_unkillable(self, process: Unkillable) -> None:
        ranks = self._recorder.view.ranks
        rank = next((rank for rank in ranks if rank.pid == process.pid and process.host in ("", rank.host)), None)
        where = f" on {process.host}" if process.host else ""
        who, what = f"Process {process.pid}{where}", "it"
        if rank is not None:
            who, what = f"Rank {rank.rank}", f"process {process.pid}{where}"
        summary = f"{who} cannot be ended (state D)"
        waits = (
            "is blocked in the kernel, for example by a disk, a network folder or a device, and ends when that responds"
        )
        text = f"{summary}: {what} {waits}."
        self._recorder.note("warning", text, "unkillable")
        self._recorder.log(text)
        if self.stopped_by == "user":
            self.reason = self.reason or f"{summary}."
        if rank is not None and rank.rank in self._running:
            self._record_exit(Exit(rank.rank, None, "KILL", f"{summary}."))

    # end --------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Read the pending output of the ranks, and log how they ended."""
        self._reader.drain()
        self._recorder.log(_endings(self._recorder.view.ranks))

    def record_notices(self) -> None:
        """Record the notices of the run for the user."""
        for notice in self._run.notices():
            self._recorder.record_notice(notice)

    def end_leftovers(self) -> None:
        """Stop processes that the ranks left behind: no process may outlive its job."""
        known, left = len(self._unkillable), self._unkillable.killable()
        if not left:
            return
        stopper = stop.Stopper(stop.LEFT_BEHIND, self._run.signal)
        pause = _TICK
        while self._unkillable.killable():
            stopper.tick()
            self._notice_unkillable(stopper)
            self._read(pause)
            pause = min(2 * pause, stop.POLL_SECONDS)
        ended = left - (len(self._unkillable) - known)
        if ended > 0:
            text = f"{plural(ended, 'process')} that ranks had left running {'was' if ended == 1 else 'were'} stopped."
            self._recorder.note("warning", text, "left-behind")

    def _read(self, seconds: float) -> None:
        """Read output for this many seconds, even if some arrives earlier."""
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            self._reader.run(rest)

    def close(self) -> None:
        """Read the remaining output and close the reader."""
        self._reader.finish()


# messages -------------------------------------------------------------------------------------


def _endings(all_ranks: Sequence[RankView]) -> str:
    """Return how the ranks' processes ended, grouped by exit: "4 ranks ended with code 0"."""
    by_ending: dict[str, list[int]] = {}
    for rank in all_ranks:
        by_ending.setdefault(_ending(rank), []).append(rank.rank)
    if len(by_ending) == 1:
        return f"{plural(len(all_ranks), 'rank')} {next(iter(by_ending))}"
    return "; ".join(f"{ranks(numbers)} {how}" for how, numbers in by_ending.items())


def _waiting_for(ranks: list[int]) -> str:
    """Return which ranks the others wait for, "" for none."""
    if not ranks:
        return ""
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"waiting for rank{'s' if len(ranks) > 1 else ''} {shown}"


def _ending(rank: RankView) -> str:
    if is_lost(rank):
        return "lost"
    return f"ended by SIG{rank.signal}" if rank.signal else f"ended with code {rank.code}"
