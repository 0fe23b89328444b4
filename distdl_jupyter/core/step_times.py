"""Step times of a job, reported by its ranks and compared between them.

``steps.jsonl`` in a job's folder has one line for each report of ``worker.step_times``::

    {"v", "t", "type": "steps", "attempt", "rank", "first", "size",
     "records": [[seconds, data, rest, samples, wait, ...], ...]}

``first`` is the first step of the first record, from 0 in each attempt; a record covers ``size`` steps. Times are in
microseconds.

A collective operation ends on all ranks at about the same time, so the rank with the shortest wait was the last to
enter it. This shortest wait is the cost of the operation itself (``communication``); the rest of a rank's wait is spent
on the slowest rank (``waiting``). The clocks of ranks are not compared.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distdl_jupyter.core import events
from distdl_jupyter.core.events import State
from distdl_jupyter.worker.step_times import HEAD_SIZE

Record = list[int]
#: The parts of a step in display order.
PARTS = ("data", "compute", "communication", "rest", "waiting")
#: Minimum number of measured steps for a straggler: with fewer, chance decides which rank is late.
_MIN_STEPS = 15
#: Minimum delay by a straggler as a share of its mean step.
_MIN_SHARE = 0.05
#: Minimum delay by a straggler in seconds.
_MIN_SECONDS = 0.0005
#: Minimum delay by a straggler as a multiple of the standard error.
_MIN_SIGMA = 4.0
#: Minimum length of a pause in seconds. Pauses vary too much for a test of the mean.
_MIN_PAUSE_SECONDS = 0.1
#: Minimum length of a pause in mean steps.
_MIN_PAUSE_STEPS = 3.0
#: Minimum number of pauses of a straggler.
_MIN_PAUSE_COUNT = 3
#: Minimum ratio of a straggler's number of pauses to that of any other rank.
_MIN_PAUSE_RATIO = 3
#: Seconds in a microsecond.
_MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class StepTime:
    """The mean step of one record of one rank, in seconds. It covers ``steps`` steps from ``step`` onwards."""

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


@dataclass(frozen=True, slots=True)
class RankTime:
    """The mean step of one rank, in seconds. ``samples`` and ``steps`` are totals of the whole job."""

    rank: int
    host: str
    steps: int
    seconds: float
    data: float
    compute: float
    waiting: float
    communication: float
    rest: float
    samples: int = 0


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
        delay = f"{verb} every step"
        if self.pauses:
            delay = f"paused {self.pauses} times for about {self.pause_seconds:.2g} s, which {verb} the mean step"
        cause = _CAUSES[self.cause][self.ended]
        return f"{rank} {delay} by {self.seconds * 1000:.3g} ms ({self.percent:.0f} %). {cause}"


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

    def ranks(self) -> list[RankTime]:
        """Return the mean step of each rank, in order of ranks, without the first step, which includes setup."""
        return self._means

    @functools.cached_property
    def _means(self) -> list[RankTime]:
        by_rank: dict[int, list[StepTime]] = defaultdict(list)
        for row in _drop_first(self.rows):
            by_rank[row.rank].append(row)
        means = []
        for rank, rows in sorted(by_rank.items()):
            steps, samples = sum(row.steps for row in rows), sum(row.samples * row.steps for row in rows)
            parts = {part: sum(getattr(row, part) * row.steps for row in rows) / steps for part in ("seconds", *PARTS)}
            means.append(RankTime(rank, self.hosts.get(rank, ""), steps, **parts, samples=round(samples)))
        return means

    @property
    def samples_per_second(self) -> float | None:
        """The samples per second of all ranks, or None if their number is unknown."""
        means = [mean for mean in self._means if mean.samples and mean.seconds]
        return sum(mean.samples / (mean.steps * mean.seconds) for mean in means) if means else None

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
        if len(means) < 2 or not self.has_enough_steps:
            return None
        #: By rank, for each record: the delay relative to the median of the others, and the number of steps.
        delays: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for _, group in itertools.groupby(_drop_first(self.rows), key=lambda row: (row.attempt, row.step, row.steps)):
            rows = sorted(group, key=lambda row: row.waiting)
            wait_times = [row.waiting for row in rows]
            for index, row in enumerate(rows if len(rows) == len(means) else ()):
                median = _find_median(wait_times[:index] + wait_times[index + 1 :])
                delays[row.rank].append((median - row.waiting, row.steps))
        if not delays:
            return None
        rank = max(delays, key=lambda candidate: _average_weighted(delays[candidate]))
        seconds, step = _average_weighted(delays[rank]), means[rank].seconds
        pauses = _find_pauses(delays, rank, max(_MIN_PAUSE_SECONDS, _MIN_PAUSE_STEPS * (step - seconds)))
        variance = _average_weighted([((delay - seconds) ** 2, steps) for delay, steps in delays[rank]])
        is_clear = bool(pauses) or seconds >= _MIN_SIGMA * math.sqrt(variance / len(delays[rank]))
        if seconds < max(_MIN_SECONDS, _MIN_SHARE * step) or not is_clear:
            return None

        def get_excess(part: str) -> float:
            others = sorted(getattr(mean, part) for mean in means.values() if mean.rank != rank)
            return float(getattr(means[rank], part) - _find_median(others))

        return Straggler(
            rank,
            self.hosts.get(rank, ""),
            max(_CAUSES, key=get_excess),
            seconds,
            percent=100 * seconds / step,
            pauses=len(pauses),
            pause_seconds=_average(pauses) if pauses else 0.0,
            ended=self.ended,
        )


def _find_pauses(delays: Mapping[int, Sequence[tuple[float, int]]], rank: int, min_seconds: float) -> list[float]:
    """Return the delays of a rank that exceed its median by at least ``min_seconds`` per record.

    Empty if they do not explain most of its lateness, or if other ranks also pause.
    """
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
        self._path, self._max_records, self._cursor = path, max_records, 0
        self._records: dict[tuple[int, int, int], dict[int, Record]] = {}
        #: The ranks of each attempt.
        self._ranks: dict[int, set[int]] = defaultdict(set)
        #: The reports read so far: a supervisor that takes over may write some of them twice.
        self._keys: set[tuple[int, int, int]] = set()

    @property
    def count(self) -> int:
        """The number of reports read so far."""
        return len(self._keys)

    def read(self) -> bool:
        """Read new reports; return False if there are none."""
        count_before = self.count
        batch, self._cursor = events.read_all(self._path, self._cursor)
        for event in batch:
            if event["type"] != "steps" or (key := (event["attempt"], event["rank"], event["first"])) in self._keys:
                continue
            self._keys.add(key)
            attempt, rank, first = key
            self._ranks[attempt].add(rank)
            for index, record in enumerate(event["records"]):
                self._records.setdefault((attempt, first + index * event["size"], event["size"]), {})[rank] = record
            if self._max_records is not None:
                for old in sorted(self._records)[: -self._max_records]:
                    del self._records[old]
        return self.count > count_before

    def get_times(self, hosts: Mapping[int, str] | None = None, *, ended: bool = False) -> StepTimes:
        """Return the steps read so far, in order of attempts, steps and ranks.

        If ranks wait for each other, steps that a rank has not reported yet are left out.
        """
        records = sorted(self._records.items())
        complete = [
            (key, by_rank)
            for key, by_rank in records
            if len(by_rank) >= len(self._ranks[key[0]]) or all(len(record) == HEAD_SIZE for record in by_rank.values())
        ]
        rows = [row for key, by_rank in complete or records for row in _compare_ranks(*key, by_rank)]
        return StepTimes(rows, hosts or {}, ended=ended)


def _compare_ranks(attempt: int, step: int, size: int, records: dict[int, Record]) -> Iterable[StepTime]:
    """Yield the rows of one record of all ranks."""
    blocked = {rank: record[HEAD_SIZE:] for rank, record in records.items()}
    if len({len(durations) for durations in blocked.values()}) > 1:
        # One rank waited more often than another: compare only the sums.
        blocked = {rank: [sum(durations)] for rank, durations in blocked.items()}
    shortest = sum(min(column) for column in zip(*blocked.values(), strict=True))
    for rank, record in sorted(records.items()):
        seconds, data, rest, samples, *_ = record
        waited = sum(blocked[rank])
        parts = {"seconds": seconds, "data": data, "compute": max(0, seconds - data - waited - rest), "rest": rest}
        parts |= {"waiting": waited - shortest, "communication": shortest}
        means = {name: microseconds * _MICRO / size for name, microseconds in parts.items()}
        yield StepTime(rank, attempt, step, size, **means, samples=samples / size)


def _drop_first(rows: Sequence[StepTime]) -> Iterable[StepTime]:
    """Return the rows without the first step of each attempt, or all rows if there are no others."""
    return [row for row in rows if row.step] or rows


# These replace the statistics module, because importing it takes longer than importing this whole package.


def _average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _find_median(ordered: Sequence[float]) -> float:
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _average_weighted(values: Sequence[tuple[float, int]]) -> float:
    return sum(value * weight for value, weight in values) / sum(weight for _, weight in values)


#: Number of steps at the start of a run that are not measured.
WARM_UP_STEPS = 5
#: Minimum number of measured steps of a run.
MIN_STEPS = 16
#: Number of blocks of a run whose rates give its standard error.
_BLOCK_COUNT = 8
#: An efficiency above this limit means that the two runs did not do the same work.
MAX_EFFICIENCY = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A short run of a scaling study: its ``rate`` in samples per second with the standard ``error``.

    ``busy``, ``communication`` and ``waiting`` are seconds of the mean step, medians over ranks. ``batch`` is the
    number of samples of all ranks per step. If the samples are unknown, ``rate`` and ``batch`` count batches.
    """

    rate: float
    error: float
    busy: float
    communication: float
    waiting: float
    batch: float
    steps: int
    counts_samples: bool = True

    @property
    def seconds(self) -> float:
        """The measured time in seconds."""
        return self.steps * self.batch / self.rate

    def is_complete(self, state: State, seconds: float) -> bool:
        """Return whether a run in this state was measured to its end, or for ``seconds`` if it was stopped."""
        return state is State.COMPLETED or (state is State.CANCELED and self.seconds >= seconds)


def measure_run(times: StepTimes) -> Run | None:
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
    durations = [_average([row.seconds for row in record]) * record[0].steps for record in records]
    rate = sum(amounts) / sum(durations)
    borders = [len(amounts) * index // _BLOCK_COUNT for index in range(_BLOCK_COUNT + 1)]
    blocks = [slice(*border) for border in itertools.pairwise(borders)]
    rates = [sum(amounts[block]) / sum(durations[block]) for block in blocks if durations[block]]
    mean_rate, count = _average(rates), len(rates)
    variance = math.fsum((value - mean_rate) ** 2 for value in rates) / max(1, count - 1)
    means = StepTimes([row for record in records for row in record]).ranks()
    return Run(
        rate=rate, error=math.sqrt(variance / count) if count > 1 else rate,
        busy=_find_median(sorted(mean.data + mean.compute + mean.rest for mean in means)),
        communication=_find_median(sorted(mean.communication for mean in means)),
        waiting=_find_median(sorted(mean.waiting for mean in means)),
        batch=sum(amounts) / steps, steps=steps, counts_samples=counts_samples,
    )  # fmt: skip


def describe_too_few_steps(name: str) -> str:
    """Return the message about a run that ended too early."""
    return f"{name} made too few steps to measure. An optimizer must make at least {WARM_UP_STEPS + MIN_STEPS} steps."


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint(Run):
    """The run of one backend with one number of processes."""

    backend: str
    processes: int
    nodes: int


def compute_efficiency(first: tuple[int, float], other: tuple[int, float]) -> float | None:
    """Return the rate per process relative to the first run, both as (processes, rate).

    None if it is above ``MAX_EFFICIENCY``, because such runs cannot be compared.
    """
    ratio = (other[1] / other[0]) / (first[1] / first[0])
    return ratio if ratio <= MAX_EFFICIENCY else None


@dataclass(slots=True)
class Scaling:
    """The points of each backend in order of processes."""

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
