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
from distdl_jupyter.core.series import SeriesBook

#: Names of the curves in display order; those of a node are listed under its first rank.
CURVES = ("cpu", "memory", "gpu", "gpu_memory", "torch_allocated", "power", "disk", "network")
#: Seconds of samples that marks are computed from, and minimum seconds of memory growth for a trend.
_WINDOW_SECONDS, _TREND_SECONDS = 60.0, 20.0
#: A GPU below this percentage is idle; memory above this share of the limit is nearly full.
IDLE_PERCENT, FULL_SHARE = 5.0, 0.95
#: Growing memory is marked if it would reach its limit within this many seconds.
_SOON_SECONDS = 300.0
#: Minimum memory growth as a share of the limit, and minimum share of one rank in that growth.
_MIN_GROWTH, _MIN_RANK_SHARE = 0.02, 0.5
_KEEP_NUMBERS = "Keep numbers between steps instead of tensors: loss.item()"
_FREE_GPU_MEMORY = (
    "Its tensors do not grow: either another program uses the GPU, or torch's memory is fragmented "
    "(set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"
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
        """Bytes of memory up to the limit."""
        return None if self.memory is None or self.limit is None else max(0.0, self.limit - self.memory)


@dataclass(frozen=True, slots=True)
class RankUsage:
    """The usage of one rank: its processes and its GPUs (None without any).

    ``gpu_memory`` is the memory of these GPUs that all processes use (NVML). ``torch_allocated`` is the part of the
    rank's tensors at the end of a training step, ``torch_reserved`` the part that torch reserves for these and later
    tensors.
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
    """One GPU of a node: its bytes of memory and the ranks that use it."""

    number: int
    name: str = ""
    memory: float | None = None
    ranks: tuple[int, ...] = ()


class NodeFacts(msgspec.Struct, frozen=True):
    """The fixed facts of a node: its name, cores, GPUs, and why the GPUs cannot be sampled."""

    host: str = ""
    cores: int | None = None
    gpus: tuple[NodeGpu, ...] = ()
    no_gpus: str = ""


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """One sample of a node at ``t`` (epoch seconds): the machine and each of its ranks."""

    t: float
    node: int
    machine: NodeUsage
    ranks: Mapping[int, RankUsage]


@dataclass(frozen=True, slots=True)
class ResourceMark:
    """A current problem: ``kind`` is memory, gpu_memory or gpu."""

    kind: str
    rank: int
    host: str
    text: str


# lines ----------------------------------------------------------------------------------------

_Number = float | None


class _Line(msgspec.Struct):
    """One sample from the agent of a node; the first one has the facts ``about`` the node (see ``node.resources``).

    ``torch`` has the allocated and reserved memory that ranks reported, which also applies to later samples.
    """

    t: float
    node: int
    #: The fields of ``NodeUsage``; CPU and memory of each rank; busy, memory and power of each GPU.
    machine: tuple[_Number, _Number, _Number, _Number, _Number, _Number, _Number]
    ranks: dict[int, tuple[_Number, _Number]]
    gpus: dict[int, tuple[_Number, _Number, _Number]] = {}
    torch: dict[int, tuple[float, float]] = {}
    about: NodeFacts | None = None


_decoder = msgspec.json.Decoder(_Line)


def encode_sample(node: int, sample: Mapping[str, Any], torch: Mapping[int, Sequence[float]] | None = None) -> bytes:
    """Return the line of an agent's sample. Raises LookupError, TypeError, ValueError or OverflowError if invalid."""

    def rounded(numbers: Iterable[float | None]) -> list[int | None]:
        return [None if number is None else round(number) for number in numbers]

    optional = {
        "gpus": {number: rounded(values) for number, values in sample["gpus"].items()},
        "torch": torch,
        "about": sample.get("about"),
    }
    data = {
        "t": round(sample["t"], 3),
        "node": node,
        "machine": rounded(sample["node"].get(name) for name in NodeUsage.__dataclass_fields__),
        "ranks": {rank: rounded(values) for rank, values in sample["ranks"].items()},
        **{name: value for name, value in optional.items() if value},
    }
    msgspec.convert(data, _Line, str_keys=True)  # only checks: encoding a _Line would write floats
    return msgspec.json.encode(data) + b"\n"


# reading --------------------------------------------------------------------------------------


class ResourceBook:
    """The resources of a job in bounded memory: newest samples, curves and marks, read incrementally."""

    def __init__(self, path: Path, *, curves: bool = True) -> None:
        """Curves are only stored if ``curves`` is set; marks do not need them."""
        self._path, self._keeps_curves = path, curves
        #: Number of bytes read, and of samples.
        self.cursor = self.count = 0
        #: The facts about each node, its newest sample, and that of each rank with its usage.
        self.about: dict[int, NodeFacts] = {}
        self.nodes: dict[int, ResourceSample] = {}
        self.ranks: dict[int, tuple[ResourceSample, RankUsage]] = {}
        #: Curves over seconds since the first sample, by the names in ``CURVES``.
        self.curves = SeriesBook()
        self._start_time: float | None = None
        #: The memory of torch last reported by each rank: allocated and reserved.
        self._torch: dict[int, tuple[float, float]] = {}
        self._recent: dict[int, deque[ResourceSample]] = {}

    def read(self, max_bytes: int = -1) -> list[ResourceSample]:
        """Read and return the next samples, about ``max_bytes`` (default: all); [] if there are no new ones."""
        content = events.read_lines(self._path, self.cursor, max_bytes)
        self.cursor += len(content)
        samples = []
        for line in content.splitlines():
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                samples.append(self._to_sample(_decoder.decode(line)))
                self._apply(samples[-1])
        return samples

    def _to_sample(self, line: _Line) -> ResourceSample:
        if line.about is not None:
            self.about[line.node] = line.about
        self._torch |= line.torch
        #: The facts and the busy percentage, used memory and power of the GPUs of each rank.
        gpus: dict[int, list[tuple[NodeGpu, tuple[_Number, _Number, _Number]]]] = {}
        for gpu in self.about.get(line.node, NodeFacts()).gpus:
            for rank in gpu.ranks if gpu.number in line.gpus else ():
                gpus.setdefault(rank, []).append((gpu, line.gpus[gpu.number]))
        ranks = {}
        for rank, (cpu, memory) in line.ranks.items():
            used = gpus.get(rank, [])
            busy = [percent for _, (percent, _, _) in used if percent is not None]
            ranks[rank] = RankUsage(
                cpu,
                memory,
                sum(busy) / len(busy) if busy else None,
                _sum_known(gpu_memory for _, (_, gpu_memory, _) in used),
                _sum_known(gpu.memory for gpu, _ in used),
                _sum_known(power for _, (_, _, power) in used),
                *self._torch.get(rank, ()),
            )
        return ResourceSample(line.t, line.node, NodeUsage(*line.machine), ranks)

    def _apply(self, sample: ResourceSample) -> None:
        self._start_time = sample.t if self._start_time is None else self._start_time
        self.count += 1
        self.nodes[sample.node] = sample
        self.ranks |= {rank: (sample, use) for rank, use in sample.ranks.items()}
        recent = self._recent.setdefault(sample.node, deque())
        recent.append(sample)
        while recent[0].t < sample.t - _WINDOW_SECONDS - 1:
            recent.popleft()
        # Machines are sampled once a second at different times; rounding gives their curves the same steps.
        step, machine = round(sample.t - self._start_time), sample.machine
        for number, (rank, use) in enumerate(sorted(sample.ranks.items()) if self._keeps_curves else ()):
            values = {name: getattr(use, name, None) for name in CURVES}
            if number == 0:
                values["disk"] = _sum_known((machine.disk_read, machine.disk_written))
                values["network"] = _sum_known((machine.received, machine.sent))
            if values := {name: value for name, value in values.items() if value is not None}:
                self.curves.apply({"type": "metric", "rank": rank, "step": step, "t": sample.t, "values": values})

    def find_marks(self) -> list[ResourceMark]:
        """Return the current problems, the worst first: memory that will end the job, then idle GPUs."""
        marks: list[ResourceMark] = []
        for node, samples in self._recent.items():
            host = self.about.get(node, NodeFacts()).host
            marks += [*_find_memory_problems([*samples], host), *_find_gpu_problems([*samples], host)]
        return sorted(marks, key=lambda mark: ("memory", "gpu_memory", "gpu").index(mark.kind))


def _sum_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# marks ----------------------------------------------------------------------------------------


def _find_memory_problems(samples: Sequence[ResourceSample], host: str) -> Iterator[ResourceMark]:
    machine, on_host = samples[-1].machine, f" on {host}" if host else ""
    if machine.memory is None or not machine.limit or not samples[-1].ranks:
        return
    available = machine.limit - machine.memory
    free = f"({size(max(0.0, available))} of {size(machine.limit)} free)"
    rate = _compute_growth([(sample.t, sample.machine.memory) for sample in samples], _MIN_GROWTH * machine.limit)
    growth, rank = max((_compute_growth(_get_values(samples, rank, "memory"), 0.0), rank) for rank in samples[-1].ranks)
    if machine.memory >= FULL_SHARE * machine.limit:
        used, rank = max((use.memory or 0.0, rank) for rank, use in samples[-1].ranks.items())
        text = f"The memory{on_host} is {100 * machine.memory / machine.limit:.0f} % full {free}. "
        yield ResourceMark("memory", rank, host, f"{text}Rank {rank} uses the most, {size(used)}.")
    elif rate and available / rate <= _SOON_SECONDS and growth >= _MIN_RANK_SHARE * rate:
        text = f"Rank {rank}{on_host} will run out of memory in about {duration(available / rate)} if it keeps growing "
        yield ResourceMark("memory", rank, host, f"{text}by {size(rate)} per second {free}.")


def _find_gpu_problems(samples: Sequence[ResourceSample], host: str) -> Iterator[ResourceMark]:
    on_host = f" on {host}" if host else ""
    if samples[-1].t - samples[0].t < _WINDOW_SECONDS - 1:
        return
    for rank, use in samples[-1].ranks.items():
        rate = _compute_growth(_get_values(samples, rank, "gpu_memory"), _MIN_GROWTH * (use.gpu_limit or 0.0))
        if use.gpu_limit and rate:
            seconds = max(0.0, use.gpu_limit - (use.gpu_memory or 0.0)) / rate
            text = f"The GPU memory of rank {rank}{on_host} grows by {size(rate)} per second and will be full in about "
            tensor_growth = _compute_growth(_get_values(samples, rank, "torch_allocated"), 0.0)
            remedy = _KEEP_NUMBERS if tensor_growth or use.torch_allocated is None else _FREE_GPU_MEMORY
            yield ResourceMark("gpu_memory", rank, host, f"{text}{duration(seconds)}. {remedy}")
        busy = [value for _, value in _get_values(samples, rank, "gpu") if value is not None]
        if len(busy) == len(samples) and max(busy) < IDLE_PERCENT:
            text = f"The GPU of rank {rank}{on_host} has been idle for {duration(_WINDOW_SECONDS)}: under "
            text += f"{IDLE_PERCENT:.0f} % busy, while the rank uses {use.cpu or 0:.0f} % of a core."
            yield ResourceMark("gpu", rank, host, text)


def _get_values(samples: Sequence[ResourceSample], rank: int, name: str) -> list[tuple[float, float | None]]:
    return [(sample.t, getattr(sample.ranks[rank], name)) for sample in samples if rank in sample.ranks]


def _compute_growth(points: Sequence[tuple[float, float | None]], min_growth: float) -> float:
    """Return the growth of a value per second; 0 unless it grew in each quarter of the time and by ``min_growth``.

    Also 0 if the values cover less than ``_TREND_SECONDS``.
    """
    known = [(t, value) for t, value in points if value is not None]
    if not known:
        return 0.0
    borders = [known[(len(known) - 1) * quarter // 4] for quarter in range(5)]
    seconds, growth = borders[-1][0] - borders[0][0], borders[-1][1] - borders[0][1]
    is_steady = all(before < after for (_, before), (_, after) in pairwise(borders))
    return growth / seconds if is_steady and seconds >= _TREND_SECONDS and growth >= min_growth else 0.0
