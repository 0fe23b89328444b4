"""Watching one attempt for progress: tells of stalls, ends hangs, has stacks taken where they explain what is wrong.

It stops nothing itself: ``hang`` is the sentence with which the attempt is to be stopped.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.words import count, duration, ranks
from distdl_jupyter.supervisor.progress import Progress

if TYPE_CHECKING:
    from distdl_jupyter.clusters.base import Run
    from distdl_jupyter.core.events import Event
    from distdl_jupyter.core.stacks import Taken
    from distdl_jupyter.supervisor.ledger import Ledger
    from distdl_jupyter.supervisor.stacks import Gathering

#: Seconds of silence that make a stall, instead of the job's own pace; 0: never.
VARIABLE = "DISTDL_STALL_SECONDS"
_SIGNS = frozenset(("metric", "progress", "log", "mark", "rank", "result", "restart"))
#: What libraries print while they wait in vain, which is no sign of progress.
_WARNINGS = ("waiting for remainder of ranks", "Missing ranks:", "Stalled ranks:", "[missing ranks:",
             '(marked by "!") is stalled', "Watchdog caught collective operation timeout")  # fmt: skip


class Lookout:
    """``ledger`` is to let it hear every event; ``tick`` is called all the time."""

    def __init__(self, run: Run, ledger: Ledger) -> None:
        self._run = run
        self._ledger = ledger
        self._spec = ledger.spec
        self._progress = Progress(time.monotonic(), _limit())
        self._gathering: Gathering | None = None
        self._asked_for = ""
        self._stalled_at: float | None = None
        #: Why the job is to be stopped, "" while it is not.
        self.hang = ""
        ledger.heard = self.hear

    def hear(self, event: Event) -> None:
        """Take what a rank has said for a sign that it goes on."""
        if event["type"] in _SIGNS and event.get("rank") is not None and not _is_warning(event):
            begins = event["type"] != "rank" or event.get("status") == "ready"
            self._progress.sign(time.monotonic(), event["rank"], begins=begins)

    def ask(self, why: str) -> None:
        """Have stacks taken."""
        if self._gathering is None:
            from distdl_jupyter.supervisor.stacks import Gathering  # most jobs are never asked

            self._gathering = Gathering(JobFolder(self._ledger.place), self._run, self._ledger, self._silence_of)
        self._gathering.ask(why)

    def taken_for(self, why: str) -> bool:
        """Have stacks taken before something that ends the ranks; say whether they are there, or cannot be had."""
        if not self._ledger.greeted:
            return True
        if self._asked_for != why:
            self._asked_for = why
            self.ask(why)
        return self._gathering is None or not self._gathering.busy

    def tick(self) -> None:
        """Do what is due."""
        taken = self._gathering.tick() if self._gathering is not None else None
        now = time.monotonic()
        if not self._is_expected:
            self._progress.rest(now)
        if self._stalled_at is not None:
            self._follow_stall(now)
        elif self._progress.stalled(now):
            self._stalled_at = now
            self.ask("stall")
        if taken is not None and self._stalled_at is not None and self._ledger.view.stall is None:
            self._tell(now, taken)
        self._notice_hang(now)

    @property
    def _is_expected(self) -> bool:
        """Whether ranks have begun and have something to do: no queue, no stop, no wait for a user's next cell."""
        ledger = self._ledger
        return (
            bool(ledger.greeted)
            and ledger.view.state in (State.STARTING, State.RUNNING)
            and ledger.view.stop is None
            and not ledger.waits_for_a_cell
        )

    def _follow_stall(self, now: float) -> None:
        assert self._stalled_at is not None
        if self._progress.silence(now) < now - self._stalled_at:
            self._stalled_at = None
            if self._ledger.view.stall is not None:
                self._ledger.write("stall", since=None, ranks=[], text="")

    def _tell(self, now: float, taken: Taken) -> None:
        silence = self._progress.silence(now)
        differ, where = self._explained(taken)
        text = f"No progress for {duration(silence)}{f': {where}' if where else ''}."
        self._ledger.write("stall", since=round(time.time() - silence, 3), ranks=differ, text=text)

    def _explained(self, taken: Taken) -> tuple[list[int], str]:
        """Return the ranks that differ from the others, and who stands where."""
        if taken.ranks:
            return list(taken.differ), taken.sentence
        return self._behind()

    def _behind(self) -> tuple[list[int], str]:
        """Tell ranks apart by their last steps, where no stacks can be had."""
        steps = {one.rank: one.last_step for one in self._ledger.view.ranks if one.last_step is not None}
        if len(set(steps.values())) < 2:
            return [], ""
        last = min(steps.values())
        behind = [rank for rank, step in steps.items() if step == last]
        return behind, f"{ranks(behind)} reported step {count(last)} last, others step {count(max(steps.values()))}"

    def _notice_hang(self, now: float) -> None:
        timeout = self._spec.hang_timeout_seconds
        if timeout is None or self.hang or not self._is_expected:
            return
        if self._progress.silence(now) <= self._progress.patience(timeout):
            return
        if self.taken_for("hang"):
            last = self._gathering.last if self._gathering is not None else None
            where = self._explained(last)[1] if last is not None else ""
            self.hang = (
                f"The job was stopped, because no rank made progress for {duration(timeout)}, its hang_timeout_seconds"
                f"{f': {where}' if where else ''}."
            )

    def _silence_of(self, rank: int) -> float | None:
        return self._progress.silence_of(rank, time.monotonic())


def _limit() -> float | None:
    try:
        return max(0.0, float(os.environ[VARIABLE]))
    except (KeyError, ValueError):
        return None


def _is_warning(event: Event) -> bool:
    """Say whether a log event holds nothing but a library's words about ranks that it waits for."""
    if event["type"] != "log":
        return False
    lines = str(event.get("text", "")).splitlines()
    return any(mark in line for line in lines for mark in _WARNINGS) and len(lines) < 20
