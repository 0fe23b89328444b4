"""The executors of a Spark cluster: an agent in each task of one barrier stage, with any backend on them.

* A process of the job's own holds the Spark session and runs the stage, one task a node. Spark's scheduler says when
  the slots are free; until then the job is queued with the reason. It ends when its standard input ends, and with it
  the stage: nothing outlives the supervisor.
* Each task connects back to the supervisor over TLS 1.3, with a certificate made for the job, and says the job's
  secret. It starts the same agent that ``ssh`` starts, as a child with pipes, and carries its bytes.
* When the connection or the task ends, so does the agent's input, and an agent ends everything that it started.

pyspark is imported in processes of their own only; neither a supervisor nor a Jupyter server has a session. The task's
code is pickled by value, so executors need this package as little as hosts of ``ssh`` do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.agents import placing
from distdl_jupyter.clusters.agents.cluster import AgentCluster
from distdl_jupyter.clusters.agents.connection import DIRECTORY, Connection, end_all
from distdl_jupyter.clusters.agents.nodes import AgentNodes
from distdl_jupyter.clusters.agents.options import DIRECTORY_HELP, NETWORK_HELP, OVERSUBSCRIBE_HELP, SHARED_HELP
from distdl_jupyter.clusters.agents.tcp_link import Port, distinct
from distdl_jupyter.clusters.base import Check, Context, NodeInfo
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import Placement
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.node import connect_back, processes

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Unreachable
    from distdl_jupyter.clusters.agents.staging import Job
    from distdl_jupyter.core.spec import JobSpec

#: The variable that the process with the session and all of its children have: the job's id.
_MARK = "DISTDL_SPARK_DRIVER"
#: Seconds between two looks whether all tasks run.
_LOOK_SECONDS = 0.1
#: Seconds in which the process with the session ends in order: the slots are given back.
_END_SECONDS = 10.0
#: Seconds for all executors to register before a job begins with fewer, or a check with those that are there.
_SETTLE_SECONDS = 15.0
#: Variables that would lead the session elsewhere.
_LEADING = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE", "SPARK_CONNECT_MODE_ENABLED",
            "SPARK_API_MODE", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS",
            "PYSPARK_DRIVER_PYTHON")  # fmt: skip


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Which Spark cluster, and what of each executor a job takes."""

    master: str = field(
        default="",
        metadata={"help": "the cluster's master: spark://10.0.0.4:7077, yarn, or local-cluster[2,1,1024]",
                  "first": True},
    )  # fmt: skip
    remote: str = field(
        default="", metadata={"help": "instead of master: a Spark Connect server, sc://10.0.0.4:15002", "first": True}
    )
    cpus_per_process: int = field(default=1, metadata={"help": "Spark's cores for each process", "first": True})
    gpus_per_node: int = field(default=0, metadata={"help": "GPUs on each node", "first": True})
    conf: str = field(
        default="", metadata={"help": 'settings of Spark, as JSON: {"spark.executor.memory": "4g"}'}
    )  # fmt: skip
    python: str = field(
        default="", metadata={"help": "the path of Python on the executors (default: the path of the job's own)"}
    )
    host: str = field(
        default="",
        metadata={"help": "the address of this machine that executors reach (default: that which leads to the master)"},
    )
    directory: str = field(default="", metadata={"help": DIRECTORY_HELP})
    network: str = field(default="", metadata={"help": NETWORK_HELP})
    shared: bool | None = field(default=None, metadata={"help": SHARED_HELP})
    oversubscribe: bool = field(default=False, metadata={"help": OVERSUBSCRIBE_HELP})

    @property
    def address(self) -> str:
        """The master or the server."""
        return self.remote or self.master

    def settings(self) -> dict[str, str]:
        """Return the user's settings of Spark. Raises InvalidSpec."""
        try:
            found = {str(name): value if isinstance(value, str) else json.dumps(value)
                     for name, value in json.loads(self.conf or "{}").items()}  # fmt: skip
        except (ValueError, AttributeError):
            raise InvalidSpec(f"conf takes JSON such as {{\"spark.executor.memory\": \"4g\"}}, not {self.conf!r}.",
                              field="conf") from None  # fmt: skip
        if hidden := [name for name, value in found.items() if is_secret(name, value)]:
            raise InvalidSpec(f"conf holds a secret ({hidden[0]}), which would be seen in the list of processes.",
                              field="conf", hint="Put it into spark-defaults.conf of SPARK_CONF_DIR.")  # fmt: skip
        return found


class SparkCluster(AgentCluster):
    """Runs ranks on the executors of a Spark cluster."""

    name = "spark"
    title = "Spark"
    Options = SparkOptions
    queues = True
    several_per_host = True

    def __init__(self) -> None:
        super().__init__()
        self._stage_run: _Stage | None = None

    def unavailable(self, options: SparkOptions) -> str:
        """Spark must be installed here, and Java where this machine is the driver."""
        if find_spec("pyspark") is None:
            return "Spark is not installed in this environment: run 'pip install distdl-jupyter[spark]'."
        if options.master and not options.remote and not _has_java():
            return f"{_NO_JAVA[0]} {_NO_JAVA[1]}"
        return ""

    def validate(self, options: SparkOptions) -> None:
        """Refuse what is no Spark cluster, and settings that are none."""
        if bool(options.master) == bool(options.remote):
            raise InvalidSpec(
                "A Spark cluster has either a master or a remote.", field="master",
                hint="Set master=\"spark://HOST:7077\", or remote=\"sc://HOST:15002\" for Spark Connect.",
            )  # fmt: skip
        if options.remote and not re.match(r"sc://[^/:]+", options.remote):
            raise InvalidSpec(f"remote takes sc://HOST:15002, not {options.remote!r}.", field="remote")
        if "token=" in options.remote:
            raise InvalidSpec("remote holds a token, which is a secret.", field="remote",
                              hint="Take it out and set the variable SPARK_CONNECT_AUTHENTICATE_TOKEN.")  # fmt: skip
        if options.cpus_per_process < 1 or options.gpus_per_node < 0:
            name = "cpus_per_process" if options.cpus_per_process < 1 else "gpus_per_node"
            raise InvalidSpec(f"{name} is {getattr(options, name)}, which is too few.", field=name)
        options.settings()

    def process_count_per_node(self, options: SparkOptions, *, use_gpu: bool | None) -> int:
        """Return the GPUs that a job takes of each node, 1 without any."""
        return max(1, options.gpus_per_node) if use_gpu is not False else 1

    def detail(self, options: SparkOptions) -> str:
        """Return the address."""
        return options.address

    def nodes(self, options: SparkOptions) -> list[NodeInfo]:
        """Return the executors that a job could have. Raises LaunchFailed when Spark does not answer."""
        self.validate(options)
        return [NodeInfo(**row) for row in _ask_nodes(options)]

    def checks(
        self, options: SparkOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[Check]:
        """Ask an agent on each executor that is free."""
        from distdl_jupyter.clusters.agents import checkup

        connections: list[Connection] = []
        stage: _Stage | None = None
        try:
            self.validate(options)
            stage = _Stage(options, Order(name="check", tasks=_MOST_CHECKED, least=1, whole=True))
            stage.await_tasks(lambda _why: None, _CHECK_SECONDS)
            connections = stage.port.connect(options.directory or DIRECTORY)
            return list(checkup.look(connections, [], options, modules, programs, several_per_host=True).checks)
        except DistDLError as error:
            return [Check("", "Spark", "error", error.message, error.hint or "See the log of Spark's master.")]
        finally:
            end_all(connections)
            if stage is not None:
                stage.close()

    def preview(self, spec: JobSpec, options: SparkOptions) -> Placement:
        """Place rank r on node r // process_count_per_node; Spark names the nodes when the job gets them."""
        self.validate(options)
        if spec.use_gpu and options.gpus_per_node < spec.process_count_per_node:
            raise InvalidSpec(
                f"use_gpu asks for {plural(spec.process_count_per_node, 'GPU')} on each node, but the cluster's "
                f"gpus_per_node is {options.gpus_per_node}.",
                field="use_gpu",
                hint=f"Set the cluster's option gpus_per_node to {spec.process_count_per_node}.",
            )
        names = [f"node-{node}" for node in range(spec.node_count)]
        return Placement(placing.places(spec, names), address="", ports=(), interface="")

    # start ------------------------------------------------------------------------------------

    def _connect(self, spec: JobSpec, options: SparkOptions, context: Context) -> tuple[JobSpec, list[Unreachable]]:
        """Wait for a task on each of so many nodes, and start an agent in each."""
        self.validate(options)
        context.record_handle(_handle())
        context.tell("queue", f"waiting for Spark at {options.address}")
        fewer = context.least_node_count if context.restart else None
        order = Order(
            name=spec.id, tasks=spec.node_count, least=spec.node_count if fewer is None else fewer,
            cpus=options.cpus_per_process * spec.process_count_per_node, python=spec.python,
        )  # fmt: skip
        self._stage_run = _Stage(options, order)
        count = self._stage_run.await_tasks(lambda why: context.tell("queue", why))
        context.tell("stage", f"starting agents on {plural(count, 'executor')}")
        self._connections = self._stage_run.port.connect(options.directory or DIRECTORY)
        return dataclasses.replace(spec, node_count=count), []

    def _nodes_of(self, job: Job, placement: Placement, context: Context) -> AgentNodes:
        stage, self._stage_run = self._stage_run, None
        assert stage is not None, "the nodes were reached"
        return _SparkNodes(job, placement, context, self._nodes, stage)

    def _let_go(self) -> None:
        super()._let_go()
        if self._stage_run is not None:
            self._stage_run.close()
            self._stage_run = None

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """End the process that holds the job's session, and what it has started on this machine.

        On executors nothing is left: a task ends with its connection, and an agent with its task.
        """
        found = _drivers(job_id)
        processes.send(found, signal.SIGTERM)
        until = time.monotonic() + _END_SECONDS
        while (left := _drivers(job_id)) and time.monotonic() < until:
            found |= left
            time.sleep(_LOOK_SECONDS)
        return sorted(found | processes.kill_all(lambda: _drivers(job_id)))


def _drivers(job_id: str) -> set[int]:
    """Return the process that holds a job's session and its children."""
    return set(processes.marked(processes.table(), {_MARK: job_id}))


def _handle() -> dict[str, Any]:
    """Return where the process with the session is; it is found there by its mark."""
    return {"driver": socket.gethostname()}


class _SparkNodes(AgentNodes):
    """The nodes of a started job, each a task of one stage."""

    def __init__(self, job: Job, placement: Placement, context: Context, nodes: Any, stage: _Stage) -> None:
        super().__init__(job, placement, context, nodes)
        self._stage_run = stage

    def handle(self) -> dict[str, Any]:
        """Return where the process with the session is."""
        return _handle()

    def close(self) -> None:
        """End the agents and give the slots back to Spark."""
        super().close()
        self._stage_run.close()


# the stage, as the supervisor sees it -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """What the process with the session is to run: so many tasks, at ``least`` some, each with ``cpus``.

    ``whole``: an executor is as large as its worker allows, and each gets one task.
    """

    name: str
    tasks: int = 1
    least: int = 1
    cpus: int = 1
    python: str = ""
    whole: bool = False


#: Executors that a check looks at, and seconds for them to be there.
_MOST_CHECKED = 1000
_CHECK_SECONDS = 30.0


class _Stage:
    """One barrier stage: the process that runs it, and the port to which its tasks connect."""

    def __init__(self, options: SparkOptions, order: Order) -> None:
        """Begin. Raises LaunchFailed."""
        self._options = options
        self._why = f"reaching Spark at {options.address}"
        self._error: LaunchFailed | None = None
        self._closing = False
        #: How many tasks the stage has, 0 while that is not known.
        self._count = order.tasks if order.least == order.tasks else 0
        self.port = Port(_host(options), "Spark's executor on {} is gone: its task ended before the job did.")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        self._process = _started("stage", options, order, self.port.back, self._errors)
        self._thread = threading.Thread(target=self._follow, name="spark", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for message in _messages(self._process):
            if "waits" in message:
                self._why = str(message["waits"])
            elif "tasks" in message:
                self._count = int(message["tasks"])
            elif "error" in message:
                self._error = LaunchFailed(str(message["error"]), hint=str(message["hint"]))
        code = self._process.wait()
        if not self._closing and self._error is None:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
            self._error = LaunchFailed(f"Spark's driver ended with code {code}.", output=said[-2000:])
        self.port.cut()  # where the session is elsewhere tasks could go on

    def await_tasks(self, tell: Callable[[str], object], seconds: float = math.inf) -> int:
        """Wait until all tasks have connected and return how many there are; ``tell`` hears why they have not.

        Raises LaunchFailed, and what ``tell`` raises.
        """
        until = time.monotonic() + seconds
        while not self._count or len(self.port.callers) < self._count:
            if self._error is not None:
                raise self._error
            if time.monotonic() > until:
                raise LaunchFailed(f"Spark at {self._options.address} has no free executor: {self._why}.",
                                   hint="Look again when its jobs have ended.")  # fmt: skip
            tell(self._why)
            time.sleep(_LOOK_SECONDS)
        self.port.close()
        return self._count

    def close(self) -> None:
        """End the stage and its process, which gives the slots back; idempotent."""
        if self._closing:
            return
        self._closing = True
        self.port.close()
        _end_input(self._process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        _kill(self._process)  # Java, too, should it still be there
        self._thread.join()
        self._errors.close()


def _host(options: SparkOptions) -> str:
    """Return the address of this machine that executors reach: that which leads to the master. Raises LaunchFailed."""
    if options.host:
        return options.host
    if options.master.startswith("local"):
        return "127.0.0.1"
    # TEST-NET-1 stands for a master that has no address, such as yarn. Nothing is sent.
    host, port = next(_addresses(options), ("192.0.2.1", 9))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect((host, port))
            return str(asking.getsockname()[0])
    except OSError as error:
        raise LaunchFailed(f"No address of this machine leads to {host}: {error.strerror or error}.",
                           hint="Correct the option master or remote, or set the option host.") from error  # fmt: skip


def _addresses(options: SparkOptions) -> Iterator[tuple[str, int]]:
    """Yield host and port of each master, or of the server, as far as they are named."""
    for found in re.finditer(r"([^/,;:]+|\[[0-9a-fA-F:]+\]):(\d+)", options.address.partition("://")[2].split("/")[0]):
        yield found[1].strip("[]"), int(found[2])
    if options.remote and not re.search(r":\d+", options.remote):
        yield options.remote.removeprefix("sc://").split("/")[0], 15002


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return bool(Path(home, "bin", "java").exists() if home else shutil.which("java"))


def _started(what: str, options: SparkOptions, order: Order, back: dict[str, Any], errors: Any) -> Any:
    """Start this module as a program, which gets all that it needs on its standard input."""
    environment = {name: value for name, value in os.environ.items() if name not in _LEADING}
    # In the session of the supervisor, whose watchdog leaves it the time to give the slots back.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, what], process_group=0, env=environment | {_MARK: order.name},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
    )  # fmt: skip
    given = {"options": dataclasses.asdict(options), "order": dataclasses.asdict(order), "back": back}
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError):  # its end tells
        process.stdin.write(json.dumps(given).encode() + b"\n")
        process.stdin.flush()
    return process


def _messages(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yield what the program tells, until it ends."""
    assert process.stdout is not None, "it is a pipe"
    with process.stdout as lines:
        yield from map(json.loads, lines)


def _end_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ask_nodes(options: SparkOptions) -> list[dict[str, Any]]:
    """Return the executors, found by a short session in a process of its own. Raises LaunchFailed."""
    with tempfile.TemporaryFile() as errors:
        process = _started("nodes", options, Order("nodes"), {"host": _host(options)}, errors)
        timer = threading.Timer(_ASK_SECONDS, _kill, [process])
        timer.start()
        try:
            found = list(_messages(process))
        finally:
            timer.cancel()
            _end_input(process)
            process.wait()
    for message in found:
        if "error" in message:
            raise LaunchFailed(str(message["error"]), hint=str(message["hint"]))
        if "nodes" in message:
            return list(message["nodes"])
    raise LaunchFailed(f"Spark at {options.address} does not answer within {_ASK_SECONDS:.0f} s.", hint=_LOOK_AT_MASTER)


_ASK_SECONDS = 45.0
_LOOK_AT_MASTER = "See whether its master is up, and correct the option master or remote."
_NO_JAVA = ("Spark needs Java here, and there is none.", "Install Java 17 or set JAVA_HOME.")


_Carrier = Callable[[Iterable[Any]], Iterator[Any]]

# on an executor -----------------------------------------------------------------------------------


def _carrier(source: str, back: Mapping[str, Any], python: str) -> _Carrier:
    """Return what a task of the stage runs: ``connect_back``, whose text is ``source``.

    It is pickled by value, for executors need not have this package: nothing in it is looked up outside of it.
    """

    def run(rows: Iterable[Any]) -> Iterator[Any]:
        import os

        from pyspark import BarrierTaskContext

        for _ in rows:  # Spark expects that a task reads them
            pass
        # What Spark has set for its own processes is not the agent's.
        own = ("SPARK_", "PYSPARK_", "_PYSPARK_", "PYTHON_", "DISTDL_", "PYTHONHASHSEED", "PYTHONUNBUFFERED",
               "OMP_NUM_THREADS", "SIMPLIFIED_TRACEBACK")  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        ours = ("pyspark", "py4j", "spark-")
        paths = [path for path in environment.pop("PYTHONPATH", "").split(os.pathsep)
                 if path and not path.rpartition("/")[2].startswith(ours)]  # fmt: skip
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        task: Any = BarrierTaskContext.get()
        if "gpu" in task.resources():
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(task.resources()["gpu"].addresses)
        scope: dict[str, Any] = {"__name__": "connect_back"}
        exec(source, scope)  # noqa: S102 - it is this package's own
        place = {"number": task.partitionId(), "attempt": task.attemptNumber()}
        scope["serve"](back, place, python, environment)
        return iter(())

    return run


# the process with the session ---------------------------------------------------------------------


class _Session(ABC):
    """A session of Spark that runs one stage."""

    def __init__(self, options: SparkOptions, host: str) -> None:
        self.options = options
        self.host = host

    @abstractmethod
    def open(self, order: Order) -> None:
        """Begin. Raises what Spark raises."""

    def slots(self) -> tuple[int, str] | None:
        """Return how many tasks could run now and what is up, in words; None where that is not known."""
        return None

    @abstractmethod
    def run(self, count: int, work: _Carrier, order: Order) -> None:
        """Run the stage to its end. Raises what Spark raises."""

    @abstractmethod
    def nodes(self) -> list[dict[str, Any]]:
        """Return the fields of ``NodeInfo`` of each executor."""

    @abstractmethod
    def stop(self) -> None:
        """End the stage and the session."""


class _Classic(_Session):
    """This process is Spark's driver."""

    _spark: Any = None

    def open(self, order: Order) -> None:
        from pyspark import SparkConf, SparkContext

        settings = {**_settings(order, self.options, self.host), **self.options.settings()}
        self._spark = SparkContext(conf=SparkConf().setAll(list(settings.items())))
        self._spark.setLogLevel("ERROR")

    def slots(self) -> tuple[int, str]:
        executors = self._executors()
        cores = sum(int(one.totalCores()) for one in executors)
        has = "is" if len(executors) == 1 else "are"
        up = (
            f"{plural(len(executors), 'executor')} {has} up with {plural(cores, 'core')}" if executors else "none is up"
        )
        return sum(int(one.maxTasks()) for one in executors), up

    def _executors(self) -> list[Any]:
        store = self._spark._jsc.sc().statusStore()  # noqa: SLF001 - Spark's own pages read it
        found = store.executorList(True)  # noqa: FBT003 - Java has no names for arguments
        rows = [found.apply(at) for at in range(found.size())]
        return [
            one for one in rows if one.isActive() and (one.id() != "driver" or self._spark.master.startswith("local["))
        ]

    def run(self, count: int, work: _Carrier, order: Order) -> None:
        self._spark.parallelize(range(count), count).barrier().mapPartitions(work).collect()

    def nodes(self) -> list[dict[str, Any]]:
        self.open(Order("nodes", tasks=_MOST_CHECKED, whole=True))
        _settled(self, 1, _MOST_CHECKED)
        found = self._executors()
        names = distinct([_host_name(one.hostPort().rpartition(":")[0]) for one in found])
        return [{"name": name, "cores": int(one.totalCores()), "gpus": self.options.gpus_per_node}
                for name, one in zip(names, found, strict=True)]  # fmt: skip

    def stop(self) -> None:
        if self._spark is not None:
            java = self._spark._gateway.proc  # noqa: SLF001 - nothing else says when it has ended
            self._spark.cancelAllJobs()
            self._spark.stop()
            java.stdin.close()
            java.wait()


class _Connect(_Session):
    """The driver is a Spark Connect server."""

    _spark: Any = None

    def open(self, order: Order) -> None:
        from pyspark.sql import SparkSession

        builder: Any = SparkSession.builder.remote(self.options.remote).appName(f"distdl-{order.name}")
        for name, value in self.options.settings().items():
            builder = builder.config(name, value)
        self._spark = builder.create()
        self._spark.version  # noqa: B018 - it asks the server

    def run(self, count: int, work: _Carrier, order: Order) -> None:
        while True:
            try:
                tasks = self._spark.range(0, count, 1, count)
                tasks.mapInArrow(work, "id long", barrier=True, profile=self._profile(order)).collect()
            except Exception as error:
                if "SPARK-24819" not in str(error):  # more slots than the cluster has at present
                    raise
            else:
                return

    def _profile(self, order: Order) -> Any:
        from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

        gpus = self.options.gpus_per_node
        if order.cpus == 1 and not gpus:
            return None
        wanted = TaskResourceRequests().cpus(order.cpus)
        return ResourceProfileBuilder().require(wanted.resource("gpu", gpus) if gpus else wanted).build

    def nodes(self) -> list[dict[str, Any]]:
        self.open(Order("nodes"))
        rows = self._spark.range(0, _ASKED, 1, _ASKED).mapInArrow(_described(), "host string, cores int").collect()
        found = sorted({(str(row.host), int(row.cores)) for row in rows})
        return [{"name": name, "cores": cores, "gpus": self.options.gpus_per_node} for name, cores in found]

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.interruptAll()
            self._spark.stop()


#: Seconds between two reports of what a stage waits for, and for the end of a session.
_TELL_SECONDS = 0.5
_STOP_SECONDS = 6.0
#: Tasks of the short job that finds executors through Spark Connect.
_ASKED = 32


def _described() -> _Carrier:
    """Return what says, in a task, on which machine it runs."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import os
        import socket
        import time

        import pyarrow as pa

        for _ in batches:
            pass
        time.sleep(0.2)  # so that no executor takes all of the tasks
        yield pa.RecordBatch.from_pydict(
            {"host": [socket.gethostname()], "cores": pa.array([os.cpu_count() or 0], pa.int32())}
        )

    return run


def _settings(order: Order, options: SparkOptions, host: str) -> dict[str, str]:
    """Return the settings of Spark for a stage; the user's come over them."""
    found = {
        "spark.master": options.master,
        "spark.app.name": f"distdl-{order.name}",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": host,
        "spark.driver.bindAddress": host if _is_ours(host) else "0.0.0.0",  # noqa: S104 - the address is translated
        "spark.dynamicAllocation.enabled": "false",
        "spark.speculation": "false",
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": str(2**31 - 1),
        "spark.task.cpus": str(order.cpus),
    }
    if not order.whole:
        found |= {"spark.executor.cores": str(order.cpus), "spark.executor.instances": str(order.tasks),
                  "spark.cores.max": str(order.cpus * order.tasks)}  # fmt: skip
    if options.gpus_per_node:
        found |= dict.fromkeys(("spark.executor.resource.gpu.amount", "spark.task.resource.gpu.amount"),
                               str(options.gpus_per_node))  # fmt: skip
    return found


def _is_ours(host: str) -> bool:
    """Say whether this machine has the address itself."""
    with contextlib.suppress(OSError), socket.create_server((host, 0)):
        return True
    return False


def _host_name(address: str) -> str:
    """Return the name of a host that Spark knows by its address."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(address).is_loopback:
            return socket.gethostname()
    with contextlib.suppress(OSError):
        return socket.gethostbyaddr(address)[0].partition(".")[0]
    return address


def _settled(session: _Session, least: int, most: int) -> int:
    """Return for how many tasks executors are up, when these are enough or no more come: at least for ``least``."""
    until, seen, since = time.monotonic() + _SETTLE_SECONDS, 0, time.monotonic()
    while (found := session.slots()) is not None:
        if found[0] != seen:
            seen, since = found[0], time.monotonic()
        enough = seen >= most or (seen >= least and time.monotonic() - since > 2.0)
        if enough or time.monotonic() > until:
            break
        time.sleep(_LOOK_SECONDS)
    return max(least, min(seen, most))


def _work(session: _Session, order: Order, back: Mapping[str, Any], tell: Callable[..., object]) -> None:
    """Run the stage."""
    _reach(session.options)
    tell(waits=f"starting a session of Spark at {session.options.address}")
    session.open(order)
    count = order.tasks if order.least == order.tasks else _settled(session, order.least, order.tasks)
    tell(tasks=count)
    waiting = threading.Thread(target=_tell_slots, args=(session, count, order, tell), daemon=True)
    waiting.start()
    source = Path(connect_back.__file__).read_text(encoding="utf-8")
    session.run(count, _carrier(source, back, session.options.python), order)


def _tell_slots(session: _Session, count: int, order: Order, tell: Callable[..., object]) -> None:
    """Tell from time to time what the stage waits for."""
    wanted = f"waiting for {plural(count, 'executor')} of Spark with {plural(order.cpus, 'core')}"
    if session.options.gpus_per_node:
        wanted += f" and {plural(session.options.gpus_per_node, 'GPU')}"
    wanted += " each" if count > 1 else ""
    with contextlib.suppress(Exception):  # the session ends
        while True:
            found = session.slots()
            tell(waits=wanted if found is None else f"{wanted}; {found[1]}")
            time.sleep(_TELL_SECONDS)


def _list(session: _Session, tell: Callable[..., object]) -> None:
    """Tell of the executors."""
    _reach(session.options)
    tell(nodes=session.nodes())


def _reach(options: SparkOptions) -> None:
    """Raise LaunchFailed when no master answers, for which Spark itself waits a minute."""
    why = ""
    for address in _addresses(options) if options.remote or options.master.startswith("spark://") else ():
        try:
            with socket.create_connection(address, 5.0):
                return
        except OSError as error:
            why = f"{error.strerror or error}"
    if why:
        raise LaunchFailed(f"Spark at {options.address} does not answer: {why}.", hint=_LOOK_AT_MASTER)


#: What Spark's own words mean.
_WORDS: tuple[tuple[str, str, str], ...] = (
    (r"distdl: ([\w.-]+ does not reach \S+: [^\n]*)", "{0}.", "Set the option host to an address of this machine that "
     "Spark's executors reach, and open its ports to them."),
    (r"JAVA_GATEWAY_EXITED|UnsupportedClassVersionError", *_NO_JAVA),
    (r"different version: \(?([\d., ]+)\)? than that in driver:? \(?([\d., ]+)\)?",
     "The executors run Python {0}, and this job {1}.",
     "Set the option python to a Python there of the job's version."),
    (r'Cannot run program "([^"]+)"', "The executors have no Python at {0}.",
     "Set the option python to the path of Python there."),
    (r"No module named '?(py[\w.]+)", "Python on the executors lacks {0}.",
     "Install it there, or set the option python."),
    (r"All masters are unresponsive|StatusCode.UNAVAILABLE|failed to connect to all addresses",
     "Spark does not answer.", _LOOK_AT_MASTER),
)  # fmt: skip


def _explained(said: str, options: SparkOptions) -> tuple[str, str]:
    """Return one sentence for an error of Spark, and its remedy."""
    for pattern, sentence, hint in _WORDS:
        if found := re.search(pattern, said):
            return sentence.format(*(part.strip().replace(", ", ".") for part in found.groups())), hint
    return (
        f"Spark at {options.address} has ended the job's stage: {_first_line(said)}.",
        "See the log of its executors.",
    )


def _first_line(said: str) -> str:
    """Return the first line of what Spark says that means something."""
    lines = [re.sub(r"^:?\s*(?:[\w.$]+(?:Exception|Error): )+", "", line.strip()) for line in said.splitlines()]
    kept = [
        line for line in lines if line and not line.startswith(("An error occurred while calling", "Traceback", "at "))
    ]
    return (kept or ["it does not say why"])[0][:300].rstrip(".:")


def main(what: str) -> None:
    """Do what is read from standard input, tell of it in lines of JSON, and end when that input ends."""
    say = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Spark prints

    def tell(**fields: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            say.write(json.dumps(fields) + "\n")

    given = json.loads(sys.stdin.buffer.readline())
    options, order = SparkOptions(**given["options"]), Order(**given["order"])
    os.environ["PYSPARK_PYTHON"] = options.python or order.python or sys.executable
    session = (_Connect if options.remote else _Classic)(options, given["back"]["host"])
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())

    def work() -> None:
        try:
            if what == "stage":
                _work(session, order, given["back"], tell)
            else:
                _list(session, tell)
        except DistDLError as error:
            tell(error=error.message, hint=error.hint)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises is told
            sentence, hint = _explained(str(error), options)
            tell(error=sentence, hint=hint)
        ended.set()

    def listen() -> None:
        sys.stdin.buffer.read()
        ended.set()

    for target in (work, listen):
        threading.Thread(target=target, daemon=True).start()
    ended.wait()
    stopping = threading.Thread(target=session.stop, daemon=True)
    stopping.start()
    stopping.join(_STOP_SECONDS)
    os._exit(0)  # neither threads nor Java are waited for: it ends with its standard input


if __name__ == "__main__":
    main(*sys.argv[1:])
