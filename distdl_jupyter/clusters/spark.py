"""Spark clusters: run an agent in each task of one barrier stage, and any backend on these agents.

The stage has one task for each node. Each task connects back to the supervisor over TLS 1.3 with the job's secret
(``agents.links``, ``node.connect_back``), starts the same agent as ``ssh``, and forwards its input and output. The
stage ends with the connection to the supervisor, and an agent with its task. Executors do not need this package.

The stage runs in a separate process (``python -m distdl_jupyter.clusters.spark``) with its own session or one on a
Spark Connect server. The classic session of a notebook owns its executors, so its stage must run in the kernel, where a
thread serves the same protocol on a socket that only this user can access. The supervisor sends one line of JSON that
describes the stage, and receives lines of JSON with the reason for waiting or with an error. When it disconnects, the
stage is canceled, and a session opened for it is stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters.agents import checkup
from distdl_jupyter.clusters.agents.agent import (
    DIRECTORY_HELP,
    NETWORK_HELP,
    OVERSUBSCRIBE_HELP,
    SHARED_HELP,
    ReachError,
)
from distdl_jupyter.clusters.agents.cluster import AgentCluster
from distdl_jupyter.clusters.agents.connection import DEFAULT_DIRECTORY, end_all
from distdl_jupyter.clusters.agents.links import AgentListener
from distdl_jupyter.clusters.agents.staging import AgentNodes, StagedJob
from distdl_jupyter.clusters.base import Context, NodeCheck, RunNotice
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.machine import has_java
from distdl_jupyter.core.options import MAX_CORES, MAX_GPUS, check_range
from distdl_jupyter.core.plan import Placement, option
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.node import connect_back, processes
from distdl_jupyter.worker.rank_socket import read_uid

#: Seconds between two attempts to run a stage, and between two checks for connected tasks.
_RETRY_SECONDS, _POLL_SECONDS = 1.0, 0.1
#: Timeouts in seconds for stopping a session, and for the end of the stage.
_STOP_SECONDS, _END_SECONDS = 6.0, 10.0
#: Timeout in seconds for a check to open a session and start an executor. Spark may still be releasing the executors
#: of another job.
_CHECK_SECONDS = 50.0
#: Spark's error for a barrier stage with more tasks than free slots.
_NO_SLOTS_ERROR = "SPARK-24819"
#: The environment variable with the job ID that marks the driver process and its children.
MARK_VARIABLE = "DISTDL_SPARK_DRIVER"
#: A sweep finds the driver process by its mark, so a job's handle needs no data.
_HANDLE = {"marked": True}
_KERNEL_ENDED = "The kernel with the Spark session of the job has ended."
#: Environment variables that would redirect the session; the driver does not inherit them.
_REDIRECTS = (
    *("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"),
    *("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON"),
)
#: The remedy if there is no session.
NO_SESSION_HINT = (
    'Start a session (spark = SparkSession.builder.getOrCreate()), or set master="spark://HOST:7077", '
    'or remote="sc://HOST:15002" for Spark Connect.'
)
#: The function that every task runs.
_TaskFunction = Callable[[Iterable[Any]], Iterator[Any]]
#: (run, stop): ``run`` runs a stage to completion and raises Spark's errors; ``stop`` cancels the stage, and stops the
#: session if it was opened for the stage.
_SessionFunctions = tuple[Callable[[_TaskFunction], None], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The Spark cluster, and the resources of a job on each executor."""

    master: str = option("", "master of the cluster: spark://10.0.0.4:7077, yarn, local-cluster[2,1,1024]", first=True)
    remote: str = option("", "Spark Connect server, instead of master: sc://10.0.0.4:15002", first=True)
    cpus_per_process: int = option(1, "Spark cores for each process", first=True)
    gpus_per_node: int = option(0, "GPUs on each node", first=True)
    conf: str = option("", 'Spark settings as JSON: {"spark.executor.memory": "4g"}')
    python: str = option("", "path of the Python interpreter on the executors (default: the path of this one)")
    session: str = option("", "socket of the process with the Spark session, instead of master; found automatically")
    host: str = option("", "address of this machine that executors can reach (default: on the route to the master)")
    directory: str = option("", DIRECTORY_HELP)
    network: str = option("", NETWORK_HELP)
    shared: bool | None = option(None, SHARED_HELP)
    oversubscribe: bool = option(default=False, help_=OVERSUBSCRIBE_HELP)

    @property
    def title(self) -> str:
        """The name of the cluster in messages."""
        return "the notebook's Spark session" if self.session else f"Spark at {self.remote or self.master}"

    def parse_settings(self) -> dict[str, str]:
        """Return the user's Spark settings. Raises InvalidSpec."""
        try:
            pairs = json.loads(self.conf or "{}").items()
        except (ValueError, AttributeError):
            message = f'conf is {self.conf!r}, but must be JSON such as {{"spark.executor.memory": "4g"}}.'
            raise InvalidSpec(message, code="spark-conf-invalid", field="conf") from None
        settings = {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in pairs}
        if secret_names := [name for name, value in settings.items() if is_secret(name, value)]:
            message = f"conf contains a secret ({secret_names[0]}), which would be visible in the process list."
            hint = "Put it into the file spark-defaults.conf in SPARK_CONF_DIR."
            raise InvalidSpec(message, code="spark-conf-secret", field="conf", hint=hint)
        return settings


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A stage of ``tasks`` tasks with ``cpus`` cores each."""

    name: str
    tasks: int = 1
    cpus: int = 1
    python: str = ""


def _find_local_address(options: SparkOptions) -> str:
    """Return the address of this machine that executors can reach. Raises OSError.

    Raises LaunchFailed if no master or server responds; Spark itself would wait for a minute.
    """
    authority = (options.remote or options.master).partition("://")[2].split("/")[0]
    matches = re.finditer(r"([^/,;:]+|\[[0-9a-fA-F:]+\]):(\d+)", authority)
    addresses = [(match[1].strip("[]"), int(match[2])) for match in matches]
    if options.remote and not addresses:
        addresses = [(authority, 15002)]
    problem = ""
    for address in addresses:
        try:
            with socket.create_connection(address, 5.0) as connection:
                return options.host or str(connection.getsockname()[0])
        except OSError as error:
            problem = f"{options.title} does not respond: {error.strerror or error}."
    if problem:
        hint = "Check that its master is running, and correct the option 'master' or 'remote'."
        raise LaunchFailed(problem, code="spark-unreachable", hint=hint)
    if options.host or options.master.startswith("local"):
        return options.host or "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # TEST-NET-1 replaces a master without an address, such as yarn
        return str(probe.getsockname()[0])


def _make_task(source: str, callback: Mapping[str, Any], python: str) -> _TaskFunction:
    """Return the function that every task runs: it executes ``source``, the source code of ``connect_back``.

    It is pickled by value and uses no module-level names, because executors may lack this package.
    """

    def run(rows: Iterable[Any]) -> Iterator[Any]:
        import asyncio
        import os

        from pyspark import BarrierTaskContext

        list(rows)  # Spark expects a task to read its rows
        # The agent does not inherit the variables that Spark sets for its workers.
        prefixes = (
            "SPARK_ PYSPARK_ _PYSPARK_ PYTHON_ DISTDL_ PYTHONHASHSEED PYTHONUNBUFFERED OMP_NUM_THREADS SIMPLIFIED_"
        )
        environment = {name: text for name, text in os.environ.items() if not name.startswith(tuple(prefixes.split()))}
        paths = [path for path in environment.pop("PYTHONPATH", "").split(os.pathsep) if path]
        paths = [path for path in paths if not path.rpartition("/")[2].startswith(("pyspark", "py4j", "spark-"))]
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        task: Any = BarrierTaskContext.get()
        if "gpu" in task.resources():
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(task.resources()["gpu"].addresses)
        scope: dict[str, Any] = {"__name__": "connect_back"}
        exec(source, scope)  # noqa: S102 - it is the source of a module of this package
        identity = {"number": task.partitionId(), "attempt": task.attemptNumber()}
        asyncio.run(scope["serve"](callback, identity, python, environment))
        return iter(())

    return run


def _open_classic(options: SparkOptions, stage: StageSpec, host: str, context: Any) -> _SessionFunctions:
    """Open a session whose driver has the address ``host``, or use the session of this kernel, which stays open."""
    from pyspark import SparkConf, SparkContext

    if options.session and context is None:
        message = "The notebook's Spark session has been stopped."
        raise LaunchFailed(message, code="spark-session-stopped", hint=NO_SESSION_HINT)
    spark, group = context, f"distdl-{os.urandom(8).hex()}"
    if context is None:
        os.environ["PYSPARK_PYTHON"] = options.python or stage.python or sys.executable
        settings = {**_build_default_settings(stage, options, host), **options.parse_settings()}
        spark = SparkContext(conf=SparkConf().setAll(list(settings.items())))
        spark.setLogLevel("ERROR")

    def run(work: _TaskFunction) -> None:
        spark.setJobGroup(group, f"distdl job {stage.name}", interruptOnCancel=True)
        tasks = spark.parallelize(range(stage.tasks), stage.tasks)
        if context is not None and (profile := _build_resource_profile(options, stage)) is not None:
            tasks = tasks.withResources(profile)
        tasks.barrier().mapPartitions(work).collect()

    def stop() -> None:
        spark.cancelJobGroup(group)
        if context is None:
            java = spark._gateway.proc  # noqa: SLF001 - the only way to see when it has exited
            spark.stop()
            java.stdin.close()
            java.wait()

    return run, stop


def _open_connect(options: SparkOptions, stage: StageSpec) -> _SessionFunctions:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.remote(options.remote).appName(f"distdl-{stage.name}")
    for name, value in options.parse_settings().items():
        builder = builder.config(name, value)
    spark = builder.create()
    spark.version  # noqa: B018 - it queries the server

    def run(work: _TaskFunction) -> None:
        tasks = spark.range(0, stage.tasks, 1, stage.tasks)
        tasks.mapInArrow(work, "id long", barrier=True, profile=_build_resource_profile(options, stage)).collect()

    def stop() -> None:
        spark.interruptAll()
        spark.stop()

    return run, stop


def _build_resource_profile(options: SparkOptions, stage: StageSpec) -> Any:
    """Return the resource profile of a task, or None if the task needs only one core."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    gpus = options.gpus_per_node
    if stage.cpus == 1 and not gpus:
        return None
    requests = TaskResourceRequests().cpus(stage.cpus)
    return ResourceProfileBuilder().require(requests.resource("gpu", gpus) if gpus else requests).build


def _build_default_settings(stage: StageSpec, options: SparkOptions, host: str) -> dict[str, str]:
    """Return the default settings of the session, which the user's settings override."""
    bind_address = "0.0.0.0"  # noqa: S104 - host may be a NAT address, which cannot be bound here
    with contextlib.suppress(OSError), socket.create_server((host, 0)):
        bind_address = host
    settings = {
        "spark.master": options.master,
        "spark.app.name": f"distdl-{stage.name}",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": host,
        "spark.driver.bindAddress": bind_address,
        "spark.dynamicAllocation.enabled": "false",
        "spark.speculation": "false",
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": str(2**31 - 1),
        "spark.task.cpus": str(stage.cpus),
        "spark.executor.cores": str(stage.cpus),
        "spark.executor.instances": str(stage.tasks),
        "spark.cores.max": str(stage.cpus * stage.tasks),
    }
    if options.gpus_per_node:
        settings |= {f"spark.{role}.resource.gpu.amount": str(options.gpus_per_node) for role in ("executor", "task")}
    return settings


#: Patterns of Spark's errors, their meaning, and the remedy.
_CAUSES = (
    (
        r"distdl: ([\w.-]+ cannot reach \S+: [^\n]*)",
        "{0}.",
        "Set the option 'host' to an address of this machine that executors can reach, and open its ports to them.",
    ),
    (r"JAVA_GATEWAY_EXITED", "The Spark driver did not start.", "Read its output. Spark 4 needs Java 17 or newer."),
    (
        r"different version: \(?(\d+[., ]+\d+)\)? than that in driver:? \(?(\d+[., ]+\d+)",
        "The executors run Python {0}, but this job runs Python {1}.",
        "Set the option 'python' to an interpreter on the executors that has the job's Python version.",
    ),
    (
        r'Cannot run program "([^"]+)"',
        "There is no Python at {0} on the executors.",
        "Set the option 'python' to the path of an interpreter on the executors.",
    ),
)


def _explain(text: str) -> tuple[str, str]:
    """Return a Spark error as one sentence, and its remedy."""
    for pattern, sentence, hint in _CAUSES:
        if match := re.search(pattern, text):
            return sentence.format(*(group.strip().replace(", ", ".") for group in match.groups())), hint
    lines = [re.sub(r"^:?\s*(?:[\w.$]+(?:Exception|Error): )+", "", line.strip()) for line in text.splitlines()]
    skipped = ("An error occurred while calling", "Traceback", "at ")
    first = next((line for line in lines if line and not line.startswith(skipped)), "no reason given")
    return f"Spark aborted the job's stage: {first[:300].rstrip('.:')}.", "See the executor logs."


def serve(connection: socket.socket, context: Any = None) -> None:
    """Run the stage that the client describes, and end it when the client disconnects.

    ``context`` is the SparkContext of this kernel; without one, a session is started and stopped. Raises OSError, and
    ValueError if the client sends no stage.
    """
    lines = connection.makefile("rb")
    request = json.loads(lines.readline())
    options, stage, callback = SparkOptions(**request["options"]), StageSpec(**request["stage"]), request["callback"]
    stop_event, stop_functions = threading.Event(), list[Callable[[], None]]()

    def report(**fields: Any) -> None:
        with contextlib.suppress(OSError):  # the client has disconnected
            connection.sendall(json.dumps(fields).encode() + b"\n")

    def work() -> None:
        try:
            report(reason=f"connecting to {options.title}")
            if options.remote:
                run, stop = _open_connect(options, stage)
            else:
                run, stop = _open_classic(options, stage, callback["host"], context)
            stop_functions.append(stop)
            gpus = f" and {plural(options.gpus_per_node, 'GPU')}" if options.gpus_per_node else ""
            resources = f"{plural(stage.cpus, 'core')}{gpus}{' each' if stage.tasks > 1 else ''}"
            report(reason=f"waiting for {plural(stage.tasks, 'Spark executor')} with {resources}")
            source = Path(connect_back.__file__).read_text(encoding="utf-8")
            task = _make_task(source, callback, options.python or ("" if options.remote else stage.python))
            while not stop_event.is_set():
                try:
                    run(task)
                    break
                except Exception as error:
                    if _NO_SLOTS_ERROR not in str(error):
                        raise
                    stop_event.wait(_RETRY_SECONDS)
        except DistDLError as error:
            report(error=error.message, code=error.code, hint=error.hint)
        except Exception as error:  # noqa: BLE001 - Spark may raise anything
            sentence, hint = _explain(str(error))
            report(error=sentence, code="spark-stage-failed", hint=hint)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RD)

    threading.Thread(target=work, daemon=True).start()
    with contextlib.suppress(OSError):
        lines.read()
    stop_event.set()
    stop_thread = threading.Thread(target=lambda: [stop() for stop in stop_functions], daemon=True)
    stop_thread.start()
    stop_thread.join(_STOP_SECONDS)
    if context is None and not options.session and stop_thread.is_alive():
        os.killpg(0, signal.SIGKILL)  # also kills Java
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # a thread may still be reading from it


def _get_active_context() -> Any:
    module = sys.modules.get("pyspark.core.context") or sys.modules.get("pyspark.context")
    return getattr(getattr(module, "SparkContext", None), "_active_spark_context", None)


@functools.cache
def _listen() -> str:
    """Open the socket for supervisors and return its path."""
    folder = tempfile.mkdtemp(prefix="distdl-spark-")  # mode 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{folder}/session")
    listener.listen(64)

    def serve_supervisor(connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection:  # the supervisor was killed
            serve(connection, _get_active_context())

    def accept() -> None:
        while True:
            threading.Thread(
                target=serve_supervisor, args=listener.accept()[:1], name="distdl spark job", daemon=True
            ).start()

    threading.Thread(target=accept, name="distdl spark", daemon=True).start()
    return f"{folder}/session"


def main() -> None:
    """Serve the parent process over the socket on standard input."""
    connection = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGTERM, lambda *_: connection.shutdown(socket.SHUT_RD))
    serve(connection)
    os._exit(0)  # do not wait for threads


class SparkCluster(AgentCluster):
    """Runs ranks on the executors of a Spark cluster."""

    name = "spark"
    title = "Spark"
    Options = SparkOptions
    has_queue = True
    can_share_host = True

    def unavailable(self, options: SparkOptions) -> str:
        """Return the remedy if Spark is not installed here, or Java if the driver runs here."""
        if find_spec("pyspark") is None:
            return "Spark is not installed in this environment. Run: pip install 'distdl-jupyter[spark]'"
        if options.master and not options.remote and not has_java():
            return "Spark needs Java, but Java was not found. Install Java 17 or newer, or set JAVA_HOME."
        return ""

    def validate(self, options: SparkOptions) -> None:
        """Raise InvalidSpec for options that do not identify one Spark cluster, and for invalid settings."""
        if sum(map(bool, (options.master, options.remote, options.session))) != 1:
            message = "A Spark cluster needs either a master, a remote, or a Spark session in this process."
            raise InvalidSpec(message, code="spark-no-master", field="master", hint=NO_SESSION_HINT)
        if "token=" in options.remote:
            message = "remote contains a token, which is a secret."
            hint = "Remove it, and set the environment variable SPARK_CONNECT_AUTHENTICATE_TOKEN."
            raise InvalidSpec(message, code="spark-remote-secret", field="remote", hint=hint)
        check_range(1, MAX_CORES)(options.cpus_per_process, "cpus_per_process")
        check_range(0, MAX_GPUS)(options.gpus_per_node, "gpus_per_node")
        options.parse_settings()

    def default_options(self) -> dict[str, Any] | None:
        """Return the options for this process's Spark session, usually of a notebook; do not import Spark."""
        module = sys.modules.get("pyspark.sql.connect.session")
        if session := module and module.SparkSession.getActiveSession():
            builder = session.client._builder  # noqa: SLF001 - no public attribute has the address
            return {"remote": f"sc://{builder.endpoint}" + ("/;use_ssl=true" if builder.secure else "")}
        if (context := _get_active_context()) is None:
            return None
        is_local = str(context.master).startswith("local")
        host = "127.0.0.1" if is_local else str(context.getConf().get("spark.driver.host"))
        return {"session": _listen(), "host": host}

    def detail(self, options: SparkOptions) -> str:
        """Return the address of the master or of the Connect server."""
        return options.remote or options.master or "the notebook's session"

    def run_checks(
        self, options: SparkOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[NodeCheck]:
        """Check one free executor; a job checks all its executors when it starts."""
        try:
            self.validate(options)
            with contextlib.closing(Stage(options, StageSpec(name="check"))) as stage:
                stage.await_tasks(lambda _reason: None, _CHECK_SECONDS)
                connections = stage.listener.connect(options.directory or DEFAULT_DIRECTORY)
                try:
                    return list(checkup.check_hosts(connections, [], options, modules, programs).checks)
                finally:
                    end_all(connections)
        except DistDLError as error:
            hint = error.hint or "See the log of the Spark master."
            return [NodeCheck("", "Spark", "error", error.message, hint, code=error.code)]

    def _connect(self, spec: JobSpec, options: SparkOptions, context: Context) -> tuple[JobSpec, list[ReachError]]:
        """Wait for a task on each node, and start an agent in each."""
        context.record_handle(_HANDLE)
        if options.session:
            text = "This job runs in the Spark session of its notebook, so it ends when the kernel ends."
            context.note(RunNotice("info", text, "kernel-session"))
        cpus = options.cpus_per_process * spec.process_count_per_node
        stage = Stage(options, StageSpec(spec.id, spec.node_count, cpus, spec.python))
        self._allocation.callback(stage.close)
        stage.await_tasks(lambda reason: context.report("queue", reason))
        if "mpirun" in context.programs and stage.listener.shares_hosts:
            message = "Open MPI identifies nodes by host name, but Spark gave the job several executors on one host."
            hint = "Use another backend, or use one node per host with more processes per node."
            raise LaunchFailed(message, code="spark-mpi-same-host", hint=hint)
        context.report("stage", f"starting agents on {plural(spec.node_count, 'executor')}")
        self._connections = stage.listener.connect(options.directory or DEFAULT_DIRECTORY)
        return spec, []

    def _make_nodes(self, job: StagedJob, placement: Placement, context: Context) -> AgentNodes:
        return AgentNodes(job, placement, context, self._nodes, _HANDLE, self._allocation.pop_all().close)

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """End the driver process of the job and its children; a task ends with its connection to the supervisor."""

        def find_drivers() -> set[int]:
            return set(processes.find_marked(processes.read_table(), {MARK_VARIABLE: job_id}))

        pids = find_drivers()
        processes.send_signal(pids, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while find_drivers() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return sorted(pids | processes.kill_all(find_drivers))


class Stage:
    """One barrier stage, in the session of a separate process or of a notebook's kernel."""

    def __init__(self, options: SparkOptions, stage: StageSpec) -> None:
        """Start the stage. Raises LaunchFailed."""
        self._task_count = stage.tasks
        #: The reason why the stage waits.
        self._reason = f"connecting to {options.title}"
        #: The reason why the stage ended.
        self._error: LaunchFailed | None = None
        self._is_closing = False
        self._process: subprocess.Popen[bytes] | None = None
        request = {"options": dataclasses.asdict(options), "stage": dataclasses.asdict(stage)}
        with contextlib.ExitStack() as resources:
            self._output = output = resources.enter_context(tempfile.TemporaryFile())
            try:
                self.listener = AgentListener(_find_local_address(options), self._explain_loss)
                resources.callback(self.listener.close)
                if options.session:
                    self._connection = resources.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                    self._connection.connect(options.session)
                    if read_uid(self._connection) != os.getuid():  # another user listens there
                        raise ConnectionRefusedError(options.session)
                else:
                    self._connection, child_socket = socket.socketpair()
                    resources.enter_context(self._connection)
                    env = {name: value for name, value in os.environ.items() if name not in _REDIRECTS}
                    env[MARK_VARIABLE], command = stage.name, [sys.executable, "-P", "-m", __name__]
                    with child_socket:
                        # The process stays in the supervisor's session, whose watchdog gives it time to release slots.
                        self._process = subprocess.Popen(
                            command, process_group=0, env=env, stdin=child_socket.fileno(), stdout=output, stderr=output
                        )
                content = json.dumps({**request, "callback": self.listener.connect_info})
                self._connection.sendall(content.encode() + b"\n")
            except OSError as error:
                if options.session:
                    hint = "Start a Spark session in another notebook and submit the job there."
                    raise LaunchFailed(_KERNEL_ENDED, code="spark-kernel-ended", hint=hint) from error
                message = f"The Spark driver cannot be started: {error.strerror or error}."
                raise LaunchFailed(message, code="spark-driver-not-started") from error
            self._resources = resources.pop_all()
        self._thread = threading.Thread(target=self._read_messages, name="spark", daemon=True)
        self._thread.start()

    def _read_messages(self) -> None:
        """Read the driver's messages until it ends."""
        with contextlib.suppress(OSError, ValueError), self._connection.makefile("rb") as lines:
            for message in map(json.loads, lines):
                self._reason = message.get("reason", self._reason)
                if "error" in message:
                    self._error = self._driver_error(message["error"], message["code"], message["hint"])
        reason = _KERNEL_ENDED
        if self._process is not None:
            reason = f"The Spark driver exited with code {self._process.wait()}."
        if not self._is_closing and self._error is None:
            self._error = self._driver_error(reason, "spark-driver-ended")
        self.listener.disconnect()  # tasks of a remote session could continue otherwise

    def _driver_error(self, message: str, code: str, hint: str = "") -> LaunchFailed:
        """Return an error; an error about the driver includes the end of its output."""
        output = ""
        if "driver" in message:
            self._output.seek(0)
            output = self._output.read().decode(errors="replace").strip()[-2000:]
        return LaunchFailed(message, code=code, hint=hint, output=output)

    def _explain_loss(self, name: str) -> str:
        reason = f" {self._error.message}" if self._error is not None else ""
        return f"The Spark executor on {name} was lost, because its task ended before the job.{reason}"

    def await_tasks(self, report: Callable[[str], object], seconds: float = math.inf) -> None:
        """Wait until all tasks have connected, at most ``seconds``.

        ``report`` is called with the reason for waiting. Raises LaunchFailed, and any exception of ``report``.
        """
        deadline = time.monotonic() + seconds
        while len(self.listener.agents) < self._task_count:
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                message = f"No Spark executor was free within {seconds:.0f} s: {self._reason}."
                hint = "Try again when Spark's other jobs have ended, or read the log of the Spark driver."
                raise LaunchFailed(message, code="spark-no-executor", hint=hint)
            report(self._reason)
            time.sleep(_POLL_SECONDS)
        self.listener.close()

    def close(self) -> None:
        """End the stage, which releases its slots; idempotent."""
        if self._is_closing:
            return
        self._is_closing = True
        self.listener.close()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self._thread.join(_END_SECONDS)
        with contextlib.suppress(OSError):
            if self._thread.is_alive() and self._process is not None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._resources.close()


if __name__ == "__main__":
    main()
