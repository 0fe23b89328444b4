"""Spark clusters: run an agent in each task of one barrier stage, and any backend on these agents.

A separate process, or the kernel of the notebook with the session, runs the stage with one task for each node
(``driver``). Each task connects back to the supervisor over TLS 1.3 with the job's secret (``agents.tcp_link``,
``node.connect_back``), starts the same agent as ``ssh``, and forwards its input and output. The stage ends with the
connection to the supervisor, and an agent with its task. Executors do not need this package.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from distdl_jupyter.clusters.agents import checkup
from distdl_jupyter.clusters.agents.agent import ReachError
from distdl_jupyter.clusters.agents.cluster import AgentCluster
from distdl_jupyter.clusters.agents.connection import DEFAULT_DIRECTORY, end_all
from distdl_jupyter.clusters.agents.staging import AgentNodes, StagedJob
from distdl_jupyter.clusters.agents.tcp_link import AgentListener
from distdl_jupyter.clusters.base import Context, NodeCheck, RunNotice
from distdl_jupyter.clusters.spark import driver
from distdl_jupyter.clusters.spark.driver import NO_SESSION_HINT, SparkOptions, StageSpec, list_addresses
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.machine import has_java
from distdl_jupyter.core.options import MAX_CORES, MAX_GPUS, check_range
from distdl_jupyter.core.plan import Placement
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.node import processes
from distdl_jupyter.worker.rank_socket import read_uid

#: Timeout in seconds for a check to open a session and start an executor. Spark may still be releasing the executors
#: of another job.
_CHECK_SECONDS = 50.0
#: The environment variable with the job ID that marks the driver process and its children.
MARK_VARIABLE = "DISTDL_SPARK_DRIVER"
#: Seconds between two checks for connected tasks.
_POLL_SECONDS = 0.1
#: Timeout in seconds for the end of the stage.
_END_SECONDS = 10.0
#: A sweep finds the driver process by its mark, so a job's handle needs no data.
_HANDLE = {"marked": True}
_KERNEL_ENDED = "The kernel with the Spark session of the job has ended."
#: Environment variables that would redirect the session; the driver does not inherit them.
_REDIRECTS = (
    *("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"),
    *("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON"),
)


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
        """Return the options for the Spark session of this process, usually a notebook's kernel."""
        return driver.find_session_options()

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
    """One barrier stage, in the session of a separate process or of a notebook's kernel (``driver``)."""

    def __init__(self, options: SparkOptions, stage: StageSpec) -> None:
        """Start the stage. Raises LaunchFailed."""
        self._options = options
        self._task_count = stage.tasks
        #: The reason why the stage waits.
        self._reason = f"connecting to {options.title}"
        #: The reason why the stage ended.
        self._error: LaunchFailed | None = None
        self._is_closing = False
        self._process: subprocess.Popen[bytes] | None = None
        request = {"options": dataclasses.asdict(options), "stage": dataclasses.asdict(stage)}
        with contextlib.ExitStack() as resources:
            self._output = resources.enter_context(tempfile.TemporaryFile())
            self.listener = AgentListener(_find_local_address(options), self._explain_loss)
            resources.callback(self.listener.close)
            try:
                self._connection = resources.enter_context(self._start_driver(stage.name))
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

    def _start_driver(self, job: str) -> socket.socket:
        """Start a process for the session, or connect to the kernel with the session; return the connection.

        Raises OSError, also if another user owns the listener.
        """
        if path := self._options.session:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.ExitStack() as resources:
                resources.enter_context(connection).connect(path)
                if read_uid(connection) != os.getuid():
                    raise ConnectionRefusedError(path)
                resources.pop_all()
            return connection
        connection, child_socket = socket.socketpair()
        variables = {name: value for name, value in os.environ.items() if name not in _REDIRECTS} | {MARK_VARIABLE: job}
        command, output = [sys.executable, "-P", "-m", driver.__name__], self._output
        with child_socket:
            # The process stays in the supervisor's session, whose watchdog gives it time to release the slots.
            self._process = subprocess.Popen(
                command, process_group=0, env=variables, stdin=child_socket.fileno(), stdout=output, stderr=output
            )
        return connection

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


def _find_local_address(options: SparkOptions) -> str:
    """Return this machine's address on the route to the master, which executors can reach. Raises LaunchFailed."""
    if options.host or options.master.startswith("local"):
        return options.host or "127.0.0.1"
    # TEST-NET-1 replaces a master without an address, such as yarn. Nothing is sent.
    host, port = next(list_addresses(options), ("192.0.2.1", 9))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError as error:
        message = f"This machine has no route to {host}: {error.strerror or error}."
        hint = "Correct the option 'master' or 'remote', or set the option 'host'."
        raise LaunchFailed(message, code="spark-no-route", hint=hint) from error
