"""A job's part in the queue of a machine (node.slots): what it needs there, and its place as a view."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.core.queue import Holding, QueueView, reason
from distdl_jupyter.node import slots
from distdl_jupyter.node.schedule import Need

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


def view(turn: Turn, wanted: Need, labels: Mapping[str, str], priority: int, host: str = "") -> QueueView:
    """Return a job's place in words and numbers; ``labels`` are what the host's devices are called."""
    place, jobs = turn.place, {one.job: one for one in turn.entries}
    who = tuple(_called(jobs[job]) for job in place.holders if job in jobs)
    needs = {**({"gpus": float(wanted.gpus)} if wanted.gpus else {}), **wanted.amounts}
    now, clock = time.time(), slots.clock()
    return QueueView(
        place=place.place,
        of=turn.of,
        why=turn.problem or reason(needs, place.lacks, who),
        start=None if place.start is None else now + place.start - clock,
        priority=priority,
        needs=needs,
        free=dict(place.free),
        total={name: value for name, value in totals(len(labels)).items() if name in needs},
        lacks=place.lacks,
        names=who,
        holding=tuple(holding(one, labels, now - clock) for one in turn.holding[:_MOST]),
        host=host,
        number=jobs[place.job].number if place.job in jobs else None,
    )


def totals(gpus: int) -> dict[str, float]:
    """Return what there is of this machine, of which ``gpus`` are known."""
    return {"gpus": float(gpus), **slots.limits()}


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
