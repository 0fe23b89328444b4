"""The Spark session that runs one barrier stage, and the options that identify it.

``python -m distdl_jupyter.clusters.spark.driver`` is a process with its own session, or with one on a Spark Connect
server. The classic session of a notebook owns the executors of its application, so its stage must run in the kernel,
where a thread serves the same protocol on a socket that only this user can access.

Protocol: one line of JSON describes the stage; lines of JSON report the reason for waiting, that the session is open,
or an error with its remedy. When the other side closes, the stage is canceled and the process's own session is stopped.
"""

from __future__ import annotations

import atexit
import contextlib
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

#: Seconds between two attempts to run a stage, and the timeout in seconds for stopping a session.
_RETRY_SECONDS, _STOP_SECONDS = 1.0, 6.0
#: Spark's error for a barrier stage with more tasks than free slots.
_NO_SLOTS = "SPARK-24819"
#: The remedies if Spark does not respond, and if there is no session.
CHECK_MASTER = "Check that its master is running, and correct the option master or remote."
NO_SESSION_HINT = (
    'Start a session (spark = SparkSession.builder.getOrCreate()), or set master="spark://HOST:7077", '
    'or remote="sc://HOST:15002" for Spark Connect.'
)
_Carrier = Callable[[Iterable[Any]], Iterator[Any]]
_lock = threading.Lock()
_path = ""


# options and stage ---------------------------------------------------------------------


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
    python: str = option("", "path of Python on the executors (default: the path of this Python)")
    session: str = option("", "socket of the process with the Spark session, instead of master; found automatically")
    host: str = option("", "address of this machine that executors can reach (default: the one on the route to it)")
    directory: str = option("", DIRECTORY_HELP)
    network: str = option("", NETWORK_HELP)
    shared: bool | None = option(None, SHARED_HELP)
    oversubscribe: bool = option(default=False, help_=OVERSUBSCRIBE_HELP)

    @property
    def address(self) -> str:
        """The address of the master or of the Connect server."""
        return self.remote or self.master or "the notebook's session"

    def settings(self) -> dict[str, str]:
        """Return the user's settings of Spark. Raises InvalidSpec."""
        try:
            pairs = json.loads(self.conf or "{}").items()
        except (ValueError, AttributeError):
            raise InvalidSpec(
                f'conf is {self.conf!r}, but must be JSON such as {{"spark.executor.memory": "4g"}}.',
                code="spark-conf-invalid",
                field="conf",
            ) from None
        settings = {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in pairs}
        if hidden := [name for name, value in settings.items() if is_secret(name, value)]:
            raise InvalidSpec(
                f"conf contains a secret ({hidden[0]}), which would be visible in the process list.",
                code="spark-conf-secret",
                field="conf",
                hint="Put it into the file spark-defaults.conf in SPARK_CONF_DIR.",
            )
        return settings


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A stage of ``tasks`` tasks with ``cpus`` cores each."""

    name: str
    tasks: int = 1
    cpus: int = 1
    python: str = ""


def addresses(options: SparkOptions) -> Iterator[tuple[str, int]]:
    """Yield host and port of each master or of the Connect server in the options."""
    authority = options.address.partition("://")[2].split("/")[0]
    for match in re.finditer(r"([^/,;:]+|\[[0-9a-fA-F:]+\]):(\d+)", authority):
        yield match[1].strip("[]"), int(match[2])
    if options.remote and not re.search(r":\d+", options.remote):
        yield options.remote.removeprefix("sc://").split("/")[0], 15002


def require_master(options: SparkOptions) -> None:
    """Raise LaunchFailed if no master or server responds; Spark itself would wait for a minute."""
    reason = ""
    for address in addresses(options) if options.remote or options.master.startswith("spark://") else ():
        try:
            with socket.create_connection(address, 5.0):
                return
        except OSError as error:
            reason = f"{error.strerror or error}"
    if reason:
        raise LaunchFailed(
            f"Spark at {options.address} does not respond: {reason}.", code="spark-unreachable", hint=CHECK_MASTER
        )


# on an executor -----------------------------------------------------------------------------------


def _carrier(source: str, back: Mapping[str, Any], python: str) -> _Carrier:
    """Return the function that every task runs: it executes ``source``, the source of ``connect_back``.

    It is pickled by value and uses no module-level names, because executors may lack this package.
    """

    def run(rows: Iterable[Any]) -> Iterator[Any]:
        import os

        from pyspark import BarrierTaskContext

        for _ in rows:  # Spark expects a task to read its rows
            pass
        # The agent does not inherit the variables that Spark sets for its workers.
        prefixes = (
            "SPARK_ PYSPARK_ _PYSPARK_ PYTHON_ DISTDL_ PYTHONHASHSEED PYTHONUNBUFFERED OMP_NUM_THREADS SIMPLIFIED_"
        )
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(tuple(prefixes.split()))
        }
        paths = environment.pop("PYTHONPATH", "").split(os.pathsep)
        paths = [path for path in paths if not path.rpartition("/")[2].startswith(("pyspark", "py4j", "spark-"))]
        if any(paths):
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        task: Any = BarrierTaskContext.get()
        if "gpu" in task.resources():
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(task.resources()["gpu"].addresses)
        scope: dict[str, Any] = {"__name__": "connect_back"}
        exec(source, scope)  # noqa: S102 - it is the source of a module of this package
        scope["serve"](back, {"number": task.partitionId(), "attempt": task.attemptNumber()}, python, environment)
        return iter(())

    return run


# sessions -----------------------------------------------------------------------------------------


class _Classic:
    """A classic session: one that this process opens, or that of a kernel (``context``), which outlives the stage."""

    def __init__(self, options: SparkOptions, order: StageSpec, host: str, context: Any = None) -> None:
        self.options, self.order, self._host = options, order, host
        self._is_own = context is None
        self._spark = context
        self._group = f"distdl-{os.urandom(8).hex()}"
        self._stopped = threading.Event()
        #: The path of the agents' Python, "" for the Python of Spark's workers.
        self.python = options.python or order.python

    def open(self) -> None:
        """Open the session. Raises any error of Spark."""
        if self._is_own:
            from pyspark import SparkConf, SparkContext

            os.environ["PYSPARK_PYTHON"] = self.python or sys.executable
            settings = {**_settings(self.order, self.options, self._host), **self.options.settings()}
            self._spark = SparkContext(conf=SparkConf().setAll(list(settings.items())))
            self._spark.setLogLevel("ERROR")

    def run(self, work: _Carrier) -> None:
        """Run the stage to its end as soon as enough slots are free. Raises any error of Spark."""
        count = self.order.tasks
        self._spark.setJobGroup(self._group, f"distdl job {self.order.name}", interruptOnCancel=True)
        tasks = self._spark.parallelize(range(count), count)
        if not self._is_own and (profile := _profile(self.options, self.order)) is not None:
            tasks = tasks.withResources(profile)
        _run_when_free(lambda: tasks.barrier().mapPartitions(work).collect(), self._stopped)

    def stop(self) -> None:
        """End the stage, and the session if this process opened it."""
        self._stopped.set()
        if self._spark is not None:
            self._spark.cancelJobGroup(self._group)
            if self._is_own:
                java = self._spark._gateway.proc  # noqa: SLF001 - the only way to see when it has exited
                self._spark.stop()
                java.stdin.close()
                java.wait()


class _Connect:
    """A session on a Spark Connect server."""

    def __init__(self, options: SparkOptions, order: StageSpec) -> None:
        self.options, self.order = options, order
        self._spark: Any = None
        self._stopped = threading.Event()
        self.python = options.python

    def open(self) -> None:
        from pyspark.sql import SparkSession

        builder: Any = SparkSession.builder.remote(self.options.remote).appName(f"distdl-{self.order.name}")
        for name, value in self.options.settings().items():
            builder = builder.config(name, value)
        self._spark = builder.create()
        self._spark.version  # noqa: B018 - it queries the server

    def run(self, work: _Carrier) -> None:
        profile, count = _profile(self.options, self.order), self.order.tasks
        tasks = self._spark.range(0, count, 1, count)
        _run_when_free(
            lambda: tasks.mapInArrow(work, "id long", barrier=True, profile=profile).collect(), self._stopped
        )

    def stop(self) -> None:
        self._stopped.set()
        if self._spark is not None:
            self._spark.interruptAll()
            self._spark.stop()


_Session = _Classic | _Connect


def _run_when_free(run: Callable[[], object], stopped: threading.Event) -> None:
    """Run a stage as soon as the cluster has enough free slots."""
    while not stopped.is_set():
        try:
            run()
        except Exception as error:
            if _NO_SLOTS not in str(error):
                raise
            stopped.wait(_RETRY_SECONDS)
        else:
            return


def _profile(options: SparkOptions, order: StageSpec) -> Any:
    """Return the resource profile of a task, None if it only needs one core."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    gpus = options.gpus_per_node
    if order.cpus == 1 and not gpus:
        return None
    requests = TaskResourceRequests().cpus(order.cpus)
    return ResourceProfileBuilder().require(requests.resource("gpu", gpus) if gpus else requests).build


def _settings(order: StageSpec, options: SparkOptions, host: str) -> dict[str, str]:
    """Return the default settings of the session, which the user's settings override."""
    settings = {
        "spark.master": options.master,
        "spark.app.name": f"distdl-{order.name}",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": host,
        "spark.driver.bindAddress": host if _is_local(host) else "0.0.0.0",  # noqa: S104 - the address is translated
        "spark.dynamicAllocation.enabled": "false",
        "spark.speculation": "false",
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": str(2**31 - 1),
        "spark.task.cpus": str(order.cpus),
        "spark.executor.cores": str(order.cpus),
        "spark.executor.instances": str(order.tasks),
        "spark.cores.max": str(order.cpus * order.tasks),
    }
    if options.gpus_per_node:
        settings["spark.executor.resource.gpu.amount"] = str(options.gpus_per_node)
        settings["spark.task.resource.gpu.amount"] = str(options.gpus_per_node)
    return settings


def _is_local(host: str) -> bool:
    """Return whether ``host`` is an address of this machine."""
    with contextlib.suppress(OSError), socket.create_server((host, 0)):
        return True
    return False


# the protocol ---------------------------------------------------------------------------------

#: Patterns of Spark's errors, their meaning, and the remedy.
_CAUSES = (
    (
        r"distdl: ([\w.-]+ cannot reach \S+: [^\n]*)",
        "{0}.",
        "Set the option host to an address of this machine that Spark's executors can reach, and open its ports to "
        "them.",
    ),
    (
        r"SPARK-24942",
        "Spark adds and removes executors dynamically, so the tasks cannot start together.",
        "Start the session with spark.dynamicAllocation.enabled=false.",
    ),
    (r"JAVA_GATEWAY_EXITED", "Spark's driver did not start.", "Read its output. Spark 4 needs Java 17 or newer."),
    (
        r"different version: \(?(\d+[., ]+\d+)\)? than that in driver:? \(?(\d+[., ]+\d+)",
        "The executors run Python {0}, but this job runs Python {1}.",
        "Set the option python to the path of the job's Python version on the executors.",
    ),
    (
        r'Cannot run program "([^"]+)"',
        "There is no Python at {0} on the executors.",
        "Set the option python to the path of Python on the executors.",
    ),
    (
        r"No module named '?(py[\w.]+)",
        "{0} is not installed in the Python of the executors.",
        "Install it on the executors, or set the option python.",
    ),
    (
        r"All masters are unresponsive|StatusCode.UNAVAILABLE|failed to connect to all addresses",
        "Spark does not respond.",
        CHECK_MASTER,
    ),
)


def _explain(text: str, options: SparkOptions) -> tuple[str, str]:
    """Return an error of Spark as one sentence, and its remedy."""
    for pattern, sentence, hint in _CAUSES:
        if match := re.search(pattern, text):
            return sentence.format(*(group.strip().replace(", ", ".") for group in match.groups())), hint
    lines = [re.sub(r"^:?\s*(?:[\w.$]+(?:Exception|Error): )+", "", line.strip()) for line in text.splitlines()]
    skipped = ("An error occurred while calling", "Traceback", "at ")
    first = next((line for line in lines if line and not line.startswith(skipped)), "no reason given")
    return f"Spark at {options.address} ended the job's stage: {first[:300].rstrip('.:')}.", "See its executors' logs."


def serve(connection: socket.socket, context: Any = None) -> None:
    """Run the stage that the other side describes; end it when that side closes.

    ``context`` is the SparkContext of this kernel; without one, a session is started and stopped.
    """

    def report(**fields: Any) -> None:
        with contextlib.suppress(OSError):  # the other side has closed the connection
            connection.sendall(json.dumps(fields).encode() + b"\n")

    def work() -> None:
        _work(session, request["back"], report)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RD)

    lines = connection.makefile("rb")
    request = json.loads(lines.readline())
    options, order = SparkOptions(**request["options"]), StageSpec(**request["order"])
    session: _Session
    if context is None and options.remote:
        session = _Connect(options, order)
    else:
        session = _Classic(options, order, request["back"]["host"], context)
    threading.Thread(target=work, daemon=True).start()
    with contextlib.suppress(OSError):
        lines.read()
    stopping = threading.Thread(target=session.stop, daemon=True)
    stopping.start()
    stopping.join(_STOP_SECONDS)
    if context is None and stopping.is_alive():
        os.killpg(0, signal.SIGKILL)  # also kills Java


def _work(session: _Session, back: dict[str, Any], report: Callable[..., None]) -> None:
    """Run the stage, whose tasks connect to ``back``."""
    try:
        require_master(session.options)
        report(waits=f"starting a session of Spark at {session.options.address}")
        session.open()
        report(opened=True, waits=_waits(session.order, session.options.gpus_per_node))
        source = Path(connect_back.__file__).read_text(encoding="utf-8")
        session.run(_carrier(source, back, session.python))
    except DistDLError as error:
        report(error=error.message, code=error.code, hint=error.hint)
    except Exception as error:  # noqa: BLE001 - Spark may raise anything
        sentence, hint = _explain(str(error), session.options)
        report(error=sentence, code="spark-stage-failed", hint=hint)


def _waits(order: StageSpec, gpus: int) -> str:
    """Return why a stage waits."""
    text = f"waiting for {plural(order.tasks, 'executor')} of Spark with {plural(order.cpus, 'core')}"
    return text + (f" and {plural(gpus, 'GPU')}" if gpus else "") + (" each" if order.tasks > 1 else "")


# the session of a notebook ------------------------------------------------------------------------


def active() -> dict[str, str] | None:
    """Return the options for the session of this process, None without one. Does not import Spark."""
    module = sys.modules.get("pyspark.sql.connect.session")
    if session := module and module.SparkSession.getActiveSession():
        builder = session.client._builder  # noqa: SLF001 - no public attribute has the address
        return {"remote": f"sc://{builder.endpoint}" + ("/;use_ssl=true" if builder.secure else "")}
    if (context := _context()) is None:
        return None
    local = str(context.master).startswith("local")
    return {"session": _listen(), "host": "127.0.0.1" if local else str(context.getConf().get("spark.driver.host"))}


def _context() -> Any:
    module = sys.modules.get("pyspark.core.context") or sys.modules.get("pyspark.context")
    return getattr(getattr(module, "SparkContext", None), "_active_spark_context", None)


def _listen() -> str:
    """Return the path of the socket for supervisors; the first call opens the socket."""
    global _path
    with _lock:
        if not _path:
            folder = tempfile.mkdtemp(prefix="distdl-spark-")  # mode 0700
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(f"{folder}/session")
            listener.listen(64)
            threading.Thread(target=_accept, args=(listener,), name="distdl spark", daemon=True).start()
            _path = f"{folder}/session"
        return _path


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve_kernel, args=(connection,), name="distdl spark job", daemon=True).start()


def _serve_kernel(connection: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError), connection:
        try:
            if (context := _context()) is not None:
                serve(connection, context)
            else:
                with connection.makefile("rb") as requests:
                    requests.readline()  # closing the connection earlier would lose the response
                stopped = "The notebook's Spark session has been stopped."
                error = {"error": stopped, "code": "spark-session-stopped", "hint": NO_SESSION_HINT}
                connection.sendall(json.dumps(error).encode() + b"\n")
        finally:
            connection.shutdown(socket.SHUT_RDWR)  # a thread may still read it


def main() -> None:
    """Serve the parent process over the socket on standard input."""
    connection = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGTERM, lambda *_: connection.shutdown(socket.SHUT_RD))
    serve(connection)
    os._exit(0)  # do not wait for threads


if __name__ == "__main__":
    main()
