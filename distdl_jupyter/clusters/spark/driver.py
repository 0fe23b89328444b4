"""The Spark session that runs one barrier stage, and the options that identify it.

``python -m distdl_jupyter.clusters.spark.driver`` is a process with its own session, or with one on a Spark Connect
server. The classic session of a notebook owns its executors, so its stage must run in the kernel, where a thread serves
the same protocol on a socket that only this user can access.

The client, a supervisor, sends one line of JSON that describes the stage, and receives lines of JSON with the reason
for waiting or with an error. When it disconnects, the stage is canceled, and a session opened for it is stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters.agents.agent import DIRECTORY_HELP, NETWORK_HELP, OVERSUBSCRIBE_HELP, SHARED_HELP
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import option
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.node import connect_back

#: Seconds between two attempts to run a stage.
_RETRY_SECONDS = 1.0
#: Timeout in seconds for stopping a session.
_STOP_SECONDS = 6.0
#: Spark's error for a barrier stage with more tasks than free slots.
_NO_SLOTS_ERROR = "SPARK-24819"
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

    master: str = option(
        "", "master of the cluster: spark://10.0.0.4:7077, yarn, or local-cluster[2,1,1024]", first=True
    )
    remote: str = option("", "Spark Connect server, instead of master: sc://10.0.0.4:15002", first=True)
    cpus_per_process: int = option(1, "Spark cores for each process", first=True)
    gpus_per_node: int = option(0, "GPUs on each node", first=True)
    conf: str = option("", 'Spark settings as JSON: {"spark.executor.memory": "4g"}')
    python: str = option("", "path of the Python interpreter on the executors (default: the path of this one)")
    session: str = option("", "socket of the process with the Spark session, instead of master; found automatically")
    host: str = option(
        "", "address of this machine that executors can reach (default: the address on the route to the master)"
    )
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


def list_addresses(options: SparkOptions) -> Iterator[tuple[str, int]]:
    """Yield the host and the port of each master, or of the Connect server."""
    authority = (options.remote or options.master).partition("://")[2].split("/")[0]
    for match in re.finditer(r"([^/,;:]+|\[[0-9a-fA-F:]+\]):(\d+)", authority):
        yield match[1].strip("[]"), int(match[2])
    if options.remote and not re.search(r":\d+", options.remote):
        yield options.remote.removeprefix("sc://").split("/")[0], 15002


def _require_spark(options: SparkOptions, context: Any) -> None:
    """Raise LaunchFailed if the notebook's session was stopped, or if no master or server responds.

    Spark itself would wait for a minute.
    """
    if options.session and context is None:
        message = "The notebook's Spark session has been stopped."
        raise LaunchFailed(message, code="spark-session-stopped", hint=NO_SESSION_HINT)
    problem = ""
    for address in list_addresses(options) if options.remote or options.master.startswith("spark://") else ():
        try:
            with socket.create_connection(address, 5.0):
                return
        except OSError as error:
            problem = f"{options.title} does not respond: {error.strerror or error}."
    if problem:
        hint = "Check that its master is running, and correct the option 'master' or 'remote'."
        raise LaunchFailed(problem, code="spark-unreachable", hint=hint)


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
            _require_spark(options, context)
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


def find_session_options() -> dict[str, str] | None:
    """Return the options for the Spark session of this process, or None if there is none. Does not import Spark."""
    module = sys.modules.get("pyspark.sql.connect.session")
    if session := module and module.SparkSession.getActiveSession():
        builder = session.client._builder  # noqa: SLF001 - no public attribute has the address
        return {"remote": f"sc://{builder.endpoint}" + ("/;use_ssl=true" if builder.secure else "")}
    if (context := _get_active_context()) is None:
        return None
    is_local = str(context.master).startswith("local")
    return {"session": _listen(), "host": "127.0.0.1" if is_local else str(context.getConf().get("spark.driver.host"))}


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


if __name__ == "__main__":
    main()
