"""The resource usage of ranks and machines, one sample per second: ``resources.jsonl`` in the job's folder.

Each line is a ``_Line`` as JSON. A single writer appends lines; readers ignore an incomplete last line and unknown
fields. CPU is in percent of one core, busy in percent, memory in bytes, power in watts, rates in bytes per second. None
means that the system does not report the value. A day of 8 ranks with one GPU each takes about 39 MB.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from distdl_jupyter.core import events
from distdl_jupyter.core.humanize import duration, size
from distdl_jupyter.core.series import MetricStore

#: Names of the curves in display order; those of a node are listed under its first rank.
CURVES = ("cpu", "memory", "gpu", "gpu_memory", "torch_allocated", "power", "disk", "network")
#: Seconds of samples from which problems are detected.
_WINDOW_SECONDS = 60.0
#: Minimum seconds of memory growth for a trend.
_TREND_SECONDS = 20.0
#: A GPU below this percentage is idle.
IDLE_PERCENT = 5.0
#: Memory above this share of the limit is nearly full.
FULL_SHARE = 0.95
#: Growing memory is a problem if it would reach its limit within this many seconds.
_FORECAST_SECONDS = 300.0
#: Minimum memory growth as a share of the limit.
_MIN_GROWTH = 0.02
#: Minimum share of one rank in that growth.
_MIN_RANK_SHARE = 0.5
_TENSOR_REMEDY = "Store numbers instead of tensors between steps, for example loss.item()."
_FRAGMENTATION_REMEDY = (
    "The memory of its tensors does not grow, so either another program uses the GPU, or torch's memory is fragmented. "
    "For the latter, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
)


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Usage of a machine. ``cpu`` is in percent of one core; ``limit`` is the maximum usable memory."""

    cpu: float | None = None
    memory: float | None = None
    limit: float | None = None
    disk_read: float | None = None
    disk_written: float | None = None
    received: float | None = None
    sent: float | None = None

    @property
    def available(self) -> float | None:
        """Bytes of memory left before the limit is reached."""
        return None if self.memory is None or self.limit is None else max(0.0, self.limit - self.memory)


@dataclass(frozen=True, slots=True)
class RankUsage:
    """The usage of one rank: its processes and its GPUs. GPU fields are None if the rank has no GPU.

    ``gpu_memory`` is the memory in use on these GPUs by all processes (NVML). ``torch_allocated`` is the part occupied
    by the rank's tensors at the end of a training step, ``torch_reserved`` the part that torch reserves for these and
    later tensors.
    """

    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None
    gpu_memory: float | None = None
    gpu_limit: float | None = None
    power: float | None = None
    torch_allocated: float | None = None
    torch_reserved: float | None = None


class NodeGpu(msgspec.Struct, frozen=True):
    """One GPU of a node: its memory in bytes and the ranks that use it."""

    number: int
    name: str = ""
    memory: float | None = None
    ranks: tuple[int, ...] = ()


class NodeHardware(msgspec.Struct, frozen=True):
    """The fixed properties of a node: its name, cores and GPUs, and why the GPUs cannot be sampled."""

    host: str = ""
    cores: int | None = None
    gpus: tuple[NodeGpu, ...] = ()
    gpu_error: str = msgspec.field(default="", name="no_gpus")


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """One sample of a node at ``t`` (epoch seconds): the machine and each of its ranks."""

    t: float
    node: int
    machine: NodeUsage
    ranks: Mapping[int, RankUsage]


@dataclass(frozen=True, slots=True)
class ResourceProblem:
    """A current problem: ``kind`` is memory, gpu_memory or gpu."""

    kind: str
    rank: int
    host: str
    text: str


_Number = int | None


class _Line(msgspec.Struct, omit_defaults=True):
    """One sample from the agent of a node (see ``node.resources``); the first one contains the node's ``info``.

    ``machine`` contains the fields of ``NodeUsage``, ``ranks`` the CPU and memory of each rank, ``gpus`` the busy
    percentage, used memory and power of each GPU. ``torch`` is the allocated and reserved memory that ranks reported.
    It also applies to later samples.
    """

    t: float
    node: int
    machine: tuple[_Number, _Number, _Number, _Number, _Number, _Number, _Number]
    ranks: dict[int, tuple[_Number, _Number]]
    gpus: dict[int, tuple[_Number, _Number, _Number]] = {}
    torch: dict[int, tuple[float, float]] = {}
    info: NodeHardware | None = msgspec.field(default=None, name="about")


_decoder = msgspec.json.Decoder(_Line)


def encode_sample(node: int, sample: Mapping[str, Any], torch: Mapping[int, Sequence[float]] | None = None) -> bytes:
    """Return the line of an agent's sample. Raises LookupError, TypeError, ValueError or OverflowError if invalid."""

    def round_all(numbers: Iterable[float | None]) -> list[int | None]:
        return [None if number is None else round(number) for number in numbers]

    data = {
        "t": round(sample["t"], 3),
        "node": node,
        "machine": round_all(sample["node"].get(name) for name in NodeUsage.__dataclass_fields__),
        "ranks": {rank: round_all(values) for rank, values in sample["ranks"].items()},
        "gpus": {number: round_all(values) for number, values in sample["gpus"].items()},
        "torch": torch or {},
        "about": sample.get("about"),
    }
    return msgspec.json.encode(msgspec.convert(data, _Line, str_keys=True)) + b"\n"


class ResourceHistory:
    """The resources of a job in bounded memory: newest samples, curves and problems, read incrementally."""

    def __init__(self, path: Path, *, curves: bool = True) -> None:
        """Curves are only stored if ``curves`` is set; problems do not need them."""
        self._path, self._has_curves = path, curves
        #: Number of bytes read.
        self.cursor = 0
        #: Number of samples.
        self.count = 0
        self.nodes: dict[int, NodeHardware] = {}
        #: The newest sample of each node.
        self.samples: dict[int, ResourceSample] = {}
        #: The newest sample of each rank, with its usage.
        self.ranks: dict[int, tuple[ResourceSample, RankUsage]] = {}
        #: Curves over seconds since the first sample, by the names in ``CURVES``.
        self.curves = MetricStore()
        self._start_time: float | None = None
        #: Torch memory last reported by each rank: allocated and reserved.
        self._torch: dict[int, tuple[float, float]] = {}
        self._recent: dict[int, deque[ResourceSample]] = {}

    def read(self, max_bytes: int = -1) -> list[ResourceSample]:
        """Read and return the next samples, about ``max_bytes`` (default: all); [] if there are no new ones."""
        content = events.read_lines(self._path, self.cursor, max_bytes)
        self.cursor += len(content)
        samples = []
        for line in content.splitlines():
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                samples.append(self._apply(_decoder.decode(line)))
        return samples

    def _apply(self, line: _Line) -> ResourceSample:
        if line.info is not None:
            self.nodes[line.node] = line.info
        self._torch |= line.torch
        gpus = [gpu for gpu in self.nodes.get(line.node, NodeHardware()).gpus if gpu.number in line.gpus]
        usages = {}
        for rank, (cpu, memory) in line.ranks.items():
            rank_gpus = [(gpu.memory, *line.gpus[gpu.number]) for gpu in gpus if rank in gpu.ranks]
            limits, busy, gpu_memory, power = zip(*rank_gpus, strict=True) if rank_gpus else ((), (), (), ())
            percents = [percent for percent in busy if percent is not None]
            mean = sum(percents) / len(percents) if percents else None
            torch = self._torch.get(rank, ())
            usages[rank] = RankUsage(
                cpu, memory, mean, _sum_if_any(gpu_memory), _sum_if_any(limits), _sum_if_any(power), *torch
            )
        sample = ResourceSample(line.t, line.node, NodeUsage(*line.machine), usages)
        self.count += 1
        self.samples[line.node] = sample
        self.ranks |= {rank: (sample, usage) for rank, usage in usages.items()}
        recent = self._recent.setdefault(line.node, deque())
        recent.append(sample)
        while recent[0].t < line.t - _WINDOW_SECONDS - 1:
            recent.popleft()
        if self._has_curves:
            self._add_to_curves(sample)
        return sample

    def _add_to_curves(self, sample: ResourceSample) -> None:
        self._start_time = sample.t if self._start_time is None else self._start_time
        # Machines are sampled once a second at different times; rounding gives their curves the same steps.
        step, machine = round(sample.t - self._start_time), sample.machine
        for index, (rank, usage) in enumerate(sorted(sample.ranks.items())):
            values = {name: getattr(usage, name, None) for name in CURVES}
            if index == 0:
                values["disk"] = _sum_if_any((machine.disk_read, machine.disk_written))
                values["network"] = _sum_if_any((machine.received, machine.sent))
            if values := {name: value for name, value in values.items() if value is not None}:
                self.curves.apply({"type": "metric", "rank": rank, "step": step, "t": sample.t, "values": values})

    def find_problems(self) -> list[ResourceProblem]:
        """Return the current problems, the most severe first: exhausted memory, then idle GPUs."""
        problems: list[ResourceProblem] = []
        for node, samples in self._recent.items():
            problems += _find_problems(samples, self.nodes.get(node, NodeHardware()).host)
        return sorted(problems, key=lambda problem: ("memory", "gpu_memory", "gpu").index(problem.kind))


def _sum_if_any(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _find_problems(samples: Sequence[ResourceSample], host: str) -> Iterator[ResourceProblem]:
    machine, ranks, on_host = samples[-1].machine, samples[-1].ranks, f" on {host}" if host else ""

    def get_growth(rank: int, name: str, min_growth: float = 0.0) -> float:
        points = [(sample.t, getattr(sample.ranks[rank], name)) for sample in samples if rank in sample.ranks]
        return _compute_growth(points, min_growth)

    if machine.memory is not None and machine.limit and ranks:
        available = max(0.0, machine.limit - machine.memory)
        free = f"({size(available)} of {size(machine.limit)} free)"
        rate = _compute_growth([(sample.t, sample.machine.memory) for sample in samples], _MIN_GROWTH * machine.limit)
        growth, growing_rank = max((get_growth(rank, "memory"), rank) for rank in ranks)
        if machine.memory >= FULL_SHARE * machine.limit:
            max_memory, rank = max((usage.memory or 0.0, rank) for rank, usage in ranks.items())
            text = f"The memory{on_host} is {100 * machine.memory / machine.limit:.0f} % full {free}. "
            yield ResourceProblem("memory", rank, host, f"{text}Rank {rank} uses the most, {size(max_memory)}.")
        elif rate and available / rate <= _FORECAST_SECONDS and growth >= _MIN_RANK_SHARE * rate:
            text = f"Rank {growing_rank}{on_host} will run out of memory in about {duration(available / rate)} if its "
            text += f"memory keeps growing by {size(rate)} per second {free}."
            yield ResourceProblem("memory", growing_rank, host, text)
    if samples[-1].t - samples[0].t < _WINDOW_SECONDS - 1:
        return
    for rank, usage in ranks.items():
        if usage.gpu_limit and (rate := get_growth(rank, "gpu_memory", _MIN_GROWTH * usage.gpu_limit)):
            seconds = max(0.0, usage.gpu_limit - (usage.gpu_memory or 0.0)) / rate
            text = f"The GPU memory of rank {rank}{on_host} grows by {size(rate)} per second and will be full in about "
            are_tensors_growing = usage.torch_allocated is None or get_growth(rank, "torch_allocated") > 0
            text += f"{duration(seconds)}. {_TENSOR_REMEDY if are_tensors_growing else _FRAGMENTATION_REMEDY}"
            yield ResourceProblem("gpu_memory", rank, host, text)
        busy = [sample.ranks[rank].gpu for sample in samples if rank in sample.ranks]
        if len(busy) == len(samples) and all(percent is not None and percent < IDLE_PERCENT for percent in busy):
            text = f"The GPU of rank {rank}{on_host} has been idle for {duration(_WINDOW_SECONDS)}: under "
            text += f"{IDLE_PERCENT:.0f} % busy, while the rank uses {usage.cpu or 0:.0f} % of a core."
            yield ResourceProblem("gpu", rank, host, text)


def _compute_growth(points: Sequence[tuple[float, float | None]], min_growth: float) -> float:
    """Return the growth of a value per second.

    Returns 0 unless the value grew in each quarter of the time, by at least ``min_growth`` in ``_TREND_SECONDS`` or
    more.
    """
    measured = [(t, value) for t, value in points if value is not None]
    if not measured:
        return 0.0
    quarter_points = [measured[(len(measured) - 1) * quarter // 4] for quarter in range(5)]
    (start, first), (end, last) = quarter_points[0], quarter_points[-1]
    is_steady = all(before < after for (_, before), (_, after) in pairwise(quarter_points))
    is_trend = is_steady and end - start >= _TREND_SECONDS and last - first >= min_growth
    return (last - first) / (end - start) if is_trend else 0.0
