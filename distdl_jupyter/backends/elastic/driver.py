"""Leads an elastic job: fills its seats with processes, lets them meet, replaces what fails, follows its hosts.

All processes that live meet whenever one of them has gone or another one has come: each asks for its numbers, and when
all have asked, all are answered. Horovod lets a process ask when a collective breaks, and, once rank 0 has been told
that hosts come or go, at the next ``commit``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from distdl_jupyter.backends.elastic.meeting import Meeting
from distdl_jupyter.backends.elastic.words import Words
from distdl_jupyter.backends.elastic.workers import Workers
from distdl_jupyter.backends.elastic.world import Numbers, Seat, has_state, may_meet, numbered, offer
from distdl_jupyter.core.words import duration, plural, ranks

#: Seconds between two looks at the processes.
_TICK = 0.1
#: Seconds until a survivor shows, by asking, that it goes on. Code that is not elastic ends instead, and then the
#: first failure is the job's.
_REACTION = 5.0
#: Seconds after which rank 0 is told again that others wait.
_CALL_AGAIN = 5.0
#: What Horovod's processes take for "not part of the world".
_NOBODY = Numbers(-1, -1, -1, -1, -1, -1).answer()


class Hosts(Protocol):
    """Who is there now."""

    @property
    def hosts(self) -> Mapping[str, int]:
        """How many processes each host offers to run."""

    @property
    def lost(self) -> Mapping[str, str]:
        """Why hosts have gone that nobody had taken away, each one sentence."""


@dataclass(frozen=True, slots=True)
class Terms:
    """``least`` processes train; ``resets`` failures are made good; they have ``patience`` seconds to meet."""

    least: int
    resets: int
    patience: float

    @classmethod
    def of(cls, least: str, patience: str) -> Terms:
        """Return the terms of a command line, with the failures that the job's variables still let be made good."""
        most, used = (int(os.environ.get(name) or 0) for name in ("DISTDL_MAX_RESTARTS", "DISTDL_RESTART_COUNT"))
        return cls(int(least), max(0, most - used), float(patience))


@dataclass(slots=True)
class Failure:
    """A process that failed and was not told of yet."""

    seat: Seat
    pid: int
    code: int
    since: float


class Driver:
    """One elastic job. ``run`` returns when all of it has ended."""

    def __init__(self, seats: Sequence[Seat], terms: Terms, workers: Workers, words: Words) -> None:
        self._seats = seats
        self._terms = terms
        self._workers = workers
        self._words = words
        self._changed = threading.Condition()
        self._numbers: dict[int, Numbers] = {}
        self._round = 0
        self._resets = 0
        #: Seats whose process failed since the last meeting, and failures that were not told of yet.
        self._broken: set[int] = set()
        self._failures: list[Failure] = []
        self._told: set[int] = set()
        self._called = self._waiting = 0.0
        #: Whether rank 0 was told of hosts since the last meeting.
        self._summoned = False
        #: A process has finished its work; the job gives up, or somebody else ends it.
        self._finishing = self._giving_up = self._canceled = False
        self._lost: Mapping[str, str] = {}

    def cancel(self) -> None:
        """Replace nobody any more (called from a signal handler): somebody ends the processes."""
        self._canceled = True

    @property
    def _ending(self) -> bool:
        return self._finishing or self._giving_up or self._canceled

    def wake(self) -> None:
        """Look again at once."""
        with self._changed:
            self._changed.notify_all()

    def ask(self, key: str) -> bytes:
        """Return the numbers of the process at a seat when all have met (called by the server's threads)."""
        with self._changed:
            seat = next((one for one in self._seats if one.key == key), None)
            if seat is None:
                return _NOBODY
            seat.asks, now = True, self._round
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._round > now)
            numbers = self._numbers.get(seat.number)
            return _NOBODY if numbers is None else numbers.answer()

    def run(self, meeting: Meeting, hosts: Hosts, alive: Callable[[], bool]) -> int:
        """Lead the job to its end and return an exit code. ``alive`` says whether anybody still wants it."""
        with self._changed:
            while True:
                if not alive():
                    return 1  # nobody is left who would obey: the agents end what they have started
                # Hosts first: the end of a process on one that has gone is no failure.
                self._follow(hosts)
                self._reap()
                self._tell_failures()
                self._fill(meeting.variables)
                self._meet(meeting)
                self._keep_time()
                self._workers.press()
                if self._ending and not any(seat.alive for seat in self._seats):
                    return self._close()
                self._changed.wait(_TICK)

    # ends -------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for number, pid, code in self._workers.ended():
            seat = self._seats[number]
            met = seat.rank is not None
            seat.leave()
            if self._ending or code == 0:
                self._end(seat, code, met=met)
            elif not seat.offered:
                self._words.left(number, pid, self._lost.get(seat.host, f"Its host {seat.host} is no longer offered."))
            else:
                self._failed(Failure(seat, pid, code, time.monotonic()))

    def _end(self, seat: Seat, code: int, *, met: bool) -> None:
        if self._finishing and not met:
            return  # it came too late to take part
        self._finishing = self._finishing or (code == 0 and not self._giving_up)
        self._say_ended(seat, code, "stopped" if self._giving_up else "")

    def _say_ended(self, seat: Seat, code: int | None, evidence: str = "") -> None:
        if seat.number not in self._told:
            self._told.add(seat.number)
            self._words.ended(seat.number, code, evidence)

    def _failed(self, failure: Failure) -> None:
        """One failure lets others fail: those that fail together count once, one that fails again counts again."""
        number = failure.seat.number
        if not self._broken or number in self._broken:
            self._resets += 1
        self._broken.add(number)
        self._failures.append(failure)
        if self._resets > self._terms.resets or (self._round and not has_state(self._seats)):
            self._give_up()

    def _tell_failures(self) -> None:
        """Let others take the places of those that failed, as soon as it is clear that the job goes on."""
        goes_on = self._round == 0 or any(seat.asks and seat.rank is not None for seat in self._seats)
        for failure in self._failures:
            if goes_on or time.monotonic() - failure.since > _REACTION:
                self._words.replaced(failure.seat.number, failure.pid, failure.code)
                failure.since = 0.0
        self._failures = [failure for failure in self._failures if failure.since]

    def _give_up(self, text: str = "", missing: Sequence[Seat] = ()) -> None:
        """End the job as failed. With a sentence: it is lost for want of the ``missing`` ranks."""
        self._giving_up = True
        if text:
            self._words.gave_up(text)
        for seat in missing:
            self._say_ended(seat, None, text)
        for failure in self._failures:
            self._say_ended(failure.seat, failure.code)
        self._failures = []
        self._end_all()

    def _end_all(self) -> None:
        for seat in self._seats:
            if seat.alive:
                self._workers.end(seat.number)

    def _close(self) -> int:
        for failure in self._failures:
            self._say_ended(failure.seat, failure.code)
        for seat in self._seats:
            self._say_ended(seat, 0, "No process was left of it at the end.")
        return 0 if self._finishing else 1

    # hosts ------------------------------------------------------------------------------------

    def _follow(self, hosts: Hosts) -> None:
        if self._ending:
            return
        changed, self._lost = offer(self._seats, hosts.hosts), hosts.lost
        for host in dict.fromkeys(seat.host for seat in changed):
            self._tell_host(host, [seat for seat in changed if seat.host == host])
        for seat in changed:
            if seat.alive and not seat.offered and seat.rank is None:
                self._workers.end(seat.number)
        self._called = 0.0 if changed else self._called

    def _tell_host(self, host: str, seats: Sequence[Seat]) -> None:
        if self._round == 0:
            return
        came, lost = seats[0].offered, self._lost.get(host)
        if lost and not came:
            self._words.note("warning", lost, "host-lost")
            return
        text = (
            f"{plural(len(seats), 'process')} more can run on {host}: {ranks([seat.number for seat in seats])} "
            "will join at the next commit."
            if came
            else f"{plural(len(seats), 'process')} less can run on {host}: {ranks([seat.number for seat in seats])} "
            "will leave at the next commit."
        )
        self._words.note("info", text, "host-came" if came else "host-left")

    def _fill(self, variables: Mapping[str, str]) -> None:
        """Start a process at every seat that is offered and empty."""
        pending = {failure.seat.number for failure in self._failures}
        for seat in self._seats:
            if seat.offered and not seat.alive and not self._ending and seat.number not in pending:
                own = {
                    "HOROVOD_HOSTNAME": seat.host,
                    "HOROVOD_LOCAL_RANK": str(seat.local_rank),
                    "DISTDL_RESTART_COUNT": str(self._resets),
                }
                self._workers.start(seat.number, {**variables, **own})
                seat.alive = True

    # meetings ---------------------------------------------------------------------------------

    def _meet(self, meeting: Meeting) -> None:
        if self._ending:
            self._turn_away()
        elif not may_meet(self._seats, self._terms.least):
            self._call(meeting)
        elif self._round and not any(seat.offered and seat.rank is not None for seat in self._seats):
            self._give_up("The hosts that had trained have all gone at once, and what they had learnt with them.",
                          [seat for seat in self._seats if not seat.offered])  # fmt: skip
        elif self._for_nothing() and self._resets > self._terms.resets:
            self._give_up("The processes met anew although none had failed, more often than max_restarts allows: "
                          "the same error of Horovod comes back, and the log shows it.", self._seats[:1])  # fmt: skip
        else:
            self._answer(meeting)

    def _for_nothing(self) -> bool:
        """Count, as a failure, a meeting of the same processes that nobody's end and no host has called for."""
        same = {seat.number for seat in self._seats if seat.alive and seat.offered} == set(self._numbers)
        for_nothing = same and not self._broken and not self._summoned
        self._resets += for_nothing
        return for_nothing

    def _turn_away(self) -> None:
        """End those that would wait for ever: the job is about to end."""
        for seat in self._seats:
            if seat.alive and (seat.asks or (self._finishing and seat.rank is None)):
                self._workers.end(seat.number)

    def _answer(self, meeting: Meeting) -> None:
        for seat in self._seats:
            if seat.alive and not seat.offered:
                self._workers.end(seat.number)
        coming = [seat for seat in self._seats if seat.alive and seat.offered]
        meeting.clear()
        self._numbers = numbered(coming)
        for seat in self._seats:
            seat.asks = False
            seat.rank = self._numbers[seat.number].rank if seat.number in self._numbers else None
        self._round += 1
        self._summoned = False
        self._broken.clear()
        self._tell_world(len(coming))
        self._changed.notify_all()

    def _tell_world(self, size: int) -> None:
        if self._round > 1:
            text = f"{plural(size, 'process')} train on together." if size > 1 else "One process trains on alone."
        elif size < len(self._seats):
            text = f"The job begins with {plural(size, 'process')} of {len(self._seats)}."
        else:
            return
        self._words.note("info", text, f"world-{self._round}")

    def _call(self, meeting: Meeting) -> None:
        """Let rank 0 know that somebody is to join or leave, once all who join are ready to."""
        members = [seat for seat in self._seats if seat.alive and seat.rank is not None]
        fresh = [seat for seat in self._seats if seat.alive and seat.rank is None]
        wanted = any(not seat.offered for seat in members) or (bool(fresh) and all(seat.asks for seat in fresh))
        due = time.monotonic() - self._called > _CALL_AGAIN
        if wanted and due and not any(seat.asks for seat in members):
            self._called, self._summoned = time.monotonic(), True
            for seat in members:
                if seat.rank == 0:
                    meeting.tell_of_hosts(seat.key)

    def _keep_time(self) -> None:
        """Give up when processes wait for others longer than is allowed."""
        stuck = [seat for seat in self._seats if seat.asks and (seat.rank is not None or not self._round)]
        offered = [seat for seat in self._seats if seat.offered]
        short = len(offered) < self._terms.least
        if self._ending or not (stuck or short):
            self._waiting = 0.0
            return
        now = time.monotonic()
        self._waiting = self._waiting or now
        if now - self._waiting < self._terms.patience:
            return
        waited = duration(self._terms.patience)
        if short:
            self._give_up(
                f"For {waited} there was room for {plural(len(offered), 'process')} only, and the job needs at least "
                f"{self._terms.least}.", [seat for seat in self._seats if not seat.offered])  # fmt: skip
        else:
            late = [seat for seat in self._seats if seat.alive and not seat.asks]
            self._give_up(
                f"The processes did not meet within {waited}: {ranks([seat.number for seat in late])} did not call "
                "hvd.init().", late)  # fmt: skip
