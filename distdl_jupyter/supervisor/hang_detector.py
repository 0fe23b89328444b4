"""Detect stalls and hangs of one attempt, and collect the stacks of its ranks.

``HangDetector`` does not stop ranks: it sets ``hang``, and the attempt stops itself for that reason. ``StallTimer`` has
no side effects. ``core.stacks`` is imported lazily, because most jobs never need it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.base import Run
from distdl_jupyter.core import files
from distdl_jupyter.core.failure import RankView, concerns_collectives, has_failed
from distdl_jupyter.core.humanize import date_and_clock, duration
from distdl_jupyter.core.state import State
from distdl_jupyter.node.stacks import StackDump
from distdl_jupyter.supervisor.recorder import EventRecorder

if TYPE_CHECKING:
    from distdl_jupyter.core.stacks import Taken

#: Environment variable with the stall limit in seconds (0: never); by default the limit follows the job's pace.
VARIABLE = "DISTDL_STALL_SECONDS"
#: The minimum stall limit in seconds, and the limit while ranks import or the job's pace is unknown.
_SHORT, _UNKNOWN = 60.0, 300.0
#: Timeout in seconds for stacks that are requested because a rank failed; the other ranks are stopped after it.
_FAILURE_SECONDS = 1.5
#: The stall limit as a multiple of the longest pause so far.
_TIMES = 5.0


class HangDetector:
    """Detects stalls and hangs of one attempt. Call ``tick`` periodically."""

    def __init__(self, run: Run, recorder: EventRecorder) -> None:
        self._run = run
        self._recorder = recorder
        self._spec = recorder.spec
        self._timer = StallTimer(time.monotonic(), _limit())
        self._stacks: StackCollector | None = None
        self._collected_for = ""
        self._stalled_at: float | None = None
        #: Why the job must be stopped, "" while it may run.
        self.hang = ""
        recorder.take_activity()  # discard activity of an earlier attempt

    def collect_stacks(self, why: str) -> None:
        """Start collecting the stacks of all ranks."""
        if self._stacks is None:
            self._stacks = StackCollector(self._run, self._recorder, self._silence_of)
        self._stacks.request(why)

    @property
    def explains_failure(self) -> bool:
        """Whether stacks that explain a failure are pending. Ranks must not be stopped until they have arrived."""
        return self._stacks is not None and self._stacks.why == "failure"

    def explain_failure(self) -> None:
        """Collect the stacks of the other ranks if a rank failed in a collective operation."""
        ranks = self._recorder.view.ranks
        if len(ranks) > 1 and any(concerns_collectives(rank.error) for rank in ranks):
            self.collect_stacks("failure")

    def finish(self) -> None:
        """Save the stacks collected so far, after the last rank has ended."""
        if self._stacks is not None:
            self._stacks.finish()

    def stacks_collected(self, why: str) -> bool:
        """Collect stacks before the ranks are stopped. Return True once they are collected or unavailable."""
        if not self._recorder.connected:
            return True
        if self._collected_for != why:
            self._collected_for = why
            self.collect_stacks(why)
        return self._stacks is None or not self._stacks.why

    def tick(self) -> None:
        """Process new activity and stacks, and report stalls and hangs."""
        taken = self._stacks.tick() if self._stacks is not None else None
        now = time.monotonic()
        for rank, begins in self._recorder.take_activity().items():
            self._timer.on_activity(now, rank, begins=begins)
        if not self._is_expected:
            self._timer.pause(now)
        if self._stalled_at is not None:
            self._end_stall_on_activity(now)
        elif self._timer.stalled(now):
            self._stalled_at = now
            self.collect_stacks("stall")
        if taken is not None and self._stalled_at is not None and self._recorder.view.stall is None:
            self._report_stall(now, taken)
        self._notice_hang(now)

    @property
    def _is_expected(self) -> bool:
        """Whether activity is expected: not while queued, stopping, in torch.compile or waiting for a cell."""
        recorder = self._recorder
        return (
            bool(recorder.connected)
            and recorder.view.state in (State.STARTING, State.RUNNING)
            and recorder.view.stop is None
            and not recorder.waits_for_a_cell
            and not any(rank.is_compiling for rank in recorder.view.ranks)
        )

    def _end_stall_on_activity(self, now: float) -> None:
        assert self._stalled_at is not None
        if self._timer.silence(now) < now - self._stalled_at:
            self._stalled_at = None
            if self._recorder.view.stall is not None:
                self._recorder.write("stall", since=None, ranks=[], text="")

    def _report_stall(self, now: float, taken: Taken) -> None:
        silence = self._timer.silence(now)
        differ, where = list(taken.differ), taken.sentence
        # The text has no duration, which would soon be outdated; ``since`` has the time.
        text = f"No progress{f': {where}' if where else ''}."
        if taken.finding is not None:
            text, differ = f"No progress. {taken.explanation}", list(taken.finding.ranks)
        table = [asdict(row) for row in taken.collectives]
        self._recorder.write("stall", since=round(time.time() - silence, 3), ranks=differ, text=text, collectives=table)

    def _notice_hang(self, now: float) -> None:
        timeout = self._spec.hang_timeout_seconds
        if timeout is None or self.hang or not self._is_expected:
            return
        if self._timer.silence(now) <= self._timer.effective(timeout):
            return
        if self.stacks_collected("hang"):
            last = self._stacks.last if self._stacks is not None else None
            where = last.sentence if last is not None else ""
            self.hang = (
                f"The job was stopped because no rank made progress for {duration(timeout)} "
                f"(hang_timeout_seconds){f': {where}' if where else ''}."
            )
            if last is not None and last.finding is not None:
                self.hang += f" {last.explanation}"

    def _silence_of(self, rank: int) -> float | None:
        return self._timer.silence_of(rank, time.monotonic())


def _limit() -> float | None:
    try:
        return max(0.0, float(os.environ[VARIABLE]))
    except (KeyError, ValueError):
        return None


class StallTimer:
    """Detects stalls: ``limit`` seconds without activity (None: derived from the job's pace; 0: never).

    Times are in seconds of any monotonic clock.
    """

    def __init__(self, now: float, limit: float | None = None) -> None:
        self._limit = limit
        self._since = now
        self._longest: float | None = None
        self._last: dict[int, float] = {}
        self._signs = 0
        #: Whether a rank has finished its imports, because it connected, printed or reported something.
        self.begun = False

    def on_activity(self, now: float, rank: int | None = None, *, begins: bool = True) -> None:
        """Record activity of a rank (None: of all ranks); ``begins`` is False if the rank may still be importing."""
        if self._signs and self.begun:
            self._longest = max(self._longest or 0.0, now - self._since)
        self._signs += 1
        self._since, self.begun = now, self.begun or begins
        if rank is not None:
            self._last[rank] = now

    def pause(self, now: float) -> None:
        """Restart the inactivity count, and exclude the current pause from the estimated pace."""
        self._since, self._signs = now, 0

    def silence(self, now: float) -> float:
        """Return the seconds since any rank was active."""
        return max(0.0, now - self._since)

    def silence_of(self, rank: int, now: float) -> float | None:
        """Return the seconds since one rank was active, None if it never was."""
        return max(0.0, now - self._last[rank]) if rank in self._last else None

    def effective(self, seconds: float) -> float:
        """Return the limit that applies now: ``seconds``, or longer during imports, which a slow disk can delay."""
        return seconds if self.begun else max(seconds, _UNKNOWN)

    @property
    def limit(self) -> float | None:
        """The seconds without activity that count as a stall, None for never."""
        if self._limit is not None:
            return self.effective(self._limit) if self._limit else None
        return _UNKNOWN if self._longest is None else max(_SHORT, _TIMES * self._longest)

    def stalled(self, now: float) -> bool:
        """Return whether the limit is exceeded."""
        limit = self.limit
        return limit is not None and self.silence(now) > limit


class StackCollector:
    """Requests the stacks of all ranks, polls for a few seconds, then saves and records them.

    A request made while another is pending shares its responses. ``silence_of`` returns the seconds since a rank was
    last active, None if it never was.
    """

    def __init__(self, run: Run, recorder: EventRecorder, silence_of: Callable[[int], float | None]) -> None:
        self._folder = recorder.folder
        self._run = run
        self._recorder = recorder
        self._silence_of = silence_of
        #: The reason for the pending request, "" if none is pending.
        self.why = ""
        self._until = 0.0
        self._answers: dict[int, StackDump] = {}
        #: The last collected stacks.
        self.last: Taken | None = None

    def request(self, why: str) -> None:
        """Request the stacks of all ranks. If a request is pending, only a more serious reason replaces its reason."""
        if self.why:
            if why == "failure":
                self._until = min(self._until, time.monotonic() + _FAILURE_SECONDS)
            self.why = why if self.why == "request" or why == "failure" else self.why
            return
        seconds = _FAILURE_SECONDS if why == "failure" else self._run.stacks_seconds
        self.why, self._until = why, time.monotonic() + seconds
        self._answers = {}
        if not self._run.no_stacks():
            self._run.ask_stacks()

    def tick(self) -> Taken | None:
        """Receive responses. Once all have arrived or the timeout has passed, save, record and return them."""
        if not self.why:
            return None
        self._answers.update(self._run.stacks())
        missing = [rank for rank in self._running() if rank.rank not in self._answers]
        if missing and not self._run.no_stacks() and time.monotonic() < self._until:
            return None
        return self.finish()

    def finish(self) -> Taken | None:
        """Save, record and return the responses received so far, or return None if no request is pending."""
        if not self.why:
            return None
        why, self.why = self.why, ""
        self.last = self._keep(why)
        return self.last

    def _running(self) -> list[RankView]:
        return [rank for rank in self._recorder.view.ranks if rank.status != "ended"]

    def _keep(self, why: str) -> Taken:
        from distdl_jupyter.core import stacks

        known = [*stacks.numbers(self._folder), *(earlier.number for earlier in self._recorder.view.stacks)]
        number = max(known, default=0) + 1
        data, code = self._data(why), stacks.payload(self._folder)
        with contextlib.suppress(OSError):  # if the disk is full, still record where the ranks are
            path = stacks.path(self._folder, number)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            files.keep(path, json.dumps(data))
        taken = stacks.taken(number, data, code)
        finding = None if taken.finding is None else asdict(taken.finding)
        ranks = {"ranks": sorted(taken.ranks), "missing": sorted(taken.missing)}
        table = [asdict(row) for row in taken.collectives]
        self._recorder.write("stacks", number=number, why=why, **ranks, collectives=table, finding=finding)
        return taken

    def _data(self, why: str) -> dict[str, Any]:
        from distdl_jupyter.core import stacks

        ranks, answers = self._recorder.view.ranks, self._answers
        with_text = {rank: answer for rank, answer in answers.items() if answer.text}
        dumps = {str(rank): self._of(rank, answer) for rank, answer in sorted(with_text.items())}
        missing = {str(rank.rank): self._reason(rank) for rank in ranks if rank.rank not in with_text}
        texts = [(dump["text"], dump["about"]) for dump in dumps.values()]
        lines = stacks.sources(self._folder, stacks.payload(self._folder), texts)
        collectives = {
            str(rank): {"operations": answer.collectives, "about": answer.about}
            for rank, answer in answers.items()
            if answer.collectives
        } | {str(rank.rank): rank.collectives for rank in ranks if rank.collectives}
        return {
            "t": round(time.time(), 3),
            "why": why,
            "ranks": dumps,
            "missing": missing,
            "sources": self._recorder.redactor.data(lines),
            "collectives": collectives,
            "ended": {str(rank.rank): how for rank in ranks if (how := _ending(rank))},
        }

    def _of(self, rank: int, answer: StackDump) -> dict[str, Any]:
        view, silent = self._recorder.view.ranks[rank], self._silence_of(rank)
        return {
            "text": answer.text,
            "host": view.host,
            "pid": answer.about.get("pid"),
            "state": answer.state,
            "step": view.last_step,
            "silent": None if silent is None else round(silent, 1),
            "about": answer.about,
        }

    def _reason(self, rank: RankView) -> str:
        if rank.status == "ended":
            return "Its process has ended." if rank.ended is None else f"It ended at {date_and_clock(rank.ended)}."
        if (answer := self._answers.get(rank.rank)) is not None:
            return answer.missing
        return self._run.no_stacks() or "No response in time."


def _ending(rank: RankView) -> str:
    """Return the outcome of a rank for the table of collective operations, "" while the rank runs."""
    if rank.ok:
        return "finished"
    if has_failed(rank):
        return "failed" if concerns_collectives(rank.error) or rank.error is None else "raised"
    return "ended" if rank.status == "ended" else ""
