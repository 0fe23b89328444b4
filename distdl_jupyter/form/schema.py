"""Wire schema of the launch form: the request of a page, and the complete form state in the response.

Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from distdl_jupyter.clusters.base import CheckLevel
from distdl_jupyter.clusters.cluster_configs import CachedStatus
from distdl_jupyter.core.options import MAX_RESTARTS
from distdl_jupyter.core.spec import Captured
from distdl_jupyter.preflight import Advice
from distdl_jupyter.views.wire import PageRequest

#: Maximum number of nodes, of processes per node, and of trials.
MAX_COUNT = 10_000
Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Seconds = Annotated[float, Meta(ge=0)]
OptionKind = Literal["choice", "number", "flag", "text"]
OptionValue = str | int | float | bool | None


# Request -------------------------------------------------------------------------------------------


class DataRow(PageRequest, frozen=True):
    """A data source as typed; ``shard`` and ``mode`` have separate controls and apply only to stores."""

    name: str = ""
    address: str = ""
    shard: bool = False
    mode: Literal["download", "mount"] = "download"


class FormValues(PageRequest, frozen=True, kw_only=True):
    """The values of the form under the names of the options; 0 and "" mean that an option is not set.

    Options with a separate control are fields; ``other_options`` contains the other options as typed.
    """

    vm_size: str = ""
    node_count: Count = 1
    process_count_per_node: Count = 1
    #: Whether to run one process for each GPU of a node.
    automatic: bool = False
    distributed_backend: str = "plain"
    backend_options: dict[str, OptionValue] = field(default_factory=dict)
    compute_target: str = "local"
    name: str = ""
    max_run_duration_seconds: Seconds = 0.0
    hang_timeout_seconds: Seconds = 0.0
    max_restarts: Annotated[int, Meta(ge=0, le=MAX_RESTARTS)] = 0
    use_gpu: Literal["", "yes", "no"] = ""
    other_options: dict[str, OptionValue] = field(default_factory=dict)
    metrics_from_output: bool = True
    allow_undefined: bool = False
    #: Trackers, separated by commas, or "off".
    track: str = ""
    data: tuple[DataRow, ...] = ()
    pip_packages: tuple[str, ...] = ()
    conda_packages: tuple[str, ...] = ()
    #: The path of a file, or its text.
    requirements: str = ""
    #: Additional destination of outputs, as typed.
    outputs: str = ""
    #: Price of a node per hour, as typed.
    price_per_hour: str = ""
    #: The search space of a sweep as typed (lr=loguniform(1e-4,1e-1) width=64,128), or "" for a single job.
    sweep: str = ""
    #: Number of trials of a sweep.
    trials: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0
    #: The metric by which a sweep compares trials.
    metric: str = ""
    #: Number of trials of a sweep that run at the same time.
    parallel: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0


class Variable(PageRequest, frozen=True):
    """An environment variable; ``value`` is None for a secret, which the server or the page stores."""

    name: str
    value: str | None = None
    secret: bool = False


class FormRequest(PageRequest, frozen=True, kw_only=True):
    """A request of the launch form.

    ``code`` is the text with its ``%%distributed`` line, if it has one; ``values`` and ``environment`` are None to
    start from that line. ``apply`` is the code of the suggestion to apply. ``standalone`` is true for text without a
    notebook; ``refresh`` refreshes the names and the cluster. ``kernel_name`` is the kernel spec whose Python would run
    the text (default: the server's Python).
    """

    code: str = ""
    notebook: str = ""
    cell_id: str = ""
    execution_count: int | None = None
    values: FormValues | None = None
    environment: tuple[Variable, ...] | None = None
    apply: str = ""
    standalone: bool = False
    refresh: bool = False
    kernel_name: str = ""


# Response ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSizeChoice:
    """One VM size; unknown values are "". ``search_text`` is the lower-case text that the filter searches.

    ``gpu`` is the model as one word, ``memory_gib`` the memory of each GPU, ``retired`` the date of its retirement, and
    ``price`` the price per hour with its source.
    """

    name: str
    series: str
    gpu: str
    gpus: str
    memory: str
    memory_gib: int | None
    network: str
    rate: str
    retired: str
    successor: str
    successor_reason: str
    search_text: str
    sources: tuple[str, ...]
    notes: str
    price: str = ""


@dataclass(frozen=True, slots=True)
class OptionField:
    """The form field for an option of a job or a backend; if ``label`` is "", the page derives it from the name."""

    name: str
    label: str
    help: str
    kind: OptionKind
    default: OptionValue = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """One backend; ``reason`` is why it cannot be used here, or "" if it can."""

    label: str
    backend: str
    reason: str
    detail: str
    options: tuple[OptionField, ...]


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """One cluster; ``system`` is the operating system of this machine, or "" for another cluster.

    The nodes of a remote cluster are other machines, on which backends must be installed. The user added the ``named``
    clusters and can remove them. If a cluster ``rents`` nodes, they are created on demand and billed.
    """

    name: str
    title: str = ""
    system: str = ""
    detail: str = ""
    reason: str = ""
    local: bool = False
    is_remote: bool = False
    named: bool = False
    rents: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FormChoices:
    """The available choices."""

    sizes: tuple[VmSizeChoice, ...]
    catalogue_date: str
    backends: tuple[BackendChoice, ...]
    clusters: tuple[ClusterChoice, ...]
    max_restarts_allowed: int
    options: tuple[OptionField, ...]


@dataclass(frozen=True, slots=True)
class FormTitle:
    """The code to run: the name of a function, or "" for other code, with the number of its cell or its file name."""

    function: str
    cell: int | None
    file: str


@dataclass(frozen=True, slots=True)
class FormCheck:
    """The result of a check, or one of its findings; ``field`` is the affected option, or "" if there is none.

    ``code`` is the stable name of the finding, or of the check if there are no findings.
    """

    name: str
    level: CheckLevel
    text: str
    remedy: str
    field: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class FormChecks:
    """All checks; ``level`` is the most severe level, or "ok" if there are no findings."""

    level: CheckLevel
    count: int
    errors: int
    warnings: int
    items: tuple[FormCheck, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentCost:
    """The cost of all nodes per hour. ``problem`` is why it is unknown; ``bills``: the cluster bills for its nodes."""

    bills: bool
    nodes: int
    per_hour: str = ""
    #: The cost as a clause.
    text: str = ""
    source: str = ""
    problem: str = ""
    #: Whether the typed price is the problem.
    wrong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FormState:
    """The launch form: values, choices and all data derived from them.

    ``problems`` has the error messages by field, ``cell`` is the text with the equivalent magic line, ``code`` the text
    without that line, and ``options`` the arguments of ``submit``, without secrets.
    """

    values: FormValues
    choices: FormChoices
    title: FormTitle
    #: Number of GPUs of a node, for "one process for each GPU".
    gpu_count: int
    environment: tuple[Variable, ...]
    #: The variables and modules that are sent with the job, or None if they are unknown.
    captured: tuple[Captured, ...] | None
    checks: FormChecks
    advice: tuple[Advice, ...]
    #: Global batch size in samples, or 0 if it is unknown.
    global_batch: float
    magic: str
    cell: str
    problems: dict[str, str]
    #: The state of a remote cluster, with only those checks that need a remedy.
    cluster_status: CachedStatus | None
    #: Whether the cluster can mount data.
    mounts: bool
    cost: CurrentCost | None
    options: dict[str, Any]
    code: str
