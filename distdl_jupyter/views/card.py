"""The card of a job: the data for the header of its panel, including cost, data staging and failure.

Pure. Times are epoch seconds of this machine's clock; ``now`` is sent too, because a browser's clock may differ.
Hosts and times that no event has reported are omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import msgspec

from distdl_jupyter.core import humanize
from distdl_jupyter.core.collectives import Collective
from distdl_jupyter.core.failure import Failure, RankView, crash, describe, has_failed, is_echo, is_lost
from distdl_jupyter.core.findings import Finding
from distdl_jupyter.core.queue import QueueView
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView, Phase, Picture, ProfileView, Restart, StagingView, Stall, StopView
from distdl_jupyter.views.job_table import JobSummary, summary
from distdl_jupyter.views.wire import finite, from_fields

#: Maximum number of staging bars; if there are more, they are summed by source.
MAX_BARS = 8
_LEVELS = {"warning": 1, "error": 2}
#: A failure is shown only after the job has ended, because the first error may be a consequence of another one.
_HAS_FAILED = (State.FAILED, State.LOST)
#: Ranks that ended in the same way within this many seconds share one timeline entry.
_GROUP_SECONDS = 1.0


RankStatus = Literal["waiting", "started", "ready", "compiling", "ended", "failed"]


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """One frame of a traceback; ``source`` has the surrounding lines as (number, text)."""

    file: str
    line: int
    function: str
    kind: str
    label: str
    cell: int | None = None
    source: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """An exception that caused another."""

    type: str = ""
    message: str = ""
    frames: tuple[ErrorFrame, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherRank:
    """A rank that ended because of the first failure, ``after`` seconds later."""

    rank: int
    what: str
    after: float


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One event of the timeline; ``bad`` marks the failure itself."""

    t: float
    text: str
    bad: bool


@dataclass(frozen=True, slots=True)
class FailureCard:
    """The first failure. ``rank`` is None when the job failed as a whole; ``values`` belong to frame ``values_at``."""

    rank: int | None
    when: float | None
    what: str = ""
    error_type: str = ""
    message: str = ""
    place: str = ""
    hint: str = ""
    #: The stable name of the failure for programs and help links.
    code: str = ""
    frames: tuple[ErrorFrame, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    values_at: int | None = None
    #: Nearest first.
    causes: tuple[Cause, ...] = ()
    traceback: str = ""
    others: tuple[OtherRank, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    #: The last collective operation of each rank where one of them caused the failure.
    collectives: tuple[Collective, ...] = ()


#: Why stacks were captured: a request, no progress, a hang, the time limit of the job, or a failure.
StacksWhy = Literal["asked", "stall", "hang", "time", "failure"]


@dataclass(frozen=True, slots=True)
class StacksTaken:
    """A saved stack dump, which can be requested by ``number``."""

    number: int
    t: float
    why: StacksWhy


@dataclass(frozen=True, slots=True, kw_only=True)
class Card(JobSummary):
    """The data for the header of a panel; ``now`` is the time when it was created."""

    reason: str
    now: float
    phases: list[Phase]
    unit: str
    step: float | None
    stop: StopView | None
    lines: int
    failure: FailureCard | None
    #: The message at the bottom of the panel.
    notice: Finding | None
    result: str
    has_metrics: bool
    #: Price of one node per hour, None if unknown; ``paid_since`` is when the job got its nodes.
    price_per_hour: float | None
    currency: str
    price_source: str
    paid_since: float | None
    staging: list[StagingView]
    #: Oldest first; there are at most ``max_restarts``.
    restarts: list[Restart]
    max_restarts: int
    stall: Stall | None
    #: Oldest first.
    stacks: tuple[StacksTaken, ...]
    #: Whether stacks of its ranks can be requested now.
    can_ask_stacks: bool
    #: Oldest first.
    profiles: list[ProfileView]
    #: Whether a profile of the next steps can be requested now.
    can_profile: bool
    #: Oldest first.
    pictures: list[Picture]
    #: The job from whose checkpoints this one resumed ("" for none), and the step at which it forked.
    resumed_from: str
    forked_at: float | None
    #: Its position in the queue, None if it is not queued.
    queue: QueueView | None


def card(view: JobView, now: float, *, has_checkpoints: bool = False) -> Card:
    """Return the data for the header of a panel."""
    first = view.ranks[0]
    return from_fields(
        Card,
        view,
        **summary(view, now, has_checkpoints=has_checkpoints),
        now=now,
        step=last_step(view),
        failure=failure_card(view),
        notice=notice(view),
        result=first.result if first.ok and first.result and first.result != "None" else "",
        has_metrics=bool(view.metrics),
        staging=staging_bars(view),
        stall=None if view.state.ended else view.stall,
        stacks=tuple(StacksTaken(taken.number, taken.t, stacks_why(taken.why)) for taken in view.stacks),
        can_ask_stacks=can_ask_stacks(view),
        can_profile=can_ask_stacks(view) and all(profile.ended for profile in view.profiles),
    )


def origin_text(of: JobSpec | JobView) -> str:
    """Return the job from whose checkpoints this one resumed, and the step at which it forked; "" for none."""
    return of.resumed_from if of.forked_at is None else f"{of.resumed_from}, step {humanize.count(of.forked_at)}"


def rank_status(rank: RankView) -> RankStatus:
    """Return waiting, started, ready, compiling, ended or failed."""
    if rank.is_compiling:
        return "compiling"
    return "failed" if has_failed(rank) else rank.status  # type: ignore[return-value]  # a str with these values only


def can_ask_stacks(view: JobView) -> bool:
    """Return whether a rank is running, so that stacks can be requested."""
    return not view.state.ended and any(rank.is_running for rank in view.ranks)


def stacks_why(reason: str) -> StacksWhy:
    """Return why stacks were captured; an unknown reason, from a later version, counts as a request."""
    return reason if reason in get_args(StacksWhy) else "asked"  # type: ignore[return-value]  # one of them


def elsewhere(view: JobView) -> str:
    """Return on which other host the job's supervisor runs, and what to do if it is silent; "" for this host."""
    if view.elsewhere is None:
        return ""
    return f"{view.elsewhere.describe()} {view.elsewhere.remedy(view.id) if view.elsewhere.is_silent else ''}".rstrip()


def last_step(view: JobView) -> float | None:
    """Return the highest step that a rank has reported, None if there is none."""
    return max((step for rank in view.ranks if (step := finite(rank.last_step)) is not None), default=None)


def notice(view: JobView) -> Finding | None:
    """Return the most severe warning or error, the newest of equals.

    A notice about a supervisor on another host comes first if that does not respond, otherwise last.
    """
    graded = [note for note in view.notes if note["level"] in _LEVELS]
    if view.elsewhere is not None and (view.elsewhere.is_silent or not graded):
        return Finding("warning", "", elsewhere(view))
    if not graded or view.state is State.FAILED:
        return None
    worst = max(reversed(graded), key=lambda note: _LEVELS[note["level"]])
    return Finding(worst["level"], worst["code"], worst["text"])


def cost_text(view: JobView, now: float) -> str:
    """Return the cost: ``about 1.23 USD so far``, the total after the end, the hourly rate before the start, or ""."""
    spent = view.cost(now)
    if spent is None or view.price_per_hour is None:
        return ""
    if view.placed is None:
        return "" if view.state.ended else hourly_cost_text(view.price_per_hour, view.currency, view.node_count)
    return f"about {humanize.money(spent, view.currency)}{'' if view.state.ended else ' so far'}"


def hourly_cost_text(per_hour: float, currency: str, nodes: int) -> str:
    """Return the hourly cost of ``nodes`` nodes at this price each: ``about 7.35 USD/h for 2 nodes``."""
    return f"about {humanize.money(per_hour * nodes, currency)}/h for {humanize.plural(nodes, 'node')}"


def staging_bars(view: JobView) -> list[StagingView]:
    """Return one bar for each data source on each node, or for each source if there are too many."""
    if len(view.staging) <= MAX_BARS:
        return view.staging
    names = dict.fromkeys(item.source for item in view.staging)
    return [_sum_of(name, [item for item in view.staging if item.source == name]) for name in names]


def _sum_of(name: str, bars: list[StagingView]) -> StagingView:
    sums = {field: sum(getattr(bar, field) for bar in bars) for field in ("done", "total", "files", "of", "cached")}
    return StagingView(node=0, host="", source=name, nodes=len(bars), **sums)


def failure_card(view: JobView) -> FailureCard | None:
    """Return the failure for the panel, None if there is none.

    ``rank`` is None if the job failed as a whole: before any rank failed, or because its ranks did not make the same
    calls. The reason is then in the state or in ``what``.
    """
    if view.state not in _HAS_FAILED:
        return None
    failure = view.failure
    if failure is None:
        return FailureCard(rank=None, when=view.ended, code=view.reason_code) if view.state is State.FAILED else None
    error = failure.error or {}
    fields = {
        **error,
        "error_type": error.get("type", ""),
        "rank": None if failure.kind == "unequal" else failure.rank,
        "when": failure.when,
        "what": failure.what,
        "place": rank_place(view.ranks[failure.rank]),
        "hint": " ".join(part for part in (error.get("hint", ""), failure.evidence) if part and part != "stopped"),
        "code": failure.code,
        "others": failure.others,
        "timeline": failure_timeline(view, failure),
        "collectives": failure.collectives,
    }
    # The supervisor has validated the error that the rank reported.
    return msgspec.convert(fields, FailureCard)


def rank_place(rank: RankView) -> str:
    """Return the known location of a rank: ``node-b (pid 48213, GPU 0)``."""
    details = [f"pid {rank.pid}"] if rank.pid is not None else []
    details += [f"GPU {rank.gpu}"] if rank.gpu is not None else []
    if not rank.host:
        return ", ".join(details)
    return f"{rank.host} ({', '.join(details)})" if details else rank.host


def failure_timeline(view: JobView, failure: Failure) -> list[TimelineEntry]:
    """Return the timeline: start of training, the first failure, and the other ranks grouped by how they ended."""
    several = view.process_count > 1
    entries = []
    train = next((phase for phase in view.phases if phase.phase == "train"), None)
    if train is not None and train.begun is not None:
        subject = f"{humanize.plural(view.process_count, 'rank')} connected and started" if several else "Started"
        entries.append(TimelineEntry(train.begun, f"{subject} training", bad=False))
    subject = f"Rank {failure.rank}" if several else "The process"
    text = failure.what if failure.kind == "unequal" else f"{subject} {_how_ended(view.ranks[failure.rank])}"
    entries += [TimelineEntry(failure.when, text, bad=True), *_other_entries(view, failure)]
    all_exited = all(rank.status == "ended" and not is_lost(rank) for rank in view.ranks)
    if several and view.ended is not None and all_exited:
        entries[-1] = replace(entries[-1], text=f"{entries[-1].text}; all processes have ended")
    return entries


def _other_entries(view: JobView, failure: Failure) -> list[TimelineEntry]:
    groups: list[tuple[str, float, list[int]]] = []
    for other in failure.others:
        how, after = _how_ended(view.ranks[other["rank"]], failure.rank), other["after"]
        if groups and groups[-1][0] == how and after - groups[-1][1] <= _GROUP_SECONDS:
            groups[-1][2].append(other["rank"])
        else:
            groups.append((how, after, [other["rank"]]))
    return [TimelineEntry(failure.when + after, _group_text(view, how, sorted(ranks)), bad=False)
            for how, after, ranks in groups]  # fmt: skip


def _group_text(view: JobView, how: str, ranks: Sequence[int]) -> str:
    """Return how some ranks ended; ``how`` is "" for those that were lost with their hosts."""
    subject = humanize.ranks(ranks).capitalize()
    if how:
        return f"{subject} {how}"
    hosts = list(dict.fromkeys(view.ranks[rank].host for rank in ranks if view.ranks[rank].host))
    if not hosts:
        return f"{subject} lost"
    where = hosts[0] if len(hosts) == 1 else humanize.plural(len(hosts), "node")
    return f"{subject} was lost with {where}" if len(ranks) == 1 else f"{subject} were lost with {where}"


def _how_ended(rank: RankView, first: int | None = None) -> str:
    """Return how a rank ended; "" if it was lost after the ``first`` rank had failed."""
    if first is not None and is_lost(rank):
        return ""
    if first is not None and is_echo(rank.error):
        return f"lost the connection to rank {first}"
    if rank.error and not crash(rank):
        return f"raised {rank.error.get('type', 'an exception')}"
    if rank.signal:
        return f"ended by SIG{rank.signal}"
    if rank.code:
        return f"ended with exit code {rank.code}"
    return f"was {describe(rank)}" if is_lost(rank) else describe(rank)
