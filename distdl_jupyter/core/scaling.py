"""How training scales with the number of processes: measurements of short runs, and which are comparable."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from distdl_jupyter.core.state import State
from distdl_jupyter.core.step_times import StepTime, StepTimes

#: The first steps of a run, which are not measured.
WARM_UP = 5
#: Number of blocks of a run from whose rates its standard error follows, and minimum number of measured steps.
_BLOCKS, LEAST_STEPS = 8, 16
#: Minimum and maximum runs of a point; it gets more than the minimum if their rates differ by more than this share.
RUNS, MOST_RUNS, ALIKE = 2, 3, 0.05
#: An efficiency above this limit means that the two runs did not do the same work.
MOST_EFFICIENT = 1.1


@dataclass(frozen=True, slots=True)
class Run:
    """One short run: ``rate`` samples a second with its standard ``error``; times are seconds of a mean step.

    ``own``, ``communication`` and ``waiting`` are medians of the ranks. ``batch`` is the samples of a step of all
    ranks; if it is unknown, the rate and the batch count batches.
    """

    rate: float
    error: float
    own: float
    communication: float
    waiting: float
    batch: float
    steps: int
    counts_samples: bool = True

    @property
    def seconds(self) -> float:
        """The measured time."""
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
    spent = [statistics.fmean(row.seconds for row in record) * record[0].steps for record in records]
    rate = sum(work) / sum(spent)
    blocks = [slice(len(work) * at // _BLOCKS, len(work) * (at + 1) // _BLOCKS) for at in range(_BLOCKS)]
    rates = [sum(work[block]) / sum(spent[block]) for block in blocks if spent[block]]
    error = statistics.stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else rate
    of_ranks = StepTimes([row for record in records for row in record]).ranks()
    return Run(
        rate, error,
        own=statistics.median(block.data + block.compute + block.rest for block in of_ranks),
        communication=statistics.median(block.communication for block in of_ranks),
        waiting=statistics.median(block.waiting for block in of_ranks),
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
    own: float
    communication: float
    waiting: float
    batch: float
    runs: int
    counts_samples: bool = True


def point(backend: str, processes: int, nodes: int, runs: Sequence[Run]) -> ScalingPoint:
    """Return the mean of some runs. Its error is that of the mean, including the spread of several runs."""
    rates = [run.rate for run in runs]
    within = math.sqrt(sum(run.error**2 for run in runs)) / len(runs)
    between = statistics.stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else 0.0
    means = {
        name: statistics.fmean(getattr(run, name) for run in runs)
        for name in ("own", "communication", "waiting", "batch")
    }
    return ScalingPoint(
        backend,
        processes,
        nodes,
        statistics.fmean(rates),
        max(within, between),
        **means,
        runs=len(runs),
        counts_samples=all(run.counts_samples for run in runs),
    )


def efficiency(first: tuple[int, float], other: tuple[int, float]) -> float | None:
    """Return the rate of each process as a share of that with the fewest processes, both as (processes, rate).

    None for more than ``MOST_EFFICIENT``: such runs cannot be compared.
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
        """Return the rate of each process as a share of that with the fewest processes, which is 1.

        None if the two runs are not comparable.
        """
        first = self.of(point.backend)[0]
        return efficiency((first.processes, first.rate), (point.processes, point.rate))
