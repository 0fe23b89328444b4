"""A job as its panel is told of it: the view, boiled down.

Pure. Times are epoch seconds of this machine's clock; ``now`` goes along, because a browser's clock may be another.
"""

from __future__ import annotations

from collections import Counter

from distdl_jupyter.core.failure import has_failed
from distdl_jupyter.core.rank import RankView
from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView
from distdl_jupyter.presentation.cost import cost
from distdl_jupyter.presentation.jobrow import StateName
from distdl_jupyter.presentation.plain import finite
from distdl_jupyter.presentation.schema import (
    Card,
    Foot,
    Host,
    Notice,
    Phase,
    Picture,
    RankStatus,
    Restart,
    StacksTaken,
    Stall,
    Stop,
)
from distdl_jupyter.presentation.stacks import why
from distdl_jupyter.presentation.staging import bars
from distdl_jupyter.presentation.story import failure_card

#: Up to so many ranks are dots; above that each node is one count.
MAX_DOTS = 64
#: Ranks that still run are named one by one up to here.
_NAMED = 3
_LEVELS = {"warning": 1, "error": 2}


def card(view: JobView, now: float, *, has_checkpoints: bool = False) -> Card:
    """Return everything that the head of a panel shows; whether there are checkpoints is known from the job's files."""
    below = foot(view)
    return Card(
        id=view.id,
        name=view.name,
        state=below.state,
        reason=view.reason,
        compute_target=view.compute_target,
        backend=view.distributed_backend,
        node_count=view.node_count,
        process_count_per_node=view.process_count_per_node,
        created=view.created,
        ended=view.ended,
        last_sign=view.last_sign,
        now=now,
        phases=tuple(Phase(one.phase, one.detail, one.begun, one.seconds) for one in view.phases),
        hosts=hosts(view),
        done=finite(view.done),
        total=finite(view.total),
        unit=view.unit,
        left=finite(view.remaining(now)),
        step=_step(view),
        stop=_stop(view),
        lines=view.lines,
        failure=failure_card(view),
        can_rerun=view.state.ended,
        notice=below.notice,
        result=below.result,
        has_metrics=below.has_metrics,
        cost=cost(view, now),
        staging=bars(view),
        restarts=tuple(Restart(one.t, one.reason, one.rank) for one in view.restarts),
        max_restarts=view.max_restarts,
        stall=_stall(view),
        stacks=tuple(StacksTaken(one.number, one.t, why(one.why)) for one in view.stacks),
        can_ask_stacks=can_ask_stacks(view),
        pictures=tuple(Picture(one.number, one.t, one.width, one.height, tuple(one.ranks)) for one in view.pictures),
        resumed_from=view.resumed_from,
        can_resume=view.state.ended and has_checkpoints,
    )


def foot(view: JobView) -> Foot:
    """Return the part of the card that the line at the panel's foot depends on."""
    return Foot(
        state=state_name(view),
        reason=view.reason,
        notice=_notice(view),
        result=_result(view),
        has_metrics=bool(view.metrics),
    )


def state_name(view: JobView) -> StateName:
    """Return the state as pages name it."""
    return view.state.value


def hosts(view: JobView) -> tuple[Host, ...]:
    """Return each node with its ranks' status; jobs above ``MAX_DOTS`` ranks get counts only."""
    nodes: dict[int, list[RankView]] = {}
    for rank in view.ranks:
        nodes.setdefault(rank.node, []).append(rank)
    dots = view.process_count <= MAX_DOTS
    return tuple(
        Host(
            name=next((rank.host for rank in ranks if rank.host), ""),
            ranks=tuple((rank.rank, status(rank)) for rank in ranks) if dots else (),
            counts=dict(Counter(status(rank) for rank in ranks)),
        )
        for _, ranks in sorted(nodes.items())
    )


def status(rank: RankView) -> RankStatus:
    """Return waiting, started, ready, ended or failed."""
    return "failed" if has_failed(rank) else rank.status  # type: ignore[return-value]  # one of those by its docstring


def can_ask_stacks(view: JobView) -> bool:
    """Say whether some rank has begun and not ended, so that it may be asked where it stands."""
    return not view.state.ended and any(rank.status in ("started", "ready") for rank in view.ranks)


def _stall(view: JobView) -> Stall | None:
    stall = view.stall
    if stall is None or view.state.ended:
        return None
    return Stall(stall.since, tuple(stall.ranks), stall.text)


def elsewhere(view: JobView) -> str:
    """Return on which other host the job's supervisor runs, and what to do when that may be gone; "" for none."""
    if view.elsewhere is None:
        return ""
    return f"{view.elsewhere.says()} {view.elsewhere.remedy(view.id) if view.elsewhere.is_silent else ''}".rstrip()


def _step(view: JobView) -> float | None:
    steps = [rank.last_step for rank in view.ranks if finite(rank.last_step) is not None]
    return max((step for step in steps if step is not None), default=None)


def _stop(view: JobView) -> Stop | None:
    stop = view.stop
    if stop is None:
        return None
    living = [rank for rank in view.ranks if rank.status != "ended"]
    return Stop(
        by=stop.by,
        signal=stop.signal,
        sent=stop.sent,
        next=stop.next,
        next_at=stop.next_at,
        kill_at=stop.kill_at,
        remaining=len(living),
        places=tuple(_place(rank) for rank in living) if len(living) <= _NAMED else (),
    )


def _place(rank: RankView) -> str:
    parts = [f"rank {rank.rank}", rank.host, f"pid {rank.pid}" if rank.pid is not None else ""]
    return ", ".join(part for part in parts if part)


def _notice(view: JobView) -> Notice | None:
    """Return the gravest note, the newest of equals; information stays in the log.

    Where the supervisor is, when that cannot be seen from here, comes first when it is silent and last when it is not.
    """
    graded = [note for note in view.notes if note["level"] in _LEVELS]
    if view.elsewhere is not None and (view.elsewhere.is_silent or not graded):
        return Notice("warning", elsewhere(view))
    if not graded or view.state is State.FAILED:
        return None
    worst = max(reversed(graded), key=lambda note: _LEVELS[note["level"]])
    return Notice(worst["level"], worst["text"])


def _result(view: JobView) -> str:
    first = view.ranks[0]
    return first.result if first.ok and first.result and first.result != "None" else ""
