"""The contract of a cluster.

A cluster is asked to ``place`` a job, to ``start`` a plan, and gives back a ``Run``: streams to read, exits to hear of,
signals to send. ``handle()`` of a run is plain data from which, after the supervisor died, ``attach`` finds the job
again or ``sweep`` ends what is left of it. Nothing here knows events, views or backends' names.
"""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from distdl_jupyter.clusters.machines import Choice, Machines
from distdl_jupyter.core.errors import ClusterRefused, LaunchFailed
from distdl_jupyter.core.plan import NoOptions, Placement, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from distdl_jupyter.core.queue import QueuedJob, QueueView
    from distdl_jupyter.core.spec import Group, JobSpec
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.node.stacks import Answer


@dataclass(frozen=True, slots=True)
class Stream:
    """A file descriptor to read: ``rank`` None is the launcher's or a service's own output.

    ``start`` counts the bytes that came before, where the output is kept and can be read again from any place (None:
    it cannot). What is written of such a stream carries its position, so that ``attach`` repeats and loses nothing.
    """

    fd: int
    rank: int | None
    name: str  # "out" or "err"
    start: int | None = None


class Unkillable(NamedTuple):
    """A process that lives on although KILL was sent; ``host`` is "" where all ranks are on one machine."""

    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of one rank's process: an exit code or a signal's name such as ``"KILL"``.

    With neither the rank is lost: nobody can say any more how it ended, and ``evidence`` says why ("node gpu2 has not
    answered for 10 s"). A lost rank has failed.
    """

    rank: int
    code: int | None
    signal: str | None
    #: What is known of the cause beyond code and signal, one sentence.
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """One rank's process was started."""

    rank: int
    pid: int


def _ignore(_phase: str, _detail: str) -> None:
    """Nobody listens."""


def _unnoted(_data: object) -> None:
    """Nobody takes it."""


@dataclass(slots=True)
class Context:
    """What placing and starting a job need besides spec and plan."""

    folder: JobFolder
    #: What the job itself wants in every rank's environment: its marks, the user's variables, their secret values.
    own: dict[str, str] = field(default_factory=dict)
    #: The environment of whoever submitted it. Ranks on this machine get all of it, others what makes sense there.
    inherited: dict[str, str] = field(default_factory=dict)
    #: Python modules and programs that the backend needs on every node.
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    #: How many ports the backend needs for each rank on the rank's node, beside those of node 0.
    rank_ports: int = 0
    #: Called with a phase (``queue`` while the job waits for its turn, ``stage`` or ``start``) and what is being done
    #: now, for people to see.
    report: Report = _ignore
    #: Called with what the user should read.
    note: Callable[[Notice], object] = _unnoted
    #: Called with a job's place while it waits in ``place``; what its priority is now, and its number by time when it
    #: has waited before.
    note_place: Callable[[QueueView], object] = _unnoted
    priority: Callable[[], int] = int
    queue_number: int | None = None
    #: Called with plain data for ``Cluster.sweep`` when something was begun that outlives the supervisor; another one
    #: that places the job gets it as ``handle``.
    record_handle: Callable[[dict[str, Any]], object] = _unnoted
    handle: Mapping[str, Any] | None = None
    #: What has to be brought to every node before its ranks start; None when the job has no data sources.
    staging: Staging | None = None
    #: How often the job's ranks were started before, and the nodes that were lost when they last ran.
    restart: int = 0
    gone: frozenset[int] = frozenset()
    #: With how few nodes the job may begin when others cannot be had; None: with all of them only.
    least_node_count: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a rank on this machine."""
        return {**self.inherited, **self.own}


class Report(Protocol):
    """Is called with what is being done."""

    def __call__(self, phase: str, detail: str, /) -> None:
        """Take a phase and its detail."""


class Staging(Protocol):
    """A job's data sources and packages on their way to its nodes: orders for ``data.stager``, one a node.

    A cluster that ``stages`` runs that program on every node before any rank starts, gives it the node's order, passes
    on what it says and gives it the answers. The paths that it tells at the end go into the environment of the node's
    ranks.
    """

    @property
    def what(self) -> str:
        """What is brought, in words: data, packages, or both."""

    def order(self, node: int, *, base: str = "") -> dict[str, Any]:
        """Return what the stager of a node is to do, as JSON data without any secret.

        ``base`` is a folder on that node under which the cache lies, "" for this user's usual one.
        """

    def on_message(self, node: int, host: str, message: dict[str, Any]) -> dict[str, Any] | None:
        """Take one message of a node's stager; return the answer that it waits for (it may hold a secret), or None.

        Raises DataUnavailable when the message tells of a failure.
        """


NodeState = Literal["up", "down", "starting", "unknown"]
CheckLevel = Literal["ok", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at on one node (``node`` "" for the cluster as a whole).

    ``what`` names it ("Reachable", "torch"), ``says`` what was seen, and ``remedy`` what to do unless all is well.
    ``code`` is the stable name of the problem for programs and help links, "" when all is well.
    """

    node: str
    what: str
    level: CheckLevel
    says: str
    remedy: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One machine of a cluster as it is now; ``detail`` says what else is known, above all why it is down.

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
    #: Whether it costs money now, and how much in an hour where that is known, in ``currency`` ("USD").
    billed: bool = False
    cost_per_hour: float | None = None
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about a run that the user should read; ``code`` is for programs."""

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
    """What the ranks on one machine and the machine use at one moment (see ``node.resources``)."""

    node: int
    data: Mapping[str, Any]


class Run(ABC):
    """A started job."""

    @property
    @abstractmethod
    def streams(self) -> tuple[Stream, ...]:
        """The descriptors to read, until each ends."""

    @abstractmethod
    def started(self) -> list[Start]:
        """Return the processes that were started directly (a launcher's ranks report themselves)."""

    def keep_slots(self) -> None:
        """Keep what the job holds of the machines' queues. Called about once a second."""
        return

    def waiting(self) -> str:
        """Return why the ranks have not been started yet ("pending: Resources"), "" when they were."""
        return ""

    def notices(self) -> list[Notice]:
        """Return what the user should read since the last call."""
        return []

    def samples(self) -> Sequence[NodeSample]:
        """Return what ranks and machines have used since the last call; nothing where no agent of ours runs."""
        return ()

    @abstractmethod
    def poll(self) -> list[Exit]:
        """Return the exits since the last call. Every rank exits exactly once, also when its launcher dies."""

    def interrupted(self) -> str:
        """Return why a queue took the machines from ranks that had not failed, one sentence; "" when it did not.

        Asked once when ranks have ended; it may take some seconds.
        """
        return ""

    @abstractmethod
    def alive(self) -> Sequence[object]:
        """Return all processes of the job that live, descendants included; empty when all are gone.

        A machine that does not answer counts as none: it ends its processes by itself.
        """

    @abstractmethod
    def signal(self, name: str) -> None:
        """Send INT to the ranks, or TERM or KILL to every process of the job."""

    def unkillable(self) -> Sequence[Unkillable]:
        """Return the living processes that wait in the kernel where KILL does not reach them (state D)."""
        return ()

    def ask_stacks(self) -> None:
        """Ask every rank for the stacks of its threads, without waiting; a rank that cannot answer is left alone."""
        return

    def stacks(self) -> Mapping[int, Answer]:
        """Return what ranks have answered since the last call, each once: its stacks, or why it gives none."""
        return {}

    #: Seconds in which the answers of all ranks that can answer are there.
    stacks_seconds: ClassVar[float] = 6.0

    def no_stacks(self) -> str:
        """Return why ranks of this kind of cluster cannot be asked, one sentence; "" when they can."""
        return "This type of cluster does not support stack traces of running ranks."

    def ask_profile(self, ranks: Sequence[int], request: Mapping[str, Any]) -> None:
        """Leave a request to record some steps for ranks, without waiting (``worker.hooks.profile``)."""
        return

    def serve(self, rank: int) -> None:
        """Write into the job's folder where a rank that stays is met (``worker.serving``), without waiting."""
        return

    def fetch(self, rank: int, path: str, most: int) -> None:
        """Bring a file below the job's folder, which a rank has written, here; nothing is done where it lies here.

        It waits, in a thread of the caller. Raises LaunchFailed, also for a file of more than ``most`` bytes, OSError.
        """
        return

    def on_launcher_output(self, text: str) -> None:
        """Hear what the launcher or a service printed (streams with rank None)."""
        return

    @abstractmethod
    def handle(self) -> dict[str, Any]:
        """Return plain data for ``Cluster.attach`` and ``Cluster.sweep``; written down once, after the start."""

    def collect(self) -> None:
        """Bring values and files that ranks have written into the job's folder, where it was not theirs.

        Called once, after every rank has ended. Raises LaunchFailed naming what could not be brought.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Free what the run holds (descriptors, ports, services). Called once, after everything ended."""


_FIXED = "Clusters of type {} do not support creating or deleting machines."


class Cluster(ABC):
    """One kind of place where ranks run."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    #: The kind in words, as lists show it.
    title: ClassVar[str] = ""
    #: Whether it is a place already without options; others are shown when a user has named one.
    complete: ClassVar[bool] = True
    #: Whether its nodes are other machines: asking takes seconds, and they need the backend's packages themselves.
    far: ClassVar[bool] = False
    #: Whether a job can wait there for its turn, with no process started yet.
    queues: ClassVar[bool] = False
    #: Whether jobs hold GPUs, cores and memory there (``turn``), and wait for what others hold.
    slots: ClassVar[bool] = False
    #: Whether it brings data sources to its nodes before ranks start (``Context.staging``).
    stages: ClassVar[bool] = False
    #: Whether it installs a job's packages on its nodes before ranks start.
    installs: ClassVar[bool] = False
    #: Whether it takes sources with ``mode=mount``, which are read over the network while the ranks train.
    mounts: ClassVar[bool] = False
    #: Whether each of its nodes costs money for every hour that it is up.
    bills: ClassVar[bool] = False
    #: Whether its machines can be made and unmade from here: ``create``, ``delete``, ``machines``.
    can_create: ClassVar[bool] = False
    #: What is said of machines that are to be made; declared as ``Options`` are, for forms, flags and Python.
    Wanted: ClassVar[type] = NoOptions
    #: Options, and fields of ``Wanted``, whose possible values ``choices`` knows when it is asked.
    asks: ClassVar[tuple[str, ...]] = ()
    #: Whether ranks can be started anew there, by a restart or a resume, and find their checkpoints.
    can_restart: ClassVar[bool] = True
    #: Whether ranks that stay can be asked there (``Run.serve``).
    serves: ClassVar[bool] = False
    #: Whether a job goes on without its supervisor, and another one can ``attach`` to it.
    can_attach: ClassVar[bool] = False

    def by_itself(self) -> dict[str, Any] | None:
        """Return the options of the place of this kind that is there without a name, None where there is none."""
        return {} if self.complete else None

    @abstractmethod
    def unavailable(self, options: Any) -> str:
        """Return one sentence with the remedy when this cluster cannot be used here, else ""."""

    @abstractmethod
    def process_count_per_node(self, options: Any, *, use_gpu: bool | None) -> int:
        """Return what "auto" means: the GPUs of one node, else 1."""

    def validate(self, options: Any) -> None:
        """Raise InvalidSpec for options that cannot be those of a cluster, as too few. Asked when one gets a name."""
        return

    def requeues(self, options: Any) -> int:
        """Return how often a job goes into the queue again that was interrupted (``Run.interrupted``)."""
        return 0

    def suggestions(self) -> Mapping[str, Sequence[str]]:
        """Return, by the name of an option, values that are worth offering here. It takes no time."""
        return {}

    def choices(self, field: str, options: Mapping[str, Any]) -> list[Choice]:
        """Return the values that the option ``field`` may have, as far as can be seen from here; it may take seconds.

        ``options`` are those that somebody has filled in so far. Raises DistDLError that says what is missing for it.
        """
        return []

    def detail(self, options: Any) -> str:
        """Return what kind of machines these are in a few words: "2 cores, no GPU"; "" when it is not known."""
        return ""

    def nodes(self, options: Any) -> list[NodeInfo]:
        """Return the machines that can be named now; it may take seconds. A machine that is silent is told as such."""
        return []

    def checks(self, options: Any, *, modules: Sequence[str] = (), programs: Sequence[str] = ()) -> list[Check]:
        """Look at every node for what would keep a job from running there, within 30 s whatever happens.

        ``modules`` and ``programs`` are those that a backend needs.
        """
        return []

    def holds(self, node: NodeInfo, host: str) -> bool:
        """Say whether a rank that was placed on ``host`` runs on this machine."""
        return node.name == host

    def machines(self, options: Any) -> Machines | None:
        """Return its machines as a whole; it may take seconds. None where they are not made from here."""
        return None

    def create(self, options: Any, wanted: Any) -> None:
        """Ask for machines like ``wanted`` and return when the request was accepted; ``machines`` tells how it goes on.

        Raises ClusterRefused, InvalidSpec, DistDLError.
        """
        raise ClusterRefused(_FIXED.format(self.title or self.name), code="cluster-machines-fixed")

    def delete(self, options: Any) -> None:
        """Ask for the end of its machines; return when that was accepted. Raises ClusterRefused, DistDLError."""
        raise ClusterRefused(_FIXED.format(self.title or self.name), code="cluster-machines-fixed")

    @abstractmethod
    def preview(self, spec: JobSpec, options: Any) -> Placement:
        """Return where the ranks would run, without ports and without reserving anything. Raises InvalidSpec."""

    def turn(
        self, spec: JobSpec, options: Any, *, blocked: bool = False, number: int | None = None
    ) -> QueueView | None:
        """Take what the job must have alone there, and return None; or return for what and whom it has to wait.

        It is asked from time to time until it returns None, then the job is placed; what was taken is held until the
        run is closed or ``give_back``. A job that is ``blocked`` cannot start yet and only keeps its place; ``number``
        is the place by time that it had before. Raises LaunchFailed for a job that does not want to wait.
        """
        return None

    def give_back(self) -> None:
        """Give back what was taken for a job that has not been started."""
        return

    def everybody(self, options: Any) -> list[QueuedJob] | None:
        """Return the jobs of all users in the cluster's own queue, those that run first; None where it has none.

        It may take seconds. Raises DistDLError when the queue does not answer.
        """
        return None

    @abstractmethod
    def place(self, spec: JobSpec, ports: int, options: Any, context: Context) -> Placement:
        """Return the preview with ``ports`` free ports that stay reserved; nodes are reached and checked here.

        Where nodes cannot be had, it may be a placement on fewer, at least the context's ``least_node_count``.

        Every rank's place has as many of its own as the context's ``rank_ports`` says, on an address of its node.

        Where jobs wait for their turn before the machines are known, the wait is here (phase ``queue``).

        Raises LaunchFailed, InvalidSpec.
        """

    @abstractmethod
    def start(self, spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Run:
        """Start the plan. Raises LaunchFailed when it cannot; nothing is left running then."""

    def interrupted(self) -> str:
        """Return why a queue took the machines from a start that has failed, one sentence; "" when it did not."""
        return ""

    def attach(
        self, spec: JobSpec, handle: dict[str, Any], context: Context, read: Mapping[tuple[int, str], int]
    ) -> Run:
        """Find a job again whose supervisor died and return it as a run. Raises LaunchFailed when it is gone.

        ``read`` holds how many bytes of each (rank, stream) were written down before; reading goes on behind them.
        The stream that is no rank's own is (-1, "sys").
        """
        raise LaunchFailed(
            f"A job on {self.title or self.name} cannot continue without its supervisor.", code="supervisor-lost"
        )

    @abstractmethod
    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Kill what is left of a job without a supervisor; return the processes that were found.

        Raises DistDLError when it cannot be looked for.
        """

    def close_group(self, group: Group, options: Any) -> None:
        """Give back what is reserved for jobs of a group, as a sweep, that are to come; those that have begun go on.

        Raises DistDLError, OSError.
        """
        return
