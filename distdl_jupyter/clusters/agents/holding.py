"""What a job holds of other hosts: their agents take it from the hosts' own queues (node.slots), one after the other.

All jobs ask hosts in one order, so that none holds what another waits for while it waits for what that one holds.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import queueing
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import plural, size

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.checkup import Checkup
    from distdl_jupyter.clusters.agents.connection import Connection
    from distdl_jupyter.clusters.base import Context
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.node.slots import Need

#: Seconds between two questions whether it is the job's turn on a host.
_POLL = 0.5


def hold(connections: Sequence[Connection], spec: JobSpec, found: Checkup, context: Context) -> Checkup:
    """Wait until the job holds what it needs of every host, and return what was found with its own GPUs alone.

    Raises LaunchFailed when a host has less than that, or does not answer any more.
    """
    facts = dict(found.facts)
    context.report("queue", "")
    for one in sorted(connections, key=lambda one: (str(facts[one.host].get("host") or ""), one.host)):
        need = _need(spec, facts[one.host], one.host)
        if need:
            facts[one.host] = _held(one, need, spec, facts[one.host], context)
    return dataclasses.replace(found, facts=facts)


def _need(spec: JobSpec, facts: Mapping[str, Any], host: str) -> Need:
    devices = [str(gpu["uuid"]) for gpu in facts.get("gpus") or ()] if spec.use_gpu is not False else []
    processes = spec.process_count_per_node
    count = min(processes, len(devices)) if spec.gpus is None else processes * spec.gpus
    if spec.cores and spec.cores * processes > (there := int(facts.get("cores") or 0)):
        raise LaunchFailed(
            f"{host} has {plural(there, 'core')}, but the job needs {spec.cores * processes} there.",
            code="host-too-few-cores",
            hint="Lower cores, or use fewer processes on each host.",
        )
    total = int((facts.get("memory") or {}).get("total") or 0)
    if spec.memory and total and spec.memory * processes > total:
        raise LaunchFailed(
            f"{host} has {size(total)} of memory, but the job needs {size(spec.memory * processes)} there.",
            code="host-too-little-memory",
            hint="Lower memory, or use fewer processes on each host.",
        )
    return queueing.need(spec, processes, count, devices)


def _held(one: Connection, need: Need, spec: JobSpec, facts: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Wait for the job's turn on a host, and return the facts with the GPUs that it holds."""
    gpus = facts.get("gpus") or ()
    labels = {str(gpu["uuid"]): str(gpu["number"]) for gpu in gpus}
    while True:
        answer = one.ask(
            "slots",
            job=spec.id,
            name=spec.name,
            need=[need.gpus, need.among, need.amounts],
            priority=context.priority(),
            number=context.queue_number,
        )
        if answer["held"] is not None:
            own = set(answer["held"])
            return {**facts, "gpus": [gpu for gpu in gpus if gpu["uuid"] in own] if need.gpus else gpus}
        turn = queueing.turn_of(answer["turn"])
        view = queueing.view(turn, need, labels, context.priority(), one.host, limits=answer["limits"])
        context.note_place(view)
        time.sleep(_POLL)
