"""What the panel of a scaling study shows, as plain data, for JupyterLab and for the page that a notebook keeps.

It says only what was measured, what follows from that (``core.scaling``), and what was fetched or given with a source.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from distdl_jupyter.core.humanize import count, duration, listing, plural
from distdl_jupyter.core.scaling import Forecast, Point
from distdl_jupyter.core.state import State
from distdl_jupyter.views import epoch_price
from distdl_jupyter.views.schema import ScalingAction, ScalingPanel, ScalingRow, ScalingWithout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.azure import VmSize
    from distdl_jupyter.core.scaling import Scaling
    from distdl_jupyter.core.step_times import Straggler

#: Times that the most processes are doubled in the forecast that is drawn.
DOUBLINGS = 2
#: Shares of a step below which nothing is worth a word, and of ideal from which on all is well.
_LEAST, _WELL = 0.03, 0.9
#: How far batches may be from what weak or strong scaling makes of them, as a share.
_LIKE = 0.1
#: Said of a forecast whose error is larger than itself.
_DOUBT = "The runs vary too much for a better estimate. Measure again while the machine is otherwise idle."
#: Stands in code for the name of a VM size.
SIZE = "{VM SIZE}"
LINEAR_RULE = "the linear scaling rule (Goyal et al., 2017, https://arxiv.org/abs/1706.02677)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a study besides its points. ``done`` of ``size`` points are measured, in ``seconds``.

    ``stragglers`` are by backend and number of processes.
    """

    id: str
    state: State
    #: Why it ended before its time, "" where it did not or nobody knows.
    problem: str = ""
    target: str = ""
    hosts: tuple[str, ...] = ()
    done: int = 0
    size: int = 0
    runs: int = 0
    seconds: float = 0.0
    processes: tuple[int, ...] = ()
    backends: tuple[str, ...] = ()
    stragglers: Mapping[tuple[str, int], Straggler] = field(default_factory=dict)
    #: Samples of an epoch, where the user said it.
    epoch_samples: float | None = None
    #: The learning rate that the function is called with, where it was seen; the code may multiply it itself.
    learning_rate: float | None = None
    scales_rate: bool = False
    vm_size: str = ""
    price_per_hour: float | None = None
    currency: str = ""
    price_source: str = ""
    #: Code that measures the same on emulated nodes, with ``SIZE`` for the size whose link they have; "" for none.
    rehearsal: str = ""


def panel(found: Scaling, facts: Facts) -> ScalingPanel:
    """Return the panel of a study as far as it has come."""
    rows = shown(found)
    mode = scaling_mode(found)
    ahead = next(reversed(forecasts(found)), None)
    limit, prices = Finding.of(found, facts), epoch_price.prices(found, facts, ahead)
    size = epoch_price.size_to_rehearse(facts, prices, ahead.processes) if ahead else None
    return ScalingPanel(
        id=facts.id,
        name=found.name,
        state=facts.state.value,
        problem=facts.problem,
        words=_words(found, facts, mode),
        summary=_summary(facts),
        done=facts.done,
        size=facts.size,
        unit=unit(found),
        mode=mode,
        rows=tuple(_row(found, one, facts, limit) for one in rows),
        ideal=_ideal(found),
        without=limit.without if limit else None,
        well=limit is None or limit.well,
        headline=limit.headline if limit else "",
        reason=limit.reason if limit else "",
        detail=forecast_on(found, size) or forecast_text(found),
        action=_rehearsal(found, facts, size),
        note=note(found, facts, mode),
        prices=prices.rows,
        price_title=prices.title,
        price_notes=prices.notes,
    )


def unit(found: Scaling) -> Literal["samples", "batches"]:
    """Return what is counted: samples, or batches where the size of a batch was not seen."""
    return "samples" if all(one.counts_samples for one in found.points) else "batches"


def shown(found: Scaling) -> list[Point | Forecast]:
    """Return what is shown, in order of processes and backends: the points, and forecasts of the first backend."""
    order = found.backends
    points: list[Point | Forecast] = sorted(found.points, key=lambda one: (one.processes, order.index(one.backend)))
    return [*points, *forecasts(found)]


def forecasts(found: Scaling, backend: str = "") -> list[Forecast]:
    """Return forecasts of a backend, the first by default; none before two numbers of processes are measured.

    There are none with strong scaling either: there each process has less to do the more there are.
    """
    points = found.of(backend or found.backends[0]) if found.points else []
    if len(points) < 2 or scaling_mode(found) == "strong":
        return []
    return [found.forecast(points[-1].processes * 2**one, points[0].backend) for one in range(1, DOUBLINGS + 1)]


def scaling_mode(found: Scaling) -> Literal["weak", "strong", ""]:
    """Return "weak" where each process has a batch of one size, "strong" where all share one, "" for neither."""
    points = found.of(found.backends[0]) if found.points else []
    if len(points) < 2 or unit(found) != "samples":
        return ""
    first = points[0]
    ratios = [(one.batch / first.batch, one.processes / first.processes) for one in points[1:]]
    if all(abs(batch / processes - 1) <= _LIKE for batch, processes in ratios):
        return "weak"
    return "strong" if all(abs(batch - 1) <= _LIKE for batch, _ in ratios) else ""


def milliseconds(seconds: float) -> str:
    """Return a time in ms without the unit, with a tenth below 100."""
    return f"{1000 * seconds:.1f}" if seconds < 0.09995 else count(round(1000 * seconds))


@dataclass(frozen=True, slots=True)
class Finding:
    """What limits the most processes of the first backend, in sentences; ``well``: nothing that is worth a warning."""

    headline: str
    reason: str
    well: bool
    part: str
    processes: int
    without: ScalingWithout | None = None

    @classmethod
    def of(cls, found: Scaling, facts: Facts | None) -> Finding | None:
        """Return the finding, None before two numbers of processes are measured."""
        points = found.of(found.backends[0]) if found.points else []
        if len(points) < 2:
            return None
        first, last = points[0], points[-1]
        efficiency = found.efficiency(last)
        step = last.own + last.communication + last.waiting
        head = f"{count(last.processes)} processes reach {efficiency:.0%} of ideal.".replace("%", " %")
        straggler = facts.stragglers.get((last.backend, last.processes)) if facts else None
        lost = {"communication": last.communication, "waiting": last.waiting, "own": last.own - first.own}
        worst = max(lost, key=lambda one: lost[one])
        if straggler is not None and straggler.seconds >= max(_LEAST * step, lost["own"], lost["communication"]):
            return cls._of_straggler(found, last, straggler, head, efficiency)
        if lost[worst] < _LEAST * step:
            return cls(head, "", efficiency >= _WELL, "", last.processes)
        of = f"{milliseconds(lost[worst])} of {milliseconds(step)} ms per step"
        reason = {
            "communication": f"{of} are spent on communication.",
            "waiting": f"{of} are spent waiting for other ranks, not always the same one.",
            "own": f"{of} are additional computation compared with {plural(first.processes, 'process')}, for example "
            "because processes share cores.",
        }[worst]
        return cls(head, reason, efficiency >= _WELL, worst, last.processes)

    @classmethod
    def _of_straggler(cls, found: Scaling, last: Point, straggler: Straggler, head: str, efficiency: float) -> Finding:
        step = last.batch / last.rate
        better = Point(last.backend, last.processes, last.nodes, last.batch / max(step - straggler.seconds, 1e-9),
                       last.error, last.own, last.communication, last.waiting, last.batch, last.runs)  # fmt: skip
        share = f"{100 * found.efficiency(better):.0f} %"
        of = f"{milliseconds(straggler.seconds)} of {milliseconds(step)} ms per step"
        what = "sending data of rank {} over its link" if straggler.cause == "link" else "waiting for rank {}"
        return cls(
            head, f"{of} are spent {what.format(straggler.rank)}. Without that delay: {share}.", efficiency >= _WELL,
            "communication" if straggler.cause == "link" else "waiting", last.processes,
            ScalingWithout(last.backend, last.processes, better.rate, f"{share} without the delay of rank "
                f"{straggler.rank}"),
        )  # fmt: skip


def learning_rate(found: Scaling, one: Point | Forecast, facts: Facts | None) -> float | None:
    """Return the learning rate that goes with a point by the linear rule; None where that cannot be said.

    The rate that was seen is that of the fewest processes. It grows as the batch of all processes does.
    """
    if facts is None or facts.learning_rate is None or unit(found) != "samples":
        return None
    first, batch = found.of(one.backend)[0], batch_of(found, one)
    return None if batch is None else facts.learning_rate * batch / first.batch


def batch_of(found: Scaling, one: Point | Forecast) -> float | None:
    """Return the samples of a step of all processes; those of a forecast where each process has a batch of its own."""
    if isinstance(one, Point):
        return one.batch
    last = found.of(one.backend)[-1]
    return last.batch / last.processes * one.processes if scaling_mode(found) == "weak" else None


def note(found: Scaling, facts: Facts | None, mode: str) -> str:
    """Return what stands below the table."""
    said = ["Computation, communication and waiting are in ms per step, median of the ranks."]
    if mode == "strong":
        said.append("No forecast: with a fixed total batch, each process has less work as processes are added, and "
            "no run "
            "has measured that.")  # fmt: skip
    if facts is not None and facts.learning_rate is not None and found.points and unit(found) == "samples":
        first = found.of(found.backends[0])[0]
        given = f"Learning rate: {facts.learning_rate:g} with {plural(first.processes, 'process')}"
        own = "; the code scales it" if facts.scales_rate else ""
        said.append(f"{given}, otherwise by {LINEAR_RULE}{own}.")
    return " ".join(said)


def forecast_text(found: Scaling) -> str:
    """Return the last forecast as a sentence, "" without one."""
    found_ = forecasts(found)
    if not found_:
        return ""
    last = found_[-1]
    share, error = 100 * last.efficiency, epoch_price.spread(last)
    said = (
        f"Forecast for {count(last.processes)} processes on links like the measured ones: {share:.0f} % ± {error:.0f}."
    )
    return _with_doubt(said, last)


def _with_doubt(said: str, one: Forecast) -> str:
    return f"{said} {_DOUBT}" if one.error > one.rate else said


def forecast_on(found: Scaling, size: VmSize | None) -> str:
    """Return the last forecast as a sentence for nodes of a size, "" where that cannot be told."""
    if size is None:
        return ""
    processes = forecasts(found)[-1].processes
    one = epoch_price.on_size(found, processes, size)
    if one is None:
        return ""
    link, forecast = one
    share, error = 100 * forecast.efficiency, epoch_price.spread(forecast)
    over = link.text if link.latency_seconds else f"{link.text}, ignoring its latency"
    said = f"Forecast for {count(processes)} processes on {size.name} ({over}): {share:.0f} % ± {error:.0f}."
    return _with_doubt(said, forecast)


def _rehearsal(found: Scaling, facts: Facts, size: VmSize | None) -> ScalingAction | None:
    """Return the button that measures on links as slow as those of a size, where the forecast is for that size."""
    if size is None or not facts.rehearsal or not facts.state.ended or not forecast_on(found, size):
        return None
    return ScalingAction("Simulate that network", facts.rehearsal.replace(SIZE, size.name))


def _words(found: Scaling, facts: Facts, mode: str) -> tuple[str, ...]:
    """Return where it ran, on how many processes, with which backends, and how the batch is dealt out."""
    hosts = ", ".join(facts.hosts[:4]) + (" ..." if len(facts.hosts) > 4 else "")
    place = f"{facts.target}: {hosts}" if hosts and facts.target != "local" else facts.target
    first = found.of(found.backends[0])[0] if found.points else None
    batch = ""
    if first is not None and mode == "weak":
        batch = f"weak scaling: batch of {count(round(first.batch / first.processes))} per process"
    elif first is not None and mode == "strong":
        batch = f"strong scaling: total batch of {count(round(first.batch))}"
    counts = f"{listing(facts.processes)} processes" if facts.processes else ""
    return tuple(filter(None, (place, counts, listing(facts.backends), batch)))


def _summary(facts: Facts) -> str:
    runs = plural(facts.runs, "short run")
    if facts.state is State.RUNNING:
        return f"{facts.done} of {facts.size} measured, {runs}, {duration(facts.seconds)} so far"
    if facts.done < facts.size:
        return f"{facts.done} of {facts.size} measured, {runs}, {duration(facts.seconds)} in total"
    return f"{runs}, {duration(facts.seconds)} in total"


def _ideal(found: Scaling) -> float | None:
    """Return the rate of one process."""
    if not found.points:
        return None
    first = found.of(found.backends[0])[0]
    return first.rate / first.processes


def _row(found: Scaling, one: Point | Forecast, facts: Facts, limit: Finding | None) -> ScalingRow:
    measured = isinstance(one, Point)
    slow = limit is not None and not limit.well and measured and one.processes == limit.processes
    return ScalingRow(
        backend=one.backend, processes=one.processes, nodes=one.nodes if isinstance(one, Point) else None,
        measured=measured, rate=one.rate, error=one.error, efficiency=100 * found.efficiency(one),
        efficiency_error=0.0 if isinstance(one, Point) else epoch_price.spread(one),
        own=one.own, communication=one.communication, waiting=one.waiting, batch=batch_of(found, one),
        learning_rate=learning_rate(found, one, facts), runs=one.runs if isinstance(one, Point) else 0,
        slow=limit.part if slow and limit else "",
    )  # fmt: skip
