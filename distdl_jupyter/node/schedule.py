"""When each waiting job of a machine can start: by order, and past others only where it delays none of them. Pure.

The schedule is that of conservative backfill (Mu'alem and Feitelson, "Utilization, predictability, workloads, and user
runtime estimates in scheduling the IBM SP2 with backfilling", 2001): jobs are placed in their order, each at the
earliest moment at which all that it needs is free for as long as it may last, and no later one moves an earlier one.
What ends at an unknown time never ends for the schedule; a job that has to wait for such a one keeps aside what of its
need is free or gets free earlier, so that nothing which starts meanwhile can delay it whenever the other ends.

GPUs are single things with names; everything else (cores, bytes of memory) is an amount. Times are those of one clock.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

#: The seconds that what should have ended already is taken to go on.
OVERDUE = 5.0
#: What stands among the reasons of a job for which all is free, but kept for jobs before it.
ORDER = "order"


class Need(NamedTuple):
    """What a job holds while it runs: ``gpus`` of the devices ``among``, the first preferred, and amounts by name."""

    gpus: int = 0
    among: tuple[str, ...] = ()
    amounts: Mapping[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self.gpus or self.amounts)


class Held(NamedTuple):
    """What a running job holds. ``ends`` is None where nobody knows when."""

    job: str
    gpus: tuple[str, ...] = ()
    amounts: Mapping[str, float] = {}
    ends: float | None = None


class Waiting(NamedTuple):
    """A job that waits: ``number`` is its place by time, ``lasts`` how long it may run at most (None: unknown).

    One that is ``blocked`` cannot start yet whatever is free, and nothing is kept for it. ``limits`` are amounts of
    which there are never more, by name, as far as it knows any.
    """

    job: str
    user: str
    number: int
    need: Need
    priority: float = 0.0
    lasts: float | None = None
    blocked: bool = False
    limits: Mapping[str, float] = {}


class Place(NamedTuple):
    """A job's place in the queue, from 1, and when it can start (None: unknown); ``now`` with the ``gpus`` it gets.

    ``lacks`` are the names of what is not free now ("gpus", or that of an amount), or ``ORDER`` alone; ``holders`` the
    jobs that have it, or those before it for which it is kept. ``free`` is what is free of what it needs.
    """

    job: str
    place: int
    start: float | None
    now: bool
    gpus: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    free: Mapping[str, float] = {}


def ordered(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Return jobs in their order: by priority, then time, where a priority moves a job among its own user's alone.

    So the places by time belong to users, and each user's jobs take that user's places in the user's own order.
    """
    by_time = sorted(waiting, key=lambda one: (one.number, one.job))
    own: dict[str, list[Waiting]] = {}
    for one in by_time:
        own.setdefault(one.user, []).append(one)
    for jobs in own.values():
        jobs.sort(key=lambda one: -one.priority)
        jobs.reverse()
    return [own[one.user].pop() for one in by_time]


def schedule(
    held: Sequence[Held], waiting: Iterable[Waiting], limits: Mapping[str, float], now: float, until: str = ""
) -> list[Place]:
    """Return the place of each waiting job, in their order; with ``until`` those up to that job alone.

    ``limits`` say of each amount how much there is; what is not named there is unlimited.
    """
    jobs = ordered(waiting)
    own: dict[str, float] = {}
    for one in jobs:
        own |= {name: max(most, own.get(name, 0)) for name, most in one.limits.items()}
    limits = {**own, **limits}
    profile = _Profile(held, limits, now)
    found, before = list[Place](), list[Waiting]()
    for number, one in enumerate(jobs, 1):
        place = _placed(one, number, profile, held, limits, before)
        found.append(place)
        before.append(one)
        if one.job == until:
            break
    return found


def _placed(
    one: Waiting,
    number: int,
    profile: _Profile,
    held: Sequence[Held],
    limits: Mapping[str, float],
    before: Sequence[Waiting],
) -> Place:
    need, now = one.need, profile.times[0]
    busy = {gpu for other in held for gpu in other.gpus}
    free: dict[str, float] = {name: limits.get(name, math.inf) - sum(other.amounts.get(name, 0) for other in held)
                              for name in need.amounts}  # fmt: skip
    if need.gpus:
        free["gpus"] = sum(gpu not in busy for gpu in need.among)
    wanted = {**need.amounts, **({"gpus": need.gpus} if need.gpus else {})}
    lacks = tuple(name for name in sorted(wanted, key=_gpus_first) if free[name] < wanted[name])
    holders = tuple(other.job for other in held if _holds_any(other, lacks, need))
    if one.blocked or not _fits(need, limits):
        return Place(one.job, number, None, now=False, lacks=lacks, holders=holders, free=free)
    start, gpus = profile.take(need, one.lasts)
    if start == now:
        return Place(one.job, number, now, now=True, gpus=gpus, free=free)
    if not lacks:
        lacks = (ORDER,)
        holders = tuple(other.job for other in before if _keeps_any(other, need))
    return Place(one.job, number, start, now=False, lacks=lacks, holders=holders, free=free)


def _gpus_first(name: str) -> tuple[bool, str]:
    return name != "gpus", name


def _fits(need: Need, limits: Mapping[str, float]) -> bool:
    """Say whether the machine has as much at all: nothing is kept for a job that could never start."""
    return need.gpus <= len(need.among) and all(
        amount <= limits.get(name, math.inf) for name, amount in need.amounts.items()
    )


def _holds_any(other: Held, lacks: Iterable[str], need: Need) -> bool:
    return any(
        bool(set(other.gpus) & set(need.among)) if name == "gpus" else other.amounts.get(name, 0) > 0 for name in lacks
    )


def _keeps_any(other: Waiting, need: Need) -> bool:
    """Say whether something is kept for another waiting job that this one needs too."""
    if other.blocked:
        return False
    shared = bool(need.gpus and other.need.gpus and set(need.among) & set(other.need.among))
    return shared or any(name in other.need.amounts for name in need.amounts)


class _Profile:
    """What is held from each moment on to the next one, by what runs and by what was placed so far."""

    def __init__(self, held: Sequence[Held], limits: Mapping[str, float], now: float) -> None:
        self._limits = limits
        self.times = [now]
        self._busy: list[set[str]] = [set()]
        self._used: list[dict[str, float]] = [{}]
        for one in held:
            ends = math.inf if one.ends is None else max(one.ends, now + OVERDUE)
            self._add(now, ends, one.gpus, one.amounts)

    def take(self, need: Need, lasts: float | None) -> tuple[float | None, tuple[str, ...]]:
        """Hold what a job needs from the earliest moment on, and return that moment and its devices.

        Where that moment is unknown, what gets free first is kept aside from now on.
        """
        length = math.inf if lasts is None else lasts
        following = self._following_use(need.among) if need.gpus else []
        for index, start in enumerate(self.times):
            end = start + length
            gpus = [gpu for gpu in need.among if following[index][gpu] >= end] if need.gpus else []
            if len(gpus) >= need.gpus and self._has_room(index, end, need.amounts):
                chosen = tuple(gpus[: need.gpus])
                self._add(start, end, chosen, need.amounts)
                return start, chosen
        self._add(self.times[0], math.inf, self._first_free(need), need.amounts)
        return None, ()

    def _following_use(self, devices: Iterable[str]) -> list[dict[str, float]]:
        """Return for each moment when each device is used next, from that moment on."""
        found: list[dict[str, float]] = [{} for _ in self.times]
        later = dict.fromkeys(devices, math.inf)
        for index in range(len(self.times) - 1, -1, -1):
            for device in later.keys() & self._busy[index]:
                later[device] = self.times[index]
            found[index] = dict(later)
        return found

    def _has_room(self, index: int, end: float, amounts: Mapping[str, float]) -> bool:
        while index < len(self.times) and self.times[index] < end:
            used = self._used[index]
            if any(used.get(name, 0) + amount > self._limits.get(name, math.inf) for name, amount in amounts.items()):
                return False
            index += 1
        return True

    def _first_free(self, need: Need) -> list[str]:
        """Return as many devices as are needed, those that get free first before others."""
        if not need.gpus:
            return []
        last_use = dict.fromkeys(need.among, -math.inf)
        for start, busy in zip(self.times, self._busy, strict=True):
            for device in last_use.keys() & busy:
                last_use[device] = start
        return sorted(need.among, key=lambda device: last_use[device])[: need.gpus]

    def _add(self, start: float, end: float, gpus: Iterable[str], amounts: Mapping[str, float]) -> None:
        first, last = self._cut(start), len(self.times) if end == math.inf else self._cut(end)
        for index in range(first, last):
            self._busy[index].update(gpus)
            for name, amount in amounts.items():
                self._used[index][name] = self._used[index].get(name, 0) + amount

    def _cut(self, moment: float) -> int:
        """Begin a new part at a moment, and return its number."""
        index = bisect.bisect_left(self.times, moment)
        if index == len(self.times) or self.times[index] != moment:
            self.times.insert(index, moment)
            self._busy.insert(index, set(self._busy[index - 1]))
            self._used.insert(index, dict(self._used[index - 1]))
        return index
