"""Detects stalls and hangs of one attempt, and collects the stacks of its ranks.

``HangDetector`` does not stop ranks. It sets ``hang_reason``, and the attempt stops itself. ``StallTimer``
has no side effects. ``core.stacks`` is imported lazily, because most jobs never need it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.base import Run
from distdl_jupyter.core import files
from distdl_jupyter.core.events import State
from distdl_jupyter.core.failure import RankView, has_failed, may_concern_collectives
from distdl_jupyter.core.humanize import date_and_clock, duration
from distdl_jupyter.node.processes import StackDump
from distdl_jupyter.supervisor.recorder import EventRecorder

if TYPE_CHECKING:
    from distdl_jupyter.core.stacks import StackSnapshot

#: Environment variable with the stall limit in seconds (0: never); by default the limit follows the job's pace.
STALL_VARIABLE = "DISTDL_STALL_SECONDS"
#: The minimum stall limit in seconds, and the limit while ranks import or the job's pace is unknown.
_MIN_SECONDS, _DEFAULT_SECONDS = 60.0, 300.0
#: Timeout in seconds for stacks that are requested because a rank failed. Then the other ranks are stopped.
_FAILURE_SECONDS = 1.5
#: The stall limit as a multiple of the longest pause so far.
_PAUSE_FACTOR = 5.0


class HangDetector:
    """Detects stalls and hangs of one attempt. Call ``tick`` periodically.

    Stacks are requested from all ranks, polled for a few seconds, then saved and recorded. A request made while another
    is pending shares its responses.
    """

    def __init__(self, run: Run, recorder: EventRecorder) -> None:
        self._run = run
        self._recorder = recorder
        limit = None
        with contextlib.suppress(KeyError, ValueError):
            limit = max(0.0, float(os.environ[STALL_VARIABLE]))
        self._timer = StallTimer(time.monotonic(), limit)
        self._stalled_at: float | None = None
        #: The reason for the pending request of stacks ("" if none is pending), its deadline, and its responses so far.
        self.pending_reason = ""
        self._deadline = 0.0
        self._dumps: dict[int, StackDump] = {}
        #: The last collected stacks.
        self._stacks: StackSnapshot | None = None
        self._collected_for = ""
        #: The reason to stop the job, or "" while it may run.
        self.hang_reason = ""
        recorder.take_activity()  # discard activity of an earlier attempt

    def tick(self) -> None:
        """Process new activity and stacks, and report stalls and hangs."""
        snapshot, now = self._poll_stacks(), time.monotonic()
        for rank, is_past_imports in self._recorder.take_activity().items():
            self._timer.on_activity(now, rank, is_past_imports=is_past_imports)
        if not self._is_activity_expected:
            self._timer.reset(now)
        if self._stalled_at is not None:
            if self._timer.measure_idle_time(now) < now - self._stalled_at:
                self._stalled_at = None
                if self._recorder.view.stall is not None:
                    self._recorder.write("stall", since=None, ranks=[], text="")
        elif self._timer.is_stalled(now):
            self._stalled_at = now
            self.collect_stacks("stall")
        if snapshot is not None and self._stalled_at is not None and self._recorder.view.stall is None:
            self._report_stall(now, snapshot)
        self._check_hang(now)

    @property
    def _is_activity_expected(self) -> bool:
        """Whether activity is expected: not while queued, stopping, in torch.compile or waiting for a cell."""
        recorder = self._recorder
        return (
            bool(recorder.connected_ranks)
            and recorder.view.state in (State.STARTING, State.RUNNING)
            and recorder.view.stop is None
            and not recorder.is_waiting_for_cell
            and not any(rank.compiling for rank in recorder.view.ranks)
        )

    def _report_stall(self, now: float, snapshot: StackSnapshot) -> None:
        # The text omits the duration, which would soon be outdated; ``since`` is the start time.
        text, outliers = f"No progress{f': {snapshot.sentence}' if snapshot.sentence else ''}.", list(snapshot.outliers)
        if snapshot.finding is not None:
            text, outliers = f"No progress. {snapshot.explanation}", list(snapshot.finding.ranks)
        since = round(time.time() - self._timer.measure_idle_time(now), 3)
        table = [asdict(row) for row in snapshot.collectives]
        self._recorder.write("stall", since=since, ranks=outliers, text=text, collectives=table)

    def _check_hang(self, now: float) -> None:
        timeout = self._recorder.spec.hang_timeout_seconds
        if timeout is None or self.hang_reason or not self._is_activity_expected:
            return
        if self._timer.measure_idle_time(now) > self._timer.extend_limit(timeout) and self.ensure_stacks("hang"):
            location = f": {self._stacks.sentence}" if self._stacks is not None and self._stacks.sentence else ""
            reason = f"no rank made progress for {duration(timeout)} (hang_timeout_seconds){location}"
            self.hang_reason = f"The job was stopped because {reason}."
            if self._stacks is not None and self._stacks.finding is not None:
                self.hang_reason += f" {self._stacks.explanation}"

    def collect_stacks(self, reason: str) -> None:
        """Request the stacks of all ranks. If a request is pending, only a more serious reason replaces its reason."""
        seconds = _FAILURE_SECONDS if reason == "failure" else self._run.stacks_seconds
        if self.pending_reason:
            self._deadline = min(self._deadline, time.monotonic() + seconds)
            if self.pending_reason == "request" or reason == "failure":
                self.pending_reason = reason
            return
        self.pending_reason, self._deadline, self._dumps = reason, time.monotonic() + seconds, {}
        if not self._run.why_no_stacks():
            self._run.request_stacks()

    def ensure_stacks(self, reason: str) -> bool:
        """Collect stacks before the ranks are stopped. Return whether they are collected or unavailable."""
        if self._recorder.connected_ranks and self._collected_for != reason:
            self._collected_for = reason
            self.collect_stacks(reason)
        return not self._recorder.connected_ranks or not self.pending_reason

    def finish(self) -> None:
        """Save the stacks collected so far, after the last rank has ended."""
        if self.pending_reason:
            self._record_stacks()

    def _poll_stacks(self) -> StackSnapshot | None:
        """Receive responses. Once all have arrived or the timeout has passed, save, record and return them."""
        if not self.pending_reason:
            return None
        self._dumps.update(self._run.take_stacks())
        running = {rank.rank for rank in self._recorder.view.ranks if rank.status != "ended"}
        if running - self._dumps.keys() and not self._run.why_no_stacks() and time.monotonic() < self._deadline:
            return None
        return self._record_stacks()

    def _record_stacks(self) -> StackSnapshot:
        from distdl_jupyter.core import stacks

        reason, self.pending_reason = self.pending_reason, ""
        folder, recorder = self._recorder.folder, self._recorder
        number = max([0, *stacks.list_numbers(folder), *(record.number for record in recorder.view.stacks)]) + 1
        code, data = stacks.read_payload(folder), self._build_stacks_data(reason)
        texts = [(dump["text"], dump["about"]) for dump in data["ranks"].values()]
        data["sources"] = recorder.redactor.mask_data(stacks.read_sources(folder, code, texts))
        with contextlib.suppress(OSError):  # if the disk is full, still record where the ranks are
            path = stacks.get_path(folder, number)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            files.replace_file(path, json.dumps(data))
        snapshot = self._stacks = stacks.parse_snapshot(number, data, code)
        finding = None if snapshot.finding is None else asdict(snapshot.finding)
        ranks = {"ranks": sorted(snapshot.ranks), "missing": sorted(snapshot.missing)}
        table = [asdict(row) for row in snapshot.collectives]
        recorder.write("stacks", number=number, why=reason, **ranks, collectives=table, finding=finding)
        return snapshot

    def _build_stacks_data(self, reason: str) -> dict[str, Any]:
        """Return the content of the stacks file (see core.stacks), without source lines."""
        dumps: dict[str, Any] = {}
        collectives: dict[str, Any] = {}
        missing, ended = {}, {}
        for rank in self._recorder.view.ranks:
            key, dump = str(rank.rank), self._dumps.get(rank.rank)
            if dump is not None and dump.text:
                idle_seconds = self._timer.measure_rank_idle_time(rank.rank, time.monotonic())
                dumps[key] = {"text": dump.text, "about": dump.about, "pid": dump.about.get("pid"), "state": dump.state}
                dumps[key] |= {"host": rank.host, "step": rank.last_step}
                dumps[key]["silent"] = idle_seconds and round(idle_seconds, 1)
            elif rank.status == "ended":
                end_time = "" if rank.ended is None else date_and_clock(rank.ended)
                missing[key] = f"It ended at {end_time}." if end_time else "Its process has ended."
            else:
                missing[key] = dump.missing if dump is not None else self._run.why_no_stacks() or "No response in time."
            if rank.collectives:
                collectives[key] = rank.collectives
            elif dump is not None and dump.collectives:
                collectives[key] = {"operations": dump.collectives, "about": dump.about}
            if outcome := _describe_outcome(rank):
                ended[key] = outcome
        t = round(time.time(), 3)
        return {"t": t, "why": reason, "ranks": dumps, "missing": missing, "collectives": collectives, "ended": ended}


def _describe_outcome(rank: RankView) -> str:
    """Return the outcome of a rank for the table of collective operations, or "" while the rank runs."""
    if rank.ok:
        return "finished"
    if has_failed(rank):
        return "failed" if may_concern_collectives(rank.error) or rank.error is None else "raised"
    return "ended" if rank.status == "ended" else ""


class StallTimer:
    """Detects stalls: ``limit`` seconds without activity (None: derived from the job's pace; 0: never).

    Times are in seconds of any monotonic clock.
    """

    def __init__(self, now: float, limit: float | None = None) -> None:
        self._limit = limit
        self._since = now
        self._longest_pause: float | None = None
        self._last_activity: dict[int, float] = {}
        self._activity_count = 0
        #: Whether a rank has finished its imports, because it connected, printed or reported something.
        self.has_begun = False

    def on_activity(self, now: float, rank: int | None = None, *, is_past_imports: bool = True) -> None:
        """Record activity of a rank (default: of all ranks). ``is_past_imports`` is False if it may still import."""
        if self._activity_count and self.has_begun:
            self._longest_pause = max(self._longest_pause or 0.0, now - self._since)
        self._activity_count += 1
        self._since, self.has_begun = now, self.has_begun or is_past_imports
        if rank is not None:
            self._last_activity[rank] = now

    def reset(self, now: float) -> None:
        """Restart the idle timer, and exclude the current pause from the estimated pace."""
        self._since, self._activity_count = now, 0

    def measure_idle_time(self, now: float) -> float:
        """Return the seconds since any rank was active."""
        return max(0.0, now - self._since)

    def measure_rank_idle_time(self, rank: int, now: float) -> float | None:
        """Return the seconds since one rank was active, or None if it never was."""
        return max(0.0, now - self._last_activity[rank]) if rank in self._last_activity else None

    def extend_limit(self, seconds: float) -> float:
        """Return the limit ``seconds``, extended during imports, which a slow disk can delay."""
        return seconds if self.has_begun else max(seconds, _DEFAULT_SECONDS)

    @property
    def limit(self) -> float | None:
        """The seconds without activity that count as a stall, or None if stalls are not detected."""
        if self._limit is not None:
            return self.extend_limit(self._limit) if self._limit else None
        pause = self._longest_pause
        return _DEFAULT_SECONDS if pause is None else max(_MIN_SECONDS, _PAUSE_FACTOR * pause)

    def is_stalled(self, now: float) -> bool:
        """Return whether the limit is exceeded."""
        limit = self.limit
        return limit is not None and self.measure_idle_time(now) > limit
