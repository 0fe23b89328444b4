"""What pages and texts about a job say alike: how large it is, how far it came, who failed and where."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from distdl_jupyter.core import humanize
from distdl_jupyter.core.state import State
from distdl_jupyter.views.card import cost_text, origin_text

if TYPE_CHECKING:
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView, MetricView
    from distdl_jupyter.views.schema import FailureCard, Frame, OtherRank

#: States of a job whose ranks have not begun.
SETTING_UP = (State.QUEUED, State.PREPARING, State.STARTING)


def facts(view: JobView, spec: JobSpec) -> list[str]:
    """Return the cell that a job is from, what it continues, where it runs, how large it is, and with what."""
    number = spec.source.execution_count
    found = [
        "" if number is None else f"cell [{number}]",
        f"continues {origin_text(spec)}" if spec.resumed_from else "",
        view.compute_target,
        humanize.processes(view.node_count, view.process_count_per_node),
        view.distributed_backend,
        cost_text(view, view.last_sign) or "",
    ]
    return [fact for fact in found if fact]


def took(view: JobView) -> list[str]:
    """Return how long a job took so far and, when it failed, how far it came."""
    waited = view.waiting_time(view.last_sign)
    spent = humanize.ran_and_waited(view.run_time(view.last_sign), waited)
    far = progress(view).rpartition("%, ")[2] if view.state is State.FAILED else ""
    return [spent if waited else f"ran {spent}", f"stopped at {far}"] if far else [spent]


def progress(view: JobView) -> str:
    """Return ``62 %, step 744 of 1,200``, or ``step 744`` without a known total, "" without either."""
    unit = view.unit or "step"
    if view.done is not None and view.total:
        done, total = humanize.count(view.done), humanize.count(view.total)
        return f"{humanize.percent(view.done, view.total)}, {unit} {done} of {total}"
    if view.done is not None:
        return f"{unit} {humanize.count(view.done)}"
    steps = [rank.last_step for rank in view.ranks if rank.last_step is not None]
    return f"step {humanize.count(max(steps))}" if steps else ""


def explanation(view: JobView) -> str:
    """Return what a state that is not its own explanation needs: why, since when."""
    if view.state is State.LOST:
        return f"Last event at {humanize.clock(view.last_sign)}. {view.reason}".rstrip()
    if view.state is State.CANCELING and view.stop is not None:
        sent = f"{view.stop.signal} sent, " if view.stop.signal else ""
        left = [rank for rank in view.ranks if rank.status != "ended"]
        return f"{sent}{len(left)} of {humanize.plural(view.process_count, 'rank')} still there."
    if view.state is State.CANCELED:
        how_far = progress(view)
        return view.reason or (f"Canceled at {how_far}." if how_far else "Canceled before the first step.")
    return view.reason if view.state in SETTING_UP else ""


def as_of(view: JobView, *, removed: bool) -> str:
    """Return when the page was true and how to see the job now, "" for an ended job that still exists."""
    moment = f"Submitted {humanize.date_and_clock(view.created)}, shown as of {humanize.clock(view.last_sign)}."
    if removed:
        return f"This job was deleted. {moment}"
    if view.state.ended:
        return ""
    return f"{moment} This saved page is not updated: attach({humanize.short_id(view.id)!r}) shows the job now."


def restart_title(view: JobView) -> str:
    """Return ``Restart 1 of 3`` or ``Requeue 2``, "" for a job that was never started anew."""
    if not view.restarts:
        return ""
    if view.restarts[-1].requeued:
        return f"Requeue {view.requeue_count}"
    count = view.restart_count - view.requeue_count
    return f"Restart {count} of {view.max_restarts}" if count <= view.max_restarts else f"Restart {count}"


def metric(one: MetricView) -> tuple[str, str, str]:
    """Return mean, lowest with its rank and highest with its rank; the last two "" when all ranks agree."""
    mean = humanize.number(one.mean)
    finite = [(value, rank) for rank, value in one.values.items() if math.isfinite(value)]
    if len(finite) < 2 or min(finite)[0] == max(finite)[0]:
        return mean, "", ""
    low, high = min(finite), max(finite, key=lambda item: (item[0], -item[1]))
    return mean, f"{humanize.number(low[0])} ({low[1]})", f"{humanize.number(high[0])} ({high[1]})"


# the failure ----------------------------------------------------------------------------------


def headline(card: FailureCard, view: JobView) -> tuple[str, str, str]:
    """Return who failed, when and what: ("Rank 2 of 4 failed first", "12:04:31", "KeyError: 'label'")."""
    alone = "The process failed" if card.rank is not None else "The job failed"
    several = card.rank is not None and view.process_count > 1
    who = f"Rank {card.rank} of {view.process_count} failed first" if several else alone
    return who, humanize.clock(card.when) if card.when else "", str(card.what)


def own_frame(card: FailureCard) -> Frame | None:
    """Return the frame to look at: the deepest of a cell, else the deepest of the user's own files."""
    own = [frame for frame in card.frames if frame.kind in ("cell", "user")]
    cells = [frame for frame in own if frame.cell is not None]
    found: list[Frame] = cells or own
    return found[-1] if found else None


def where(card: FailureCard) -> str:
    """Return the place as a sentence: ``On node-b (pid 48213, GPU 0), in cell [7], line 11``, "" when unknown."""
    frame = own_frame(card)
    parts = [f"on {card.place}"] if card.place else []
    if frame is not None:
        name = f"cell [{frame.cell}]" if frame.cell is not None else str(frame.label)
        parts.append(f"in {name}, line {frame.line}")
    joined = ", ".join(parts)
    return f"{joined[0].upper()}{joined[1:]}." if joined else ""


def others(card: FailureCard) -> str:
    """Return what the other ranks did: ``ranks 0 and 1: HorovodInternalError after 0.6 s; rank 3: ...``."""
    by_kind: dict[str, list[OtherRank]] = {}
    for other in card.others:
        by_kind.setdefault(str(other.what).split(":")[0], []).append(other)
    return "; ".join(
        f"{humanize.ranks([other.rank for other in same])}: {kind}"
        f" after {humanize.seconds_taken(max(other.after for other in same))}"
        for kind, same in by_kind.items()
    )
