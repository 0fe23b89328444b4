"""Computes the needs of a job in the queue of a machine (``node.slots``), and converts its position to a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import plural, short_id, size
from distdl_jupyter.core.queue import Holding, QueueView, reason
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.node import slots
from distdl_jupyter.node.slots import Need, QueueEntry, QueuePosition

#: The maximum number of devices of a job that a view lists.
_MAX_DEVICES = 32


def need(spec: JobSpec, processes: int, devices: Sequence[str]) -> Need:
    """Return the needs of a job's ``processes`` on a machine with these GPUs.

    Without the option ``gpus``, each process gets one GPU; if there are fewer, the processes share all of them.
    """
    devices = devices if spec.use_gpu is not False else ()
    gpus = min(processes, len(devices)) if spec.gpus is None else processes * spec.gpus
    per_process = {"cores": spec.cores, "memory": spec.memory}
    amounts = {name: float(amount * processes) for name, amount in per_process.items() if amount}
    return Need(gpus, tuple(devices) if gpus else (), amounts)


def refuse_too_much(
    spec: JobSpec, processes: int, gpus: int, cores: float | None, memory: float | None, host: str = ""
) -> None:
    """Raise InvalidSpec if ``processes`` of a job need more than a machine has (None: unknown)."""
    available = {"gpus": gpus, "cores": cores, "memory": memory}
    per_process = {"gpus": spec.gpus or int(bool(spec.use_gpu)), "cores": spec.cores, "memory": spec.memory}
    machine = host or "this machine"
    for name, amount in per_process.items():
        limit = available[name]
        if not amount or limit is None or amount * processes <= limit:
            continue
        single, total, maximum = (
            size(value) if name == "memory" else plural(int(value), "GPU" if name == "gpus" else "core")
            for value in (amount, amount * processes, limit)
        )
        subject = "The job needs" if processes == 1 else f"{plural(processes, 'process')} with {single} each need"
        required = f"{subject} {total}{' of memory' if name == 'memory' else ''}"
        if name == "gpus":
            field = "gpus" if spec.gpus else "use_gpu"
            text = f"{required}, but {machine} has {maximum if limit else 'none'}."
            hint = "Use fewer processes, or run on the CPU: use_gpu=False"
            raise InvalidSpec(text, code="too-few-gpus", field=field, hint=hint)
        share = f"{int(limit) // processes // 1_000_000}MB" if name == "memory" else int(limit) // processes
        hint = f"Use fewer processes, or request less: {name}={share}"
        if name == "cores" and limit < processes:
            hint = f"Use fewer processes: process_count_per_node={int(limit)}"
        text = f"{required}, but {machine} has {maximum}."
        raise InvalidSpec(text, code="too-few-resources", field=name, hint=hint)


def view(
    position: QueuePosition,
    need_: Need,
    labels: Mapping[str, str],
    priority: int,
    host: str = "",
    *,
    limits: Mapping[str, float] | None = None,
) -> QueueView:
    """Return a job's position as text and numbers; ``labels`` are the names of the host's devices.

    ``limits`` are the cores and memory of the host, by default those of this machine.
    """
    holder_names = holders(position, {entry.key: entry for entry in position.entries})
    amounts = needs(need_)
    return QueueView(
        position=position.position,
        of=position.of,
        why=position.problem or reason(amounts, position.lacks, holder_names),
        priority=priority,
        needs=amounts,
        free=dict(position.free),
        total={name: value for name, value in totals(len(labels), limits).items() if name in amounts},
        lacks=position.lacks,
        names=holder_names,
        holding=tuple(holding(entry, labels) for entry in position.entries if entry.holds),
        host=host,
        number=position.number,
    )


def needs(need_: Need) -> dict[str, float]:
    """Return the needs of a job as amounts by name."""
    return {**({"gpus": float(need_.gpus)} if need_.gpus else {}), **need_.amounts}


def totals(gpus: int, limits: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the resources of a machine with ``gpus`` GPUs; ``limits`` defaults to this machine."""
    return {"gpus": float(gpus), **(slots.limits() if limits is None else limits)}


def holding(entry: QueueEntry, labels: Mapping[str, str]) -> Holding:
    """Return the resources that a running job holds."""
    return Holding(
        entry.job,
        entry.name,
        "" if entry.is_own else entry.user,
        tuple(labels.get(gpu, gpu) for gpu in entry.gpus[:_MAX_DEVICES]),
        entry.need.amounts.get("cores", 0),
        entry.need.amounts.get("memory", 0),
    )


def holders(position: QueuePosition, entries: Mapping[str, QueueEntry]) -> tuple[str, ...]:
    """Return the names of the first jobs ahead of a position, and the number of other jobs ahead of it."""
    jobs = [entries[key] for key in position.holders if key in entries]
    names = [f"{job.name} ({short_id(job.job)})" + ("" if job.is_own else f" of {job.user}") for job in jobs]
    return (*names, plural(position.others, "other")) if names and position.others else tuple(names)
