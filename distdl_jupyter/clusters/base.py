"""The contract of a cluster.

A cluster places a job and starts a plan, which returns a ``Run``: streams to read, exits to poll, signals to send.
``handle()`` of a run is plain data with which, after the death of the supervisor, ``attach`` finds the job again or
``sweep`` ends what is left of it. Nothing here knows events, views or names of backends.
"""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from distdl_jupyter.core.errors import ClusterRefused, LaunchFailed
from distdl_jupyter.core.plan import NoOptions, Placement, Plan
from distdl_jupyter.core.queue import QueuedJob, QueueView
from distdl_jupyter.core.spec import Group, JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.stacks import Answer

if TYPE_CHECKING:
    from distdl_jupyter.data.staging import JobStaging


@dataclass(frozen=True, slots=True)
class Stream:
    """Output to read, from a descriptor or from what this process has received.

    ``rank`` None is the output of the launcher or of a service. ``start`` counts the bytes before it, where the output
    is kept and can be read again from any position (None: it cannot). Text of such a stream is written with its
    position, so that ``attach`` repeats and loses nothing.
    """

    source: int | Inbox
    rank: int | None
    name: str  # "out" or "err"
    start: int | None = None


class Unkillable(NamedTuple):
    """A process that is alive although KILL was sent; ``host`` is "" where all ranks are on one machine."""

    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of one rank's process: an exit code or a signal's name such as ``"KILL"``.

    With neither the rank is lost: its end is unknown, and ``evidence`` is why ("No response from gpu2 for 10 s").
    A lost rank has failed.
    """

    rank: int
    code: int | None
    signal: str | None
    #: The cause beyond code and signal, one sentence.
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """One rank's process was started."""

    rank: int
    pid: int


def _ignore(_phase: str, _detail: str) -> None:
    """Drop a report."""


@dataclass(slots=True)
class Context:
    """What placing and starting a job need besides spec and plan."""

    folder: JobFolder
    #: The job's own part of every rank's environment: its marks, the user's variables, their secret values.
    own: dict[str, str] = field(default_factory=dict)
    #: The environment of the submitter. Ranks on this machine get all of it, others what makes sense there.
    inherited: dict[str, str] = field(default_factory=dict)
    #: Python modules and programs that the backend needs on every node.
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    #: How many ports the backend needs for each rank on the rank's node, beside those of node 0.
    rank_ports: int = 0
    #: Called with a phase (``queue``, ``stage`` or ``start``) and the current step, which users see.
    report: Callable[[str, str], object] = _ignore
    #: Called with a notice for the user.
    note: Callable[[Notice], object] = bool
    #: Called with a job's position in the queue while it waits in ``place``; its current priority, and its number by
    #: time when it has waited before.
    note_place: Callable[[QueueView], object] = bool
    priority: Callable[[], int] = int
    queue_number: int | None = None
    #: Called with plain data for ``Cluster.sweep`` when something was started that outlives the supervisor; another
    #: supervisor that places the job gets it as ``handle``.
    record_handle: Callable[[dict[str, Any]], object] = bool
    handle: Mapping[str, Any] | None = None
    #: What is copied to every node before its ranks start; None when the job has no data sources and no packages.
    #: A cluster that ``stages`` runs ``data.stager`` on every node, sends it the node's order, passes on its messages,
    #: and returns the answers to it. The paths in its last message go into the environment of the node's ranks.
    staging: JobStaging | None = None
    #: How often the job's ranks were started before, and the nodes that were lost when they last ran.
    restart: int = 0
    gone: frozenset[int] = frozenset()
    #: The minimum number of nodes with which the job may start; None: all of them.
    least_node_count: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a rank on this machine."""
        return {**self.inherited, **self.own}


NodeState = Literal["up", "down", "starting", "unknown"]
CheckLevel = Literal["ok", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of one node (``node`` "" for the cluster as a whole).

    ``what`` is the name of the check ("Reachable", "torch"), ``says`` its result, and ``remedy`` the fix of a problem.
    ``code`` is the stable name of the problem for programs and help links, "" without one.
    """

    node: str
    what: str
    level: CheckLevel
    says: str
    remedy: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The current state of one machine of a cluster; ``detail`` is why it is down, or other information.

    ``load`` is the 1-minute load average, ``ranks`` how many ranks of this user's jobs run there; None is unknown.
    """

    name: str
    state: NodeState = "up"
    detail: str = ""
    gpus: int = 0
    gpu_name: str = ""
    cores: int = 0
    python: str = ""
    load: float | None = None
    ranks: int | None = None
    #: Whether it costs money now, and the price per hour in ``currency`` ("USD"), None when it is not known.
    billed: bool = False
    cost_per_hour: float | None = None
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One value that an option may have; ``label`` ("": the value itself) and ``detail`` are for people.

    ``sets`` holds other options that come with it, as the resource group of a workspace.
    """

    value: str
    label: str = ""
    detail: str = ""
    sets: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """A cluster's machines as a whole. ``state`` is a word while something goes on ("creating"), "" when nothing does.

    Between ``min_nodes`` and ``max_nodes`` are up, as jobs need them; the first stay up, and cost money, without a job.
    ``problem`` says why the last change failed. ``cost_per_hour`` is the price of one node, None when it is not known.
    """

    exists: bool
    state: str = ""
    problem: str = ""
    size: str = ""
    detail: str = ""
    min_nodes: int = 0
    max_nodes: int = 0
    cost_per_hour: float | None = None
    currency: str = ""
    #: Where the price comes from, in words.
    price_source: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice about a run for the user; ``code`` is for programs."""

    level: Literal["info", "warning", "error"]
    text: str
    code: str = ""


class OutageNotifier:
    """Notices about a service of others: an outage is reported once, and its end if it was reported.

    ``timeout`` is the number of seconds without a response after which it is reported. Any thread may use it.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None
        self._reported = False
        self._notices: queue.SimpleQueue[Notice] = queue.SimpleQueue()

    def put(self, notice: Notice) -> None:
        """Add a notice."""
        self._notices.put(notice)

    def missed(self, asked_at: float, notice: Notice, *, at_once: bool = False) -> None:
        """Record that a request of ``asked_at`` (monotonic) got no response, which ``notice`` describes."""
        self._since = self._since or asked_at
        if not self._reported and (at_once or time.monotonic() - self._since > self._timeout):
            self._reported = True
            self._notices.put(notice)

    def answered(self, notice: Notice) -> None:
        """Record a response; ``notice`` is added if the outage was reported."""
        if self._reported:
            self._notices.put(notice)
        self._since, self._reported = None, False

    def notices(self) -> list[Notice]:
        """Return the notices since the last call."""
        notices = []
        while not self._notices.empty():
            notices.append(self._notices.get())
        return notices


class NodeSample(NamedTuple):
    """Resource usage of one machine and its ranks at one moment (see ``node.resources``)."""

    node: int
    data: Mapping[str, Any]


class Run(ABC):
    """A started job."""

    @property
    @abstractmethod
    def streams(self) -> tuple[Stream, ...]:
        """The output to read, until each stream ends."""

    @abstractmethod
    def started(self) -> list[Start]:
        """Return the processes that were started directly; ranks of a launcher report themselves."""

    def keep_slots(self) -> None:
        """Keep the job's entries in the queues of the machines. Called about once a second."""
        return

    def waiting(self) -> str:
        """Return why the ranks have not been started yet ("pending: Resources"), "" when they were."""
        return ""

    def notices(self) -> list[Notice]:
        """Return the notices for the user since the last call."""
        return []

    def samples(self) -> Sequence[NodeSample]:
        """Return the resource samples since the last call; none where no agent of this package runs."""
        return ()

    @abstractmethod
    def poll(self) -> list[Exit]:
        """Return the exits since the last call, whose output can all be read. Every rank exits exactly once."""

    def interrupted(self) -> str:
        """Return why a queue took the machines from ranks that had not failed, one sentence; "" when it did not.

        Asked once when ranks have ended; it may take some seconds.
        """
        return ""

    @abstractmethod
    def alive(self) -> Sequence[object]:
        """Return all processes of the job that live, descendants included; empty when all are gone.

        A machine that does not respond counts as none: it ends its processes itself.
        """

    @abstractmethod
    def signal(self, name: str) -> None:
        """Send INT to the ranks, or TERM or KILL to every process of the job."""

    def unkillable(self) -> Sequence[Unkillable]:
        """Return the living processes that wait in the kernel where KILL does not reach them (state D)."""
        return ()

    def ask_stacks(self) -> None:
        """Request the stacks of all threads of every rank, without waiting."""
        return

    def stacks(self) -> Mapping[int, Answer]:
        """Return the answers since the last call, one for each rank: its stacks, or why there are none."""
        return {}

    #: Seconds in which all ranks that can answer have answered.
    stacks_seconds: ClassVar[float] = 6.0

    def no_stacks(self) -> str:
        """Return why this type of cluster does not support stack traces, one sentence; "" when it does."""
        return "This type of cluster does not support stack traces of running ranks."

    def ask_profile(self, ranks: Sequence[int], request: Mapping[str, Any]) -> None:
        """Leave a request to record some steps for ranks, without waiting (``worker.hooks.profile``)."""
        return

    def expose_endpoint(self, rank: int) -> None:
        """Write the address of a persistent rank into the job's folder (``worker.serving``), without waiting."""
        return

    def fetch(self, rank: int, path: str, most: int) -> None:
        """Copy a file that a rank has written below the job's folder to this machine, unless it is here already.

        It blocks. Raises LaunchFailed, also for a file of more than ``most`` bytes, OSError.
        """
        return

    def on_launcher_output(self, text: str) -> None:
        """Handle output of the launcher or of a service (streams with rank None)."""
        return

    @abstractmethod
    def handle(self) -> dict[str, Any]:
        """Return plain data for ``Cluster.attach`` and ``Cluster.sweep``; recorded once, after the start."""

    def collect(self) -> None:
        """Copy values and files that ranks wrote elsewhere into the job's folder.

        Called once, after every rank has ended. Raises LaunchFailed, which names what could not be copied.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Release the descriptors, ports and services of the run. Called once, after everything ended."""


_FIXED = "Clusters of type {} do not support creating or deleting machines."


class Cluster(ABC):
    """A type of cluster, on which ranks run."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    #: The name of the type in lists.
    title: ClassVar[str] = ""
    #: Whether it can be used without options; other types are listed when a user has added a cluster.
    complete: ClassVar[bool] = True
    #: Whether its nodes are other machines: queries take seconds, and they need the backend's packages themselves.
    is_remote: ClassVar[bool] = False
    #: Whether a job can wait there in a queue, before any process starts.
    queues: ClassVar[bool] = False
    #: Whether jobs hold GPUs, cores and memory there (``acquire``), and wait for those that other jobs hold.
    slots: ClassVar[bool] = False
    #: Whether it copies data sources to its nodes before ranks start (``Context.staging``).
    stages: ClassVar[bool] = False
    #: Whether it installs a job's packages on its nodes before ranks start.
    installs: ClassVar[bool] = False
    #: Whether it supports sources with ``mode=mount``, which are read over the network during the training.
    mounts: ClassVar[bool] = False
    #: Whether each of its nodes costs money for every hour that it is up.
    bills: ClassVar[bool] = False
    #: Whether its machines can be created and deleted from here: ``create``, ``delete``, ``machines``.
    can_create: ClassVar[bool] = False
    #: The options of machines to create; declared as ``Options`` are, for forms, flags and Python.
    compute_spec: ClassVar[type] = NoOptions
    #: Options, and fields of ``compute_spec``, whose possible values ``choices`` returns.
    dynamic_options: ClassVar[tuple[str, ...]] = ()
    #: Whether ranks can be restarted or resumed there, and find their checkpoints.
    can_restart: ClassVar[bool] = True
    #: Whether it supports persistent ranks (``Run.expose_endpoint``).
    serves: ClassVar[bool] = False
    #: Whether a job continues without its supervisor, and another one can ``attach`` to it.
    can_attach: ClassVar[bool] = False

    def default_options(self) -> dict[str, Any] | None:
        """Return the options of the cluster of this type that needs no name, None without one."""
        return {} if self.complete else None

    @abstractmethod
    def unavailable(self, options: Any) -> str:
        """Return one sentence with the remedy when this cluster cannot be used here, else ""."""

    @abstractmethod
    def process_count_per_node(self, options: Any, *, use_gpu: bool | None) -> int:
        """Return what "auto" means: the GPUs of one node, else 1."""

    def validate(self, options: Any) -> None:
        """Raise InvalidSpec for options that do not describe a cluster. Called when a cluster is added."""
        return

    def requeues(self, options: Any) -> int:
        """Return how often an interrupted job is requeued (``Run.interrupted``)."""
        return 0

    def suggestions(self) -> Mapping[str, Sequence[str]]:
        """Return values to offer for options, by the name of the option. It takes no time."""
        return {}

    def choices(self, field: str, options: Mapping[str, Any]) -> list[Choice]:
        """Return the known values of the option ``field``; it may take seconds.

        ``options`` are those that are filled in so far. Raises DistDLError, which names what is missing.
        """
        return []

    def detail(self, options: Any) -> str:
        """Return a short description of the machines: "2 cores, no GPU"; "" when it is not known."""
        return ""

    def nodes(self, options: Any) -> list[NodeInfo]:
        """Return the machines that are known now, silent ones included; it may take seconds."""
        return []

    def checks(self, options: Any, *, modules: Sequence[str] = (), programs: Sequence[str] = ()) -> list[Check]:
        """Check every node for problems that would keep a job from running there, within 30 s.

        ``modules`` and ``programs`` are those that a backend needs.
        """
        return []

    def holds(self, node: NodeInfo, host: str) -> bool:
        """Return whether a rank that was placed on ``host`` runs on this machine."""
        return node.name == host

    def machines(self, options: Any) -> Machines | None:
        """Return a summary of its machines; it may take seconds. None where they are not created from here."""
        return None

    def create(self, options: Any, machine_spec: Any) -> None:
        """Request machines like ``machine_spec`` and return once accepted; ``machines`` shows the progress.

        Raises ClusterRefused, InvalidSpec, DistDLError.
        """
        raise ClusterRefused(_FIXED.format(self.title or self.name), code="cluster-machines-fixed")

    def delete(self, options: Any) -> None:
        """Request the deletion of its machines. Raises ClusterRefused, DistDLError."""
        raise ClusterRefused(_FIXED.format(self.title or self.name), code="cluster-machines-fixed")

    @abstractmethod
    def preview(self, spec: JobSpec, options: Any) -> Placement:
        """Return where the ranks would run, without ports and without reserving anything. Raises InvalidSpec."""

    def acquire(
        self, spec: JobSpec, options: Any, *, blocked: bool = False, number: int | None = None
    ) -> QueueView | None:
        """Acquire the resources of the job and return None; or return its position in the queue.

        It is called repeatedly until it returns None, then the job is placed; the resources are held until the run is
        closed, or until ``release``. A job that is ``blocked`` cannot start yet and only keeps its position;
        ``number`` is the position by time that it had before. Raises LaunchFailed for a job that must not wait.
        """
        return None

    def release(self) -> None:
        """Release the resources of a job that was not started."""
        return

    def list_queue(self, options: Any) -> list[QueuedJob] | None:
        """Return the jobs of all users in the cluster's own queue, running ones first; None where it has none.

        It may take seconds. Raises DistDLError when the queue does not respond.
        """
        return None

    @abstractmethod
    def place(self, spec: JobSpec, ports: int, options: Any, context: Context) -> Placement:
        """Connect to the nodes, check them, and return the placement with ``ports`` free ports that stay reserved.

        It may have fewer nodes than the job, at least the context's ``least_node_count``. Every rank has the number of
        own ports in the context's ``rank_ports``, on an address of its node. Where jobs wait in a queue before the
        machines are known, the wait is here (phase ``queue``).

        Raises LaunchFailed, InvalidSpec.
        """

    @abstractmethod
    def start(self, spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Run:
        """Start the plan. Raises LaunchFailed; nothing is left running then."""

    def interrupted(self) -> str:
        """Return why a queue took the machines from a start that has failed, one sentence; "" when it did not."""
        return ""

    def attach(
        self, spec: JobSpec, handle: dict[str, Any], context: Context, read: Mapping[tuple[int, str], int]
    ) -> Run:
        """Find a job whose supervisor died and return it as a run. Raises LaunchFailed when it is gone.

        ``read`` has the number of bytes of each (rank, stream) that were recorded before; reading continues there. The
        stream of the launcher is (-1, "sys").
        """
        raise LaunchFailed(
            f"A job on {self.title or self.name} cannot continue without its supervisor.", code="supervisor-lost"
        )

    @abstractmethod
    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Kill what is left of a job without a supervisor; return the processes that were found. Raises DistDLError."""

    def close_group(self, group: Group, options: Any) -> None:
        """Release what is reserved for later jobs of a group, such as a sweep; jobs that have started continue.

        Raises DistDLError, OSError.
        """
        return
