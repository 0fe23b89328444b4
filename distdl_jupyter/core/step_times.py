"""Step times of a job, reported by its ranks and compared between them.

``steps.jsonl`` in a job's folder has one line for each report of ``worker.step_times``::

    {"v", "t", "type": "steps", "attempt", "rank", "first", "size", "sending",
     "records": [[seconds, data, rest, samples, wait, ...], ...]}

``first`` is the first step of the first record, from 0 in each attempt; a record covers ``size`` steps. Times are in
microseconds. ``sending`` is the time that the rank's busiest connection sent in these steps (``worker.step_times``).

A collective operation ends on all ranks at about the same time, so the rank with the shortest blocked time was the last
to enter it. This shortest time is the cost of the operation itself (``communication``); the rest of a rank's blocked
time is spent waiting for the slowest rank (``waiting``). The clocks of ranks are not compared.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdl_jupyter.core import events
from distdl_jupyter.core.state import State
from distdl_jupyter.worker.step_times import HEAD

Record = list[int]
#: The parts of a step in display order.
PARTS = ("data", "compute", "communication", "rest", "waiting")
#: Minimum number of measured steps to report a straggler: with fewer, chance decides which rank is late.
_FEWEST_STEPS = 15
#: Minimum delay by a straggler: as a share of its mean step, in seconds, and as a multiple of the standard error.
_LEAST_SHARE, _LEAST_SECONDS, _LEAST_SIGMA = 0.05, 0.0005, 4.0
#: Minimum length of a pause, in seconds and in mean steps; minimum number of pauses of a straggler, also as a multiple
#: of those of any other rank. Pauses vary too much for the test of the mean.
_LEAST_PAUSE, _PAUSE_STEPS, _FEWEST_PAUSES, _TIMES_OTHERS_PAUSES = 0.1, 3.0, 3, 3
#: Minimum time that a slow link sends in a mean step: as a share of the step, and in seconds. Data to a late rank is
#: acknowledged late, and the kernel counts in ticks of up to 10 ms.
_LEAST_LINK_SHARE, _LEAST_LINK_SECONDS = 0.1, 0.005
#: Replaces ``_LEAST_LINK_SECONDS`` if all ranks are on one host: longer than a delayed acknowledgment.
_LEAST_LOCAL_SECONDS = 0.05
#: A slow link sends for at least this share of the rank's communication, and this many times as long as the median of
#: the other ranks.
_EXPLAINED, _TIMES_OTHERS = 0.75, 1.25
_MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class StepTime:
    """The mean step of one record of one rank, in seconds. It covers ``steps`` steps from ``step`` on."""

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
    """The rank for which the others wait most.

    ``cause`` is "data", "compute", "rest" or "link"; ``seconds`` are lost in the mean step, which is ``percent`` of it.
    ``pauses`` counts the rare long delays that make up most of the loss, of ``pause_seconds`` on average; 0 where the
    rank is late in most steps. ``same_host`` is true if all ranks are on one host, ``ended`` if the job is over.
    """

    rank: int
    host: str
    cause: str
    seconds: float
    percent: float
    pauses: int = 0
    pause_seconds: float = 0.0
    same_host: bool = False
    ended: bool = False

    def __str__(self) -> str:
        """Return it as a sentence."""
        rank = f"Rank {self.rank} ({self.host})" if self.host else f"Rank {self.rank}"
        cost, tense = f"{self.seconds * 1000:.3g} ms", int(self.ended)
        cause = _CAUSES["local link" if self.cause == "link" and self.same_host else self.cause][tense]
        if self.pauses:
            pauses = f"paused {self.pauses} times for about {self.pause_seconds:.2g} s"
            delay = ("which delays", "which delayed")[tense]
            return f"{rank} {pauses}, {delay} the mean step by {cost} ({self.percent:.0f} %). {cause}"
        return f"{rank} {('delays', 'delayed')[tense]} every step by {cost} ({self.percent:.0f} %). {cause}"


#: Why a rank is late, while the job runs and when it has ended.
_CAUSES = {
    "data": ("It waits longer for its data.", "It waited longer for its data."),
    "compute": ("Its computation takes longer.", "Its computation took longer."),
    "rest": (
        "It spends the time between steps, for example on logging or checkpoints.",
        "It spent the time between steps, for example on logging or checkpoints.",
    ),
    "link": (
        "The others wait for what it sends over the network.",
        "The others waited for what it sent over the network.",
    ),
    "local link": ("The others wait for what it sends.", "The others waited for what it sent."),
}


@dataclass
class StepTimes:
    """The steps of one job; ``hosts`` are the hosts of its ranks, ``ended`` is true if the job is over.

    ``why`` is the reason why there are no steps, or "".
    """

    rows: list[StepTime] = field(default_factory=list)
    hosts: Mapping[int, str] = field(default_factory=dict)
    #: Microseconds that the busiest connection of each rank was sending, and the number of steps.
    sending: dict[int, tuple[int, int]] = field(default_factory=dict)
    why: str = ""
    ended: bool = False

    def ranks(self) -> list[RankTime]:
        """Return the mean step of each rank, in order of ranks, without the first step, which includes setup."""
        return self._means

    @functools.cached_property
    def _means(self) -> list[RankTime]:
        by_rank: dict[int, list[StepTime]] = defaultdict(list)
        for row in _warm(self.rows):
            by_rank[row.rank].append(row)
        return [_mean(rank, self.hosts.get(rank, ""), rows) for rank, rows in sorted(by_rank.items())]

    @property
    def samples_per_second(self) -> float | None:
        """Return the samples per second of all ranks, or None if their number is unknown."""
        measured = [rank_time for rank_time in self.ranks() if rank_time.samples and rank_time.seconds]
        return (
            sum(rank_time.samples / (rank_time.steps * rank_time.seconds) for rank_time in measured)
            if measured
            else None
        )

    @property
    def own_share(self) -> float | None:
        """Return the share of all ranks' time that is not communication or waiting, 0 to 1; None without steps."""
        total = sum(rank_time.seconds * rank_time.steps for rank_time in self.ranks())
        lost = sum((rank_time.communication + rank_time.waiting) * rank_time.steps for rank_time in self.ranks())
        return max(0.0, 1 - lost / total) if total else None

    @property
    def _on_one_host(self) -> bool:
        hosts = {self.hosts.get(rank_time.rank, "") for rank_time in self.ranks()}
        return len(hosts) == 1 and hosts != {""}

    @property
    def has_enough_steps(self) -> bool:
        """Return whether enough steps were measured to distinguish a late rank from chance."""
        return max((rank_time.steps for rank_time in self.ranks()), default=0) >= _FEWEST_STEPS

    @functools.cached_property
    def straggler(self) -> Straggler | None:
        """The rank for which the others wait most; None if no rank is significantly slower than the others."""
        means = {rank_time.rank: rank_time for rank_time in self.ranks()}
        if len(means) < 2 or not self.has_enough_steps:
            return None
        slowest, link = self._slowest(means), self._slow_link(means)
        # A late rank also acknowledges late, so its peers seem to send for longer.
        return link if link and not (slowest and slowest.seconds > link.seconds / 2) else slowest

    def _slowest(self, means: dict[int, RankTime]) -> Straggler | None:
        late: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for rows in _complete(self.rows, len(means)):
            waits = sorted((row.waiting, at) for at, row in enumerate(rows))
            for position, (_, at) in enumerate(waits):
                row = rows[at]
                late[row.rank].append((_median_without(waits, position) - row.waiting, row.steps))
        if not late:
            return None
        rank = max(late, key=lambda candidate: _weighted(late[candidate]))
        seconds = _weighted(late[rank])
        if seconds < max(_LEAST_SECONDS, _LEAST_SHARE * means[rank].seconds):
            return None
        pauses = self._long_pauses(means, late, rank)
        if not pauses and seconds < _LEAST_SIGMA * _error(late[rank], seconds):
            return None
        cause = max(_OWN_PARTS, key=lambda part: _excess(means, rank, part))
        return self._straggler(rank, cause, seconds, means, pauses)

    @staticmethod
    def _long_pauses(means: dict[int, RankTime], late: dict[int, list[tuple[float, int]]], rank: int) -> list[float]:
        """Return the rare delays of a rank if they explain most of its lateness, else an empty list."""
        least = max(_LEAST_PAUSE, _PAUSE_STEPS * (means[rank].seconds - _weighted(late[rank])))
        pauses = {other: _delays_above(least, values) for other, values in late.items()}
        others = max(len(delays) for other, delays in pauses.items() if other != rank)
        total = sum(value * steps for value, steps in late[rank])
        is_too_few = len(pauses[rank]) < max(_FEWEST_PAUSES, _TIMES_OTHERS_PAUSES * others)
        return [] if is_too_few or sum(pauses[rank]) < total / 2 else pauses[rank]

    def _slow_link(self, means: dict[int, RankTime]) -> Straggler | None:
        """Return the rank that sends much longer than the others, if that explains its communication time."""
        sent = {
            rank: spent * _MICRO / steps for rank, (spent, steps) in self.sending.items() if steps and rank in means
        }
        if len(sent) < 2:
            return None
        rank = max(sent, key=lambda candidate: sent[candidate])
        others = _median(spent for other, spent in sent.items() if other != rank)
        seconds = min(sent[rank], means[rank].communication)
        least = max(
            _TIMES_OTHERS * others,
            _EXPLAINED * means[rank].communication,
            _LEAST_LINK_SHARE * means[rank].seconds,
            _LEAST_LOCAL_SECONDS if self._on_one_host else _LEAST_LINK_SECONDS,
        )
        if seconds < least:
            return None
        return self._straggler(rank, "link", seconds, means)

    def _straggler(
        self, rank: int, cause: str, seconds: float, means: dict[int, RankTime], pauses: Sequence[float] = ()
    ) -> Straggler:
        return Straggler(
            rank,
            self.hosts.get(rank, ""),
            cause,
            seconds,
            percent=100 * seconds / means[rank].seconds,
            pauses=len(pauses),
            pause_seconds=sum(pauses) / len(pauses) if pauses else 0.0,
            same_host=self._on_one_host,
            ended=self.ended,
        )


_OWN_PARTS = ("data", "compute", "rest")


def read(path: Path, hosts: Mapping[int, str] | None = None, *, ended: bool = False) -> StepTimes:
    """Return the steps of a job so far, in order of attempts, steps and ranks."""
    reader = StepTimesReader(path)
    reader.read()
    return reader.times(hosts, ended=ended)


class StepTimesReader:
    """Reads a job's steps while they are written; ``newest`` is how many records are kept, None for all."""

    def __init__(self, path: Path, newest: int | None = None) -> None:
        self._path, self._newest, self._cursor = path, newest, 0
        self._records: dict[tuple[int, int, int], dict[int, Record]] = {}
        #: The ranks of each attempt.
        self._ranks: dict[int, set[int]] = defaultdict(set)
        self._sending: dict[int, tuple[int, int]] = {}
        #: A supervisor that takes over may write some reports twice.
        self._seen: set[tuple[int, int, int]] = set()

    @property
    def count(self) -> int:
        """Return the number of reports read."""
        return len(self._seen)

    def read(self) -> bool:
        """Read new reports; return False if there are none."""
        count_before = self.count
        for batch, cursor in events.batches(self._path, self._cursor):
            self._cursor = cursor
            for event in batch:
                if (
                    event["type"] == "steps"
                    and (key := (event["attempt"], event["rank"], event["first"])) not in self._seen
                ):
                    self._seen.add(key)
                    self._take(event)
        return self.count > count_before

    def _take(self, report: dict[str, Any]) -> None:
        attempt, first, size = report["attempt"], report["first"], report["size"]
        self._ranks[attempt].add(report["rank"])
        for at, record in enumerate(report["records"]):
            self._records.setdefault((attempt, first + at * size, size), {})[report["rank"]] = record
        if first:  # the first count includes traffic of the process before the steps
            spent, steps = self._sending.get(report["rank"], (0, 0))
            self._sending[report["rank"]] = spent + report["sending"], steps + size * len(report["records"])
        if self._newest is not None:
            for key in sorted(self._records)[: -self._newest]:
                del self._records[key]

    def times(self, hosts: Mapping[int, str] | None = None, *, ended: bool = False) -> StepTimes:
        """Return the steps read so far, in order of attempts, steps and ranks.

        Ranks that wait for each other make the same steps but report them at different times, so steps that a rank has
        not reported yet are left out.
        """
        records = [(key, by_rank) for key, by_rank in sorted(self._records.items()) if self._is_whole(key[0], by_rank)]
        rows = [row for key, by_rank in records or sorted(self._records.items()) for row in _compared(*key, by_rank)]
        return StepTimes(rows, hosts or {}, self._sending, ended=ended)

    def _is_whole(self, attempt: int, records: Mapping[int, Record]) -> bool:
        waits = any(len(record) > HEAD for record in records.values())
        return not waits or len(records) >= len(self._ranks[attempt])


def _compared(attempt: int, step: int, size: int, records: dict[int, Record]) -> Iterable[StepTime]:
    """Yield the rows of one record of all ranks."""
    waits = {rank: record[HEAD:] for rank, record in records.items()}
    if len({len(durations) for durations in waits.values()}) > 1:  # a rank waited more often: compare only the sums
        waits = {rank: [sum(durations)] for rank, durations in waits.items()}
    shortest = [min(column) for column in zip(*waits.values(), strict=True)]
    for rank, record in sorted(records.items()):
        seconds, data, rest, samples, *_ = record
        blocked = sum(waits[rank])
        yield StepTime(
            rank, attempt, step, size,
            seconds=seconds * _MICRO / size,
            data=data * _MICRO / size,
            compute=max(0, seconds - data - blocked - rest) * _MICRO / size,
            waiting=(blocked - sum(shortest)) * _MICRO / size,
            communication=sum(shortest) * _MICRO / size,
            rest=rest * _MICRO / size,
            samples=samples / size,
        )  # fmt: skip


def _warm(rows: Sequence[StepTime]) -> Iterable[StepTime]:
    """Return the rows without the first step of each attempt, or all rows if there are no others."""
    return [row for row in rows if row.step] or rows


def _complete(rows: Sequence[StepTime], count: int) -> Iterable[list[StepTime]]:
    """Yield the rows of each record that all ranks have reported."""
    for _, group in itertools.groupby(_warm(rows), key=lambda row: (row.attempt, row.step, row.steps)):
        record = list(group)
        if len(record) == count:
            yield record


def _mean(rank: int, host: str, rows: Sequence[StepTime]) -> RankTime:
    steps = sum(row.steps for row in rows)
    means = {part: _weighted([(getattr(row, part), row.steps) for row in rows]) for part in ("seconds", *PARTS)}
    return RankTime(rank, host, steps, **means, samples=round(sum(row.samples * row.steps for row in rows)))


# These replace the statistics module, because importing it takes longer than importing this whole package.


def _average(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of at least two independent values."""
    mean = _average(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _median_without(ordered: Sequence[tuple[float, int]], left_out: int) -> float:
    """Return the median of the first numbers of sorted pairs, without the pair at index ``left_out``."""
    middle = (len(ordered) - 1) // 2

    def at(index: int) -> float:
        return ordered[index + (index >= left_out)][0]

    return at(middle) if len(ordered) % 2 == 0 else (at(middle - 1) + at(middle)) / 2


def _weighted(values: Sequence[tuple[float, int]]) -> float:
    return sum(value * weight for value, weight in values) / sum(weight for _, weight in values)


def _delays_above(least: float, late: Sequence[tuple[float, int]]) -> list[float]:
    """Return the delays of a rank beyond its median, in seconds per record; only those of at least ``least``."""
    usual = _median(value for value, _ in late)
    return [delay for value, steps in late if (delay := (value - usual) * steps) >= least]


def _error(values: Sequence[tuple[float, int]], mean: float) -> float:
    """Return the standard error of a mean."""
    spread = sum(weight * (value - mean) ** 2 for value, weight in values) / sum(weight for _, weight in values)
    return math.sqrt(spread / len(values))


def _excess(means: Mapping[int, RankTime], rank: int, part: str) -> float:
    """Return by how many seconds a part of a rank's step exceeds the median of the others."""
    others = _median(getattr(rank_time, part) for other, rank_time in means.items() if other != rank)
    return float(getattr(means[rank], part) - others)


# scaling: short runs with different numbers of processes --------------------------------------

#: Number of steps at the start of a run that are not measured.
WARM_UP = 5
#: Number of blocks of a run whose rates give its standard error, and minimum number of measured steps.
_BLOCKS, LEAST_STEPS = 8, 16
#: Minimum and maximum runs of a point, and the relative difference of rates above which a point gets more runs.
RUNS, MOST_RUNS, ALIKE = 2, 3, 0.05
#: An efficiency above this limit means that the two runs did not do the same work.
MOST_EFFICIENT = 1.1


@dataclass(frozen=True, slots=True)
class Run:
    """One short run: ``rate`` in samples per second with its standard ``error``; times in seconds per mean step.

    ``own``, ``communication`` and ``waiting`` are medians over ranks. ``batch`` is the samples of all ranks per step.
    If the samples are unknown, ``rate`` and ``batch`` count batches.
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

    def is_whole(self, state: State, seconds: float) -> bool:
        """Return whether a run in this state was measured to its end, or for ``seconds`` if it had not ended."""
        return state is State.COMPLETED or (state is State.CANCELED and self.seconds >= seconds)


def measured(times: StepTimes) -> Run | None:
    """Return the throughput of a job without its warm-up steps, None if there are too few steps."""
    rows = [row for row in times.rows if row.attempt == times.rows[-1].attempt and row.step >= WARM_UP]
    by_step: dict[int, list[StepTime]] = {}
    for row in rows:
        by_step.setdefault(row.step, []).append(row)
    ranks = max((len(record) for record in by_step.values()), default=0)
    records = [record for _, record in sorted(by_step.items()) if len(record) == ranks]
    steps = sum(record[0].steps for record in records)
    if steps < LEAST_STEPS:
        return None
    counts_samples = all(row.samples for record in records for row in record)
    # In a long training, a record covers several steps.
    work = [sum(row.samples if counts_samples else 1.0 for row in record) * record[0].steps for record in records]
    spent = [_average(row.seconds for row in record) * record[0].steps for record in records]
    rate = sum(work) / sum(spent)
    blocks = [slice(len(work) * at // _BLOCKS, len(work) * (at + 1) // _BLOCKS) for at in range(_BLOCKS)]
    rates = [sum(work[block]) / sum(spent[block]) for block in blocks if spent[block]]
    error = _standard_error(rates) if len(rates) > 1 else rate
    means = StepTimes([row for record in records for row in record]).ranks()
    return Run(
        rate, error,
        busy=_median(rank_time.data + rank_time.compute + rank_time.rest for rank_time in means),
        communication=_median(rank_time.communication for rank_time in means),
        waiting=_median(rank_time.waiting for rank_time in means),
        batch=sum(work) / steps, steps=steps, counts_samples=counts_samples,
    )  # fmt: skip


def enough(rates: Sequence[float]) -> bool:
    """Return whether a point with these rates needs no more runs."""
    return len(rates) >= MOST_RUNS or (len(rates) >= RUNS and max(rates) <= (1 + ALIKE) * min(rates))


def too_few(name: str) -> str:
    """Return the message about a run that ended too early."""
    return f"{name} made too few steps to measure. An optimizer must make at least {WARM_UP + LEAST_STEPS} steps."


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The means over the runs of one backend with one number of processes; fields as in ``Run``."""

    backend: str
    processes: int
    nodes: int
    rate: float
    error: float
    busy: float
    communication: float
    waiting: float
    batch: float
    runs: int
    counts_samples: bool = True


def point(backend: str, processes: int, nodes: int, runs: Sequence[Run]) -> ScalingPoint:
    """Return the mean of runs. Its error is the standard error of the mean, including the spread between runs."""
    rates = [run.rate for run in runs]
    within = math.sqrt(sum(run.error**2 for run in runs)) / len(runs)
    between = _standard_error(rates) if len(rates) > 1 else 0.0
    means = {
        name: _average(getattr(run, name) for run in runs) for name in ("busy", "communication", "waiting", "batch")
    }
    return ScalingPoint(
        backend,
        processes,
        nodes,
        _average(rates),
        max(within, between),
        **means,
        runs=len(runs),
        counts_samples=all(run.counts_samples for run in runs),
    )


def efficiency(first: tuple[int, float], other: tuple[int, float]) -> float | None:
    """Return the rate per process relative to the run with the fewest processes, both as (processes, rate).

    None above ``MOST_EFFICIENT``, because such runs cannot be compared.
    """
    share = (other[1] / other[0]) / (first[1] / first[0])
    return share if share <= MOST_EFFICIENT else None


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
        return efficiency((first.processes, first.rate), (point.processes, point.rate))
