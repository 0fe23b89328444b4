"""The resource usage of ranks and machines, one sample per second: ``resources.jsonl`` in the job's folder.

Each line is a ``_Line`` as JSON. A single writer appends lines; readers ignore an incomplete last line and unknown
fields. CPU is in percent of one core, busy in percent, memory in bytes, power in watts, rates in bytes per second. None
means that the system does not report the value. A day of 8 ranks with one GPU each takes about 39 MB.
"""

from __future__ import annotations

import contextlib
import operator
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from distdl_jupyter.core import events
from distdl_jupyter.core.humanize import duration, size
from distdl_jupyter.core.series import MetricStore

_Number = int | None
#: Names of the curves in display order; those of a node are listed under its first rank.
CURVES = ("cpu", "memory", "gpu", "gpu_memory", "torch_allocated", "power", "disk", "network")
#: Seconds of samples from which problems are detected.
_WINDOW_SECONDS = 60.0
#: A GPU below this percentage is idle.
IDLE_PERCENT = 5.0
#: Memory above this share of the limit is nearly full.
FULL_SHARE = 0.95
#: Minimum growth of GPU memory in ``_WINDOW_SECONDS`` as a share of the limit.
_MIN_GROWTH = 0.02
_GROWTH_REMEDY = (
    "Store numbers instead of tensors between steps, for example loss.item(). If the memory of its tensors does not "
    "grow, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
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


class _Line(msgspec.Struct, omit_defaults=True):
    """One sample from the agent of a node (see ``node.resources``); the first one contains the node's ``info``.

    ``machine`` has the fields of ``NodeUsage``, ``ranks`` CPU and memory, ``gpus`` the busy percentage, used memory and
    power, ``torch`` the allocated and reserved memory that ranks reported, also for later samples.
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

    data = {**sample, "t": round(sample["t"], 3), "node": node, "torch": torch or {}}
    data["machine"] = round_all(sample["node"].get(name) for name in NodeUsage.__dataclass_fields__)
    for key in ("ranks", "gpus"):
        data[key] = {number: round_all(values) for number, values in sample[key].items()}
    return msgspec.json.encode(msgspec.convert(data, _Line, str_keys=True)) + b"\n"


class ResourceHistory:
    """The resources of a job in bounded memory: newest samples, problems and (optional) curves, read incrementally."""

    def __init__(self, path: Path, *, curves: bool = True) -> None:
        self._path, self._has_curves = path, curves
        #: Number of bytes read.
        self.cursor = 0
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

    @property
    def curve_names(self) -> list[str]:
        """The names of the curves that have values, in the order of ``CURVES``."""
        return [name for name in CURVES if name in self.curves.metrics]

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
        self.samples[line.node] = sample
        self.ranks |= {rank: (sample, usage) for rank, usage in usages.items()}
        recent = self._recent.setdefault(line.node, deque())
        recent.append(sample)
        while recent[0].t < line.t - _WINDOW_SECONDS - 1:
            recent.popleft()
        self._start_time = line.t if self._start_time is None else self._start_time
        # Machines are sampled once a second at different times; rounding gives their curves the same steps.
        step, machine = round(line.t - self._start_time), sample.machine
        for index, (rank, usage) in enumerate(sorted(usages.items()) if self._has_curves else ()):
            values = {name: getattr(usage, name, None) for name in CURVES}
            if index == 0:
                values["disk"] = _sum_if_any((machine.disk_read, machine.disk_written))
                values["network"] = _sum_if_any((machine.received, machine.sent))
            if values := {name: value for name, value in values.items() if value is not None}:
                self.curves.apply({"type": "metric", "rank": rank, "step": step, "t": line.t, "values": values})
        return sample

    def find_problems(self) -> list[ResourceProblem]:
        """Return the current problems, the most severe first: exhausted memory, then idle GPUs."""
        problems: list[ResourceProblem] = []
        for node, samples in self._recent.items():
            host = self.nodes.get(node, NodeHardware()).host
            machine, ranks, on_host = samples[-1].machine, samples[-1].ranks, f" on {host}" if host else ""
            if machine.memory is not None and machine.limit and machine.memory >= FULL_SHARE * machine.limit and ranks:
                memory, rank = max((usage.memory or 0.0, rank) for rank, usage in ranks.items())
                free = f"{size(machine.available or 0.0)} of {size(machine.limit)} free"
                text = f"The memory{on_host} is {100 * machine.memory / machine.limit:.0f} % full ({free}). "
                text += f"Rank {rank} uses the most, {size(memory)}."
                problems.append(ResourceProblem("memory", rank, host, text))
            seconds = samples[-1].t - samples[0].t
            for rank, usage in ranks.items() if seconds >= _WINDOW_SECONDS - 1 else ():
                usages = [sample.ranks[rank] for sample in samples if rank in sample.ranks]
                if len(usages) < len(samples):
                    continue
                values = [usage.gpu_memory for usage in usages if usage.gpu_memory is not None] or [0.0]
                quarters = [values[(len(values) - 1) * quarter // 4] for quarter in range(5)]
                growth, is_steady = quarters[-1] - quarters[0], all(map(operator.lt, quarters, quarters[1:]))
                if usage.gpu_limit and is_steady and growth >= _MIN_GROWTH * usage.gpu_limit:
                    full = duration(max(0.0, usage.gpu_limit - values[-1]) * seconds / growth)
                    text = f"The GPU memory of rank {rank}{on_host} grows by {size(growth / seconds)} per second "
                    text += f"and will be full in about {full}. {_GROWTH_REMEDY}"
                    problems.append(ResourceProblem("gpu_memory", rank, host, text))
                if all(usage.gpu is not None and usage.gpu < IDLE_PERCENT for usage in usages):
                    text = f"The GPU of rank {rank}{on_host} has been idle for {duration(_WINDOW_SECONDS)}: under "
                    text += f"{IDLE_PERCENT:.0f} % busy, while the rank uses {usage.cpu or 0:.0f} % of a core."
                    problems.append(ResourceProblem("gpu", rank, host, text))
        return sorted(problems, key=lambda problem: ("memory", "gpu_memory", "gpu").index(problem.kind))


def _sum_if_any(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None
