"""Computes the needs of a job in the queue of a machine (``node.slots``), and converts its position to a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import plural, short_id
from distdl_jupyter.core.plan import Holding, QueueView, format_amount, format_reason
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.node import slots
from distdl_jupyter.node.slots import QueueEntry, QueuePosition, ResourceRequest

#: The maximum number of devices of a job that a view lists.
_MAX_DEVICES = 32


def compute_need(spec: JobSpec, processes: int, devices: Sequence[str]) -> ResourceRequest:
    """Return the needs of a job's ``processes`` on a machine with these GPUs."""
    devices = devices if spec.use_gpu is not False else ()
    # Without the option ``gpus``, each process gets one GPU; if there are fewer, the processes share all of them.
    gpus = min(processes, len(devices)) if spec.gpus is None else processes * spec.gpus
    shares = {"cores": spec.cores, "memory": spec.memory}
    amounts = {name: float(share * processes) for name, share in shares.items() if share}
    return ResourceRequest(gpus, tuple(devices) if gpus else (), amounts)


def refuse_excess(
    spec: JobSpec, processes: int, gpus: int, cores: float | None, memory: float | None, host: str = ""
) -> None:
    """Raise InvalidSpec if ``processes`` of a job need more than a machine has; None is unknown."""
    requests = (spec.gpus or int(bool(spec.use_gpu)), spec.cores, spec.memory)
    for name, share, limit in zip(("gpus", "cores", "memory"), requests, (gpus, cores, memory), strict=True):
        if not share or limit is None or share * processes <= limit:
            continue
        single, total, maximum = (format_amount(name, value) for value in (share, share * processes, limit))
        subject = "The job needs" if processes == 1 else f"{plural(processes, 'process')} with {single} each need"
        text = f"{subject} {total}, but {host or 'this machine'} has {maximum if limit else 'none'}."
        if name == "gpus":
            hint, field = "Use fewer processes, or run on the CPU: use_gpu=False", "gpus" if spec.gpus else "use_gpu"
            raise InvalidSpec(text, code="too-few-gpus", field=field, hint=hint)
        share_limit = int(limit) // processes
        available = share_limit if name == "cores" else f"{share_limit // 1_000_000}MB"
        hint = f"Use fewer processes, or request less: {name}={available}" if available else "Use fewer processes."
        raise InvalidSpec(text, code="too-few-resources", field=name, hint=hint)


def build_view(
    position: QueuePosition,
    request: ResourceRequest,
    labels: Mapping[str, str],
    priority: int,
    host: str = "",
    *,
    limits: Mapping[str, float] | None = None,
) -> QueueView:
    """Return a job's position as text and numbers; ``labels`` are the names of the host's devices.

    ``limits`` are the cores and memory of the host, by default those of this machine.
    """
    holder_names = name_holders(position, {entry.key: entry for entry in position.entries})
    amounts = get_needs(request)
    return QueueView(
        position=position.position,
        of=position.waiting_count,
        why=position.problem or format_reason(amounts, position.missing, holder_names),
        priority=priority,
        needs=amounts,
        free=dict(position.free),
        total={name: value for name, value in get_totals(len(labels), limits).items() if name in amounts},
        lacks=position.missing,
        names=holder_names,
        holding=tuple(make_holding(entry, labels) for entry in position.entries if entry.has_resources),
        host=host,
        number=position.queued_at,
    )


def get_needs(request: ResourceRequest) -> dict[str, float]:
    """Return the needs of a job as amounts by name."""
    return {**({"gpus": float(request.gpus)} if request.gpus else {}), **request.amounts}


def get_totals(gpus: int, limits: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the resources of a machine with ``gpus`` GPUs; ``limits`` defaults to this machine."""
    return {"gpus": float(gpus), **(slots.measure_limits() if limits is None else limits)}


def make_holding(entry: QueueEntry, labels: Mapping[str, str]) -> Holding:
    """Return the resources that a running job holds."""
    return Holding(
        entry.job,
        entry.name,
        "" if entry.is_own else entry.user,
        tuple(labels.get(gpu, gpu) for gpu in entry.gpus[:_MAX_DEVICES]),
        entry.request.amounts.get("cores", 0),
        entry.request.amounts.get("memory", 0),
    )


def name_holders(position: QueuePosition, entries: Mapping[str, QueueEntry]) -> tuple[str, ...]:
    """Return the names of the first jobs ahead of a position, and the number of other jobs ahead of it."""
    jobs = [entries[key] for key in position.holders if key in entries]
    names = [f"{job.name} ({short_id(job.job)})" + ("" if job.is_own else f" of {job.user}") for job in jobs]
    other_count = position.other_holder_count
    return (*names, plural(other_count, "other")) if names and other_count else tuple(names)
