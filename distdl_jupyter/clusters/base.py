"""The interface of cluster plug-ins. It must not depend on events, views or names of backends.

A cluster places a job and starts a plan, which returns a ``Run`` with streams, exits and signals. If the supervisor
dies, ``attach`` finds the job again from the plain data of ``Run.handle()``, or ``sweep`` ends its remaining processes.
"""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import plural, short_id
from distdl_jupyter.core.plan import (
    Holding,
    NoOptions,
    Placement,
    Plan,
    QueuedJob,
    QueueView,
    format_amount,
    format_reason,
)
from distdl_jupyter.core.spec import Group, JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import slots
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.processes import StackDump
from distdl_jupyter.node.slots import QueueEntry, QueuePosition, ResourceRequest

if TYPE_CHECKING:
    from distdl_jupyter.data.staging import JobStaging


@dataclass(frozen=True, slots=True)
class Stream:
    """An output stream, read from a descriptor or from an inbox of received bytes."""

    source: int | Inbox
    #: None for output of the launcher or of a service.
    rank: int | None
    name: str  # "out" or "err"
    #: The position of the first byte if the output can be read again from any position, else None. Text of such a
    #: stream is recorded with its position, so that ``attach`` neither repeats nor loses text.
    start: int | None = None


class UnkillableProcess(NamedTuple):
    """A process that survived KILL; ``host`` is "" if all ranks are on one machine."""

    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of one rank's process: an exit code or a signal's name such as ``"KILL"``, or neither for a lost rank."""

    rank: int
    code: int | None
    signal: str | None
    #: The cause beyond code and signal, as one sentence: "No response from gpu2 for 10 s."
    evidence: str = ""


class Start(NamedTuple):
    """The start of one rank's process."""

    rank: int
    pid: int


@dataclass(slots=True)
class Context:
    """The inputs for placing and starting a job, in addition to its spec and plan."""

    folder: JobFolder
    #: The job's variables for every rank: its marks, the user's variables, and their secret values.
    variables: dict[str, str] = field(default_factory=dict)
    #: The environment of the submitter. Ranks on this machine inherit all of it, other ranks a selection.
    inherited: dict[str, str] = field(default_factory=dict)
    #: Python modules and programs that the backend needs on every node.
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    #: The number of ports for each rank on its node, in addition to the ports of node 0.
    rank_ports: int = 0
    #: Called with a phase (``queue``, ``stage`` or ``start``) and the current step, for display.
    report: Callable[[str, str], object] = lambda _phase, _detail: None
    #: Called with a notice for the user, and with the job's position in the queue while it waits in ``place``.
    note: Callable[[RunNotice], object] = bool
    note_position: Callable[[QueueView], object] = bool
    #: Returns the job's current priority; ``queue_number`` is its number by time if it has waited before.
    get_priority: Callable[[], int] = int
    queue_number: int | None = None
    #: Called with plain data for ``Cluster.sweep`` once something runs that outlives the supervisor. A new
    #: supervisor that places the job receives it as ``handle``.
    record_handle: Callable[[dict[str, Any]], object] = bool
    handle: Mapping[str, Any] | None = None
    #: The data and packages to copy to every node before its ranks start (``agents.staging``), or None.
    staging: JobStaging | None = None
    #: The number of previous starts of the job's ranks; ``lost_nodes`` are the nodes that were lost in the last one.
    restart: int = 0
    lost_nodes: frozenset[int] = frozenset()
    #: The minimum number of nodes with which the job may start, or None if it needs all of them.
    min_node_count: int | None = None


NodeState = Literal["up", "down", "starting", "unknown"]
CheckLevel = Literal["ok", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """The result of one check of one node; ``node`` is "" for the cluster as a whole."""

    node: str
    #: The name of the check: "Reachable", "torch".
    what: str
    level: CheckLevel
    message: str
    #: The fix of a problem, and its stable identifier for programs and help links.
    remedy: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The current state of one machine of a cluster; ``detail`` is the reason why it is down, or other information."""

    name: str
    state: NodeState = "up"
    detail: str = ""
    gpus: int = 0
    gpu_name: str = ""
    cores: int = 0
    python: str = ""
    #: The 1-minute load average, and the number of this user's ranks on the machine. None: unknown.
    load: float | None = None
    ranks: int | None = None
    #: Whether the machine costs money now, and its hourly price in ``currency`` ("USD"). None: the price is unknown.
    billed: bool = False
    cost_per_hour: float | None = None
    currency: str = ""


@dataclass(frozen=True, slots=True)
class OptionValue:
    """One allowed value of an option; ``label`` ("": the value itself) and ``detail`` are for display."""

    value: str
    label: str = ""
    detail: str = ""
    #: The options that the value implies, such as the resource group of a workspace.
    sets: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The machines of a cluster as a whole."""

    exists: bool
    #: The change in progress ("creating") or "", and the reason why the last change failed.
    state: str = ""
    problem: str = ""
    size: str = ""
    detail: str = ""
    #: The limits of the number of nodes that are up, depending on the jobs. ``min_nodes`` always cost money.
    min_nodes: int = 0
    max_nodes: int = 0
    #: The price of one node and its source for display. The price is None if it is unknown.
    cost_per_hour: float | None = None
    currency: str = ""
    price_source: str = ""


@dataclass(frozen=True, slots=True)
class RunNotice:
    """A notice about a run for the user; ``code`` is for programs."""

    level: Literal["info", "warning", "error"]
    text: str
    code: str = ""


class OutageNotifier:
    """Reports each outage of a service once, after ``timeout`` seconds without a response, and its end. Thread-safe."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._failing_since: float | None = None
        self._is_reported = False
        self._notices: queue.SimpleQueue[RunNotice] = queue.SimpleQueue()
        #: Adds another notice.
        self.put = self._notices.put

    def record_failure(self, requested_at: float, notice: RunNotice, *, immediately: bool = False) -> None:
        """Record a request at ``requested_at`` (monotonic) without a response; ``notice`` describes the outage."""
        self._failing_since = self._failing_since or requested_at
        if not self._is_reported and (immediately or time.monotonic() - self._failing_since > self._timeout):
            self._is_reported = True
            self._notices.put(notice)

    def record_response(self, notice: RunNotice) -> None:
        """Record a response; ``notice`` is added if the outage was reported."""
        if self._is_reported:
            self._notices.put(notice)
        self._failing_since, self._is_reported = None, False

    def take_notices(self) -> list[RunNotice]:
        """Return the notices since the last call."""
        return [self._notices.get() for _ in range(self._notices.qsize())]


class NodeSample(NamedTuple):
    """The resource usage of one machine and its ranks at one time (see ``node.resources``)."""

    node: int
    data: Mapping[str, Any]


class RunHooks(ABC):
    """What a run and the machines of a run (``agents.agent.JobNodes``) have in common."""

    def keep_slots(self) -> None:
        """Renew the job's entries in the queues of the machines. Called about once per second."""
        return

    def why_interrupted(self) -> str:
        """Return why a queue preempted ranks that had not failed, or ""; called once at the end, may take seconds."""
        return ""

    def on_launcher_output(self, text: str) -> None:
        """Handle output of the launcher or of a service (streams with rank None)."""
        return

    @abstractmethod
    def handle(self) -> dict[str, Any]:
        """Return plain data for ``Cluster.attach`` and ``Cluster.sweep``; recorded once, after the start."""

    def collect(self) -> None:
        """Copy the ranks' values and files from other machines; called once at the end. Raises LaunchFailed."""
        return

    @abstractmethod
    def close(self) -> None:
        """Release everything that the run uses. Called once, after all processes have ended."""


class Run(RunHooks):
    """A started job."""

    @property
    @abstractmethod
    def streams(self) -> tuple[Stream, ...]:
        """The output streams; each is read until its end."""

    @abstractmethod
    def list_starts(self) -> list[Start]:
        """Return the processes that were started directly; ranks of a launcher report their own start."""

    def why_waiting(self) -> str:
        """Return why the ranks have not started yet ("pending: Resources"), or "" if they have."""
        return ""

    def take_notices(self) -> list[RunNotice]:
        """Return the notices for the user since the last call."""
        return []

    def take_samples(self) -> Sequence[NodeSample]:
        """Return the resource samples since the last call; clusters without agents of this package have none."""
        return ()

    @abstractmethod
    def poll(self) -> list[Exit]:
        """Return the exits since the last call; all output of these ranks is available. Each rank exits once."""

    @abstractmethod
    def list_alive(self) -> Sequence[object]:
        """Return all living processes of the job on the machines that respond; the agent ends them on the others."""

    @abstractmethod
    def signal(self, name: str) -> None:
        """Send INT to the ranks, or TERM or KILL to every process of the job."""

    def list_unkillable(self) -> Sequence[UnkillableProcess]:
        """Return the processes in uninterruptible sleep (state D), which survive KILL."""
        return ()

    def request_stacks(self) -> None:
        """Request the stacks of all threads of every rank, without waiting."""
        return

    def take_stacks(self) -> Mapping[int, StackDump]:
        """Return the dumps since the last call by rank: the rank's stacks, or the reason why they are missing."""
        return {}

    #: Seconds within which all responsive ranks have answered.
    stacks_seconds: ClassVar[float] = 6.0

    def why_no_stacks(self) -> str:
        """Return why this type of cluster does not support stack traces, as one sentence, or "" if it does."""
        return "This type of cluster does not support stack traces of running ranks."

    def request_profile(self, ranks: Sequence[int], request: Mapping[str, Any]) -> None:
        """Request a profile of some steps from ranks, without waiting (``worker.hooks.profile``)."""
        return

    def expose_endpoint(self, rank: int) -> None:
        """Write the address of a persistent rank into the job's folder (``worker.serving``), without waiting."""
        return

    def fetch(self, rank: int, path: str, max_bytes: int) -> None:
        """Copy a rank's file of at most ``max_bytes`` below the job's folder to this machine. Raises LaunchFailed."""
        return


class Cluster(ABC):
    """A type of cluster."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    #: The display name of the type.
    title: ClassVar[str] = ""
    #: Whether the nodes are other machines, with packages of their own; queries take seconds.
    is_remote: ClassVar[bool] = False
    #: Whether jobs can wait in a queue of the cluster before any process starts.
    has_queue: ClassVar[bool] = False
    #: Whether jobs acquire GPUs, cores and memory (``acquire``), and wait while other jobs hold them.
    has_slots: ClassVar[bool] = False
    #: Whether agents run on the nodes, which copy data there (``Context.staging``) and relay to persistent ranks.
    has_agents: ClassVar[bool] = False
    #: Whether it installs a job's packages on the nodes before ranks start.
    can_install: ClassVar[bool] = False
    #: Whether it supports sources with ``mode=mount``, which are read over the network during training.
    can_mount: ClassVar[bool] = False
    #: Whether ranks can restart and resume from their checkpoints.
    can_restart: ClassVar[bool] = True
    #: Whether a job continues without its supervisor, and a new supervisor can ``attach`` to it.
    can_attach: ClassVar[bool] = False

    def default_options(self) -> dict[str, Any] | None:
        """Return the options of this type's unnamed default cluster, or None if a user must add one."""
        return {}

    @abstractmethod
    def unavailable(self, options: Any) -> str:
        """Return one sentence with the remedy if this cluster cannot be used here, else ""."""

    @abstractmethod
    def process_count_per_node(self, options: Any, *, use_gpu: bool | None) -> int:
        """Return the value for "auto": the number of GPUs of one node, else 1."""

    def validate(self, options: Any) -> None:
        """Raise InvalidSpec for options that do not describe a cluster. Called when a cluster is added."""
        return

    def max_requeues(self, options: Any) -> int:
        """Return how often an interrupted job is requeued (``Run.why_interrupted``)."""
        return 0

    def detail(self, options: Any) -> str:
        """Return a short description of the machines ("2 cores, no GPU"), or "" if they are unknown."""
        return ""

    def list_nodes(self, options: Any) -> list[NodeInfo]:
        """Return the known machines, including those that do not respond; it may take seconds."""
        return []

    def run_checks(self, options: Any, *, modules: Sequence[str] = (), programs: Sequence[str] = ()) -> list[NodeCheck]:
        """Check every node within 30 seconds for problems that prevent jobs of a backend with these requirements."""
        return []

    @abstractmethod
    def preview(self, spec: JobSpec, options: Any) -> Placement:
        """Return the expected placement without ports; reserve nothing. Raises InvalidSpec."""

    def acquire(
        self, spec: JobSpec, options: Any, *, blocked: bool = False, number: int | None = None
    ) -> QueueView | None:
        """Acquire the resources of the job and return None, or return its position in the queue.

        Called repeatedly until it returns None; then the job is placed. The resources are held until the run is closed,
        or until ``release``. A ``blocked`` job cannot start yet and only keeps its position; ``number`` is the number
        of a job that has waited before (``Context.queue_number``). Raises LaunchFailed for a job that must not wait.
        """
        return None

    def release(self) -> None:
        """Release the resources of a job that was not started."""
        return

    def list_queue(self, options: Any) -> list[QueuedJob] | None:
        """Return this user's jobs in the cluster's queue, running jobs first, or None if it has no queue.

        It may take seconds. Raises DistDLError if the queue does not respond.
        """
        return None

    @abstractmethod
    def place(self, spec: JobSpec, ports: int, options: Any, context: Context) -> Placement:
        """Connect to the nodes, check them, and return the placement with ``ports`` free ports that stay reserved.

        The placement may have fewer nodes than the job, but at least the context's ``min_node_count``. Every rank
        gets the context's ``rank_ports`` ports on an address of its node. If jobs wait in a queue before their machines
        are known, this call waits (phase ``queue``). Raises LaunchFailed, InvalidSpec.
        """

    @abstractmethod
    def start(self, spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Run:
        """Start the plan. Raises LaunchFailed and leaves nothing running."""

    def why_interrupted(self) -> str:
        """Return why a queue preempted a start that failed, as one sentence, or "" if it did not."""
        return ""

    def attach(
        self, spec: JobSpec, handle: dict[str, Any], context: Context, read_offsets: Mapping[tuple[int, str], int]
    ) -> Run:
        """Find a job whose supervisor died and return its run. Raises LaunchFailed if the job no longer exists.

        ``read_offsets`` is the number of recorded bytes of each (rank, stream), with (-1, "sys") for the launcher.
        """
        text = f"A job on {self.title or self.name} cannot continue without its supervisor."
        raise LaunchFailed(text, code="supervisor-lost")

    @abstractmethod
    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Kill the processes of a job without a supervisor; return those that were alive. Raises DistDLError."""

    def close_group(self, group: Group, options: Any) -> None:
        """Release reservations for later jobs of a group, such as a sweep. Raises DistDLError, OSError."""
        return


class Provisioner(ABC):
    """A mix-in for clusters whose machines this package creates and deletes; a machine costs money while it is up."""

    #: The options of machines to create, declared like ``Options``, for forms, flags and Python.
    compute_spec: ClassVar[type] = NoOptions
    #: Options, and fields of ``compute_spec``, whose allowed values ``choices`` returns.
    dynamic_options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def list_choices(self, field: str, options: Mapping[str, Any]) -> list[OptionValue]:
        """Return the values of an option for the ``options`` set so far. It may take seconds. Raises DistDLError."""

    @abstractmethod
    def get_machines(self, options: Any) -> Machines | None:
        """Return a summary of the machines, or None if they need not be created; it may take seconds."""

    @abstractmethod
    def create(self, options: Any, machine_spec: Any) -> None:
        """Request machines, and return when the request is accepted. Raises ClusterRefused, InvalidSpec."""

    @abstractmethod
    def delete(self, options: Any) -> None:
        """Request the deletion of the machines. Raises ClusterRefused, DistDLError."""


#: The maximum number of devices of a job that a view lists.
_MAX_DEVICES = 32


def compute_need(spec: JobSpec, processes: int, devices: Sequence[str]) -> ResourceRequest:
    """Return the needs of a job's ``processes`` on a machine with these GPUs."""
    devices = devices if spec.use_gpu is not False else ()
    # Without the option ``gpus``, each process gets one GPU; if there are fewer, the processes share all of them.
    gpus = min(processes, len(devices)) if spec.gpus is None else processes * spec.gpus
    shares = {"cores": spec.cores, "memory": spec.memory}
    amounts = {name: float(share * processes) for name, share in shares.items() if share}
    return ResourceRequest(gpus, tuple(devices) if gpus else (), amounts)


def refuse_excess(
    spec: JobSpec, processes: int, gpus: int, cores: float | None, memory: float | None, host: str = ""
) -> None:
    """Raise InvalidSpec if ``processes`` of a job need more than a machine has; None is unknown."""
    requests = (spec.gpus or int(bool(spec.use_gpu)), spec.cores, spec.memory)
    for name, share, limit in zip(("gpus", "cores", "memory"), requests, (gpus, cores, memory), strict=True):
        if not share or limit is None or share * processes <= limit:
            continue
        single, total, maximum = (format_amount(name, value) for value in (share, share * processes, limit))
        subject = "The job needs" if processes == 1 else f"{plural(processes, 'process')} with {single} each need"
        text = f"{subject} {total}, but {host or 'this machine'} has {maximum if limit else 'none'}."
        if name == "gpus":
            hint, field = "Use fewer processes, or run on the CPU: use_gpu=False", "gpus" if spec.gpus else "use_gpu"
            raise InvalidSpec(text, code="too-few-gpus", field=field, hint=hint)
        share_limit = int(limit) // processes
        available = share_limit if name == "cores" else f"{share_limit // 1_000_000}MB"
        hint = f"Use fewer processes, or request less: {name}={available}" if available else "Use fewer processes."
        raise InvalidSpec(text, code="too-few-resources", field=name, hint=hint)


def build_view(
    position: QueuePosition,
    request: ResourceRequest,
    labels: Mapping[str, str],
    priority: int,
    host: str = "",
    *,
    limits: Mapping[str, float] | None = None,
) -> QueueView:
    """Return a job's position as text and numbers; ``labels`` are the names of the host's devices.

    ``limits`` are the cores and memory of the host, by default those of this machine.
    """
    holder_names = name_holders(position, {entry.key: entry for entry in position.entries})
    amounts = get_needs(request)
    return QueueView(
        position=position.position,
        of=position.waiting_count,
        why=position.problem or format_reason(amounts, position.missing, holder_names),
        priority=priority,
        needs=amounts,
        free=dict(position.free),
        total={name: value for name, value in get_totals(len(labels), limits).items() if name in amounts},
        lacks=position.missing,
        names=holder_names,
        holding=tuple(make_holding(entry, labels) for entry in position.entries if entry.has_resources),
        host=host,
        number=position.queued_at,
    )


def get_needs(request: ResourceRequest) -> dict[str, float]:
    """Return the needs of a job as amounts by name."""
    return {**({"gpus": float(request.gpus)} if request.gpus else {}), **request.amounts}


def get_totals(gpus: int, limits: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the resources of a machine with ``gpus`` GPUs; ``limits`` defaults to this machine."""
    return {"gpus": float(gpus), **(slots.measure_limits() if limits is None else limits)}


def make_holding(entry: QueueEntry, labels: Mapping[str, str]) -> Holding:
    """Return the resources that a running job holds."""
    return Holding(
        entry.job,
        entry.name,
        "" if entry.is_own else entry.user,
        tuple(labels.get(gpu, gpu) for gpu in entry.gpus[:_MAX_DEVICES]),
        entry.request.amounts.get("cores", 0),
        entry.request.amounts.get("memory", 0),
    )


def name_holders(position: QueuePosition, entries: Mapping[str, QueueEntry]) -> tuple[str, ...]:
    """Return the names of the first jobs ahead of a position, and the number of other jobs ahead of it."""
    jobs = [entries[key] for key in position.holders if key in entries]
    names = [f"{job.name} ({short_id(job.job)})" + ("" if job.is_own else f" of {job.user}") for job in jobs]
    other_count = position.other_holder_count
    return (*names, plural(other_count, "other")) if names and other_count else tuple(names)
