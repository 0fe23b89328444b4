"""A job as the seven steps of distributed training in the cloud, each with its state and its time.

The steps are those of Azure's reference architecture for distributed training (with Batch AI, 2019): scripts, data,
data on the nodes, image, nodes, job, results. A job here has seven phases of its own; ``here`` says which of them make
up a step. A step that a job does not have says why instead of pretending. Pure: view and spec in, plain data out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from distdl_jupyter.core import words
from distdl_jupyter.core.data import place
from distdl_jupyter.core.state import State

if TYPE_CHECKING:
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView, PhaseView

#: "unused" is a step that this job does not need.
StepState = Literal["done", "now", "next", "unused", "failed", "stopped"]

#: Title of each step, and the phases of a job that make it up.
STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Scripts", ("capture",)),
    ("Data", ()),
    ("Data on the nodes", ("stage",)),
    ("Image", ()),
    ("Nodes", ("start",)),
    ("Job", ("rendezvous", "train")),
    ("Results", ("collect", "clean")),
)
_BROKEN: dict[State, StepState] = {State.FAILED: "failed", State.LOST: "failed", State.CANCELED: "stopped"}


@dataclass(frozen=True, slots=True)
class Step:
    """One step. ``begun`` is in epoch seconds, ``seconds`` how long it took so far; None for a step without a time."""

    number: int
    title: str
    state: StepState
    detail: str = ""
    here: str = ""
    begun: float | None = None
    seconds: float | None = None


def steps_of(view: JobView, spec: JobSpec, now: float) -> tuple[Step, ...]:
    """Return the seven steps of a job at the moment ``now`` (epoch seconds)."""
    return tuple(
        _phased(number, view, spec, now) if phases else _untimed(number, title, spec)
        for number, (title, phases) in enumerate(STEPS, 1)
    )


def _broken_phase(view: JobView) -> str:
    """Return the phase in which a job came to a bad end, "" when it did not: the last before the results."""
    if view.state not in _BROKEN:
        return ""
    before = [phase.phase for phase in view.phases if phase.phase not in ("collect", "clean")]
    return before[-1] if before else "capture"


def _phased(number: int, view: JobView, spec: JobSpec, now: float) -> Step:
    title, phases = STEPS[number - 1]
    mine = [phase for phase in view.phases if phase.phase in phases and phase.begun is not None]
    here = ", ".join(phases)
    if not mine:
        state: StepState = "unused" if view.state.ended else "next"
        return Step(number, title, state, "not reached" if view.state.ended else "", here)
    begun, end = _times(mine, now)
    running = mine[-1] is view.phases[-1] and not view.state.ended
    state = _BROKEN[view.state] if _broken_phase(view) in phases else "now" if running else "done"
    return Step(number, title, state, _detail(title, mine, view, spec), here, begun, max(0.0, end - begun))


def _times(mine: list[PhaseView], now: float) -> tuple[float, float]:
    begins, ends = [], []
    for phase in mine:
        begun = phase.begun or 0.0
        # The capture is told when it is over.
        begins.append(begun - (phase.seconds or 0.0) if phase.phase == "capture" else begun)
        ends.append(begun if phase.phase == "capture" else begun + phase.seconds if phase.seconds is not None else now)
    return min(begins), max(ends)


def _detail(title: str, mine: list[PhaseView], view: JobView, spec: JobSpec) -> str:
    if title == "Data on the nodes" and view.staging:
        done, total = sum(one.done for one in view.staging), sum(one.total for one in view.staging)
        cached = sum(one.cached for one in view.staging)
        kept = f", {words.size(cached)} of it there already" if cached else ""
        return f"{words.size(done)} of {words.size(total)}{kept}"
    if title == "Data on the nodes" and spec.data and mine[-1] is not view.phases[-1]:
        return "used where it lies"
    if title == "Job":
        return words.processes(view.node_count, view.process_count_per_node)
    told = [phase.detail for phase in mine if phase.detail]
    return told[0] if title == "Results" and told else told[-1] if told else ""


def _untimed(number: int, title: str, spec: JobSpec) -> Step:
    if title == "Data":
        if not spec.data:
            return Step(number, title, "unused", "the job names no data source")
        return Step(number, title, "done", f"there already: {', '.join(place(one) for one in spec.data)}")
    image = spec.cluster_options.get("environment") or spec.cluster_options.get("image")
    if image:
        return Step(number, title, "done", f"there already: {image}")
    version = spec.versions.get("python", "")
    return Step(number, title, "unused", f"none is named: ranks run in this environment, Python {version}")
