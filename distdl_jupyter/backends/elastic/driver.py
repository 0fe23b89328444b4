"""The driver of an elastic job: starts a process in every slot, completes the rendezvous, replaces what fails.

A rendezvous round begins whenever a process has gone or another one has come: each asks for its rank, and when all have
asked, all are answered. Horovod lets a process ask when a collective breaks, and, once rank 0 has been notified that
hosts change, at the next ``commit``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, SlotInfo

from distdl_jupyter.backends.elastic.messages import ProcessExit
from distdl_jupyter.backends.elastic.slots import Slot, assign, can_meet, has_state, offer
from distdl_jupyter.core.humanize import duration, plural, ranks

if TYPE_CHECKING:
    from distdl_jupyter.backends.elastic.messages import Supervisor
    from distdl_jupyter.backends.elastic.rendezvous import ElasticRendezvous

#: Seconds between two looks at the processes.
_POLL = 0.1
#: Seconds until a survivor shows, by asking, that it goes on. Code that is not elastic ends instead, and then the
#: first failure is the job's.
_REACTION = 5.0
#: Seconds after which rank 0 is notified again that others wait.
_NOTIFY_EVERY = 5.0
#: Seconds between TERM and KILL.
_GRACE = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """``min_size`` processes train, ``max_resets`` failures are made good, a rendezvous takes ``timeout`` seconds."""

    min_size: int
    max_resets: int
    timeout: float

    @classmethod
    def of(cls, min_size: str, timeout: str) -> Limits:
        """Return the limits of a command line; the job's variables say how many failures can still be made good."""
        most, used = (int(os.environ.get(name) or 0) for name in ("DISTDL_MAX_RESTARTS", "DISTDL_RESTART_COUNT"))
        return cls(int(min_size), max(0, most - used), float(timeout))


@dataclass(slots=True)
class Failure:
    """A process that failed, ``since`` then on the monotonic clock, and was not reported yet."""

    slot: Slot
    pid: int
    exit: ProcessExit
    since: float


class Driver:
    """One elastic job. ``run`` returns when all of it has ended."""

    def __init__(self, slots: Sequence[Slot], limits: Limits, supervisor: Supervisor) -> None:
        self._slots = slots
        self._limits = limits
        self._supervisor = supervisor
        self._changed = threading.Condition()
        self._assigned: dict[int, SlotInfo] = {}
        self._round = 0
        self._resets = 0
        #: Slots whose process failed since the last round, and failures that were not reported yet.
        self._failed: set[int] = set()
        self._failures: list[Failure] = []
        #: Ranks whose final exit was reported.
        self._reported: set[int] = set()
        #: When rank 0 was last notified, and since when processes wait; 0 for never.
        self._notified_at = self._waiting_since = 0.0
        #: Whether rank 0 was notified since the last round.
        self._notified = False
        #: A process has finished its work; the job gives up.
        self._finishing = self._giving_up = False
        self._lost: Mapping[str, str] = {}

    @property
    def _ending(self) -> bool:
        return self._finishing or self._giving_up or self._supervisor.canceled

    def wake(self) -> None:
        """Look again at once."""
        with self._changed:
            self._changed.notify_all()

    def assignment(self, key: str) -> bytes:
        """Return rank and sizes of the process in a slot when all have met (called by the server's threads)."""
        with self._changed:
            slot = next((slot for slot in self._slots if slot.key == key), None)
            found = INVALID_SLOT_INFO  # what Horovod's processes take for "not in this job"
            if slot is not None:
                slot.ready, now = True, self._round
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._round > now)
                found = self._assigned.get(slot.number, found)
            return str(found.to_response_string()).encode()

    def run(self, rendezvous: ElasticRendezvous) -> int:
        """Drive the job to its end and return an exit code."""
        with self._changed:
            while True:
                if not self._supervisor.connected:
                    return 1  # the agents end what they have started
                # Hosts first: the exit of a process on one that is gone is no failure.
                self._update_hosts()
                self._reap()
                self._report_failures()
                self._start_processes(rendezvous.variables)
                self._meet(rendezvous)
                self._check_timeout()
                self._kill_overdue()
                if self._ending and not any(slot.alive for slot in self._slots):
                    return self._finish()
                self._changed.wait(_POLL)

    # exits ------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for number, pid, exit_ in self._supervisor.exits():
            slot = self._slots[number]
            had_rank = slot.rank is not None
            slot.clear()
            if self._ending or exit_.code == 0:
                self._end(slot, exit_, had_rank=had_rank)
            elif not slot.offered:
                reason = self._lost.get(slot.host, f"The host {slot.host} is no longer available.")
                self._supervisor.left(number, pid, reason)
            else:
                self._fail(Failure(slot, pid, exit_, time.monotonic()))

    def _end(self, slot: Slot, exit_: ProcessExit, *, had_rank: bool) -> None:
        if self._finishing and not had_rank:
            return  # it came too late to take part
        self._finishing = self._finishing or (exit_.code == 0 and not self._giving_up)
        self._report_end(slot, exit_, "stopped" if self._giving_up else "")

    def _report_end(self, slot: Slot, exit_: ProcessExit, evidence: str = "") -> None:
        if slot.number not in self._reported:
            self._reported.add(slot.number)
            self._supervisor.ended(slot.number, exit_, evidence)

    def _fail(self, failure: Failure) -> None:
        """One failure lets others fail: those that fail together count once, one that fails again counts again."""
        number = failure.slot.number
        if not self._failed or number in self._failed:
            self._resets += 1
        self._failed.add(number)
        self._failures.append(failure)
        if self._resets > self._limits.max_resets or (self._round and not has_state(self._slots)):
            self._give_up()

    def _report_failures(self) -> None:
        """Let others take the slots of those that failed, as soon as it is clear that the job goes on."""
        goes_on = self._round == 0 or any(slot.ready and slot.rank is not None for slot in self._slots)
        waiting = []
        for failure in self._failures:
            if goes_on or time.monotonic() - failure.since > _REACTION:
                self._supervisor.replaced(failure.slot.number, failure.pid, failure.exit)
            else:
                waiting.append(failure)
        self._failures = waiting

    def _give_up(self, text: str = "", missing: Sequence[Slot] = ()) -> None:
        """End the job as failed. With a sentence: it is lost for want of the ``missing`` ranks."""
        self._giving_up = True
        if text:
            self._supervisor.gave_up(text)
        for slot in missing:
            self._report_end(slot, ProcessExit(), text)
        self._report_pending()
        for slot in self._slots:
            self._terminate(slot)

    def _report_pending(self) -> None:
        for failure in self._failures:
            self._report_end(failure.slot, failure.exit)
        self._failures = []

    def _finish(self) -> int:
        self._report_pending()
        for slot in self._slots:
            self._report_end(slot, ProcessExit(0), "It had no process at the end of the job.")
        return 0 if self._finishing else 1

    # processes --------------------------------------------------------------------------------

    def _start_processes(self, variables: Mapping[str, str]) -> None:
        """Start a process in every slot that is offered and empty."""
        pending = {failure.slot.number for failure in self._failures}
        for slot in self._slots:
            if slot.offered and not slot.alive and not self._ending and slot.number not in pending:
                own = {
                    "HOROVOD_HOSTNAME": slot.host,
                    "HOROVOD_LOCAL_RANK": str(slot.local_rank),
                    "DISTDL_RESTART_COUNT": str(self._resets),
                }
                self._supervisor.start(slot.number, {**variables, **own})
                slot.alive = True

    def _terminate(self, slot: Slot) -> None:
        """Ask the process in a slot to end; ``_kill_overdue`` makes sure of it."""
        if slot.alive and slot.kill_at is None:
            slot.kill_at = time.monotonic() + _GRACE
            self._supervisor.signal(slot.number, "TERM")

    def _kill_overdue(self) -> None:
        for slot in self._slots:
            if slot.kill_at is not None and time.monotonic() > slot.kill_at:
                self._supervisor.signal(slot.number, "KILL")

    # hosts ------------------------------------------------------------------------------------

    def _update_hosts(self) -> None:
        if self._ending:
            return
        changed, self._lost = offer(self._slots, self._supervisor.hosts), self._supervisor.lost
        for host in dict.fromkeys(slot.host for slot in changed):
            self._note_host(host, [slot for slot in changed if slot.host == host])
        for slot in changed:
            if not slot.offered and slot.rank is None:
                self._terminate(slot)
        self._notified_at = 0.0 if changed else self._notified_at

    def _note_host(self, host: str, slots: Sequence[Slot]) -> None:
        if self._round == 0:
            return
        added, lost = slots[0].offered, self._lost.get(host)
        if lost and not added:
            self._supervisor.note("warning", lost, "host-lost")
            return
        change, action = ("more", "join") if added else ("less", "leave")
        self._supervisor.note(
            "info",
            f"{plural(len(slots), 'process')} {change} can run on {host}: {ranks([slot.number for slot in slots])} "
            f"will {action} at the next commit.",
            "host-came" if added else "host-left",
        )

    # rendezvous -------------------------------------------------------------------------------

    def _meet(self, rendezvous: ElasticRendezvous) -> None:
        if self._ending:
            self._turn_away()
        elif not can_meet(self._slots, self._limits.min_size):
            self._notify(rendezvous)
        elif self._round and not any(slot.offered and slot.rank is not None for slot in self._slots):
            self._give_up("All hosts that had trained were lost at once, so the training state is lost.",
                          [slot for slot in self._slots if not slot.offered])  # fmt: skip
        elif self._without_cause() and self._resets > self._limits.max_resets:
            self._give_up("The processes reconnected without a failure more often than max_restarts allows. "
                          "The log shows the error of Horovod that repeats.", self._slots[:1])  # fmt: skip
        else:
            self._begin_round(rendezvous)

    def _without_cause(self) -> bool:
        """Count, as a failure, a round of the same processes that no exit and no change of hosts has caused."""
        same = {slot.number for slot in self._slots if slot.alive and slot.offered} == set(self._assigned)
        found = same and not self._failed and not self._notified
        self._resets += found
        return found

    def _turn_away(self) -> None:
        """End those that would wait for ever, because the job is about to end."""
        for slot in self._slots:
            if slot.ready or (self._finishing and slot.rank is None):
                self._terminate(slot)

    def _begin_round(self, rendezvous: ElasticRendezvous) -> None:
        for slot in self._slots:
            if not slot.offered:
                self._terminate(slot)
        members = [slot for slot in self._slots if slot.alive and slot.offered]
        rendezvous.clear()
        self._assigned = assign(members)
        for slot in self._slots:
            slot.ready = False
            slot.rank = self._assigned[slot.number].rank if slot.number in self._assigned else None
        self._round += 1
        self._notified = False
        self._failed.clear()
        self._note_size(len(members))
        self._changed.notify_all()

    def _note_size(self, size: int) -> None:
        if self._round > 1:
            text = (
                f"{plural(size, 'process')} continue training together."
                if size > 1
                else "One process continues training alone."
            )
        elif size < len(self._slots):
            text = f"The job starts with {size} of {plural(len(self._slots), 'process')}."
        else:
            return
        self._supervisor.note("info", text, f"world-{self._round}")

    def _notify(self, rendezvous: ElasticRendezvous) -> None:
        """Notify rank 0 that others are to join or to leave, once all who join are ready to."""
        members = [slot for slot in self._slots if slot.alive and slot.rank is not None]
        fresh = [slot for slot in self._slots if slot.alive and slot.rank is None]
        needed = any(not slot.offered for slot in members) or (bool(fresh) and all(slot.ready for slot in fresh))
        due = time.monotonic() - self._notified_at > _NOTIFY_EVERY
        if needed and due and not any(slot.ready for slot in members):
            self._notified_at, self._notified = time.monotonic(), True
            for slot in members:
                if slot.rank == 0:
                    rendezvous.notify_hosts_updated(slot.key)

    def _check_timeout(self) -> None:
        """Give up when processes wait for others longer than is allowed."""
        waiting = any(slot.ready and (slot.rank is not None or not self._round) for slot in self._slots)
        offered = [slot for slot in self._slots if slot.offered]
        short = len(offered) < self._limits.min_size
        if self._ending or not (waiting or short):
            self._waiting_since = 0.0
            return
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since < self._limits.timeout:
            return
        waited = duration(self._limits.timeout)
        if short:
            self._give_up(
                f"For {waited} only {plural(len(offered), 'process')} could run, but the job needs at least "
                f"{self._limits.min_size}.", [slot for slot in self._slots if not slot.offered])  # fmt: skip
        else:
            absent = [slot for slot in self._slots if slot.alive and not slot.ready]
            self._give_up(
                f"The processes did not connect within {waited}: {ranks([slot.number for slot in absent])} did not "
                "call hvd.init().", absent)  # fmt: skip
