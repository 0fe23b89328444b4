"""What pages are told of a job and of the plug-ins: frozen dataclasses, from which the TypeScript types are generated.

Times are epoch seconds of this machine's clock, durations seconds, sizes bytes. Numbers are finite or None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from distdl_jupyter.core.collectives import Collective
from distdl_jupyter.core.correctness import Difference
from distdl_jupyter.core.printable import Styles
from distdl_jupyter.core.queue import QueueView
from distdl_jupyter.core.resources import ResourceMark
from distdl_jupyter.core.spec import Captured
from distdl_jupyter.core.step_times import RankTime, StepTime, Straggler
from distdl_jupyter.core.view import Phase, Picture, Restart, Stall
from distdl_jupyter.views.job_table import StateName

RankStatus = Literal["waiting", "started", "ready", "compiling", "ended", "failed"]


@dataclass(frozen=True, slots=True)
class Host:
    """One node: its ranks as (rank, status), or only counts when the job is large."""

    name: str
    ranks: tuple[tuple[int, RankStatus], ...]
    counts: dict[RankStatus, int]


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop in progress: the signal sent last, when the next comes; ``places`` are the last few ranks left."""

    by: str
    signal: str
    sent: float
    next: str
    next_at: float | None
    kill_at: float | None
    remaining: int
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a traceback; ``source`` are some lines around as (number, text)."""

    file: str
    line: int
    function: str
    kind: str
    label: str
    cell: int | None
    source: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Cause:
    """An exception behind another."""

    type: str
    message: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class OtherRank:
    """A rank that ended because of the first, ``after`` so many seconds."""

    rank: int
    what: str
    after: float


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of what happened; ``bad`` is the failure itself."""

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
    frames: tuple[Frame, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    values_at: int | None = None
    #: Nearest first.
    causes: tuple[Cause, ...] = ()
    traceback: str = ""
    others: tuple[OtherRank, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    #: The last collective operation of each rank where one of them caused the failure.
    collectives: tuple[Collective, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """The one line at the foot of a panel; ``code`` is its stable name for programs, "" for none."""

    level: str
    text: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class NoticeLine:
    """What the notice line below a panel depends on."""

    state: StateName
    reason: str
    notice: Notice | None
    result: str
    has_metrics: bool


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A metric's name with its newest mean over ranks, as a number and in words."""

    name: str
    value: str
    mean: float | None
    step: float
    #: Points that came over all ranks: a curve is drawn anew when this has changed.
    count: int
    #: Whether it is read in what ranks print.
    from_output: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job's nodes cost. ``per_hour`` is for all of them together, ``spent`` at the card's ``now``.

    ``since`` is when its nodes were its own, None before that.
    """

    per_hour: float
    currency: str
    source: str
    nodes: int
    since: float | None
    spent: float


@dataclass(frozen=True, slots=True)
class StagingBar:
    """A data source on its way to the node ``host``, or to ``nodes`` nodes in sum (``host`` ""): bytes and files.

    ``cached`` bytes of ``done`` were on the disks already.
    """

    source: str
    host: str
    nodes: int
    done: int
    total: int
    files: int
    of: int
    cached: int


#: Why stacks were taken: a user asked, no progress, no progress for too long, the time of the job was over.
StacksWhy = Literal["asked", "stall", "hang", "time", "failure"]


@dataclass(frozen=True, slots=True)
class StacksTaken:
    """Stacks that can be asked for by ``number``."""

    number: int
    t: float
    why: StacksWhy


#: How far a profile is.
ProfileStatus = Literal["asked", "recording", "saving", "done", "failed"]


@dataclass(frozen=True, slots=True)
class ProfileTaken:
    """A profile of some ``steps`` of some ``ranks``: ``recorded`` of them so far, ``why`` it failed.

    One that is done can be asked for by ``number``.
    """

    number: int
    t: float
    status: ProfileStatus
    steps: int
    ranks: tuple[int, ...]
    recorded: int
    why: str


@dataclass(frozen=True, slots=True)
class Card:
    """Everything that the head of a panel shows; ``now`` is the clock when it was made."""

    id: str
    name: str
    state: StateName
    reason: str
    compute_target: str
    backend: str
    node_count: int
    process_count_per_node: int
    created: float
    ended: float | None
    last_sign: float
    #: Seconds in a queue before, and since when it waits in one (epoch seconds), None while it does not.
    waited: float
    queued_since: float | None
    now: float
    phases: list[Phase]
    hosts: tuple[Host, ...]
    done: float | None
    total: float | None
    unit: str
    left: float | None
    step: float | None
    stop: Stop | None
    lines: int
    failure: FailureCard | None
    can_rerun: bool
    notice: Notice | None
    result: str
    has_metrics: bool
    #: None where nobody said what a node costs.
    cost: Cost | None
    staging: tuple[StagingBar, ...]
    #: Oldest first; ``max_restarts`` is how many there may be.
    restarts: list[Restart]
    max_restarts: int
    stall: Stall | None
    #: Oldest first.
    stacks: tuple[StacksTaken, ...]
    #: Whether its ranks can be asked for their stacks now.
    can_ask_stacks: bool
    #: Oldest first.
    profiles: tuple[ProfileTaken, ...]
    #: Whether its ranks can be asked to record their next steps now.
    can_profile: bool
    #: Oldest first.
    pictures: list[Picture]
    #: The job from whose checkpoints this one goes on, "" for none, and the step at which it leaves that job's curve.
    resumed_from: str
    forked_at: float | None
    #: It has ended and left checkpoints.
    can_resume: bool
    #: Its place while it waits for its turn.
    queue: QueueView | None


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank in the table of ranks."""

    rank: int
    local_rank: int
    node: int
    host: str
    pid: int | None
    gpu: int | None
    status: RankStatus
    last_step: float | None
    lines: int
    error_lines: int
    #: How its process ended: ``exit code 3``, ``ended by SIGKILL``; "" while it lives or when it ended well.
    how: str


@dataclass(frozen=True, slots=True)
class RankResources:
    """What one rank used lately: percent of a core, bytes, percent of the time that its GPUs were busy, watts.

    ``gpu_memory`` is what all programs use of its GPUs, ``torch_allocated`` and ``torch_reserved`` what torch in this
    rank uses for tensors, and holds.
    """

    rank: int
    #: The number of its machine in ``Resources.nodes``.
    node: int
    cpu: float | None
    memory: float | None
    gpu: float | None
    gpu_memory: float | None
    gpu_limit: float | None
    power: float | None
    torch_allocated: float | None
    torch_reserved: float | None


@dataclass(frozen=True, slots=True)
class NodeResources:
    """What one machine used lately; ``limit`` is the memory that can be used at most; rates in bytes a second."""

    node: int
    host: str
    cores: int | None
    cpu: float | None
    memory: float | None
    limit: float | None
    disk_read: float | None
    disk_written: float | None
    received: float | None
    sent: float | None


@dataclass(frozen=True, slots=True)
class ResourceLine:
    """One rank's curve in a strip; a strip of machines has a line under the first rank of each."""

    rank: int
    seconds: tuple[float, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ResourceStrip:
    """The curves of one resource over seconds since the first sample."""

    name: str
    lines: tuple[ResourceLine, ...]


@dataclass(frozen=True, slots=True)
class Resources:
    """What ranks and machines used lately, and what goes wrong with it now, the worst first."""

    nodes: tuple[NodeResources, ...]
    ranks: tuple[RankResources, ...]
    marks: tuple[ResourceMark, ...]
    strips: tuple[ResourceStrip, ...]


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One frame of a stack. ``kind`` is cell, user, library or worker; ``source`` its line, "" where nobody has it."""

    file: str
    line: int
    function: str
    kind: str
    label: str
    cell: int | None
    source: str


@dataclass(frozen=True, slots=True)
class StackThread:
    """A thread that is not the main one; the newest frame comes first."""

    name: str
    frames: tuple[StackFrame, ...]


@dataclass(frozen=True, slots=True)
class StackPlace:
    """One rank when its stack was taken: ``state`` of its process, last ``step``, seconds since its last sign."""

    rank: int
    host: str
    pid: int | None
    state: str
    step: float | None
    silent: float | None


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose main threads stand at the same place; ``frames`` newest first, ``at`` is that place in words."""

    ranks: tuple[int, ...]
    at: str
    differs: bool
    frames: tuple[StackFrame, ...]
    #: Of the first of the ranks.
    threads: tuple[StackThread, ...]
    places: tuple[StackPlace, ...]


@dataclass(frozen=True, slots=True)
class StackMissing:
    """A rank that gave no stack, with the reason as a sentence."""

    rank: int
    why: str


@dataclass(frozen=True, slots=True)
class Stacks:
    """The stacks of all ranks at one moment, side by side: the groups with the fewest ranks first.

    ``says`` is who stands where, as a clause.
    """

    number: int
    t: float
    why: StacksWhy
    says: str
    groups: tuple[StackGroup, ...]
    missing: tuple[StackMissing, ...]
    #: Why the ranks wait and what to do, as sentences; "" where their last collective operations do not tell.
    explanation: str
    collectives: tuple[Collective, ...]


@dataclass(frozen=True, slots=True)
class ProfileRank:
    """The mean step of one rank in a profile, in seconds."""

    rank: int
    host: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ProfileOperator:
    """One operator: calls and seconds of its own a step in the mean over ranks, and their share of the step.

    ``by_rank`` are each rank's own seconds a step, in the order of the ranks. ``stands_out`` is a rank that takes
    clearly longer than the others, ``times`` as long (0: the others never run it).
    """

    name: str
    kind: str
    calls: float
    own: float
    share: float
    by_rank: tuple[float, ...]
    stands_out: int | None
    times: float


@dataclass(frozen=True, slots=True)
class JobProfile:
    """Some recorded steps of a job: the operators that take the most time of their own, most first.

    ``seconds`` is the mean step. ``says`` has a sentence for what is missing. ``traces`` are the ranks that have a
    Chrome trace.
    """

    number: int
    t: float
    steps: int
    seconds: float
    says: tuple[str, ...]
    ranks: tuple[ProfileRank, ...]
    operators: tuple[ProfileOperator, ...]
    traces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobTime:
    """Where the time of a job's training steps went, in seconds: the mean step of each rank, and the newest steps.

    ``says`` is what a person reads above the table; without ``ranks`` it says why there are none. ``own_share`` is the
    part of the ranks' time (0 to 1) that is neither communication nor waiting.
    """

    says: tuple[str, ...]
    samples_per_second: float | None
    own_share: float | None
    straggler: Straggler | None
    ranks: tuple[RankTime, ...]
    steps: tuple[StepTime, ...]


@dataclass(frozen=True, slots=True)
class JobCheck:
    """A check of training code: ``state`` says which of its runs lasts, or that it ``failed`` for a ``reason``.

    ``summary`` and ``notes`` are sentences: what came of it, what was compared and what was not. ``single`` is the id
    of the run on one process, "" before it begins.
    """

    state: Literal["several", "one", "failed", "done"]
    reason: str
    summary: str
    findings: tuple[Difference, ...]
    notes: tuple[str, ...]
    single: str


#: number, time, rank or null, stream, text, redraws, {rank: number of the line in that rank's output}, styles
LogRow = tuple[int, float, int | None, str, str, int, dict[str, int], Styles]


@dataclass(frozen=True, slots=True)
class LogChanges:
    """What a log view must do: put ``rows`` in by number, forget those below ``first``, replace ``open``."""

    rows: tuple[LogRow, ...]
    #: Lines that are being redrawn; they stand below all rows.
    open: tuple[LogRow, ...]
    #: Number of the oldest row that is kept, and of the next row to come.
    first: int
    next: int
    #: Lines in all ranks, and on stderr by rank.
    total: int
    errors: dict[str, int]


@dataclass(frozen=True, slots=True)
class Curve:
    """A drawn metric: plotly's ``data`` and ``layout``, the curve in one sentence and as a table of a few rows.

    ``value`` is the newest mean over ranks, as its end shows it; "" where it has several ends.
    """

    metric: str
    mode: str
    log: bool
    count: int
    data: tuple[dict[str, Any], ...]
    layout: dict[str, Any]
    summary: str
    table: tuple[tuple[str, ...], ...]
    value: str


@dataclass(frozen=True, slots=True)
class SpecRow:
    """One line of the spec as people read it; ``field`` is its primary name."""

    field: str
    label: str
    value: str


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job with everything that does not stream: the spec, its code and what travelled with it."""

    card: Card
    metrics: tuple[MetricValue, ...]
    ranks: tuple[RankRow, ...]
    spec: tuple[SpecRow, ...]
    captured: tuple[Captured, ...]
    code: str
    command: str
    notebook: str
    cell_id: str
    execution_count: int | None
    #: Number of the cell's line that is line 1 of ``code``.
    first_line: int
    #: The state of the environment when it was submitted.
    versions: dict[str, str]
    #: It is the first run of a check (see JobCheck).
    is_check: bool


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One option in which jobs differ: a value for each job, "" where it has none."""

    field: str
    label: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plugin:
    """One backend or kind of cluster; ``options`` is the JSON schema of its options.

    A property with ``x-asked`` has values that the server can be asked for.

    ``problem`` says why it cannot be used here ("" when it can), ``remedy`` what changes that, ``code`` names it.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    options: dict[str, Any]
    problem: str
    remedy: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointMetric:
    """A metric at the step of a checkpoint, also as text; ``value`` is None where it is not finite."""

    name: str
    text: str
    value: float | None


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint: bytes, epoch seconds, and the Python that loads it.

    ``step`` is None where it is not known, and ``is_named`` says that the file's name has it.
    """

    path: str
    step: float | None
    is_named: bool
    metrics: tuple[CheckpointMetric, ...]
    size: int
    files: int
    modified: float
    load: str


# a sweep ------------------------------------------------------------------------------------------

TrialState = StateName | Literal["pruned"]


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial: ``values`` in the order of the parameters, as numbers or words; ``steps`` and ``means`` are its curve.

    ``done`` of ``total`` is its progress, the last step where none was reported. ``detail`` says why it ended early.
    """

    number: int
    id: str
    state: TrialState
    value: float | None
    values: tuple[float | str, ...]
    done: float | None
    total: float | None
    detail: str
    steps: tuple[float, ...]
    means: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SweepPanel:
    """A sweep as far as it has come: ``trials`` by value, the best first; ``best`` is the number of the best, or None.

    ``done`` of ``size`` trials have ended. ``processes`` are so many as the best is offered to run on. ``problem`` says
    why it goes on no more, ``remedy`` what to do. ``code`` sets the best values.
    """

    id: str
    name: str
    state: StateName
    problem: str
    remedy: str
    words: tuple[str, ...]
    metric: str
    maximize: bool
    done: int
    size: int
    elapsed: float
    left: float | None
    parameters: tuple[str, ...]
    trials: tuple[TrialRow, ...]
    best: int | None
    processes: int
    code: str
