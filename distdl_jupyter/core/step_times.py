"""Step times of a job, reported by its ranks and compared between them.

``steps.jsonl`` in a job's folder has one line for each report of ``worker.step_times``::

    {"v", "t", "type": "steps", "attempt", "rank", "first", "size",
     "records": [[seconds, data, rest, samples, wait, ...], ...]}

``first`` is the first step of the first record, from 0 in each attempt; a record covers ``size`` steps. Times are in
microseconds.

A collective operation ends on all ranks at about the same time, so the rank with the shortest wait was the last to
enter it. This shortest wait is the cost of the operation itself (``communication``); the rest of a rank's wait is spent
on the slowest rank (``waiting``).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from distdl_jupyter.core import events
from distdl_jupyter.core.events import State
from distdl_jupyter.worker.step_times import HEAD_SIZE

#: The parts of a step in display order.
PARTS = ("data", "compute", "communication", "rest", "waiting")
#: Minimum number of measured steps for a straggler: with fewer, chance decides which rank is late.
_MIN_STEPS = 15
#: Minimum delay by a straggler: as a share of its mean step, in seconds, and as a multiple of the standard error.
_MIN_SHARE, _MIN_SECONDS, _MIN_SIGMA = 0.05, 0.0005, 4.0
#: Minimum length of a pause in seconds and in mean steps. Pauses vary too much for a test of the mean.
_MIN_PAUSE_SECONDS, _MIN_PAUSE_STEPS = 0.1, 3.0
#: Minimum number of pauses of a straggler, and its minimum ratio to the pauses of any other rank.
_MIN_PAUSE_COUNT, _MIN_PAUSE_RATIO = 3, 3


@dataclass(frozen=True, slots=True)
class StepTime:
    """The mean step of one rank, in seconds. It covers ``steps`` steps from ``step`` onwards.

    ``samples`` is the number of samples in a step, or their sum in the mean of a whole job.
    """

    rank: int
    attempt: int
    step: int
    steps: int
    seconds: float
    data: float
    compute: float
    waiting: float
    communication: float
    rest: float
    samples: float = 0.0
    host: str = ""


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for most, because of its data, compute or rest (``cause``).

    The mean step loses ``seconds``, which is ``percent`` of it. If rare long delays make up most of the loss,
    ``pauses`` is their number and ``pause_seconds`` their mean.
    """

    rank: int
    host: str
    cause: str
    seconds: float
    percent: float
    pauses: int = 0
    pause_seconds: float = 0.0
    ended: bool = False

    def __str__(self) -> str:
        """Return it as a sentence."""
        rank = f"Rank {self.rank} ({self.host})" if self.host else f"Rank {self.rank}"
        verb = "delayed" if self.ended else "delays"
        pauses = f"paused {self.pauses} times for about {self.pause_seconds:.2g} s, which {verb} the mean step"
        loss = f"{self.seconds * 1000:.3g} ms ({self.percent:.0f} %)"
        return f"{rank} {pauses if self.pauses else f'{verb} every step'} by {loss}. {_CAUSES[self.cause][self.ended]}"


#: Why a rank is late, while the job runs and when it has ended.
_CAUSES = {
    "data": ("It waits longer for its data.", "It waited longer for its data."),
    "compute": ("Its computation takes longer.", "Its computation took longer."),
    "rest": (
        "It spends the time between steps, for example on logging or checkpoints.",
        "It spent the time between steps, for example on logging or checkpoints.",
    ),
}


@dataclass
class StepTimes:
    """The steps of one job; ``hosts`` are the hosts of its ranks. ``why`` is the reason why ``rows`` is empty."""

    rows: list[StepTime] = field(default_factory=list)
    hosts: Mapping[int, str] = field(default_factory=dict)
    why: str = ""
    ended: bool = False

    def ranks(self) -> list[StepTime]:
        """Return the mean step of each rank, in order of ranks, without the first step, which includes setup."""
        return self._means

    @functools.cached_property
    def _means(self) -> list[StepTime]:
        by_rank: dict[int, list[StepTime]] = defaultdict(list)
        for row in self._rows_without_setup:
            by_rank[row.rank].append(row)
        means = []
        for _, rows in sorted(by_rank.items()):
            steps = sum(row.steps for row in rows)
            parts = {part: sum(getattr(row, part) * row.steps for row in rows) / steps for part in ("seconds", *PARTS)}
            first, samples = rows[0], round(sum(row.samples * row.steps for row in rows))
            means.append(replace(first, steps=steps, **parts, samples=samples))
        return means

    @property
    def _rows_without_setup(self) -> list[StepTime]:
        return [row for row in self.rows if row.step] or self.rows

    @property
    def samples_per_second(self) -> float | None:
        """The samples per second of all ranks, or None if their number is unknown."""
        rates = [mean.samples / (mean.steps * mean.seconds) for mean in self._means if mean.samples and mean.seconds]
        return sum(rates) if rates else None

    @property
    def own_share(self) -> float | None:
        """The share of all ranks' time that is not communication or waiting (0 to 1), or None without steps."""
        total = sum(mean.seconds * mean.steps for mean in self._means)
        lost = sum((mean.communication + mean.waiting) * mean.steps for mean in self._means)
        return max(0.0, 1 - lost / total) if total else None

    @property
    def has_enough_steps(self) -> bool:
        """Whether enough steps were measured to distinguish a late rank from chance."""
        return max((mean.steps for mean in self._means), default=0) >= _MIN_STEPS

    @functools.cached_property
    def straggler(self) -> Straggler | None:
        """The rank that the others wait for most, or None if no rank is significantly slower than the others."""
        means = {mean.rank: mean for mean in self._means}
        #: By rank, for each record: the delay relative to the median of the others, and the number of steps.
        delays: dict[int, list[tuple[float, int]]] = defaultdict(list)
        groups = itertools.groupby(self._rows_without_setup, key=lambda row: (row.attempt, row.step, row.steps))
        for rows in (sorted(group, key=lambda row: row.waiting) for _, group in groups):
            waits = [row.waiting for row in rows]
            for index, row in enumerate(rows if 1 < len(rows) == len(means) else ()):
                delays[row.rank].append((_find_median_without(waits, index) - row.waiting, row.steps))
        if not delays or not self.has_enough_steps:
            return None
        mean_delays = {rank: _average(values) for rank, values in delays.items()}
        rank = max(mean_delays, key=mean_delays.__getitem__)
        seconds, step = mean_delays[rank], means[rank].seconds
        pauses = _find_pauses(delays, rank, max(_MIN_PAUSE_SECONDS, _MIN_PAUSE_STEPS * (step - seconds)))
        variance = _average([((delay - seconds) ** 2, steps) for delay, steps in delays[rank]])
        is_clear = pauses or seconds >= _MIN_SIGMA * math.sqrt(variance / len(delays[rank]))
        if seconds < max(_MIN_SECONDS, _MIN_SHARE * step) or not is_clear:
            return None
        excess = {}
        for part in _CAUSES:
            others = sorted(getattr(mean, part) for mean in means.values() if mean.rank != rank)
            excess[part] = getattr(means[rank], part) - _find_median(others)
        cause, percent = max(excess, key=excess.__getitem__), 100 * seconds / step
        pause_seconds = sum(pauses) / max(1, len(pauses))
        return Straggler(rank, means[rank].host, cause, seconds, percent, len(pauses), pause_seconds, self.ended)


def _find_pauses(delays: Mapping[int, Sequence[tuple[float, int]]], rank: int, min_seconds: float) -> list[float]:
    """Return the long delays of a rank, or [] if they do not explain most of its lateness or others pause too."""
    pauses: dict[int, list[float]] = {}
    for other, values in delays.items():
        median = _find_median(sorted(delay for delay, _ in values))
        pauses[other] = [long for delay, steps in values if (long := (delay - median) * steps) >= min_seconds]
    max_others = max(len(others) for other, others in pauses.items() if other != rank)
    has_too_few = len(pauses[rank]) < max(_MIN_PAUSE_COUNT, _MIN_PAUSE_RATIO * max_others)
    total = sum(delay * steps for delay, steps in delays[rank])
    return [] if has_too_few or sum(pauses[rank]) < total / 2 else pauses[rank]


def read(path: Path, hosts: Mapping[int, str] | None = None, *, ended: bool = False) -> StepTimes:
    """Return the steps of a job so far, in order of attempts, steps and ranks."""
    reader = StepTimesReader(path)
    reader.read()
    return reader.get_times(hosts, ended=ended)


class StepTimesReader:
    """Reads a job's steps while they are written: all records, or the newest ``max_records``."""

    def __init__(self, path: Path, max_records: int | None = None) -> None:
        self._path, self._max_records = path, max_records
        #: Number of bytes read.
        self.cursor = 0
        #: By attempt, first step and number of steps, the record of each rank.
        self._records: dict[tuple[int, int, int], dict[int, list[int]]] = {}
        #: The ranks of each attempt.
        self._ranks: dict[int, set[int]] = defaultdict(set)

    def read(self) -> bool:
        """Read new reports; return False if there are none."""
        batch, self.cursor = events.read_all(self._path, self.cursor)
        for event in batch:
            if event["type"] == "steps":
                attempt, rank, first, size = (event[name] for name in ("attempt", "rank", "first", "size"))
                self._ranks[attempt].add(rank)
                for index, record in enumerate(event["records"]):
                    self._records.setdefault((attempt, first + index * size, size), {})[rank] = record
        for old in sorted(self._records)[: -self._max_records] if batch and self._max_records else ():
            del self._records[old]
        return bool(batch)

    def get_times(self, hosts: Mapping[int, str] | None = None, *, ended: bool = False) -> StepTimes:
        """Return the steps read so far, in order of attempts, steps and ranks.

        If ranks wait for each other, steps that a rank has not reported yet are left out.
        """
        hosts = hosts or {}
        records = sorted(self._records.items())
        complete = [
            (key, by_rank)
            for key, by_rank in records
            if len(by_rank) >= len(self._ranks[key[0]]) or all(len(record) == HEAD_SIZE for record in by_rank.values())
        ]
        rows = []
        for (attempt, step, size), by_rank in complete or records:
            blocked = {rank: record[HEAD_SIZE:] for rank, record in by_rank.items()}
            if len({len(durations) for durations in blocked.values()}) > 1:
                # One rank waited more often than another: compare only the sums.
                blocked = {rank: [sum(durations)] for rank, durations in blocked.items()}
            shortest = sum(min(column) for column in zip(*blocked.values(), strict=True))
            divisor = 1e6 * size  # from microseconds of all steps to seconds of one
            for rank, (seconds, data, rest, samples, *_) in sorted(by_rank.items()):
                waited = sum(blocked[rank])
                step_time = StepTime(
                    rank, attempt, step, size,
                    seconds=seconds / divisor,
                    data=data / divisor,
                    compute=max(0, seconds - data - waited - rest) / divisor,
                    waiting=(waited - shortest) / divisor,
                    communication=shortest / divisor,
                    rest=rest / divisor,
                    samples=samples / size,
                    host=hosts.get(rank, ""),
                )  # fmt: skip
                rows.append(step_time)
        return StepTimes(rows, hosts, ended=ended)


# These replace the statistics module, because importing it takes longer than importing this whole package.
def _find_median(ordered: Sequence[float]) -> float:
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _find_median_without(ordered: Sequence[float], index: int) -> float:
    """Return the median of all values but one, without copying them for each of many ranks."""
    low, high = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
    return (ordered[low + (low >= index)] + ordered[high + (high >= index)]) / 2


def _average(values: Sequence[tuple[float, int]]) -> float:
    return sum(value * weight for value, weight in values) / sum(weight for _, weight in values)


#: Number of steps at the start of a run that are not measured, and minimum number of measured steps.
WARM_UP_STEPS, MIN_STEPS = 5, 16
#: The end of the message about a run with fewer steps.
TOO_FEW_STEPS = f"made too few steps to measure. An optimizer must make at least {WARM_UP_STEPS + MIN_STEPS} steps."
#: Number of blocks of a run whose rates give its standard error.
_BLOCK_COUNT = 8
#: An efficiency above this limit means that the two runs did not do the same work.
MAX_EFFICIENCY = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """A short run of a scaling study: its ``rate`` in samples per second with the standard ``error``.

    ``busy``, ``communication`` and ``waiting`` are seconds of the mean step, medians over ranks. ``batch`` is the
    number of samples of all ranks per step. If the samples are unknown, ``rate`` and ``batch`` count batches.
    ``backend``, ``processes`` and ``nodes`` are set when the run becomes a point of a study.
    """

    rate: float
    error: float
    busy: float
    communication: float
    waiting: float
    batch: float
    steps: int
    counts_samples: bool = True
    backend: str = ""
    processes: int = 0
    nodes: int = 0

    @property
    def seconds(self) -> float:
        """The measured time in seconds."""
        return self.steps * self.batch / self.rate

    def is_complete(self, state: State, seconds: float) -> bool:
        """Return whether a run in this state was measured to its end, or for ``seconds`` if it was stopped."""
        return state is State.COMPLETED or (state is State.CANCELED and self.seconds >= seconds)


def measure_run(times: StepTimes) -> ScalingPoint | None:
    """Return the throughput of a job without its warm-up steps, or None if there are too few steps."""
    by_step: dict[int, list[StepTime]] = {}
    for row in times.rows:
        if row.attempt == times.rows[-1].attempt and row.step >= WARM_UP_STEPS:
            by_step.setdefault(row.step, []).append(row)
    ranks = max((len(record) for record in by_step.values()), default=0)
    records = [record for _, record in sorted(by_step.items()) if len(record) == ranks]
    steps = sum(record[0].steps for record in records)
    if steps < MIN_STEPS:
        return None
    counts_samples = all(row.samples for record in records for row in record)
    # In a long training, a record covers several steps.
    amounts = [sum(row.samples if counts_samples else 1.0 for row in record) * record[0].steps for record in records]
    durations = [sum(row.seconds for row in record) / ranks * record[0].steps for record in records]
    borders = [len(amounts) * index // _BLOCK_COUNT for index in range(_BLOCK_COUNT + 1)]
    blocks = [slice(*border) for border in itertools.pairwise(borders)]
    rates = [sum(amounts[block]) / sum(durations[block]) for block in blocks if durations[block]]
    rate, mean_rate, count = sum(amounts) / sum(durations), sum(rates) / len(rates), len(rates)
    variance = math.fsum((value - mean_rate) ** 2 for value in rates) / max(1, count - 1)
    means = StepTimes([row for record in records for row in record]).ranks()
    return ScalingPoint(
        rate=rate, error=math.sqrt(variance / count) if count > 1 else rate,
        busy=_find_median(sorted(mean.data + mean.compute + mean.rest for mean in means)),
        communication=_find_median(sorted(mean.communication for mean in means)),
        waiting=_find_median(sorted(mean.waiting for mean in means)),
        batch=sum(amounts) / steps, steps=steps, counts_samples=counts_samples,
    )  # fmt: skip


def compute_efficiency(first: tuple[int, float], other: tuple[int, float]) -> float | None:
    """Return the rate per process relative to the first run's, both as (processes, rate), or None if not comparable."""
    ratio = (other[1] / other[0]) / (first[1] / first[0])
    return ratio if ratio <= MAX_EFFICIENCY else None


@dataclass(slots=True, repr=False)
class Scaling:
    """The ``points`` of a study for each backend, in order of processes."""

    name: str = ""
    points: list[ScalingPoint] = field(default_factory=list)

    @property
    def backends(self) -> list[str]:
        """The backends in the requested order."""
        return list(dict.fromkeys(point.backend for point in self.points))

    def of(self, backend: str) -> list[ScalingPoint]:
        """Return the points of a backend, the fewest processes first."""
        return sorted((point for point in self.points if point.backend == backend), key=lambda point: point.processes)

    def efficiency(self, point: ScalingPoint) -> float | None:
        """Return the rate per process relative to the point with the fewest processes, which is 1.

        None if the two runs are not comparable.
        """
        first = self.of(point.backend)[0]
        return compute_efficiency((first.processes, first.rate), (point.processes, point.rate))
