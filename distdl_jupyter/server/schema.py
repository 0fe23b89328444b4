"""What the API takes and gives, as dataclasses: the OpenAPI file and the pages' TypeScript types are made of these.

What is told of a job itself stands in ``views.schema``. A field's metadata is for the OpenAPI file and for
``server.fields``: ``help``, ``minimum``, ``maximum``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from distdl_jupyter.views.job_table import JobRow, StateName
from distdl_jupyter.views.schema import ComparisonRow, Curve, FailureCard, Plugin

NodeState = Literal["idle", "busy", "down", "unknown", "starting"]


def _number(default: Any, help_: str, minimum: float = 0, maximum: float | None = None) -> Any:
    metadata = {"help": help_, "minimum": minimum}
    return field(default=default, metadata=metadata | ({} if maximum is None else {"maximum": maximum}))


def _said(default: Any, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


@dataclass(frozen=True, slots=True)
class ApiError:
    """What every error is told as; ``field`` is the part of the request that it is about, "" for none."""

    message: str
    type: str
    hint: str
    field: str = ""


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
class MachineSet:
    """A cluster's machines as a whole, or those that would be made; ``state`` is a word while something changes.

    ``cost_per_hour`` is the price of one node, None when it is not known; ``price_source`` says who told it.
    """

    exists: bool
    state: str
    problem: str
    size: str
    detail: str
    min_nodes: int
    max_nodes: int
    cost_per_hour: float | None
    currency: str
    price_source: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """One place where jobs run; ``problem`` says why it cannot be used now ("" when it can)."""

    name: str
    kind: str
    title: str
    detail: str
    problem: str
    remedy: str
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
    machines: MachineSet | None
    #: How many nodes cost money now, and how much they all cost in an hour, None when that is not known.
    billed: int
    cost_per_hour: float | None
    currency: str


@dataclass(frozen=True, slots=True)
class NewMachines:
    """What machines to make: the fields of the kind's ``wanted``."""

    wanted: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChoicesQuestion:
    """What one ``option`` of a kind of cluster may be, where these ``options`` are filled in so far."""

    kind: str
    option: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """One value with words for people; ``sets`` are other options that come with it."""

    value: str
    label: str
    detail: str
    sets: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChoiceList:
    """All values that are offered."""

    choices: tuple[ChoiceRow, ...]


@dataclass(frozen=True, slots=True)
class ClusterList:
    """All clusters."""

    clusters: tuple[Cluster, ...]


@dataclass(frozen=True, slots=True)
class NewCluster:
    """A cluster to give a name to: its kind and that kind's options."""

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScaleCluster:
    """How many nodes a cluster shall have, or may have; ``min_nodes`` stay up without a job. None changes nothing."""

    node_count: int | None = _number(None, "nodes", 0, 10_000)
    min_nodes: int | None = _number(None, "nodes that stay up without a job", 0, 10_000)


@dataclass(frozen=True, slots=True)
class CheckCluster:
    """What a cluster is checked for: with a backend also for what that needs on every node."""

    distributed_backend: str = ""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One thing that was looked at. ``node`` names the nodes of which it is said, "" is the cluster as a whole.

    ``remedy`` says what to do unless all is well.
    """

    node: str
    what: str
    level: Literal["ok", "info", "warning", "error"]
    says: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ClusterChecks:
    """What was found; ``failed`` when something of it keeps jobs from running there."""

    checks: tuple[CheckRow, ...]
    failed: bool


# jobs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobsQuery:
    """Which jobs to list."""

    state: Literal["", "active"] | StateName = ""
    q: str = _said("", "words that name, id, cluster, backend or notebook hold")
    limit: int = _number(200, "most rows", 1, 1000)
    offset: int = _number(0, "rows to leave out at the top", 0, 1_000_000)


@dataclass(frozen=True, slots=True)
class Prune:
    """Which ended jobs to delete, by ``older`` or ``keep`` or both: what is old and not among the newest.

    With ``dry_run`` nothing is deleted. ``only`` are the ids of the jobs that may go: those that a page has shown.
    """

    older: str | None = _said(None, "an age with its unit: 30d, 12h, 4w or 90min")
    keep: int | None = _number(None, "so many of the newest of all jobs stay", 0, 1_000_000)
    dry_run: bool = False
    only: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs, newest first; the counts are of all jobs, ``total`` of those that were asked for."""

    jobs: tuple[JobRow, ...]
    total: int
    active: int
    failed: int


@dataclass(frozen=True, slots=True)
class NewJob:
    """Source text to run as a cell on every rank; ``options`` are those of ``submit``, under any of their names.

    ``notebook`` is the path of a notebook or script below the server's root: the job works in its folder, and modules
    beside it travel along. ``kernel_name`` chooses the Python; without one it is that of the server.
    """

    code: str
    name: str = ""
    notebook: str = ""
    kernel_name: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cancel:
    """How to stop a job; ``now`` kills it without grace."""

    now: bool = False


@dataclass(frozen=True, slots=True)
class StacksQuery:
    """Which of the stacks that are kept."""

    number: int | None = _number(None, "the number of the stacks; the newest without one", 0)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a job; ``ok`` is None while it lives. ``values`` are short forms of what each rank returned."""

    state: StateName
    ok: bool | None
    values: tuple[str, ...]
    failure: FailureCard | None


@dataclass(frozen=True, slots=True)
class Output:
    """One file below a job's outputs."""

    path: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class OutputList:
    """All files below a job's outputs, in order of their paths."""

    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class CompareQuery:
    """Which jobs to compare, and how to draw them."""

    ids: tuple[str, ...] = _said((), "ids of jobs, with commas between")
    metric: str = _said("", "the metric to draw; that of most jobs when none is given")
    against: Literal["step", "elapsed"] = "step"
    log: bool = False
    dark: bool = False
    width: int | None = _number(None, "pixels", 50, 10_000)
    height: int | None = _number(None, "pixels", 50, 10_000)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several jobs: their curves in one figure, and what was asked and came of each side by side."""

    curve: Curve
    jobs: tuple[JobRow, ...]
    metrics: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]


# catalogue and plug-ins ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VmSizesQuery:
    """Which sizes to list."""

    series: str = _said("", "a series, such as NCads_A100_v4")
    q: str = _said("", "words that name, series or GPU hold")
    min_gpus: float | None = _number(None, "fewest GPUs", 0, 1000)
    retired: bool = _said(False, "add the sizes that can no longer be rented")  # noqa: FBT003


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
    #: Why the subscription cannot rent it in the region of the settings, and its quota; "" where Azure was not asked.
    restriction: str
    quota: str
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


@dataclass(frozen=True, slots=True)
class AdviceRequest:
    """What is about to be submitted, as far as it is known."""

    node_count: int = _number(1, "nodes", 1, 100_000)
    process_count_per_node: int = _number(1, "processes on each node", 1, 100_000)
    distributed_backend: str = "plain"
    compute_target: str = "local"
    vm_size: str = ""
    use_gpu: bool | None = None
    name: str = ""
    code: str = ""
    batch_size: float | None = _number(None, "samples in a batch of one process", 0)
    learning_rate: float | None = _number(None, "learning rate of one process", 0)


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """One advice: ``change`` are fields with better values, ``action`` the words of the button that sets them."""

    code: str
    level: Literal["error", "warning", "info"]
    headline: str
    reason: str
    action: str
    change: dict[str, Any]
    snippet: str
    source: str


@dataclass(frozen=True, slots=True)
class AdviceList:
    """All advice, costliest first."""

    advice: tuple[AdviceRow, ...]


@dataclass(frozen=True, slots=True)
class PluginList:
    """All plug-ins."""

    backends: tuple[Plugin, ...]
    clusters: tuple[Plugin, ...]


# launch form --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FormQuestion:
    """What a page knows of a job to launch; the answer is the whole form.

    ``code`` is the text with its ``%%distributed`` line, if it has one; ``fields`` what was chosen so far, None to
    begin with that line. Of ``environment`` a value of None stands for a secret that the page keeps. ``own`` says that
    no notebook has names for the text; ``again`` asks for a new look at the names.
    """

    code: str
    notebook: str = ""
    cell_id: str = ""
    execution_count: int | None = None
    fields: dict[str, Any] | None = None
    environment: tuple[dict[str, Any], ...] | None = None
    apply: str = _said("", "the code of an advice to follow")
    own: bool = False
    again: bool = False
    kernel_name: str = _said("", "the kernel whose Python would run it; the server's own Python without one")


@dataclass(frozen=True, slots=True)
class FormAnswer:
    """The launch form: what is chosen, what can be chosen, and what follows from it.

    ``problems`` tells by field what is wrong, ``cell`` is the text with the line that asks for the same, ``code`` the
    text without a line and ``options`` what a submit of it takes.
    """

    vm_size: str
    node_count: int
    process_count_per_node: int
    automatic: bool
    distributed_backend: str
    backend_options: dict[str, Any]
    compute_target: str
    name: str
    max_run_duration_seconds: float
    hang_timeout_seconds: float
    max_restarts: int
    use_gpu: Literal["", "yes", "no"]
    data: tuple[dict[str, Any], ...]
    outputs: str
    price_per_hour: str
    choices: dict[str, Any]
    title: dict[str, Any]
    gpu_count: int
    environment: tuple[dict[str, Any], ...]
    captured: dict[str, Any]
    checks: dict[str, Any]
    advice: tuple[dict[str, Any], ...]
    global_batch: float
    magic: str
    cell: str
    problems: dict[str, str]
    status: dict[str, Any]
    place: dict[str, Any]
    data_now: dict[str, Any]
    cost: dict[str, Any]
    answered: int
    options: dict[str, Any]
    code: str
