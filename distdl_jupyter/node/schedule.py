"""The order in which waiting jobs start: first come, first served. Pure functions.

Jobs are taken in their order. A job can start when everything it needs is free and not kept for a job before it. What
a job waits for is kept for it, so a later job passes it only where it needs nothing of the same.

GPUs are devices with names; everything else (cores, bytes of memory) is an amount.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

#: The only entry of ``Place.lacks`` when everything is free, but kept for jobs in front.
ORDER = "order"
#: Jobs that a place names at most.
_MOST_NAMED = 4


class Need(NamedTuple):
    """What a job holds while it runs: ``gpus`` of the devices ``among``, the first preferred, and amounts by name."""

    gpus: int = 0
    among: tuple[str, ...] = ()
    amounts: Mapping[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self.gpus or self.amounts)


class Held(NamedTuple):
    """What a running job holds."""

    key: str
    gpus: tuple[str, ...] = ()
    amounts: Mapping[str, float] = {}


class Waiting(NamedTuple):
    """A waiting job: ``number`` is its position by time. Nothing is kept for one that is ``blocked``."""

    key: str
    user: int
    number: int
    need: Need
    priority: float = 0.0
    blocked: bool = False


class Place(NamedTuple):
    """A job's place in the queue, from 1, and whether it can start ``now`` with the ``gpus`` it gets.

    ``lacks`` are the names of what is not free ("gpus", or that of an amount), or ``ORDER`` alone. ``holders`` are keys
    of the first jobs that hold it, or for which it is kept, ``others`` the number of further ones. ``free`` is how
    much is free of what the job needs.
    """

    key: str
    place: int
    now: bool
    gpus: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    others: int = 0
    free: Mapping[str, float] = {}


def order_jobs(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Return jobs in their order: by priority, then time, where a priority moves a job only among its user's jobs.

    The positions by time belong to users, and each user's jobs fill that user's positions in the user's own order.
    """
    by_time = sorted(waiting, key=lambda job: (job.number, job.key))
    by_user: dict[int, list[Waiting]] = {}
    for job in by_time:
        by_user.setdefault(job.user, []).append(job)
    for jobs in by_user.values():
        jobs.sort(key=lambda job: -job.priority)
        jobs.reverse()
    return [by_user[job.user].pop() for job in by_time]


def schedule(
    held: Sequence[Held], waiting: Iterable[Waiting], limits: Mapping[str, float], late: Collection[int] = ()
) -> list[Place]:
    """Return the place of each waiting job, in their order.

    ``limits`` are the machine's amounts by name; an amount that is not named there is unlimited. Nothing is kept for a
    job of a ``late`` user that could start: nobody waits for it any longer.
    """
    running, kept = _Usage(), _Usage()
    for holder in held:
        running.add(holder.key, holder.gpus, holder.amounts)
    places = []
    for index, job in enumerate(order_jobs(waiting), 1):
        need = job.need
        available = [gpu for gpu in need.among if gpu not in running.owners and gpu not in kept.owners]
        ready = len(available) >= need.gpus and all(
            running.amounts[name] + kept.amounts[name] + amount <= limits.get(name, math.inf)
            for name, amount in need.amounts.items()
        )
        ready = ready and not job.blocked
        places.append(_place(job, index, running, kept, limits, tuple(available[: need.gpus]) if ready else None))
        if job.blocked or not _is_possible(need, limits) or (ready and job.user in late):
            continue
        busy = [gpu for gpu in need.among if gpu in running.owners and gpu not in kept.owners]
        kept.add(job.key, (available + busy)[: need.gpus], need.amounts)
    return places


class _Usage:
    """Who has which device, and how much of each amount."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.amounts: Counter[str] = Counter()
        self._users: dict[str, list[str]] = {}

    def add(self, key: str, gpus: Iterable[str], amounts: Mapping[str, float]) -> None:
        for gpu in gpus:
            self.owners.setdefault(gpu, key)
        for name, amount in amounts.items():
            self.amounts[name] += amount  # type: ignore[assignment]  # a Counter adds floats as well
            if amount:
                self._users.setdefault(name, []).append(key)

    def users_of(self, names: Iterable[str], need: Need) -> list[str]:
        """Return the keys of jobs that have any of ``names`` of what is needed, each once, in order."""
        keys: dict[str, None] = {}
        for name in names:
            if name == "gpus":
                keys |= dict.fromkeys(self.owners[gpu] for gpu in need.among if gpu in self.owners)
            else:
                keys |= dict.fromkeys(self._users.get(name, ()))
        return list(keys)


def _place(
    job: Waiting, index: int, running: _Usage, kept: _Usage, limits: Mapping[str, float], gpus: tuple[str, ...] | None
) -> Place:
    need = job.need
    wanted = {**({"gpus": float(need.gpus)} if need.gpus else {}), **need.amounts}
    free = {name: max(0.0, limits.get(name, math.inf) - running.amounts[name]) for name in need.amounts}
    if need.gpus:
        free["gpus"] = float(sum(gpu not in running.owners for gpu in need.among))
    if gpus is not None:
        return Place(job.key, index, now=True, gpus=gpus, free=free)
    lacks = tuple(name for name in wanted if free[name] < wanted[name])
    holders = running.users_of(lacks, need)
    if not lacks and not job.blocked:
        lacks, holders = (ORDER,), kept.users_of(wanted, need)
    named, others = tuple(holders[:_MOST_NAMED]), max(0, len(holders) - _MOST_NAMED)
    return Place(job.key, index, now=False, lacks=lacks, holders=named, others=others, free=free)


def _is_possible(need: Need, limits: Mapping[str, float]) -> bool:
    """Return whether the machine has as much at all. Nothing is kept for a job that can never start."""
    return need.gpus <= len(need.among) and all(
        amount <= limits.get(name, math.inf) for name, amount in need.amounts.items()
    )
