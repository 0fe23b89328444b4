"""A job's part in the queue of a machine (node.slots): what it needs there, and its place as a view."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.core.queue import Holding, QueueView, reason
from distdl_jupyter.node import slots
from distdl_jupyter.node.schedule import Need, Place

if TYPE_CHECKING:
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.node.slots import Entry, Turn

#: Running jobs that a view names at most.
_MOST = 32


def need(spec: JobSpec, processes: int, gpus: int, devices: Sequence[str]) -> Need:
    """Return what ``processes`` of a job hold of a machine, ``gpus`` of its ``devices`` among it."""
    each = {"cores": spec.cores, "memory": spec.memory}
    amounts = {name: float(amount * processes) for name, amount in each.items() if amount}
    return Need(gpus, tuple(devices) if gpus else (), amounts)


def turn_of(data: Sequence[Any]) -> Turn:
    """Return a turn from the plain data that an agent has sent."""
    place, of, entries, problem = data
    return slots.Turn(Place(*place), of, tuple(_entry(one) for one in entries), problem)


def _entry(data: Sequence[Any]) -> Entry:
    fields = dict(zip(slots.Entry._fields, data, strict=True))
    return slots.Entry(**{**fields, "need": Need(*fields["need"])})


def view(
    turn: Turn,
    wanted: Need,
    labels: Mapping[str, str],
    priority: int,
    host: str = "",
    *,
    clock: float | None = None,
    limits: Mapping[str, float] | None = None,
) -> QueueView:
    """Return a job's place in words and numbers; ``labels`` are what the host's devices are called.

    ``clock`` is that of the host's queue now, ``limits`` what is counted there; without them it is this one.
    """
    place, jobs = turn.place, {one.job: one for one in turn.entries}
    who = tuple(_called(jobs[job]) for job in place.holders if job in jobs)
    asked = needs(wanted)
    now, clock = time.time(), slots.clock() if clock is None else clock
    return QueueView(
        place=place.place,
        of=turn.of,
        why=turn.problem or reason(asked, place.lacks, who),
        start=None if place.start is None else now + place.start - clock,
        priority=priority,
        needs=asked,
        free=dict(place.free),
        total={name: value for name, value in totals(len(labels), limits).items() if name in asked},
        lacks=place.lacks,
        names=who,
        holding=tuple(holding(one, labels, now - clock) for one in turn.holding[:_MOST]),
        host=host,
        number=jobs[place.job].number if place.job in jobs else None,
    )


def needs(wanted: Need) -> dict[str, float]:
    """Return all that a job needs as amounts by name."""
    return {**({"gpus": float(wanted.gpus)} if wanted.gpus else {}), **wanted.amounts}


def totals(gpus: int, limits: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return what there is of a machine with so many GPUs; without ``limits`` of this one."""
    return {"gpus": float(gpus), **(slots.limits() if limits is None else limits)}


def holding(one: Entry, labels: Mapping[str, str], offset: float) -> Holding:
    """Return what a running job holds; ``offset`` is what makes epoch seconds of the queue's clock."""
    return Holding(
        one.job,
        one.name,
        "" if one.own else one.user,
        tuple(labels.get(gpu, gpu) for gpu in one.gpus),
        one.need.amounts.get("cores", 0),
        one.need.amounts.get("memory", 0),
        None if one.ends is None else one.ends + offset,
    )


def _called(one: Entry) -> str:
    """Return a job's name with its short id, and its user where that is another one."""
    return f"{one.name} ({short_id(one.job)})" + ("" if one.own else f" of {one.user}")
