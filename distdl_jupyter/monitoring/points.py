"""What a tracker is given of a job: parameters, tags, and points of metrics and resources.

``PointFold`` turns events into points: of each rank, or the mean over ranks of a step when all have reported it. It
depends on the events and on ``settle``'s moments alone, so that who reads them again comes to the same points.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from distdl_jupyter.core.options import ABOUT, DEFAULTS
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.redact import text as masked
from distdl_jupyter.worker.secret_patterns import MASK

if TYPE_CHECKING:
    from distdl_jupyter.core.environment import JobEnvironment
    from distdl_jupyter.core.events import Event
    from distdl_jupyter.core.resources import About, ResourceSample
    from distdl_jupyter.core.spec import JobSpec

Which = Literal["mean", "ranks", "both"]
#: Seconds after which a step counts as whole although not all ranks have reported it: when those that report have gone
#: on, and when they have not.
_GONE_ON, _SILENT = 2.0, 10.0
#: Steps of one metric that wait for ranks at most.
_MOST_WAITING = 1000
#: Seconds between two points of resources, as MLflow samples them itself.
RESOURCES_EVERY = 10.0
_MB = 1e6


class Point(NamedTuple):
    """One value of a metric at a step and a time (epoch seconds); ``rank`` is None for the mean and for machines."""

    name: str
    step: float
    t: float
    value: float
    rank: int | None = None


@dataclass(slots=True)
class _Step:
    """What ranks have reported of one step, and when the first and the last of them did."""

    begun: float
    t: float
    values: dict[int, float] = field(default_factory=dict)

    def mean(self, name: str, step: float) -> Point:
        return Point(name, step, self.t, sum(self.values.values()) / len(self.values))


class PointFold:
    """Turns the events of a job of so many processes into points."""

    def __init__(self, process_count: int, which: Which) -> None:
        self._count, self._which = process_count, which
        self._waiting: dict[str, dict[float, _Step]] = {}
        #: The newest step of each rank, by metric.
        self._newest: dict[str, dict[int, float]] = {}

    def apply(self, event: Event) -> list[Point]:
        """Take the next event."""
        if event["type"] == "world":
            self._count = int(event.get("process_count") or self._count)
        elif event["type"] == "restart":
            rest = self.rest()
            self._newest.clear()
            return rest
        elif event["type"] == "metric":
            return list(self._metric(event))
        return []

    def _metric(self, event: Event) -> Iterator[Point]:
        rank, step, t = int(event["rank"]), float(event["step"]), float(event["t"])
        for name, number in event["values"].items():
            value = float(number)
            if self._which != "mean":
                yield Point(name, step, t, value, rank)
            if self._which != "ranks":
                waiting = self._waiting.setdefault(name, {}).setdefault(step, _Step(t, t))
                waiting.values[rank], waiting.t = value, max(waiting.t, t)
                self._newest.setdefault(name, {})[rank] = step
                yield from self._whole(name, t)

    def _whole(self, name: str, now: float) -> Iterator[Point]:
        """Yield the means of the steps that no rank will report any more, in order of steps."""
        steps, lowest = self._waiting[name], min(self._newest[name].values())
        for step in sorted(steps):
            one = steps[step]
            if (
                len(one.values) >= self._count
                or (step < lowest and now - one.begun > _GONE_ON)
                or len(steps) > _MOST_WAITING
            ):
                del steps[step]
                yield one.mean(name, step)

    def settle(self, now: float) -> list[Point]:
        """Return the means of steps for which no other rank is waited any more."""
        return [
            steps.pop(step).mean(name, step)
            for name, steps in self._waiting.items()
            for step in sorted(steps)
            if now - steps[step].t > _SILENT
        ]

    def rest(self) -> list[Point]:
        """Return the means of all steps that were held back."""
        return self.settle(math.inf)


def resource_points(sample: ResourceSample, about: About, begun: float, *, nodes: int) -> Iterator[Point]:
    """Yield what a machine and its ranks used, named as MLflow's system metrics; steps are seconds since ``begun``."""
    machine, step = sample.machine, float(round(sample.t - begun))
    node = f"system/node_{sample.node}/" if nodes > 1 else "system/"
    cpu = machine.cpu / about.cores if machine.cpu is not None and about.cores else None
    found: dict[str, float | None] = {
        f"{node}cpu_utilization_percentage": cpu,
        f"{node}system_memory_usage_megabytes": _mega(machine.memory),
        f"{node}disk_read_megabytes_per_second": _mega(machine.disk_read),
        f"{node}disk_write_megabytes_per_second": _mega(machine.disk_written),
        f"{node}network_receive_megabytes_per_second": _mega(machine.received),
        f"{node}network_transmit_megabytes_per_second": _mega(machine.sent),
    }
    for rank, use in sorted(sample.ranks.items()):
        own = f"system/rank_{rank}/"
        found[f"{own}cpu_utilization_percentage"] = use.cpu
        found[f"{own}memory_usage_megabytes"] = _mega(use.memory)
        found[f"{own}gpu_utilization_percentage"] = use.gpu
        found[f"{own}gpu_memory_usage_megabytes"] = _mega(use.gpu_memory)
        found[f"{own}gpu_power_usage_watts"] = use.power
    for name, value in found.items():
        if value is not None:
            yield Point(name, step, sample.t, value)


def _mega(value: float | None) -> float | None:
    return None if value is None else value / _MB


# what does not change -------------------------------------------------------------------------


def parameters(spec: JobSpec) -> dict[str, str]:
    """Return the plain values that travelled with the code (arguments above all), and the options that were given."""
    found = {one.name: one.detail.partition(" = ")[2] or one.detail for one in spec.captured if one.kind == "value"}
    options = {
        "node_count": spec.node_count, "process_count_per_node": spec.process_count_per_node,
        "distributed_backend": spec.distributed_backend, "compute_target": spec.compute_target,
        **{name: getattr(spec, name) for name in ABOUT if name not in _TAGS and getattr(spec, name) != DEFAULTS[name]},
        **spec.backend_options,
    }  # fmt: skip
    found |= {f"distdl.{name}": _text(value) for name, value in options.items()}
    if spec.script_arguments:
        found["script_arguments"] = " ".join(spec.script_arguments)
    return _without_secrets(found)


#: What is a tag, or may hold what is nobody else's affair.
_TAGS = ("name", "environment_variables", "data", "outputs", "track", "notify_when", "requirements", "after")


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    return (
        str(dataclasses.asdict(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type)
        else str(value)
    )


def tags(spec: JobSpec, environment: JobEnvironment) -> dict[str, str]:
    """Return what a run is found by: job, cluster, backend, notebook, and the code's state in git."""
    git = environment.git
    found = {
        "distdl.job_id": spec.id,
        "distdl.job_name": spec.name,
        "distdl.cluster": spec.compute_target,
        "distdl.cluster_kind": spec.cluster,
        "distdl.backend": spec.distributed_backend,
        "distdl.process_count": str(spec.process_count),
        "distdl.notebook": spec.source.notebook,
        "distdl.resumed_from": spec.resumed_from,
        "distdl.group": spec.group.id if spec.group else "",
        "distdl.python": environment.python.partition(" ")[0],
        "git.commit": git.commit if git else "",
        "git.branch": git.branch if git else "",
        "git.repository": git.remote if git else "",
        "git.changed": str(bool(git.diff)).lower() if git else "",
    }
    return _without_secrets({name: value for name, value in found.items() if value})


def _without_secrets(found: Mapping[str, str]) -> dict[str, str]:
    return {name: MASK if is_secret(name, value) else masked(value) for name, value in found.items()}
