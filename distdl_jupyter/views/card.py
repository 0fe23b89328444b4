"""The card of a job: the data for the header of its panel, including cost, data staging and failure.

Times are epoch seconds of this machine; ``now`` is sent too, because the clock of a browser may differ. Hosts and times
are omitted until an event reports them.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from distdl_jupyter.core import humanize
from distdl_jupyter.core.collectives import Collective
from distdl_jupyter.core.errors import LEVELS, Finding
from distdl_jupyter.core.events import State
from distdl_jupyter.core.failure import RankView, has_failed
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import (
    JobView,
    Phase,
    Picture,
    ProfileView,
    Restart,
    StacksView,
    StagingView,
    Stall,
    StopView,
)
from distdl_jupyter.views.job_table import JobSummary, make_finding, make_summary
from distdl_jupyter.views.wire import from_fields


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """One frame of a traceback; ``source`` lists the surrounding source lines as (number, text)."""

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
class FailureCard:
    """The first failure. ``rank`` is None if the job failed as a whole. ``values`` belong to frame ``values_at``."""

    rank: int | None
    when: float | None
    what: str = ""
    error_type: str = ""
    message: str = ""
    location: str = ""
    hint: str = ""
    #: The stable name of the failure for programs and help links.
    code: str = ""
    frames: tuple[ErrorFrame, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    values_at: int | None = None
    #: The direct cause first.
    causes: tuple[Cause, ...] = ()
    traceback: str = ""
    others: tuple[OtherRank, ...] = ()
    #: The last collective operation of each rank, if a collective operation caused the failure.
    collectives: tuple[Collective, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Card(JobSummary):
    """The data for the header of a panel at the time ``now``; lists are in order of time."""

    reason: str
    now: float
    phases: list[Phase]
    unit: str
    step: float | None
    stop: StopView | None
    lines: int
    failure: FailureCard | None
    #: The message at the bottom of the panel, or None if there is none.
    notice: Finding | None
    result: str
    has_metrics: bool
    #: Price of one node per hour, or None if it is unknown.
    price_per_hour: float | None
    currency: str
    price_source: str
    #: Time at which the job got its nodes, or None before that.
    paid_since: float | None
    staging: list[StagingView]
    restarts: list[Restart]
    max_restarts: int
    stall: Stall | None
    stacks: list[StacksView]
    #: Whether stack traces can be requested now.
    can_ask_stacks: bool
    profiles: list[ProfileView]
    #: Whether a profile of the next steps can be requested now.
    can_profile: bool
    pictures: list[Picture]
    #: The job from whose checkpoints this one resumed, or "" if there is none.
    resumed_from: str
    #: The step at which this job forked, or None if it did not fork.
    forked_at: float | None


def make_card(view: JobView, now: float, *, has_checkpoints: bool = False) -> Card:
    """Return the data for the header of a panel."""
    first = view.ranks[0]
    is_running = not view.state.ended and any(rank.is_running for rank in view.ranks)
    steps = [rank.last_step for rank in view.ranks if rank.last_step is not None]
    return from_fields(
        Card,
        view,
        **make_summary(view, now, has_checkpoints=has_checkpoints),
        now=now,
        step=max(steps, default=None),
        failure=make_failure_card(view),
        notice=find_notice(view),
        result=first.result if first.ok and first.result and first.result != "None" else "",
        has_metrics=bool(view.metrics),
        stall=None if view.state.ended else view.stall,
        can_ask_stacks=is_running,
        can_profile=is_running and all(profile.ended for profile in view.profiles),
    )


def format_origin(job: JobSpec | JobView) -> str:
    """Return the job from whose checkpoints this one resumed, with the step of a fork, or "" if there is none."""
    return job.resumed_from if job.forked_at is None else f"{job.resumed_from}, step {humanize.count(job.forked_at)}"


def get_rank_status(rank: RankView) -> str:
    """Return waiting, started, ready, compiling, ended or failed."""
    return "compiling" if rank.compiling else "failed" if has_failed(rank) else rank.status


def format_other_host(view: JobView) -> str:
    """Return the host of the job's supervisor, with a remedy if it does not respond, or "" if it is this host."""
    if view.remote_writer is None:
        return ""
    remedy = view.remote_writer.get_remedy(view.id) if view.remote_writer.is_silent else ""
    return f"{view.remote_writer.describe()} {remedy}".rstrip()


def find_notice(view: JobView) -> Finding | None:
    """Return the most severe warning or error, the newest of equals, or None if there is none.

    A notice about a supervisor on another host comes first if the supervisor does not respond, otherwise last.
    """
    problems = [note for note in view.notes if note["level"] in ("error", "warning")]
    if view.remote_writer is not None and (view.remote_writer.is_silent or not problems):
        return Finding("warning", "", format_other_host(view))
    if not problems or view.state is State.FAILED:
        return None
    return make_finding(min(reversed(problems), key=lambda note: LEVELS.index(note["level"])))


def format_cost(view: JobView, now: float) -> str:
    """Return the hourly cost before the start, the cost so far, or the total after the end; "" if it is unknown."""
    cost = view.compute_cost(now)
    if cost is None or view.price_per_hour is None:
        return ""
    if view.paid_since is None:
        return "" if view.state.ended else format_hourly_cost(view.price_per_hour, view.currency, view.node_count)
    return f"about {humanize.money(cost, view.currency)}{'' if view.state.ended else ' so far'}"


def format_hourly_cost(per_hour: float, currency: str, nodes: int) -> str:
    """Return the hourly cost of ``nodes`` nodes at ``per_hour`` each: ``about 7.35 USD/h for 2 nodes``."""
    return f"about {humanize.money(per_hour * nodes, currency)}/h for {humanize.plural(nodes, 'node')}"


def make_failure_card(view: JobView) -> FailureCard | None:
    """Return the failure for the panel, or None if there is none.

    ``rank`` is None if the job failed as a whole: before any rank failed, or because its ranks did not call the same
    operations. The reason is then in the state or in ``what``.
    """
    if view.state not in (State.FAILED, State.LOST):  # while the job runs, the first error may be a consequence
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
        "location": format_location(view.ranks[failure.rank]),
        "hint": " ".join(part for part in (error.get("hint", ""), failure.evidence) if part and part != "stopped"),
        "code": failure.code,
        "others": failure.others,
        "collectives": failure.collectives,
    }
    # The supervisor has validated the error that the rank reported.
    return msgspec.convert(fields, FailureCard)


def format_location(rank: RankView) -> str:
    """Return the location of a rank as far as it is known: ``node-b (pid 48213, GPU 0)``."""
    numbers = (("pid", rank.pid), ("GPU", rank.gpu))
    details = ", ".join(f"{name} {number}" for name, number in numbers if number is not None)
    return f"{rank.host} ({details})" if rank.host and details else rank.host or details
