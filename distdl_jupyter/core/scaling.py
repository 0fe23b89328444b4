"""How training scales with its processes: what was measured, and what more processes are likely to bring.

A step of n ranks lasts as long as a rank's own work, and besides

* the ring all-reduce: each rank sends 2 (n - 1) / n of the gradients in 2 (n - 1) messages (Patarasu and Yuan, 2009,
  https://doi.org/10.1016/j.jpdc.2008.09.002), so ``transfer`` x 2 (n - 1) / n + ``latency`` x 2 (n - 1);
* the wait for the slowest: own work spreads, and the longest of n normal values lies ``spread`` x m(n) over their mean
  (m by Blom, 1958).

All are fitted to the measured split of the steps (``core.step_times``), so a forecast knows nothing of cores that are
shared as in no run: run on the machines that it is for.

For a ``link`` that no run has met the bytes of the gradients are counted in the runs and reckoned at its rate:

* Gloo (gloo/allreduce.cc, whose default is the ring), Open MPI for long messages (coll_tuned_decision_fixed.c) and
  NCCL send the bytes of a ring. Ranks stand in it in their order, so of several ranks on a node one sends out and one
  receives: the node's link carries 2 (n - 1) / n of the gradients in each direction, as with one rank on it, and
  every message is as late as the one that crosses a link. Ranks of one node alone use none.
* DistributedDataParallel reduces a bucket as soon as its gradients are there (Li et al., 2020,
  https://doi.org/10.14778/3415478.3415530): the first holds 1 MiB, the others 25 (``bucket_cap_mb``). All but the last
  travel while the backward pass goes on. Horovod's optimizer begins with each gradient, in cycles of a millisecond
  (Sergeev and Del Balso, 2018, https://arxiv.org/abs/1802.05799), so there everything does.
* A full frame of Ethernet carries 1448 bytes of 1514: IP and TCP take 52 with time stamps (RFC 7323), Ethernet 14.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.link import Link
from distdl_jupyter.core.state import State
from distdl_jupyter.core.step_times import StepTime, StepTimes

#: Steps at the beginning that are left out: caches fill, memory is allocated.
WARM_UP = 5
#: Parts of a run whose rates are compared, and steps that are measured at least.
_BLOCKS, LEAST_STEPS = 8, 16
#: Runs of a point at least, and at most; of more than the least where these differ by more than this share.
RUNS, MOST_RUNS, ALIKE = 2, 3, 0.05
#: The error of a forecast for twice the processes is this share at least.
_LEAST_ERROR = 0.02
#: The error of what a link takes that no run has met, as a share of it, and of what travels behind the backward pass.
_LINK_ERROR, _HIDDEN_ERROR = 0.1, 0.5
#: The same of Horovod over Gloo on more than two nodes: rehearsed with four it took 1.04 to 1.3 times the ring's, with
#: the ring's bytes: it begins when all ranks have asked for it (Sergeev and Del Balso), and waits for that.
_HOROVOD_ERROR = 0.3
_PAYLOAD = 1448 / 1514
#: Bytes of DistributedDataParallel's first bucket and of the others.
_FIRST_BUCKET, _BUCKET = 2**20, 25 * 2**20


@dataclass(frozen=True, slots=True)
class Run:
    """One short run: ``rate`` samples a second with its standard ``error``; times are seconds of a mean step.

    ``own``, ``communication`` and ``waiting`` are medians of the ranks. ``batch`` is the samples of a step of all
    ranks; where no batch was seen, the rate and the batch count batches.
    """

    rate: float
    error: float
    own: float
    communication: float
    waiting: float
    batch: float
    steps: int
    counts_samples: bool = True
    #: The bytes of the gradients that a step averages over its ranks (0: unknown), and seconds of a backward pass.
    gradients: float = 0.0
    backward: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it was measured."""
        return self.steps * self.batch / self.rate

    def is_whole(self, state: State, seconds: float) -> bool:
        """Say whether a run that is in a state now was measured to its end, for ``seconds`` where it was not over."""
        return state is State.COMPLETED or (state is State.CANCELED and self.seconds >= seconds)


def measured(times: StepTimes) -> Run | None:
    """Return what the steps of a job say without the first ones, None for too few."""
    rows = [row for row in times.rows if row.attempt == times.rows[-1].attempt and row.step >= WARM_UP]
    by_step: dict[int, list[StepTime]] = {}
    for row in rows:
        by_step.setdefault(row.step, []).append(row)
    ranks = max((len(found) for found in by_step.values()), default=0)
    records = [found for _, found in sorted(by_step.items()) if len(found) == ranks]
    steps = sum(found[0].steps for found in records)
    if steps < LEAST_STEPS:
        return None
    counts_samples = all(row.samples for found in records for row in found)
    # A record is of several steps in a long training.
    work = [sum(row.samples if counts_samples else 1.0 for row in found) * found[0].steps for found in records]
    spent = [statistics.fmean(row.seconds for row in found) * found[0].steps for found in records]
    rate = sum(work) / sum(spent)
    blocks = [slice(len(work) * at // _BLOCKS, len(work) * (at + 1) // _BLOCKS) for at in range(_BLOCKS)]
    rates = [sum(work[one]) / sum(spent[one]) for one in blocks if spent[one]]
    error = statistics.stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else rate
    of_ranks = StepTimes([row for found in records for row in found]).ranks()
    return Run(
        rate, error,
        own=statistics.median(one.data + one.compute + one.rest for one in of_ranks),
        communication=statistics.median(one.communication for one in of_ranks),
        waiting=statistics.median(one.waiting for one in of_ranks),
        batch=sum(work) / steps, steps=steps, counts_samples=counts_samples,
        gradients=float(times.gradients), backward=times.backward,
    )  # fmt: skip


def enough(rates: Sequence[float]) -> bool:
    """Say whether a point needs no more runs than those that came to these rates."""
    return len(rates) >= MOST_RUNS or (len(rates) >= RUNS and max(rates) <= (1 + ALIKE) * min(rates))


def too_few(name: str) -> str:
    """Return what is said of a run that was over too early."""
    return f"{name} made too few steps to measure. An optimizer must make at least {WARM_UP + LEAST_STEPS} steps."


@dataclass(frozen=True, slots=True)
class Point:
    """What the runs of one backend on one number of processes came to; as in ``Run``, means over the runs."""

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
    gradients: float = 0.0
    backward: float = 0.0


def point(backend: str, processes: int, nodes: int, runs: Sequence[Run]) -> Point:
    """Return the mean of some runs. Its error is that of the mean, and of several runs how they differ as well."""
    rates = [run.rate for run in runs]
    within = math.sqrt(sum(run.error**2 for run in runs)) / len(runs)
    between = statistics.stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else 0.0
    means = {
        name: statistics.fmean(getattr(run, name) for run in runs)
        for name in ("own", "communication", "waiting", "batch", "gradients", "backward")
    }
    return Point(backend, processes, nodes, statistics.fmean(rates), max(within, between), **means, runs=len(runs),
                 counts_samples=all(run.counts_samples for run in runs))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Forecast:
    """What more processes are likely to bring; ``low`` and ``high`` are one standard error away from ``rate``."""

    backend: str
    processes: int
    rate: float
    low: float
    high: float
    efficiency: float
    own: float
    communication: float
    waiting: float

    @property
    def error(self) -> float:
        """The standard error of ``rate``."""
        return (self.high - self.low) / 2


@dataclass(slots=True)
class Scaling:
    """The points of each backend in order of processes."""

    name: str = ""
    points: list[Point] = field(default_factory=list)

    @property
    def backends(self) -> list[str]:
        """The backends in the order in which they were asked for."""
        return list(dict.fromkeys(one.backend for one in self.points))

    def of(self, backend: str) -> list[Point]:
        """Return the points of a backend, the fewest processes first."""
        return sorted((one for one in self.points if one.backend == backend), key=lambda one: one.processes)

    def efficiency(self, one: Point | Forecast) -> float:
        """Return the rate of each process as a share of that with the fewest processes, which is 1."""
        first = self.of(one.backend)[0]
        return (one.rate / one.processes) / (first.rate / first.processes)

    def forecast(
        self, processes: int, backend: str = "", *, nodes: int | None = None, link: Link | None = None
    ) -> Forecast:
        """Return what so many processes are likely to bring.

        With a ``link`` they run on ``nodes`` nodes that meet over it, None for one process on each; own work is that
        of the run with the most similar number of processes on a node. Without, the network is that of the runs.

        Raises InvalidSpec for less than two measured points, for processes that do not go on the nodes, and for a link
        where the bytes of the gradients were not seen.
        """
        known = self.of(backend or self.backends[0]) if self.points else []
        if len(known) < 2:
            raise InvalidSpec(
                "A forecast needs runs on at least two numbers of processes.",
                code="forecast-needs-two-points",
                field="processes",
                hint="Measure more: scale(train, processes=[1, 2, 4]).",
            )
        model = _Model.of(known)
        own, communication, of_link = model.own, model.communication(processes), 0.0
        if link is not None:
            over = _over(link, known, processes, nodes or processes)
            per_node = processes / (nodes or processes)
            own = min(known, key=lambda one: abs(one.processes / one.nodes - per_node)).own
            communication, of_link = communication + over.seconds, over.error
        waiting = model.waiting(processes)
        step = own + communication + waiting
        rate = processes * model.batch / step
        error = rate * math.hypot(_error(known, model, processes), of_link / step)
        found = Forecast(known[0].backend, processes, rate, max(0.0, rate - error), rate + error, 0.0,
                         own, communication, waiting)  # fmt: skip
        return replace(found, efficiency=self.efficiency(found))


@dataclass(frozen=True, slots=True)
class _Over:
    """What a link adds to a step, in seconds, and the error of that."""

    seconds: float
    error: float


def _over(link: Link, points: Sequence[Point], processes: int, nodes: int) -> _Over:
    if not 1 <= nodes <= processes or processes % nodes:
        raise InvalidSpec(
            f"{processes} processes cannot be divided evenly among {nodes} nodes.",
            code="scaling-nodes-uneven",
            field="nodes",
        )
    if nodes == 1:
        return _Over(0.0, 0.0)
    seen = [one for one in points if one.gradients]
    if not seen:
        raise InvalidSpec(
            "The gradient size was not recorded in these runs, so another link cannot be forecast.",
            code="forecast-without-gradients",
            field="link",
            hint="It is recorded with DistributedDataParallel and Horovod's optimizer on two processes.",
        )
    last = seen[-1]
    whole = _ring_over(link, last.gradients, processes)
    if last.backend.startswith("horovod"):
        kept, window = 0.0, last.backward
    else:
        kept = (last.gradients - _FIRST_BUCKET) % _BUCKET if last.gradients > _FIRST_BUCKET else last.gradients
        window = last.backward * max(0.0, 1 - _FIRST_BUCKET / last.gradients)
    share = kept / last.gradients
    seconds = whole * share + max(0.0, whole * (1 - share) - window)
    of_link = _HOROVOD_ERROR if last.backend.startswith("horovod") and nodes > 2 else _LINK_ERROR
    return _Over(seconds, math.hypot(of_link * seconds, _HIDDEN_ERROR * (whole - seconds)))


def _ring_over(link: Link, gradients: float, processes: int) -> float:
    """Return the seconds in which a ring of so many ranks, on several nodes, brings the gradients over their links."""
    sent = 8 * gradients * 2 * (processes - 1) / processes
    return sent / (_PAYLOAD * link.bits_per_second) + 2 * (processes - 1) * link.latency_seconds


@dataclass(frozen=True, slots=True)
class _Model:
    """The parts of a step; times are seconds, ``batch`` samples of a step of one process."""

    own: float
    transfer: float
    latency: float
    spread: float
    batch: float

    @classmethod
    def of(cls, points: Sequence[Point]) -> _Model:
        """Fit it to what was measured. Own work is that of the most processes: there they share what there is."""
        last = points[-1]
        several = [one for one in points if one.processes > 1]
        transfer, latency = _ring([(one.processes, one.communication) for one in several])
        spreads = [one.waiting / _longest_of(one.processes) for one in several]
        return cls(last.own, transfer, latency, statistics.fmean(spreads) if spreads else 0.0,
                   last.batch / last.processes)  # fmt: skip

    def communication(self, processes: int) -> float:
        return self.transfer * 2 * (processes - 1) / processes + self.latency * 2 * (processes - 1)

    def waiting(self, processes: int) -> float:
        return self.spread * _longest_of(processes)

    def rate(self, processes: int) -> float:
        return processes * self.batch / (self.own + self.communication(processes) + self.waiting(processes))


def _ring(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return transfer and latency of ring all-reduces by least squares, neither below 0."""
    if not points:
        return 0.0, 0.0
    rows = [(2 * (n - 1) / n, 2.0 * (n - 1), seconds) for n, seconds in points]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    at, bt = (sum(row[i] * row[2] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    if len(rows) > 1 and determinant > 1e-9 * aa * bb:
        transfer, latency = (at * bb - bt * ab) / determinant, (bt * aa - at * ab) / determinant
        if transfer >= 0 and latency >= 0:
            return transfer, latency
        if transfer < 0:
            return 0.0, bt / bb
    return at / aa, 0.0  # one point does not tell them apart: larger messages are what usually counts


def _longest_of(count: int) -> float:
    """Return how many standard deviations the largest of so many normal values lies over their mean (Blom, 1958)."""
    return statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def _error(points: Sequence[Point], model: _Model, processes: int) -> float:
    """Return the standard error of a forecast as a share of it: of the measurement, and of the model.

    How wrong the model is, the last point says, forecast from those before it; it grows with each doubling.
    """
    last = points[-1]
    before = _Model.of(points[:-1])
    missed = abs(before.rate(last.processes) / last.rate - 1) / max(
        1.0, math.log2(last.processes / points[-2].processes)
    )
    fitted = max(abs(model.rate(one.processes) / one.rate - 1) for one in points)
    doublings = abs(math.log2(processes / last.processes))
    of_model = max(missed, _LEAST_ERROR) * doublings
    return math.hypot(last.error / last.rate, fitted, of_model)
