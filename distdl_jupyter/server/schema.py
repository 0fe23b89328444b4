"""What the API takes and gives, as dataclasses: the OpenAPI file and the pages' TypeScript types are made of these.

What is told of a job itself stands in ``views.schema``. A request's limits and descriptions are for msgspec, which
reads it and writes its part of the OpenAPI file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from distdl_jupyter.advice import Advice
from distdl_jupyter.clusters.base import Check
from distdl_jupyter.clusters.machines import Choice, Machines
from distdl_jupyter.core.options import MAX_PROCESSES, MOST_PRIORITY
from distdl_jupyter.jobs.job_queue import InUse
from distdl_jupyter.views.job_table import JobRow, StateName
from distdl_jupyter.views.schema import CheckpointRow, ComparisonRow, Curve, FailureCard, Plugin
from distdl_jupyter.views.wire import Request

NodeState = Literal["idle", "busy", "down", "unknown", "starting"]


Pixels = Annotated[int, Meta(ge=50, le=10_000, description="pixels")]


@dataclass(frozen=True, slots=True)
class ApiError:
    """The body of every error. ``field`` is the part of the request that it is about, "" for none.

    ``code`` is the stable name of the error (``cluster-unknown``), by which the documentation has its remedy.
    """

    message: str
    type: str
    hint: str
    field: str = ""
    code: str = ""


class BestOfSweep(Request, frozen=True):
    """On how many processes of one node the best trial of a sweep is to run."""

    processes: Annotated[int, Meta(ge=1, le=MAX_PROCESSES)]


# clusters -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a cluster; ``jobs`` are the ids of the jobs that run on it.

    ``cores`` is 0 and ``python`` "" where they are not known; ``load`` is the load average of a minute and ``ranks``
    how many ranks of this user run there, None when nobody knows.
    """

    name: str
    state: NodeState
    detail: str
    gpus: int
    gpu_name: str
    python: str
    cores: int
    load: float | None
    ranks: int | None
    jobs: tuple[str, ...]
    #: It costs money now.
    billed: bool


@dataclass(frozen=True, slots=True)
class Cluster:
    """One place where jobs run; ``problem`` says why it cannot be used now ("" when it can), ``code`` names it."""

    name: str
    kind: str
    title: str
    detail: str
    problem: str
    remedy: str
    code: str
    nodes: tuple[Node, ...]
    active_jobs: int
    #: A user gave it its name and can remove it.
    named: bool
    #: Its nodes are other machines, with packages of their own.
    far: bool
    #: False until it has answered for the first time.
    looked: bool
    can_scale: bool
    node_count: int
    max_node_count: int
    options: dict[str, Any]
    #: Its machines are made and unmade from here; None for machines of others, and while nobody knows.
    can_create: bool
    machines: Machines | None
    #: How many nodes cost money now, and how much they all cost in an hour, None when that is not known.
    billed: int
    cost_per_hour: float | None
    currency: str
    #: What jobs hold of this machine and how many wait for it; None for other machines.
    in_use: InUse | None


class ChoicesQuestion(Request, frozen=True):
    """What one ``option`` of a kind of cluster may be, where these ``options`` are filled in so far."""

    kind: str
    option: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChoiceList:
    """All values that are offered."""

    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class ClusterList:
    """All clusters."""

    clusters: tuple[Cluster, ...]


class NewCluster(Request, frozen=True):
    """A cluster to give a name to: its kind and that kind's options."""

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)


class ScaleCluster(Request, frozen=True):
    """How many nodes a cluster shall have."""

    node_count: Annotated[int, Meta(ge=0, le=10_000, description="nodes")]


class CheckCluster(Request, frozen=True):
    """What a cluster is checked for: with a backend also for what that needs on every node."""

    distributed_backend: str = ""


@dataclass(frozen=True, slots=True)
class ClusterChecks:
    """What was found; ``failed`` when something of it keeps jobs from running there."""

    checks: tuple[Check, ...]
    failed: bool


# jobs ---------------------------------------------------------------------------------------------


class JobsQuery(Request, frozen=True):
    """Which jobs to list."""

    state: Literal["", "active"] | StateName = ""
    q: Annotated[str, Meta(description="text to find in name, id, cluster, backend or notebook")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="maximum number of rows")] = 200
    offset: Annotated[int, Meta(ge=0, le=1_000_000, description="number of rows to skip")] = 0


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs, newest first; the counts are of all jobs, ``total`` of those that were asked for."""

    jobs: tuple[JobRow, ...]
    total: int
    active: int
    failed: int


class SourceText(Request, frozen=True, kw_only=True):
    """Source text to run as a cell on every rank; ``options`` are those of ``submit``, under any of their names.

    ``notebook`` is the path of a notebook or script below the server's root: the job works in its folder, and modules
    beside it travel along. ``kernel_name`` chooses the Python; without one it is that of the server.
    """

    code: str
    name: str = ""
    notebook: str = ""
    kernel_name: str = ""
    options: dict[str, Any] = field(default_factory=dict)


class NewJob(SourceText, frozen=True, kw_only=True):
    """Source text as a job; with ``check`` it is the first run of a check, which is told at ``/jobs/{id}/check``."""

    check: bool = False


class NewSweep(SourceText, frozen=True, kw_only=True):
    """Source text as the trials of a sweep; null and "" are as by default.

    ``parameters`` says what is varied, as a line does: ``lr=loguniform(1e-4,1e-1) width=64,128``; each is a name that
    the code uses and does not set, or a flag that it takes.
    """

    parameters: str
    trials: int | None = None
    metric: str = ""
    maximize: bool | None = None
    parallel: int | None = None
    sampler: str = ""
    pruner: str = ""
    prune_after: int | None = None
    seed: int | None = None


class Cancel(Request, frozen=True):
    """How to stop a job; ``now`` kills it without grace."""

    now: bool = False


class Priority(Request, frozen=True):
    """Another priority of a waiting job; null: before all of one's own that wait."""

    priority: Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] | None = None


class Move(Request, frozen=True):
    """The cluster on which a waiting job is to run instead."""

    compute_target: str


class StacksQuery(Request, frozen=True):
    """Which of the stacks that are kept."""

    number: Annotated[int, Meta(ge=0, description="number of the stack traces; without it, the newest")] | None = None


class AskProfile(Request, frozen=True):
    """Which steps to record: how many, and of which ranks (all without any)."""

    steps: Annotated[int, Meta(ge=1, le=50)] = 5
    ranks: tuple[int, ...] | None = None


class ProfileQuery(Request, frozen=True):
    """Which of the profiles that are kept."""

    number: Annotated[int, Meta(ge=0, description="number of the profile; without it, the newest")] | None = None


class TraceQuery(Request, frozen=True):
    """Which of the traces of a profile."""

    rank: Annotated[int, Meta(ge=0)] = 0


class TimeQuery(Request, frozen=True):
    """Which steps are wanted beside the means of the ranks."""

    last: Annotated[int, Meta(ge=0, le=1000, description="number of newest records of each rank")] = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a job; ``ok`` is None while it lives. ``values`` are short forms of what each rank returned."""

    state: StateName
    ok: bool | None
    values: tuple[str, ...]
    failure: FailureCard | None


@dataclass(frozen=True, slots=True)
class Output:
    """One file below a job's outputs, or the folder of a sharded checkpoint, which has several."""

    path: str
    size: int
    modified: float
    files: int = 1


@dataclass(frozen=True, slots=True)
class OutputList:
    """All files below a job's outputs, in order of their paths."""

    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class TrackerRow:
    """How far one experiment tracker has come with a job (core.tracking.TrackerRecord).

    ``url`` is the page of the run; for a run that is kept on this machine ``command`` shows it, "" where there is none.
    """

    tracker: str
    title: str
    run: str
    place: str
    url: str
    command: str
    trouble: str
    done: bool


@dataclass(frozen=True, slots=True)
class TrackerList:
    """The trackers that a job has."""

    trackers: tuple[TrackerRow, ...]


@dataclass(frozen=True, slots=True)
class CheckpointTable:
    """The checkpoints of a job, the newest first, and the names of all metrics that they have."""

    metrics: tuple[str, ...]
    checkpoints: tuple[CheckpointRow, ...]


class Fork(Request, frozen=True):
    """From which checkpoint a new job goes on."""

    path: Annotated[str, Meta(description="as in the list of checkpoints; without it, the newest")] = ""


class CompareQuery(Request, frozen=True):
    """Which jobs to compare, and how to draw them."""

    ids: Annotated[tuple[str, ...], Meta(description="ids of jobs, separated by commas")] = ()
    metric: Annotated[str, Meta(description="the metric to plot; without it, the metric of most jobs")] = ""
    dark: bool = False
    width: Pixels | None = None
    height: Pixels | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several jobs: their curves in one figure, and the options that differ."""

    curve: Curve
    jobs: tuple[JobRow, ...]
    metrics: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]


# catalogue and plug-ins ---------------------------------------------------------------------------


class VmSizesQuery(Request, frozen=True):
    """Which sizes to list."""

    series: Annotated[str, Meta(description="a series, such as NCads_A100_v4")] = ""
    q: Annotated[str, Meta(description="text to find in name, series or GPU")] = ""
    min_gpus: Annotated[float, Meta(ge=0, le=1000, description="minimum number of GPUs")] | None = None
    retired: Annotated[bool, Meta(description="include sizes that can no longer be rented")] = False


@dataclass(frozen=True, slots=True)
class VmSizeRow:
    """One GPU size of Azure; None and "" mean that no source states it."""

    name: str
    series: str
    gpu: str
    gpu_model: str
    #: A share of a GPU is below 1.
    gpu_count: float
    #: Ranks that can own a GPU of it.
    per_node: int
    gpu_memory_gib: int | None
    vcpus: int | None
    ram_gib: int | None
    nvlink: bool | None
    infiniband: bool | None
    fabric: str
    ethernet_gbps: float | None
    retired: bool
    #: ISO date, "" for none.
    retirement_date: str
    successor: str
    successor_reason: str
    #: Of one node; None and "" where nobody told it.
    price_per_hour: float | None
    currency: str
    price_source: str
    notes: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VmSizeList:
    """Sizes, series by series, and the day on which their availability was read."""

    sizes: tuple[VmSizeRow, ...]
    date: str


class AdviceRequest(Request, frozen=True):
    """What is about to be submitted, as far as it is known."""

    node_count: Annotated[int, Meta(ge=1, le=100_000, description="nodes")] = 1
    process_count_per_node: Annotated[int, Meta(ge=1, le=100_000, description="processes on each node")] = 1
    distributed_backend: str = "plain"
    compute_target: str = "local"
    vm_size: str = ""
    use_gpu: bool | None = None
    name: str = ""
    code: str = ""
    batch_size: Annotated[float, Meta(ge=0, description="samples in a batch of one process")] | None = None
    learning_rate: Annotated[float, Meta(ge=0, description="learning rate of one process")] | None = None


@dataclass(frozen=True, slots=True)
class AdviceList:
    """All advice, costliest first."""

    advice: tuple[Advice, ...]


@dataclass(frozen=True, slots=True)
class PluginList:
    """All plug-ins."""

    backends: tuple[Plugin, ...]
    clusters: tuple[Plugin, ...]
