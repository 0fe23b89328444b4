"""One attempt at a job: its ranks from their start until no process of them is left.

A job has one attempt, and one more for every restart. What the attempt decides it decides on the view that its events
fold to.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.base import Exit
from distdl_jupyter.core.failure import crashed_at_the_end, has_failed
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.words import duration, plural
from distdl_jupyter.supervisor import stopping, telling
from distdl_jupyter.supervisor.lookout import Lookout
from distdl_jupyter.supervisor.pump import Pump

if TYPE_CHECKING:
    from distdl_jupyter.backends.base import Backend
    from distdl_jupyter.clusters.base import Run, Unkillable
    from distdl_jupyter.core.rank import RankView
    from distdl_jupyter.supervisor.control import Inbox
    from distdl_jupyter.supervisor.ledger import Ledger

_TICK = 0.1
#: Seconds of KILL after which it is asked why processes live on, and between two looks at the process table then.
_OUTLIVES, _LOOK = 5.0, 1.0
#: Seconds after which ranks that never meet are taken to be training all the same.
_MEET_PATIENCE = 15.0
#: The same once one of them has printed something.
_PRINT_PATIENCE = 2.0


class Clock:
    """How long the job has run, in seconds, all its attempts together; waiting for a turn is no running.

    ``limit`` is its ``max_run_duration_seconds``.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._began = time.monotonic()
        self._before = 0.0

    def restart(self) -> None:
        """Count this attempt from now on."""
        self._began = time.monotonic()

    def keep(self) -> None:
        """Begin another attempt; the seconds so far stay counted."""
        self._before = self.seconds
        self._began = time.monotonic()

    def began_at(self, epoch: float) -> None:
        """Count from an earlier moment, in seconds since the epoch."""
        self._began = time.monotonic() - max(0.0, time.time() - epoch)

    @property
    def seconds(self) -> float:
        """Seconds until now."""
        return self._before + time.monotonic() - self._began

    def over(self) -> str:
        """Return why the job has to end now, "" before its limit is reached."""
        if self._limit is None or self.seconds <= self._limit:
            return ""
        limit = duration(self._limit)
        return f"The job was stopped after {limit}, its max_run_duration_seconds; raise it to run longer."


class Attempt:
    """Watches a started run, obeys wishes, and ends all of it when one rank fails."""

    def __init__(
        self, run: Run, ledger: Ledger, backend: Backend, inbox: Inbox, clock: Clock, *, nonce: str, wake: int
    ) -> None:
        self._run = run
        self._ledger = ledger
        self._spec = ledger.spec
        self._backend = backend
        self._inbox = inbox
        self._clock = clock
        self._pump = Pump(run.streams, nonce, ledger, safe_end=ledger.redactor.safe_end)
        self._pump.watch(wake)
        ledger.overheard = run.overheard
        self._lookout = Lookout(run, ledger)
        self._living = {rank.rank for rank in ledger.view.ranks if rank.status != "ended"}
        self._all_greeted_at: float | None = None
        self._printed_at: float | None = None
        self._stopper: stopping.Stopper | None = None
        #: Processes that KILL does not reach, what seemed so when it was last looked, and when the next look is due.
        self._stuck: set[Unkillable] = set()
        self._seen_stuck: set[Unkillable] = set()
        self._next_look = 0.0
        #: Why it was stopped: user, time (and whatever else ends a job for good), hang, failure, or "" while it was
        #: not; and a sentence for it.
        self.stopped_by = ""
        self.reason = ""

    def watch(self) -> None:
        """Return when every rank has ended."""
        run, pump = self._run, self._pump
        while self._living:
            pump.run(_TICK)
            exits = run.poll()
            if run.replaces:
                pump.add(run.streams)
            self._let_go()
            if exits:
                pump.drain()
                for exit_ in exits:
                    # A run that was found again tells every end, also those that are written down.
                    if exit_.rank in self._living:
                        self._ended(exit_)
            self.note_remarks()
            self._follow_phases()
            self._obey()
            self._keep_time()
            self._notice_hang()
            self._notice_deletion()
            self._notice_failure()
            self._tick_stopper()
            if self._stopper is not None:
                self._notice_unkillable(self._stopper)
            self._ledger.tick()
        if (why := run.gave_up()) and self.stopped_by in ("", "failure"):
            self.stopped_by, self.reason = "time", why

    def _let_go(self) -> None:
        """Write down which processes ended while the job goes on; one that is replaced is a restart of its rank."""
        for gone in self._run.gone():
            self._pump.drain()
            rank = self._ledger.view.ranks[gone.exit.rank]
            if gone.replaced:
                self._ledger.replace(rank, gone.pid, telling.replaced(rank, gone.exit))
            else:
                self._ledger.write("rank", rank=rank.rank, status="waiting", evidence=gone.exit.evidence)

    def _ended(self, exit_: Exit) -> None:
        self._living.discard(exit_.rank)
        self._ledger.settle()
        evidence = exit_.evidence
        if exit_.code == 0 and not evidence and self._ledger.view.ranks[exit_.rank].ok is None:
            evidence = self._done_all_the_same(exit_.rank)
        self._ledger.write("rank", rank=exit_.rank, status="ended", code=exit_.code, signal=exit_.signal,
                           evidence=evidence)  # fmt: skip
        rank = self._ledger.view.ranks[exit_.rank]
        if has_failed(rank):
            self._look_into(rank)
        if crashed_at_the_end(rank):
            self._ledger.note("info", f"The process of rank {exit_.rank} crashed (SIG{exit_.signal}) while it shut "
                              "down. Its work was done and its result is saved.", "crash-at-end")  # fmt: skip

    def _look_into(self, rank: RankView) -> None:
        """Write down what the rank's log tells of its failure."""
        from distdl_jupyter.supervisor import postmortem  # most jobs need it never

        if (error := postmortem.error_of(JobFolder(self._ledger.place), rank)) is not None:
            self._ledger.write("result", rank=rank.rank, ok=False, repr="", bytes=0, error=error)

    def _done_all_the_same(self, rank: int) -> str:
        """Return how a rank without a report of its result has come to its end all the same, "" when it has not."""
        if rank in self._ledger.replaced_programs:
            return "Another program took its place (os.exec)."
        return "Its value is here." if JobFolder(self._ledger.place).result(rank).exists() else ""

    def _follow_phases(self) -> None:
        ledger, total = self._ledger, self._ledger.view.process_count
        if ledger.view.state is State.QUEUED:
            why = self._run.waiting()
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
            ledger.phase("rendezvous", telling.waiting_for(waiting))
        else:
            ledger.phase("start", f"{greeted} of {plural(total, 'process')}")

    def _trains_anyway(self) -> bool:
        if self._ledger.reported:
            return True
        if self._all_greeted_at is None:
            return False
        if not self._backend.meets:
            return True
        now = time.monotonic()
        if self._printed_at is None and any(rank.lines > rank.error_lines for rank in self._ledger.view.ranks):
            self._printed_at = now
        printed = self._printed_at is not None and now - self._printed_at > _PRINT_PATIENCE
        return not self._ledger.meeting and (printed or now - self._all_greeted_at > _MEET_PATIENCE)

    def _obey(self) -> None:
        for wish in self._inbox.take():
            if wish["type"] == "cancel":
                self.stop("user", now=bool(wish.get("now")))
            elif wish["type"] == "stacks":
                self._lookout.ask("asked")

    def _keep_time(self) -> None:
        if self._ledger.view.state is State.QUEUED:
            self._clock.restart()  # waiting for a turn is no running
        if self._stopper is None and (over := self._clock.over()) and self._lookout.taken_for("time"):
            self.reason = over
            self.stop("time")

    def _notice_deletion(self) -> None:
        """Nobody could see or cancel a job without a folder, and its ranks have nowhere to write."""
        if self._stopper is None and self._ledger.is_deleted:
            self.reason = f"The job was stopped because its folder was deleted while it ran: {self._ledger.place}."
            self.stop("time")
            print(self.reason, file=sys.stderr)  # noqa: T201 - into supervisor.log, if anybody still reads that

    def _notice_hang(self) -> None:
        self._lookout.tick()
        if self._lookout.hang and self._stopper is None:
            self.reason, self.stopped_by = self._lookout.hang, "hang"
            self._stopper = stopping.Stopper(stopping.after_hang(), self._run.signal)

    def _notice_failure(self) -> None:
        # One that may still be replaced has not failed for good before its end was told.
        final = (rank for rank in self._ledger.view.ranks if rank.status == "ended" or not self._run.replaces)
        if self._stopper is None and any(map(has_failed, final)):
            self._stopper = stopping.Stopper(stopping.after_failure(), self._run.signal)
            self.stopped_by = "failure"

    def stop(self, by: str, *, now: bool = False) -> None:
        """Begin to stop the ranks, or hurry a stop that is under way."""
        if by == "user" and self.stopped_by in ("", "user"):
            self._ledger.state(State.CANCELING)
        if self._stopper is None:
            # In a queue there is nobody yet who could save anything.
            gentle = not now and not self._run.waiting()
            steps = stopping.gentle(self._spec.stop_grace_seconds) if gentle else stopping.at_once()
            self._stopper, self.stopped_by = stopping.Stopper(steps, self._run.signal), by
        elif now:
            self._stopper.hurry()

    def _tick_stopper(self) -> None:
        sent = self._stopper.tick() if self._stopper is not None else None
        if sent is not None:
            self._ledger.write("stop", signal=sent.signal, by=self.stopped_by, next=sent.next, next_in=sent.next_in,
                               kill_in=sent.kill_in, remaining=sorted(self._living))  # fmt: skip

    def _notice_unkillable(self, stopper: stopping.Stopper) -> None:
        """Wait no longer for processes that KILL has not reached for some time: they may never end."""
        if stopper.killing < _OUTLIVES or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK
        found = set(self._run.unkillable())
        # A process that reads from a disk is in that state for a moment, too.
        for one in sorted(found & self._seen_stuck - self._stuck):
            self._stuck.add(one)
            self._tell_unkillable(one)
        self._seen_stuck = found

    def _tell_unkillable(self, one: Unkillable) -> None:
        ranks = self._ledger.view.ranks
        rank = next((rank for rank in ranks if rank.pid == one.pid and one.host in ("", rank.host)), None)
        where = f" on {one.host}" if one.host else ""
        who, what = f"Process {one.pid}{where}", "it"
        if rank is not None:
            who, what = f"Rank {rank.rank}", f"process {one.pid}{where}"
        says = f"{who} cannot be ended (state D)"
        waits = "waits in the kernel, as for a disk, a network folder or a device, and ends when that answers"
        text = f"{says}: {what} {waits}."
        self._ledger.note("warning", text, "unkillable")
        self._ledger.say(text)
        if self.stopped_by == "user":
            self.reason = self.reason or f"{says}."
        if rank is not None and rank.rank in self._living:
            self._ended(Exit(rank.rank, None, "KILL", f"{says}."))

    # end --------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Hear the last words of the ranks, and take in what the run still has to say."""
        self._pump.drain()
        self._ledger.say(telling.endings(self._ledger.view.ranks))

    def note_remarks(self) -> None:
        """Write down what the run wants the user to read."""
        for remark in self._run.remarks():
            self._ledger.note(remark.level, remark.text, remark.code)
            self._ledger.say(remark.text)  # in its place in time too

    def end_leftovers(self) -> None:
        """End what ranks have left running: nothing of a job may stay alive."""
        told, left = len(self._stuck), self._left()
        if not left:
            return
        stopper = stopping.Stopper((stopping.Step("TERM", 1.0), stopping.Step("KILL", 1.0)), self._run.signal)
        pause = _TICK
        while self._left():
            stopper.tick()
            self._notice_unkillable(stopper)
            self._read(pause)
            pause = min(2 * pause, _LOOK)
        ended = left - (len(self._stuck) - told)
        if ended > 0:
            self._ledger.note("warning", f"{plural(ended, 'process')} that ranks had left running "
                              f"{'was' if ended == 1 else 'were'} ended.", "left-behind")  # fmt: skip

    def _left(self) -> int:
        """Return how many processes of the job live that can be ended."""
        alive = len(self._run.alive())
        return alive - len(self._stuck.intersection(self._run.unkillable())) if alive and self._stuck else alive

    def _read(self, seconds: float) -> None:
        """Read what comes within so many seconds, however often something comes."""
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            self._pump.run(rest)

    def close(self) -> None:
        """Read what is left to read."""
        self._pump.finish()
