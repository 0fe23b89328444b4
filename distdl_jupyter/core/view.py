"""The view of a job that all front ends show: a pure fold over its events.

Call ``JobView.from_spec(spec)``, then ``view.apply(event)`` for each event in order. Readers of the same bytes have
equal views. Curves and log lines are large and are folded separately (``core.series``, ``core.log``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from distdl_jupyter.core.collectives import Collective, CollectiveFinding
from distdl_jupyter.core.events import Event, State
from distdl_jupyter.core.failure import Failure, RankView, add_collectives, find_first_failure, may_concern_collectives
from distdl_jupyter.core.files import Holder
from distdl_jupyter.core.plan import QueueView
from distdl_jupyter.core.spec import JobSpec

#: Shorter waits (seconds) are ignored, because passing through an empty queue takes this long.
SHORT_WAIT = 1.0
#: Maximum number of points of a sparkline, including the newest one.
MAX_TRAIL_POINTS = 40
#: Initiators of a stop that is not the consequence of a failure: the user, a time limit, a detected hang.
_STOP_REQUESTS = ("user", "time", "hang")
_STATES = tuple(State)


@dataclass(slots=True)
class Phase:
    """One phase of the startup; ``seconds`` is None until it ends and ``started`` (epoch seconds) until it starts."""

    phase: str
    detail: str = ""
    started: float | None = None
    seconds: float | None = None


@dataclass(slots=True)
class StopView:
    """A job that is being stopped: the last signal, and when the next one is sent (epoch seconds)."""

    by: str
    signal: str
    sent: float
    next: str = ""
    next_at: float | None = None
    kill_at: float | None = None


@dataclass(slots=True)
class StagingView:
    """The staging of a data source to a node: bytes and files, done and in total; ``cached`` bytes were on its disk."""

    node: int
    host: str
    source: str
    done: int = 0
    total: int = 0
    files: int = 0
    of: int = 0
    cached: int = 0


@dataclass(slots=True)
class Stall:
    """A stalled job: since when (epoch seconds), the ranks that differ, and the last operation of each rank."""

    since: float
    ranks: list[int] = field(default_factory=list)
    text: str = ""
    collectives: list[Collective] = field(default_factory=list)


@dataclass(slots=True)
class StacksView:
    """Captured stacks, with the ranks that sent some and those that did not; their text is a file (core.stacks)."""

    number: int
    t: float
    why: str = "request"  # or stall, hang, time, failure
    ranks: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    finding: CollectiveFinding | None = None


@dataclass(slots=True)
class ProfileView:
    """A profile, requested at ``t``, with ``recorded`` of ``steps`` steps, or ``why`` it failed (core.profiles)."""

    number: int
    t: float
    status: Literal["requested", "recording", "saving", "done", "failed"]
    steps: int
    ranks: list[int] = field(default_factory=list)
    recorded: int = 0
    why: str = ""

    @property
    def ended(self) -> bool:
        """Whether it is done or has failed."""
        return self.status in ("done", "failed")


@dataclass(slots=True)
class Picture:
    """A picture (``form``: png or jpeg) that ``ranks`` have displayed, first at ``t``; a file (core.store)."""

    number: int
    t: float
    form: str
    width: int
    height: int
    ranks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Restart:
    """A restart of all ranks because ``rank`` had failed, or a queue had revoked the machines (``requeued``)."""

    t: float
    reason: str = ""
    rank: int | None = None
    requeued: bool = False


@dataclass(slots=True)
class MetricView:
    """The newest value of one metric over ranks: ``mean`` with the lowest and highest and their ranks."""

    name: str
    step: float = 0.0
    values: dict[int, float] = field(default_factory=dict)
    steps: dict[int, float] = field(default_factory=dict)
    count: int = 0
    #: (step, mean) of finished steps, roughly evenly spaced, and the minimum spacing.
    trail: list[tuple[float, float]] = field(default_factory=list)
    min_spacing: float = 0.0
    #: The highest step so far, which is open until a later one starts.
    newest_step: float = -math.inf
    #: Whether the ranks that reported these values were replaced by others that have not reported yet.
    is_stale: bool = False

    def add(self, rank: int, step: float, value: float, reports: int = 1, *, repeated: bool = False) -> None:
        """Add the last of ``reports`` values of one rank; ``repeated``: the rank reports this step a second time."""
        if self.is_stale:
            self.values, self.steps, self.is_stale, repeated = {}, {}, False, True
        if repeated:
            self.trail = [point for point in self.trail if point[0] < step]
            self.newest_step = -math.inf
        if step > self.newest_step:
            # Add the last step to the trail if it is due; at ``MAX_TRAIL_POINTS`` points, drop every second one.
            is_due = not self.trail or self.newest_step - self.trail[-1][0] >= self.min_spacing
            if self.newest_step != -math.inf and is_due:
                self.trail.append((self.newest_step, self.mean))
            if len(self.trail) >= MAX_TRAIL_POINTS:
                self.trail = self.trail[::2]
                self.min_spacing = (self.trail[-1][0] - self.trail[0][0]) / (len(self.trail) - 1)
            self.newest_step = step
        self.count += reports
        if repeated or step >= self.steps.get(rank, step):  # a late report of an earlier step is not the newest value
            self.values[rank], self.steps[rank], self.step = value, step, step

    @property
    def mean(self) -> float:
        """Mean over ranks of each rank's newest value."""
        return sum(self.values.values()) / len(self.values)

    def to_json(self) -> dict[str, Any]:
        """Return name, step, count, mean, low, low_rank, high, high_rank; numbers may be nan or inf."""
        ordered = sorted((value, rank) for rank, value in self.values.items())
        ends = zip(("low", "low_rank", "high", "high_rank"), (*ordered[0], *ordered[-1]), strict=True)
        return {"name": self.name, "step": self.step, "count": self.count, "mean": self.mean, **dict(ends)}


@dataclass(slots=True)
class JobView:
    """The state of a job without its large parts. Times are epoch seconds."""

    id: str
    name: str
    process_count: int
    node_count: int
    process_count_per_node: int
    distributed_backend: str
    compute_target: str
    created: float
    state: State = State.QUEUED
    reason: str = ""
    reason_code: str = ""
    #: When the nodes were allocated, moved by later time in queues: the estimated start of billing.
    paid_since: float | None = None
    #: When the ranks had connected.
    started: float | None = None
    ended: float | None = None
    #: Seconds in queues so far, and when the current wait began.
    waited: float = 0.0
    queued_since: float | None = None
    last_sign: float = 0.0
    phases: list[Phase] = field(default_factory=list)
    ranks: list[RankView] = field(default_factory=list)
    done: float | None = None
    total: float | None = None
    unit: str = ""
    #: Time and value of the first progress report, to estimate the remaining time.
    progress_from: tuple[float, float] | None = None
    progress_at: float | None = None
    metrics: dict[str, MetricView] = field(default_factory=dict)
    #: Names of the metrics that are parsed from the output.
    output_metrics: list[str] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    lines: int = 0
    stop: StopView | None = None
    handle: dict[str, Any] | None = None
    staging: list[StagingView] = field(default_factory=list)
    #: Price of one node per hour, in ``currency``, with its source; None if it is unknown.
    price_per_hour: float | None = None
    currency: str = ""
    price_source: str = ""
    max_restarts: int = 0
    restarts: list[Restart] = field(default_factory=list)
    stall: Stall | None = None
    stacks: list[StacksView] = field(default_factory=list)
    profiles: list[ProfileView] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    #: The job from whose checkpoints this one continues, or "" if there is none.
    resumed_from: str = ""
    forked_at: float | None = None
    #: Its position while it is queued, or None at other times or if it is unknown.
    queue: QueueView | None = None
    #: The holder of the lock, if only a check on another host can tell whether it is alive; readers set it.
    remote_writer: Holder | None = None

    @classmethod
    def from_spec(cls, spec: JobSpec) -> JobView:
        """Return the initial view of a job with this spec."""
        shared_fields = {name: getattr(spec, name) for name in cls.__dataclass_fields__ if hasattr(spec, name)}
        view = cls(**shared_fields, last_sign=spec.created)
        view.apply({"type": "world", "node_count": spec.node_count, "process_count": spec.process_count})
        return view

    def apply(self, event: Event) -> None:
        """Apply one event; unknown types and ranks are ignored."""
        self.last_sign = max(self.last_sign, event.get("t", 0.0))
        if (fold := _FOLDS.get(event["type"])) is not None:
            fold(self, event)

    def find_rank(self, number: Any) -> RankView | None:
        """Return the view of one rank, or None if the job has no rank with this number."""
        return self.ranks[number] if isinstance(number, int) and 0 <= number < len(self.ranks) else None

    @property
    def failure(self) -> Failure | None:
        """The earliest failure with the ranks that ended because of it, or None if no rank failed."""
        is_stopped = self.stop is not None and self.stop.by in _STOP_REQUESTS
        if is_stopped or self.state in (State.COMPLETED, State.CANCELED, State.CANCELING):
            return None  # ranks that end because of a requested stop have not failed
        failure = find_first_failure(self.ranks)
        since = self.restarts[-1].t if self.restarts else 0.0
        stacks = [dump for dump in self.stacks if dump.why == "failure" and dump.t >= since]
        if failure is None or not stacks or not may_concern_collectives(failure.error):
            return failure
        return add_collectives(failure, stacks[-1].collectives, stacks[-1].finding)

    @property
    def requeue_count(self) -> int:
        """The number of restarts that were not caused by a failure."""
        return sum(restart.requeued for restart in self.restarts)

    def compute_wait(self, now: float) -> float:
        """Return the seconds spent in queues until the job ends or ``now``."""
        waited = self.waited + max(0.0, (self.ended or now) - (self.queued_since or math.inf))
        return waited if waited >= SHORT_WAIT else 0.0

    def compute_run_time(self, now: float) -> float:
        """Return the seconds from creation until the job ends or ``now``, without the time in queues."""
        return max(0.0, (self.ended or now) - self.created - self.compute_wait(now))

    def compute_cost(self, now: float) -> float | None:
        """Return nodes x hours x price until the job ends or ``now``, without time in queues; None without a price."""
        if self.price_per_hour is None:
            return None
        until = min(self.ended or now, self.queued_since or math.inf)
        hours = max(0.0, until - (self.paid_since or until)) / 3600
        return self.node_count * hours * self.price_per_hour

    def estimate_remaining(self, now: float) -> float | None:
        """Return the estimated remaining seconds at the mean pace so far, or None if they are unknown."""
        if not self.total or self.done is None or self.progress_from is None or self.progress_at is None:
            return None
        seconds, steps = self.progress_at - self.progress_from[0], self.done - self.progress_from[1]
        if self.state is not State.RUNNING or seconds <= 0 or steps <= 0:
            return None
        return max(0.0, (self.total - self.done) * seconds / steps - (now - self.progress_at))

    def to_json(self) -> dict[str, Any]:
        """Return the whole view as plain data (NaN and inf are left as floats)."""
        return {
            **msgspec.to_builtins(self, str_keys=True),
            "metrics": [metric.to_json() for metric in self.metrics.values()],
            "elsewhere": self.remote_writer._asdict() if self.remote_writer else None,
            "failure": msgspec.to_builtins(self.failure),
        }

    # ---- one method for each type of event (core.events) ----

    def _on_state(self, event: Event) -> None:
        # An active job only moves forward, and may enter any final state at any time; a final state never changes.
        if self.state.ended or event["state"] not in _STATES[_STATES.index(self.state) + 1 :]:
            return
        state, now = State(event["state"]), event["t"]
        self.state, self.reason, self.reason_code = state, event.get("reason", ""), event.get("code", "")
        self.queue = None
        if state is not State.QUEUED and self.queued_since is not None:
            waited, self.queued_since = max(0.0, now - self.queued_since), None
            self.waited += waited
            self.paid_since = None if self.paid_since is None else self.paid_since + waited
        if state in (State.STARTING, State.RUNNING) and self.paid_since is None:
            self.paid_since = now
        if state is State.RUNNING:
            self.started = now
        if state.ended:
            self.ended, self.remote_writer = now, None
            self._end_phase(now)
            for profile in self.profiles:
                profile.status = profile.status if profile.ended else "failed"

    def _on_queue(self, event: Event) -> None:
        if self.state is State.QUEUED:
            self.queue = msgspec.convert(event, QueueView)
            self._join_queue(event["t"])

    def _join_queue(self, now: float) -> None:
        if self.state is State.QUEUED and self.queued_since is None:
            self.queued_since = now

    def _on_phase(self, event: Event) -> None:
        name, detail, now = event["phase"], event.get("detail", ""), event["t"]
        if name == "start":
            self._join_queue(now)  # the job is now queued by the cluster itself
        if self.phases and self.phases[-1].phase == name:
            self.phases[-1].detail = detail
            return
        self._end_phase(now)
        self.phases.append(Phase(name, detail, started=now, seconds=event.get("seconds")))

    def _end_phase(self, now: float) -> None:
        if self.phases and self.phases[-1].seconds is None:
            self.phases[-1].seconds = max(0.0, now - (self.phases[-1].started or now))

    def _on_rank(self, event: Event) -> None:
        if (rank := self.find_rank(event.get("rank"))) is None:
            return
        for name in ("node", "host", "local_rank", "pid", "gpu", "status", "compiling", "code", "signal", "evidence"):
            if event.get(name) is not None:
                setattr(rank, name, event[name])
        rank.compiling = rank.compiling and rank.is_running
        rank.ended = event["t"] if rank.status == "ended" else rank.ended
        if event.get("status") == "ready":
            self._remove_notes("backend-not-initialised")

    def _on_averaged(self, _event: Event) -> None:
        # All ranks use a wrapper that averages gradients, and have equal weights, so these notes do not apply.
        self._remove_notes("backend-not-initialised", "gradients-not-averaged", "no-common-start")

    def _remove_notes(self, *codes: str) -> None:
        self.notes = [note for note in self.notes if note["code"] not in codes]

    def _on_log(self, event: Event) -> None:
        is_redrawn = bool(event.get("redraws"))
        count = int(bool(event.get("closed"))) if is_redrawn else event["text"].count("\n") + 1
        self.lines += count
        if (rank := self.find_rank(event.get("rank"))) is not None:
            rank.lines += count
            # Redrawn lines are progress bars, which are drawn on stderr.
            rank.error_lines += count if event.get("stream") == "err" and not is_redrawn else 0
        if "counts" in event:  # a notice in place of deleted lines
            self._on_count(event)

    def _on_count(self, event: Event) -> None:
        self.lines = event["lines"]
        for number, (lines, errors) in event["counts"].items():
            if (rank := self.find_rank(int(number))) is not None:
                rank.lines, rank.error_lines = lines, errors

    def _on_metric(self, event: Event) -> None:
        if (rank := self.find_rank(event.get("rank"))) is None:
            return
        step = rank.last_step = event["step"]
        for name, value in event["values"].items():
            metric = self.metrics.get(name) or self.metrics.setdefault(name, MetricView(name))
            metric.add(rank.rank, step, float(value), event.get("reports", 1), repeated=event.get("replace") is True)

    def _on_metric_source(self, event: Event) -> None:
        names = event["names"]
        others = [name for name in self.output_metrics if name not in names]
        self.output_metrics = [*others, *names] if event["from_output"] else others
        if not event["from_output"]:
            self.metrics = {name: metric for name, metric in self.metrics.items() if name not in names}

    def _on_progress(self, event: Event) -> None:
        # Ranks of synchronous training advance together; the lowest reporting rank represents all.
        if event.get("rank", 0) != 0 and self.progress_from is not None and self.ranks[0].status != "waiting":
            return
        now, done = event["t"], event["done"]
        if done is None or self.progress_from is None or (self.done is not None and done < self.done):
            self.progress_from = None if done is None else (now, done)
        self.done, self.total, self.unit, self.progress_at = done, event.get("total"), event.get("unit", ""), now

    def _on_note(self, event: Event) -> None:
        self.notes.append({name: event.get(name, "") for name in ("t", "level", "text", "code")})

    def _on_result(self, event: Event) -> None:
        if (rank := self.find_rank(event.get("rank"))) is None:
            return
        rank.ok, rank.result, rank.result_time = event["ok"], event.get("repr"), event["t"]
        rank.error, rank.problem = event.get("error"), str(event.get("problem") or "")
        rank.collectives = event.get("collectives") or rank.collectives
        rank.error_time = None if rank.ok else (rank.error or {}).get("time", event["t"])
        if code := str((rank.error or {}).get("code") or ""):
            self._remove_notes(code)  # the failure contains it

    def _on_stop(self, event: Event) -> None:
        by = self.stop.by if self.stop is not None and self.stop.by in _STOP_REQUESTS else event.get("by", "user")
        delays = (event.get("next_in"), event.get("kill_in"))
        times = (None if delay is None else event["t"] + delay for delay in delays)
        self.stop = StopView(by, event.get("signal", ""), event["t"], event.get("next", ""), *times)

    def _on_handle(self, event: Event) -> None:
        self.handle = {"cluster": event.get("cluster"), "data": event.get("data")}

    def _on_staging(self, event: Event) -> None:
        with contextlib.suppress(msgspec.ValidationError):  # an agent may report anything
            staging = msgspec.convert(event, StagingView)
            by_source = {(entry.node, entry.source): entry for entry in [*self.staging, staging]}
            self.staging = sorted(by_source.values(), key=lambda entry: entry.node)

    def _on_world(self, event: Event) -> None:
        self.node_count, self.process_count = nodes, count = event["node_count"], event["process_count"]
        per_node, new = max(1, count // nodes), range(len(self.ranks), count)
        self.ranks = [*self.ranks[:count], *(RankView(n, node=n // per_node, local_rank=n % per_node) for n in new)]

    def _on_restart(self, event: Event) -> None:
        """Reset the ranks after a restart, but keep their reports."""
        self.restarts.append(msgspec.convert(event, Restart))
        for metric in self.metrics.values():
            metric.is_stale = True
        shared_fields = ("rank", "node", "host", "local_rank", "gpu", "lines", "error_lines")
        self.ranks = [RankView(**{name: getattr(rank, name) for name in shared_fields}) for rank in self.ranks]
        self.state, self.reason = State.QUEUED if event.get("queued") else State.STARTING, ""
        self._join_queue(event["t"])
        self.phases = [previous for previous in self.phases if previous.phase == "capture"]
        self.progress_from = self.progress_at = self.stop = self.stall = None

    def _on_stall(self, event: Event) -> None:
        self.stall = None if event.get("since") is None else msgspec.convert(event, Stall)

    def _on_stacks(self, event: Event) -> None:
        self.stacks.append(msgspec.convert(event, StacksView))

    def _on_profile(self, event: Event) -> None:
        profile = msgspec.convert(event, ProfileView)
        if self.profiles and self.profiles[-1].number == profile.number:
            profile.t = self.profiles.pop().t
        self.profiles.append(profile)

    def _on_picture(self, event: Event) -> None:
        picture = next((entry for entry in self.pictures if entry.number == event["number"]), None)
        if picture is None:
            picture = msgspec.convert(event, Picture)
            self.pictures.append(picture)
        if isinstance(rank := event.get("rank"), int) and rank not in picture.ranks:
            picture.ranks.append(rank)


_FOLDS: dict[str, Callable[[JobView, Event], None]] = {
    name.removeprefix("_on_"): method for name, method in vars(JobView).items() if name.startswith("_on_")
}
